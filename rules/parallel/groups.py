"""Which products of one value may be one: none is a scaled form of another, or computed from one."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from eqsat.ir.operator import traits_of
from eqsat.ir.traits import Traits
from eqsat.rewrite import GroupView, Ref
from eqsat.rules.terms import complete_nodes, outputs_of


class Branch(NamedTuple):
    """A product, or convolution, of a value."""

    x: Ref
    node: Ref
    w: Ref
    bias: Ref | None = None
    inputs: Sequence[Ref | None] = ()


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
        for branch in branches:
            self._of.setdefault(branch.x.handle, {}).setdefault(branch.node.handle, branch)
        self._made_from: dict[int, dict[int, Ref]] = {}
        self._origins_of: dict[int, set[int]] = {}

    def groups(self, key: Callable[[Branch], Hashable]) -> Iterator[list[Branch]]:
        """Branches that can be one product, those with equal ``key``, oldest first; ``None`` is no key."""
        for handle in sorted(h for h, branches in self._of.items() if len(branches) > 1):
            alike: dict[Hashable, list[Branch]] = {}
            for branch in self._distinct(self._of[handle]):
                found = key(branch)
                if found is not None:
                    alike.setdefault(found, []).append(branch)
            for group in alike.values():
                independent = self._independent(group)
                if len(independent) > 1:
                    yield independent

    def read_alike(self, group: Sequence[Branch]) -> Iterator[list[Branch]]:
        """Those of a group whose products, or sums of them with a bias, the same functions of one value read, if others' do
        not: such a function follows only a product of them alone. So do those that are left. None where one product, cut for
        each function, is as few operators."""
        alike: dict[frozenset[str], list[Branch]] = {}
        for branch in group:
            alike.setdefault(frozenset(self._functions_of(branch.node)), []).append(branch)
        apart = sum(1 + (len(part) > 1) + len(functions) for functions, part in alike.items())
        together = 2 + sum(len(functions) * len(part) for functions, part in alike.items())
        if apart < together:
            yield from (part for part in alike.values() if 1 < len(part) < len(group))

    def _functions_of(self, product: Ref) -> Iterator[str]:
        sums = [
            y
            for op, y, xs in self._view.users(product)
            if op == "Add" and any(x is not None and x.is_constant for x in xs)
        ]
        for op, *_ in chain.from_iterable(map(self._view.users, (product, *sums))):
            if traits_of(op).operands == 1 and not traits_of(op).converts:
                yield op

    def is_cut(self, x: Ref, node: Ref) -> bool:
        """Whether the product is already cut from a wider product of ``x``."""
        return any(wide in self._of[x.handle] for wide in self._cut_from.get(node.handle, ()))

    @cached_property
    def _cut_from(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for node, (value, *_) in complete_nodes(self._view, "Split"):
            for part in outputs_of(self._view, node).values():
                found.setdefault(part.handle, set()).add(value.handle)
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
                origins = self._origins(branch.w)
                if not origins & taken:
                    taken |= origins
                    yield branch

    def _origins(self, weight: Ref) -> set[int]:
        """The values that ``weight`` is a scaled, rearranged or joined form of, itself among them."""
        if weight.handle not in self._origins_of:
            self._origins_of[weight.handle] = set(_backwards(weight, lambda value: self._operands(value).values()))
        return self._origins_of[weight.handle]

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
        """Whether every reader of the product, or of its sum with a bias, can use a scaled form of the product instead. What
        moves it and brings it back, as Squeeze of Unsqueeze does, is none."""
        node, weight = branch.node, branch.w
        forms = {h for h, b in branches.items() if h != node.handle and weight.handle in self._origins(b.w)}
        return bool(forms) and self._is_read_elsewhere(node, forms, {node.handle})

    def _is_read_elsewhere(self, value: Ref, forms: set[int], seen: set[int]) -> bool:
        """Whether every reader of a value, moved or not, is one of ``forms``, or its sum with a bias that of one of them."""

        def holds(op: str, reader: Ref) -> bool:
            if reader.handle in forms or reader.handle in seen:
                return True
            if traits_of(op).moves:
                seen.add(reader.handle)
                return self._is_read_elsewhere(reader, forms, seen)
            return op == "Add" and self._all_readers(reader, lambda _, r: bool(forms & self._sums.get(r.handle, set())))

        return self._all_readers(value, holds)

    def _all_readers(self, value: Ref, holds: Callable[[str, Ref], bool]) -> bool:
        readers = [(op, reader) for op, reader, _ in self._view.users(value)]
        return bool(readers) and all(holds(op, reader) for op, reader in readers)

    def _independent(self, group: list[Branch]) -> list[Branch]:
        """The group without the right operands that are computed from one of its products."""
        computed = [branch.w for branch in group if not branch.w.is_constant]
        if not computed or len(group) < 2:
            return group
        reached = computed_from(self._view, computed, {branch.node.handle for branch in group})
        return [branch for branch in group if branch.w.handle not in reached]


def _same_size(a: Ref, b: Ref) -> bool:
    return a.type.is_static and b.type.is_static and a.type.size == b.type.size


def computed_from(view: GroupView, targets: Sequence[Ref], sources: set[int]) -> set[int]:
    """The e-classes among ``targets`` that some spelling computes from one of ``sources``.

    The search runs backwards: right operands are mostly constants in disguise, with few operands of their own.
    """

    def operands(value: Ref) -> Iterator[Ref]:
        return (x for _, inputs in view.spellings(value) for x in inputs if x is not None)

    return {target.handle for target in targets if not sources.isdisjoint(_backwards(target, operands))}


def _backwards(value: Ref, operands: Callable[[Ref], Iterable[Ref]]) -> Iterator[int]:
    """The e-class of a value, and those of its operands, of theirs, and so on."""
    seen = {value.handle}
    waiting = [value]
    while waiting:
        yield (found := waiting.pop()).handle
        for operand in operands(found):
            if operand.handle not in seen:
                seen.add(operand.handle)
                waiting.append(operand)
