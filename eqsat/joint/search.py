"""Joint extraction: e-nodes and kernels chosen together, so that a spelling is chosen for how well it fuses.

A cone of an e-class (`eqsat.fusion.cones`) is an e-node of a larger e-graph, whose children are the classes it reads; the
cheapest program is a plain DAG extraction there. The pool holds a few cones for each class of the whole e-graph and many for
the programs found so far, and grows around the best program until that no longer improves.
"""

import math
import time

from eqsat.cost.model import CostModel, rates_of
from eqsat.cost.target import Target
from eqsat.egraph.encode import Encoding
from eqsat.egraph.snapshot import Snapshot
from eqsat.extract import DEFAULT_STEPS, Effort, WorkDone
from eqsat.fusion.partition import launches
from eqsat.joint.candidates import Candidates
from eqsat.joint.improving import Improving
from eqsat.joint.result import JointSelection, choice_of_handles, groups_of, handles_of_choice, original_choice
from eqsat.joint.snapshot_graph import graph_of_snapshot
from eqsat.lower.selection import Writable, select

_BLOCKWISE_OPERATIONS = 1_500
"""Larger graphs are bounded block by block first."""
_COARSE_OPERATIONS = 4_000
"""Blocks of larger graphs are looked at less closely."""
_STEPS_TO_READ = 60
"""For each operation of the e-graph: what reading it takes."""
_STEPS_TO_BOUND, _STEPS_TO_SEARCH = 800, 4_000
"""For each operation of the e-graph: what it takes at least for a bound over all kernels to come to something, and for a search
that it leads."""
_LEAST_SHARE = 0.2
"""Share of the limit that a search in the pool needs to come to something."""


def select_joint(
    encoding: Encoding,
    snapshot: Snapshot,
    model: CostModel,
    target: Target,
    *,
    effort: Effort | None = None,
    writable: Writable = lambda op, types: True,
) -> JointSelection:
    """The cheapest program and its kernels, never dearer than the original or the choice by the prices of single operators, each
    fused as well as possible.

    ``writable`` is as in `select`. A limit that is reached shows in ``bound_scope`` and ``gap``. Raises `NoKernelError` if the
    target cannot run the program in any spelling.
    """
    started = time.perf_counter()
    given = effort or Effort(DEFAULT_STEPS)
    effort = given.part(1.0, work=WorkDone())
    source = graph_of_snapshot(encoding, snapshot, target, writable)
    bounded = bool(target.templates) and rates_of(model, target) is not None
    effort.spend(_STEPS_TO_READ * len(source.graph.operations))
    inputs = source.inputs(snapshot)
    found = Improving(source.graph, target, model, effort=effort, inputs=inputs, bounded=bounded)
    original = found.offer(original_choice(source, snapshot), "original")
    additive = select(encoding, snapshot, model, target, effort=effort.part(0.25), writable=writable)
    found.offer(choice_of_handles(source, snapshot, additive.choice), "two-phase")
    found.look_around()
    bound, scope = _bounded(found) if bounded else _from_pool(found)
    given.work.add(effort.work)
    assert found.best is not None
    cost, plan = found.best.cost, found.best.plan
    bound = min(bound, cost)
    return JointSelection(
        choice=handles_of_choice(source, snapshot, found.best.choice),
        groups=groups_of(source, plan),
        kernels=launches(plan.kernels.values()),
        kernels_before=launches(original.kernels.values()) if original else 0,
        cost=cost,
        cost_before=original.cost if original else math.inf,
        lower_bound=cost if cost - bound <= 1e-9 * cost else bound,
        bound_scope=scope,
        method=found.best.stage,
        cones=len(found.pool),
        work=effort.work,
        seconds=time.perf_counter() - started,
        target=target,
        model=model,
    )


def _bounded(found: Improving) -> tuple[float, str]:
    """A bound and its scope where the target has kernels whose prices have the terms that the bound over all kernels is made of:
    that comes first, and leads to programs, too. With little effort left there is a bound that is had quickly, or none."""
    from eqsat.joint.bounding import FIRST, LATER, QUICK, Bounding  # only certificates need it

    size = len(found.graph.operations)
    if found.effort.left < _STEPS_TO_SEARCH * size:
        bound = None
        if found.effort.left >= _STEPS_TO_BOUND * size:
            bound = Bounding(found, blockwise=False, coarse=False).bound(QUICK)
        return bound or 0.0, "e-graph" if bound else "none"
    blockwise, coarse = size > _BLOCKWISE_OPERATIONS, size > _COARSE_OPERATIONS
    given = found.effort.left
    bounding = Bounding(found, blockwise=blockwise, coarse=coarse)
    relaxed = bounding.bound(FIRST)
    bound, scope = relaxed or 0.0, "e-graph" if relaxed is not None else "pool"
    if not found.proved(bound) and (relaxed is None or (found.effort.left > _LEAST_SHARE * given and not coarse)):
        bound, scope = _from_pool(found, relaxed)
    if scope == "e-graph" and not found.proved(bound) and found.effort.left > _LEAST_SHARE * given:
        bound = max(bound, bounding.bound(LATER) or 0.0)
    return bound, scope


def _from_pool(found: Candidates, relaxed: float | None = None) -> tuple[float, str]:
    """A bound and its scope from the cones enumerated, ``relaxed`` being one over all kernels."""
    target = found.target
    truncated = found.enumerate()
    pooled = found.improve()
    single = not any(t.several for t in target.templates)
    if single and not truncated and target.fusion == "cones":
        return max(relaxed or 0.0, pooled), "e-graph"
    if relaxed is not None:
        return relaxed, "e-graph"
    assert found.best is not None
    # Where the best program has kernels with several outputs, it may lie outside of the pool, and cost less than all in it.
    return (pooled if single or pooled <= found.best.cost else 0.0), "pool"
