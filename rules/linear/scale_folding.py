"""A constant scale behind a linear operator moves into its weights.

The scale must lie along the axis of the output channels. Who else reads the unscaled value keeps it: the equation adds a
spelling and removes none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, Match, Term, apply, literal, present, rule, variables
from eqsat.rules.linear.alignment import along, elements_along, finite_product, floating, reshaped, reshaped_term
from eqsat.rules.terms import add, condition, constant, div, matmul, mul
from eqsat.samples import Sampler, fixed
from eqsat.samples.linear import convolution, extremes, gemm, or_integers, shape_along

x, w, b, c, s = variables("x w b? c s")

SOURCE = "linearity of the operator; TVM BackwardFoldScaleAxis"


@condition("the scaled value is another value")
def _another(m: Match) -> bool:
    return m.root.handle != m.linear.handle


def _folds(*names: str) -> list[Any]:
    """What every rule of this module asks of the scale ``s`` and the values ``names`` that absorb it."""
    return [constant("s", *names), floating("s", *names), finite_product("s", *names), _another]


def _filled(d: Sampler, drawn: dict[str, Any], scale: np.ndarray) -> dict[str, Any]:
    """Variables of a pattern from a drawn operator and a scale, some of them extreme, some scales neutral."""
    scale = np.ones_like(scale) if d.chance(0.05) else scale
    small, large, larger = extremes(d)
    found = {"x": drawn["x"] * small, "w": fixed(drawn["w"] * large), "s": fixed(scale * larger)}
    if drawn.get("b") is not None:
        found["b"] = fixed(drawn["b"] * small)
    return or_integers(d, found | {"linear": drawn.get("attributes", {})})


def _conv_sample(d: Sampler, *, transposed: bool = False) -> dict[str, Any]:
    drawn = convolution(d, transposed=transposed, square=True)
    scale = d.scale(shape_along(d, drawn["result"], 1))
    return _filled(d, drawn, scale)


def _transposed_conv_sample(d: Sampler) -> dict[str, Any]:
    return _conv_sample(d, transposed=True)


def _matmul_sample(d: Sampler) -> dict[str, Any]:
    m, k, n, batch = d.extents(4)
    x = d.floats(d.choose(((m, k), (batch, m, k), (k,))))
    w = d.floats(d.choose(((k, n), (k, n), (batch, k, n), (k,))))
    result = np.matmul(x, w).shape
    return _filled(d, {"x": x, "w": w}, d.scale(shape_along(d, result, -1) if result else ()))


def _biased_sample(d: Sampler) -> dict[str, Any]:
    m, k, n = d.extents(3)
    bias = d.floats(shape_along(d, (m, n), d.choose((0, 1))))
    scale = d.scale(shape_along(d, (m, n), 1))
    found = _filled(d, {"x": d.floats((m, k)), "w": d.floats((k, n))}, scale)
    integers = found["x"].dtype.kind == "i"
    return found | {"c": fixed(np.rint(bias).astype(np.int32) if integers else bias * found["x"].flat[0])}


def _gemm_sample(d: Sampler) -> dict[str, Any]:
    drawn = gemm(d, factors=True)
    scale = d.scale(shape_along(d, drawn["result"], 1))
    return _filled(d, drawn, scale)


def _quotient_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    return or_integers(d, {"x": d.floats(shape, wild=True), "s": fixed(d.scale(d.broadcast_with(shape)))})


def _bias(m: Match, scale: Term) -> Term | None:
    return None if m.b is None else mul(m.b, scale)


@rule(
    mul(apply("Conv", x, w, b).named("linear"), s),
    where=_folds("w", "b"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_conv_sample,
)
def fold_scale_into_conv(m: Match) -> Term:
    """``Conv(x, w, b) * s == Conv(x, w * s, b * s)`` for ``s`` along the output channels, axis 0 of ``w``."""
    n = elements_along(m.s, m.linear, 1)
    weights = mul(m.w, along(m.s, n, m.w.rank, 0))
    return Apply("Conv", present(m.x, weights, _bias(m, reshaped(m.s, (n,)))), m.linear.attributes)


@rule(
    mul(apply("ConvTranspose", x, w, b).named("linear"), s),
    where=_folds("w", "b"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_transposed_conv_sample,
)
def fold_scale_into_transposed_conv(m: Match) -> Term:
    """``ConvTranspose(x, w, b) * s == ConvTranspose(x, w * s, b * s)`` for ``s`` along the output channels.

    The weights are ``[inputs, outputs / groups, ...]``: with groups, axis 0 holds the group and the scale varies with it.
    """
    n = elements_along(m.s, m.linear, 1)
    weights = scale_group_channels(m.w, m.s, n, m.linear.attr("group", 1))
    return Apply("ConvTranspose", present(m.x, weights, _bias(m, reshaped(m.s, (n,)))), m.linear.attributes)


def scale_group_channels(weights: Any, scale: Any, elements: int, group: int) -> Term:
    """``weights`` ``[g*A, B, ...]`` times a scale of ``g*B`` elements (or one), whose axis 1 runs within each group."""
    shape = weights.static_shape
    if elements == 1 or group == 1:
        return mul(weights, along(scale, elements, len(shape), 1))
    grouped = reshaped(weights, (group, shape[0] // group, *shape[1:]))
    factor = reshaped(scale, (group, 1, shape[1], *(1,) * (len(shape) - 2)))
    return reshaped_term(mul(grouped, factor), shape)


@rule(
    mul(matmul(x, w).named("linear"), s),
    where=_folds("w"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_matmul_sample,
)
def fold_scale_into_matmul(m: Match) -> Term:
    """``(x @ w) * s == x @ (w * s)`` for ``s`` along the last axis."""
    m.require(m.w.rank >= 2, "the weights are a vector")
    n = elements_along(m.s, m.linear, -1)
    return matmul(m.x, mul(m.w, reshaped(m.s, (n,))))


@rule(
    mul(apply("Gemm", x, w, b).named("linear"), s),
    where=_folds("w", "b"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_gemm_sample,
)
def fold_scale_into_gemm(m: Match) -> Term:
    """``Gemm(x, w, b) * s == Gemm(x, w * s, b * s)`` for ``s`` along the columns, rows of ``w`` if it is transposed."""
    n = elements_along(m.s, m.linear, 1)
    axis = 0 if m.linear.attr("transB", 0) else 1
    weights = mul(m.w, along(m.s, n, 2, axis))
    return Apply("Gemm", present(m.x, weights, _bias(m, reshaped(m.s, (n,)))), m.linear.attributes)


@rule(
    mul(add(matmul(x, w).named("linear"), c), s),
    where=_folds("w", "c"),
    exactness=Exactness.ROUNDING,
    source="distributivity",
    sample=_biased_sample,
)
def fold_scale_into_biased_matmul(m: Match) -> Term:
    """``(x @ w + c) * s == x @ (w * s) + c * s`` for ``s`` along the last axis."""
    m.require(m.w.rank >= 2, "the weights are a vector")
    n = elements_along(m.s, m.linear, -1)
    scale = reshaped(m.s, (n,))
    return add(matmul(m.x, mul(m.w, scale)), mul(m.c, scale))


@rule(
    div(x, s),
    where=[constant("s"), floating("x", "s")],
    exactness=Exactness.ROUNDING,
    source="definition of the reciprocal",
    sample=_quotient_sample,
)
def divide_by_constant_as_multiplication(m: Match) -> Term:
    """``x / s == x * (1 / s)`` for a constant ``s`` whose reciprocals are normal numbers."""
    m.require(not m.x.is_constant, "the quotient is constant")
    low, high = m.s.interval
    smallest, biggest = sorted((abs(low), abs(high)))
    if low <= 0 <= high:
        smallest = float(np.abs(m.s.value.astype(np.float64)).min(initial=np.inf))
    m.require(smallest > 0, "the divisor may be zero")
    info = np.finfo(m.s.dtype.numpy)
    m.require(smallest > 1 / float(info.max), "a reciprocal overflows")
    m.require(biggest < 1 / float(info.smallest_normal), "a reciprocal is subnormal")
    return mul(m.x, div(literal(1, m.s.dtype), m.s))
