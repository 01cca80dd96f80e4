"""`PatternContext`: several patterns and how their values use each other, matched together over a whole graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from eqsat.dpl.expr import Call, Expr, topological
from eqsat.dpl.graphs import lift
from eqsat.dpl.matching import Bindings, Matcher
from eqsat.dpl.pattern import AndPattern, AttrPattern, NotPattern, OrPattern, Pattern, TestPattern
from eqsat.errors import RuleError
from eqsat.ir.graph import Graph


@dataclass(frozen=True)
class _Use:
    """``pattern`` is operand ``index`` (any if ``None``) of ``user``; ``only``: nothing else reads it."""

    pattern: Pattern
    user: Pattern
    index: int | None
    only: bool


class PatternContext:
    """Collects the calls that are described, and the constraints that are stated, inside its ``with`` block.

    Different patterns stand for different values. ``incremental``: the constraints of the enclosing context hold, too.
    """

    _stack: ClassVar[list[PatternContext]] = []

    def __init__(self, incremental: bool = False) -> None:
        self._incremental = incremental
        self._patterns: dict[Pattern, None] = {}
        self._uses: list[_Use] = []
        self._same_shapes: list[tuple[Pattern, Pattern]] = []

    def __enter__(self) -> PatternContext:
        if self._incremental and self._stack:
            outer = self._stack[-1]
            self._patterns, self._uses = dict(outer._patterns), list(outer._uses)
            self._same_shapes = list(outer._same_shapes)
        self._stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.pop()

    @classmethod
    def current(cls) -> PatternContext:
        """The innermost open context. Raises `RuleError` if there is none."""
        if not cls._stack:
            raise RuleError("state used_by, only_used_by and same_shape_as inside a `with PatternContext() as ctx:`")
        return cls._stack[-1]

    @classmethod
    def register(cls, pattern: Pattern) -> None:
        """A call described inside an open context must be matched, too."""
        if cls._stack:
            cls._stack[-1]._patterns.setdefault(pattern)

    def add_use(self, pattern: Pattern, user: Pattern, index: int | None, only: bool) -> None:
        self._patterns.setdefault(pattern)
        self._patterns.setdefault(user)
        self._uses.append(_Use(pattern, user, index, only))

    def add_same_shape(self, left: Pattern, right: Pattern) -> None:
        self._same_shapes.append((left, right))

    def match(self, graph: Graph) -> Bindings | None:
        """The first match in the graph, in order of its nodes; ``None`` if there is none."""
        values = lift(graph)
        return next(self.matches([values[name] for name in graph.outputs], list(values.values())), None)

    def matches(self, outputs: Sequence[Expr], others: Sequence[Expr] = ()) -> Iterator[Bindings]:
        """Every match among the expressions that ``outputs`` depend on."""
        matcher = Matcher(outputs)
        order = topological(outputs)
        inputs = [e for e in others if e not in matcher.users and not isinstance(e, Call)]
        inner = {p for pattern in self._patterns for p in _wrapped(pattern)}
        nodes = [p for p in self._patterns if p not in inner]
        yield from self._assign(matcher, [*order, *inputs], nodes, {})

    def _assign(
        self, matcher: Matcher, order: Sequence[Expr], nodes: Sequence[Pattern], bound: Bindings
    ) -> Iterator[Bindings]:
        if not self._may_hold(matcher, nodes, bound):
            return
        free = next((p for p in self._by_constraint(nodes, bound) if p not in bound), None)
        if free is None:
            yield bound
            return
        for expr in self._candidates(matcher, order, free, bound):
            for found in matcher.matches(free, expr, bound):
                yield from self._assign(matcher, order, nodes, found)

    def _by_constraint(self, nodes: Sequence[Pattern], bound: Bindings) -> list[Pattern]:
        """Patterns next to a matched one first: they have few candidates."""
        near = [q for u in self._uses for p, q in ((u.pattern, u.user), (u.user, u.pattern)) if p in bound]
        return [*near, *nodes]

    def _candidates(self, matcher: Matcher, order: Sequence[Expr], free: Pattern, bound: Bindings) -> Sequence[Expr]:
        for use in self._uses:
            if use.user is free and isinstance(value := bound.get(use.pattern), Expr):
                return matcher.users.get(value, ())
            if use.pattern is free and isinstance(user := bound.get(use.user), Expr):
                return [p for p in dict.fromkeys(user.parts) if p is not None]
        return order

    def _may_hold(self, matcher: Matcher, nodes: Sequence[Pattern], bound: Bindings) -> bool:
        """Whether no constraint between matched patterns is violated."""
        values = [bound[p] for p in nodes if p in bound]
        if len(set(map(id, values))) < len(values):
            return False
        for use in self._uses:
            value, user = bound.get(use.pattern), bound.get(use.user)
            if not isinstance(value, Expr) or not isinstance(user, Expr):
                continue
            operands = [i for i, p in enumerate(user.parts) if p is value]
            if not operands or (use.index is not None and use.index not in operands):
                return False
            if use.only and (value in matcher.outputs or any(u is not user for u in matcher.users.get(value, ()))):
                return False
        for left, right in self._same_shapes:
            a, b = bound.get(left), bound.get(right)
            if isinstance(a, Expr) and isinstance(b, Expr) and (a.shape is None or a.shape != b.shape):
                return False
        return True


def _wrapped(pattern: Pattern) -> Iterator[Pattern]:
    """Patterns of the same value inside a pattern."""
    inside: tuple[Pattern, ...] = ()
    if isinstance(pattern, TestPattern | AttrPattern | NotPattern):
        inside = (pattern.of,)
    elif isinstance(pattern, OrPattern | AndPattern):
        inside = (pattern.left, pattern.right)
    for part in inside:
        yield part
        yield from _wrapped(part)
