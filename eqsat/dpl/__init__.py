"""TVM's dataflow pattern language over `eqsat.Graph`; docs/dpl.md says what differs.

>>> import eqsat
>>> from eqsat.dpl import call, is_op, rewrite_call, wildcard
>>> b = eqsat.GraphBuilder()
>>> v = b.input("v", "float32", (2,))
>>> graph = b.finish({"y": b.op("Add", v, v)})
>>> x = wildcard()
>>> print(rewrite_call(is_op("add")(x, x), lambda expr, matches: matches[x] * 2.0, graph))
graph graph(v: float32[2]) -> (y: float32[2])
  y: float32[2] = Mul(v, 2.0)
"""

from eqsat.dpl.context import PatternContext
from eqsat.dpl.expr import Call, Const, Expr, Item, Tuple, Var, call, const, same
from eqsat.dpl.graphs import graph_of
from eqsat.dpl.partitioning import Partition, find, partition
from eqsat.dpl.pattern import (
    Pattern,
    dominates,
    has_attr,
    has_dtype,
    has_shape,
    is_const,
    is_constant,
    is_expr,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    wildcard,
)
from eqsat.dpl.rewriter import Rewriter
from eqsat.dpl.rewriting import RewriteReport, RewrittenGraph, rewrite_bindings, rewrite_call

__all__ = [
    "Call",
    "Const",
    "Expr",
    "Item",
    "Partition",
    "Pattern",
    "PatternContext",
    "RewriteReport",
    "Rewriter",
    "RewrittenGraph",
    "Tuple",
    "Var",
    "call",
    "const",
    "dominates",
    "find",
    "graph_of",
    "has_attr",
    "has_dtype",
    "has_shape",
    "is_const",
    "is_constant",
    "is_expr",
    "is_op",
    "is_tuple",
    "is_tuple_get_item",
    "is_var",
    "partition",
    "rewrite_bindings",
    "rewrite_call",
    "same",
    "wildcard",
]
