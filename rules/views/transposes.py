"""Transposes that meet across elementwise operators, views and padding: moved only where they cancel.

Moving a Transpose past an operator costs an e-node and gains nothing by itself, so no rule does it one step at a time: the
operators between a Transpose and those that undo it are rebuilt at once.
"""

from collections.abc import Iterator, Sequence
from operator import itemgetter

import numpy as np

from eqsat.conditions import constant
from eqsat.equations import form, group_rule
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, having, operators_with, traits_of
from eqsat.rewrite import Apply, GroupView, Match, Ref, Term, Unmet, apply, present
from eqsat.rules.terms import Node, by_class, int64s, nodes_by_class, reshape, transpose, transposes
from eqsat.rules.views.counting import is_view
from eqsat.rules.views.extents import blocks, viewed
from eqsat.rules.views.parts import Part, parts_by_class


def is_unary(op: Operator) -> bool:
    """Whether an operator applies to each element of its first input; further inputs are single numbers."""
    return op.traits.operands == 1 and not op.traits.vectors


def is_broadcasting(op: Operator) -> bool:
    """Whether an operator broadcasts all its inputs against each other."""
    return op.traits.operands > 1


def is_elementwise(op: Operator) -> bool:
    return is_unary(op) or is_broadcasting(op)


def _attends(op: Operator) -> bool:
    return op.traits.structure == "attention"


_SIZE_LIMIT = 32
"""Operators between transposes that are rebuilt at most."""

Permutation = tuple[int, ...]
Found = tuple[Term, int]


class Transposer:
    """Writes the transpose of a value without a Transpose, if there is a way; ``more``: operators on that way, beside those on
    each element and paddings."""

    def __init__(self, view: GroupView, *more: str) -> None:
        self.sources = by_class((node, (x, perm)) for node, x, perm in transposes(view))
        ops = (*operators_with(is_elementwise), "Pad", *more) if self.sources else ()
        self.regions = nodes_by_class(view, ops)
        self.views = nodes_by_class(view, operators_with(is_view) if self.sources else ())
        self.parts = parts_by_class(view) if self.sources else {}
        attention = operators_with(_attends) if self.sources else ()
        self.attention = {node.handle for op in attention for node, _ in view.nodes(op)}
        self._found: dict[tuple[int, Permutation], Found | None] = {}
        self._permutations: dict[int, Permutation | None] = {}

    def transposed(self, value: Ref, perm: Permutation) -> Found | None:
        """``Transpose(value, perm)`` and its number of operators, of which none is a Transpose of a variable."""
        key = (value.handle, perm)
        if key not in self._found:
            self._found[key] = None  # a cycle leads nowhere new
            self._found[key] = self._search(value, perm)
        return self._found[key]

    def _search(self, value: Ref, perm: Permutation) -> Found | None:
        if value.is_constant:
            return transpose(value, perm), 0
        for x, inner in self.sources.get(value.handle, ()):
            if all(inner[p] == i for i, p in enumerate(perm)):
                return x, 0
        if value.handle in self.attention and perm == (0, 2, 1, 3):
            return transpose(value, perm), 1  # heads in rows, as kernels write them
        return self.inside(value, perm) or _viewed(value, perm)

    def inside(self, value: Ref, perm: Permutation) -> Found | None:
        """The transpose of what an operator of the region computes, or of a view or part of it."""
        rebuilt = (self.rebuilt(node, perm) for node in self.regions.get(value.handle, ()))
        views = (self._regrouped(x, value, perm) for _, _, (x, *_) in self.views.get(value.handle, ()) if x is not None)
        parts = (self._part(part, perm) for part in self.parts.get(value.handle, ()))
        found = [each for each in (*rebuilt, *views, *parts) if each is not None]
        return min(found, key=itemgetter(1), default=None)

    def _regrouped(self, x: Ref, value: Ref, perm: Permutation) -> Found | None:
        """A view of ``x``, whose axes that go together stay side by side. It is free."""
        if x.type.shape is None or value.type.shape is None or 0 in (*x.shape, *value.shape):
            return None
        together = blocks(x.shape, value.shape) or ()
        order = sorted(together, key=lambda block: perm.index(block[1][0]) if block[1] else len(perm))
        if [axis for _, right in order for axis in right] != list(perm):
            return None
        axes = tuple(axis for left, _ in order for axis in left)
        found = self.transposed(x, axes)
        if found is None:
            return None
        return viewed(found[0], [x.shape[a] for a in axes], [value.shape[a] for a in perm], x), found[1]

    def _part(self, part: Part, perm: Permutation) -> Found | None:
        found = self.transposed(part.whole, perm)
        if found is None or found[1] >= _SIZE_LIMIT:
            return None
        bounds = map(int64s, ((part.start,), (part.end,), (perm.index(part.axis),)))
        return apply("Slice", found[0], *bounds), found[1] + 1

    def rebuilt(self, node: Node, perm: Permutation) -> Found | None:
        """The elementwise operator, or the padding, applied to its operands transposed."""
        op, root, inputs = node
        if op == "Pad":
            return self._padded(root, inputs, perm)
        if op == "MatMul":
            return self._multiplied(inputs, perm)
        args: list[Term | None] = []
        size = 1
        for i, operand in enumerate(inputs):
            found = (operand, 0) if operand is None or i >= traits_of(op).operands else self._operand(operand, perm)
            if found is None:
                return None
            args.append(found[0])
            size += found[1]
        return (Apply(op, tuple(args), root.attributes), size) if size <= _SIZE_LIMIT else None  # type: ignore[arg-type]

    def _padded(self, root: Ref, inputs: Sequence[Ref | None], perm: Permutation) -> Found | None:
        x, pads, *more = inputs
        if x is None or pads is None or not pads.is_constant or len(more) > 1:
            return None
        found = self.transposed(x, perm)
        if found is None or found[1] >= _SIZE_LIMIT:
            return None
        try:
            befores, behinds = np.split(pads.value, 2)
        except Unmet:
            return None
        moved = [int(side[axis]) for side in (befores, behinds) for axis in perm]
        return Apply("Pad", present(found[0], int64s(moved), *more), root.attributes), found[1] + 1

    def _multiplied(self, inputs: Sequence[Ref | None], perm: Permutation) -> Found | None:
        """Rows by a matrix, of which only the leading axes move."""
        x, w = inputs
        if x is None or w is None or x.type.rank != len(perm) or w.type.rank != 2 or perm[-1] != len(perm) - 1:
            return None
        found = self.transposed(x, perm)
        return (apply("MatMul", found[0], w), found[1] + 1) if found is not None and found[1] < _SIZE_LIMIT else None

    def permutation(self, value: Ref) -> Permutation | None:
        """By what the first variable of a region is transposed."""
        if value.handle not in self._permutations:
            self._permutations[value.handle] = None  # a cycle leads nowhere new
            own = (perm for _, perm in self.sources.get(value.handle, ()))
            operands = (
                x
                for op, _, inputs in self.regions.get(value.handle, ())
                for x in inputs[: traits_of(op).operands or 1]
                if x is not None and not x.is_constant
            )
            inner = (self.permutation(x) for x in operands)
            self._permutations[value.handle] = next((p for p in (*own, *inner) if p is not None), None)
        return self._permutations[value.handle]

    def _operand(self, operand: Ref, perm: Permutation) -> Found | None:
        """An operand transposed after its shape is filled up with leading axes, as broadcasting does."""
        rank = len(perm)
        if operand.type.shape is None or operand.rank > rank:
            return None
        if all(d == 1 for d in operand.shape):
            return operand, 0
        if operand.rank == rank:
            return self.transposed(operand, perm)
        if not operand.is_constant:
            return None
        filled = reshape(operand, (1,) * (rank - operand.rank) + operand.static_shape)
        return transpose(filled, perm), 0


def _viewed(value: Ref, perm: Permutation) -> Found | None:
    """A value of which only axes of 1 move, as a view of it."""
    shape = value.type.shape
    if shape is None or len(shape) != len(perm) or 0 in shape:
        return None
    target = [shape[axis] for axis in perm]
    kept = [axis for axis in perm if shape[axis] != 1]
    moves = any(not isinstance(d, int) and d != shape[i] for i, d in enumerate(target))
    return (viewed(value, shape, target, value), 2 if moves else 1) if kept == sorted(kept) else None


def inverse(perm: Permutation) -> Permutation:
    return tuple(perm.index(i) for i in range(len(perm)))


def _undone(view: GroupView, *more: str) -> Iterator[Match]:
    """Each transpose of a region of which all inputs are transposed the other way, and the region without. Views alone between
    transposes are for `transposed_views`."""
    transposer = Transposer(view, *more)
    for node, value, perm in transposes(view):
        found = transposer.inside(value, perm)
        if found is not None and found[1]:
            yield Match({"region": found[0]}, node)


def _undone_across_products(view: GroupView) -> Iterator[Match]:
    return (match for match in _undone(view, "MatMul") if _applies(match.region, "MatMul"))


def _applies(term: Term, op: str) -> bool:
    return isinstance(term, Apply) and (term.op == op or any(_applies(x, op) for x in term.args))


@group_rule(
    find=_undone,
    source="elementwise operators commute with permutations",
    forms=[
        "Transpose(Relu(Transpose(x, perm=p)), perm=q)",
        form("Transpose(Transpose(x, perm=p) - c, perm=q)", constant("c")),
        "Transpose(Transpose(x, perm=p) * Transpose(y, perm=r), perm=q)",
        form("Transpose(Pad(Transpose(x, perm=p), s, *v, **n), perm=q)", constant("s")),
        form("Transpose(Slice(Relu(Transpose(x, perm=p)), s, t, a), perm=q)", constant("s", "t", "a")),
        form("Transpose(Reshape(Relu(Transpose(x, perm=p)), s), perm=q)", constant("s")),
    ],
)
def cancel_transposes_across_elementwise(m: Match) -> Term:
    """``Transpose(f(Transpose(x, p), c), q) == f(x, c')`` where ``q`` undoes ``p``; ``f`` is any elementwise region,
    with views of blocks of axes that stay together."""
    return m.region


@group_rule(
    find=_undone_across_products,
    exactness=Exactness.ROUNDING,
    source="each row is multiplied by itself",
    forms=[
        "Transpose(Transpose(x, perm=p) @ w, perm=q)",
        form("Transpose(Relu(Transpose(x, perm=p) @ w + c), perm=q)", constant("c")),
    ],
)
def cancel_transposes_across_products(m: Match) -> Term:
    """``Transpose(f(Transpose(x, p) @ w), q) == f(x @ w)`` for a matrix ``w``, where ``q`` undoes ``p``; rows stay whole."""
    return m.region


def _transposed_alike(view: GroupView) -> Iterator[Match]:
    """Each elementwise operator of two transposes and more, all by one permutation, and its result without."""
    transposer = Transposer(view)
    for node in [node for nodes in transposer.regions.values() for node in nodes]:
        _, root, inputs = node
        moving = [i for i in inputs if i is not None and i.handle in transposer.sources and not i.is_constant]
        if len({i.handle for i in moving}) > 1 and root.type.shape is not None:
            perms = [perm for _, perm in transposer.sources[moving[0].handle] if len(perm) == root.rank]
            rebuilt = ((transposer.rebuilt(node, inverse(perm)), perm) for perm in perms)
            found = next(((f[0], perm) for f, perm in rebuilt if f is not None and f[1] == 1), None)
            if found is not None:
                yield Match({"region": found[0], "perm": found[1]}, root)


@group_rule(
    find=_transposed_alike,
    source="elementwise operators commute with permutations",
    forms=[f"{op}(Transpose(x, perm=p), Transpose(y, perm=q))" for op in ("Sub", "Max")],
)
def sink_equal_transposes(m: Match) -> Term:
    """``f(Transpose(x, p), Transpose(y, p)) == Transpose(f(x, y), p)`` for an elementwise ``f`` of two or more variables."""
    return apply("Transpose", m.region, perm=m.perm)


def _reduced(view: GroupView) -> Iterator[Match]:
    """Each reduction of an elementwise region of which all variables are transposed alike, and the region without."""
    transposer = Transposer(view)
    for op in operators_with(having("reduces")):
        for node, inputs in view.nodes(op):
            x, axes = (*inputs, None)[:2]
            perm = transposer.permutation(x) if x is not None else None
            if x is None or axes is None or not perm or len(x.type.shape or ()) != len(perm):
                continue
            found = transposer.transposed(x, inverse(perm))
            if found is not None:
                yield Match({"op": op, "node": node, "x": x, "axes": axes, "perm": perm, "region": found[0]}, node)


@group_rule(
    find=_reduced,
    where=[constant("axes")],
    exactness=Exactness.ROUNDING,
    source="the order of axes is nothing to what is reduced over some of them",
    forms=[
        *(form(f"{op}(Transpose(x, perm=p), a, **r)", constant("a")) for op in ("ReduceMean", "ReduceMax")),
        form("ReduceMean(Relu(Transpose(x, perm=p) - c), a, **r)", constant("a", "c")),
    ],
)
def reduce_before_transpose(m: Match) -> Term:
    """``Reduce(f(Transpose(x, p)), axes) == Transpose(Reduce(f(x), p[axes]), p)`` for an elementwise region ``f``."""
    given = {int(a) % m.x.rank for a in m.axes.value.reshape(-1)}
    made = Apply(m.op, (m.region, int64s(sorted(m.perm[a] for a in given))), m.node.attributes)
    reduced = given or (() if m.node.attr("noop_with_empty_axes", 0) else range(m.x.rank))
    if m.node.attr("keepdims", 1):
        return transpose(made, m.perm)
    left = [p for i, p in enumerate(m.perm) if i not in reduced]
    return transpose(made, [sorted(left).index(p) for p in left])
