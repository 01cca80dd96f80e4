"""Joint extraction: e-nodes and kernels chosen together, so that a spelling is chosen for how well it fuses.

A cone of an e-class (`eqsat.fusion.cones`) is an e-node of a larger e-graph, whose children are the classes it reads; the
cheapest program is a plain DAG extraction there. The pool holds a few cones for each class of the whole e-graph and many for
the programs found so far, and grows around the best program until that no longer improves.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Mapping, Sequence

from eqsat.bounds.blocks.bound import Blockwise, blockwise_bound
from eqsat.bounds.bound import COARSEST, FIRST_ATTEMPTS, LATER_ATTEMPTS, relaxed_bound
from eqsat.bounds.kernels import covering_of, spanned, with_written_signs
from eqsat.bounds.named_problem import ChosenGroup
from eqsat.bounds.rates import rates_of
from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.egraph.encode import Encoding
from eqsat.egraph.snapshot import Snapshot
from eqsat.exactness import Exactness
from eqsat.extract.workers import Workers
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import Covering, NoKernelError, Pool, cover
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.merging import written
from eqsat.fusion.partition import (
    CHOICE_POOL,
    group_cone,
    launches,
    merged_covering,
    method_of,
    plan_kernels,
    program_with,
)
from eqsat.fusion.program_graph import SnapshotGraph, graph_of_program, graph_of_snapshot
from eqsat.fusion.slices import with_slices
from eqsat.fusion.templates import Cone
from eqsat.joint.counterparts import counterparts
from eqsat.joint.enodes import choice_of_handles, groups_of, handles_of_choice, needed, original_choice
from eqsat.joint.result import JointSelection
from eqsat.lower.lowering import lower
from eqsat.lower.program import Program
from eqsat.lower.selection import Selection, Writable, select

_WHOLE_POOL = 8
_EXHAUSTIVE = 2048
_EXHAUSTIVE_TOTAL = 12_000
_EXHAUSTIVE_OPERATIONS = 1_000
_ROUNDS = 3
_BLOCKWISE_OPERATIONS = 1_500
"""Larger graphs are bounded block by block first."""
_COARSE_OPERATIONS = 4_000
"""Blocks of larger graphs are looked at less closely."""
_LEADING = 0.3
"""So much of the time for fusing single programs is left for it where the bound leads to better ones."""
_BLOCKS_SHARE = 0.8
"""Of the time left, for the bound of such graphs: it leads to the best programs, too."""
_WHOLE_OPERATIONS = 6_000
"""Larger graphs are bounded block by block only, where they can be."""
_SLACK, _LATER_SLACK = 5e-4, 1e-5
"""How far bounds of blocks may stay below the best, as a part of the cost: at first, which is reached soon and leaves programs
that are nearly as good to choose from, and when time is left."""
_LATER_SHARE = 0.5
"""Of the time left, for a program from the later bound: others are known by then."""
_ALMOST = 0.95
"""Of the time left, for what may take long and leads furthest."""
_USEFUL = 0.95
"""A bound below that part of the cost says little."""
_LEAST_SHARE = 0.2
"""Share of the time limit that a search in the pool needs to come to something."""


def select_joint(
    encoding: Encoding,
    snapshot: Snapshot,
    model: CostModel,
    target: Target,
    *,
    time_limit_s: float = 30.0,
    additive: Selection | None = None,
    writable: Writable = lambda op, types: True,
) -> JointSelection:
    """The cheapest program and its kernels, never dearer than the original or ``additive``, each fused as well as possible.

    ``additive`` is the choice by the prices of single operators (computed if not given), ``writable`` as in `select`. A
    limit that is reached shows in ``bound_scope`` and ``gap``. Raises `NoKernelError` if the target cannot run the program
    in any spelling.
    """
    gc.collect()
    gc.freeze()  # collections would go over all of the e-graph again and again
    try:
        joint = _Joint(encoding, snapshot, model, target, time_limit_s, writable)
        with Workers(None if joint.is_large else 1) as workers:
            return joint.run(additive, workers)
    finally:
        gc.unfreeze()


def program_of(
    encoding: Encoding, snapshot: Snapshot, joint: JointSelection, exactness: Mapping[str, Exactness]
) -> Program:
    """The program of a joint selection with its kernels. ``exactness`` gives the class of each rule by name."""
    program = lower(encoding, snapshot, joint.selection, exactness)
    if joint.target.slices:
        program = with_slices(program)
    source = graph_of_program(program.graph, joint.target)
    operations = counterparts(encoding, snapshot, joint.choice, program, source)
    prices = ConePrices(source.graph, joint.model, joint.target)
    kernels: dict[int, Cone] = {}
    for group in joint.groups:
        members = frozenset(operations[h] for h in group.handles if h in operations)
        root, *also = (source.graph.owner[operations[joint.choice[c]]] for c in (group.root, *group.also))
        cone = group_cone(source.graph, members, root, prices, tuple(also))
        cone.template = group.template
        kernels[root] = cone
    made = {i for cone in kernels.values() for i in cone.operations}
    outputs = written(kernels.values())
    for index, operation in enumerate(source.graph.operations):  # second names of outputs, projections
        cls = source.graph.owner[index]
        if (
            index not in made
            and cls not in outputs
            and (operation.is_view and (operation.source < 0 or cls in source.graph.roots))
        ):
            kernels[cls] = group_cone(source.graph, frozenset((index,)), cls, prices)
    return program_with(program, source, kernels)


class _Joint:
    def __init__(
        self,
        encoding: Encoding,
        snapshot: Snapshot,
        model: CostModel,
        target: Target,
        time_limit_s: float,
        writable: Writable,
    ) -> None:
        self._writable = writable
        self._started = time.perf_counter()
        self._limit_s = time_limit_s
        self._encoding = encoding
        self._snapshot = snapshot
        self._model = model
        self._target = target
        self._source: SnapshotGraph = graph_of_snapshot(encoding, snapshot, target, writable)
        self._graph: FusionGraph = self._source.graph
        self._prices = ConePrices(self._graph, model, target)
        self._pool = Pool()
        self._coverings: list[Covering] = []
        self._best: tuple[float, dict[int, int], Covering, str] | None = None

    @property
    def is_large(self) -> bool:
        """Whether the graph is bounded block by block first."""
        return len(self._graph.operations) > _BLOCKWISE_OPERATIONS

    @property
    def _is_coarse(self) -> bool:
        """Whether blocks are looked at less closely, where kernels hold what leads from one spelling to another."""
        return len(self._graph.operations) > _COARSE_OPERATIONS and bool(self._target.templates)

    @property
    def _has_bound(self) -> bool:
        """Whether there is a bound over all kernels, whose choice is a program, too."""
        return bool(self._target.templates) and rates_of(self._model, self._target) is not None

    def run(self, additive: Selection | None, workers: Workers) -> JointSelection:
        original = self._offer(original_choice(self._source, self._snapshot), "original", _WHOLE_POOL)
        if additive is None:
            additive = select(
                self._encoding,
                self._snapshot,
                self._model,
                self._target,
                time_limit_s=self._left(0.25),
                writable=self._writable,
            )
        two_phase = self._offer(choice_of_handles(self._source, self._snapshot, additive.choice), "two-phase")
        # Kernels of one operator are all in the pool.
        relaxed = self._bound(0.7, FIRST_ATTEMPTS, _SLACK, workers) if self._target.templates else None
        bound = relaxed or 0.0
        whole = relaxed is not None
        enough = self._left(1.0) > _LEAST_SHARE * self._limit_s and not self._is_coarse
        if not self._proved(bound) and (enough or not whole):
            truncated = self._enumerate()
            pooled = self._improve()
            single = not any(t.several for t in self._target.templates)
            if single and not truncated and self._target.fusion == "cones":
                bound, whole = max(bound, pooled), True
            elif not whole and self._best is not None and (single or pooled <= self._best[0]):
                bound = pooled  # none of the pool is cheaper than a program that lies outside of it
        if whole and not self._proved(bound) and self._left(1.0) > _LEAST_SHARE * self._limit_s:
            bound = max(bound, self._bound(0.9, LATER_ATTEMPTS, _LATER_SLACK, workers) or 0.0)
        assert self._best is not None
        cost, choice, plan, method = self._best
        bound = min(bound, cost)
        return JointSelection(
            handles_of_choice(self._source, self._snapshot, choice),
            groups_of(self._source, plan),
            launches(plan.kernels.values()),
            launches(original.kernels.values()) if original else 0,
            cost,
            original.cost if original else math.inf,
            two_phase.cost if two_phase else math.inf,
            cost if cost - bound <= 1e-9 * cost else bound,
            "e-graph" if whole else "pool",
            method,
            len(self._pool),
            time.perf_counter() - self._started,
            self._target,
            self._model,
        )

    def _bound(
        self, share: float, attempts: Sequence[tuple[int, int, float]], slack: float, workers: Workers
    ) -> float | None:
        """A bound over all kernels, ``None`` if there is none; its choice is offered as a program if it proves none optimal."""
        cost, _, plan, _ = self._best or (float("inf"), {}, None, "")
        kernels = plan.kernels.values() if plan else ()
        problem = self._graph, self._target, self._model
        blocks = None
        if self.is_large:
            coarse = self._is_coarse
            limit = self._left(_BLOCKS_SHARE if coarse else share)
            blocks = blockwise_bound(
                *problem, time_limit_s=limit, kernels=kernels, coarse=coarse, slack=slack, workers=workers
            )
            if blocks is not None:
                take = _LATER_SHARE if slack < _SLACK else _ALMOST if coarse else share
                self._take_blocks(blocks, self._left(take), slack, workers)
                if self._proved(blocks.bound) or len(self._graph.operations) > _WHOLE_OPERATIONS:
                    return blocks.bound
        alone = self.is_large and blocks is None and bool(self._target.templates)
        least = blocks.bound if blocks else 0.0
        for tried in (attempts, COARSEST):
            left = self._left(_ALMOST if alone else share)  # a second attempt would be cut short, too
            relaxed = relaxed_bound(
                *problem, time_limit_s=left, kernels=kernels, attempts=tried, cutoff=cost, coarse=alone
            )
            if relaxed is not None:
                self._take(relaxed.bound, relaxed.operations, relaxed.groups)
                least = max(least, relaxed.bound)
            if relaxed is None or not relaxed.detail or least > _USEFUL * cost:  # else it was too large to be solved
                break
        return least or None

    def _take_blocks(self, blocks: Blockwise, time_limit_s: float, slack: float, workers: Workers) -> None:
        """Offers what was chosen block by block, the spelling of its integers chosen, too."""
        if self._proved(blocks.bound) or self._best is None:
            return
        usable = [i in blocks.operations or o.is_view for i, o in enumerate(self._graph.operations)]
        problem = self._graph, self._target, self._model
        found = blockwise_bound(
            *problem,
            time_limit_s=time_limit_s,
            kernels=self._best[2].kernels.values(),
            usable=usable,
            coarse=False,
            slack=slack,
            workers=workers,
        )
        if found is not None:
            self._take(blocks.bound, found.operations, found.groups)

    def _take(self, bound: float, operations: frozenset[int], groups: Sequence[ChosenGroup]) -> None:
        """Offers what a relaxed problem chose, first in its kernels."""
        choice = None if self._proved(bound) else spanned(self._graph, operations, groups)
        if choice is None:
            return
        choice = needed(self._graph, with_written_signs(self._graph, choice, groups))
        plan = covering_of(self._graph, choice, groups, self._target, self._prices)
        if plan is not None:
            self._pool.add(cone for cone in plan.kernels.values() if not cone.also)
            self._remember(choice, plan, "relaxation")
        if not self._proved(bound):
            self._offer(choice, "relaxation")

    def _proved(self, bound: float) -> bool:
        return self._best is not None and self._best[0] <= bound * (1 + 1e-9)

    def _improve(self) -> float:
        """Coverings from the pool, which grows around the best program. Returns the bound over the pool."""
        bound = 0.0
        for number in range(_ROUNDS):
            known = self._best
            incumbents = [c.kernels for c in self._coverings]
            found = cover(self._graph, self._pool, self._target, time_limit_s=self._left(0.5), incumbents=incumbents)
            bound = found.lower_bound
            self._coverings.append(found)
            self._offer(found.choice(self._graph), found.method)
            assert self._best is not None
            if number and known is not None and self._best[0] >= known[0] * (1 - 1e-9):
                break
            if self._proved(bound) or self._left(1.0) <= 0:
                break
        return bound

    def _left(self, share: float) -> float:
        return max(0.0, self._limit_s - (time.perf_counter() - self._started)) * share

    def _enumerate(self) -> bool:
        """Fills the pool from the whole e-graph; returns whether cones are missing."""
        large = sum(map(len, self._graph.members)) > _EXHAUSTIVE_OPERATIONS
        every = ConePool(
            self._graph,
            self._target,
            self._prices,
            limit=_WHOLE_POOL if large else _EXHAUSTIVE,
            deadline=time.perf_counter() + self._left(0.3 if large else 0.1),
            total_limit=_EXHAUSTIVE_TOTAL * (10 if large else 1),
        )
        if every.truncated and not large:
            every = ConePool(
                self._graph,
                self._target,
                self._prices,
                limit=_WHOLE_POOL,
                deadline=time.perf_counter() + self._left(0.3),
            )
        self._pool.add(every.kernels())
        return every.truncated

    def _offer(self, choice: dict[int, int], stage: str, cones: int = CHOICE_POOL) -> Covering | None:
        """Fuses a program, and remembers it if it is the best so far. Returns its kernels, ``None`` if it has none."""
        share = 0.2 if cones == _WHOLE_POOL else 0.5
        if self._has_bound and stage in ("original", "two-phase"):
            share *= _LEADING
        try:
            plan = plan_kernels(
                self._graph,
                choice,
                self._target,
                self._model,
                method=method_of(self._target),
                time_limit_s=max(1.0, self._left(share)),
                prices=self._prices,
                pool=self._pool,
                cones=cones,
            )
        except NoKernelError:
            return None
        if plan.method != "post-dominator":
            self._coverings.append(plan)
            plan = merged_covering(self._graph.restricted(choice), plan, self._target, self._prices)
        self._remember(choice, plan, stage)
        return plan

    def _remember(self, choice: dict[int, int], plan: Covering, stage: str) -> None:
        if not self._best or plan.cost < self._best[0] * (1 - 1e-12):
            self._best = (plan.cost, choice, plan, stage)
