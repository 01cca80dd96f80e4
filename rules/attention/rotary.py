"""Rotary position embeddings: pairs of features turned by an angle, spelled out, as one operator.

``x * cos + turned(x) * sin``, where ``turned`` puts the negated second half of the features before the first half and the two
halves of ``cos`` and ``sin`` are the same; or neighbours are pairs, and turned, and each angle is there twice in a row. The
operator takes one half of each, for every batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from eqsat.conditions import kernels, single_or_half
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import HALVES, Shape
from eqsat.rewrite import GroupView, Match, Ref, Term, apply
from eqsat.rules.attention.layout import heads_apart, side_by_side
from eqsat.rules.attention.rotary_reading import Halves, turned_values
from eqsat.rules.terms import by_class, complete_nodes
from eqsat.rules.views.extents import repeated, viewed
from eqsat.samples import Drawing, Instance, Sampler, fixed

equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="ONNX RotaryEmbedding; Su et al., RoFormer, 2021",
    functions=named(heads_apart, side_by_side),
)


def _extents(d: Sampler) -> tuple[tuple[int, ...], int, list[tuple[int, ...]]]:
    """Leading extents of what is embedded, pairs of features, and the extents of cosines and sines, not all along one axis."""
    batch, heads, length, half = d.extents(4, ones=0.1)
    behind = d.chance(0.3)
    lead = (batch, length, heads) if behind else (batch, heads, length)
    many = d.choose((1, batch))
    usual, other = ((many, lead[1], 1, half), (many, 1, lead[2], half))[:: 1 if behind else -1]
    shapes = d.choose((*[(usual, usual)] * 8, (usual, usual[1:]), (usual, other), (usual, other)))
    if d.chance(0.1):
        return lead[1:], half, [s[-3:] for s in shapes]
    return (lead if d.chance(0.85) else (1, *lead[1:])), half, list(shapes)


def _draw(d: Sampler) -> Instance:
    """The embedding of queries, heads before or behind the sequence, now and then slightly wrong."""
    drawing, (lead, half, shapes) = Drawing(), _extents(d)
    unknown = {d.choose(lead[-2:])} if d.chance(0.5) else set[int]()
    precision = d.choose(("float32", "float32", "float16", "bfloat16"))
    widened = precision in ("float16", "bfloat16") and d.chance(0.4)  # turned in half precision, multiplied in float32
    array = d.floats((*lead, 2 * half), precision)
    if d.chance(0.25) and not widened:
        return _draw_interleaved(d, drawing, drawing.value(array), [d.floats(s, precision) for s in shapes])
    x = drawing.value(array, unknown)
    wide = "float32" if widened else precision
    factors = [_factor(d, drawing, op, d.floats(s, wide)) for op, s in zip(("Cos", "Sin"), shapes, strict=True)]
    at = half if d.chance(0.9) else max(half - 1, 1)
    low = drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (0, at, -1)))
    high = drawing.op("Slice", x, *(drawing.value(fixed([i], "int64")) for i in (at, 2 * half, -1)))
    if d.chance(0.3):
        sizes = drawing.value(fixed([at, 2 * half - at], "int64"))
        low, high = drawing.builder.op("Split", x, sizes, outputs=2, axis=-1)
    parts = [drawing.op("Neg", high), low] if d.chance(0.8) else [high, drawing.op("Neg", low)]
    turned = drawing.op("Concat", *parts, axis=-1)
    if widened:
        x, turned = drawing.op("Cast", x, to=1), drawing.op("Cast", turned, to=1)
    y = drawing.op(_sum(d), drawing.op("Mul", x, factors[0]), drawing.op("Mul", factors[1], turned))
    return drawing.finish(y)


def _draw_interleaved(d: Sampler, drawing: Drawing, x: str, angles: Sequence[np.ndarray]) -> Instance:
    of: Any = drawing.builder.type_of(x)
    shape = of.shape
    starts = (1, 0) if d.chance(0.9) else (0, 1)
    apart = d.choose(("", "", "Gather", "Slice", "Split"))
    axes = drawing.value(fixed([-1], "int64"))
    odd, even = _others(drawing, x, shape, starts, apart)
    pair = (drawing.op("Neg", odd), even) if d.chance(0.8) else (odd, drawing.op("Neg", even))
    parts = [y if apart in ("Slice", "Split") else drawing.op("Unsqueeze", y, axes) for y in pair]
    turned = drawing.op("Reshape", drawing.op("Concat", *parts, axis=-1), drawing.value(fixed(shape, "int64")))
    cosine, sine = (_each_twice(d, drawing, a) for a in angles)
    return drawing.finish(drawing.op(_sum(d), drawing.op("Mul", x, cosine), drawing.op("Mul", turned, sine)))


def _others(drawing: Drawing, x: str, shape: Shape, starts: Sequence[int], apart: str) -> Sequence[str]:
    """Every other feature, or the first and the second of each pair with an operator that takes the pairs apart."""
    if not apart:
        bounds = ([drawing.value(fixed([i], "int64")) for i in (n, shape[-1], -1, 2)] for n in starts)
        return [drawing.op("Slice", x, *b) for b in bounds]
    pairs = drawing.op("Reshape", x, drawing.value(fixed([*shape[:-1], int(shape[-1]) // 2, 2], "int64")))
    if apart == "Split":
        parts = drawing.builder.op("Split", pairs, drawing.value(fixed([1, 1], "int64")), outputs=2, axis=-1)
        return [parts[n] for n in starts]
    if apart == "Gather":
        return [drawing.op("Gather", pairs, drawing.value(fixed(n, "int64")), axis=-1) for n in starts]
    return [drawing.op("Slice", pairs, *(drawing.value(fixed([i], "int64")) for i in (n, n + 1, -1))) for n in starts]


def _sum(d: Sampler) -> str:
    return "Add" if d.chance(0.85) else "Sub"


def _each_twice(d: Sampler, drawing: Drawing, angles: np.ndarray) -> str:
    """Each number twice in a row, known or computed; now and then all of them, and then all again."""
    if angles.shape[-1] > 1 and d.chance(0.2):  # angles of several axes of an image, side by side
        return drawing.op("Concat", *(_each_twice(d, drawing, a) for a in np.split(angles, (1,), axis=-1)), axis=-1)
    whole = drawing.value(fixed([*angles.shape[:-1], 2 * angles.shape[-1]], "int64"))
    behind = d.chance(0.9)
    axis = -1 if behind else -2
    if d.chance():
        return drawing.value(fixed(np.repeat(angles, 2, axis=-1) if behind else np.concatenate((angles, angles), -1)))
    alone = drawing.op("Unsqueeze", drawing.value(angles), drawing.value(fixed([axis], "int64")))
    if d.chance():
        return drawing.op("Reshape", drawing.op("Concat", alone, alone, axis=axis), whole)
    pairs = (*angles.shape, 2) if behind else (*angles.shape[:-1], 2, angles.shape[-1])
    return drawing.op("Reshape", drawing.op("Expand", alone, drawing.value(fixed(pairs, "int64"))), whole)


def _factor(d: Sampler, drawing: Drawing, op: Any, angles: np.ndarray) -> str:
    """Cosines or sines of the angles twice, known or computed; now and then of other angles in the second half."""
    other = angles if d.chance(0.8) else angles + angles.dtype.type(0.5)
    if angles.shape[-2] > 1 and d.chance(0.2):  # of the places of two sequences, one behind the other
        return drawing.op("Concat", *(_factor(d, drawing, op, a) for a in np.split(angles, (1,), axis=-2)), axis=-2)
    if d.chance():
        function = np.cos if op == "Cos" else np.sin
        return drawing.value(fixed(function(np.concatenate((angles, other), axis=-1))))
    first = drawing.value(angles)
    second = first if other is angles else drawing.value(other)
    found = drawing.op(op, drawing.op("Concat", first, second, axis=-1))
    if d.chance(0.8):
        return found
    number = drawing.value(fixed(d.choose((np.full((), 1.25), np.full((1, 1), 1.25))).astype(angles.dtype)))
    return drawing.op("Mul", *((found, number) if d.chance() else (number, found)))


def _sums_with_turned(view: GroupView) -> Iterator[Match]:
    """``x * c + turned(x) * s``, and ``x * c - turned(x) * s``, which turns backwards."""
    turned = by_class((t, (x, pairs, backwards)) for t, x, pairs, backwards in turned_values(view))
    products = by_class((node, p) for node, (a, b) in complete_nodes(view, "Mul") for p in ((a, b), (b, a)))
    halves = Halves(view)
    sums = [(node, *pair, False) for node, (a, b) in complete_nodes(view, "Add") for pair in ((a, b), (b, a))]
    sums += [(node, *pair, True) for node, pair in complete_nodes(view, "Sub")]
    for node, plain, crossed, subtracted in sums:
        scaled = ((other, s) for other, s in products.get(crossed.handle, ()))
        for (x, neighbours, backwards), s in ((found, s) for t, s in scaled for found in turned.get(t.handle, ())):
            c = next((f for y, f in products.get(plain.handle, ()) if y.handle == x.handle), None)
            if c is not None:
                found = {"x": x, "c": c, "s": s, "neighbours": neighbours, "halves": halves}
                yield Match({**found, "backwards": backwards != subtracted}, node)


def _full(factor: Ref) -> Shape:
    return (1,) * (4 - factor.rank) + factor.shape


def sequence_axes(*factors: Ref) -> set[int]:
    """The axes, of the two in the middle, along which factors vary."""
    return {axis for f in factors for axis in (1, 2) if _full(f)[axis] != 1}


def embedded(x: Term, like: Ref, factors: tuple[Ref, Ref], halves: Sequence[Term], **how: Any) -> Term:
    """``x``, which has the type of ``like``, embedded by one half of each factor, for every batch and place."""
    axis, size = max(sequence_axes(*factors), default=2), int(like.shape[3]) // 2
    tables: list[Term] = []
    for factor, half in zip(factors, halves, strict=True):
        full = _full(factor)
        places = (full[0], full[axis], size)
        table = viewed(half, (*factor.shape[:-1], size), places, factor)
        tables.append(repeated(table, places, (like.shape[0], like.shape[axis], size), factor))
    if axis == 2:
        return apply("RotaryEmbedding", x, *tables, **how)
    rows = apply("RotaryEmbedding", side_by_side(x, like), *tables, num_heads=int(like.shape[2]), **how)
    return heads_apart(rows, like)


_OF_PLACES = (
    single_or_half("x"),
    "heads are an axis: x.rank == 4",
    "cosines and sines vary along one axis: len(sequence_axes(c, s)) < 2",
    "heads in rows have a known number: sequence_axes(c, s) != {1} or isinstance(x.shape[2], int)",
)


@equation.over_groups(
    find=_sums_with_turned,
    where=[
        *_OF_PLACES,
        "the factors have no more rows than there are places: root.type == x.type",
        "the halves of the cosines are the same: halves.of(c, neighbours) is not None",
        "the halves of the sines are the same: halves.of(s, neighbours) is not None",
    ],
    sample=_draw,
)
def recognise_rotary_embedding(m: Match) -> Term:
    """``x * [c, c] + [-x2, x1] * [s, s] == RotaryEmbedding(x, c, s)`` for the halves ``x1`` and ``x2`` of ``x``, and by ``-s``
    for ``[x2, -x1]``."""
    cosine, sine = (m.halves.of(f, m.neighbours) for f in (m.c, m.s))
    halves = (cosine, apply("Neg", sine) if m.backwards else sine)
    return embedded(m.x, m.x, (m.c, m.s), halves, **{"interleaved": 1} if m.neighbours else {})


TURNED = (
    """x: [B, H, L, D]; y: [B, H, L, D]; c: [B, 1, L, D] | [1, 1, L, D] | [L, D]; s: [B, 1, L, D] | [1, 1, L, D] | [L, D]
       n.axis = -1 | 3 | 1""",
    "x: float32[B, H, L, D]; y: float32[B, H, L, D]; c: float32[B, H, 1, D]; s: float32[B, H, 1, D]; SYMBOLS = [L] | [H]",
    "c: [1, 1, L, D]; s: [1, H, 1, D]",
    "c: [1, 1, L, 1]",
    "x: [H, L, D]; y: [H, L, D]; c: [L, D]; s: [L, D]; n.axis = -1",
    "x: [1, H, L, D]; y: [1, H, L, D]",
)
equation(  # where the halves are those of a value, putting them together cancels
    "recognise_rotary_embedding_of_halves",
    "Concat(x * c - y * s, y * c + x * s, **n) == embedded(Concat(x, y, axis=-1), root, (c, s), (c, s))",
    *_OF_PLACES,
    "the factors have no more rows than there are places: root.shape == (*x.shape[:-1], 2 * x.shape[-1])",
    "an angle for each pair of features: x.shape == y.shape and c.shape[-1] == s.shape[-1] == x.shape[-1]",
    drawn=TURNED,
)


def woven(x: Term, y: Term, half: Ref, whole: Shape) -> Term:
    """Two values like ``half``, each element of the second behind that of the first."""
    pairs = [viewed(z, half.shape, (*half.shape, 1), half) for z in (x, y)]
    return viewed(apply("Concat", *pairs, axis=-1), (*half.shape, 2), whole, half)


equation(  # as complex numbers are multiplied
    "recognise_rotary_embedding_of_pairs",
    """Reshape((p := Concat(Reshape(x * c - y * s, i, **a), Reshape(y * c + x * s, i, **b), axis=n)), t, **r)
       == embedded(woven(x, y, x, root.shape), root, (c, s), (c, s), interleaved=1)""",
    *_OF_PLACES,
    "each pair has an axis of its own: p.shape == (*x.shape, 2) and n in (-1, x.rank)",
    "the factors have no more rows than there are places: root.shape == (*x.shape[:-1], 2 * x.shape[-1])",
    "an angle for each pair of features: x.shape == y.shape and c.shape[-1] == s.shape[-1] == x.shape[-1]",
    drawn=(
        f"{TURNED[0]}; i = [0, 0, 0, D, 1]; n = -1 | 4; t = [0, 0, 0, 2 * D] | [B, H, L, -1]",
        *TURNED[1:4],
        "x: [H, L, D]; y: [H, L, D]; c: [L, D]; s: [L, D]; i = [0, 0, D, 1]; t = [0, 0, 2 * D]; n = -1",
        "n = 3 | -1; i = [B, H, L, 1, D] | [0, 0, 0, D, 1]; t = [B, H, -1, D] | [0, 0, 0, 2 * D]",
    ),
)


equation(
    "embed_in_rows",
    """RotaryEmbedding((t := Transpose(x, perm=(0, 2, 1, 3))), c, s, **r)
       == Transpose(heads_apart(RotaryEmbedding(side_by_side(x, x), c, s, num_heads=x.shape[2], **r), x), perm=(0, 2, 1, 3))""",
    "a known number of heads: isinstance(x.shape[2], int)",
    source="ONNX RotaryEmbedding: inputs of three axes",
    drawn="x: [B, L, H, 2 * D]; c: [B, L, D]; s: [B, L, D]; r.interleaved = 0 | 1",
)


equation(
    "embed_in_single_precision",
    "Cast(RotaryEmbedding(x, Cast(c, **h), Cast(s, **h), **r), **to) == RotaryEmbedding(Cast(x, **to), c, s, **r)",
    kernels("x", *HALVES),
    "single precision around: c.dtype is float32 and s.dtype is float32 and root.dtype is float32",
    "cosines and sines: all(-1 <= f.low and f.high <= 1 for f in (c, s))",
    source="the casts of cosines and sines round, as each step in half precision does",
    drawn=(
        """x: float16[B, H, L, 2 * D]; c = fixed(d.rng.uniform(-1, 1, [B, L, D]), "float32"); r.interleaved = 0 | 1; h.to = 10
           s = fixed(d.rng.uniform(-1, 1, [B, L, D]), "float32"); to.to = 1 | 11""",
        "x: float32[B, H, L, 2 * D]; h.to = 1",
        'c = fixed(d.rng.uniform(-1, 1, [B, L, D]) * 1e5, "float32")',
    ),
)
