"""`rewrite_call` and `rewrite_bindings`: transformations of a graph by callbacks, outside the e-graph, to a fixpoint.

What a callback returns is taken as meant: nothing proves it equal to what it replaces. ``check=True`` runs the graph before
and after and compares; otherwise the report of the result says ``unverified``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from eqsat.dpl.context import PatternContext
from eqsat.dpl.expr import Call, Expr, Item, Tuple, const, same, topological
from eqsat.dpl.graphs import lift, lower
from eqsat.dpl.matching import Bindings, Matcher
from eqsat.dpl.pattern import CallPattern, Pattern
from eqsat.errors import RuleError, VerificationError
from eqsat.ir.graph import Graph
from eqsat.ir.types import is_sequence

PASSES = 100
"""Passes over the graph after which rewriting is taken not to end."""

_GROWTH = 4
"""Times the size of the graph (and a hundred expressions) at which it is taken to grow without end."""

UNVERIFIED = "unverified"

Callback = Callable[[Expr, Any], Any]
"""``(expression, matches) -> replacement``; the expression itself where nothing is to be done."""

BindingsCallback = Callable[[Any, Mapping[str, Expr]], Mapping[Expr, Any]]
"""``(matches, values by name) -> {expression: replacement}``; empty where nothing is to be done."""


@dataclass(frozen=True)
class RewriteReport:
    """``rewrites`` replacements in ``passes`` passes. ``verdict``: that of verification, or ``unverified``."""

    rewrites: int
    passes: int
    verdict: str = UNVERIFIED


@dataclass(frozen=True)
class RewrittenGraph(Graph):
    """A graph that callbacks made of another one, with the report on it."""

    report: RewriteReport = field(default=RewriteReport(0, 0), compare=False)


def rewrite_call(
    pattern: Pattern,
    callback: Callback,
    graph: Graph,
    *,
    check: bool = False,
    once: bool = False,
    outermost: bool = False,
) -> RewrittenGraph:
    """Replaces each value that ``pattern`` matches by what ``callback`` returns, until nothing changes.

    The callback gets the expression and what each pattern matched (``matches[pattern]``; constants by
    ``matches[p].data.numpy()``). Where it returns the expression, or one of the same structure, the next way to match is tried.
    ``once``: stop after the first replacement. ``outermost``: of matches that overlap, take the one nearest to the outputs
    instead of the inputs. Raises `RuleError` when there is no end in sight, `ShapeError` for an operator
    on operands that do not fit, `VerificationError` with ``check`` when the value of an output changed.
    """

    def replacements(outputs: Sequence[Expr], values: Mapping[str, Expr]) -> dict[Expr, Expr]:
        matcher = Matcher(outputs)
        found: dict[Expr, Expr] = {}
        gone: set[Expr] = set()
        order = topological(outputs)
        for expr in reversed(order) if outermost else order:
            made = _replacement(pattern, callback, matcher, expr, gone)
            if made is not None:
                replacement, consumed = made
                found[expr] = replacement
                gone |= consumed
                if once:
                    break
        return found

    return to_fixpoint(graph, replacements, check=check, once=once)


def rewrite_bindings(
    context: PatternContext, callback: BindingsCallback, graph: Graph, *, check: bool = False
) -> RewrittenGraph:
    """Replaces several values at once, those that a match of ``context`` covers, until nothing changes.

    The callback gets what each pattern matched and the values of the graph by name, and returns replacements by expression.
    Raises as `rewrite_call` does.
    """

    def replacements(outputs: Sequence[Expr], values: Mapping[str, Expr]) -> dict[Expr, Expr]:
        for bound in context.matches(outputs):
            found = {e: _as_expr(r, e) for e, r in callback(bound, values).items()}
            changed = {e: r for e, r in found.items() if not same(e, r)}
            if changed:
                return changed
        return {}

    return to_fixpoint(graph, replacements, check=check)


def _replacement(
    pattern: Pattern, callback: Callback, matcher: Matcher, expr: Expr, gone: set[Expr]
) -> tuple[Expr, set[Expr]] | None:
    """What the first effective match at ``expr`` puts in its place, and the calls that the match consumed."""
    for bound in matcher.matches(pattern, expr, {}):
        consumed = calls_of(bound)
        if consumed & gone:
            continue  # another replacement of this pass took a part of it: the next pass will see
        result = _as_expr(callback(expr, bound), expr)
        if not same(expr, result):
            return result, consumed
    return None


def calls_of(bound: Bindings) -> set[Expr]:
    """The calls that a match consumes: what stands for them is put in their place."""
    return {e for p, e in bound.items() if isinstance(e, Call) and isinstance(p, CallPattern)}


def _as_expr(result: Any, like: Expr) -> Expr:
    if isinstance(result, Expr):
        return result
    if is_sequence(result):
        return Tuple(result)
    if result is None:
        raise RuleError("a callback returned None; return the expression itself to leave it as it is")
    return const(result, like)


Replacements = Callable[[Sequence[Expr], Mapping[str, Expr]], dict[Expr, Expr]]


def to_fixpoint(graph: Graph, replacements: Replacements, *, check: bool, once: bool = False) -> RewrittenGraph:
    """Puts in place what ``replacements(outputs, values by name)`` returns, until it returns nothing.

    Raises `RuleError` when there is no end in sight, `VerificationError` with ``check`` when the value of an output changed.
    """
    values: dict[str, Expr] = lift(graph)
    outputs: dict[str, Expr] = {name: values[name] for name in graph.outputs}
    order: list[Expr] = list(values.values())
    rewrites, number = 0, 0
    found: dict[Expr, Expr] = {}
    for number in range(1, PASSES + 1):
        found = replacements(list(outputs.values()), values)
        rewrites += len(found)
        if found:
            rebuilt: _Substitution = _Substitution(found)
            outputs = {name: rebuilt.of(expr) for name, expr in outputs.items()}
            order = [rebuilt.seen[e] for e in order if e in rebuilt.seen]
            values = {name: rebuilt.seen[e] for name, e in values.items() if e in rebuilt.seen}
        if not found or once:
            return _finish(graph, outputs, order, RewriteReport(rewrites, number), check)
        if len(topological(list(outputs.values()))) > _GROWTH * (len(graph.nodes) + 100):
            break
    last = next(reversed(found))
    raise RuleError(
        f"rewriting did not come to an end: {rewrites} replacements in {number} passes, the last of {last!r:.100}; let the "
        "callback return its match where nothing is left to do, or pass once=True"
    )


class _Substitution:
    """Rebuilds expressions with some of them replaced. In its own replacement an expression stands for what it was."""

    def __init__(self, replacements: Mapping[Expr, Expr]) -> None:
        self._replacements = replacements
        self._kept: dict[Expr, Expr] = {}
        self.seen: dict[Expr, Expr] = {}
        self._active: set[Expr] = set()

    def of(self, root: Expr) -> Expr:
        for expr in topological([root]):  # operands first, so that the recursion below stays shallow
            self._full(expr)
        return self.seen[root]

    def _full(self, expr: Expr) -> Expr:
        found = self.seen.get(expr)
        if found is None:
            replacement = self._replacements.get(expr)
            if replacement is None:
                found = self._rebuilt(expr, self._full)
            else:
                if expr in self._active:
                    raise RuleError(f"a callback built an expression that depends on its own result: {expr!r:.100}")
                self._active.add(expr)
                found = self._inside(replacement, expr)
                self._active.discard(expr)
                _take_names(found, expr)
            self.seen[expr] = found
        return found

    def _inside(self, expr: Expr, replaced: Expr) -> Expr:
        """A replacement: what it reads of the graph is rebuilt, the replaced value itself stays."""
        made: dict[Expr, Expr] = {}
        for part in topological([expr], stop=self.seen):
            if part is replaced:
                made[part] = self._kept_as_is(part)
            elif part in self._replacements:
                made[part] = self._full(part)
            else:
                made[part] = self.seen.get(part) or self._rebuilt(part, lambda p: made[p])
                self._kept.setdefault(part, made[part])
        return made[expr]

    def _kept_as_is(self, expr: Expr) -> Expr:
        if expr not in self._kept:
            self._kept[expr] = self._rebuilt(expr, self._full)
        return self._kept[expr]

    def _rebuilt(self, expr: Expr, operand: Callable[[Expr], Expr]) -> Expr:
        if expr in self._kept:
            return self._kept[expr]
        parts = tuple(None if p is None else operand(p) for p in expr.parts)
        if all(a is b for a, b in zip(parts, expr.parts, strict=True)):
            return expr
        if isinstance(expr, Call):
            return expr.with_args(parts)
        if isinstance(expr, Item):
            of = parts[0]
            if isinstance(of, Tuple):
                field = of.fields[expr.index]
                assert field is not None
                return field
            assert of is not None
            return Item(of, expr.index)
        return Tuple(parts)


def _take_names(new: Expr, old: Expr) -> None:
    """The names of a replaced value pass to its replacement, unless that has names already."""
    if isinstance(new, Call) and isinstance(old, Call) and new.outputs == old.outputs and not any(new.names):
        new.names = old.names


def _finish(
    graph: Graph, outputs: Mapping[str, Expr], before: Sequence[Expr], report: RewriteReport, check: bool
) -> RewrittenGraph:
    made = lower(graph, outputs, list(_in_order(before, list(outputs.values()))))
    if check:
        report = RewriteReport(report.rewrites, report.passes, _verdict(graph, made))
    parts = {f.name: getattr(made, f.name) for f in fields(Graph) if f.init}
    return RewrittenGraph(**parts, report=report)


def _in_order(before: Sequence[Expr], roots: Sequence[Expr]) -> Iterator[Expr]:
    """What the roots need, operands first, and otherwise as it stood in the graph."""
    needed = topological(roots)
    live = set(needed)
    done: set[Expr] = set()
    for expr in (*(e for e in before if e in live), *needed):
        for part in topological([expr]) if expr not in done else ():
            if part not in done:
                done.add(part)
                yield part


def _verdict(before: Graph, after: Graph) -> str:
    """Runs both graphs on random inputs. Raises `VerificationError` when an output differs."""
    from eqsat.verification import verify_models

    found = verify_models(before, after)
    if found.verdict == "failed":
        raise VerificationError(f"the rewritten graph computes something else: {'; '.join(found.failures)}")
    return found.verdict
