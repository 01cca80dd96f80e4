"""Branches that read one value become one branch (E19): N-way, never pair by pair.

Products of one left operand with many right operands are one product with the right operands side by side, then a Split.
What follows every part alike, a constant along the last axis or a function of single elements, moves before the Split. A
Gemm takes part as the product and sum that it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Attributes
from eqsat.rewrite import PROJECTION, Apply, GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.alignment import FLOATS, spread

SOURCE = "block matrices; TVM CombineParallelDense and pull request 14446"

UNARY = (
    "Abs Ceil Celu Cos Elu Erf Exp Floor Gelu HardSigmoid HardSwish LeakyRelu Log Mish Neg Reciprocal Relu Round Selu "
    "Sigmoid Sign Sin Softplus Softsign Sqrt Swish Tanh ThresholdedRelu"
).split()
"""Functions of single elements, one input and one output."""

Branch = tuple[Ref, Ref, Ref]
"""Left operand, matrix product, right operand."""


# --- products ------------------------------------------------------------------------------------------------------------


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, family="E19")
def merge_matmuls_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(x @ w1, x @ w2, ...) == Split(x @ Concat(w1, w2, ...))`` along the last axis, for any number of columns each.

    The right operands agree in all extents but the last. Left out are vectors, products of which only a scaled form is used
    that is itself a product of ``x``, and operands computed from another product of the group.
    """
    products = _Products(view)
    for group in products.groups():
        if any(not products.is_cut(x, node) for x, node, _ in group):
            yield from _merged(group)


def _merged(group: Sequence[Branch]) -> Iterator[Merge]:
    x = group[0][0]
    weights = tuple(w for _, _, w in group)
    joined = apply("Concat", *weights, axis=weights[0].rank - 1)
    split = split_last(apply("MatMul", x, joined), group[0][1].rank, [int(w.shape[-1]) for w in weights])
    for index, (_, node, _) in enumerate(group):
        yield node, split.output(index)


def split_last(value: Term, rank: int, sizes: Sequence[int]) -> Apply:
    """``value`` of ``rank`` axes, cut along its last axis."""
    return apply("Split", value, literal(np.array(sizes, np.int64)), outputs=len(sizes), axis=rank - 1)


class _Products:
    """The matrix products in the e-graph, by left operand."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        self._of: dict[int, dict[int, Branch]] = {}
        for node, inputs in view.nodes("MatMul"):
            x, w = inputs[0], inputs[1]
            if x is not None and w is not None and _is_candidate(x, w, node):
                self._of.setdefault(x.handle, {}).setdefault(node.handle, (x, node, w))
        self._sums: dict[int, set[int]] = {}
        for node, inputs in view.nodes("Add"):
            self._sums.setdefault(node.handle, set()).update(i.handle for i in inputs if i is not None)
        self._made_from: dict[int, set[int]] = {}
        for op in ("Mul", "Div", "Transpose", "Reshape", "Concat"):
            for node, inputs in view.nodes(op):
                operands = inputs if op == "Concat" else [i for i in inputs if i is not None and _same_size(i, node)]
                self._made_from.setdefault(node.handle, set()).update(i.handle for i in operands if i is not None)

    def groups(self) -> Iterator[list[Branch]]:
        """Branches that can be one product, oldest first."""
        for handle in sorted(self._of):
            by_shape: dict[tuple[Any, ...], list[Branch]] = {}
            for branch in self._distinct(self._of[handle]):
                by_shape.setdefault((branch[2].dtype, *branch[2].shape[:-1]), []).append(branch)
            for group in by_shape.values():
                independent = self._independent(group)
                if len(independent) > 1:
                    yield independent

    def is_cut(self, x: Ref, node: Ref) -> bool:
        """Whether the product is already cut from a wider product of ``x``."""
        return any(wide in self._of[x.handle] for wide in self._cut_from.get(node.handle, ()))

    @cached_property
    def _cut_from(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for split, inputs in self._view.nodes("Split"):
            for op, part, _ in self._view.users(split):
                if op == PROJECTION and inputs[0] is not None:
                    found.setdefault(part.handle, set()).add(inputs[0].handle)
        return found

    def _distinct(self, branches: dict[int, Branch]) -> Iterator[Branch]:
        """The branches, one for each weight: not also a scaled form of it, nor the wide product it is part of."""
        taken: set[int] = set()
        for branch in branches.values():
            if not self._is_superseded(branches, branch):
                origins = self._origins(branch[2].handle)
                if not origins & taken:
                    taken |= origins
                    yield branch

    def _origins(self, weight: int) -> set[int]:
        """The values that ``weight`` is a scaled, rearranged or joined form of, itself among them."""
        found = {weight}
        waiting = [weight]
        while waiting:
            new = self._made_from.get(waiting.pop(), set()) - found
            found |= new
            waiting.extend(new)
        return found

    def _is_superseded(self, branches: dict[int, Branch], branch: Branch) -> bool:
        """Whether every reader of the product, or of its sum with a bias, can use a scaled form of the product instead."""
        _, node, weight = branch
        forms = {h for h, (_, _, w) in branches.items() if h != node.handle and weight.handle in self._origins(w.handle)}

        def elsewhere(op: str, reader: Ref) -> bool:
            if reader.handle in forms:
                return True
            return op == "Add" and self._all_readers(reader, lambda _, r: bool(forms & self._sums.get(r.handle, set())))

        return bool(forms) and self._all_readers(node, elsewhere)

    def _all_readers(self, value: Ref, holds: Callable[[str, Ref], bool]) -> bool:
        readers = [(op, reader) for op, reader, _ in self._view.users(value)]
        return bool(readers) and all(holds(op, reader) for op, reader in readers)

    def _independent(self, group: list[Branch]) -> list[Branch]:
        """The group without the right operands that are computed from one of its products."""
        computed = {w.handle for _, _, w in group if not w.is_constant}
        if not computed or len(group) < 2:
            return group
        reached = reachable(self._view, [node for _, node, _ in group], computed)
        return [branch for branch in group if branch[2].handle not in reached]


def _same_size(a: Ref, b: Ref) -> bool:
    return a.type.is_static and b.type.is_static and a.type.size == b.type.size


def _is_candidate(x: Ref, w: Ref, node: Ref) -> bool:
    try:
        matrix = x.rank >= 2 and w.rank >= 2
        return matrix and x.dtype in FLOATS and isinstance(w.shape[-1], int) and w.shape[-1] > 0 and not node.is_constant
    except Unmet:
        return False


def reachable(view: GroupView, sources: Sequence[Ref], targets: set[int]) -> set[int]:
    """The e-classes among ``targets`` that are computed from one of ``sources`` by some spelling."""
    found: set[int] = set()
    seen = {s.handle for s in sources}
    waiting = list(sources)
    while waiting and found != targets:
        for _, user, _ in view.users(waiting.pop()):
            if user.handle not in seen:
                seen.add(user.handle)
                waiting.append(user)
                if user.handle in targets:
                    found.add(user.handle)
    return found


# --- what follows every part alike ----------------------------------------------------------------------------------------


Parts = tuple[Ref, list[int], list[Ref], int]
"""Value that is cut, extents of the parts, the parts in order, axis counted from the front."""


def _cuts(view: GroupView) -> Iterator[Parts]:
    """Every Split whose sizes are known and whose parts all exist."""
    for split, inputs in view.nodes("Split"):
        value = inputs[0]
        sizes = inputs[1] if len(inputs) > 1 else None
        if value is None or sizes is None:
            continue
        by_index: dict[int, Ref] = {}
        for op, user, _ in view.users(split):
            if op == PROJECTION:
                by_index[int(user.attr("index"))] = user
        try:
            extents = [int(n) for n in sizes.value.reshape(-1)]
            axis = split.attr("axis", 0) % value.rank
        except Unmet:
            continue
        if len(by_index) == len(extents) > 1:
            yield value, extents, [by_index[i] for i in range(len(extents))], axis


@group_rule(exactness=Exactness.EXACT, source="a function of single elements does not see its neighbours", family="E19")
def merge_activations_of_one_split(view: GroupView) -> Iterator[Merge]:
    """``(f(p1), f(p2), ...) == Split(f(v))`` where ``(p1, p2, ...) == Split(v)``, for one function of single elements."""
    for value, sizes, parts, axis in _cuts(view):
        readers = [_unary_readers(view, part) for part in parts]
        for key in readers[0]:
            op, attributes = key
            if all(key in found for found in readers):
                inner = Apply(op, (value,), attributes)
                split = apply("Split", inner, literal(np.array(sizes, np.int64)), outputs=len(sizes), axis=axis)
                for index, found in enumerate(readers):
                    yield found[key], split.output(index)


def _unary_readers(view: GroupView, part: Ref) -> dict[tuple[str, Attributes], Ref]:
    found: dict[tuple[str, Attributes], Ref] = {}
    for op, user, inputs in view.users(part):
        if op in UNARY and len(inputs) == 1:
            found.setdefault((op, user.attributes), user)
    return found


@group_rule(exactness=Exactness.EXACT, source="addition of single elements", family="E19")
def merge_biases_of_one_split(view: GroupView) -> Iterator[Merge]:
    """``(p1 + b1, p2 + b2, ...) == Split(v + Concat(b1, b2, ...))`` where ``(p1, p2, ...) == Split(v)`` on the last axis.

    Each ``b`` is constant and lies along the last axis; a single number is repeated for every column of its part.
    """
    yield from _merge_constants(view, "Add")


@group_rule(exactness=Exactness.EXACT, source="multiplication of single elements", family="E19")
def merge_scales_of_one_split(view: GroupView) -> Iterator[Merge]:
    """``(p1 * s1, p2 * s2, ...) == Split(v * Concat(s1, s2, ...))`` where ``(p1, p2, ...) == Split(v)`` on the last axis.

    Each ``s`` is constant and lies along the last axis; a single number is repeated for every column of its part.
    """
    yield from _merge_constants(view, "Mul")


def _merge_constants(view: GroupView, op: str) -> Iterator[Merge]:
    for value, sizes, parts, axis in _cuts(view):
        if axis != value.rank - 1:
            continue
        found = [_constant_reader(view, op, part, size) for part, size in zip(parts, sizes, strict=True)]
        if any(pair is None for pair in found):
            continue
        pairs = [pair for pair in found if pair is not None]
        vectors = [spread(operand, size) for (_, operand), size in zip(pairs, sizes, strict=True)]
        split = split_last(apply(op, value, apply("Concat", *vectors, axis=0)), value.rank, sizes)
        for index, (reader, _) in enumerate(pairs):
            yield reader, split.output(index)


def _constant_reader(view: GroupView, op: str, part: Ref, size: int) -> tuple[Ref, Ref] | None:
    """The oldest ``op`` of ``part`` and a constant along its last axis, with that constant."""
    for name, user, inputs in view.users(part):
        if name != op or len(inputs) != 2:
            continue
        for own, other in (inputs, inputs[::-1]):
            if own is not None and other is not None and own.handle == part.handle and _lies_last(other, part, size):
                return user, other
    return None


def _lies_last(operand: Ref, part: Ref, size: int) -> bool:
    """Whether ``operand`` is constant, has one element or ``size`` along the last axis, and does not enlarge ``part``."""
    if not operand.is_constant or not operand.type.is_static or operand.rank > part.rank:
        return False
    extents = operand.static_shape
    return math.prod(extents[:-1]) == 1 and math.prod(extents) in (1, size)

