"""Transposes that meet across a view, a part or a joint of values: a Reshape regroups, a Slice cuts, a Concat joins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eqsat.exactness import Exactness
from eqsat.ir.extents import product, quotient
from eqsat.ir.operator import operators_with
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, rule, variables
from eqsat.rules.terms import permutation_of, transpose
from eqsat.rules.views.extents import viewed
from eqsat.rules.views.movement import draw_slice, slice_ranges, slice_term
from eqsat.rules.views.transposes import is_unary
from eqsat.samples import Drawing, Instance, Sampler, fixed

SOURCE = "each element keeps its place among those of its block of axes"
x, s, t = variables("x s t")
a, b = variables("a? b?")

Block = tuple[list[int], list[int]]


def _blocks(source: Sequence[Dim], target: Sequence[Dim]) -> list[Block]:
    """Axes of a value and of a view of it, in the smallest blocks that hold the same elements.

    Raises `Unmet` for no elements, and where symbolic extents do not tell which axes go together.
    """
    if 0 in source or 0 in target:
        raise Unmet("an extent is 0")
    blocks: list[Block] = []
    i = j = 0
    while i < len(source) or j < len(target):
        left, right = source[i : i + 1], target[j : j + 1]
        first = i, j
        i, j = i + len(left), j + len(right)
        while (here := product(source[first[0] : i])) != (there := product(target[first[1] : j])):
            if i < len(source) and quotient(there, here) is not None:
                i += 1
            elif j < len(target) and quotient(here, there) is not None:
                j += 1
            elif isinstance(here, int) and isinstance(there, int):
                i, j = (i + 1, j) if here < there else (i, j + 1)
            else:
                raise Unmet("axes of unknown extents are regrouped")
        blocks.append((list(range(first[0], i)), list(range(first[1], j))))
    return blocks


def _moved_view(x: Ref, perm: Sequence[int], view: Ref) -> tuple[list[Dim], list[int]]:
    """A target and a permutation such that ``Reshape(Transpose(x, perm)) == Transpose(Reshape(x, target), permutation)``.

    Raises `Unmet` where the view mixes axes that are not side by side in ``x``.
    """
    shape, target = x.shape, view.shape
    order = [axis for axis in range(len(shape)) if shape[axis] != 1]
    placed: list[tuple[int, list[int]]] = []
    for left, right in _blocks([shape[p] for p in perm], target):
        axes = [order.index(perm[i]) for i in left if shape[perm[i]] != 1]
        if axes and axes != list(range(axes[0], axes[0] + len(axes))):
            raise Unmet("the view mixes axes that were apart")
        placed.append((axes[0] if axes else -1, right))
    placed.sort(key=lambda block: block[0])
    moved = [axis for _, right in placed for axis in right]
    return [target[axis] for axis in moved], [moved.index(axis) for axis in range(len(target))]


def _sandwich(d: Sampler) -> dict[str, Any]:
    shape = tuple(n * d.choose((1, 1, 2)) for n in d.shape(2, 4, ones=0.2))
    perm = d.permutation(len(shape))
    target: list[int] = []
    for n in (shape[p] for p in perm):
        target += [n] if n % 2 or d.chance(0.4) else d.choose(([2, n // 2], [n // 2, 2], [1, n]))
    while len(target) > 5 or (len(target) > 2 and d.chance(0.3)):  # axes may be merged as well
        i = d.integer(0, len(target) - 2)
        target[i : i + 2] = [target[i] * target[i + 1]]
    return {
        "x": d.array(shape),
        "p": {"perm": perm},
        "s": fixed(target, "int64"),
        "q": {"perm": d.permutation(len(target))},
    }


@rule(
    apply("Transpose", apply("Reshape", apply("Transpose", x).named("p"), s).named("view")).named("q"),
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_sandwich,
)
def compose_transposes_across_reshape(m: Match) -> Term:
    """``Transpose(Reshape(Transpose(x, p), s), q) == Transpose(Reshape(x, s'), r)`` where the view splits axes, or merges
    those that are side by side in ``x``."""
    target, inner = _moved_view(m.x, permutation_of(m.p), m.view)
    return transpose(viewed(m.x, m.x.shape, target, m.x), [inner[axis] for axis in permutation_of(m.q)])


def _part(d: Sampler) -> dict[str, Any]:
    shape = d.shape(2, 4)
    perm = d.permutation(len(shape))
    drawn, _ = draw_slice(d, tuple(shape[p] for p in perm), "s t a b")
    return {"x": d.array(shape), "p": {"perm": perm}, **drawn}


@rule(
    apply("Slice", apply("Transpose", x).named("p"), s, t, a, b),
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_part,
)
def take_slice_before_transpose(m: Match) -> Term:
    """``Slice(Transpose(x, p), s, t, a) == Transpose(Slice(x, s, t, p[a]), p)``."""
    perm = permutation_of(m.p)
    ranges = slice_ranges(m.p, m.s, m.t, m.a, m.b)
    return transpose(slice_term(m.x, {perm[axis]: taken for axis, taken in ranges.items()}), perm)


def _joint(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape(2, 4)
    perm = d.permutation(len(shape))
    axis = d.integer(0, len(shape) - 1)
    parts = []
    for _ in range(d.integer(2, 4)):
        extents = [d.integer(1, 5) if i == perm[axis] else n for i, n in enumerate(shape)]
        if d.chance(0.1):  # a permutation of its own
            parts.append(drawing.value(d.floats([extents[p] for p in perm])))
            continue
        part = drawing.op("Transpose", drawing.value(d.floats(extents)), perm=perm)
        bounds = [drawing.value(fixed(b, "float32")) for b in (-1.0, 0.5)]
        parts.append(d.choose((part, part, drawing.op("Neg", part), drawing.op("Clip", part, *bounds))))
    return drawing.finish(drawing.op("Concat", *parts, axis=d.choose((axis, axis - len(shape)))))


@group_rule(exactness=Exactness.EXACT, source=SOURCE, sample=_joint)
def sink_equal_transposes_below_concat(view: GroupView) -> Iterator[Merge]:
    """``Concat(Transpose(x, p), f(Transpose(y, p)), ..., a) == Transpose(Concat(x, f(y), ..., p[a]), p)`` for an ``f`` of each
    element by itself, or none.
    """
    sources: dict[int, dict[tuple[int, ...], Term]] = {}
    for node, inputs in view.nodes("Transpose"):
        if inputs[0] is not None and not node.is_constant:
            sources.setdefault(node.handle, {}).setdefault(permutation_of(node), inputs[0])
    moved = {handle: dict(found) for handle, found in sources.items()}
    for op in operators_with(is_unary):
        for node, inputs in view.nodes(op):
            for perm, x in moved.get(inputs[0].handle, {}).items() if inputs[0] is not None else ():
                args: Any = (x, *inputs[1:])
                sources.setdefault(node.handle, {}).setdefault(perm, Apply(op, args, node.attributes))
    for root, inputs in list(view.nodes("Concat")):
        found = [sources.get(i.handle) if i is not None else None for i in inputs]
        if len(found) < 2 or found[0] is None:
            continue
        for perm in found[0]:
            values = [f[perm] for f in found if f is not None and perm in f]
            if len(values) == len(found) and root.rank == len(perm):
                axis = perm[root.attr("axis") % len(perm)]
                yield root, transpose(apply("Concat", *values, axis=axis), perm)
