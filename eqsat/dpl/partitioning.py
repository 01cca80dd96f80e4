"""`find` and `partition`: where a pattern matches a graph, and the disjoint regions that its matches cover."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from eqsat.dpl.expr import Call, Const, Expr, Item, topological
from eqsat.dpl.graphs import lift
from eqsat.dpl.matching import Bindings, Matcher
from eqsat.dpl.pattern import ConstPattern, DominatorPattern, ExprPattern, Pattern, WildcardPattern
from eqsat.errors import RuleError
from eqsat.ir.graph import Graph
from eqsat.ir.order import reached


@dataclass(frozen=True)
class Partition:
    """A region of a graph that one match covers: names of values, inputs first to be read, ``nodes`` by first output.

    ``constants``: those that the pattern asks for (`is_const`, `is_expr`), which belong to the region; what a wildcard matched
    is an input. ``recomputed``: nodes whose values are needed outside as well.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    constants: tuple[str, ...] = ()
    recomputed: tuple[str, ...] = ()


def find(pattern: Pattern, graph: Graph) -> Iterator[tuple[str, Bindings]]:
    """Each value that the pattern matches, by name, with its first match, in the order of the nodes."""
    values = lift(graph)
    matcher = Matcher([values[name] for name in graph.outputs])
    for name, expr in values.items():
        bound = matcher.first(pattern, expr)
        if bound is not None:
            yield name, bound


def partition(
    pattern: Pattern, graph: Graph, check: Callable[[Expr], bool] | None = None, *, recompute: bool = False
) -> list[Partition]:
    """Disjoint regions that ``pattern`` covers, in the order of their last nodes.

    Wildcards and inputs of the pattern are what a region reads. A match is skipped where a value inside is read outside or is
    an output of the graph, where another region has a node of it already, and where ``check`` of its root says no.
    ``recompute``, as in TVM: a value inside may be read outside if that leads back into the region and nowhere else; then it
    is computed twice. Raises `RuleError` for a pattern that contains itself.
    """
    values = lift(graph)
    names = {expr: name for name, expr in values.items()}
    outputs = [values[name] for name in graph.outputs]
    matcher = Matcher(outputs)
    taken: set[Expr] = set()
    found: list[Partition] = []
    for root in topological(outputs):
        for bound in matcher.matches(pattern, root, {}):
            inside = _covered(bound, root)
            outside = _read_outside(inside, root, matcher)
            if inside & taken or (check is not None and not check(root)):
                continue
            if outside and not (recompute and all(_leads_back(r, root, matcher) for r in outside.values())):
                continue
            taken |= inside
            found.append(_region(inside, bound, root, names, outside))
            break
    return found


def _covered(bound: Bindings, root: Expr) -> set[Expr]:
    """Calls that the match covers: those that a pattern other than a wildcard matched, and what a dominator spans."""
    if any(isinstance(p, WildcardPattern) and p.target is not None for p in bound):
        raise RuleError("a pattern that contains itself has no partition: not all that it matched is known")
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


def _read_outside(inside: set[Expr], root: Expr, matcher: Matcher) -> dict[Expr, list[Expr]]:
    """Values inside, the root aside, that something outside reads, with their readers there; themselves if outputs."""
    found: dict[Expr, list[Expr]] = {}
    for expr in inside - {root}:
        items = [u for u in matcher.users.get(expr, ()) if isinstance(u, Item)]
        users = [u for e in (expr, *items) for u in matcher.users.get(e, ()) if not isinstance(u, Item)]
        readers = [u for u in users if u not in inside and u is not root]
        readers += [e for e in (expr, *items) if e in matcher.outputs and e is not root]
        if readers:
            found[expr] = readers
    return found


def _leads_back(readers: Sequence[Expr], root: Expr, matcher: Matcher) -> bool:
    """Whether all that the readers are needed for is needed for ``root`` only."""
    needing = reached(readers, lambda e: (user for user in matcher.users.get(e, ()) if user is not root))
    return matcher.outputs.isdisjoint(needing)


def _region(
    inside: set[Expr], bound: Bindings, root: Expr, names: dict[Expr, str], outside: Iterable[Expr]
) -> Partition:
    order = [e for e in topological([root]) if e in inside]
    wildcards = {e for p, e in bound.items() if isinstance(p, WildcardPattern)}
    asked = {
        e for p, e in bound.items() if isinstance(p, ConstPattern | ExprPattern) and isinstance(e, Const)
    } - wildcards
    reads = dict.fromkeys(p for e in order for p in e.parts if p is not None and not _belongs(p, inside))
    twice = inside.intersection(topological(list(outside)))
    return Partition(
        tuple(_node_name(e) for e in order),
        tuple(names[e] for e in reads if e in names and e not in asked),
        names[root],
        tuple(names[e] for e in reads if e in asked),
        tuple(_node_name(e) for e in order if e in twice),
    )


def _node_name(expr: Expr) -> str:
    assert isinstance(expr, Call)
    return next(n for n in expr.names if n)


def _belongs(expr: Expr, inside: set[Expr]) -> bool:
    return expr in inside or (isinstance(expr, Item) and expr.of in inside)
