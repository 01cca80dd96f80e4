"""eqsat: equality saturation for neural network graphs.

>>> import eqsat
>>> b = eqsat.GraphBuilder("twice")
>>> x = b.input("x", "float32", (2,))
>>> result = eqsat.optimize(b.finish({"y": b.op("Identity", b.op("Identity", x))}), verify=False)
>>> result.report.operators_after
{'Identity': 1}
"""

from eqsat._version import __version__
from eqsat.comparison import Comparison, ParetoFront, compare, pareto
from eqsat.engines import run
from eqsat.errors import (
    EqsatError,
    FeedError,
    MemoryBudgetError,
    ModelError,
    OptionError,
    OutputError,
    RuleError,
    ShapeError,
    VerificationError,
)
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph, Node
from eqsat.pipeline import Options, Result, load, optimize

__all__ = [
    "Comparison",
    "EqsatError",
    "Exactness",
    "FeedError",
    "Graph",
    "GraphBuilder",
    "MemoryBudgetError",
    "ModelError",
    "Node",
    "OptionError",
    "Options",
    "OutputError",
    "ParetoFront",
    "Result",
    "RuleError",
    "ShapeError",
    "VerificationError",
    "__version__",
    "compare",
    "load",
    "optimize",
    "pareto",
    "run",
]
