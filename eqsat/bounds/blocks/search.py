"""What is looked for in the blocks of a graph, several of them at once, in a time that they share."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from eqsat.bounds.blocks.block import Block, toll_of
from eqsat.bounds.blocks.relaxation import BlockRelaxation
from eqsat.bounds.blocks.slow_kernels import is_slow
from eqsat.bounds.focus import Focus
from eqsat.bounds.named_problem import ChosenGroup
from eqsat.bounds.states import NONE, Carried
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import ExtractionProblem
from eqsat.extract.workers import Extract, Workers

_MOST_NODES = 64_000
"""Most e-nodes of the relaxed problem of a block."""

_LEAST_SHARE = 0.4
"""Part of the time left that a problem may take, however small it is and however many are equal to it."""

_FAST_SHARE = 0.5
"""Part of its time that a problem without slow operators may take: what it is looked at for, a limit, it finds early."""


class SharedTime:
    """Time for problems of different weights, ``several`` of which are solved at once."""

    def __init__(self, deadline: float, several: int) -> None:
        self._deadline = deadline
        self._several = several
        self._weight = 0.0
        self._lock = Lock()

    def expect(self, weight: float) -> None:
        """A problem will ask for its time."""
        with self._lock:
            self._weight += weight

    def take(self, weight: float) -> float:
        """The seconds for an expected problem that starts now: what the others do not take in time is left for later ones."""
        with self._lock:
            share = self._several * weight / self._weight if self._weight > 0 else 1.0
            self._weight -= weight
        return max(0.0, self._deadline - time.perf_counter()) * min(1.0, max(_LEAST_SHARE, share))


class BlockSearch:
    """A bound for a block, ``bound`` (``None`` before there is one), and the ``groups`` of the best choice found.

    ``toll``: that of its target. ``carried``: how kernels hold it, once built (`eqsat.bounds.blocks.block`). ``charge``: what an
    anchored kernel pays in it for holding the source, 0 at first.
    """

    def __init__(self, block: Block, target: Target, rates: Rates, focus: Focus, slack: float, exact: bool) -> None:
        self._problem = block, target, rates, focus
        self._enough = slack
        self._slack = 0.0 if exact else slack
        self._limit = float("inf")
        self.bound: float | None = None
        self.groups: list[ChosenGroup] = []
        self.toll = toll_of(block, target, rates) if block.borders.target != NONE else 0.0
        self.carried: Carried = {}
        self.charge = 0.0
        self._surplus = 0.0
        self._built: tuple[ExtractionProblem, ExtractionProblem | None, int] | None = None

    @property
    def lost(self) -> float:
        """What the surplus is short of the toll at the target."""
        return max(0.0, self.toll - self._surplus)

    @property
    def charges(self) -> bool:
        """Whether anchored kernels may be charged for the source."""
        return self._built is not None

    def charged(self, charge: float, workers: Workers, times: SharedTime) -> None:
        """Looks at the block again, an anchored kernel paying ``charge`` for the source."""
        assert self._built is not None
        assert self.bound is not None
        problem, light, anchored = self._built
        cost = list(problem.node_cost)
        cost[anchored] = charge
        problem = replace(problem, node_cost=cost)
        light = replace(light, node_cost=cost) if light is not None else None
        limit = self._limit + charge
        times.expect(problem.node_count * (2 if self.toll and light is not None else 1))

        def look(by: Extract) -> None:
            seconds = times.take(problem.node_count)
            try:
                bound = by(problem, time_limit_s=seconds, cutoff=limit, slack=self._slack).lower_bound
            except EqsatError:  # what was found before stays as it is
                return
            self.bound, self.charge, self._surplus = min(bound, limit), charge, 0.0
            if self.toll and light is not None:
                self._look_for_surplus(by, light, times.take(problem.node_count))

        workers.submit(1, look)

    def _look_for_surplus(self, by: Extract, light: ExtractionProblem, seconds: float) -> None:
        """Looks at choices that compute the target inside a kernel without an anchor below it."""
        assert self.bound is not None
        enough = self.bound + self.toll
        try:
            bound = by(light, time_limit_s=seconds, cutoff=enough, slack=self._slack).lower_bound
            self._surplus = min(bound, enough) - self.bound
        except EqsatError:  # there is no such way
            self._surplus = self.toll

    def submit(self, workers: Workers, times: SharedTime, deadline: float, weight: float) -> bool:
        """Builds the problem and hands it in; tells whether it could be built in time.

        Choices without slow operators are looked at first, in all blocks: the best of them is a limit for all others.
        """
        block, target, rates, focus = self._problem
        relaxation = BlockRelaxation(block, target, rates, focus, deadline)
        problem = relaxation.build(_MOST_NODES)
        if problem is None:
            return False
        self.carried = relaxation.reached
        if relaxation.charges:
            self._built = problem, relaxation.light, relaxation.anchored
        fast = _without_slow(block, target, rates)
        first = BlockRelaxation(fast, target, rates, focus, deadline) if fast is not None else None
        part = first.build(_MOST_NODES) if first is not None else None

        def look(by: Extract, within: BlockRelaxation, at: ExtractionProblem, slack: float, share: float) -> float:
            seconds = share * times.take(weight * at.node_count)
            found = by(at, time_limit_s=seconds, cutoff=self._limit, slack=slack)
            if not self.groups or found.cost < self._limit - self._slack:
                self.groups = within.groups(found.choice)
            bound = min(found.lower_bound, self._limit)
            self._limit = min(self._limit, found.cost)
            return bound

        def all_choices(by: Extract) -> None:
            try:
                self.bound = look(by, relaxation, problem, self._slack, 1.0)
            except EqsatError:  # nothing can be chosen
                return
            if self.toll and relaxation.light is not None:
                workers.submit(2, without_anchor)

        def without_anchor(by: Extract) -> None:
            assert relaxation.light is not None
            self._look_for_surplus(by, relaxation.light, times.take(weight * problem.node_count))

        def fast_choices(by: Extract) -> None:
            assert first is not None
            assert part is not None
            with suppress(EqsatError):  # there is no way without
                look(by, first, part, self._enough, _FAST_SHARE)
            workers.submit(1, all_choices)

        times.expect(weight * problem.node_count * (2 if self.toll and relaxation.light is not None else 1))
        if part is None:
            workers.submit(1, all_choices)
        else:
            times.expect(weight * part.node_count)
            workers.submit(0, fast_choices)
        return True


def _without_slow(block: Block, target: Target, rates: Rates) -> Block | None:
    """A block without operators whose operations take longer than their bytes, where there is another way to compute their
    class; ``None`` if it has none."""
    graph = block.graph
    members = [[i for i in found if not is_slow(graph, i, target, rates)] or found for found in graph.members]
    if members == graph.members:
        return None
    return replace(block, graph=replace(graph, members=members))
