"""Views and transposes of the parts of a Split as those of the whole: one instead of one for each part.

Heads of queries, keys and values that one product computes are laid out at once.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.ir.extents import multiply, product
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import GroupView, Match, Ref, Term
from eqsat.rules.cuts import cuts_of_bytes
from eqsat.rules.quantised.scales import like, per_tensor, unblocked
from eqsat.rules.terms import add, int64s, permutation_of, reshape, split, transpose
from eqsat.rules.views.extents import viewed
from eqsat.samples import Drawing, Instance, Sampler

equation = Equations(
    __name__,
    source="each element by itself",
    functions=named(transpose, per_tensor, unblocked, int64s, math.prod),
)


def _laid_out(
    view: GroupView, op: str, layout: Callable[[Ref, Ref, int], Any]
) -> Iterator[tuple[Ref, int, tuple[int, ...], dict[int, tuple[Any, Ref]]]]:
    """Each value that is split with an ``op`` on every part: axis, sizes, and by part how that lays it out, which ``layout`` says
    of the whole, the user of a part and its size, or nothing."""
    for value, sizes, parts, axis in cuts_of_bytes(view):
        found: dict[int, tuple[Any, Ref]] = {}
        for index, part in enumerate(parts):
            for reader, node, _ in view.users(part):
                kind = layout(value, node, sizes[index]) if reader == op else None
                if kind is not None:
                    found.setdefault(index, (kind, node))
        if len(found) == len(sizes):
            yield value, axis, sizes, found


def _heads(value: Ref, view: Ref, part: int) -> tuple[Dim, ...] | None:
    """The rows and the size of the heads into which a view splits the last axis of a part."""
    if view.type.rank is None or view.rank < 3:
        return None
    *rows, heads, size = view.shape
    splits_last = product(rows) == product(value.shape[:-1]) and multiply(heads, size) == part
    return (*rows, size) if splits_last and isinstance(size, int) and size else None


def _views_of_parts(view: GroupView) -> Iterator[Match]:
    """Each view of one part as heads, where all parts have heads of one size."""
    for value, axis, sizes, found in _laid_out(view, "Reshape", _heads):
        kinds = {kind for kind, _ in found.values()}
        if axis == value.rank - 1 and len(kinds) == 1:
            *rows, size = kinds.pop()
            counts = tuple(n // size for n in sizes)
            shape = (*rows, sum(counts), size)
            for index, (_, node) in found.items():
                yield Match({"x": value, "shape": shape, "axis": len(rows), "sizes": counts, "index": index}, node)


def _turned_parts(view: GroupView) -> Iterator[Match]:
    """Each transposed part, where all parts are transposed, two of them at least by one permutation."""
    for value, axis, sizes, found in _laid_out(view, "Transpose", lambda _, node, __: permutation_of(node)):
        perm, count = Counter(p for p, _ in found.values()).most_common(1)[0]
        for index, (own, node) in found.items() if count > 1 else ():
            bound = {"x": value, "perm": perm, "axis": perm.index(axis), "sizes": sizes, "index": index}
            yield Match(bound | {"more": tuple(perm.index(i) for i in own)}, node)


def _viewed_parts(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, size, *heads = d.extents(4)
    last, sizes = d.chance(0.9), [n * size for n in heads]
    value = drawing.value(d.integers((rows, sum(sizes)) if last else (sum(sizes), rows), "uint8"))
    axis = int(last) - d.choose((0, 2))
    parts = drawing.op("Split", value, sizes, outputs=2, axis=axis)
    shapes = [[rows, n, size] if last else [n, size, rows] for n in heads]
    if d.chance(0.1):
        shapes[1] = shapes[1][::-1]
    return drawing.finish(*(drawing.op("Reshape", p, s) for p, s in zip(parts, shapes, strict=True)))


@equation.over_groups(find=_views_of_parts, sample=_viewed_parts)
def view_heads_before_split(m: Match) -> Term:
    """``Reshape(Split(x)[i], [..., n_i, h]) == Split(Reshape(x, [..., n, h]))[i]`` where all parts have the same ``h``."""
    return split(viewed(m.x, m.x.shape, m.shape, m.x), m.sizes, m.axis).output(m.index)


_TURNED = "Concat(Transpose({0}[0], perm=p), Transpose({0}[1], perm={1}), axis=b)"


@equation.over_groups(
    find=_turned_parts,
    forms=[
        form(_TURNED.format("Split(x, k, outputs=2, axis=a)", second), kernels("x", DType.UINT8), constant("k"))
        for second in "pq"
    ],
)
def transpose_before_split(m: Match) -> Term:
    """``Transpose(Split(x)[i], p) == Split(Transpose(x, p))[i]``; a part with another ``p`` is transposed once more."""
    return transpose(split(transpose(m.x, m.perm), m.sizes, m.axis).output(m.index), m.more)


# --- past the sum with a bias on bytes ------------------------------------------------------------------------------------


def requantised(quantized: Ref, dq: Ref, operands: tuple[Any, ...], value: Term, vector: Term) -> Term:
    """``Q(DQ(value) + vector)`` by the scales and zero points among the operands."""
    s, z, s2, z2 = operands
    return like(quantized, "QuantizeLinear", add(like(dq, "DequantizeLinear", value, s, z), vector), s2, z2)


def filled(c: Ref, rank: int) -> tuple[Any, ...]:
    """The extents of a bias beside a value of ``rank`` axes."""
    return (1,) * (rank - c.rank) + tuple(c.shape)


def moved_bias(c: Ref, perm: tuple[int, ...]) -> Term:
    """The bias beside the transposed value; as a view where it varies over axes that keep their order."""
    shape = filled(c, len(perm))
    axes = [p for p in perm if shape[p] != 1]
    if axes == sorted(axes):
        return reshape(c, (shape[p] for p in perm))
    return transpose(reshape(c, shape), perm)


BIASED = "QuantizeLinear(DequantizeLinear(q, s, *z, **dq) + c, s2, *z2, **quantized)"
AGAIN = "requantised(quantized, dq, (s, z, s2, z2), {value}, {vector})"
WHOLE = (
    constant("c"),
    kernels("q", DType.UINT8),
    worthwhile("bytes without sign come out, which others have twins of: root.dtype is uint8"),
    "one scale before: per_tensor(s, z)",
    "one scale behind: per_tensor(s2, z2)",
    "no blocks: unblocked(dq.attributes, quantized.attributes)",
)
for name, around in (("bias", "{}"), ("clipped_bias", "Clip({}, *low, *high)")):
    inside = AGAIN.format(value="Reshape(q, int64s(root.shape))", vector="Reshape(c, int64s(root.shape[-2:]))")
    equation(
        f"view_heads_before_{name}",
        f"Reshape({around.format(BIASED)}, shape, **view) == {around.format(inside)}",
        *WHOLE,
        worthwhile("heads: root.rank > 2"),
        "all extents known, none of them 0: 0 not in root.static_shape",
        "the view splits the last axis: prod(root.shape[-2:]) == q.shape[-1]",
        "the bias is a vector for the last axis: c.shape == q.shape[-1:]",
        drawn=(
            """q: uint8[R, H * S]; c: float32[H * S] | float32[1] | float32[R, H * S]; s = d.positive([]); z: uint8[()]
               s2 = d.positive([]); z2: uint8[()]; low = fixed(9, "uint8"); high = fixed(210, "uint8")
               shape = [R, H, S] | [1, R, H, S] | [H, R, S]""",
            "q: uint8[0, H * S]; shape = [1, 0, H, S]; view.allowzero = 1",
            """q: uint8[1, H * S]; shape = [1, H, S]; s = d.positive([1, 1]); z: uint8[1, 1]; dq.axis = 1; dq.block_size = H * S
               s2 = d.positive([1, 1]); z2: uint8[1, 1]; quantized.axis = 1; quantized.block_size = H * S""",
            "s = d.positive([H * S]); z: uint8[H * S]; dq.axis = -1",
            "s2 = d.positive([H * S]); z2: uint8[H * S]; quantized.axis = -1",
        ),
    )
    inside = AGAIN.format(value="transpose(q, p)", vector="moved_bias(c, p)")
    equation(
        f"transpose_heads_before_{name}",
        f"Transpose({around.format(BIASED)}, perm=p, **moved) == {around.format(inside)}",
        *WHOLE,
        "the sum has the axes of the bytes: q.rank == root.rank",
        worthwhile("the bias is no vector: c.rank >= 2"),
    )
