"""The entry point: which stages run, in which order, under which time limit."""

import time
from collections.abc import Mapping

from eqsat.errors import OptionError
from eqsat.extract.area import area_choice
from eqsat.extract.core import Core, flatten_parts
from eqsat.extract.errors import ExtractionError
from eqsat.extract.greedy import greedy_dag
from eqsat.extract.knuth import knuth
from eqsat.extract.milp import PROOF_TOLERANCE, Bracket, MilpSearch
from eqsat.extract.problem import ExtractionProblem, evaluate_choice
from eqsat.extract.required import required_classes
from eqsat.extract.result import ExtractionResult
from eqsat.extract.search import search_core

METHODS = ("auto", "milp", "area", "greedy-dag", "tree")


def extract(
    problem: ExtractionProblem,
    *,
    method: str = "auto",
    time_limit_s: float = 30.0,
    incumbent: Mapping[int, int] | None = None,
) -> ExtractionResult:
    """Choose one e-node per needed e-class: acyclic, deriving all roots, of least DAG cost.

    ``method``: "tree" (Knuth's tree-optimal choice), "greedy-dag", "area" (area flow and local search), "milp" (the
    whole problem as one MILP), "auto" (reductions, decomposition, heuristics, then MILPs on what remains). The result is
    never dearer than ``incumbent``, a known acyclic choice (e-class -> e-node). ``time_limit_s`` is a limit in seconds,
    not an error: the best choice and bound found are returned. The same input gives the same choice unless the limit is
    hit. Raises :class:`ExtractionError` if the problem is malformed or has no choice of finite cost, and
    :class:`eqsat.errors.OptionError` for an unknown method.
    """
    started = time.perf_counter()
    if method not in METHODS:
        raise OptionError(f"extraction method '{method}' does not exist; use one of: {', '.join(METHODS)}")
    problem.check()
    deadline = started + time_limit_s
    tree = knuth(problem.class_count, problem.node_class, problem.node_children, problem.node_cost)
    for root in problem.roots:
        if tree.choice[root] < 0:
            raise ExtractionError(
                f"root e-class {root}: no acyclic choice of finite cost derives it; "
                "give it a derivation from leaves or lift an infinite cost"
            )
    candidates: list[tuple[str, Mapping[int, int]]] = []
    bound = 0.0
    if method == "greedy-dag":
        candidates.append((method, greedy_dag(problem, deadline)))
    elif method != "tree":
        core = Core.from_problem(problem)
        found, bound, stage = _solve_core(core, method, deadline)
        nodes = flatten_parts(found)
        candidates.append((stage, {problem.node_class[n]: n for n in nodes}))
    candidates.append(("tree", {c: n for c, n in enumerate(tree.choice) if n >= 0}))
    if incumbent is not None:
        candidates.append(("incumbent", incumbent))
    return _best(problem, candidates, bound, started)


def _best(
    problem: ExtractionProblem, candidates: list[tuple[str, Mapping[int, int]]], bound: float, started: float
) -> ExtractionResult:
    """Evaluate the candidates on the original problem and return the first of least cost."""
    best: tuple[float, str, dict[int, int]] | None = None
    for stage, choice in candidates:
        try:
            needed, cost = evaluate_choice(problem, choice)
        except ExtractionError:
            if stage != "greedy-dag":  # its cost sets may be stale: the one stage that may end in a cycle
                raise
            continue
        if best is None or cost < best[0] * (1 - 1e-12):
            best = (cost, stage, needed)
    assert best is not None
    cost, stage, needed = best
    optimal = cost - bound <= PROOF_TOLERANCE * cost
    bound = cost if optimal else bound
    gap = 0.0 if optimal else (cost - bound) / cost
    return ExtractionResult(needed, cost, bound, gap, optimal, stage, time.perf_counter() - started)


def _solve_core(core: Core, method: str, deadline: float) -> tuple[list[object], float, str]:
    """Return the parts of the nodes chosen in ``core``, a lower bound with ``base``, and the stage that found them."""
    if method == "auto":
        solution = search_core(core, deadline)
        return solution.chosen, solution.bound, solution.stage
    bracket = Bracket(*area_choice(core, deadline))
    if method == "milp":
        required = required_classes(core, deadline)
        if required is not None:
            search = MilpSearch(core, required, bracket, None)
            search.tighten(deadline)
            search.finish(deadline)
    return [core.parts[bracket.choice[c]] for c in core.needed(bracket.choice)], bracket.bound, bracket.stage
