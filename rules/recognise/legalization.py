"""Operators that a target has no kernel for, spelled out with those that every target has.

Each rule here runs only where the target's description lists its operator as unsupported: choosing kernels that exist is then
extraction like any other. The spellings are the stable ones: no exponential overflows, variances are means of squared distances.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.terms import add, div, int64s, mul, sub
from eqsat.samples import Sampler

ROUNDING = Exactness.ROUNDING
x, s, b = variables("x s b")
(c,) = variables("c?")


def _plain(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats(d.shape(), d.choose(("float32", "float32", "float64", "float16")), wild=d.chance(0.2))}


def _check(m: Match) -> None:
    """Half precision is left alone: kernels compute inside in float32, which the spelling would not."""
    m.require(m.x.dtype in (DType.FLOAT, DType.DOUBLE), "neither float32 nor float64")


def _number(m: Match, value: float) -> Term:
    return literal(value, m.x.dtype)


def _softmax(d: Sampler) -> dict[str, Any]:
    drawn = _plain(d)
    rank = drawn["x"].ndim
    return drawn | {"softmax": {"axis": d.integer(-rank, rank - 1)} if d.chance(0.8) else {}}


def _shifted(m: Match) -> tuple[Term, Term]:
    """``x`` less its maximum along the axis of the softmax, and that axis."""
    axes = int64s([m.softmax.attr("axis", -1)])
    return sub(m.x, apply("ReduceMax", m.x, axes, keepdims=1)), axes


@rule(
    apply("Softmax", x).named("softmax"),
    exactness=ROUNDING,
    source="ONNX Softmax",
    sample=_softmax,
    legalizes="Softmax",
)
def spell_out_softmax(m: Match) -> Term:
    """``Softmax(x) == Exp(x - ReduceMax(x)) / ReduceSum(Exp(x - ReduceMax(x)))``."""
    _check(m)
    shifted, axes = _shifted(m)
    powers = apply("Exp", shifted)
    return div(powers, apply("ReduceSum", powers, axes, keepdims=1))


@rule(
    apply("LogSoftmax", x).named("softmax"),
    exactness=ROUNDING,
    source="ONNX LogSoftmax",
    sample=_softmax,
    legalizes="LogSoftmax",
)
def spell_out_log_softmax(m: Match) -> Term:
    """``LogSoftmax(x) == y - Log(ReduceSum(Exp(y)))`` where ``y == x - ReduceMax(x)``."""
    _check(m)
    shifted, axes = _shifted(m)
    return sub(shifted, apply("Log", apply("ReduceSum", apply("Exp", shifted), axes, keepdims=1)))


def _rows(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(2, 4, ones=0.05), d.choose(("float32", "float32", "float64")))
    axis = d.integer(-2, -1)
    extents = x.shape[axis:]
    found = {"x": x, "s": d.floats(extents, str(x.dtype)), "norm": {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}}
    return found | ({"c": d.floats(extents, str(x.dtype))} if d.chance() else {})


def _divided(m: Match, value: Term, axes: Term) -> Term:
    """``value`` over the root of the mean of its squares along ``axes``."""
    squares = apply("ReduceMean", mul(value, value), axes, keepdims=1)
    return div(value, apply("Sqrt", add(squares, _number(m, m.norm.attr("epsilon", 1e-5)))))


def _normalised_axes(m: Match, scale: Ref) -> Term:
    axis, rank = m.norm.attr("axis", -1), m.x.rank
    m.require(scale.rank <= rank - axis % rank, "the scale enlarges the result")
    return int64s(range(axis % rank - rank, 0))


@rule(
    apply("RMSNormalization", x, s).named("norm"),
    exactness=ROUNDING,
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    sample=lambda d: {k: v for k, v in _rows(d).items() if k != "c"},
    legalizes="RMSNormalization",
)
def spell_out_rms_normalization(m: Match) -> Term:
    """``RMSNormalization(x, s) == x / Sqrt(ReduceMean(x * x) + eps) * s``."""
    _check(m)
    m.require(m.s.dtype is m.x.dtype, "scale of another type")
    return mul(_divided(m, m.x, _normalised_axes(m, m.s)), m.s)


@rule(
    apply("LayerNormalization", x, s, c).named("norm"),
    exactness=ROUNDING,
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
    sample=_rows,
    legalizes="LayerNormalization",
)
def spell_out_layer_normalization(m: Match) -> Term:
    """``LayerNormalization(x, s, c) == y / Sqrt(ReduceMean(y * y) + eps) * s + c`` where ``y == x - ReduceMean(x)``."""
    _check(m)
    m.require(m.s.dtype is m.x.dtype, "scale of another type")
    axes = _normalised_axes(m, m.s)
    scaled = mul(_divided(m, sub(m.x, apply("ReduceMean", m.x, axes, keepdims=1)), axes), m.s)
    return scaled if m.c is None else add(scaled, m.c)


def _images(d: Sampler) -> dict[str, Any]:
    n, *positions = d.extents(d.integer(2, 3))
    groups, each = d.choose(((2, 3), (3, 2), (1, 4)))
    channels = groups * each
    attributes = {"num_groups": groups, "epsilon": d.choose((1e-5, 0.5))}
    parts = {"s": d.floats((channels,)), "b": d.floats((channels,))}
    return {"x": d.floats((n, channels, *positions)), **parts, "norm": attributes}


@rule(
    apply("GroupNormalization", x, s, b).named("norm"),
    exactness=ROUNDING,
    source="ONNX GroupNormalization; Wu and He 2018",
    sample=_images,
    legalizes="GroupNormalization",
)
def spell_out_group_normalization(m: Match) -> Term:
    """``GroupNormalization(x, s, b) == InstanceNormalization(x in groups, 1, 0) * s + b``."""
    _check(m)
    groups, rank = m.norm.attr("num_groups"), m.x.rank
    ones, zeros = (literal(np.full(groups, v, m.x.dtype.numpy)) for v in (1, 0))
    grouped = apply("Reshape", m.x, int64s([0, groups, -1]))
    normal = apply("InstanceNormalization", grouped, ones, zeros, epsilon=m.norm.attr("epsilon", 1e-5))
    column = int64s([-1, *[1] * (rank - 2)])
    shape = int64s(m.x.static_shape) if m.x.type.is_static else apply("Shape", m.x)
    scaled = mul(apply("Reshape", normal, shape), apply("Reshape", m.s, column))
    return add(scaled, apply("Reshape", m.b, column))
