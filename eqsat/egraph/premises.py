"""What the merge of a group rule relied on: the e-nodes between the value that it merged and those that the new term reads.

A group rule is a program: it collects e-nodes and joins them by class, and nobody sees which of them made a match. But what it
says is that an e-node equals a term. As the value of the e-node depends on what lies between it and the leaves of the term, the
equation rests on e-nodes there that the rule was shown. They are the premises: each child of such an e-node, beside the e-node
below it that the rule saw, or beside the value itself where the term reads it.
"""

from collections.abc import Iterator

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import Pairs
from eqsat.egraph.group_view import Look
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.rewrite import Apply, Ref, Term

_DEPTH = 32
"""How many operators above each other are followed: more than any rule reads, regions of elementwise operators aside."""

_UNCLOSED_DEPTH = 4
"""The same where the value also depends on what neither the term reads nor the rule was shown."""


class Leaves:
    """The values that a term reads, by the handles that a rule knew them by.

    ``read``: of those that the rule took for e-nodes, not only for values, the handle and the e-node. ``handles``: all of them,
    and what such e-nodes read. The outputs of an operator have the same leaves, collected once, however many there are.
    """

    def __init__(self, egraph: EGraph, term: Term) -> None:
        refs = dict.fromkeys(_leaves(term, set()))
        self.read = [(ref.handle, ref.enode) for ref in refs if ref.enode >= 0]
        self.handles = {ref.handle for ref in refs}
        self.handles.update(child for _, enode in self.read for child in egraph.nodes[enode].children)
        self.handles.discard(ABSENT_INPUT)


def premises_of(egraph: EGraph, look: Look, merged: int, leaves: Leaves) -> Pairs:
    """Pairs of handles, equal now, on which it rests that ``merged`` equals a term of these ``leaves``."""
    return _Search(egraph, look, leaves).run(merged)


class _Search:
    def __init__(self, egraph: EGraph, look: Look, leaves: Leaves) -> None:
        self._egraph = egraph
        self._look = look
        self._leaves = leaves.handles
        self._pairs: dict[tuple[int, int], None] = {}
        self._ends: dict[int, bool] = {ABSENT_INPUT: True}  # by class, whether it has a leaf of the term
        self._seen: dict[int, list[int]] = {}  # by class, the e-nodes that the rule saw
        self._closed: set[int] = set()  # of these, those that depend on leaves of the term and constants alone
        self._ready: dict[int, bool] = {}  # by class, whether it is such a leaf, constant, or has a closed e-node
        self._missing: dict[int, int] = {}  # by e-node, how many classes that it reads are not ready
        self._waiting: dict[int, list[int]] = {}  # by class, the e-nodes that wait for it
        self._children: dict[int, tuple[int, ...]] = {}
        for handle, enode in leaves.read:
            self._add(handle, enode)
            for child in egraph.nodes[enode].children:
                self._add(child, egraph.find(child))

    def run(self, merged: int) -> Pairs:
        depth = self._read_down_to_the_leaves(merged)
        waiting, visited = [(merged, 0)], {merged}
        while waiting:
            handle, level = waiting.pop()
            for child in self._egraph.nodes[handle].children:
                cls = self._egraph.find(child)
                seen = self._seen.get(cls, ()) if level < depth and not self._is_end(cls) else ()
                below = [h for h in seen if h in self._closed] or seen
                for found in below or (cls,):
                    self._add(child, found)
                waiting.extend((h, level + 1) for h in below if h not in visited)
                visited.update(below)
        return tuple(self._pairs)

    def _add(self, left: int, right: int) -> None:
        if left != right:
            self._pairs[left, right] = None

    def _read_down_to_the_leaves(self, merged: int) -> int:
        """Notes what the rule saw, level by level, until ``merged`` is computed from leaves alone; how many levels count."""
        layer = [merged]
        for _ in range(_DEPTH):
            if self._closes(merged):
                return _DEPTH
            below: list[int] = []
            for handle in layer:
                for cls in self._children_of(handle):
                    if cls not in self._seen and not self._is_end(cls):
                        self._seen[cls] = self._shown(cls)
                        below += self._seen[cls]
            for handle in below:
                self._open(handle)
            layer = below
        return _DEPTH if self._closes(merged) else _UNCLOSED_DEPTH

    def _open(self, handle: int) -> None:
        """Takes in an e-node; closes it, and those that waited for it, where all that it reads is ready."""
        missing = {cls for cls in self._children_of(handle) if not self._is_ready(cls)}
        self._missing[handle] = len(missing)
        for cls in missing:
            self._waiting.setdefault(cls, []).append(handle)
        closing = [] if missing else [handle]
        while closing:
            closed = closing.pop()
            self._closed.add(closed)
            cls = self._egraph.find(closed)
            self._ready[cls] = True
            for reader in self._waiting.pop(cls, ()):
                self._missing[reader] -= 1
                if not self._missing[reader]:
                    closing.append(reader)

    def _closes(self, handle: int) -> bool:
        return all(map(self._is_ready, self._children_of(handle)))

    def _is_ready(self, cls: int) -> bool:
        found = self._ready.get(cls)
        if found is None:
            found = self._ready[cls] = self._is_end(cls) or self._egraph.is_constant(cls)
        return found

    def _is_end(self, cls: int) -> bool:
        found = self._ends.get(cls)
        if found is None:
            egraph, leaves, members = self._egraph, self._leaves, self._egraph.members(cls)
            few = len(leaves) < len(members)
            found = any(egraph.find(h) == cls for h in leaves) if few else not leaves.isdisjoint(members)
            self._ends[cls] = found
        return found

    def _children_of(self, handle: int) -> tuple[int, ...]:
        found = self._children.get(handle)
        if found is None:
            found = self._children[handle] = self._egraph.canonical_children(handle)
        return found

    def _shown(self, cls: int) -> list[int]:
        """E-nodes of a class that the rule saw, each once; of a constant those that lead to a leaf of the term."""
        egraph = self._egraph
        found: dict[tuple[object, ...], int] = {}
        handles = self._above_the_leaves(cls) if egraph.is_constant(cls) else egraph.members(cls)
        for handle in self._look.shown(cls, handles):
            node = egraph.nodes[handle]
            found.setdefault(
                (node.op, node.domain, node.attribute_number, node.outputs, self._children_of(handle)), handle
            )
        return list(found.values())

    def _above_the_leaves(self, cls: int) -> list[int]:
        """E-nodes of a class that read a leaf of the term. A small constant may be spelled, or used, in thousands of places."""
        egraph, members = self._egraph, self._egraph.members(cls)
        if len(self._leaves) < len(members):
            ends = {egraph.find(h) for h in self._leaves}
            if sum(len(egraph.users_of(end)) for end in ends) < len(members):
                return sorted({h for end in ends for h in egraph.users_of(end) if egraph.find(h) == cls})
        return [h for h in members if any(c != ABSENT_INPUT and self._is_end(c) for c in self._children_of(h))]


def _leaves(term: Term, seen: set[int]) -> Iterator[Ref]:
    if isinstance(term, Ref):
        yield term
    elif isinstance(term, Apply) and id(term) not in seen:
        seen.add(id(term))
        for arg in term.args:
            yield from _leaves(arg, seen)
