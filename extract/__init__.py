"""Optimal DAG extraction: from an e-graph, the acyclic choice of e-nodes with the least total cost.

The package knows nothing of tensors: it works on flat integer lists (:class:`ExtractionProblem`).
"""

if __name__ != "eqsat.extract":
    raise ImportError("import this package as eqsat.extract")

from eqsat.extract.errors import ExtractionError
from eqsat.extract.problem import ExtractionProblem
from eqsat.extract.result import ExtractionResult
from eqsat.extract.solve import METHODS, extract

__all__ = ["METHODS", "ExtractionError", "ExtractionProblem", "ExtractionResult", "extract"]
