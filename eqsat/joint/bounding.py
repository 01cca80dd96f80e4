"""The bound over all kernels in the search for a program: what it is asked for, and the programs that it leads to."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from eqsat.bounds.blocks.bound import Blockwise, blockwise_bound
from eqsat.bounds.bound import COARSEST, FIRST_ATTEMPTS, LATER_ATTEMPTS, Attempt, relaxed_bound
from eqsat.bounds.kernels import covering_of, spanned, with_written_signs
from eqsat.bounds.named_problem import ChosenGroup
from eqsat.extract import Effort
from eqsat.fusion.templates import Cone
from eqsat.joint.candidates import Candidate, Candidates
from eqsat.joint.result import needed

_WHOLE_OPERATIONS = 6_000
"""Larger graphs are bounded block by block only, where they can be."""
_BLOCKS_SHARE = 0.8
"""Of the effort left, for the bound of graphs whose blocks are looked at coarsely: it leads to the best programs, too."""
_MOST_SHARE = 0.95
"""Of the effort left, for what may take long and leads furthest."""
_USEFUL = 0.95
"""A bound below that part of the cost says little."""


@dataclass(frozen=True, slots=True)
class Pass:
    """How a bound is looked for: ``share`` of the effort left for it, ``blocks_share`` of what is left then for a program from
    blocks. ``attempts``: at the whole graph. ``slack``: how far bounds of blocks may stay below the best, as a part of the
    cost."""

    share: float
    attempts: Sequence[Attempt]
    slack: float
    blocks_share: float | None = None


FIRST = Pass(0.7, FIRST_ATTEMPTS, 5e-4)
"""Reached soon, and leaves programs that are nearly as good to choose from."""
QUICK = Pass(1.0, COARSEST, 0.0)
"""When little effort is left."""
LATER = Pass(0.9, LATER_ATTEMPTS, 1e-5, 0.5)
"""When some effort is left; other programs are known by then."""


class Bounding:
    """Bounds the programs that ``found`` are candidates of. ``blockwise``: block by block first; ``coarse``: blocks are looked at
    less closely, where kernels hold what leads from one spelling to another."""

    def __init__(self, found: Candidates, *, blockwise: bool, coarse: bool) -> None:
        self._found = found
        self._blockwise = blockwise
        self._coarse = coarse
        self._problem = found.graph, found.target, found.model

    def bound(self, how: Pass) -> float | None:
        """A bound over all kernels, ``None`` if there is none; its choice is offered as a program if it proves none optimal."""
        best = self._found.best
        blocks = self._bound_of_blocks(how, best) if self._blockwise else None
        least = blocks.bound if blocks else 0.0
        if blocks and (self._found.proved(least) or len(self._found.graph.operations) > _WHOLE_OPERATIONS):
            return least
        return self._bound_of_whole(how, best, least, alone=self._blockwise and blocks is None) or None

    def _bound_of_blocks(self, how: Pass, best: Candidate | None) -> Blockwise | None:
        part = self._found.effort.part(_BLOCKS_SHARE if self._coarse else how.share)
        blocks = self._of_blocks(part, how.slack, kernels=_kernels_of(best), coarse=self._coarse)
        if blocks is not None:
            share = how.blocks_share or (_MOST_SHARE if self._coarse else how.share)
            self._take_blocks(blocks, self._found.effort.part(share), how.slack)
        return blocks

    def _bound_of_whole(self, how: Pass, best: Candidate | None, least: float, *, alone: bool) -> float:
        cost = best.cost if best else float("inf")
        for attempts in (how.attempts, COARSEST):
            part = self._found.effort.part(
                _MOST_SHARE if alone else how.share
            )  # a second attempt would be cut short, too
            relaxed = relaxed_bound(
                *self._problem, effort=part, kernels=_kernels_of(best), attempts=attempts, cutoff=cost, coarse=alone
            )
            if relaxed is not None:
                self._take(relaxed.bound, relaxed.operations, relaxed.groups)
                least = max(least, relaxed.bound)
            if relaxed is None or not relaxed.detail or least > _USEFUL * cost:  # else it was too large to be solved
                break
        return least

    def _of_blocks(self, effort: Effort, slack: float, **options: Any) -> Blockwise | None:
        return blockwise_bound(*self._problem, effort=effort, slack=slack, **options)

    def _take_blocks(self, blocks: Blockwise, effort: Effort, slack: float) -> None:
        """Offers what was chosen block by block, the spelling of its integers chosen, too."""
        best = self._found.best
        if self._found.proved(blocks.bound) or best is None:
            return
        usable = [i in blocks.operations or o.is_view for i, o in enumerate(self._found.graph.operations)]
        chosen = self._of_blocks(effort, slack, kernels=_kernels_of(best), usable=usable, coarse=False)
        if chosen is not None:
            self._take(blocks.bound, chosen.operations, chosen.groups)

    def _take(self, bound: float, operations: frozenset[int], groups: Sequence[ChosenGroup]) -> None:
        """Offers what a relaxed problem chose, first in its kernels."""
        found = self._found
        choice = None if found.proved(bound) else spanned(found.graph, operations, groups)
        if choice is None:
            return
        choice = needed(found.graph, with_written_signs(found.graph, choice, groups))
        plan = covering_of(found.graph, choice, groups, found.target, found.prices)
        if plan is not None:
            found.pool.add(cone for cone in plan.kernels.values() if not cone.also)
            found.remember(choice, plan, "relaxation")
        if not found.proved(bound):
            found.offer(choice, "relaxation")


def _kernels_of(best: Candidate | None) -> Collection[Cone]:
    return best.plan.kernels.values() if best else ()
