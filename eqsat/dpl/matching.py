"""Finding patterns in expressions: every way a pattern matches, in a fixed order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from eqsat.dpl.expr import Call, Const, Expr, Item, Tuple, Var, same, topological
from eqsat.dpl.pattern import (
    AndPattern,
    AttrPattern,
    CallPattern,
    ConstPattern,
    DominatorPattern,
    ExprPattern,
    NotPattern,
    OpPattern,
    OrPattern,
    Pattern,
    TestPattern,
    TupleGetItemPattern,
    TuplePattern,
    VarPattern,
    WildcardPattern,
)
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Kind, definition_of, kind_of
from eqsat.ir.order import reached

Bindings = Mapping[Pattern, Expr | str]
"""What each pattern matched; for the operator pattern of a call, the key of the operator."""


class Matcher:
    """Matches patterns against everything that ``outputs`` depend on. ``users``: who reads each expression."""

    def __init__(self, outputs: Sequence[Expr], users: Mapping[Expr, Sequence[Expr]] | None = None) -> None:
        self.users = users_of(topological(outputs)) if users is None else users
        self.outputs = frozenset(outputs)
        self._operands: dict[Call, Tuple] = {}

    def first(self, pattern: Pattern, expr: Expr) -> Bindings | None:
        return next(self.matches(pattern, expr, {}), None)

    def matches(self, pattern: Pattern, expr: Expr | None, bound: Bindings) -> Iterator[Bindings]:
        """Every extension of ``bound`` under which ``pattern`` matches ``expr``."""
        if expr is None:
            return
        if pattern in bound:
            before = bound[pattern]
            if before is expr or (isinstance(before, Const) and same(before, expr)):
                yield bound
            return
        for found in self._inside(pattern, expr, bound):
            yield {**found, pattern: expr}

    def _inside(self, pattern: Pattern, expr: Expr, bound: Bindings) -> Iterator[Bindings]:
        match pattern:
            case WildcardPattern():
                yield from (bound,) if pattern.target is None else self.matches(pattern.target, expr, bound)
            case VarPattern():
                if isinstance(expr, Var) and pattern.name in ("", expr.name):
                    yield bound
            case ConstPattern():
                if isinstance(expr, Const):
                    yield bound
            case ExprPattern():
                if same(pattern.expr, expr):
                    yield bound
            case CallPattern():
                yield from self._call(pattern, expr, bound)
            case TuplePattern():
                yield from self._tuple(pattern, expr, bound)
            case TupleGetItemPattern():
                if isinstance(expr, Item) and pattern.index in (None, expr.index):
                    yield from self.matches(pattern.of, expr.of, bound)
            case OrPattern():
                yield from self.matches(pattern.left, expr, bound)
                yield from self.matches(pattern.right, expr, bound)
            case AndPattern():
                for found in self.matches(pattern.left, expr, bound):
                    yield from self.matches(pattern.right, expr, found)
            case NotPattern():
                if next(self.matches(pattern.of, expr, bound), None) is None:
                    yield bound
            case TestPattern():
                if pattern.holds(expr):
                    yield from self.matches(pattern.of, expr, bound)
            case AttrPattern():
                if isinstance(expr, Call) and has_attributes(expr, pattern.attributes):
                    yield from self.matches(pattern.of, expr, bound)
            case DominatorPattern():
                yield from self._dominated(pattern, expr, bound)
            case _:
                pass

    # ---- calls and tuples

    def _call(self, pattern: CallPattern, expr: Expr, bound: Bindings) -> Iterator[Bindings]:
        if not isinstance(expr, Call):
            return
        for found in self._operator(pattern.op, expr, bound):
            if pattern.args is None:
                yield found
                continue
            for operands in self._orders(expr, len(pattern.args)):
                yield from self._each(pattern.args, operands, found)

    def _operator(self, pattern: Pattern, expr: Call, bound: Bindings) -> Iterator[Bindings]:
        """Matches a pattern against the operator of a call; it is bound to the operator's key."""
        if isinstance(pattern, OrPattern):
            found = itertools.chain(
                self._operator(pattern.left, expr, bound), self._operator(pattern.right, expr, bound)
            )
        elif isinstance(pattern, AttrPattern):
            found = self._operator(pattern.of, expr, bound) if has_attributes(expr, pattern.attributes) else iter(())
        elif isinstance(pattern, OpPattern):
            found = iter((bound,) if pattern.op == expr.op else ())
        else:
            found = iter((bound,) if isinstance(pattern, WildcardPattern) else ())
        for bindings in found:
            yield {**bindings, pattern: expr.op}

    def _orders(self, expr: Call, count: int) -> Iterator[tuple[Expr | None, ...]]:
        if len(expr.args) == count:
            yield expr.args
            definition = definition_of(expr.node)
            if count == 2 and definition is not None and definition.commutative:
                yield expr.args[::-1]
        if count == 1 and expr.op == "Concat":
            if expr not in self._operands:
                self._operands[expr] = Tuple(expr.args)
            yield (self._operands[expr],)

    def _each(
        self, patterns: Sequence[Pattern | None], operands: Sequence[Expr | None], bound: Bindings
    ) -> Iterator[Bindings]:
        if not patterns:
            yield bound
            return
        first = patterns[0]
        if first is None:
            if operands[0] is None:
                yield from self._each(patterns[1:], operands[1:], bound)
            return
        for found in self.matches(first, operands[0], bound):
            yield from self._each(patterns[1:], operands[1:], found)

    def _tuple(self, pattern: TuplePattern, expr: Expr, bound: Bindings) -> Iterator[Bindings]:
        if isinstance(expr, Tuple) and pattern.fields is None:
            yield bound
        elif isinstance(expr, Tuple) and len(expr.fields) == len(pattern.fields or ()):
            orders = itertools.permutations(expr.fields) if pattern.unordered else iter((expr.fields,))
            for fields in orders:
                yield from self._each(pattern.fields or (), fields, bound)

    # ---- dominators

    def _dominated(self, pattern: DominatorPattern, expr: Expr, bound: Bindings) -> Iterator[Bindings]:
        for found in self.matches(pattern.child, expr, bound):
            for parent in reversed(topological(expr.parts)):
                for bindings in self.matches(pattern.parent, parent, found):
                    if self._leads_to(pattern, expr, parent):
                        yield bindings

    def _leads_to(self, pattern: DominatorPattern, child: Expr, parent: Expr) -> bool:
        """Whether all paths from ``parent`` end in ``child``, over operators that match, with no other inputs on the way."""
        region = {parent}
        for expr in topological([child]):
            if any(p in region for p in expr.parts):
                region.add(expr)
        if child not in region:
            return False
        live = reached((child,), lambda e: (p for p in e.parts if p is not None and p in region))
        for expr in live - {child}:
            if expr in self.outputs or any(u not in live for u in self.users.get(expr, ())):
                return False
            if expr is not parent and isinstance(expr, Call) and self.first(pattern.path, expr) is None:
                return False
        if pattern.side_inputs:
            return True
        beside = (p for expr in live - {parent} for p in expr.parts if p is not None and p not in live)
        return all(isinstance(p, Var | Const) for p in beside)


def has_attributes(expr: Call, wanted: Mapping[str, object]) -> bool:
    """Whether a call has these attributes; ``kind`` is that of its operator."""
    plain = {k: v for k, v in wanted.items() if k != "kind"}
    kind = wanted.get("kind")
    if kind is not None and kind_of(expr.node) is not Kind(kind):
        return False
    return all(k in expr.attrs and expr.attrs[k] == v for k, v in Attributes(plain).items())  # type: ignore[arg-type]


def users_of(order: Sequence[Expr]) -> dict[Expr, list[Expr]]:
    """Who reads each expression, once each."""
    users: dict[Expr, list[Expr]] = {}
    for expr in order:
        for part in dict.fromkeys(expr.parts):
            if part is not None:
                users.setdefault(part, []).append(expr)
    return users
