"""Softmax and LogSoftmax that exporters spell out (E26): always the stable form, which takes the maximum out first."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Term, apply, rule, variables
from eqsat.rules.recognition_norms import reduced_axes
from eqsat.rules.sampling import Sampler, fixed
from eqsat.rules.terms import constant, div, sub

ROUNDING = Exactness.ROUNDING
x, axes, other = variables("x axes? other?")
shifted = sub(x, apply("ReduceMax", x, other).named("largest"))
KERNELS = frozenset((DType.FLOAT, DType.DOUBLE))


def _reduced(d: Sampler, rank: int) -> dict[str, Any]:
    chosen = d.integer(0, rank - 1) if d.chance() else rank - 1
    return {"axes": fixed([chosen - rank if d.chance() else chosen], "int64")}


def _spelled(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05)) * np.float32(d.choose((1, 1, 30)))
    chosen = [d.integer(0, x.ndim - 1) if d.chance() else -1]
    if d.chance(0.1):
        chosen = list(range(x.ndim))
    found = {"axes": fixed(chosen, "int64"), "other": fixed(chosen if d.chance(0.85) else [0], "int64")}
    kept = len(chosen) > 1 or chosen[0] not in (0, -x.ndim) or d.chance(0.7)
    return {"x": x, **found, "reduced": {"keepdims": int(kept)}}


def _shifted(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05)) * np.float32(d.choose((1, 1, 30)))
    found = _reduced(d, x.ndim)
    axis = int(found["axes"].array[0]) if d.chance(0.8) else d.integer(0, x.ndim - 1)
    return {"x": x, **found, "softmax": {"axis": axis}}


def _one_axis(m: Match, rank: int) -> int:
    """The one axis of the reduction, counted from the end."""
    found = reduced_axes(m.reduced, m.axes, rank)
    m.require(len(found) == 1, "several axes are reduced")
    return found[0] - rank


def _recognised(m: Match, op: str) -> Term:
    m.require(m.x.dtype in KERNELS, "no kernel for this element type")
    rank = m.x.rank
    axis = _one_axis(m, rank)
    m.require(reduced_axes(m.largest, m.other, rank) == (axis + rank,), "the maximum of another axis")
    return apply(op, m.x, axis=axis)


@rule(
    div(apply("Exp", shifted), apply("ReduceSum", apply("Exp", shifted), axes).named("reduced")),
    where=[constant("axes", "other")],
    exactness=ROUNDING,
    source="ONNX Softmax",
    family="E26",
    sample=_spelled,
)
def recognise_softmax(m: Match) -> Term:
    """``Exp(v) / ReduceSum(Exp(v), axis) == Softmax(x, axis)`` for ``v = x - ReduceMax(x, axis)``.

    Not for any ``v``: where the exponentials overflow, the operator would be right and the original is not.
    """
    return _recognised(m, "Softmax")


@rule(
    sub(shifted, apply("Log", apply("ReduceSum", apply("Exp", shifted), axes).named("reduced"))),
    where=[constant("axes", "other")],
    exactness=ROUNDING,
    source="ONNX LogSoftmax",
    family="E26",
    sample=_spelled,
)
def recognise_log_softmax(m: Match) -> Term:
    """``v - Log(ReduceSum(Exp(v), axis)) == LogSoftmax(x, axis)`` for ``v = x - ReduceMax(x, axis)``."""
    return _recognised(m, "LogSoftmax")


def _without_shift(m: Match) -> Term:
    rank = m.x.rank
    axis: int = m.softmax.attr("axis", -1)
    m.require(_one_axis(m, rank) == axis % rank - rank, "the maximum of another axis")
    return m.x


@rule(
    apply("Softmax", sub(x, apply("ReduceMax", x, axes).named("reduced"))).named("softmax"),
    where=[constant("axes")],
    exactness=ROUNDING,
    source="the operator takes the maximum out itself",
    family="E26",
    sample=_shifted,
)
def remove_shift_before_softmax(m: Match) -> Term:
    """``Softmax(x - ReduceMax(x, axis), axis) == Softmax(x, axis)``."""
    return Apply("Softmax", (_without_shift(m),), m.softmax.attributes)


@rule(
    apply("LogSoftmax", sub(x, apply("ReduceMax", x, axes).named("reduced"))).named("softmax"),
    where=[constant("axes")],
    exactness=ROUNDING,
    source="the operator takes the maximum out itself",
    family="E26",
    sample=_shifted,
)
def remove_shift_before_log_softmax(m: Match) -> Term:
    """``LogSoftmax(x - ReduceMax(x, axis), axis) == LogSoftmax(x, axis)``."""
    return Apply("LogSoftmax", (_without_shift(m),), m.softmax.attributes)
