"""Ways that lead nowhere faster: elementwise operators that a bound on bytes need not look at.

Scaling, rounding, clipping and casting are one quantisation, say, in the same e-graph. A class ``r`` that only elementwise
operators compute and read is a *detour* beside class ``x``, of as many elements and no more bytes, if ``x`` does for it
everywhere:

- whatever computes ``r``, elementwise operators compute ``x`` from the same values, unless it is one of them;
- whatever is computed from ``r``, elementwise operators compute from ``x`` and the other values that it is computed from.

None of these operators needs a detour. A program then costs no more, as far as launches and bytes count, if its kernels
compute, hold, write and read ``x`` where they did ``r``: elementwise operators of equal sizes go wherever others do, and may be
computed again. The operators are computed in an order: the first of ``x`` and its detours to be computed is computed from other
values, and from these ``x`` is.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph

_LONGEST = 3
"""Operators in a row that do what one operator of a detour does."""


def without_detours(graph: FusionGraph, target: Target) -> int:
    """Takes operations out of the classes of a graph that only programs with detours have; returns how many."""
    found = _Detours(graph, target)
    for cls in range(len(graph.members)):
        found.beside(cls)
    count = 0
    for cls, members in enumerate(graph.members):
        kept = (
            []
            if cls in found.instead
            else [i for i in members if found.instead.keys().isdisjoint(graph.operations[i].inputs)]
        )
        count += len(members) - len(kept)
        members[:] = kept
    return count


class _Detours:
    """``instead``: each detour found -> the class that does for it."""

    def __init__(self, graph: FusionGraph, target: Target) -> None:
        self.instead: dict[int, int] = {}
        self._graph = graph
        self._needed: set[int] = set()
        self._users = graph.users()
        self._reads = [frozenset(c for c in o.inputs if not graph.scalar[c]) for o in graph.operations]
        stages = [s for t in target.templates for s in t.stages]
        others = frozenset[str]().union(*(s.accepts for s in stages if "elementwise" not in s.accepts))
        recomputed = "elementwise" in target.recompute
        self._light = [
            recomputed
            and "elementwise" in o.labels
            and not (o.is_view or o.has_parts)
            and graph.owner[i] not in self._reads[i]
            for i, o in enumerate(graph.operations)
        ]
        plain = [light and others.isdisjoint(o.labels) for light, o in zip(self._light, graph.operations, strict=True)]
        self._free = [
            bool(members) and cls not in graph.roots and all(plain[i] for i in (*members, *self._users[cls]))
            for cls, members in enumerate(graph.members)
        ]

    def beside(self, cls: int) -> None:
        """Notes the detours beside a class."""
        if cls in self.instead or not self._users[cls]:
            return
        found = self._reached(cls)
        proofs: dict[int, set[int]] = {}
        while found:
            proofs = {r: used for r in found if (used := self._proof(r, cls, found)) is not None}
            if len(proofs) == len(found):
                break
            found = dict.fromkeys(proofs)
        self.instead.update((r, cls) for r in found)
        if found:
            self._needed.update((cls,), *proofs.values())

    def _reached(self, cls: int) -> dict[int, None]:
        """Classes that could be detours beside one, computed from it alone."""
        graph = self._graph
        found: dict[int, None] = {}
        stack = [cls]
        while stack:
            for index in self._users[stack.pop()]:
                own = graph.owner[index]
                if own == cls or own in found or own in self.instead or own in self._needed or not self._free[own]:
                    continue
                alike = graph.elements[own] == graph.elements[cls] and graph.bytes[own] >= graph.bytes[cls]
                if alike and self._light[index] and len(self._reads[index]) == 1:
                    found[own] = None
                    stack.append(own)
        return found

    def _proof(self, detour: int, cls: int, found: dict[int, None]) -> set[int] | None:
        """Classes that are computed where ``cls`` does for a detour, ``None`` if it cannot."""
        graph = self._graph

        def instead(c: int) -> int:
            return cls if c in found else self.instead.get(c, c)

        used: set[int] = set()
        for index in graph.members[detour]:
            if not self._computed(cls, {instead(c) for c in self._reads[index]}, _LONGEST, found, used):
                return None
        for index in self._users[detour]:
            own = instead(graph.owner[index])
            if not self._computed(own, {instead(c) for c in self._reads[index]}, _LONGEST, found, used):
                return None
        return used

    def _computed(self, cls: int, given: set[int], most: int, found: dict[int, None], used: set[int]) -> bool:
        """Whether elementwise operators of one size compute ``cls`` from ``given``; adds the classes on the way to ``used``."""
        if cls in given:
            return True
        if not most or cls in found or cls in self.instead:
            return False
        elements: Sequence[float] = self._graph.elements
        for index in self._graph.members[cls]:
            reads = self._reads[index]
            if self._light[index] and all(c in given or elements[c] == elements[cls] for c in reads):
                on_way: set[int] = set()
                if all(self._computed(c, given, most - 1, found, on_way) for c in reads):
                    used.update(on_way, (cls,))
                    return True
        return False
