"""A lower bound over all programs of an e-graph and all kernels of a target: the relaxed problem of the whole graph, solved."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from eqsat.bounds.focus import focus_of
from eqsat.bounds.named_problem import Relaxed, in_graph
from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.relaxation import Relaxation
from eqsat.bounds.views import Merged, merge_views, usable_operations
from eqsat.cost.model import CostModel, rates_of
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import Effort, ExtractionProblem, extract
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.templates import Cone


class Attempt(NamedTuple):
    """Detail (`eqsat.bounds.focus`), most e-nodes, and the part of the effort within which the problem must be built."""

    detail: int
    most_nodes: int
    building: float


_FINE = Attempt(2, 70_000, 0.4)

COARSEST = (Attempt(0, 400_000, 0.6),)

FIRST_ATTEMPTS = (_FINE, Attempt(1, 45_000, 0.5), *COARSEST)
"""The finest problem if it can be built, else one of less detail, or the coarsest, which is sure to give a bound."""

LATER_ATTEMPTS = (_FINE, Attempt(1, 64_000, 0.8))
"""The finest again, as there is a better program to tell where to look, or else one that may give more than the coarsest."""

_MOST_OPERATIONS = 2_500
"""Of larger graphs only the coarsest problem is tried."""

_ABOVE = 5e-8
"""Of the cost of the best program: so much more may a choice for the relaxed problem cost, which is of rounded prices."""

_STEPS_TO_MERGE = 100
"""For each operation: what the way to the problem takes."""


def relaxed_bound(
    graph: FusionGraph,
    target: Target,
    model: CostModel,
    *,
    effort: Effort,
    kernels: Iterable[Cone] = (),
    attempts: Sequence[Attempt] = FIRST_ATTEMPTS,
    cutoff: float = float("inf"),
    coarse: bool = False,
) -> Relaxed | None:
    """A lower bound on the cost of every program and its kernels, ``None`` if the cost model or target has none, or the
    effort does not suffice.

    ``kernels``: those of a good program, which tell where to look closely (`eqsat.bounds.focus`). The first of ``attempts`` of
    which the problem can be built in time gives the bound. ``cutoff``: a bound above that is not looked for. ``coarse``: whether
    spellings of a value are one value (`eqsat.bounds.views`).
    """
    rates = rates_of(model, target)
    if rates is None:
        return None
    effort.spend(_STEPS_TO_MERGE * len(graph.operations))
    usable = usable_operations(graph, target)
    merged = merge_views(graph, usable, free=not rates.view, coarse=target if coarse and not rates.view else None)
    try:
        prerequisites = Prerequisites(graph, usable, merged, target)
    except EqsatError:
        return None
    focus = focus_of(graph, target, rates, merged, kernels)
    for detail, most, building in attempts:
        if detail and len(merged.graph.operations) > _MOST_OPERATIONS:
            continue
        seen = replace(focus, detail=detail)
        relaxation = Relaxation(merged.graph, prerequisites, target, rates, seen, effort.part(building))
        built = relaxation.build(most)
        if built is not None:
            return None if effort.over() else _solved(relaxation, built, merged, effort, cutoff)
    return None


def _solved(
    relaxation: Relaxation, built: ExtractionProblem, merged: Merged, effort: Effort, cutoff: float
) -> Relaxed | None:
    try:
        slack = 0.9 * effort.enough * cutoff if cutoff < float("inf") else 0.0
        found = extract(built, effort=effort, cutoff=cutoff * (1 + _ABOVE), slack=slack)
    except EqsatError:
        return None
    groups = [in_graph(group, merged) for group in relaxation.groups(found.choice)]
    return Relaxed(min(found.lower_bound, cutoff), groups, relaxation.detail)
