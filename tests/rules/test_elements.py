"""Loops that exporters unrolled: what each step looks up, and what is computed of it."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat
from eqsat.ir.graph import Graph


def unrolled(steps: int, axis: int, batch: int | str = 4, backwards: bool = False) -> Graph:
    """``h = tanh(x[t] @ w + h @ u)``, step by step."""
    draw = np.random.default_rng(0)
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (steps, batch, 8) if axis == 0 else (batch, steps, 8))
    w, u = (b.constant(draw.normal(size=(n, 16)).astype(np.float32)) for n in (8, 16))
    h = b.input("h", "float32", (batch, 16))
    for t in range(steps)[:: -1 if backwards else 1]:
        at = b.op("Gather", x, b.constant(t, "int64"), axis=axis)
        h = b.op("Tanh", b.op("Add", b.op("MatMul", at, w), b.op("MatMul", h, u)))
    return b.finish({"y": h})


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backwards", [False, True])
def test_products_of_all_steps_with_the_input_are_one(axis: int, backwards: bool) -> None:
    result = eqsat.optimize(unrolled(6, axis, backwards=backwards), form="onnxruntime", cost="roofline-launch")
    after = result.report.operators_after
    assert after["MatMul"] + after.get("Gemm", 0) + after.get("com.microsoft::FusedGemm", 0) == 7
    assert "Gather" not in after


def test_what_is_looked_up_one_by_one_is_one_split() -> None:
    after = eqsat.optimize(unrolled(6, 0), form="flat").report.operators_after
    assert "Gather" not in after
    assert after["Split"] == 1


def test_products_of_all_steps_with_the_input_are_one_beside_a_symbolic_batch() -> None:
    after = eqsat.optimize(unrolled(6, 0, batch="batch"), form="flat").report.operators_after
    assert after["MatMul"] + after.get("Gemm", 0) == 7
    assert "Gather" not in after


def test_steps_that_are_looked_up_in_a_value_turned_round_are_steps_of_the_value() -> None:
    """As the second direction of an unrolled recurrent network has them."""
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (3, "batch", 4))
    ends = [b.constant(v, "int64") for v in ([-1], [-(2**63)], [0], [-1])]
    turned = b.op("Slice", x, *ends)
    found = [b.op("Relu", b.op("Gather", turned, b.constant(i, "int64"), axis=0)) for i in range(3)]
    after = eqsat.optimize(b.finish({f"y{i}": y for i, y in enumerate(found)}), form="flat").report.operators_after
    assert "Slice" not in after


def test_a_layer_applied_to_each_step_is_a_layer() -> None:
    """As Keras writes ``TimeDistributed(Dense)``."""
    draw = np.random.default_rng(0)
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", ("batch", 5, 8))
    w, c = (b.constant(draw.normal(size=shape).astype(np.float32)) for shape in ((8, 4), (4,)))
    steps: list[str] = []
    for i in range(5):
        at = [b.constant([n], "int64") for n in (i, i + 1, 1)]
        step = b.op("Squeeze", b.op("Slice", x, *at), b.constant([1], "int64"))
        steps.append(b.op("Unsqueeze", b.op("Add", b.op("MatMul", step, w), c), b.constant([0], "int64")))
    stacked = b.op("Transpose", b.op("Concat", *steps, axis=0), perm=(1, 0, 2))
    result = eqsat.optimize(b.finish({"y": stacked}), form="flat")
    assert result.report.operators_after == {"MatMul": 1, "Add": 1}


def test_elements_that_are_stacked_again_are_the_value() -> None:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    parts = [b.op("Gather", x, b.constant(i, "int64"), axis=0) for i in (0, 1, -1)]
    stacked = b.op("Concat", *(b.op("Unsqueeze", p, b.constant([0], "int64")) for p in parts), axis=0)
    result = eqsat.optimize(b.finish({"y": b.op("Relu", stacked)}), form="flat")
    assert result.report.operators_after == {"Relu": 1}


def test_parts_that_are_stacked_again_are_a_view_of_the_value() -> None:
    """As mixtures of experts stack what experts that stand side by side compute."""
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", ("batch", 12))
    parts = b.op("Split", x, b.constant([4, 4, 4], "int64"), outputs=3, axis=1)
    apart = [b.op("Unsqueeze", part, b.constant([1], "int64")) for part in parts]
    after = eqsat.optimize(b.finish({"y": b.op("Concat", *apart, axis=1)}), form="flat").report.operators_after
    assert after == {"Reshape": 1}


def written(columns: int, reduction: str = "none") -> Graph:
    """``x[:, :columns] = y`` as a ScatterND at a grid of positions, with a symbolic batch."""
    b = eqsat.GraphBuilder()
    x, y = b.input("x", "float32", ("n", 6)), b.input("y", "float32", ("n", columns))
    batch = b.op("Squeeze", b.op("Shape", y, start=0, end=1))
    rows = b.op("Range", b.constant(0, "int64"), batch, b.constant(1, "int64"))
    grid = [b.op("Reshape", rows, b.constant([-1, 1], "int64")), b.constant(np.arange(columns), "int64")]
    grid = [b.op("Unsqueeze", b.op("Expand", g, b.op("Shape", y)), b.constant([-1], "int64")) for g in grid]
    return b.finish({"z": b.op("Relu", b.op("ScatterND", x, b.op("Concat", *grid, axis=-1), y, reduction=reduction))})


def test_what_is_written_over_all_elements_is_all_there_is() -> None:
    assert eqsat.optimize(written(6), form="flat").report.operators_after == {"Relu": 1}


@pytest.mark.parametrize("graph", [written(5), written(6, "add")])
def test_what_is_written_over_some_elements_or_added_is_not(graph: Graph) -> None:
    assert eqsat.optimize(graph, form="flat").report.operators_after["ScatterND"] == 1
