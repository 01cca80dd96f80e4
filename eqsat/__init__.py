"""eqsat: equality saturation for neural network graphs.

>>> import eqsat
>>> b = eqsat.GraphBuilder("twice")
>>> x = b.input("x", "float32", (2,))
>>> result = eqsat.optimize(b.finish({"y": b.op("Identity", b.op("Identity", x))}), verify=False)
>>> result.report.operators_after
{'Identity': 1}
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eqsat._version import __version__

if TYPE_CHECKING:
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

_HOME = {
    "Comparison": "eqsat.comparison",
    "Condition": "eqsat.rewrite",
    "EqsatError": "eqsat.errors",
    "Exactness": "eqsat.exactness",
    "FeedError": "eqsat.errors",
    "Graph": "eqsat.ir.graph",
    "GraphBuilder": "eqsat.ir.build",
    "GroupView": "eqsat.rewrite",
    "Match": "eqsat.rewrite",
    "MemoryBudgetError": "eqsat.errors",
    "ModelError": "eqsat.errors",
    "Node": "eqsat.ir.graph",
    "OptionError": "eqsat.errors",
    "Options": "eqsat.options",
    "OutputError": "eqsat.errors",
    "ParetoFront": "eqsat.comparison",
    "Ref": "eqsat.rewrite",
    "Result": "eqsat.pipeline",
    "RuleError": "eqsat.errors",
    "ShapeError": "eqsat.errors",
    "Unmet": "eqsat.rewrite",
    "VerificationError": "eqsat.errors",
    "apply": "eqsat.rewrite",
    "compare": "eqsat.comparison",
    "group_rule": "eqsat.rule_check.registration",
    "literal": "eqsat.rewrite",
    "load": "eqsat.pipeline",
    "optimize": "eqsat.pipeline",
    "pareto": "eqsat.comparison",
    "rule": "eqsat.rule_check.registration",
    "run": "eqsat.engines",
    "variables": "eqsat.rewrite",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for, and no more: the command line answers at once, and only commands that need it load the rest."""
    if name in _HOME:
        found = getattr(import_module(_HOME[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'eqsat' has no attribute {name!r}")
    else:
        try:
            found = import_module(f"eqsat.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"eqsat.{name}":
                raise
            raise AttributeError(f"module 'eqsat' has no attribute {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
