"""The entry point: which stages run, in which order, under which limit."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress

from eqsat.errors import OptionError
from eqsat.extract.area import AreaSearch, area_choice
from eqsat.extract.core import Core, flatten_parts
from eqsat.extract.effort import STEPS_PER_SECOND, Effort, WorkDone
from eqsat.extract.greedy import greedy_dag
from eqsat.extract.knuth import knuth
from eqsat.extract.milp import PROOF_TOLERANCE, Bracket, MilpSearch, near_choice
from eqsat.extract.problem import ExtractionError, ExtractionProblem, ExtractionResult, evaluate_choice
from eqsat.extract.required import required_classes
from eqsat.extract.search import search_core

METHODS = ("auto", "milp", "area", "greedy-dag", "tree")

DEFAULT_STEPS = 20 * STEPS_PER_SECOND

# The rest of the effort is for further heuristics where the exact stages did not finish.
_EXACT_SHARE = 0.93


def extract(
    problem: ExtractionProblem,
    *,
    method: str = "auto",
    effort: Effort | None = None,
    incumbent: Mapping[int, int] | None = None,
    cutoff: float = float("inf"),
    slack: float = 0.0,
) -> ExtractionResult:
    """Choose one e-node per needed e-class: acyclic, deriving all roots, of least DAG cost.

    ``method``: "tree" (Knuth's tree-optimal choice), "greedy-dag" (bottom-up with cost sets), "area" (area flow and
    local search), "milp" (the whole problem as one MILP), "auto" (reductions, decomposition, heuristics, landmark
    bounds, then MILPs on what remains). The result is never dearer than ``incumbent``, a known acyclic choice (e-class
    -> e-node). Choices that cost ``cutoff`` or more are of no interest (method "auto"): where none is cheaper, the bound
    is the cutoff, and the choice may be any. ``slack``: a bound so far below the cost is good enough
    (method "auto"). ``effort`` is a limit of work (`DEFAULT_STEPS` unless given), not an error: the best choice and
    bound found are returned. The same input and limit of work give the same choice, unless a ceiling in seconds is hit first.

    Raises :class:`ExtractionError` if the problem is malformed or has no choice of finite cost, or if ``incumbent`` is
    not an acyclic choice of the roots, and :class:`eqsat.errors.OptionError` for an unknown method.

    >>> problem = ExtractionProblem(2, [0, 0, 1], [(1, 1), (), ()], [1.0, 5.0, 2.0], (0,))
    >>> result = extract(problem)
    >>> result.choice, result.cost, result.optimal
    ({1: 2, 0: 0}, 3.0, True)
    """
    started = time.perf_counter()
    if method not in METHODS:
        raise OptionError(f"extraction method '{method}' does not exist; use one of: {', '.join(METHODS)}")
    problem.check()
    given = effort or Effort(DEFAULT_STEPS)
    effort = given.part(1.0, work=WorkDone())
    best = _Best(problem)
    if incumbent is not None:
        best.offer("incumbent", incumbent)
    core = Core.from_problem(problem)
    effort.spend(6 * problem.node_count)
    bound = 0.0
    if method == "greedy-dag":
        best.offer_if_acyclic(method, greedy_dag(problem, effort))
    elif method != "tree":
        chosen, bound, stage = _solve_core(core, method, effort.part(_EXACT_SHARE), cutoff, slack)
        best.offer(stage, _choice_of(problem, flatten_parts(chosen)))
    tree = knuth(problem.class_count, problem.node_class, problem.node_children, problem.node_cost)
    best.offer("tree", {c: n for c, n in enumerate(tree.choice) if n >= 0})
    limit = min(best.cost, cutoff)
    if method in ("auto", "milp", "area") and limit - bound > max(PROOF_TOLERANCE * limit, slack):
        if method == "auto":
            best.offer_if_acyclic("greedy-dag", greedy_dag(problem, effort.part(0.5)))
        best.offer("area", _polished(problem, core, best.choice, effort))
    closed = cutoff < best.cost and cutoff - bound <= PROOF_TOLERANCE * cutoff
    given.work.add(effort.work)
    return best.result(cutoff if closed else bound, effort.work, started)


class _Best:
    """The cheapest of the choices offered, each evaluated on the original problem."""

    def __init__(self, problem: ExtractionProblem) -> None:
        self.problem = problem
        self.choice: dict[int, int] = {}
        self.cost = float("inf")
        self.stage = ""

    def offer(self, stage: str, choice: Mapping[int, int]) -> None:
        """Take ``choice`` if it is cheaper. Raises :class:`ExtractionError` naming ``stage`` if it derives no root."""
        try:
            needed, cost = evaluate_choice(self.problem, choice)
        except ExtractionError as error:
            raise ExtractionError(f"{stage} {error}") from error
        if not self.stage or cost < self.cost * (1 - 1e-12):
            self.choice, self.cost, self.stage = needed, cost, stage

    def offer_if_acyclic(self, stage: str, choice: Mapping[int, int]) -> None:
        """Take ``choice`` if it is cheaper; ignore it if it is incomplete or cyclic."""
        with suppress(ExtractionError):
            self.offer(stage, choice)

    def result(self, bound: float, work: WorkDone, started: float) -> ExtractionResult:
        """Return the result for a proven lower bound."""
        bound = self.cost if self.cost - bound <= PROOF_TOLERANCE * self.cost else bound
        return ExtractionResult(self.choice, self.cost, bound, self.stage, work, time.perf_counter() - started)


def _solve_core(
    core: Core, method: str, effort: Effort, cutoff: float, slack: float
) -> tuple[list[object], float, str]:
    """Return the parts of the nodes chosen in ``core``, a lower bound, and the stage that found them."""
    if method == "auto":
        solution = search_core(core.copied(), effort, cutoff=cutoff, slack=slack)
        return solution.chosen, solution.bound, solution.stage
    bracket = Bracket(*area_choice(core, effort))
    if method == "milp":
        required = required_classes(core, effort)
        if required is not None:
            search = MilpSearch(core, required, bracket, None, effort)
            search.tighten()
            search.finish()
    return [core.parts[bracket.choice[c]] for c in core.needed(bracket.choice)], bracket.bound, bracket.stage


def _choice_of(problem: ExtractionProblem, nodes: list[int]) -> dict[int, int]:
    """Return a choice among ``nodes`` without a cycle: reductions may leave two free derivations of a class in use."""
    if len({problem.node_class[n] for n in nodes}) == len(nodes):
        return {problem.node_class[n]: n for n in nodes}
    cost = [float("inf")] * problem.node_count
    for node in nodes:
        cost[node] = problem.node_cost[node]
    tree = knuth(problem.class_count, problem.node_class, problem.node_children, cost)
    return {c: n for c, n in enumerate(tree.choice) if n >= 0}


def _polished(problem: ExtractionProblem, core: Core, choice: Mapping[int, int], effort: Effort) -> dict[int, int]:
    """Return ``choice`` (of e-nodes of the problem) after a local search on all of the problem."""
    nodes = set(choice.values())
    amount = [float(part in nodes) for part in core.parts]
    least = 1e-6 * math.fsum(core.cost[n] for n, a in enumerate(amount) if a) / max(1, len(nodes))
    polished = AreaSearch(core, near_choice(core, amount, least)).run(effort)
    found = [core.parts[polished[c]] for c in core.needed(polished)]
    return {problem.node_class[n]: n for n in found}
