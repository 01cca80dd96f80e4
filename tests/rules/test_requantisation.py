"""Requantisation: the table of docs/rules.md, row by row, and the same integers up to one quantum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

Q, DQ, TABLE = "QuantizeLinear", "DequantizeLinear", "eqsat::ByteTable"
FLAT = {"target": "onnxruntime-cpu"}
RUNTIME = {"target": "onnxruntime-cpu", "form": "onnxruntime"}
OWN = {"target": "tensorrt-like"}


def requantised(kind: str, *, equal: bool) -> Graph:
    """``Q(f(DQ(a), DQ(b)))`` on uint8, by one scale and zero point or by three."""
    b = GraphBuilder()

    def parameters(scale: float, zero: int) -> tuple[str, str]:
        return b.constant(np.float32(0.02 if equal else scale)), b.constant(np.uint8(3 if equal else zero))

    x, y = (
        b.op(DQ, b.input(name, "uint8", (2, 4, 6, 5)), *parameters(*p))
        for name, p in (("a", (0.02, 3)), ("b", (0.031, 7)))
    )
    operators: dict[str, Any] = {
        "": lambda: x,
        "Concat": lambda: b.op("Concat", x, y, axis=1),
        "Add": lambda: b.op("Add", x, y),
        "Mul": lambda: b.op("Mul", x, y),
        "AveragePool": lambda: b.op("AveragePool", x, kernel_shape=(2, 2)),
        "GlobalAveragePool": lambda: b.op("GlobalAveragePool", x),
    }
    return b.finish({"y": b.op(Q, operators[kind](), *parameters(0.05, 9))})


ROWS: list[tuple[str, bool, dict[str, str], dict[str, int], set[str]]] = [
    ("", True, FLAT, {}, {"cancel_quantize_of_dequantize"}),
    ("", False, FLAT, {DQ: 1, Q: 1}, set()),
    ("", False, OWN, {TABLE: 1}, {"tabulate_function_of_bytes"}),
    ("Concat", True, FLAT, {"Concat": 1}, {"move_dequantize_behind_concat", "cancel_quantize_of_dequantize"}),
    ("Concat", False, FLAT, {DQ: 2, "Concat": 1, Q: 1}, {"quantise_concatenation"}),
    ("Concat", False, RUNTIME, {"com.microsoft::QLinearConcat": 1}, {"quantise_concatenation"}),
    ("Concat", False, OWN, {TABLE: 2, "Concat": 1}, {"move_quantize_before_concat", "tabulate_function_of_bytes"}),
    ("Add", False, FLAT, {DQ: 2, "Add": 1, Q: 1}, {"quantise_add"}),
    ("Add", False, RUNTIME, {"com.microsoft::QLinearAdd": 1}, {"quantise_add"}),
    ("Add", False, OWN, {DQ: 2, "Add": 1, Q: 1}, set()),
    ("Mul", False, FLAT, {DQ: 2, "Mul": 1, Q: 1}, {"quantise_mul"}),
    ("Mul", False, RUNTIME, {"com.microsoft::QLinearMul": 1}, {"quantise_mul"}),
    ("AveragePool", False, FLAT, {DQ: 1, "AveragePool": 1, Q: 1}, {"quantise_averagepool"}),
    ("AveragePool", False, RUNTIME, {"com.microsoft::QLinearAveragePool": 1}, {"quantise_averagepool"}),
    ("GlobalAveragePool", False, FLAT, {DQ: 1, "GlobalAveragePool": 1, Q: 1}, {"quantise_globalaveragepool"}),
    (
        "GlobalAveragePool",
        False,
        RUNTIME,
        {"com.microsoft::QLinearGlobalAveragePool": 1},
        {"quantise_globalaveragepool"},
    ),
]


@pytest.mark.parametrize(("kind", "equal", "where", "expected", "rules"), ROWS)
def test_equation(kind: str, equal: bool, where: dict[str, Any], expected: dict[str, int], rules: set[str]) -> None:
    graph = requantised(kind, equal=equal)
    result = eqsat.optimize(graph, verify=False, cost="kernels", **dict[str, Any](form="flat") | where)
    assert counts(result) == expected
    assert rules == {name for kernel in result.program.kernels for name in kernel.rules}
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8) for name in graph.inputs}
    found, reference = (run(g, feeds)["y"].astype(int) for g in (result.program.graph, graph))
    assert np.abs(found - reference).max() <= (1 if rules else 0)


def test_sums_in_floats_are_one_kernel_where_elementwise_operators_are() -> None:
    for kind in ("Add", "Mul"):
        result = eqsat.optimize(requantised(kind, equal=False), verify=False, target="tensorrt-like")
        assert result.report.kernels_after == 1


def test_rounding_twice_is_another_function() -> None:
    """Nothing leaves out the first of two quantisations."""
    b = GraphBuilder()
    first, second = ((b.constant(np.float32(s)), b.constant(np.int8(0))) for s in (0.5, 0.3))
    once = b.op(DQ, b.op(Q, b.input("x", "float32", (64,)), *first), *first)
    graph = b.finish({"y": b.op(Q, once, *second)})
    result = eqsat.optimize(graph, verify=False, target="tensorrt-like")
    feeds = {"x": np.linspace(-5, 5, 64, dtype=np.float32)}
    np.testing.assert_array_equal(*(run(g, feeds)["y"] for g in (graph, result.program.graph)))
    assert not np.array_equal(run(graph, feeds)["y"], np.round(feeds["x"] / np.float32(0.3)))
