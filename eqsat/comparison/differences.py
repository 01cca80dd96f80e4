"""What two cost models chose differently, and where in the original model; how far models agree about which program is better."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import INPUT
from eqsat.extraction import Extraction, Saturated
from eqsat.rewrite import PROJECTION

LISTED = 5
"""How many places are listed by name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A value that two models compute differently. ``node``: the node of the original model that computes it; where the
    original never computed the value, the node that it leads to, and ``inside`` is true. ``first`` and ``second`` are the
    operators chosen; empty where a program does not compute the value."""

    node: str
    inside: bool
    first: str
    second: str


@dataclass(frozen=True)
class Difference:
    """Two choices from one e-graph.

    ``values``: values that both programs compute, by different e-nodes. ``only_first``, ``only_second``: values that one
    program computes and the other does not. ``kernels_only_first``, ``kernels_only_second``: kernels, equal when the same
    e-nodes are computed together. ``by_operator``: "first -> second" -> number of values, most frequent first. ``places``: the
    first `LISTED` places in the order of the original.
    """

    first: str
    second: str
    values: int
    only_first: int
    only_second: int
    kernels_only_first: int
    kernels_only_second: int
    by_operator: dict[str, int]
    places: tuple[Place, ...]

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "places": [asdict(place) for place in self.places]}


def difference(saturated: Saturated, first: Extraction, second: Extraction) -> Difference:
    """What two extractions from the same e-graph chose differently."""
    egraph = saturated.encoding.egraph
    a, b = (_operators(egraph, e.selection.choice) for e in (first, second))
    changed = {cls: (a.get(cls), b.get(cls)) for cls in a.keys() | b.keys() if a.get(cls) != b.get(cls)}
    names = {cls: tuple("" if h is None else egraph.nodes[h].key for h in pair) for cls, pair in changed.items()}
    where = _Where(saturated, (first.selection.choice, second.selection.choice))
    order = sorted(changed, key=lambda cls: (where.position(cls), cls))
    counts = Counter(f"{x or 'nothing'} -> {y or 'nothing'}" for x, y in names.values())
    return Difference(
        first.model.name,
        second.model.name,
        values=sum(x is not None and y is not None for x, y in changed.values()),
        only_first=sum(y is None for _, y in changed.values()),
        only_second=sum(x is None for x, _ in changed.values()),
        kernels_only_first=len(first.kernels - second.kernels),
        kernels_only_second=len(second.kernels - first.kernels),
        by_operator=dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        places=tuple(Place(*where.name(cls), *names[cls]) for cls in order[:LISTED]),
    )


def _operators(egraph: EGraph, choice: Mapping[int, int]) -> dict[int, int]:
    """The choice without inputs of the program and projections, which nobody chooses."""
    return {
        cls: handle
        for cls, handle in choice.items()
        if egraph.nodes[handle].op != PROJECTION and egraph.nodes[handle].key != INPUT
    }


class _Where:
    """Finds the original node that a class is, or the nearest one that the programs compute from it."""

    def __init__(self, saturated: Saturated, choices: Iterable[Mapping[int, int]]) -> None:
        encoding = saturated.encoding
        egraph = encoding.egraph
        self._nodes = encoding.graph.nodes
        self._original: dict[int, int] = {}
        for index, handle in enumerate(encoding.node_handles):
            self._original.setdefault(egraph.find(handle), index)
        self._users: dict[int, set[int]] = {}
        for choice in choices:
            for cls, handle in choice.items():
                for child in egraph.canonical_children(handle):
                    self._users.setdefault(child, set()).add(cls)
        self._found: dict[int, int] = {}

    def position(self, cls: int) -> int:
        """Index of the original node; the number of nodes if there is none."""
        if cls not in self._found:
            self._found[cls] = self._search(cls)
        return self._found[cls]

    def name(self, cls: int) -> tuple[str, bool]:
        index = self.position(cls)
        if index == len(self._nodes):
            return "", True
        node = self._nodes[index]
        return node.name or next(v for v in node.outputs if v), cls not in self._original

    def _search(self, cls: int) -> int:
        """Breadth first along the users; among equally near nodes the first of the original."""
        seen = {cls}
        level = [cls]
        while level:
            hits = [self._original[c] for c in level if c in self._original]
            if hits:
                return min(hits)
            level = sorted({u for c in level for u in self._users.get(c, ())} - seen)
            seen.update(level)
        return len(self._nodes)


# --- agreement -------------------------------------------------------------------------------------------------------


DIGITS = 9
"""Prices that agree to so many significant digits are ties: sums of the same prices in another order are."""


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same programs: 1 the same order, -1 the reverse.

    ``None`` where it is not defined: fewer than two programs, or all of them equal under one of the models.
    """
    first, second = ([float(f"{price:.{DIGITS - 1}e}") for price in prices] for prices in (a, b))
    if len(set(first)) < 2 or len(set(second)) < 2:
        return None
    orders = [np.greater.outer(p, p) * 1 - np.less.outer(p, p) for p in (first, second)]
    agreeing, ordered = np.sum(orders[0] * orders[1]), [np.sum(np.abs(order)) for order in orders]
    return float(agreeing / np.sqrt(ordered[0] * ordered[1]))


def agreement(prices: Sequence[Mapping[str, float]], models: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Tau between each pair of models; ``prices`` has one entry for each program, its price under each model."""
    columns = {model: [row[model] for row in prices] for model in models}
    return {a: {b: kendall_tau(columns[a], columns[b]) for b in models} for a in models}
