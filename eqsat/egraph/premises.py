"""What the merge of a group rule relied on: the e-nodes between the value that it merged and those that the new term reads.

A group rule is a program: it collects e-nodes and joins them by class, and nobody sees which of them made a match. But what it
says is that an e-node equals a term. As the value of the e-node depends on what lies between it and the leaves of the term, the
equation rests on e-nodes there that the rule was shown. They are the premises: each child of such an e-node, beside the e-node
below it that the rule saw, or beside the value itself where the term reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.group_view import Look
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.rewrite import Apply, Ref, Term

Pairs = tuple[tuple[int, int], ...]

_DEPTH = 32
"""How many operators above each other are followed: more than any rule reads, regions of elementwise operators aside."""

_UNCLOSED_DEPTH = 4
"""The same where the value also depends on what neither the term reads nor the rule was shown."""


def premises_of(egraph: EGraph, look: Look, merged: int, term: Term) -> Pairs:
    """Pairs of handles, equal now, on which it rests that ``merged`` equals ``term``."""
    return _Search(egraph, look, term).run(merged)


class _Search:
    def __init__(self, egraph: EGraph, look: Look, term: Term) -> None:
        self._egraph = egraph
        self._look = look
        self._pairs: dict[tuple[int, int], None] = {}
        self._ends: set[int] = {ABSENT_INPUT}
        self._seen: dict[int, list[int]] = {}  # by class, the e-nodes that the rule saw
        self._closed: set[int] = set()  # of these, those that depend on leaves of the term and constants alone
        self._ready: dict[int, bool] = {}  # by class, whether it is such a leaf, constant, or has a closed e-node
        self._missing: dict[int, int] = {}  # by e-node, how many classes that it reads are not ready
        self._waiting: dict[int, list[int]] = {}  # by class, the e-nodes that wait for it
        self._children: dict[int, tuple[int, ...]] = {}
        for ref in dict.fromkeys(_leaves(term, set())):
            self._ends.add(egraph.find(ref.handle))
            if ref.enode >= 0:  # the rule read the e-node, not only its value
                self._add(ref.handle, ref.enode)
                for child in egraph.nodes[ref.enode].children:
                    self._ends.add(egraph.find(child))
                    self._add(child, egraph.find(child))

    def run(self, merged: int) -> Pairs:
        depth = self._read_down_to_the_leaves(merged)
        waiting, visited = [(merged, 0)], {merged}
        while waiting:
            handle, level = waiting.pop()
            for child in self._egraph.nodes[handle].children:
                cls = self._egraph.find(child)
                seen = self._seen.get(cls, ()) if cls not in self._ends and level < depth else ()
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
                    if cls not in self._seen and cls not in self._ends:
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
            found = self._ready[cls] = cls in self._ends or self._egraph.is_constant(cls)
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
        for handle in self._look.shown(cls):
            node = egraph.nodes[handle]
            children = self._children_of(handle)
            if not egraph.is_constant(cls) or not self._ends.isdisjoint(c for c in children if c != ABSENT_INPUT):
                found.setdefault((node.op, node.domain, node.attribute_number, node.outputs, children), handle)
        return list(found.values())


def _leaves(term: Term, seen: set[int]) -> Iterator[Ref]:
    if isinstance(term, Ref):
        yield term
    elif isinstance(term, Apply) and id(term) not in seen:
        seen.add(id(term))
        for arg in term.args:
            yield from _leaves(arg, seen)
