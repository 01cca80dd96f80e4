"""`find` and `partition`: where a pattern matches a graph, and the disjoint regions that its matches cover."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eqsat.dpl.expr import Call, Expr, Item, lift, topological
from eqsat.dpl.matching import Bindings, Matcher
from eqsat.dpl.pattern import DominatorPattern, Pattern, WildcardPattern
from eqsat.ir.graph import Graph


@dataclass(frozen=True)
class Partition:
    """A region of a graph that one match covers: names of values, inputs first to be read, ``nodes`` by first output."""

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str


def find(pattern: Pattern, graph: Graph) -> Iterator[tuple[str, Bindings]]:
    """Each value that the pattern matches, by name, with its first match, in the order of the nodes."""
    values = lift(graph)
    matcher = Matcher.over([values[name] for name in graph.outputs])
    for name, expr in values.items():
        bound = matcher.first(pattern, expr)
        if bound is not None:
            yield name, bound


def partition(pattern: Pattern, graph: Graph, check: Callable[[Expr], bool] | None = None) -> list[Partition]:
    """Disjoint regions that ``pattern`` covers, in the order of their last nodes.

    Wildcards, constants and inputs of the pattern are what a region reads. A match is skipped where a value inside is read
    outside or is an output of the graph, where another region has a node of it already, and where ``check`` of its root says
    no.
    """
    values = lift(graph)
    names = {expr: name for name, expr in values.items()}
    outputs = [values[name] for name in graph.outputs]
    matcher = Matcher.over(outputs)
    taken: set[Expr] = set()
    found: list[Partition] = []
    for root in topological(outputs):
        for bound in matcher.matches(pattern, root, {}):
            inside = _covered(pattern, bound, root)
            if inside & taken or not _closed(inside, root, matcher) or (check is not None and not check(root)):
                continue
            taken |= inside
            found.append(_region(inside, root, names))
            break
    return found


def _covered(pattern: Pattern, bound: Bindings, root: Expr) -> set[Expr]:
    """Calls that the match covers: those that a pattern other than a wildcard matched, and what a dominator spans."""
    leaves = {e for p, e in bound.items() if isinstance(p, WildcardPattern)}
    matched = {e for p, e in bound.items() if isinstance(e, Call) and not isinstance(p, WildcardPattern)}
    inside: set[Expr] = {e for e in matched if e not in leaves or e is root}
    for p, expr in bound.items():
        if isinstance(p, DominatorPattern) and isinstance(expr, Expr):
            parent = bound.get(p.parent)
            assert isinstance(parent, Expr)
            above = set(topological(parent.parts))
            inside |= {e for e in topological([expr]) if e not in above and isinstance(e, Call)}
    return inside


def _closed(inside: set[Expr], root: Expr, matcher: Matcher) -> bool:
    """Whether nothing outside reads a value inside, the root aside."""
    for expr in inside - {root}:
        readers = [
            reader
            for user in matcher.users.get(expr, ())
            for reader in (matcher.users.get(user, ()) if isinstance(user, Item) else (user,))
        ]
        items = [u for u in matcher.users.get(expr, ()) if isinstance(u, Item)]
        if expr in matcher.outputs or any(i in matcher.outputs and i is not root for i in items):
            return False
        if any(reader not in inside and reader is not root for reader in readers):
            return False
    return True


def _region(inside: set[Expr], root: Expr, names: dict[Expr, str]) -> Partition:
    order = [e for e in topological([root]) if e in inside]
    reads = dict.fromkeys(p for e in order for p in e.parts if p is not None and not _belongs(p, inside))
    nodes = tuple(next(n for n in e.names if n) for e in order if isinstance(e, Call))
    return Partition(nodes, tuple(names[e] for e in reads if e in names), names[root])


def _belongs(expr: Expr, inside: set[Expr]) -> bool:
    return expr in inside or (isinstance(expr, Item) and expr.of in inside)
