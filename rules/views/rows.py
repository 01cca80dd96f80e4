"""Operators on rows, applied to a matrix of rows: views that only stack rows move behind them, and meet others.

Of use where a view is a kernel of its own, and products of integers take matrices only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Term, apply, rule, variables
from eqsat.rules.quantised.pairs import like, per_tensor, unblocked
from eqsat.rules.terms import add, int64s, matmul
from eqsat.samples import Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "each row by itself"
x, y, q, w, s, z, s2, z2, g, b, shape, low, high = variables("x y q w s z? s2 z2? g b? shape low? high?")


def _unstacks(m: Match, value: Ref, result: Ref) -> None:
    """Raises `Unmet` unless ``result`` has the rows of the matrix ``value`` along several leading axes."""
    m.require(value.rank == 2 and result.rank > 2, "no matrix seen with more axes")
    rows, columns = value.static_shape
    m.require((rows, columns) == (math.prod(result.static_shape[:-1]), result.static_shape[-1]), "the rows change")


def _restored(term: Term, m: Match) -> Term:
    return apply("Reshape", term, int64s(m.root.static_shape))


def _drawn(d: Sampler, dtype: str = "float32") -> dict[str, Any]:
    first, second, columns = d.extents(3)
    rows = d.integers((first * second, columns), dtype) if dtype != "float32" else d.floats((first * second, columns))
    target = (first, second, columns) if d.chance(0.85) else (columns, first * second, 1)
    return {"q" if dtype != "float32" else "x": rows, "shape": fixed(target, "int64")}


def _bytes(d: Sampler) -> dict[str, Any]:
    found = _drawn(d, "uint8")
    last = (int(found["shape"].array[-1]),)
    scale = d.positive(d.choose(((), (1,), last)))
    return {**found, "s": fixed(scale), "z": fixed(d.integers(scale.shape, "uint8")), "dq": {"axis": -1}}


@rule(
    apply("DequantizeLinear", apply("Reshape", q, shape), s, z).named("dq"),
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_bytes,
    domain=DOMAIN,
)
def dequantize_rows(m: Match) -> Term:
    """``DQ(Reshape(q), s, z) == Reshape(DQ(q, s, z))`` for one scale, where the view splits the rows of a matrix up."""
    _unstacks(m, m.q, m.root)
    m.require(m.q.dtype is DType.UINT8, "not unsigned")
    m.require(per_tensor(m.s, m.z) and unblocked(m.dq.attributes), "several scales")
    return _restored(like(m.dq, "DequantizeLinear", m.q, m.s, m.z), m)


def _within(d: Sampler) -> dict[str, Any]:
    bounds = {"low": fixed(np.uint8(d.integer(1, 99))), "high": fixed(np.uint8(d.integer(120, 250)))}
    kept = d.choose((("low",), ("high",), ("low", "high")))
    return _drawn(d, "uint8") | {name: bounds[name] for name in kept}


@rule(
    apply("Clip", apply("Reshape", q, shape), low, high),
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_within,
    domain=DOMAIN,
)
def clip_rows(m: Match) -> Term:
    """``Clip(Reshape(q), low, high) == Reshape(Clip(q, low, high))``, where the view splits the rows of a matrix up."""
    _unstacks(m, m.q, m.root)
    m.require(m.q.dtype is DType.UINT8, "not unsigned")
    return _restored(apply("Clip", m.q, m.low, m.high), m)


def _sum(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    extents = tuple(int(n) for n in found["shape"].array)
    if d.chance(0.2):  # the sum enlarges the view
        found["shape"] = fixed((extents[0] * extents[1], 1, extents[2]), "int64")
        return {**found, "y": d.floats((extents[0] * extents[1], 3, extents[2]))}
    return {**found, "y": d.floats(extents) if d.chance() else fixed(d.floats(d.broadcast_of(extents)))}


@rule(
    add(apply("Reshape", x, shape), y),
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_sum,
    domain=DOMAIN,
)
def add_rows(m: Match) -> Term:
    """``Reshape(x) + y == Reshape(x + Reshape(y))``, where the view splits the rows of a matrix up."""
    _unstacks(m, m.x, m.root)
    m.require(m.x.dtype is DType.FLOAT and not m.x.is_constant, "no variable floats")
    if m.y.is_constant:
        m.require(math.prod(m.y.static_shape) in (1, m.y.static_shape[-1] if m.y.rank else 1), "varies over rows")
        return _restored(add(m.x, apply("Reshape", m.y, int64s((math.prod(m.y.static_shape),)))), m)
    m.require(m.y.static_shape == m.root.static_shape, "the summand broadcasts")
    return _restored(add(m.x, apply("Reshape", m.y, int64s(m.x.static_shape))), m)


def _normalised(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    last = int(found["shape"].array[-1])
    norm = {"axis": -1 if d.chance(0.8) else 1}
    vector = (last,) if norm["axis"] == -1 else tuple(int(n) for n in found["shape"].array[1:])
    return {**found, "g": fixed(d.floats(vector)), "b": fixed(d.floats(vector)), "norm": norm}


@rule(
    apply("LayerNormalization", apply("Reshape", x, shape), g, b).named("norm"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_normalised,
    domain=DOMAIN,
)
def normalise_rows(m: Match) -> Term:
    """``LayerNormalization(Reshape(x)) == Reshape(LayerNormalization(x))`` over the last axis, where the view splits the rows
    of a matrix up."""
    _unstacks(m, m.x, m.root)
    m.require(m.norm.attr("axis", -1) in (-1, m.root.rank - 1), "other axes than the last")
    m.require(m.g.rank == 1 and (m.b is None or m.b.rank == 1), "no vectors")
    args = (m.x, m.g) if m.b is None else (m.x, m.g, m.b)
    return _restored(Apply("LayerNormalization", args, m.norm.attributes.updated(axis=-1)), m)


def _product(d: Sampler) -> dict[str, Any]:
    first, second, inner, columns = d.extents(4)
    found: dict[str, Any] = {
        "q": d.integers((first * second, inner) if d.chance() else (first, second, inner, 1), "uint8")
    }
    found |= {"shape": fixed((first, second, inner), "int64"), "w": fixed(d.integers((inner, columns), "int8"))}
    scales = d.positive(() if d.chance(0.8) else (inner,)), d.positive(d.choose(((), (columns,))))
    for scale, suffix, dtype in zip(scales, ("", "2"), ("uint8", "int8"), strict=True):
        found |= {f"s{suffix}": fixed(scale), f"z{suffix}": fixed(d.integers(scale.shape, dtype, 0, 3))}
    return {**found, "dq": {"axis": -1}, "right": {"axis": 1}}


@rule(
    matmul(
        apply("DequantizeLinear", apply("Reshape", q, shape), s, z).named("dq"),
        apply("DequantizeLinear", w, s2, z2).named("right"),
    ),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_product,
    domain=DOMAIN,
)
def multiply_rows_of_bytes(m: Match) -> Term:
    """``DQ(Reshape(q)) @ DQ(w) == Reshape(DQ(Reshape(q, [rows, n])) @ DQ(w))`` for a matrix ``w`` and one scale of ``q``."""
    extents = m.root.static_shape
    m.require(
        len(extents) > 2 and m.w.rank == 2 and 0 not in extents, "no rows along several axes, or several matrices"
    )
    m.require(m.q.dtype is DType.UINT8 and m.w.is_constant, "not unsigned, or no weights")
    m.require(per_tensor(m.s, m.z) and unblocked(m.dq.attributes), "several scales on the left")
    inner = m.w.static_shape[0]
    rows = apply("Reshape", m.q, int64s((math.prod(extents[:-1]), inner)))
    left = like(m.dq, "DequantizeLinear", rows, m.s, m.z)
    return _restored(matmul(left, like(m.right, "DequantizeLinear", m.w, m.s2, m.z2)), m)
