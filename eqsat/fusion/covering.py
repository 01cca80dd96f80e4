"""Choosing kernels from a pool of cones: DAG extraction where each cone is an e-node whose children are the classes it reads."""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import Effort, ExtractionProblem, extract
from eqsat.fusion.cones import operands_first
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.templates import Cone

_MOST_DIVES = 12
_MOST_BRANCHES = 40
_FEW_BRANCHES = 4
_LARGE_POOL = 5_000


class NoKernelError(EqsatError):
    """The target has no kernels that compute the program."""


@dataclass
class Covering:
    """Kernels that compute the roots, each class in ``kernels`` by the cone of the same root, inputs first.

    ``lower_bound`` holds for every covering from the same pool that computes nothing twice which the target does not recompute.
    """

    kernels: dict[int, Cone]
    lower_bound: float
    method: str

    @cached_property
    def cost(self) -> float:
        """The sum of the prices."""
        return cost_of(self.kernels)

    def choice(self, graph: FusionGraph) -> dict[int, int]:
        """Class -> operation, operands first."""
        chosen: dict[int, int] = {}
        for cone in self.kernels.values():
            for index in operands_first(graph, cone.operations, cone.root):
                chosen.setdefault(graph.owner[index], index)
        return chosen


def cost_of(kernels: Mapping[int, Cone]) -> float:
    """The sum of their prices."""
    return math.fsum(cone.price for cone in kernels.values())


@dataclass
class Pool:
    """Distinct kernels by root; the union of several enumerations."""

    by_root: dict[int, dict[tuple[frozenset[int], frozenset[int]], Cone]] = field(default_factory=dict[Any, Any])

    def add(self, cones: Iterable[Cone]) -> None:
        for cone in cones:
            if cone.price < float("inf"):
                self.by_root.setdefault(cone.root, {}).setdefault((cone.operations, cone.inputs), cone)

    def same(self, cone: Cone) -> Cone:
        """The cone of the pool with the same operations and inputs, added if need be."""
        return self.by_root.setdefault(cone.root, {}).setdefault((cone.operations, cone.inputs), cone)

    def __len__(self) -> int:
        return sum(map(len, self.by_root.values()))


@dataclass(frozen=True, slots=True)
class Ban:
    """Cones that hold an operation are left out, unless their root is in ``keep``, and anyway if it is in ``drop``."""

    operation: int
    keep: frozenset[int] | None = frozenset()
    drop: frozenset[int] = frozenset()

    def hits(self, cone: Cone) -> bool:
        kept = self.keep is None or cone.root in self.keep
        return self.operation in cone.operations and (not kept or cone.root in self.drop)


def cover(
    graph: FusionGraph, pool: Pool, target: Target, *, effort: Effort, incumbents: Sequence[Mapping[int, Cone]] = ()
) -> Covering:
    """The cheapest covering from the pool that computes no operator twice that the target does not recompute, and no class by
    two different operators.

    The condition is not part of the extraction problem. It is reached by branching: where a solution breaks it, every
    covering that keeps it lies in one of the branches. A quick dive, which bans all that the solutions do wrong at once,
    gives a covering first. The bound is the least of all open branches. Raises `NoKernelError` if no covering exists.
    """
    return _Search(graph, pool, target, effort).run(incumbents)


class _Search:
    def __init__(self, graph: FusionGraph, pool: Pool, target: Target, effort: Effort) -> None:
        self._graph = graph
        self._target = target
        self._effort = effort
        self._pool = pool
        self._cones: list[Cone] = []
        self._best: Mapping[int, Cone] | None = None
        self._cost = float("inf")
        self._method = "incumbent"

    def run(self, incumbents: Sequence[Mapping[int, Cone]]) -> Covering:
        for kernels in incumbents:
            if not repeated(self._graph, kernels.values(), self._target):
                self._offer({root: self._pool.same(c) for root, c in kernels.items()}, "incumbent")
        self._cones = [c for by_key in self._pool.by_root.values() for c in by_key.values()]
        first = self._solve((), self._effort.part(0.5))
        if first is None:
            raise NoKernelError("the target has no kernels that compute all outputs: an operator is unsupported")
        kernels, bound, stage = first
        if self._violation(kernels) is None:
            self._offer(kernels, stage)
        elif bound < self._cost * (1 - 1e-9):
            self._dive(kernels)
            bound = self._branch(kernels, bound)
        if self._best is None:
            raise NoKernelError(
                "no covering without repeated operators was found with the effort allowed; prove=True (--prove) allows more"
            )
        bound = self._cost if self._cost - bound <= 1e-9 * self._cost else bound
        return Covering(dict(self._best), bound, self._method)

    def _offer(self, kernels: Mapping[int, Cone], method: str) -> None:
        cost = cost_of(kernels)
        if self._best is None or cost < self._cost * (1 - 1e-12):
            self._best, self._cost, self._method = kernels, cost, method

    def _violation(self, kernels: Mapping[int, Cone]) -> int | None:
        return min(repeated(self._graph, kernels.values(), self._target), default=None)

    def _dive(self, kernels: Mapping[int, Cone]) -> None:
        """Solves again with every class that was computed twice kept in memory, until none is."""
        graph = self._graph
        bans: dict[int, Ban] = {}
        for _ in range(_MOST_DIVES):
            for cls in repeated(graph, kernels.values(), self._target):
                uses = _uses(graph, kernels.values(), cls)
                chosen = max(uses, key=lambda i: (len(uses[i]), -i))
                for index in graph.members[cls]:
                    bans[index] = Ban(index, frozenset((cls,))) if index == chosen else Ban(index)
            found = self._solve(tuple(bans.values()), self._effort.part(0.3))
            if found is None:
                return
            kernels, _, stage = found
            if self._violation(kernels) is None:
                self._offer(kernels, f"{stage}+repair")
                return
        single = {c.root: c for c in self._cones if len(c.operations) == 1}
        self._offer_singles(single)

    def _offer_singles(self, single: Mapping[int, Cone]) -> None:
        bans = tuple(Ban(i, frozenset((self._graph.owner[i],))) for c in single.values() for i in c.operations)
        found = self._solve(bans, self._effort.part(0.25))
        if found is not None and self._violation(found[0]) is None:
            self._offer(found[0], "single operators")

    def _branch(self, kernels: Mapping[int, Cone], bound: float) -> float:
        """Branches, best bound first. Returns the proven bound."""
        count = 0
        most = _FEW_BRANCHES if len(self._cones) > _LARGE_POOL else _MOST_BRANCHES
        open_: list[tuple[float, int, tuple[Ban, ...], Mapping[int, Cone]]] = [(bound, count, (), kernels)]
        closed = float("inf")
        while open_:
            least, _, bans, kernels = heapq.heappop(open_)
            if least >= self._cost * (1 - 1e-9):
                return min(closed, self._cost)
            if count >= most or self._effort.over():
                return min(closed, least, self._cost)
            for ban in self._branches(kernels):
                count += 1
                found = self._solve((*bans, *ban), self._effort.part(0.25))
                if found is None:
                    continue
                inner, inner_bound, stage = found
                inner_bound = max(inner_bound, least)
                if self._violation(inner) is None:
                    self._offer(inner, f"{stage}+branch")
                    closed = min(closed, inner_bound)
                elif inner_bound < self._cost * (1 - 1e-9):
                    heapq.heappush(open_, (inner_bound, count, (*bans, *ban), inner))
        return min(closed, self._cost)

    def _branches(self, kernels: Mapping[int, Cone]) -> list[tuple[Ban, ...]]:
        """Bans such that every covering that keeps the condition breaks none of those of at least one branch."""
        cls = self._violation(kernels)
        assert cls is not None
        uses = _uses(self._graph, kernels.values(), cls)
        if len(uses) > 1:
            a, b = sorted(uses)[:2]
            return [(Ban(a),), (Ban(b),)]
        ((index, roots),) = uses.items()
        every = frozenset(roots)
        return [(Ban(index, frozenset((r,))),) for r in sorted(every)] + [(Ban(index, None, every),)]

    def _solve(self, bans: Sequence[Ban], effort: Effort) -> tuple[dict[int, Cone], float, str] | None:
        """Kernels, lower bound and stage of the problem without the condition; ``None`` if no covering exists."""
        graph = self._graph
        by_operation: dict[int, list[Ban]] = {}
        for ban in bans:
            by_operation.setdefault(ban.operation, []).append(ban)
        held = frozenset(by_operation)
        cones = [
            c
            for c in self._cones
            if held.isdisjoint(c.operations)
            or not any(ban.hits(c) for i in c.operations & held for ban in by_operation[i])
        ]
        roots = tuple(c for c in graph.roots if graph.members[c])
        if not roots:
            return {}, 0.0, "trivial"
        problem = ExtractionProblem(
            len(graph.members),
            [c.root for c in cones],
            [tuple(sorted(c.cut)) for c in cones],
            [c.price for c in cones],
            roots,
        )
        start = None
        if self._best is not None:
            numbers = {id(c): n for n, c in enumerate(cones)}
            if all(id(c) in numbers for c in self._best.values()):
                start = {root: numbers[id(c)] for root, c in self._best.items()}
        try:
            result = extract(problem, effort=effort, incumbent=start)
        except EqsatError:
            return None
        return {c: cones[n] for c, n in result.choice.items()}, result.lower_bound, result.method


def _uses(graph: FusionGraph, cones: Iterable[Cone], cls: int) -> dict[int, list[int]]:
    """Operation of a class -> roots of the kernels that compute it."""
    uses: dict[int, list[int]] = {}
    for cone in cones:
        for index in cone.operations:
            if graph.owner[index] == cls:
                uses.setdefault(index, []).append(cone.root)
    return uses


def repeated(graph: FusionGraph, cones: Iterable[Cone], target: Target) -> set[int]:
    """Classes that several kernels compute, by an operator that the target does not recompute or by different ones."""
    seen: dict[int, int] = {}
    twice: set[int] = set()
    for cone in cones:
        for index in cone.operations:
            cls = graph.owner[index]
            if cls in seen and (seen[cls] != index or not target.recomputes(graph.operations[index].kind)):
                twice.add(cls)
            seen[cls] = index
    return twice
