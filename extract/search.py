"""The exact search on a core: reduce, split, bound, prune, and again on what is left."""

import math
from dataclasses import dataclass

from eqsat.extract.area import AreaSearch, area_choice
from eqsat.extract.branch import branch_and_bound
from eqsat.extract.core import Core, flatten_parts
from eqsat.extract.decompose import equal_parts, split_components
from eqsat.extract.effort import Effort
from eqsat.extract.fold import eliminate_free_classes
from eqsat.extract.greedy import greedy_dag
from eqsat.extract.knuth import knuth
from eqsat.extract.landmarks import Landmarks, critical_value, landmark_bound
from eqsat.extract.milp import Bracket, MilpSearch, near_choice
from eqsat.extract.problem import ExtractionError, ExtractionProblem
from eqsat.extract.reduce import reduce_core
from eqsat.extract.required import has_large_requirements, required_classes, requirements_of_nodes

_BRANCH_STEPS = 500
_MAX_DEPTH = 6
_STAGES = ("reduce", "area", "landmarks", "greedy-dag", "branch", "milp")


@dataclass(slots=True)
class Solution:
    """The nodes chosen in a core (numbers in ``parts``), a proven lower bound with ``base``, the decisive stage."""

    chosen: list[object]
    bound: float
    stage: str


def search_core(
    core: Core,
    effort: Effort,
    depth: int = 0,
    *,
    cutoff: float,
    slack: float,
) -> Solution:
    """Solve ``core`` (consumed) as far as ``effort`` allows; choices that cost ``cutoff`` or more are of no interest.

    ``slack``: how far the bound may stay below the cost."""
    core = reduce_core(core, effort)
    if not depth and eliminate_free_classes(core, effort):
        core = reduce_core(core.compacted(), effort)
    parts = split_components(core)
    solved: dict[object, tuple[Bracket, list[int]]] = {}
    equal = equal_parts(parts)
    remaining = sum(len(part.owner) for part in parts)
    least: dict[object, float] = {}
    if len(parts) > 1:
        least = {key: critical_value(part, part.cost, effort) for part, (key, _) in zip(parts, equal, strict=True)}

    def left(key: object) -> float:
        """What a part may cost at most if the others cost what they cost at least."""
        others = math.fsum(least[other] for other, _ in equal) - least[key] if least else 0.0
        return cutoff - core.base - others

    def look(part: Core, key: object, order: list[int], share: Effort) -> None:
        bracket = _search_part(part, share, depth, left(key), slack / len(parts))
        known = solved[key][0] if key in solved else bracket
        least[key] = bracket.bound = max(bracket.bound, known.bound)
        if bracket.cost <= known.cost:
            place = {node: i for i, node in enumerate(order)}
            solved[key] = bracket, [place[bracket.choice[c]] for c in part.needed(bracket.choice)]

    for part, (key, order) in zip(parts, equal, strict=True):
        if key not in solved:
            look(part, key, order, effort.part(max(0.2, len(part.owner) / remaining)))
        remaining -= len(part.owner)
    again = {key for key, (bracket, _) in solved.items() if len(solved) > 1 and not bracket.closed()}
    for part, (key, order) in zip(parts, equal, strict=True):  # what one part leaves goes to the others
        if key in again and not effort.over():
            again.discard(key)
            look(part, key, order, effort)
    solution = Solution(list(core.fixed), core.base, "reduce")
    for part, (key, order) in zip(parts, equal, strict=True):
        bracket, places = solved[key]
        solution.stage = max(solution.stage, bracket.stage, key=_STAGES.index)
        solution.bound += bracket.bound
        solution.chosen.extend(core.parts[part.parts[order[i]]] for i in places)
    return solution


def _search_part(part: Core, effort: Effort, depth: int, cutoff: float, slack: float) -> Bracket:
    """Bracket one connected component."""
    bracket = Bracket(*area_choice(part, effort), cutoff, slack)
    bracket.raise_bound(critical_value(part, part.cost, effort))
    required = None if has_large_requirements(part) else required_classes(part, effort)
    if required is None or effort.over():
        return bracket
    below = requirements_of_nodes(part, required)
    landmarks = landmark_bound(part, below, part.cost, part.roots, effort, bracket.limit)
    bracket.raise_bound(landmarks.bound)
    if cutoff < bracket.cost:
        useless = bracket.useless(landmarks.reduced, landmarks.bound)
        if bracket.closed() or _search_pruned(part, bracket, useless, 0.3, effort, depth):
            return bracket
    if not bracket.closed():
        _offer_landmark_choice(part, landmarks, bracket, effort)
    if bracket.closed() or effort.over():
        return bracket
    if _search_pruned(part, bracket, bracket.useless(landmarks.reduced, landmarks.bound), 0.1, effort, depth):
        return bracket
    choice, cost, proved = branch_and_bound(part, required, bracket.choice, bracket.limit, _BRANCH_STEPS, effort)
    if cost < bracket.limit:
        bracket.offer(part, choice, "branch")
    if proved:
        bracket.bound = bracket.limit
        return bracket
    search = MilpSearch(part, required, bracket, landmarks, effort)
    search.tighten()
    if not bracket.closed():
        _offer_greedy_choice(part, bracket, effort)
    if bracket.closed() or _search_pruned(part, bracket, search.useless, 0.2, effort, depth):
        return bracket
    search.finish()
    return bracket


def _offer_landmark_choice(part: Core, landmarks: Landmarks, bracket: Bracket, effort: Effort) -> None:
    """Offer the choice that is cheapest in reduced costs: an optimum has reduced cost near 0 where the bound is tight."""
    least = 1e-6 * bracket.cost / max(1, len(part.nodes))
    cost = [r + 1e-3 * c + least for r, c in zip(landmarks.reduced, part.cost, strict=True)]
    choice = knuth(len(part.nodes), part.owner, part.children, cost).choice
    bracket.offer(part, AreaSearch(part, choice).run(effort), "landmarks")


def _offer_greedy_choice(part: Core, bracket: Bracket, effort: Effort) -> None:
    """Offer the greedy DAG choice after local search, as far as a fraction of the effort left suffices for it."""
    problem = ExtractionProblem(len(part.nodes), part.owner, part.children, part.cost, tuple(sorted(part.roots)))
    amount = [0.0] * len(part.owner)
    for node in greedy_dag(problem, effort.part(0.1)).values():
        amount[node] = 1.0
    choice = near_choice(part, amount, 1e-6 * bracket.cost / max(1, len(part.nodes)))
    bracket.offer(part, choice, "greedy-dag")
    bracket.offer(part, AreaSearch(part, choice).run(effort), "greedy-dag")


def _search_pruned(
    part: Core, bracket: Bracket, useless: list[bool], least_share: float, effort: Effort, depth: int
) -> bool:
    """Search ``part`` without its useless nodes if they are at least ``least_share`` of it; tell whether it was done."""
    if sum(useless) < least_share * len(useless) or depth >= _MAX_DEPTH or effort.over():
        return False
    nodes = [[n for n in members if not useless[n]] for members in part.nodes]
    smaller = Core(
        nodes, list(part.owner), list(part.children), list(part.cost), list(range(len(part.owner))), part.roots
    )
    try:
        smaller = smaller.compacted()
    except ExtractionError:  # no choice costs less than the limit
        bracket.bound = bracket.limit
        return True
    solution = search_core(smaller, effort, depth + 1, cutoff=bracket.limit, slack=bracket.slack)
    amount = [0.0] * len(part.owner)
    for node in flatten_parts(solution.chosen):
        amount[node] = 1.0
    bracket.offer(part, near_choice(part, amount, 1e-6 * bracket.cost), solution.stage)
    bracket.raise_bound(solution.bound)
    return True
