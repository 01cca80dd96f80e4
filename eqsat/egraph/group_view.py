"""The e-graph as group rules see it, and what one of them has looked at."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from eqsat.egraph.changes import Shown
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import CONSTANT, INPUT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.rewrite import Condition, GroupView, Match, Ref, Unmet, unmet

Inputs = tuple[Ref | None, ...]
T = TypeVar("T")


def _match(names: Mapping[str, Any]) -> Match:
    root: Any = names.get("root")  # conditions of a group ask for what they name, and mostly for no value of the whole
    return Match(names, root)


class EGraphView:
    """The e-graph as it was when last refreshed (`eqsat.rewrite.GroupView`).

    Of e-nodes with the same operator, attributes and classes of inputs only the oldest is shown. What was shown is kept until it
    changes: rules look at the same e-nodes again and again.
    """

    def __init__(self, egraph: EGraph) -> None:
        self.egraph = egraph
        self._by_op: dict[str, list[int]] = {}
        self._nodes: dict[int, tuple[Ref, Inputs]] = {}
        self._of_op: dict[str, list[tuple[Ref, Inputs]]] = {}
        self._spellings: dict[int, list[tuple[str, Inputs]]] = {}
        self._users: dict[int, list[tuple[str, Ref, Inputs]]] = {}
        self._notes: dict[Hashable, dict[Any, Any]] = {}
        self.found: dict[Callable[[GroupView], Any], tuple[Shown, Any]] = {}
        """What rules share, and what it was read from."""
        self._end = self._read = 0
        self.refresh()

    def refresh(self) -> None:
        """Takes in what has changed in the e-graph."""
        egraph, find = self.egraph, self.egraph.find
        new = range(self._end, len(egraph.nodes))
        for handle in new:
            node = egraph.nodes[handle]
            if (node.opaque is None or node.attributes.bodies) and node.key not in (CONSTANT, INPUT):
                self._by_op.setdefault(node.key, []).append(handle)
        touched = egraph.changes.touched
        for handle in (*new, *touched[self._read :]):
            node = egraph.nodes[handle]
            self._nodes.pop(handle, None)
            self._of_op.pop(node.key, None)
            self._spellings.pop(find(handle), None)
            for child in node.children:
                self._users.pop(find(child), None)
        self._end, self._read = len(egraph.nodes), len(touched)

    def nodes(self, op: str) -> Iterator[tuple[Ref, Inputs]]:
        found = self._of_op.get(op)
        if found is None:
            duplicates = self.egraph.duplicates
            found = self._of_op[op] = [self._node(h) for h in self._by_op.get(op, ()) if h not in duplicates]
        return iter(found)

    def spellings(self, ref: Ref) -> Iterator[tuple[str, Inputs]]:
        cls = self.egraph.find(ref.handle)
        found = self._spellings.get(cls)
        if found is None:
            nodes = self._shown(self.egraph.members(cls))
            found = self._spellings[cls] = [(key, inputs) for key, _, inputs in nodes]
        return iter(found)

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, Inputs]]:
        cls = self.egraph.find(ref.handle)
        found = self._users.get(cls)
        if found is None:
            found = self._users[cls] = self._shown(self.egraph.uses(cls))
        return iter(found)

    def _shown(self, handles: Iterable[int]) -> list[tuple[str, Ref, Inputs]]:
        nodes, duplicates = self.egraph.nodes, self.egraph.duplicates
        return [(nodes[h].key, *self._node(h)) for h in handles if h not in duplicates and nodes[h].opaque is None]

    def notes(self, subject: Hashable) -> dict[Any, Any]:
        return self._notes.setdefault(subject, {})

    def shared(self, find: Callable[[GroupView], T]) -> T:
        return find(self)

    def meets(self, conditions: Sequence[Condition], **names: Any) -> bool:
        return unmet(conditions, _match(names)) is None

    def missed(self, ref: Ref, reason: Unmet) -> None:
        """Nobody listens: see `eqsat.egraph.unfused`."""

    def _node(self, handle: int) -> tuple[Ref, Inputs]:
        found = self._nodes.get(handle)
        if found is None:
            egraph = self.egraph
            inputs = tuple([None if c == ABSENT_INPUT else Ref(c, egraph) for c in egraph.canonical_children(handle)])
            ref = egraph.ref(handle, egraph.nodes[handle].attributes)
            ref.enode = handle
            found = self._nodes[handle] = (ref, inputs)
        return found


class Look:
    """A view of the e-graph for one rule: it knows which conditions the rule has, and remembers what it showed."""

    def __init__(self, view: EGraphView, conditions: Sequence[Condition], count: Callable[[Exception], None]) -> None:
        self._view = view
        self._conditions = conditions
        self._count = count
        self._asked: dict[Callable[[GroupView], Any], Any] = {}  # the e-graph stays as it is while a rule looks at it
        self.showed = Shown(view.egraph.changes.tick())

    def notes(self, subject: Hashable) -> dict[Any, Any]:
        return self._view.notes(subject)

    def shared(self, find: Callable[[GroupView], T]) -> T:
        if find in self._asked:
            return self._asked[find]
        known = self._view.found.get(find)
        if known is None or self._view.egraph.changes.since(known[0]):
            look = Look(self._view, (), self._count)
            known = self._view.found[find] = look.showed, find(look)
        showed, found = known
        self.showed.add(showed)
        self._asked[find] = found
        return found

    def nodes(self, op: str) -> Iterator[tuple[Ref, Inputs]]:
        self.showed.operators.add(op)
        return self._view.nodes(op)

    def spellings(self, ref: Ref) -> Iterator[tuple[str, Inputs]]:
        self.showed.spelled.add(ref.handle)
        return self._view.spellings(ref)

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, Inputs]]:
        self.showed.read.add(ref.handle)
        return self._view.users(ref)

    def meets(self, conditions: Sequence[Condition], **names: Any) -> bool:
        own = [c for c in conditions if c in self._conditions]
        reason = unmet(own, _match(names))
        if reason is not None:
            self._count(reason)
        return reason is None

    def missed(self, ref: Ref, reason: Unmet) -> None:
        """Nobody listens: see `eqsat.egraph.unfused`."""

    def shown(self, cls: int, handles: Iterable[int]) -> Iterator[int]:
        """Those of ``handles``, e-nodes of a class, that the rule has seen."""
        egraph = self._view.egraph
        whole: bool | None = None  # whether it has asked for all of them
        for handle in handles:
            node = egraph.nodes[handle]
            if node.key in self.showed.operators or (node.opaque is None and self._reads(node.children)):
                yield handle
                continue
            if node.opaque is not None:
                continue
            if whole is None:
                whole = not self.showed.spelled.isdisjoint(egraph.members(cls))
            if whole:
                yield handle

    def _reads(self, children: tuple[int, ...]) -> bool:
        find = self._view.egraph.find
        read = self.showed.read
        return bool(read) and any(c in read or find(c) in read for c in children)
