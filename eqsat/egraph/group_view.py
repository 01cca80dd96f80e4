"""The e-graph as group rules see it, and what one of them has looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eqsat.egraph.egraph import CONSTANT, INPUT, EGraph
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.rewrite import Condition, GroupView, Match, Ref, Unmet, unmet

Inputs = tuple[Ref | None, ...]


def view_of(egraph: EGraph) -> GroupView:
    """The e-graph as it is now, as group rules see it."""
    return EGraphView(egraph)


def _match(names: Mapping[str, Any]) -> Match:
    root: Any = names.get("root")  # conditions of a group ask for what they name, and mostly for no value of the whole
    return Match(names, root)


class EGraphView:
    """The e-graph as it is now (`eqsat.rewrite.GroupView`)."""

    def __init__(self, egraph: EGraph) -> None:
        self.egraph = egraph
        self._by_op: dict[str, list[int]] = {}
        self._nodes: dict[int, tuple[Ref, Inputs]] = {}
        self._refs: dict[int, Ref] = {}
        seen: set[tuple[object, ...]] = set()
        for handle, node in enumerate(egraph.nodes):
            if node.opaque is not None or node.key in (CONSTANT, INPUT):
                continue
            key = (node.key, node.attribute_number, node.outputs, egraph.canonical_children(handle))
            if key not in seen:
                seen.add(key)
                self._by_op.setdefault(node.key, []).append(handle)

    def nodes(self, op: str) -> Iterator[tuple[Ref, Inputs]]:
        for handle in self._by_op.get(op, ()):
            yield self._node(handle)

    def spellings(self, ref: Ref) -> Iterator[tuple[str, Inputs]]:
        for handle in self.egraph.members(ref.handle):
            node = self.egraph.nodes[handle]
            if node.opaque is None:
                yield (node.key, self._node(handle)[1])

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, Inputs]]:
        for handle in self.egraph.uses(ref.handle):
            node = self.egraph.nodes[handle]
            if node.opaque is None:
                yield (node.key, *self._node(handle))

    def meets(self, conditions: Sequence[Condition], **names: Any) -> bool:
        return unmet(conditions, _match(names)) is None

    def missed(self, structure: str, ref: Ref, reason: Unmet) -> None:
        """Nobody listens: see `Look`."""

    def _node(self, handle: int) -> tuple[Ref, Inputs]:
        found = self._nodes.get(handle)
        if found is None:
            egraph = self.egraph
            inputs = tuple(map(self._input, egraph.canonical_children(handle)))
            ref = egraph.ref(handle, egraph.nodes[handle].attributes)
            ref.enode = handle
            found = self._nodes[handle] = (ref, inputs)
        return found

    def _input(self, cls: int) -> Ref | None:
        if cls == ABSENT_INPUT:
            return None
        found = self._refs.get(cls)
        if found is None:
            found = self._refs[cls] = self.egraph.ref(cls)
        return found


class Look:
    """A view of the e-graph for one rule: it knows which conditions the rule has, and remembers what it showed."""

    def __init__(self, view: EGraphView, conditions: Sequence[Condition], count: Callable[[Unmet], None]) -> None:
        self._view = view
        self._conditions = conditions
        self._count = count
        self._ops: set[str] = set()
        self._spelled: set[int] = set()
        self._read: set[int] = set()
        self.misses: dict[tuple[str, int], str] = {}

    def nodes(self, op: str) -> Iterator[tuple[Ref, Inputs]]:
        self._ops.add(op)
        return self._view.nodes(op)

    def spellings(self, ref: Ref) -> Iterator[tuple[str, Inputs]]:
        self._spelled.add(ref.handle)
        return self._view.spellings(ref)

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, Inputs]]:
        self._read.add(ref.handle)
        return self._view.users(ref)

    def meets(self, conditions: Sequence[Condition], **names: Any) -> bool:
        own = [c for c in conditions if c in self._conditions]
        reason = unmet(own, _match(names))
        if reason is not None:
            self._count(reason)
        return reason is None

    def missed(self, structure: str, ref: Ref, reason: Unmet) -> None:
        self.misses[structure, ref.handle] = str(reason)

    def shown(self, cls: int) -> Iterator[int]:
        """The e-nodes of a class that the rule has seen."""
        egraph = self._view.egraph
        whole = not self._spelled.isdisjoint(egraph.members(cls))
        for handle in egraph.members(cls):
            node = egraph.nodes[handle]
            if node.opaque is None and (whole or node.key in self._ops or self._reads(node.children)):
                yield handle

    def _reads(self, children: tuple[int, ...]) -> bool:
        find = self._view.egraph.find
        return bool(self._read) and any(c in self._read or find(c) in self._read for c in children)
