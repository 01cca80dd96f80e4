"""Normalisations that exporters spell out become one operator.

The two-pass form only: the variance as the mean of squared distances, or of squares where no mean is subtracted. A layer
normalisation is found as what it is, the RMS normalisation of the distances from the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Rule, Term, Unmet, apply, literal, rule, variables
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.terms import add, constant, div, every_element, int64s, mul, same_type, sub
from eqsat.samples import Sampler, fixed

ROUNDING = Exactness.ROUNDING
x, s, g, h, c, eps, e, y = variables("x s g h c eps e y")
(axes,) = variables("axes?")


def reduced_axes(node: Ref, axes: Ref | None, rank: int) -> tuple[int, ...]:
    """The axes that a reduction of a value of ``rank`` axes reduces, ascending. Raises `Unmet` unless it keeps them."""
    if not node.attr("keepdims", 1):
        raise Unmet("the reduced axes are dropped")
    given = [] if axes is None else [int(a) for a in axes.value.reshape(-1)]
    if not given:
        if node.attr("noop_with_empty_axes", 0):
            raise Unmet("nothing is reduced")
        return tuple(range(rank))
    return tuple(sorted({a % rank for a in given}))


def trailing_axis(m: Match) -> int:
    """The first axis, as a negative number, if the mean is taken over the last axes of ``x``."""
    rank = m.x.rank
    found = reduced_axes(m.mean, m.axes, rank)
    m.require(found and found == tuple(range(found[0], rank)), "the mean is not taken over the last axes")
    return found[0] - rank


def epsilon_of(m: Match) -> float:
    """The number ``eps``, which is not negative."""
    m.require(m.eps.value.size == 1, "epsilon is no number")
    epsilon = float(m.eps.value.reshape(()))
    m.require(0 <= epsilon < np.inf, "epsilon is negative or infinite")
    return epsilon


def normalised_extents(m: Match, value: Ref, axis: int) -> tuple[int, ...]:
    """Static extents of ``value`` from ``axis`` on."""
    found = value.shape[axis:]
    m.require(all(isinstance(d, int) for d in found), "a normalised extent is unknown")
    return found  # type: ignore[return-value]


def spread_over(m: Match, value: Ref, extents: Sequence[int]) -> Term:
    """A factor or summand of a normalised value in the shape of the normalised axes."""
    shape = list(value.static_shape)
    while shape and shape[0] == 1 and len(shape) > len(extents):
        shape.pop(0)
    m.require(len(shape) <= len(extents), "it varies over other axes than the normalised ones")
    shape = [1] * (len(extents) - len(shape)) + shape
    m.require(all(a in (1, b) for a, b in zip(shape, extents, strict=True)), "it would enlarge the result")
    found = reshaped(value, shape)
    if shape == list(extents):
        return found
    m.require(value.is_constant, "it varies over some of the normalised axes only")
    return apply("Expand", found, int64s(extents))


# --- samples -------------------------------------------------------------------------------------------------------------


def _axes(d: Sampler, rank: int) -> dict[str, Any]:
    """Axes to reduce, mostly the last ones, as a variable or absent."""
    first = d.integer(max(rank - 2, 0), rank - 1)
    found = list(range(first, rank)) if d.chance(0.85) else [d.integer(0, rank - 1)]
    if len(found) == rank and d.chance():
        return {}
    return {"axes": fixed([a - rank if d.chance() else a for a in found], "int64")}


def _number(d: Sampler, array: np.ndarray, options: Sequence[float]) -> Any:
    shape = (1,) * (array.ndim + 1) if d.chance(0.1) else d.choose(((), (1,), (1,) * array.ndim))
    return fixed(np.full(shape, d.choose(options), array.dtype))


def _spelled(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05), d.choose(("float32", "float32", "float32", "float16")))
    found = {"x": x, **_axes(d, x.ndim), "eps": _number(d, x, (1e-5, 1e-12, 0.5)), "e": _number(d, x, (0.5, -0.5, 1.5))}
    return found | ({"mean": {"keepdims": 1}} if d.chance() else {})


def _normalised(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(2, 4, ones=0.05))
    axis = d.integer(-2, -1)
    extents = x.shape[axis:]
    options = (extents, extents, extents[1:], (), (1, *extents), (1,) * len(extents), d.broadcast_with(x.shape))
    factor = d.floats(d.choose(options))
    scale = d.floats(extents) if d.chance(0.15) else np.ones(extents, np.float32)
    attributes = {"axis": axis if d.chance() else axis + x.ndim, "epsilon": d.choose((1e-5, 0.5))}
    both = d.either(factor)
    return {"x": x, "s": fixed(scale), "g": both, "c": both, "norm": attributes}


def _centred(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(2, 4, ones=0.05)) + np.float32(d.choose((0, 0, 3)))
    axis = d.integer(-2, -1)
    attributes = {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}
    chosen = range(axis, 0) if d.chance(0.8) else [d.integer(-x.ndim, -1)]
    found = {"x": x, "s": d.either(d.floats(x.shape[axis:])), "norm": attributes}
    return found | {"axes": fixed(list(chosen), "int64")}


# --- rules ---------------------------------------------------------------------------------------------------------------


@rule(
    div(x, apply("Sqrt", add(apply("ReduceMean", mul(x, x), axes).named("mean"), eps))),
    where=[constant("axes", "eps"), same_type("x")],
    exactness=ROUNDING,
    source="ONNX RMSNormalization; Zhang and Sennrich 2019",
    sample=_spelled,
)
def recognise_rms_normalization(m: Match) -> Term:
    """``x / Sqrt(ReduceMean(x * x, axes) + eps) == RMSNormalization(x, 1)`` over the last axes."""
    m.require(m.x.dtype is DType.FLOAT, "epsilon is kept in float32")
    epsilon, axis = epsilon_of(m), trailing_axis(m)
    ones = literal(np.ones(normalised_extents(m, m.x, axis), m.x.dtype.numpy))
    return apply("RMSNormalization", m.x, ones, axis=axis, epsilon=epsilon)


@rule(
    apply("Pow", add(apply("ReduceMean", mul(x, x), axes).named("mean"), eps).named("sum"), e),
    where=[constant("axes", "eps", "e")],
    exactness=ROUNDING,
    source="pow is within one unit in the last place; a mean of squares is not negative",
    sample=_spelled,
)
def take_root_of_mean_square(m: Match) -> Term:
    """``(ReduceMean(x * x) + eps) ^ e == Sqrt(ReduceMean(x * x) + eps)``, or its reciprocal, for ``e`` of 0.5 or -0.5."""
    m.require(m.x.dtype is DType.FLOAT, "no float32")
    m.require(m.root.type == m.sum.type, "the exponent enlarges the result")
    m.require(m.eps.interval[0] >= 0, "epsilon is negative")
    m.require(m.e.interval in ((0.5, 0.5), (-0.5, -0.5)), "another exponent")
    root = apply("Sqrt", m.sum)
    return root if m.e.interval[0] > 0 else apply("Reciprocal", root)


@rule(
    mul(apply("RMSNormalization", x, s).named("norm"), g),
    where=[constant("s"), every_element("s", 1), same_type("x")],
    exactness=ROUNDING,
    source="ONNX RMSNormalization",
    sample=_normalised,
)
def scale_rms_normalization(m: Match) -> Term:
    """``RMSNormalization(x, 1) * g == RMSNormalization(x, g)`` for ``g`` along the normalised axes."""
    m.require(m.root.handle != m.norm.handle, "the product is the value itself")
    axis = normalised_axis(m)
    scale = spread_over(m, m.g, normalised_extents(m, m.x, axis))
    return apply("RMSNormalization", m.x, scale, **dict(m.norm.attributes))


@rule(
    apply("RMSNormalization", sub(x, apply("ReduceMean", x, axes).named("mean")), s).named("norm"),
    where=[constant("axes")],
    exactness=ROUNDING,
    source="ONNX LayerNormalization; Ba, Kiros and Hinton 2016",
    sample=_centred,
)
def recognise_layer_normalization(m: Match) -> Term:
    """``RMSNormalization(x - ReduceMean(x, axes), s) == LayerNormalization(x, s)`` where both go over the same axes."""
    m.require(trailing_axis(m) == normalised_axis(m), "the mean is taken over other axes")
    return apply("LayerNormalization", m.x, m.s, **dict(m.norm.attributes))


@rule(
    add(apply("LayerNormalization", x, s).named("norm"), c),
    where=[same_type("x")],
    exactness=ROUNDING,
    source="ONNX LayerNormalization",
    sample=_normalised,
)
def shift_layer_normalization(m: Match) -> Term:
    """``LayerNormalization(x, s) + c == LayerNormalization(x, s, c)`` for ``c`` along the normalised axes."""
    m.require(m.root.handle != m.norm.handle, "the sum is the value itself")
    m.require(m.c.dtype is m.s.dtype, "scale and bias of different types")
    bias = spread_over(m, m.c, normalised_extents(m, m.x, normalised_axis(m)))
    return apply("LayerNormalization", m.x, m.s, bias, **dict(m.norm.attributes))


def normalised_axis(m: Match) -> int:
    """The first normalised axis as a negative number."""
    m.require(m.x.dtype is DType.FLOAT, "no float32")
    found: int = m.norm.attr("axis", -1)
    return found if found < 0 else found - m.x.rank


# --- spellings -----------------------------------------------------------------------------------------------------------


def _gained(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape())
    return {"x": x, "y": d.positive(d.broadcast_of(x.shape)), "g": d.either(d.floats(d.broadcast_with(x.shape)), 0.9)}


@rule(
    mul(x, mul(apply("Reciprocal", apply("Sqrt", y)), g)),
    where=[constant("g")],
    exactness=ROUNDING,
    source="associativity over the reals",
    sample=_gained,
)
def divide_before_gain(m: Match) -> Term:
    """``x * (Reciprocal(Sqrt(y)) * g) == (x / Sqrt(y)) * g``."""
    m.require(m.x.dtype is DType.FLOAT and not m.y.is_constant, "no float32, or a constant root")
    return mul(div(m.x, apply("Sqrt", m.y)), m.g)


@rule(
    div(mul(x, g), apply("Sqrt", y)),
    where=[constant("g")],
    exactness=ROUNDING,
    source="associativity over the reals",
    sample=_gained,
)
def divide_product_before_gain(m: Match) -> Term:
    """``(x * g) / Sqrt(y) == (x / Sqrt(y)) * g``."""
    m.require(m.x.dtype is DType.FLOAT and not m.y.is_constant, "no float32, or a constant root")
    return mul(div(m.x, apply("Sqrt", m.y)), m.g)


def _separate_gains(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05))
    gain = d.floats(x.shape[-1:])
    other = -gain if d.chance(0.8) else gain * np.float32(1.5)
    found = {"x": x, **_axes(d, x.ndim), "s": d.positive(d.broadcast_of(x.shape)), "g": fixed(gain), "h": fixed(other)}
    return found | {"c": d.either(d.floats(d.broadcast_of(x.shape)))}


@rule(
    add(mul(div(x, s), g), add(mul(div(apply("ReduceMean", x, axes).named("mean"), s), h), c)),
    where=[constant("axes", "g", "h")],
    exactness=ROUNDING,
    source="distributivity",
    sample=_separate_gains,
)
def subtract_mean_before_opposite_quotient(m: Match) -> Term:
    """``(x / s) * g + ((ReduceMean(x) / s) * -g + c) == ((x - ReduceMean(x)) / s) * g + c``."""
    m.require(m.x.dtype is DType.FLOAT, "no float32")
    m.require(np.array_equal(m.g.value, -m.h.value), "the second factor is not the first one negated")
    return add(mul(div(sub(m.x, m.mean), m.s), m.g), m.c)


def _kept_mean(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05))
    gain = d.positive(d.broadcast_with(x.shape))
    found = {"x": x, **_axes(d, x.ndim), "y": d.either(gain, 0.2), "c": d.either(d.floats(d.broadcast_of(x.shape)))}
    return found | {"s": d.positive(d.broadcast_of(x.shape)), "g": fixed(d.floats(x.shape[-1:]))}


def _define_mean(
    place: str, scaled: Callable[[Term], Apply], summed: Callable[[Apply, Apply], Apply], words: str
) -> Rule:
    """The mean subtracted where ``x`` and its mean were scaled each: ``scaled`` of both, put together by ``summed``."""

    def subtracted(m: Match) -> Term:
        m.require(m.x.dtype is DType.FLOAT, "no float32")
        centred = sub(m.x, m.mean)
        found = mul(centred, m.y) if hasattr(m, "y") else mul(div(centred, m.s), m.g)
        return add(found, m.c) if hasattr(m, "c") else found

    subtracted.__name__ = f"subtract_mean_{place}"
    subtracted.__doc__ = words
    mean = apply("ReduceMean", x, axes).named("mean")
    return rule(
        summed(scaled(x), scaled(mean)),
        where=[constant("axes")],
        exactness=ROUNDING,
        source="distributivity; Keras folds its normalisation so",
        sample=_kept_mean,
    )(subtracted)


for _name, _scaled, _words in (
    ("factor", lambda v: mul(v, y), "{0} * y"),
    ("quotient", lambda v: mul(div(v, s), g), "({0} / s) * g"),
):
    _x, _mean, _both = (_words.format(v) for v in ("x", "ReduceMean(x)", "(x - ReduceMean(x))"))
    _define_mean(f"before_{_name}", _scaled, sub, f"``{_x} - {_mean} == {_both}``.")
    for _place, _summed, _left in (
        ("with_shift", lambda p, q: add(p, sub(c, q)), f"{_x} + (c - {_mean})"),
        ("behind_shift", lambda p, q: sub(add(p, c), q), f"({_x} + c) - {_mean}"),
    ):
        _define_mean(f"before_{_name}_{_place}", _scaled, _summed, f"``{_left} == {_both} + c``.")
