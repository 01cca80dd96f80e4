"""Rotary position embeddings: pairs of features turned by an angle, spelled out, as one operator.

``x * cos + turned(x) * sin``, where ``turned`` puts the negated second half of the features before the first half and the two
halves of ``cos`` and ``sin`` are the same; or neighbours are pairs, and turned, and each angle is there twice in a row. The
operator takes one half of each, for every batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.extents import multiply
from eqsat.ir.operator import traits_of
from eqsat.ir.schema_operator import attributes_of_schema
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, rule, variables
from eqsat.rules.attention.layout import SWAP, heads_and_sequence_swapped
from eqsat.rules.attention.rotary_reading import parts_by_class, turned_halves, turned_pairs, whole_features
from eqsat.rules.terms import int64s
from eqsat.rules.views.extents import listed, viewed
from eqsat.samples import Drawing, Instance, Sampler, fixed

_DEPTH = 6


def _draw(d: Sampler) -> Instance:
    """The embedding of queries, heads before or behind the sequence, now and then slightly wrong."""
    drawing = Drawing()
    batch, heads, length, half = d.extents(4, ones=0.1)
    behind = d.chance(0.3)
    lead = (batch, length, heads) if behind else (batch, heads, length)
    precision = d.choose(("float32", "float32", "float16"))
    x = drawing.value(d.floats((*lead, 2 * half), precision))
    many = d.choose((1, batch))
    angles = d.floats((many, length, 1, half) if behind else (many, 1, length, half), precision)
    if d.chance(0.25):
        return _draw_interleaved(d, drawing, x, angles)
    factors = [_factor(d, drawing, op, angles) for op in ("Cos", "Sin")]
    at = half if d.chance(0.9) else max(half - 1, 1)
    low = drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (0, at, 3)))
    high = drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (at, 2 * half, -1)))
    if d.chance(0.3):
        sizes = drawing.value(fixed([at, 2 * half - at], "int64"))
        low, high = drawing.builder.op("Split", x, sizes, outputs=2, axis=-1)
    parts = [drawing.op("Neg", high), low] if d.chance(0.9) else [high, drawing.op("Neg", low)]
    turned = drawing.op("Concat", *parts, axis=-1)
    y = drawing.op("Add", drawing.op("Mul", x, factors[0]), drawing.op("Mul", factors[1], turned))
    return drawing.finish(y)


def _draw_interleaved(d: Sampler, drawing: Drawing, x: str, angles: np.ndarray) -> Instance:
    of: Any = drawing.builder.type_of(x)
    shape = of.shape
    starts = (1, 0) if d.chance(0.9) else (0, 1)
    odd, even = (
        drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (n, shape[3], 3, 2))) for n in starts
    )
    axes = drawing.value(fixed([4], "int64"))
    parts = [drawing.op("Unsqueeze", y, axes) for y in (drawing.op("Neg", odd), even)]
    turned = drawing.op("Reshape", drawing.op("Concat", *parts, axis=-1), drawing.value(fixed(shape, "int64")))
    twice = np.repeat(angles, 2, axis=-1) if d.chance(0.9) else np.concatenate((angles, angles), axis=-1)
    cosine, sine = (drawing.value(fixed(f(twice))) for f in (np.cos, np.sin))
    return drawing.finish(drawing.op("Add", drawing.op("Mul", x, cosine), drawing.op("Mul", turned, sine)))


def _factor(d: Sampler, drawing: Drawing, op: Any, angles: np.ndarray) -> str:
    """Cosines or sines of the angles twice, known or computed; now and then of other angles in the second half."""
    other = angles if d.chance(0.9) else angles + angles.dtype.type(0.5)
    if d.chance():
        function = np.cos if op == "Cos" else np.sin
        return drawing.value(fixed(function(np.concatenate((angles, other), axis=-1))))
    first = drawing.value(angles)
    second = first if other is angles else drawing.value(other)
    return drawing.op(op, drawing.op("Concat", first, second, axis=-1))


@group_rule(
    exactness=Exactness.ROUNDING,
    source="ONNX RotaryEmbedding; Su et al., RoFormer, 2021",
    sample=_draw,
)
def recognise_rotary_embedding(view: GroupView) -> Iterator[Merge]:
    """``x * [c, c] + [-x2, x1] * [s, s] == RotaryEmbedding(x, c, s)`` for the halves ``x1`` and ``x2`` of ``x``."""
    reader = _Reader(view)
    for node, (a, b) in view.nodes("Add"):
        assert a is not None
        assert b is not None
        for plain, crossed in ((a, b), (b, a)):
            for x, interleaved, turned, sine in reader.turned_factors(crossed):
                cosine = reader.other_factor(plain, x)
                if cosine is None or node.type != x.type or turned.type != x.type:
                    continue
                try:
                    yield node, _embedding(reader, x, interleaved, cosine, sine)
                except Unmet:
                    continue


def _embedding(reader: _Reader, x: Ref, interleaved: bool, cosine: Ref, sine: Ref) -> Term:
    if x.rank != 4 or x.dtype not in (DType.FLOAT, DType.FLOAT16) or cosine.rank != 4 or sine.rank != 4:
        raise Unmet("no heads of float32 or float16")
    *lead, size = x.shape
    if not isinstance(size, int):
        raise Unmet("an unknown number of features")
    axes = {_sequence_axis(f, size) for f in (cosine, sine)} - {0}
    axis = 2 if not axes else axes.pop()
    if axes:
        raise Unmet("cosines and sines vary along different axes")
    caches = [_cache(reader.half(f, interleaved), f, (lead[0], lead[axis], size // 2)) for f in (cosine, sine)]
    how: dict[str, Any] = {"interleaved": 1} if interleaved else {}
    if axis == 2:
        return apply("RotaryEmbedding", x, *caches, **how)
    return _in_rows(x, *caches, **how)


def _in_rows(x: Ref, *caches: Term, **how: Any) -> Term:
    """The operator on (batch, sequence, heads, size), whose heads lie side by side in rows."""
    batch, length, heads, size = x.shape
    if not isinstance(heads, int):
        raise Unmet("an unknown number of heads")
    flat = (batch, length, multiply(heads, size))
    rows = apply("RotaryEmbedding", viewed(x, x.shape, flat, x), *caches, num_heads=heads, **how)
    return viewed(rows, flat, x.shape, x)


def _sequence_axis(factor: Ref, size: int) -> int:
    """The axis along which a factor varies: 1 or 2, or 0 if along neither."""
    _, first, second, last = factor.shape
    if last != size or (first != 1 and second != 1):
        raise Unmet("the factor is no row for each place of the sequence")
    return 2 if second != 1 else int(first != 1)


def _cache(half: Term, factor: Ref, shape: tuple[Dim, Dim, int]) -> Term:
    """One half of a factor (batch or 1, 1, sequence or 1, size), for every batch and place."""
    many, first, second, _ = factor.shape
    places = second if first == 1 else first
    if many not in (1, shape[0]) or places not in (1, shape[1]) or 1 not in (first, second):
        raise Unmet("the factor may vary otherwise than the heads do")
    term = viewed(half, (many, first, second, shape[2]), (many, places, shape[2]), factor)
    return term if (many, places) == shape[:2] else apply("Expand", term, listed(shape, factor))


def _draw_partial(d: Sampler) -> Instance:
    drawing = Drawing()
    batch, heads, length, half = d.extents(4, ones=0.1)
    size = 2 * half + d.integer(1, 3)
    x = drawing.value(d.floats((batch, heads, length, size)))
    at = 2 * half if d.chance(0.9) else 2 * half + 1
    sizes = drawing.value(fixed([2 * half, size - 2 * half], "int64"))
    turned, rest = drawing.builder.op("Split", x, sizes, outputs=2, axis=3)
    if at != 2 * half:
        rest = drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (at, size, 3)))
    caches = [drawing.value(d.floats((batch, length, half))) for _ in range(2)]
    attributes: dict[str, Any] = {"interleaved": 1} if d.chance(0.2) else {}
    turned = drawing.op("RotaryEmbedding", turned, *caches, **attributes)
    return drawing.finish(drawing.op("Concat", *((turned, rest) if d.chance(0.9) else (rest, turned)), axis=-1))


@group_rule(
    exactness=Exactness.ROUNDING,
    source="ONNX RotaryEmbedding: rotary_embedding_dim",
    sample=_draw_partial,
)
def embed_part_of_the_features(view: GroupView) -> Iterator[Merge]:
    """``Concat(RotaryEmbedding(x[:r], c, s), x[r:]) == RotaryEmbedding(x, c, s, rotary_embedding_dim=r)`` along the features."""
    parts = parts_by_class(view)
    embedded: dict[int, list[tuple[Ref, tuple[Ref | None, ...]]]] = {}
    for node, inputs in view.nodes("RotaryEmbedding"):
        embedded.setdefault(node.handle, []).append((node, inputs))
    for node, inputs in view.nodes("Concat"):
        first, rest = inputs if len(inputs) == 2 else (None, None)
        if first is None or rest is None:
            continue
        for made, (x, *caches) in embedded.get(first.handle, ()):
            plain = not any(made.attr(name, 0) for name in ("num_heads", "rotary_embedding_dim"))
            if x is None or not plain or x.rank != 4 or node.attr("axis") not in (-1, 3):
                continue
            for whole, at in whole_features(parts.get(x.handle, ()), parts.get(rest.handle, ())):
                attributes: Any = dict(made.attributes.updated(rotary_embedding_dim=at))
                yield node, apply("RotaryEmbedding", whole, *caches, **attributes)


x, c, s = variables("x c s")


def _draw_transposed(d: Sampler) -> dict[str, Any]:
    batch, heads, length, half = d.extents(4, ones=0.1)
    perm = SWAP if d.chance(0.8) else (0, 1, 2, 3)
    shape = (batch, heads, length, 2 * half)
    found: dict[str, Any] = {"x": d.floats(tuple(shape[i] for i in perm)), "t": {"perm": perm}}
    found |= {name: d.floats((batch, length, half)) for name in "cs"}
    return {**found, "r": {"interleaved": 1} if d.chance(0.3) else {}}


@rule(
    apply("RotaryEmbedding", apply("Transpose", x).named("t"), c, s).named("r"),
    where=[heads_and_sequence_swapped],
    exactness=Exactness.ROUNDING,
    source="ONNX RotaryEmbedding: inputs of three axes",
    sample=_draw_transposed,
)
def embed_in_rows(m: Match) -> Term:
    """``RotaryEmbedding(Transpose(x, (0, 2, 1, 3)), c, s) == Transpose(RotaryEmbedding(x', c, s), (0, 2, 1, 3))`` with the heads
    of ``x'`` side by side in rows."""
    how: Any = {name: value for name, value in m.r.attributes.items() if name != "num_heads"}
    return apply("Transpose", _in_rows(m.x, m.c, m.s, **how), perm=SWAP)


class _Reader:
    """Halves of values, values turned by a quarter, and products with these."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        self._gathered: dict[int, list[tuple[Ref, Ref]]] = {}
        for node, (data, indices) in view.nodes("Gather"):
            if data is not None and indices is not None and node.attr("axis", 0) == 0:
                self._gathered.setdefault(node.handle, []).append((data, indices))
        self._turned: dict[int, list[tuple[Ref, bool]]] = {}
        for turned, x, interleaved in (*turned_halves(view), *turned_pairs(view)):
            self._turned.setdefault(turned.handle, []).append((x, interleaved))
        self._products: dict[int, list[tuple[Ref, Ref]]] = {}
        for node, (a, b) in view.nodes("Mul"):
            if a is not None and b is not None:
                self._products.setdefault(node.handle, []).extend(((a, b), (b, a)))

    def turned_factors(self, value: Ref) -> Iterator[tuple[Ref, bool, Ref, Ref]]:
        """Every ``x``, whether its pairs are neighbours, ``turned(x)`` and factor of which ``value`` is the product."""
        for turned, factor in self._products.get(value.handle, ()):
            for x, interleaved in self._turned.get(turned.handle, ()):
                yield x, interleaved, turned, factor

    def other_factor(self, value: Ref, x: Ref) -> Ref | None:
        """What ``value`` is ``x`` times."""
        return next((b for a, b in self._products.get(value.handle, ()) if a.handle == x.handle), None)

    def half(self, value: Ref, interleaved: bool, depth: int = _DEPTH) -> Term:
        """One half of a value along its last axis: the first one, or every other element.

        Raises `Unmet` unless the other half is known to be the same.
        """
        shape = value.shape
        if not isinstance(shape[-1], int) or shape[-1] % 2:
            raise Unmet("an odd number of features, or an unknown one")
        size = shape[-1] // 2
        try:
            elements = value.elements
        except Unmet:
            elements = None
        if elements is not None:
            step, end = (2, 2 * size) if interleaved else (1, size)
            if not np.array_equal(
                elements[..., :end:step], elements[..., 1::2] if interleaved else elements[..., size:]
            ):
                raise Unmet("the halves differ")
            return apply("Slice", value, *(int64s([n]) for n in (0, end, len(shape) - 1, step)))
        for data, indices in self._gathered.get(value.handle, ()) if depth else ():
            if data.rank > 1:
                return apply("Gather", self.half(data, interleaved, depth - 1), indices, axis=0)
        for op, inputs in self._view.spellings(value) if depth else ():
            x = inputs[0] if inputs else None
            if x is None:
                continue
            if op == "Concat" and len(inputs) == 2 and inputs[1] is not None and inputs[1].handle == x.handle:
                if x.shape == (*shape[:-1], size) and not interleaved:
                    return x
                continue
            computes = _is_function(op, len(inputs))
            views = op in ("Reshape", "Unsqueeze") and x.shape[-1:] == shape[-1:]
            if not (computes or views or op == "Cast"):
                continue
            try:
                inner = self.half(x, interleaved, depth - 1)
            except Unmet:
                continue
            if views:
                return viewed(inner, (*x.shape[:-1], size), (*shape[:-1], size), x)
            return apply(op, inner) if computes else apply(op, inner, to=int(value.dtype))
        raise Unmet("the halves of a factor may differ")


def _is_function(op: str, inputs: int) -> bool:
    """Whether an operator computes each element from that of its one input, and has no attributes."""
    return inputs == 1 and (op == "Identity" or (traits_of(op).operands == 1 and attributes_of_schema(op) == {}))
