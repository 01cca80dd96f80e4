"""Quantisation spelled as arithmetic: recognised with its range, and left alone where it is another function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts, feeds_of, optimized

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import DType

Q, DQ = "QuantizeLinear", "DequantizeLinear"


def lowered(
    factor: float = 16.0,
    low: float = -127.0,
    high: float = 127.0,
    *,
    to: DType = DType.INT8,
    before: str = "",
    shift: float | None = None,
    form: str = "Clip",
) -> Graph:
    """``Cast(clip(Round(x * factor) + shift, low, high))``; ``before`` is applied to ``x`` first."""
    b = GraphBuilder()
    x = b.input("x", "float32", (8, 32))
    if before:
        x = b.op(before, x)
    x = b.op("Mul", x, b.constant(np.float32(factor)))
    first, last = b.constant(np.float32(low)), b.constant(np.float32(high))
    if form == "Clip before Round":
        x = b.op("Round", b.op("Clip", x, first, last))
    else:
        x = b.op("Round", x)
        if shift is not None:
            x = b.op("Add", x, b.constant(np.float32(shift)))
        x = b.op("Min", b.op("Max", x, first), last) if form == "Min of Max" else b.op("Clip", x, first, last)
    return b.finish({"y": b.op("Cast", x, to=int(to))})


@pytest.mark.parametrize("form", ["Clip", "Min of Max", "Clip before Round"])
def test_full_range_is_quantize(form: str) -> None:
    assert counts(optimized(lowered(low=-128, form=form))) == {Q: 1}
    assert counts(optimized(lowered(low=0, high=255, to=DType.UINT8, form=form))) == {Q: 1}


def test_narrow_range_stays_explicit() -> None:
    assert counts(optimized(lowered())) == {Q: 1, "Clip": 1}
    assert counts(optimized(lowered(low=-7, high=7))) == {Q: 1, "Clip": 1}


def test_narrow_range_that_nothing_leaves_vanishes() -> None:
    assert counts(optimized(lowered(before="Relu"))) == {"Relu": 1, Q: 1}
    assert counts(optimized(lowered(64.0, before="Tanh"))) == {"Tanh": 1, Q: 1}


def test_range_that_something_may_leave_by_half_a_step_stays() -> None:
    assert "Clip" in counts(optimized(lowered(127.6, before="Tanh"), numerics="exact"))
    assert "Clip" not in counts(optimized(lowered(127.4, before="Tanh"), numerics="exact"))


def test_zero_point_is_added_after_rounding() -> None:
    assert counts(optimized(lowered(low=0, high=255, to=DType.UINT8, shift=100))) == {Q: 1}
    assert Q not in counts(optimized(lowered(low=0, high=255, to=DType.UINT8, shift=100.5)))


def test_factor_stays_a_factor_where_ties_must_not_move() -> None:
    assert counts(optimized(lowered(12.7, low=-128), numerics="exact")) == {"Mul": 1, Q: 1}


def test_factor_becomes_the_scale_where_ties_may_move() -> None:
    graph = lowered(12.7, low=-128)
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert counts(result) == {Q: 1}
    assert result.report.exactness == "lsb"
    for feeds in feeds_of(graph):
        before, after = (run(g, feeds)["y"].astype(int) for g in (graph, result.program.graph))
        assert np.abs(before - after).max() <= 1


@pytest.mark.parametrize(
    "changes",
    [{"low": -127.5}, {"low": -129}, {"high": 128}, {"to": DType.INT16}, {"to": DType.INT32}, {"low": 8, "high": 7}],
    ids=str,
)
def test_other_ranges_and_types_stay(changes: dict[str, Any]) -> None:
    assert Q not in counts(eqsat.optimize(lowered(**changes), verify=False, form="flat"))


def test_negative_factor_stays_a_factor() -> None:
    assert counts(optimized(lowered(-16.0, low=-128))) == {"Mul": 1, Q: 1}


def dequantized(scale: Any, zero: float | None = None, dtype: str = "int8", op: str = "Sub") -> Graph:
    b = GraphBuilder()
    x = b.op("Cast", b.input("q", dtype, (2, 3, 4)), to=1)
    if zero is not None:
        x = b.op(op, x, b.constant(np.float32(zero)))
    return b.finish({"y": b.op("Mul", x, b.constant(np.asarray(scale, np.float32)))})


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "scale", [0.3, [0.3], [[[0.3]]], [0.1, 0.2, 0.3, 0.4], np.array([0.1, 0.2, 0.3]).reshape(1, 3, 1)], ids=str
)
def test_cast_and_factor_is_dequantize(dtype: str, scale: Any) -> None:
    assert counts(optimized(dequantized(scale, dtype=dtype), tolerance=0.0)) == {DQ: 1}


@pytest.mark.parametrize(("zero", "op"), [(100, "Sub"), (-100, "Add")])
def test_zero_point_is_subtracted(zero: float, op: str) -> None:
    for scale in (0.3, [0.1, 0.2, 0.3, 0.4]):
        assert counts(optimized(dequantized(scale, zero, "uint8", op), numerics="exact", tolerance=0.0)) == {DQ: 1}


@pytest.mark.parametrize(
    "graph",
    [
        dequantized(np.arange(12).reshape(3, 4)),
        dequantized(np.full((1, 1, 1, 1), 0.3)),
        dequantized(0.3, dtype="int16"),
        dequantized(0.3, 300, "uint8"),
        dequantized(0.3, 0.5),
        dequantized(0.3, -1, "uint8"),
    ],
    ids=["several axes", "more axes", "int16", "zero point beyond", "half a zero point", "negative zero point"],
)
def test_other_products_stay(graph: Graph) -> None:
    assert DQ not in counts(optimized(graph))
