"""Products with an added constant: into the bias of the operator, and Gemm as a product plus a bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.linear.alignment import elements_along, finite_sum, floating, largest, limit, lined_up, not_all, spread
from eqsat.rules.terms import add, constant, matmul, mul
from eqsat.samples import Sampler, fixed
from eqsat.samples.linear import convolution, gemm, or_integers, overflowing_bias, shape_along

x, w, b, c = variables("x w b? c")

SOURCE = "associativity of the sum; definition of the operator's bias"


def _optional(array: np.ndarray | None) -> dict[str, Any]:
    return {} if array is None else {"b": fixed(array)}


def _conv_sample(d: Sampler, *, transposed: bool = False) -> dict[str, Any]:
    drawn = convolution(d, transposed=transposed, square=True)
    shift = d.floats(shape_along(d, drawn["result"], 1))
    found = {"x": drawn["x"], "w": drawn["w"], "c": fixed(shift), "conv": drawn["attributes"]} | _optional(drawn["b"])
    return or_integers(d, overflowing_bias(d, found))


def _transposed_conv_sample(d: Sampler) -> dict[str, Any]:
    return _conv_sample(d, transposed=True)


def _matmul_sample(d: Sampler) -> dict[str, Any]:
    m, k, n, batch = d.extents(4)
    x = d.floats(d.choose(((m, k), (m, k), (batch, m, k), (k,))))
    w = d.floats(d.choose(((k, n), (k, n), (k,))))
    c = d.floats(d.broadcast_with(np.matmul(x, w).shape))
    return or_integers(d, {"x": x, "w": d.either(w), "c": d.either(c)})


def _gemm_sample(d: Sampler) -> dict[str, Any]:
    drawn = gemm(d, factors=d.chance(0.3))
    found = {"x": drawn["x"], "w": d.either(drawn["w"]), "gemm": drawn["attributes"]} | _optional(drawn["b"])
    return or_integers(d, found)


def _factors_sample(d: Sampler) -> dict[str, Any]:
    drawn = gemm(d, factors=True)
    found = {"x": drawn["x"], "w": fixed(drawn["w"]), "gemm": drawn["attributes"]} | _optional(drawn["b"])
    return or_integers(d, found)


def _biased_gemm_sample(d: Sampler) -> dict[str, Any]:
    drawn = gemm(d, factors=d.chance(0.3))
    shift = d.floats(d.broadcast_with(drawn["result"]))
    found = {"x": drawn["x"], "w": drawn["w"], "c": fixed(shift), "gemm": drawn["attributes"]} | _optional(drawn["b"])
    return or_integers(d, overflowing_bias(d, found))


def _bias_with(m: Match, elements: int) -> Term:
    """The bias ``b`` (zero if absent) plus the constant ``c``, as a vector."""
    return spread(m.c, elements) if m.b is None else add(m.b, lined_up(m.c))


@rule(
    add(apply("Conv", x, w, b).named("conv"), c),
    where=[constant("b", "c"), floating("w", "b", "c"), finite_sum("c", "b"), not_all("c", 0)],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_conv_sample,
)
def add_constant_to_bias_of_conv(m: Match) -> Term:
    """``Conv(x, w, b) + c == Conv(x, w, b + c)`` for ``c`` along the output channels."""
    return Apply("Conv", (m.x, m.w, _channel_bias(m)), m.conv.attributes)


@rule(
    add(apply("ConvTranspose", x, w, b).named("conv"), c),
    where=[constant("b", "c"), floating("w", "b", "c"), finite_sum("c", "b"), not_all("c", 0)],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_transposed_conv_sample,
)
def add_constant_to_bias_of_transposed_conv(m: Match) -> Term:
    """``ConvTranspose(x, w, b) + c == ConvTranspose(x, w, b + c)`` for ``c`` along the output channels."""
    return Apply("ConvTranspose", (m.x, m.w, _channel_bias(m)), m.conv.attributes)


def _channel_bias(m: Match) -> Term:
    m.require(m.root.handle != m.conv.handle, "the sum is the value itself")
    elements_along(m.c, m.conv, 1)
    channels = m.conv.shape[1]
    m.require(isinstance(channels, int), "the number of output channels is unknown")
    return _bias_with(m, int(channels))


@rule(
    add(matmul(x, w).named("product"), c),
    where=[floating("x", "w", "c")],
    exactness=Exactness.ROUNDING,
    source="ONNX Gemm",
    sample=_matmul_sample,
)
def add_to_matmul_as_gemm(m: Match) -> Term:
    """``x @ w + c == Gemm(x, w, c)`` for matrices ``x`` and ``w`` and a ``c`` that does not enlarge the product."""
    m.require(m.x.rank == 2 and m.w.rank == 2, "an operand is no matrix")
    _require_broadcast(m, m.c, m.product)
    return apply("Gemm", m.x, m.w, m.c)


@rule(
    add(apply("Gemm", x, w, b).named("gemm"), c),
    where=[constant("b", "c"), floating("w", "b", "c"), finite_sum("c", "b"), not_all("c", 0)],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_biased_gemm_sample,
)
def add_constant_to_bias_of_gemm(m: Match) -> Term:
    """``Gemm(x, w, b) + c == Gemm(x, w, b + c)`` where ``beta`` is 1, for a ``c`` that does not enlarge the result."""
    m.require(m.root.handle != m.gemm.handle, "the sum is the value itself")
    m.require(m.b is None or m.gemm.attr("beta", 1.0) == 1.0, "beta is not 1")
    _require_broadcast(m, m.c, m.gemm)
    bias = m.c if m.b is None else add(m.b, m.c)
    return Apply("Gemm", (m.x, m.w, bias), m.gemm.attributes.updated(beta=None))


def _require_broadcast(m: Match, added: Ref, result: Ref) -> None:
    """``added`` has at most the axes of ``result``, each of extent 1 or the same extent."""
    m.require(added.rank <= result.rank, "the added value has more axes than the result")
    extents = zip(added.shape, result.shape[result.rank - added.rank :], strict=True)
    m.require(all(d in (1, e) for d, e in extents), "the added value may enlarge the result")


@rule(
    apply("Gemm", x, w, b).named("gemm"),
    exactness=Exactness.ROUNDING,
    source="ONNX Gemm",
    sample=_gemm_sample,
)
def gemm_as_matmul_and_add(m: Match) -> Term:
    """``Gemm(x, w, b) == x' @ w' + b`` with ``alpha`` and ``beta`` 1; ``'`` transposes as the attributes say."""
    m.require(m.gemm.attr("alpha", 1.0) == 1.0, "alpha is not 1")
    m.require(m.b is None or m.gemm.attr("beta", 1.0) == 1.0, "beta is not 1")
    left = apply("Transpose", m.x, perm=(1, 0)) if m.gemm.attr("transA", 0) else m.x
    right = apply("Transpose", m.w, perm=(1, 0)) if m.gemm.attr("transB", 0) else m.w
    product = matmul(left, right)
    return product if m.b is None else add(product, m.b)


@rule(
    apply("Gemm", x, w, b).named("gemm"),
    where=[constant("w", "b"), floating("w", "b")],
    exactness=Exactness.ROUNDING,
    source="ONNX Gemm",
    sample=_factors_sample,
)
def fold_factors_of_gemm(m: Match) -> Term:
    """``Gemm(x, w, b, alpha, beta) == Gemm(x, alpha * w, beta * b)`` for constant ``w`` and ``b``."""
    alpha, beta = float(m.gemm.attr("alpha", 1.0)), float(m.gemm.attr("beta", 1.0))
    m.require(alpha != 1.0 or (m.b is not None and beta != 1.0), "both factors are 1")
    weights = m.w if alpha == 1.0 else _scaled(m, m.w, alpha)
    bias = m.b if m.b is None or beta == 1.0 else _scaled(m, m.b, beta)
    args = (m.x, weights) if bias is None else (m.x, weights, bias)
    return Apply("Gemm", args, m.gemm.attributes.updated(alpha=None, beta=None))


def _scaled(m: Match, value: Ref, factor: float) -> Term:
    m.require(largest(value) * abs(factor) < limit(value), "the scaled constant may overflow")
    return mul(value, literal(factor, value.dtype))
