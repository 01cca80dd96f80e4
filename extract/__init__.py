"""Optimal DAG extraction: from an e-graph, the acyclic choice of e-nodes with the least total cost.

The package knows nothing of tensors: it works on flat integer lists (`ExtractionProblem`). ``extract(problem)`` runs these,
each on what the previous one left:

- ``knuth``: tree-optimal costs, feasibility, an acyclic choice and an order of the e-classes;
- ``required``, ``reduce``: the e-classes that every derivation needs; reductions to a fixpoint with their help;
- ``decompose``: connected components, equal ones (repeated layers) solved once;
- ``area``, ``greedy``: heuristic choices; ``landmarks``: a bound, cuts, and reduced costs that delete e-nodes;
- ``branch``: exact search where a handful of choices is left;
- ``model``, ``cycles``, ``milp``: the linear relaxation with cuts, then the MILP;
- ``effort`` counts the work and limits it, the same on every machine;
- ``search`` puts these in order, ``solve`` is the entry point and evaluates every choice on the original problem.

Costs are not negative: most reductions and all bounds rest on that.
"""

if __name__ != "eqsat.extract":
    raise ImportError("import this package as eqsat.extract")

from eqsat.extract.effort import STEPS_PER_SECOND, Effort, WorkDone
from eqsat.extract.problem import ExtractionError, ExtractionProblem, ExtractionResult, gap_of
from eqsat.extract.solve import DEFAULT_STEPS, METHODS, extract

__all__ = [
    "DEFAULT_STEPS",
    "METHODS",
    "STEPS_PER_SECOND",
    "Effort",
    "ExtractionError",
    "ExtractionProblem",
    "ExtractionResult",
    "WorkDone",
    "extract",
    "gap_of",
]
