"""Which rules prove that a selected program equals the original one.

Every union has a rule, or follows by congruence from unions below. A proof that two e-nodes of one class are equal is a path
of unions and congruences between them; the rules on it are what a user must trust.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.patterns import ABSENT_INPUT


class Explainer:
    """Answers questions about one saturated e-graph."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._unions: dict[int, list[tuple[int, str]]] = {}
        for union in egraph.unions:
            self._unions.setdefault(union.left, []).append((union.right, union.rule))
            self._unions.setdefault(union.right, []).append((union.left, union.rule))
        self._groups: dict[int, dict[tuple[object, ...], list[int]]] = {}
        self._proved: dict[tuple[int, int], frozenset[str]] = {}

    def rules_between(self, left: int, right: int) -> frozenset[str]:
        """Rules on a shortest proof that the e-nodes ``left`` and ``right`` of one class are equal."""
        if left == right:
            return frozenset()
        key = (left, right) if left < right else (right, left)
        found = self._proved.get(key)
        if found is None:
            self._proved[key] = frozenset()  # a cycle of congruences proves nothing more than its entry
            found = self._proved[key] = frozenset(self._search(left, right))
        return found

    def _search(self, left: int, right: int) -> set[str]:
        came: dict[int, tuple[int, str | None]] = {left: (left, None)}
        queue = deque([left])
        while queue and right not in came:
            here = queue.popleft()
            for there, rule in self._unions.get(here, ()):
                if there not in came:
                    came[there] = (here, rule)
                    queue.append(there)
            for there in self._congruent(here):
                if there not in came:
                    came[there] = (here, None)
                    queue.append(there)
        assert right in came, "no proof between two e-nodes of one class"
        rules: set[str] = set()
        here = right
        while here != left:
            before, rule = came[here]
            if rule is not None:
                rules.add(rule)
            else:
                nodes = self._egraph.nodes
                for a, b in zip(nodes[before].children, nodes[here].children, strict=True):
                    rules |= self.rules_between(a, b)
            here = before
        return rules

    def _congruent(self, handle: int) -> Iterable[int]:
        cls = self._egraph.find(handle)
        groups = self._groups.get(cls)
        if groups is None:
            groups = self._groups[cls] = {}
            for member in self._egraph.members(cls):
                groups.setdefault(self._signature(member), []).append(member)
        return groups[self._signature(handle)]

    def _signature(self, handle: int) -> tuple[object, ...]:
        node = self._egraph.nodes[handle]
        return (node.op, node.domain, node.attribute_number, node.outputs, *self._egraph.canonical_children(handle))

    def original_of(self, handle: int) -> int | None:
        """The oldest e-node of the class that the original program contains."""
        nodes = self._egraph.nodes
        return next((m for m in self._egraph.members(handle) if not nodes[m].rule), None)

    def rules_of(self, chosen: int) -> frozenset[str]:
        """Rules by which the e-node ``chosen``, on the original's inputs, gives the original's value of its class."""
        node = self._egraph.nodes[chosen]
        rules: set[str] = {node.rule} if node.rule else set()
        original = self.original_of(chosen)
        if original is not None:
            rules |= self.rules_between(original, chosen)
        for child in node.children:
            if child == ABSENT_INPUT:
                continue
            original = self.original_of(child)
            if original is not None:
                rules |= self.rules_between(original, child)
        return frozenset(rules)
