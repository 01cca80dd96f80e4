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
from eqsat.options import Options
from eqsat.pipeline import Result, load, optimize
from eqsat.rewrite import Condition, GroupView, Match, Ref, Unmet, apply, literal, variables
from eqsat.rule_check.registration import group_rule, rule

__all__ = [
    "Comparison",
    "Condition",
    "EqsatError",
    "Exactness",
    "FeedError",
    "Graph",
    "GraphBuilder",
    "GroupView",
    "Match",
    "MemoryBudgetError",
    "ModelError",
    "Node",
    "OptionError",
    "Options",
    "OutputError",
    "ParetoFront",
    "Ref",
    "Result",
    "RuleError",
    "ShapeError",
    "Unmet",
    "VerificationError",
    "__version__",
    "apply",
    "compare",
    "group_rule",
    "literal",
    "load",
    "optimize",
    "pareto",
    "rule",
    "run",
    "variables",
]
