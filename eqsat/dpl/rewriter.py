"""`Rewriter`: replaces what one graph computes by what another one does, as TVM's ``R.rewriter`` does with functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eqsat.dpl.expr import Call, Const, Expr, Item, Var, apply, same, topological
from eqsat.dpl.graphs import lift
from eqsat.dpl.matching import Bindings, Matcher
from eqsat.dpl.pattern import CallPattern, ExprPattern, OpPattern, Pattern, TestPattern, TupleGetItemPattern, wildcard
from eqsat.dpl.rewriting import RewrittenGraph, calls_of, to_fixpoint
from eqsat.errors import RuleError
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import evaluate_node
from eqsat.ir.types import Dim, TensorType, compatible

FOLDED_SIZE = 1024
"""Elements up to which what a replacement computes from constants alone is computed when it is put in place."""


class Rewriter:
    """Replaces every occurrence of ``pattern`` in a graph by ``replacement``, until nothing changes.

    Both are graphs of inputs with the same names and types. An input stands for any value of its element type and shape; a
    symbolic extent for any extent, the same one wherever its name occurs. Operators match with their attributes, constants
    with their elements. A pattern of several outputs matches several values at once, none of which may be needed to compute
    what the match reads: none is computed twice. ``|`` joins rewriters: the first one that applies is taken.

    Raises `RuleError` where the two graphs do not fit each other. That they compute the same is taken as meant.

    >>> from eqsat.dpl import Var, graph_of
    >>> from eqsat.ir.types import tensor_type
    >>> x = Var("x", tensor_type("float32", ("n",)))
    >>> double = Rewriter(graph_of({"y": x + x}), graph_of({"y": x * 2.0}))
    >>> print(double(graph_of({"y": (x + x) * x})))
    graph graph(x: float32[n]) -> (y: float32[n])
      add_1: float32[n] = Mul(x, 2.0)
      y: float32[n] = Mul(add_1, x)
    """

    def __init__(self, pattern: Graph, replacement: Graph) -> None:
        for name, graph in (("pattern", pattern), ("replacement", replacement)):
            if not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise RuleError(f"the {name} of a rewriter is a graph, not {type(graph).__name__}")
        _check_signatures(pattern, replacement)
        self._parts: tuple[_Rewrite, ...] = (_Rewrite.of(pattern, replacement),)

    def __or__(self, other: Rewriter) -> Rewriter:
        joined = Rewriter.__new__(Rewriter)
        joined._parts = self._parts + other._parts
        return joined

    def __call__(self, graph: Graph, *, check: bool = False) -> RewrittenGraph:
        """The rewritten graph. Raises as `rewrite_call` does."""
        return to_fixpoint(graph, self._replacements, check=check)

    def _replacements(self, outputs: Sequence[Expr], values: Mapping[str, Expr]) -> dict[Expr, Expr]:
        matcher, order = Matcher(outputs), topological(outputs)
        found: dict[Expr, Expr] = {}
        consumed: set[Expr] = set()
        for part in self._parts:
            for bound in part.matches(matcher, order):
                made, calls = part.replacements(bound), calls_of(bound)
                # A match that reads what another one replaces is left to the next pass: two might need each other.
                if calls & consumed or found.keys() & set(topological(part.read(bound))) or not made:
                    continue
                found |= made
                consumed |= calls
        return found


@dataclass(frozen=True)
class _Rewrite:
    """A pattern graph as patterns: ``inputs`` by name and what they are declared as, ``outputs`` in order."""

    inputs: Mapping[str, Pattern]
    declared: Mapping[str, TensorType]
    outputs: tuple[Pattern, ...]
    replacement: Graph

    @staticmethod
    def of(pattern: Graph, replacement: Graph) -> _Rewrite:
        declared = {n: t for n in pattern.inputs if isinstance(t := pattern.type_of(n), TensorType)}
        values = lift(pattern)
        roots = [values[name] for name in pattern.outputs]
        made: dict[Expr, Pattern] = {}
        for expr in topological(roots):
            made[expr] = _pattern_of(expr, made, declared)
        for name, root in zip(pattern.outputs, roots, strict=True):
            if not isinstance(root, Call | Item):
                raise RuleError(f"output {name!r} of a rewriter's pattern is no operator's: it would match any value")
        inputs = {name: made[values[name]] for name in pattern.inputs if values[name] in made}
        return _Rewrite(inputs, declared, tuple(made[r] for r in roots), replacement)

    def matches(self, matcher: Matcher, order: Sequence[Expr]) -> Iterator[Bindings]:
        """Every match; that of the last output is looked for from the end of the graph."""
        for expr in reversed(order):
            for bound in matcher.matches(self.outputs[-1], expr, {}):
                yield from self._rest(matcher, order, self.outputs[:-1], bound)

    def _rest(
        self, matcher: Matcher, order: Sequence[Expr], outputs: Sequence[Pattern], bound: Bindings
    ) -> Iterator[Bindings]:
        if not outputs:
            if self._holds(bound):
                yield bound
            return
        for expr in order:
            for found in matcher.matches(outputs[0], expr, bound):
                yield from self._rest(matcher, order, outputs[1:], found)

    def read(self, bound: Bindings) -> list[Expr]:
        """The values that a match reads."""
        return [e for p in self.inputs.values() if isinstance(e := bound[p], Expr)]

    def _holds(self, bound: Bindings) -> bool:
        """Whether the outputs are different values, none of them needed by an input, and the extents agree."""
        roots = {e for p in self.outputs if isinstance(e := bound[p], Expr)}
        return (
            len(roots) == len(self.outputs) and self._extents(bound) and roots.isdisjoint(topological(self.read(bound)))
        )

    def _extents(self, bound: Bindings) -> bool:
        """Whether each symbolic extent of the pattern stands for one extent."""
        extents: dict[Dim, Dim] = {}
        for name, pattern in self.inputs.items():
            value, wanted = bound[pattern], self.declared[name].shape
            if wanted is None or not isinstance(value, Expr) or value.shape is None:
                continue
            for symbol, extent in zip(wanted, value.shape, strict=True):
                if isinstance(symbol, str) and extents.setdefault(symbol, extent) != extent:
                    return False
        return True

    def replacements(self, bound: Bindings) -> dict[Expr, Expr]:
        """What each matched output becomes; empty where nothing would change."""
        values: dict[str, Expr | None] = {"": None}
        values |= {n: e for n, p in self.inputs.items() if isinstance(e := bound[p], Expr)}
        values |= {n: Const(c) for n, c in self.replacement.constants.items()}
        for node in self.replacement.nodes:
            args = tuple(values[v] for v in node.inputs)
            if node.op == "Identity":  # an output that is an input, or another output
                values[node.outputs[0]] = args[0]
                continue
            made = _folded(apply(node, args))
            for index, name in enumerate(node.outputs):
                values[name] = made if len(node.outputs) == 1 else Item(made, index)
        found: dict[Expr, Expr] = {}
        for pattern, name in zip(self.outputs, self.replacement.outputs, strict=True):
            old, new = bound[pattern], values[name]
            assert isinstance(old, Expr)
            assert new is not None
            if old.type is not None and new.type is not None and not compatible(old.type, new.type):
                raise RuleError(f"a rewriter's replacement is {new.type}, what it replaces is {old.type}: {old!r:.100}")
            found[old] = new
        return {} if all(same(old, new) for old, new in found.items()) else found


def _pattern_of(expr: Expr, made: Mapping[Expr, Pattern], declared: Mapping[str, TensorType]) -> Pattern:
    if isinstance(expr, Var):
        wanted = declared[expr.name]
        return TestPattern(wildcard(), lambda e: _fits(wanted, e))
    if isinstance(expr, Const):
        return ExprPattern(expr)
    if isinstance(expr, Item):
        return TupleGetItemPattern(made[expr.of], expr.index)
    assert isinstance(expr, Call)
    known = (expr.attrs, expr.outputs, expr.node.opaque)
    head = CallPattern(OpPattern(expr.op), tuple(None if a is None else made[a] for a in expr.args))
    return TestPattern(head, lambda e: isinstance(e, Call) and (e.attrs, e.outputs, e.node.opaque) == known)


def _fits(wanted: TensorType, value: Expr) -> bool:
    """Whether a value is a tensor of that element type and of those extents that are numbers."""
    if not isinstance(value.type, TensorType) or value.type.dtype is not wanted.dtype:
        return False
    if wanted.shape is None:
        return True
    shape = value.type.shape
    if shape is None or len(shape) != len(wanted.shape):
        return False
    return all(isinstance(w, str) or w == d for w, d in zip(wanted.shape, shape, strict=True))


def _folded(made: Call) -> Expr:
    """A small constant in the place of an operator on constants, or of the shape of a value whose extents are known."""
    inputs: list[np.ndarray | None] = []
    for arg in made.args:
        if isinstance(arg, Const) and arg.data.size <= FOLDED_SIZE:
            inputs.append(arg.data.numpy())
        elif arg is None:
            inputs.append(None)
        elif made.op == "Shape" and isinstance(arg.type, TensorType) and arg.type.is_static:
            assert arg.type.shape is not None
            inputs.append(np.broadcast_to(np.float32(0), [int(d) for d in arg.type.shape]))
        else:
            return made
    if made.outputs != 1 or made.node.opaque or not isinstance(made.type, TensorType):
        return made
    return Const(Constant.of(evaluate_node(made.node, inputs)[0]))


def _check_signatures(pattern: Graph, replacement: Graph) -> None:
    """Raises `RuleError` unless the replacement can stand wherever the pattern does."""
    for name in pattern.inputs:
        if not isinstance(pattern.type_of(name), TensorType):
            raise RuleError(f"input {name!r} of a rewriter's pattern is no tensor but {pattern.type_of(name)}")
    for name in replacement.inputs:
        if name not in pattern.inputs:
            raise RuleError(f"pattern and replacement must have the same inputs: the pattern has no {name!r}")
        if (a := pattern.type_of(name)) != (b := replacement.type_of(name)):
            raise RuleError(f"pattern and replacement must have the same inputs: {name!r} is {a}, and {b}")
    if len(pattern.outputs) != len(replacement.outputs):
        raise RuleError(
            f"pattern and replacement must have as many outputs: {len(pattern.outputs)}, and {len(replacement.outputs)}"
        )
    for a, b in zip(pattern.outputs, replacement.outputs, strict=True):
        if not compatible(pattern.type_of(a), replacement.type_of(b)):
            raise RuleError(f"the replacement's {b!r} is {replacement.type_of(b)}, not {pattern.type_of(a)}")
