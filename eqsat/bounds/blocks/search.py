"""What is looked for in the blocks of a graph, with an effort that they share."""

from contextlib import suppress
from dataclasses import replace

from eqsat.bounds.blocks.block import Block, toll_of
from eqsat.bounds.blocks.relaxation import BlockRelaxation
from eqsat.bounds.blocks.slow_kernels import is_slow
from eqsat.bounds.focus import Focus
from eqsat.bounds.named_problem import ChosenGroup
from eqsat.bounds.states import NONE, Carried
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import Effort, ExtractionProblem, extract

_MOST_NODES = 64_000
"""Most e-nodes of the relaxed problem of a block."""

_AT_ONCE = 2
"""A problem may take so many times its share: most take less."""

_LEAST_SHARE = 0.4
"""Part of what is left that a problem may take, however small it is and however many are equal to it."""

_FAST_SHARE = 0.5
"""Part of its share that a problem without slow operators may take: what it is looked at for, a limit, it finds early."""


class Shares:
    """The effort for problems of different weights."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self._weight = 0.0

    def expect(self, weight: float) -> None:
        """A problem will ask for its share."""
        self._weight += weight

    def take(self, weight: float, part: float = 1.0) -> Effort:
        """For an expected problem that is looked at now: what others have left is for later ones."""
        share = _AT_ONCE * weight / self._weight if self._weight > 0 else 1.0
        self._weight -= weight
        return self.effort.part(part * min(1.0, max(_LEAST_SHARE, share)))


class BlockSearch:
    """A bound for a block, ``bound`` (``None`` before there is one), and the ``groups`` of the best choice found.

    ``weight``: of the block among others. ``toll``: that of its target. ``carried``: how kernels hold it, once built
    (`eqsat.bounds.blocks.block`). ``charge``: what an anchored kernel pays in it for holding the source, 0 at first.
    """

    def __init__(
        self, block: Block, target: Target, rates: Rates, focus: Focus, slack: float, exact: bool, weight: float
    ) -> None:
        self._problem = block, target, rates, focus
        self._enough = slack
        self._slack = 0.0 if exact else slack
        self._weight = weight
        self._limit = float("inf")
        self.bound: float | None = None
        self.groups: list[ChosenGroup] = []
        self.toll = toll_of(block, target, rates) if block.borders.target != NONE else 0.0
        self.carried: Carried = {}
        self.charge = 0.0
        self._surplus = 0.0
        self._whole: tuple[BlockRelaxation, ExtractionProblem] | None = None
        self._fast: tuple[BlockRelaxation, ExtractionProblem] | None = None

    @property
    def lost(self) -> float:
        """What the surplus is short of the toll at the target."""
        return max(0.0, self.toll - self._surplus)

    @property
    def charges(self) -> bool:
        """Whether anchored kernels may be charged for the source."""
        return self._whole is not None and self._whole[0].charges

    def build(self, shares: Shares) -> bool:
        """Builds the problems; tells whether the effort suffices for that."""
        block, target, rates, focus = self._problem
        self._whole = _built(block, target, rates, focus, shares.effort)
        if self._whole is None:
            return False
        relaxation, problem = self._whole
        self.carried = relaxation.reached
        fast = _without_slow(block, target, rates)
        self._fast = _built(fast, target, rates, focus, shares.effort) if fast is not None else None
        shares.expect(self._weight * problem.node_count * (2 if self._has_surplus else 1))
        if self._fast is not None:
            shares.expect(self._weight * self._fast[1].node_count)
        return True

    @property
    def _has_surplus(self) -> bool:
        return bool(self.toll) and self._whole is not None and self._whole[0].light is not None

    def look_fast(self, shares: Shares) -> None:
        """Looks at choices without slow operators: the best of them is a limit for all others."""
        if self._fast is not None:
            with suppress(EqsatError):  # there is no way without
                self._look(*self._fast, shares, self._enough, _FAST_SHARE)

    def look(self, shares: Shares) -> None:
        """Looks at all choices."""
        assert self._whole is not None
        with suppress(EqsatError):  # nothing can be chosen
            self.bound = self._look(*self._whole, shares, self._slack, 1.0)

    def _look(
        self, relaxation: BlockRelaxation, problem: ExtractionProblem, shares: Shares, slack: float, part: float
    ) -> float:
        effort = shares.take(self._weight * problem.node_count, part)
        found = extract(problem, effort=effort, cutoff=self._limit, slack=slack)
        if not self.groups or found.cost < self._limit - self._slack:
            self.groups = relaxation.groups(found.choice)
        bound = min(found.lower_bound, self._limit)
        self._limit = min(self._limit, found.cost)
        return bound

    def look_for_surplus(self, shares: Shares) -> None:
        """Looks at choices that compute the target inside a kernel without an anchor below it."""
        if self._has_surplus and self.bound is not None:
            assert self._whole is not None
            relaxation, problem = self._whole
            self._take_surplus(relaxation.light, shares.take(self._weight * problem.node_count))

    def _take_surplus(self, light: ExtractionProblem | None, effort: Effort) -> None:
        assert self.bound is not None
        assert light is not None
        enough = self.bound + self.toll
        try:
            bound = extract(light, effort=effort, cutoff=enough, slack=self._slack).lower_bound
            self._surplus = min(bound, enough) - self.bound
        except EqsatError:  # there is no such way
            self._surplus = self.toll

    def look_charged(self, charge: float, shares: Shares) -> None:
        """Looks at the block again, an anchored kernel paying ``charge`` for the source."""
        assert self._whole is not None
        relaxation, problem = self._whole
        cost = list(problem.node_cost)
        cost[relaxation.anchored] = charge
        limit = self._limit + charge
        shares.expect(problem.node_count * (2 if self._has_surplus else 1))
        effort = shares.take(problem.node_count)
        try:
            bound = extract(
                replace(problem, node_cost=cost), effort=effort, cutoff=limit, slack=self._slack
            ).lower_bound
        except EqsatError:  # what was found before stays as it is
            return
        self.bound, self.charge, self._surplus = min(bound, limit), charge, 0.0
        if self._has_surplus and relaxation.light is not None:
            self._take_surplus(replace(relaxation.light, node_cost=cost), shares.take(problem.node_count))


def _built(
    block: Block, target: Target, rates: Rates, focus: Focus, effort: Effort
) -> tuple[BlockRelaxation, ExtractionProblem] | None:
    relaxation = BlockRelaxation(block, target, rates, focus, effort)
    problem = relaxation.build(_MOST_NODES)
    return None if problem is None else (relaxation, problem)


def _without_slow(block: Block, target: Target, rates: Rates) -> Block | None:
    """A block without operators whose operations take longer than their bytes, where there is another way to compute their
    class; ``None`` if it has none."""
    graph = block.graph
    members = [[i for i in found if not is_slow(graph, i, target, rates)] or found for found in graph.members]
    if members == graph.members:
        return None
    return replace(block, graph=replace(graph, members=members))
