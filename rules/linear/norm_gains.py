"""Constant gains and shifts of a normalisation: those behind it enter it, its own enter the products behind it.

A normalisation without gain costs as much as one with, so the second pays only where one value is normalised several times
by different gains: then the normalisation is the same for all, and the products behind it have one input. Elsewhere the rule
stays silent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, literal, rule, variables
from eqsat.rules.linear.alignment import (
    along,
    elements_along,
    finite_product,
    finite_sum,
    largest,
    limit,
    reshaped,
    spread,
)
from eqsat.rules.terms import add, constant, int64s, matmul, mul, same_type
from eqsat.samples import Drawing, Instance, Sampler, fixed

x, s, g, c = variables("x s g c")
(b,) = variables("b?")

NORMS = ("LayerNormalization", "RMSNormalization")


def normalised_axis(m: Match) -> int:
    """The first normalised axis as a negative number."""
    m.require(m.x.dtype is DType.FLOAT, "no float32")
    found: int = m.norm.attr("axis", -1)
    return found if found < 0 else found - m.x.rank


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


# --- gains and shifts behind a normalisation -----------------------------------------------------------------------------


def _gained(d: Sampler) -> dict[str, Any]:
    value = d.floats(d.shape(2, 4, ones=0.05))
    axis = d.integer(-2, -1)
    extents = value.shape[axis:]
    options = (extents, extents, extents[1:], (), (1, *extents), (1,) * len(extents))
    options += (d.broadcast_with(value.shape), (1,) * (value.ndim + 1))
    gain, scale = d.floats(d.choose(options)), d.floats(extents)
    if d.chance(0.15):  # of rows all alike nothing remains, whatever the constants
        value, gain, scale = np.full_like(value, 3), gain * np.float32(1e20), scale * np.float32(1e20)
    found = {"x": value, "norm": {"axis": axis, "epsilon": d.choose((1e-5, 0.5))}}
    found |= {"g": d.either(gain, 0.9), "s": d.either(scale, 0.9)}
    return found | ({"b": fixed(d.floats(extents))} if d.chance() else {})


def _gained_squares(d: Sampler) -> dict[str, Any]:
    """As for a layer normalisation, but rows of zeros are what nothing remains of."""
    found = _gained(d)
    flat = bool((found["x"] == 3).all())
    return {k: v for k, v in found.items() if k != "b"} | {"x": found["x"] * np.float32(not flat)}


def _shifted(d: Sampler) -> dict[str, Any]:
    found = _gained(d)
    extents = found["x"].shape[found["norm"]["axis"] :]
    shift = d.floats(extents)
    if d.chance(0.2):  # the two shifts overflow, what they are added to takes them back
        rows = np.broadcast_to(np.arange(extents[-1], dtype=np.float32) % 2, found["x"].shape)
        scale, shift = np.full(extents, -2e38, np.float32), np.full(extents, 2.5e38, np.float32)
        found |= {"x": rows * 8, "s": fixed(scale), "g": fixed(np.full((), 2.5e38, np.float32))}
    return found | {"c": d.either(shift, 0.9)}


@rule(
    mul(apply("LayerNormalization", x, s, b).named("norm"), g),
    where=[constant("g", "s", "b"), finite_product("g", "s", "b"), same_type("x")],
    exactness=Exactness.ROUNDING,
    source="ONNX LayerNormalization",
    sample=_gained,
)
def scale_layer_normalization(m: Match) -> Term:
    """``LayerNormalization(x, s, b) * g == LayerNormalization(x, s * g, b * g)`` for ``g`` along the normalised axes."""
    gain = _over_normalised_axes(m, m.g)
    rest = () if m.b is None else (mul(m.b, gain),)
    return apply("LayerNormalization", m.x, mul(m.s, gain), *rest, **dict(m.norm.attributes))


@rule(
    mul(apply("RMSNormalization", x, s).named("norm"), g),
    where=[constant("g", "s"), finite_product("g", "s"), same_type("x")],
    exactness=Exactness.ROUNDING,
    source="ONNX RMSNormalization",
    sample=_gained_squares,
)
def scale_scaled_rms_normalization(m: Match) -> Term:
    """``RMSNormalization(x, s) * g == RMSNormalization(x, s * g)`` for ``g`` along the normalised axes."""
    m.require(m.s.interval != (1, 1), "there is no gain yet: that is another rule's")
    scale = mul(m.s, _over_normalised_axes(m, m.g))
    return apply("RMSNormalization", m.x, scale, **dict(m.norm.attributes))


@rule(
    add(apply("LayerNormalization", x, s, c).named("norm"), g),
    where=[constant("g", "c"), finite_sum("g", "c"), same_type("x")],
    exactness=Exactness.ROUNDING,
    source="ONNX LayerNormalization",
    sample=_shifted,
)
def shift_shifted_layer_normalization(m: Match) -> Term:
    """``LayerNormalization(x, s, c) + g == LayerNormalization(x, s, c + g)`` for ``g`` along the normalised axes."""
    shift = add(m.c, _over_normalised_axes(m, m.g))
    return apply("LayerNormalization", m.x, m.s, shift, **dict(m.norm.attributes))


def _over_normalised_axes(m: Match, value: Ref) -> Term:
    m.require(m.root.handle != m.norm.handle, "the result is the value itself")
    m.require(value.dtype is m.s.dtype, "scale and constant of different types")
    return spread_over(m, value, normalised_extents(m, m.x, normalised_axis(m)))


# --- the gains of a normalisation in the products behind it --------------------------------------------------------------


class _Norm(NamedTuple):
    """A normalisation over the last axis: its operator and value, what is normalised, gain and shift."""

    op: str
    node: Ref
    x: Ref
    gain: Ref
    shift: Ref | None

    @property
    def is_plain(self) -> bool:
        return self.shift is None and self.gain.interval == (1, 1)


def _draw_norms(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, inner, batch = d.extents(3)
    value = drawing.value(d.floats(d.choose(((rows, inner), (batch, rows, inner)))))
    axis, epsilon, op = d.choose((-1, -1, -1, -2)), d.choose((1e-5, 0.5)), d.choose(NORMS)
    extents = (inner,) if axis == -1 else (rows, inner)
    outputs = []
    for _ in range(d.integer(2, 3)):
        large = np.float32(1e20 if d.chance(0.1) else 1)
        parts = [drawing.value(d.either(d.floats(extents) * large, 0.9))]
        own = op if d.chance(0.9) else d.choose(NORMS)
        if own == "LayerNormalization" and d.chance():
            parts.append(drawing.value(d.either(d.floats(extents) * large, 0.9)))
        own_epsilon = epsilon if d.chance(0.9) else 0.1
        norm = drawing.op(own, value, *parts, axis=axis, epsilon=own_epsilon)
        weights = d.floats(d.choose(((inner, d.integer(2, 4)), (inner, inner), (1, inner, 3), (inner,)))) * large
        product = drawing.op("MatMul", norm, drawing.value(d.either(weights, 0.9)))
        outputs.append(product)
    return drawing.finish(*outputs)


@group_rule(exactness=Exactness.ROUNDING, source="linearity of the matrix product", sample=_draw_norms)
def fold_gains_into_following_matmuls(view: GroupView) -> Iterator[Merge]:
    """``(norm(x, s1, b1) @ w1, norm(x, s2, b2) @ w2, ...) == (norm(x, 1) @ (s1' * w1) + b1 @ w1, ...)`` where ``x`` is
    normalised with more than one gain or shift; ``s1'`` lies along the rows of ``w1``, the axis that is summed over.
    """
    for norms in _norms_of_one_value(view):
        for norm in norms:
            for op, product, inputs in view.users(norm.node):
                left, w = (*inputs, None)[:2]
                if op != "MatMul" or norm.is_plain or left is None or left.handle != norm.node.handle or w is None:
                    continue
                try:
                    yield product, _with_gain_in_weights(norm, w)
                except Unmet:
                    continue


def _norms_of_one_value(view: GroupView) -> Iterator[list[_Norm]]:
    """Normalisations of one value over its last axis that differ in constant gains and shifts alone, two or more."""
    alike: dict[tuple[str, int, float], dict[int, _Norm]] = {}
    for op in NORMS:
        for node, inputs in view.nodes(op):
            value, gain, shift = (*inputs, None)[:3]
            if value is None or gain is None or not gain.is_constant or (shift is not None and not shift.is_constant):
                continue
            try:
                last = node.attr("axis", -1) in (-1, value.rank - 1) and node.attr("stash_type", 1) == 1
                if last and value.dtype is gain.dtype is DType.FLOAT and not node.is_constant:
                    found = alike.setdefault((op, value.handle, node.attr("epsilon", 1e-5)), {})
                    found.setdefault(node.handle, _Norm(op, node, value, gain, shift))
            except Unmet:
                continue
    yield from (list(norms.values()) for norms in alike.values() if len(norms) > 1)


def _with_gain_in_weights(norm: _Norm, w: Ref) -> Term:
    """The product of ``norm`` by ``w`` as one of the plain normalisation. Raises `Unmet` where a constant would overflow."""
    inner = w.static_shape[0]
    if w.rank != 2 or not w.is_constant or w.dtype is not DType.FLOAT or norm.x.shape[-1] != inner:
        raise Unmet("no constant matrix of floats")
    n = elements_along(norm.gain, norm.x, -1)
    if largest(norm.gain) * largest(w) >= limit(w):
        raise Unmet("gain times weights overflows")
    ones = literal(np.ones(inner, np.float32))
    plain = apply(norm.op, norm.x, ones, axis=-1, epsilon=norm.node.attr("epsilon", 1e-5))
    product = matmul(plain, mul(w, along(norm.gain, n, 2, 0)))
    if norm.shift is None:
        return product
    elements_along(norm.shift, norm.x, -1)
    if largest(norm.shift) * largest(w) * inner >= limit(w):
        raise Unmet("shift times weights overflows")
    return add(product, matmul(spread(norm.shift, inner), w))
