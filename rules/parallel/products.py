"""Products of one left operand become one product: N-way, never pair by pair.

``x @ w1, x @ w2, ...`` is the product of ``x`` with the right operands side by side, cut by a Split. What follows every part
alike moves before the Split (`eqsat.rules.parallel.epilogues`). A Gemm takes part as the product and sum that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operator import traits_of
from eqsat.ir.traits import Traits
from eqsat.rewrite import PROJECTION, Apply, GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.linear.alignment import FLOATS
from eqsat.samples import Drawing, Sampler, fixed

SOURCE = "block matrices; TVM CombineParallelDense and pull request 14446"

Branch = tuple[Ref, Ref, Ref]
"""Left operand, matrix product, right operand."""


def _sample(d: Sampler) -> Any:
    """Products of one input by matrices, vectors, batches and other inputs' weights; some scaled, biased, or in a chain."""
    drawing = Drawing()
    m, k, batch = d.extents(3, ones=0.2)
    x = drawing.value(d.floats(d.choose(((m, k), (batch, m, k), (k,)))))
    shared = drawing.value(d.floats((k, k)))
    values = []
    for _ in range(d.integer(2, 4)):
        n = d.integer(1, 4)
        shape = d.choose(((k, n), (k, n), (k, n), (batch, k, n), (k,)))
        weight = shared if d.chance(0.15) else drawing.value(d.either(d.floats(shape)))
        values.append(drawing.op("MatMul", x, weight))
        if d.chance(0.2):
            values.append(drawing.op("Mul", values[-1], drawing.value(fixed(d.floats((1,))))))
    if d.chance(0.3):
        square = drawing.op("MatMul", drawing.value(d.floats((k, k))), drawing.value(d.floats((k, 3))))
        values.append(drawing.op("MatMul", x, square))
    return drawing.finish(*values)


@group_rule(exactness=Exactness.ROUNDING, source=SOURCE, sample=_sample)
def merge_matmuls_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(x @ w1, x @ w2, ...) == Split(x @ Concat(w1, w2, ...))`` along the last axis, for any number of columns each.

    The right operands agree in all extents but the last. Left out are vectors, products of which only a scaled form is used
    that is itself a product of ``x``, and operands computed from another product of the group.
    """
    products = Products(view, matmuls(view))
    for group in products.groups(lambda branch: (branch[2].dtype, *branch[2].shape[:-1])):
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


def _resizes(traits: Traits) -> bool:
    """Whether an operator joins values, or fills one up."""
    return traits.moves and len(traits.sources) > 1


def _rearranges(traits: Traits) -> bool:
    """Whether weights may be scaled, moved, joined or filled up by an operator."""
    return traits.moves or (traits.homogeneous and traits.operands == 2)


class Products:
    """The products of two values in the e-graph, by left operand: matrix products, or convolutions of one input."""

    def __init__(self, view: GroupView, branches: Iterable[Branch]) -> None:
        self._view = view
        self._of: dict[int, dict[int, Branch]] = {}
        for x, node, w in branches:
            self._of.setdefault(x.handle, {}).setdefault(node.handle, (x, node, w))
        self._made_from: dict[int, dict[int, Ref]] = {}
        self._origins_of: dict[int, set[int]] = {}

    def groups(self, key: Callable[[Branch], Hashable]) -> Iterator[list[Branch]]:
        """Branches that can be one product, those with equal ``key``, oldest first; ``None`` is no key."""
        for handle in sorted(self._of):
            alike: dict[Hashable, list[Branch]] = {}
            for branch in self._distinct(self._of[handle]):
                found = key(branch)
                if found is not None:
                    alike.setdefault(found, []).append(branch)
            for group in alike.values():
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

    @cached_property
    def _sums(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for node, inputs in self._view.nodes("Add"):
            found.setdefault(node.handle, set()).update(i.handle for i in inputs if i is not None)
        return found

    def _distinct(self, branches: dict[int, Branch]) -> Iterator[Branch]:
        """The branches, one for each weight: not also a scaled form of it, nor the wide product it is part of."""
        taken: set[int] = set()
        for branch in branches.values():
            if not self._is_superseded(branches, branch):
                origins = self._origins(branch[2])
                if not origins & taken:
                    taken |= origins
                    yield branch

    def _origins(self, weight: Ref) -> set[int]:
        """The values that ``weight`` is a scaled, rearranged or joined form of, itself among them."""
        known = self._origins_of.get(weight.handle)
        if known is not None:
            return known
        found = self._origins_of[weight.handle] = {weight.handle}
        waiting = [weight]
        while waiting:
            for handle, operand in self._operands(waiting.pop()).items():
                if handle not in found:
                    found.add(handle)
                    waiting.append(operand)
        return found

    def _operands(self, value: Ref) -> dict[int, Ref]:
        known = self._made_from.get(value.handle)
        if known is None:
            known = self._made_from[value.handle] = {}
            for op, inputs in self._view.spellings(value):
                traits = traits_of(op)
                if _rearranges(traits):
                    resized = _resizes(traits)
                    operands = [i for i in inputs if i is not None and (resized or _same_size(i, value))]
                    known.update((i.handle, i) for i in operands)
        return known

    def _is_superseded(self, branches: dict[int, Branch], branch: Branch) -> bool:
        """Whether every reader of the product, or of its sum with a bias, can use a scaled form of the product instead."""
        _, node, weight = branch
        forms = {h for h, (_, _, w) in branches.items() if h != node.handle and weight.handle in self._origins(w)}

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
        computed = [w for _, _, w in group if not w.is_constant]
        if not computed or len(group) < 2:
            return group
        reached = computed_from(self._view, computed, {node.handle for _, node, _ in group})
        return [branch for branch in group if branch[2].handle not in reached]


def _same_size(a: Ref, b: Ref) -> bool:
    return a.type.is_static and b.type.is_static and a.type.size == b.type.size


def matmuls(view: GroupView) -> Iterator[Branch]:
    """The matrix products that may be merged with others."""
    for node, inputs in view.nodes("MatMul"):
        x, w = inputs[0], inputs[1]
        if x is not None and w is not None and _is_candidate(x, w, node):
            yield x, node, w


def _is_candidate(x: Ref, w: Ref, node: Ref) -> bool:
    """Whether a product of matrices of floats with a known number of columns."""
    try:
        matrix = x.rank >= 2 and w.rank >= 2
        return (
            matrix and x.dtype in FLOATS and isinstance(w.shape[-1], int) and w.shape[-1] > 0 and not node.is_constant
        )
    except Unmet:
        return False


def computed_from(view: GroupView, targets: Sequence[Ref], sources: set[int]) -> set[int]:
    """The e-classes among ``targets`` that some spelling computes from one of ``sources``.

    The search runs backwards: right operands are mostly constants in disguise, with few operands of their own.
    """
    found: set[int] = set()
    for target in targets:
        seen = {target.handle}
        waiting = [target]
        while waiting:
            value = waiting.pop()
            if value.handle in sources:
                found.add(target.handle)
                break
            for _, inputs in view.spellings(value):
                for operand in inputs:
                    if operand is not None and operand.handle not in seen:
                        seen.add(operand.handle)
                        waiting.append(operand)
    return found
