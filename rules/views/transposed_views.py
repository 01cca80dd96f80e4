"""Transposes that meet across a view, a part or a joint of values: a Reshape regroups, a Slice cuts, a Concat joins."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.ir.extents import product
from eqsat.ir.operator import operators_with
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, apply
from eqsat.rules.cuts import cuts
from eqsat.rules.terms import by_class, complete_nodes, int64s, split, transpose, transposes
from eqsat.rules.views.counting import is_view
from eqsat.rules.views.extents import Block, blocks, viewed
from eqsat.rules.views.movement import runs_forward, slice_term, taken
from eqsat.rules.views.parts import concats
from eqsat.rules.views.transposes import is_unary


def placed(x: Ref, perm: Sequence[int], view: Ref) -> list[Block] | None:
    """The axes of ``x`` and those of a view of its transpose, block by block, in the order of ``x``; axes of extent 1 left out of
    ``x``, whose others are counted."""
    shape = x.shape
    order = [axis for axis in range(len(shape)) if shape[axis] != 1]
    together = blocks(tuple(shape[p] for p in perm), view.shape)
    if together is None:
        return None
    found: list[Block] = [
        ([order.index(perm[i]) for i in left if shape[perm[i]] != 1], right) for left, right in together
    ]
    return sorted(found, key=lambda block: block[0][0] if block[0] else -1)


def stay_together(found: Sequence[Block]) -> bool:
    """Whether the axes of each block are side by side in the value."""
    return all(axes == list(range(axes[0], axes[0] + len(axes))) for axes, _ in found if axes)


def one_transpose(
    x: Ref, perm: Sequence[int], view: Ref, last: Sequence[int]
) -> tuple[Sequence[int], Sequence[int] | None] | None:
    """``Transpose(Reshape(Transpose(x, perm)), last)`` with one transpose: the axes of ``x`` in the order in which they are
    viewed, and those of ``view`` in that order, if what is transposed is the view of ``x``; ``None`` where axes that go together
    are apart both before and behind."""
    found = placed(x, perm, view)
    if found is not None and stay_together(found):
        return range(x.rank), [axis for _, right in found for axis in right]
    together = blocks(tuple(x.shape[p] for p in perm), view.shape) or ()
    order = sorted(together, key=lambda block: list(last).index(block[1][0]) if block[1] else len(last))
    if [axis for _, right in order for axis in right] != list(last):
        return None
    return [perm[axis] for left, _ in order for axis in left], None


def moved_view(x: Ref, view: Ref, last: Sequence[int], order: tuple[Sequence[int], Sequence[int] | None]) -> Term:
    """The term that `one_transpose` describes."""
    before, behind = order
    target = [view.shape[a] for a in (last if behind is None else behind)]
    moved = viewed(transpose(x, before), [x.shape[a] for a in before], target, x)
    return moved if behind is None else transpose(moved, [behind.index(axis) for axis in last])


@lru_cache(maxsize=10_000)
def fewest_axes(
    shape: tuple[Dim, ...], perm: tuple[int, ...], result: tuple[Dim, ...]
) -> tuple[tuple[Dim, ...], tuple[int, ...]]:
    """The extents of a view that a permutation of ``shape`` moves, and the permutation of that: one axis for those that are
    together in order and behind it, unless they stay in front, as batches do, or ``result`` has them like that; axes of extent 1
    left out."""
    moving = [p for p in perm if shape[p] != 1]
    axes, behind = sorted(moving), {axis: i for i, axis in enumerate(moving)}
    runs: list[list[int]] = []
    front = next((i for i, axis in enumerate(axes) if behind[axis] != i), len(axes))
    if tuple(shape[axis] for axis in moving) == result:
        front = len(axes)
    for i, axis in enumerate(axes):
        if i > front and behind[axis] == behind[axes[i - 1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(range(len(runs)), key=lambda i: behind[runs[i][0]])
    return tuple(product(shape[axis] for axis in run) for run in runs), tuple(order)


def moved_ranges(taken: Mapping[int, range], perm: Sequence[int]) -> dict[int, range]:
    """What is taken of a transposed value, by the axes of the value itself."""
    return {perm[axis]: found for axis, found in taken.items()}


def axes_dropped(perm: Sequence[int], axes: Ref) -> list[int]:
    """The axes of a value of which a Squeeze drops ``axes`` behind a transpose."""
    return [perm[axis] for axis in axes.value.reshape(-1).tolist()]


def order_left(perm: Sequence[int], axes: Ref) -> tuple[int, ...]:
    """The permutation of the axes that a Squeeze leaves of a transposed value."""
    gone = axes_dropped(perm, axes)
    left = [axis for axis in perm if axis not in gone]
    return tuple(sorted(left).index(axis) for axis in left)


equation = Equations(
    __name__,
    source="each element keeps its place among those of its block of axes",
    functions=named(runs_forward, taken, slice_term, transpose, int64s),
)
equation(
    "squeeze_before_transpose",
    """Squeeze(Transpose(x, perm=p, **moved), a)
       == transpose(Squeeze(x, int64s(axes_dropped(p, a))), order_left(p, a))""",
    constant("a"),
    worthwhile("no Reshape says it, which infers one extent: sum(not isinstance(d, int) for d in root.shape) > 1"),
)
equation(
    "compose_transposes_across_reshape",
    """Transpose(Reshape(Transpose(x, perm=p, **inner), s, **view), perm=q, **outer)
       == moved_view(x, view, q, one_transpose(x, p, view, q))""",
    "axes that go together are side by side before or behind: one_transpose(x, p, view, q) is not None",
    ends="x",
)
equation(
    "take_slice_before_transpose",
    """Slice(Transpose(x, perm=p, **moved), s, t, *a, *b)
       == transpose(slice_term(x, moved_ranges(taken(moved, s, t, a, b), p)), p)""",
    constant("s", "t", "a", "b"),
    "forward through known extents: runs_forward(moved, s, a, b)",
    "something is left: all(taken(moved, s, t, a, b).values())",
)
equation(
    "compose_transposes_across_slice",
    """Transpose(Slice(Transpose(x, perm=p, **inner), s, t, a, *b), perm=q, **outer)
       == transpose(Slice(x, s, t, int64s([p[i] for i in a.value]), *b), [p[i] for i in q])""",
    constant("a"),
)


def _transposed_between_views(view: GroupView) -> Iterator[Match]:
    """Each view of a transposed view of another value, with the extents and the order of the fewest axes. ``axes``: how many
    move, with those of extent 1 where views add and remove these. Elsewhere such axes stay, as a batch of one beside heads does:
    without them every layer would have all its views once more."""
    every = operators_with(is_view)
    found: dict[tuple[int, int, tuple[int, tuple[Dim, ...], tuple[int, ...]]], tuple[Ref, Ref]] = {}
    for ops, last, single in ((every, every, 0), (("Unsqueeze",), ("Squeeze",), 1)):
        before = by_class((node, x) for node, (x, *_) in complete_nodes(view, *ops))
        behind = by_class((x, node) for node, (x, *_) in complete_nodes(view, *last))
        for node, v, perm in transposes(view):
            if node.is_constant or v.type.shape is None or not (v.handle in before and node.handle in behind):
                continue
            axes = v.rank if single else sum(extent != 1 for extent in v.shape)
            for root in (root for root in behind[node.handle] if root.type.shape is not None):
                moved = axes, *fewest_axes(v.shape, perm, root.shape)
                found.update(((root.handle, x.handle, moved), (root, x)) for x in before[v.handle])
    for (_, _, (axes, extents, order)), (root, x) in found.items():
        yield Match({"x": x, "axes": axes, "extents": extents, "order": order}, root)


@equation.over_groups(
    find=_transposed_between_views,
    where=[worthwhile("some axes move together, or are of extent 1: len(extents) < axes")],
    forms=[
        form("Reshape(Transpose(Reshape(x, s), perm=p), t)", constant("s", "t")),
        form("Squeeze(Transpose(Unsqueeze(x, s), perm=p), t)", constant("s", "t")),
    ],
)
def transpose_fewest_axes(m: Match) -> Term:
    """``Reshape(Transpose(Reshape(x, s), p), t) == Reshape(Transpose(Reshape(x, s'), p'), t)`` where ``s'`` has one axis for
    several that move together, and none of extent 1."""
    moved = transpose(viewed(m.x, m.x.shape, m.extents, m.x), m.order)
    return viewed(moved, [m.extents[i] for i in m.order], m.root.shape, m.x)


def _parts_transposed_again(view: GroupView) -> Iterator[Match]:
    """Each part of a transposed value that is transposed again or viewed otherwise, as a part of the value itself."""
    readers = {"Transpose", *operators_with(is_view)}
    sources = by_class((node, (x, perm)) for node, x, perm in transposes(view) if not node.is_constant)
    for cut in cuts(view):
        for x, perm in sources.get(cut.value.handle, ()):
            for index, part in enumerate(cut.parts):
                if any(reader in readers for reader, *_ in view.users(part)):
                    yield Match(
                        {"x": x, "perm": perm, "axis": perm[cut.axis], "sizes": cut.sizes, "index": index}, part
                    )


@equation.over_groups(
    find=_parts_transposed_again,
    forms=[
        form(
            """Concat(Transpose(Split(Transpose(x, perm=p), k, outputs=2, axis=a)[0], perm=q),
                      Split(Transpose(x, perm=p), k, outputs=2, axis=a)[1], axis=b)""",
            constant("k"),
        ),
        form("Squeeze(Split(Transpose(x, perm=p), k, outputs=2, axis=a)[0], s)", constant("k", "s")),
    ],
)
def take_part_before_transpose(m: Match) -> Term:
    """``Split(Transpose(x, p), a)[i] == Transpose(Split(x, p[a])[i], p)`` where a Transpose or a view reads the part."""
    return transpose(split(m.x, m.sizes, m.axis).output(m.index), m.perm)


def _transposed_operands(view: GroupView) -> Iterator[Match]:
    """Each Concat with its operands before the transpose by each permutation that the first of them has; ``None`` for an operand
    that has it not."""
    sources: dict[int, dict[tuple[int, ...], Term]] = {}
    for node, x, perm in transposes(view):
        if not node.is_constant:
            sources.setdefault(node.handle, {}).setdefault(perm, x)
    moved = {handle: dict(found) for handle, found in sources.items()}
    for op in operators_with(is_unary):
        for node, inputs in view.nodes(op):
            for perm, x in moved.get(inputs[0].handle, {}).items() if inputs[0] is not None else ():
                args: Any = (x, *inputs[1:])
                sources.setdefault(node.handle, {}).setdefault(perm, Apply(op, args, node.attributes))
    for root, (axis, parts) in concats(view):
        found = [sources.get(part.handle, {}) for part in parts]
        for perm in found[0] if len(found) > 1 else ():
            yield Match({"perm": perm, "axis": perm[axis], "operands": [f.get(perm) for f in found]}, root)


@equation.over_groups(
    find=_transposed_operands,
    where=["all operands are transposed alike: None not in operands"],
    forms=[
        f"Concat(Transpose(x, perm=p), {f}, axis=a)" for f in ("Transpose(y, perm=q)", "Relu(Transpose(y, perm=q))")
    ],
)
def sink_equal_transposes_below_concat(m: Match) -> Term:
    """``Concat(Transpose(x, p), f(Transpose(y, p)), ..., a) == Transpose(Concat(x, f(y), ..., p[a]), p)`` for an ``f`` of each
    element by itself, or none.
    """
    return transpose(apply("Concat", *m.operands, axis=m.axis), m.perm)
