"""eqsat: equality saturation for neural network graphs.

>>> import eqsat
>>> b = eqsat.GraphBuilder("twice")
>>> x = b.input("x", "float32", (2,))
>>> result = eqsat.optimize(b.finish({"y": b.op("Identity", b.op("Identity", x))}), verify=False)
>>> result.report.operators_after
{'Identity': 1}
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from eqsat._version import __version__

if _TYPE_CHECKING:
    from eqsat.api import bench, fastest, inspect, verify
    from eqsat.backends.custom_ops import load_custom_ops
    from eqsat.comparison import Comparison, ParetoFront, compare, pareto
    from eqsat.engines import run
    from eqsat.errors import (
        EqsatError,
        FeedError,
        LeftOutWarning,
        MemoryBudgetError,
        ModelError,
        OptionError,
        OutputError,
        RuleError,
        ShapeError,
        VerificationError,
    )
    from eqsat.exactness import Exactness
    from eqsat.frontends.registry import load
    from eqsat.ir.build import GraphBuilder
    from eqsat.ir.graph import Graph, Node
    from eqsat.options import Options
    from eqsat.pipeline import optimize
    from eqsat.report import Report
    from eqsat.result import Result
    from eqsat.rewrite import Condition, GroupView, Match, Ref, Unmet, apply, literal, variables
    from eqsat.rule_check.files import load_rules
    from eqsat.rule_check.registration import equation, group_rule, rule
    from eqsat.why import Explanation, explain

_HOMES = {
    "eqsat.api": "bench fastest inspect verify",
    "eqsat.backends.custom_ops": "load_custom_ops",
    "eqsat.comparison": "Comparison ParetoFront compare pareto",
    "eqsat.engines": "run",
    "eqsat.errors": "EqsatError FeedError LeftOutWarning MemoryBudgetError ModelError OptionError OutputError RuleError "
    "ShapeError VerificationError",
    "eqsat.exactness": "Exactness",
    "eqsat.ir.build": "GraphBuilder",
    "eqsat.ir.graph": "Graph Node",
    "eqsat.options": "Options",
    "eqsat.pipeline": "optimize",
    "eqsat.report": "Report",
    "eqsat.result": "Result",
    "eqsat.rewrite": "Condition GroupView Match Ref Unmet apply literal variables",
    "eqsat.rule_check.files": "load_rules",
    "eqsat.rule_check.registration": "equation group_rule rule",
    "eqsat.frontends.registry": "load",
    "eqsat.why": "Explanation explain",
}
"""Module -> names that it defines. Each is imported when it is first asked for, so that starting is quick."""

_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Comparison",
    "Condition",
    "EqsatError",
    "Exactness",
    "Explanation",
    "FeedError",
    "Graph",
    "GraphBuilder",
    "GroupView",
    "LeftOutWarning",
    "Match",
    "MemoryBudgetError",
    "ModelError",
    "Node",
    "OptionError",
    "Options",
    "OutputError",
    "ParetoFront",
    "Ref",
    "Report",
    "Result",
    "RuleError",
    "ShapeError",
    "Unmet",
    "VerificationError",
    "__version__",
    "apply",
    "bench",
    "compare",
    "equation",
    "explain",
    "fastest",
    "group_rule",
    "inspect",
    "literal",
    "load",
    "load_custom_ops",
    "load_rules",
    "optimize",
    "pareto",
    "rule",
    "run",
    "variables",
    "verify",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        found = getattr(_import_module(_HOME[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'eqsat' has no attribute {name!r}")
    else:
        try:
            found = _import_module(f"eqsat.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"eqsat.{name}":
                raise
            raise AttributeError(f"module 'eqsat' has no attribute {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
