"""Views and transposes of the parts of a Split as those of the whole: one instead of one for each part.

Heads of queries, keys and values that one product computes are laid out at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply, product
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import (
    PROJECTION,
    Apply,
    GroupView,
    Match,
    Merge,
    Ref,
    Term,
    Unmet,
    apply,
    group_rule,
    rule,
    variables,
)
from eqsat.rules.quantised.pairs import like, per_tensor, unblocked
from eqsat.rules.terms import add, constant, int64s, permutation_of, transpose
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler, fixed

EXACT = Exactness.EXACT
SOURCE = "each element by itself"

Part = tuple[int, Ref]
Split = tuple[Ref, Ref, int, tuple[int, ...]]


def splits(view: GroupView) -> Iterator[tuple[Split, dict[int, Ref]]]:
    """Each Split of a static shape: itself, its input, axis, extents of the parts; and its parts by number."""
    for split, inputs in view.nodes("Split"):
        parts = {int(u.attr("index")): u for op, u, _ in view.users(split) if op == PROJECTION}
        value, sizes = (*inputs, None)[:2]
        try:
            if value is None or sizes is None or value.is_constant or not value.type.is_static or len(parts) < 2:
                continue
            if value.dtype is not DType.UINT8:
                continue  # signed bytes have an unsigned twin, and attention on floats needs no heads laid out
            axis = int(split.attr("axis", 0)) % value.rank
            yield (split, value, axis, tuple(int(n) for n in sizes.value)), parts
        except Unmet:
            continue


def again(value: Term, axis: int, sizes: tuple[int, ...]) -> Apply:
    """Another value, split."""
    return Apply("Split", (value, int64s(sizes)), _attributes(axis), "", len(sizes))


def _attributes(axis: int) -> Any:
    return apply("Split", int64s((0,)), axis=axis).attributes


def _heads(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, size, *heads = d.extents(4)
    axis = 1 if d.chance(0.9) else 0
    shape = (rows, size * sum(heads)) if axis else (size * sum(heads), rows)
    sizes = [n * size for n in heads]
    value = drawing.value(d.integers(shape, "uint8"))
    parts = drawing.op("Split", value, drawing.value(fixed(sizes, "int64")), outputs=2, axis=axis - 2)
    shapes = [[rows, n, size] if axis else [n, size, rows] for n in heads]
    if d.chance(0.1):
        shapes[1] = shapes[1][::-1]
    return drawing.finish(
        *(drawing.op("Reshape", p, drawing.value(fixed(s, "int64"))) for p, s in zip(parts, shapes, strict=True))
    )


@group_rule(exactness=EXACT, source=SOURCE, sample=_heads)
def view_heads_before_split(view: GroupView) -> Iterator[Merge]:
    """``Reshape(Split(x)[i], [..., n_i, h]) == Split(Reshape(x, [..., n, h]))[i]`` where all parts have the same ``h``."""
    for (_, value, axis, sizes), parts in splits(view):
        if axis != value.rank - 1 or len(parts) < len(sizes):
            continue
        found: dict[int, tuple[tuple[Dim, ...], Ref]] = {}
        lead = value.shape[:-1]
        for index, part in parts.items():
            for op, node, _ in view.users(part):
                if op == "Reshape" and node.type.rank is not None and node.rank > 2:
                    *rows, heads, size = node.shape
                    if product(rows) == product(lead) and size and sizes[index] == multiply(heads, size):
                        found.setdefault(index, ((*rows, size), node))
        kinds = {kind for kind, _ in found.values()}
        if len(found) < len(sizes) or len(kinds) != 1:
            continue
        *rows, size = next(iter(kinds))
        if not isinstance(size, int):
            continue
        counts = tuple(n // size for n in sizes)
        whole = viewed(value, value.shape, (*rows, sum(counts), size), value)
        made = again(whole, len(rows), counts)
        for index, (_, node) in found.items():
            yield node, made.output(index)


def _turned(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, size, *heads = d.extents(4)
    value = drawing.value(d.integers((rows, sum(heads), size), "uint8"))
    parts = drawing.op("Split", value, drawing.value(fixed(heads, "int64")), outputs=2, axis=1)
    perms = [d.permutation(3)] * 2
    if d.chance(0.4):
        perms[1] = d.permutation(3)
    return drawing.finish(*(drawing.op("Transpose", p, perm=perm) for p, perm in zip(parts, perms, strict=True)))


@group_rule(exactness=EXACT, source=SOURCE, sample=_turned)
def transpose_before_split(view: GroupView) -> Iterator[Merge]:
    """``Transpose(Split(x)[i], p) == Split(Transpose(x, p))[i]``; a part with another ``p`` is transposed once more."""
    for (_, value, axis, sizes), parts in splits(view):
        found: dict[int, tuple[tuple[int, ...], Ref]] = {}
        for index, part in parts.items():
            for op, node, _ in view.users(part):
                if op == "Transpose":
                    found.setdefault(index, (permutation_of(node), node))
        if len(found) < len(sizes):
            continue
        perm, count = Counter(p for p, _ in found.values()).most_common(1)[0]
        if count < 2:
            continue
        made = again(transpose(value, perm), perm.index(axis), sizes)
        for index, (own, node) in found.items():
            part = made.output(index)
            yield node, part if own == perm else transpose(part, tuple(perm.index(i) for i in own))


# --- past the sum with a bias on bytes ------------------------------------------------------------------------------------

q, c, s, z, s2, z2, shape, low, high = variables("q c s z? s2 z2? shape low? high?")
_biased = apply("QuantizeLinear", add(apply("DequantizeLinear", q, s, z).named("dq"), c), s2, z2).named("quantized")
_clipped = apply("Clip", _biased, low, high)


def _check(m: Match) -> None:
    """Raises `Unmet` unless unsigned bytes with one scale become others with one scale; signed ones have an unsigned twin."""
    m.require(m.q.dtype is DType.UINT8 and m.root.dtype is DType.UINT8, "no unsigned bytes")
    m.require(per_tensor(m.s, m.z) and per_tensor(m.s2, m.z2), "several scales")
    m.require(unblocked(m.dq.attributes, m.quantized.attributes), "blocks or another precision")


def _requantised(m: Match, value: Term, vector: Term) -> Term:
    dequantized = like(m.dq, "DequantizeLinear", value, m.s, m.z)
    return like(m.quantized, "QuantizeLinear", add(dequantized, vector), m.s2, m.z2)


def _bias_sample(d: Sampler, extents: tuple[int, ...], vector: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"q": d.integers(extents, "uint8"), "c": fixed(d.floats(vector))}
    for name in ("", "2"):
        found |= {f"s{name}": fixed(d.positive(d.choose(((), (1,))))), f"z{name}": fixed(d.integers((), "uint8"))}
        found[f"z{name}"] = fixed(found[f"z{name}"].array.reshape(found[f"s{name}"].array.shape))
    return found | {"dq": {}, "quantized": {}}


def _viewed(d: Sampler) -> dict[str, Any]:
    rows, heads, size = d.extents(3)
    vector = (heads * size,) if d.chance(0.8) else d.broadcast_of((rows, heads * size))
    target = d.choose(((rows, heads, size), (1, rows, heads, size), (rows, heads, size), (heads, rows, size)))
    return {**_bias_sample(d, (rows, heads * size), vector), "shape": fixed(target, "int64")}


def _viewed_biased(m: Match) -> Term:
    """``Q(DQ(Reshape(q)) + Reshape(c))``"""
    _check(m)
    old, new = m.q.static_shape, m.root.static_shape
    m.require(len(new) > 2 and math.prod(new) > 0, "no heads, or nothing")
    m.require(math.prod(new[-2:]) == old[-1], "the view does not split the last axis")
    m.require(m.c.static_shape == old[-1:], "no vector for the last axis")
    return _requantised(m, apply("Reshape", m.q, int64s(new)), apply("Reshape", m.c, int64s(new[-2:])))


@rule(
    apply("Reshape", _biased, shape),
    where=[constant("c")],
    exactness=EXACT,
    source=SOURCE,
    sample=_viewed,
)
def view_heads_before_bias(m: Match) -> Term:
    """``Reshape(Q(DQ(q) + c), [..., n, h]) == Q(DQ(Reshape(q)) + Reshape(c))`` where the view splits the last axis in two."""
    return _viewed_biased(m)


def _within(d: Sampler, found: dict[str, Any]) -> dict[str, Any]:
    """What is drawn for a pattern without a Clip, and bounds, of which one may be absent."""
    low, high = fixed(np.uint8(d.integer(0, 9))), fixed(np.uint8(d.integer(200, 255)))
    return found | d.choose(({"low": low}, {"high": high}, {"low": low, "high": high}))


@rule(
    apply("Reshape", _clipped, shape),
    where=[constant("c")],
    exactness=EXACT,
    source=SOURCE,
    sample=lambda d: _within(d, _viewed(d)),
)
def view_heads_before_clipped_bias(m: Match) -> Term:
    """``Reshape(Clip(Q(DQ(q) + c)), [..., n, h]) == Clip(Q(DQ(Reshape(q)) + Reshape(c)))``, as without the Clip."""
    return apply("Clip", _viewed_biased(m), m.low, m.high)


def _moved(d: Sampler) -> dict[str, Any]:
    extents = d.extents(3)
    vector = extents[1:] if d.chance(0.8) else d.broadcast_of(extents)
    return {**_bias_sample(d, extents, vector), "moved": {"perm": d.permutation(3)}}


def _moved_biased(m: Match) -> Term:
    """``Q(DQ(Transpose(q)) + Transpose(c))``"""
    _check(m)
    m.require(m.q.static_shape == m.root.static_shape or m.q.rank == m.root.rank, "the sum enlarges the bytes")
    m.require(m.c.rank >= 2 and m.c.rank <= m.q.rank, "a vector")
    perm = permutation_of(m.moved)
    filled = (1,) * (m.q.rank - m.c.rank) + m.c.static_shape
    axes = [p for p in perm if filled[p] != 1]
    vector: Term = apply("Reshape", m.c, int64s(tuple(filled[p] for p in perm)))
    if axes != sorted(axes):
        vector = transpose(apply("Reshape", m.c, int64s(filled)), perm)
    return _requantised(m, transpose(m.q, perm), vector)


@rule(
    apply("Transpose", _biased).named("moved"),
    where=[constant("c")],
    exactness=EXACT,
    source=SOURCE,
    sample=_moved,
)
def transpose_heads_before_bias(m: Match) -> Term:
    """``Transpose(Q(DQ(q) + c)) == Q(DQ(Transpose(q)) + Transpose(c))`` for ``c`` that varies over two axes or more."""
    return _moved_biased(m)


@rule(
    apply("Transpose", _clipped).named("moved"),
    where=[constant("c")],
    exactness=EXACT,
    source=SOURCE,
    sample=lambda d: _within(d, _moved(d)),
)
def transpose_heads_before_clipped_bias(m: Match) -> Term:
    """``Transpose(Clip(Q(DQ(q) + c))) == Clip(Q(DQ(Transpose(q)) + Transpose(c)))``, as without the Clip."""
    return apply("Clip", _moved_biased(m), m.low, m.high)
