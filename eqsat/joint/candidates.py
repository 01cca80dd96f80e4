"""Programs found so far, each fused as well as possible, and the pool of kernels that they are chosen from."""

from dataclasses import dataclass

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import Covering, NoKernelError, Pool, cover
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.partition import merged_covering, method_of, plan_kernels

WHOLE_POOL = 8
"""Cones of a class where the pool is to hold some for each class of a large graph."""
_EXHAUSTIVE = 2048
_EXHAUSTIVE_TOTAL = 12_000
_EXHAUSTIVE_OPERATIONS = 1_000
_ROUNDS = 3
_FUSING_SHARE = 0.5
"""Of the effort left, for the kernels of one program."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program and its kernels. ``choice``: class -> operation; ``stage``: what found it."""

    cost: float
    choice: dict[int, int]
    plan: Covering
    stage: str


class Candidates:
    """``best``: the cheapest program so far. ``effort``: for all of it."""

    def __init__(self, graph: FusionGraph, target: Target, model: CostModel, *, effort: Effort) -> None:
        self.graph = graph
        self.target = target
        self.model = model
        self.effort = effort
        self.best: Candidate | None = None
        self.prices = ConePrices(graph, model, target)
        self.pool = Pool()
        self._coverings: list[Covering] = []

    def proved(self, bound: float) -> bool:
        """Whether a bound shows that nothing is cheaper than the best, or not by so much that it is worth more effort."""
        return self.best is not None and self.best.cost <= bound * (1 + max(1e-9, self.effort.enough))

    def offer(self, choice: dict[int, int], stage: str) -> Covering | None:
        """Fuses a program, and remembers it if it is the best so far. Returns its kernels, ``None`` if it has none."""
        try:
            plan = plan_kernels(
                self.graph,
                choice,
                self.target,
                self.model,
                method=method_of(self.target),
                effort=self.effort.part(_FUSING_SHARE),
                prices=self.prices,
                pool=self.pool,
            )
        except NoKernelError:
            return None
        if plan.method != "post-dominator":
            self._coverings.append(plan)
            plan = merged_covering(self.graph.restricted(choice), plan, self.target, self.prices)
        self.remember(choice, plan, stage)
        return plan

    def remember(self, choice: dict[int, int], plan: Covering, stage: str) -> None:
        """Notes a program in its kernels if it is the best so far."""
        if self.best is None or plan.cost < self.best.cost * (1 - 1e-12):
            self.best = Candidate(plan.cost, choice, plan, stage)

    def enumerate(self) -> bool:
        """Fills the pool from the whole e-graph; returns whether cones are missing."""
        large = sum(map(len, self.graph.members)) > _EXHAUSTIVE_OPERATIONS
        total = _EXHAUSTIVE_TOTAL * (10 if large else 1)
        every = self._cones(WHOLE_POOL if large else _EXHAUSTIVE, 0.3 if large else 0.1, total_limit=total)
        if every.truncated and not large:
            every = self._cones(WHOLE_POOL, 0.3)
        self.pool.add(every.kernels())
        return every.truncated

    def _cones(self, limit: int, share: float, **limits: int) -> ConePool:
        part = self.effort.part(share)
        return ConePool(self.graph, self.target, self.prices, limit=limit, effort=part, **limits)

    def improve(self) -> float:
        """Coverings from the pool, which grows around the best program. Returns the bound over the pool.

        Raises `NoKernelError` if the pool has none and there is no program yet.
        """
        bound = 0.0
        for number in range(_ROUNDS):
            known = self.best
            incumbents = [c.kernels for c in self._coverings]
            try:
                found = cover(self.graph, self.pool, self.target, effort=self.effort.part(0.5), incumbents=incumbents)
            except NoKernelError:
                if self.best is None:
                    raise
                break
            bound = found.lower_bound
            self._coverings.append(found)
            self.offer(found.choice(self.graph), found.method)
            assert self.best is not None
            if number and known is not None and self.best.cost >= known.cost * (1 - 1e-9):
                break
            if self.proved(bound) or self.effort.over():
                break
        return bound
