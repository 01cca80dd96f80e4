"""A view that the program computes for an empty batch is not written as one that ONNX cannot infer there."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.verification.pieces import session_of


def merged_heads(target: str) -> Graph:
    """``x[batch, 2, 2, seq, 16]`` as ``[batch, 4, seq, 16]``, by extents that are computed or by -1."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 2, 2, "seq", 16))
    four, last = b.constant([4], "int64"), b.constant([16], "int64")
    if target == "inferred":
        shape = b.constant([0, 4, -1, 16], "int64")
    else:
        extents = b.op("Shape", x)
        batch, seq = (b.op("Gather", extents, b.constant([axis], "int64")) for axis in (0, 3))
        if target == "subtracted":
            seq = b.op("Sub", b.op("Mul", seq, four), b.op("Mul", seq, b.constant([3], "int64")))
        shape = b.op("Concat", batch, four, seq, last, axis=0)
    return b.finish({"y": b.op("Reshape", b.op("Exp", x), shape)})


def targets_of(graph: Graph) -> list[list[int]]:
    reshapes = [n for n in graph.nodes if n.op == "Reshape" and n.inputs[1] in graph.constants]
    return [graph.constants[n.inputs[1]].numpy().tolist() for n in reshapes]


@pytest.mark.parametrize("target", ["computed", "subtracted"])
def test_computed_extents_stay_where_one_may_be_0(target: str) -> None:
    result = eqsat.optimize(merged_heads(target))
    found = session_of(result.program.graph).run({"x": np.zeros((0, 2, 2, 3, 16), np.float32)})
    assert found["y"].shape == (0, 4, 3, 16)
    assert not result.report.verification["notes"]


def test_what_the_program_infers_may_be_inferred() -> None:
    assert targets_of(eqsat.optimize(merged_heads("inferred")).program.graph) == [[0, 4, -1, 16]]


def test_axes_of_1_move_by_a_transpose_where_a_batch_may_be_empty() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 1, "seq", 4))
    result = eqsat.optimize(b.finish({"y": b.op("Exp", b.op("Transpose", x, perm=(0, 2, 1, 3)))}))
    found = session_of(result.program.graph).run({"x": np.zeros((0, 1, 3, 4), np.float32)})
    assert found["y"].shape == (0, 3, 1, 4)


def test_another_extent_than_the_program_infers_is_not_inferred() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", "seq", 6))
    seq = b.op("Shape", x, start=1, end=2)
    shape = b.op("Concat", b.constant([-1], "int64"), seq, b.constant([2, 3], "int64"), axis=0)
    twice = b.op("Concat", x, x, axis=0)
    rows = b.op(
        "Reshape",
        b.op("Exp", b.op("Reshape", twice, shape)),
        b.op("Concat", b.constant([-1, 2, 3], "int64"), seq, axis=0),
    )
    result = eqsat.optimize(b.finish({"y": rows}))
    found = session_of(result.program.graph).run({"x": np.zeros((0, 2, 6), np.float32)})
    assert found["y"].shape == (0, 2, 3, 2)
