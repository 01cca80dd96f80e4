"""Integers to integers: functions as tables, biased products as one operator, ranges that parts share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.operators.byte_table import BYTE_TABLE
from eqsat.ir.operators.qlinear_gemm import QLINEAR_GEMM
from eqsat.result import Result

Q, DQ = "QuantizeLinear", "DequantizeLinear"
EVERY = np.arange(-128, 128).astype(np.int8)


def _number(b: GraphBuilder, value: float) -> str:
    return b.constant(np.float32(value))


def _fake(b: GraphBuilder, value: str, scale: float, *, narrow: bool) -> str:
    zero = b.constant(np.int8(0))
    q = b.op(Q, value, _number(b, scale), zero)
    if narrow:
        q = b.op("Clip", q, b.constant(np.int8(-127)))
    return b.op(DQ, q, _number(b, scale), zero)


def _gelu(*, narrow: bool, shift: Any = 1.0) -> Graph:
    """Int8 -> GELU as an exporter quantises it, inner edges and all -> int8."""
    b = GraphBuilder()
    x = b.op(DQ, b.input("q", "int8", (256,)), _number(b, 0.02), b.constant(np.int8(3)))
    y = _fake(b, b.op("Erf", b.op("Div", x, _number(b, 1.4142135))), 0.0078, narrow=narrow)
    y = _fake(b, b.op("Add", y, b.constant(np.float32(shift))), 0.0157, narrow=narrow)
    y = b.op("Mul", x, b.op("Mul", y, _number(b, 0.5)))
    q = b.op(Q, y, _number(b, 0.021), b.constant(np.int8(0)))
    return b.finish({"y": b.op("Clip", q, b.constant(np.int8(-127))) if narrow else q})


def _on_accelerator(graph: Graph) -> Result:
    return eqsat.optimize(graph, verify=False, target="tensorrt-like")


@pytest.mark.parametrize("narrow", [False, True])
def test_quantised_gelu_is_a_table(narrow: bool) -> None:
    graph = _gelu(narrow=narrow)
    result = _on_accelerator(graph)
    assert counts(result) == {BYTE_TABLE: 1}
    feeds = {"q": EVERY}
    np.testing.assert_array_equal(run(result.program.graph, feeds)["y"], run(graph, feeds)["y"])


def test_a_table_ends_at_a_constant_for_each_element() -> None:
    found = counts(_on_accelerator(_gelu(narrow=False, shift=np.linspace(0, 1, 256))))
    assert found[BYTE_TABLE] == 1
    assert found["Add"] == 1


def test_a_table_ends_where_roundings_may_move_it_by_more_than_a_quantum() -> None:
    b = GraphBuilder()
    x = b.op(DQ, b.input("q", "int8", (256,)), _number(b, 0.5), b.constant(np.int8(0)))
    y = _fake(b, x, 1.0, narrow=False)  # every second value halfway between two others
    y = b.op(Q, y, _number(b, 0.1), b.constant(np.int8(0)))
    assert counts(_on_accelerator(b.finish({"y": y}))) == {BYTE_TABLE: 1, DQ: 1, Q: 1}


def test_onnx_runtime_has_no_kernel_for_tables() -> None:
    found = counts(eqsat.optimize(_gelu(narrow=False), verify=False, form="flat"))
    assert BYTE_TABLE not in found
    assert "Gather" not in found


def test_biased_product_is_one_operator_where_the_target_has_it() -> None:
    rng = np.random.default_rng(3)
    b = GraphBuilder()
    x = b.op(DQ, b.input("q", "uint8", (8, 64)), _number(b, 0.05), b.constant(np.uint8(128)))
    scales = rng.uniform(0.001, 0.002, 32).astype(np.float32)
    weight = rng.integers(-127, 128, (64, 32)).astype(np.int8)
    w = b.op(DQ, b.constant(weight), b.constant(scales), b.constant(np.zeros(32, np.int8)), axis=1)
    y = b.op("Gemm", x, w, b.constant(rng.normal(scale=0.2, size=32).astype(np.float32)))
    graph = b.finish({"y": b.op(Q, y, _number(b, 0.03), b.constant(np.uint8(128)))})
    feeds = {"q": rng.integers(0, 256, (8, 64)).astype(np.uint8)}
    expected = run(graph, feeds)["y"].astype(int)
    for target, operators in (
        ("tensorrt-like", {QLINEAR_GEMM: 1}),
        ("onnxruntime-cpu", {"Pad": 1, "QLinearMatMul": 1}),
    ):
        result = eqsat.optimize(graph, verify=False, target=target, form="flat")
        assert counts(result) == operators
        assert np.abs(run(result.program.graph, feeds)["y"].astype(int) - expected).max() <= 1


@pytest.mark.parametrize("bounds", [(1, 1), (1, 2)])
def test_parts_are_clipped_once_if_all_are_clipped_alike(bounds: tuple[int, int]) -> None:
    b = GraphBuilder()
    q = b.input("q", "uint8", (4, 6))
    parts = b.op("Split", q, b.constant(np.array([2, 4])), axis=1, outputs=2)
    outputs = {
        f"y{i}": b.op("Clip", p, b.constant(np.uint8(low)))
        for i, (p, low) in enumerate(zip(parts, bounds, strict=True))
    }
    found = counts(eqsat.optimize(b.finish(outputs), verify=False, form="flat"))
    assert found["Clip"] == len(set(bounds))


def test_one_dequantisation_serves_both_factors_of_a_gate() -> None:
    b = GraphBuilder()
    x = b.op(DQ, b.input("q", "int8", (4, 8)), _number(b, 0.02), b.constant(np.int8(0)))
    gate = _fake(b, b.op("Erf", b.op("Mul", x, _number(b, 0.7071))), 0.0078, narrow=False)
    graph = b.finish({"y": b.op("Mul", x, gate)})
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert counts(result) == {DQ: 2, "Erf": 1, Q: 1, "Mul": 1}
    feeds = {"q": EVERY[:32].reshape(4, 8)}
    np.testing.assert_allclose(run(result.program.graph, feeds)["y"], run(graph, feeds)["y"], rtol=1e-5)


def test_heads_of_signed_operands_are_viewed_once_with_those_of_unsigned_ones() -> None:
    b = GraphBuilder()
    parts = b.op("Split", b.input("q", "uint8", (8, 96)), b.constant(np.array([32, 32, 32])), axis=1, outputs=3)
    outputs = {}
    for k, (part, dtype) in enumerate(zip(parts, ("uint8", "int8", "int8"), strict=True)):
        x = b.op(DQ, part, _number(b, 0.02), b.constant(np.uint8(128)))
        x = b.op("Add", x, b.constant(np.linspace(-k - 1, 1, 32, dtype=np.float32)))
        x = b.op("Reshape", x, b.constant(np.array([1, 8, 4, 8])))
        zero = b.constant(np.array(128 if dtype == "uint8" else 0, dtype))
        outputs[f"y{k}"] = b.op("Transpose", b.op(Q, x, _number(b, 0.03), zero), perm=(0, 2, 1, 3))
    graph = b.finish(outputs)
    result = eqsat.optimize(graph, verify=False, numerics="rounding", form="onnxruntime", cost="kernels")
    assert result.report.operators_after["Reshape"] == 1
    feeds = {"q": np.random.default_rng(0).integers(0, 255, (8, 96), endpoint=True).astype(np.uint8)}
    for name, expected in run(graph, feeds).items():
        np.testing.assert_array_equal(run(result.program.graph, feeds)[name], expected)
