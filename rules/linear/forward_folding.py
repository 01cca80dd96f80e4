"""A constant scale or shift before a linear operator moves into its weights and bias.

A scale must lie along the axis that is summed over. A shift passes a convolution only without padding: border pixels see
fewer shifted elements.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, Match, Ref, Term, apply, rule, variables
from eqsat.rules.linear.alignment import (
    along,
    elements_along,
    finite_product,
    floating,
    largest,
    limit,
    reshaped_term,
    spread,
)
from eqsat.rules.linear.scale_folding import scale_group_channels
from eqsat.rules.terms import add, condition, constant, div, int64s, matmul, mul
from eqsat.samples import Sampler, fixed
from eqsat.samples.linear import convolution, extremes, gemm, kept_shape_along, or_integers

x, w, b, s, c = variables("x w b? s c")

SCALE_SOURCE = "linearity of the operator; TVM ForwardFoldScaleAxis"


@condition("the folded value is another value")
def _another(m: Match) -> bool:
    return m.before.handle != m.x.handle


def _folds() -> list[Any]:
    return [constant("s", "w"), floating("x", "s", "w"), finite_product("s", "w"), _another]


def _optional(array: np.ndarray | None) -> dict[str, Any]:
    return {} if array is None else {"b": fixed(array)}


def _matmul_sample(d: Sampler) -> dict[str, Any]:
    m, k, n, batch = d.extents(4)
    x = d.floats(d.choose(((m, k), (batch, m, k), (k,))))
    w = d.floats(d.choose(((k, n), (k, n), (batch, k, n), (k,))))
    small, large, larger = extremes(d)
    scale = d.scale(kept_shape_along(d, x.shape, -1))
    return or_integers(d, {"x": x * small, "w": fixed(w * large), "s": fixed(scale * larger)})


def _shift_sample(d: Sampler) -> dict[str, Any]:
    found = _matmul_sample(d)
    x, w, shape = found["x"], found["w"].array, found["s"].array.shape
    if x.dtype.kind == "i":
        return {"x": x, "w": fixed(w), "c": fixed(d.integers(shape, "int32", -9, 9))}
    if d.chance(0.15):
        return _shift_that_overflows(d, x, w, shape, -2 if w.ndim > 1 else 0)
    large = np.float32(1e20 if abs(w).max() > 1e15 else 1)
    return {"x": x, "w": fixed(w), "c": fixed(d.floats(shape) * large)}


def _shift_that_overflows(
    d: Sampler, x: np.ndarray, w: np.ndarray, shape: tuple[int, ...], axes: int | tuple[int, ...]
) -> dict[str, Any]:
    """``c @ w`` just overflows, ``x @ w`` and ``(x + c) @ w`` do not. ``axes``: those of ``w`` that are summed over."""
    w = d.positive(w.shape) * np.float32(1e18)
    shift = np.float32(3.6e38 / w.sum(axes, dtype=np.float64).max())
    return {"x": np.full_like(x, -shift / 5), "w": fixed(w), "c": fixed(np.full(shape, shift))}


def _gemm_sample(d: Sampler) -> dict[str, Any]:
    drawn = gemm(d, factors=True)
    scale = d.scale(kept_shape_along(d, drawn["x"].shape, d.choose((0, 1))))
    small, large, larger = extremes(d)
    found = {"x": drawn["x"] * small, "w": fixed(drawn["w"] * large), "s": fixed(scale * larger)}
    return or_integers(d, found | {"gemm": drawn["attributes"]} | _optional(drawn["b"]))


def _conv_sample(d: Sampler, *, transposed: bool = False, scale: bool = True) -> dict[str, Any]:
    drawn = convolution(d, transposed=transposed)
    shape = kept_shape_along(d, drawn["x"].shape, 1)
    small, large, larger = extremes(d)
    factor = {"s": fixed(d.scale(shape) * larger)} if scale else {"c": fixed(d.floats(shape) * larger)}
    found = {"x": drawn["x"] * small, "w": fixed(drawn["w"] * large), "conv": drawn["attributes"]}
    return or_integers(d, found | factor | _optional(drawn["b"]))


def _transposed_conv_sample(d: Sampler) -> dict[str, Any]:
    return _conv_sample(d, transposed=True)


def _shifted_conv_sample(d: Sampler) -> dict[str, Any]:
    found = _conv_sample(d, scale=False)
    x, w = found["x"], found["w"].array
    if x.dtype.kind == "i" or d.chance(0.85):
        return found
    attributes = {k: v for k, v in found["conv"].items() if k != "pads"}
    large = _shift_that_overflows(d, x, w, found["c"].array.shape, tuple(range(1, w.ndim)))
    return found | large | {"conv": attributes}


def _rest(m: Match) -> tuple[Term, ...]:
    return () if m.b is None else (m.b,)


@rule(
    matmul(mul(x, s).named("before"), w),
    where=_folds(),
    exactness=Exactness.ROUNDING,
    source=SCALE_SOURCE,
    sample=_matmul_sample,
)
def fold_scale_into_following_matmul(m: Match) -> Term:
    """``(x * s) @ w == x @ (s' * w)`` for ``s`` along the last axis of ``x``; ``s'`` lies along the rows of ``w``."""
    m.require(m.w.rank >= 2, "the weights are a vector")
    n = elements_along(m.s, m.x, -1)
    return matmul(m.x, mul(m.w, along(m.s, n, 2, 0)))


@rule(
    apply("Gemm", mul(x, s).named("before"), w, b).named("gemm"),
    where=_folds(),
    exactness=Exactness.ROUNDING,
    source=SCALE_SOURCE,
    sample=_gemm_sample,
)
def fold_scale_into_following_gemm(m: Match) -> Term:
    """``Gemm(x * s, w, b) == Gemm(x, s' * w, b)`` for ``s`` along the axis of ``x`` that is summed over."""
    n = elements_along(m.s, m.x, 0 if m.gemm.attr("transA", 0) else 1)
    weights = mul(m.w, along(m.s, n, 2, 1 if m.gemm.attr("transB", 0) else 0))
    return Apply("Gemm", (m.x, weights, *_rest(m)), m.gemm.attributes)


@rule(
    apply("Conv", mul(x, s).named("before"), w, b).named("conv"),
    where=_folds(),
    exactness=Exactness.ROUNDING,
    source=SCALE_SOURCE,
    sample=_conv_sample,
)
def fold_scale_into_following_conv(m: Match) -> Term:
    """``Conv(x * s, w, b) == Conv(x, s' * w, b)`` for ``s`` along the channels; a border of zeros stays zero."""
    n = elements_along(m.s, m.x, 1)
    group = m.conv.attr("group", 1)
    weights = scale_group_channels(m.w, m.s, n, group)
    return Apply("Conv", (m.x, weights, *_rest(m)), m.conv.attributes)


def _scaled_and_shifted_conv_sample(d: Sampler) -> dict[str, Any]:
    found = _conv_sample(d)
    large = np.float32(1e20 if d.chance(0.1) else 1)
    dtype = found["x"].dtype
    shift = d.floats(kept_shape_along(d, found["x"].shape, 1)) * large
    return found | {"c": fixed(shift if dtype.kind == "f" else np.ones(shift.shape, dtype))}


@condition("s of one sign and c / s finite")
def _quotient_finite(m: Match) -> bool:
    low, high = m.s.interval
    return (low > 0 or high < 0) and largest(m.c) / min(abs(low), abs(high)) < limit(m.c)


@rule(
    apply("Conv", add(mul(x, s).named("before"), c), w, b).named("conv"),
    where=[*_folds(), constant("c"), _quotient_finite],
    exactness=Exactness.ROUNDING,
    source=SCALE_SOURCE,
    sample=_scaled_and_shifted_conv_sample,
)
def fold_scale_before_shift_into_following_conv(m: Match) -> Term:
    """``Conv(x * s + c, w, b) == Conv(x + c / s, s' * w, b)`` for ``s`` and ``c`` along the channels, under padding, too."""
    n = elements_along(m.s, m.x, 1)
    elements_along(m.c, m.x, 1)
    weights = scale_group_channels(m.w, m.s, n, m.conv.attr("group", 1))
    return Apply("Conv", (add(m.x, div(m.c, m.s)), weights, *_rest(m)), m.conv.attributes)


@rule(
    apply("ConvTranspose", mul(x, s).named("before"), w, b).named("conv"),
    where=_folds(),
    exactness=Exactness.ROUNDING,
    source=SCALE_SOURCE,
    sample=_transposed_conv_sample,
)
def fold_scale_into_following_transposed_conv(m: Match) -> Term:
    """``ConvTranspose(x * s, w, b) == ConvTranspose(x, s' * w, b)`` for ``s`` along the channels, axis 0 of ``w``."""
    n = elements_along(m.s, m.x, 1)
    weights = mul(m.w, along(m.s, n, m.w.rank, 0))
    return Apply("ConvTranspose", (m.x, weights, *_rest(m)), m.conv.attributes)


@condition("the sum of c * w finite")
def _shift_finite(m: Match) -> bool:
    """However many of the products are summed up; the bias, if there is one, included."""
    bound = largest(m.c) * largest(m.w) * math.prod(m.w.static_shape)
    bias = getattr(m, "b", None)
    return bound + (0.0 if bias is None else largest(bias)) < limit(m.w)


@rule(
    matmul(add(x, c).named("before"), w),
    where=[constant("c", "w"), floating("x", "c", "w"), _shift_finite, _another],
    exactness=Exactness.ROUNDING,
    source="distributivity",
    sample=_shift_sample,
)
def move_shift_behind_matmul(m: Match) -> Term:
    """``(x + c) @ w == x @ w + c @ w`` for ``c`` along the last axis of ``x``."""
    m.require(m.w.rank == 2 and m.x.rank >= 2, "an operand is a vector or the weights are a batch")
    elements_along(m.c, m.x, -1)
    inner = m.w.static_shape[0]
    m.require(m.x.shape[-1] == inner, "the inner extent is unknown")
    return add(matmul(m.x, m.w), matmul(spread(m.c, inner), m.w))


@condition("no padding")
def unpadded(m: Match) -> bool:
    auto_pad = m.conv.attr("auto_pad", "NOTSET")
    return auto_pad == "VALID" or (auto_pad == "NOTSET" and not any(m.conv.attr("pads", ())))


@rule(
    apply("Conv", add(x, c).named("before"), w, b).named("conv"),
    where=[
        constant("c", "w", "b"),
        floating("x", "c", "w"),
        _shift_finite,
        _another,
        unpadded,
    ],
    exactness=Exactness.ROUNDING,
    source="distributivity",
    sample=_shifted_conv_sample,
)
def fold_shift_into_following_conv(m: Match) -> Term:
    """``Conv(x + c, w, b) == Conv(x, w, b + sum(w * c))`` for ``c`` along the channels, without padding."""
    elements_along(m.c, m.x, 1)
    each, group = m.w.static_shape[1], m.conv.attr("group", 1)
    m.require(m.x.shape[1] == each * group, "the number of channels is unknown")
    total = _grouped_product(m.w, spread(m.c, group * each), group)
    return Apply("Conv", (m.x, m.w, total if m.b is None else add(m.b, total)), m.conv.attributes)


def _grouped_product(w: Ref, shift: Term, group: int) -> Term:
    """What a Conv by ``w`` makes of the constant ``shift``, one number for each input channel: ``[outputs]``."""
    outputs, each, *kernel = w.static_shape
    if group == 1:
        return matmul(apply("ReduceSum", w, int64s(range(2, w.rank)), keepdims=0), shift)
    weights = reshaped_term(w, (group, outputs // group, each, math.prod(kernel)))
    taps = apply("ReduceSum", weights, int64s([3]), keepdims=0)
    return reshaped_term(matmul(taps, reshaped_term(shift, (group, each, 1))), (outputs,))
