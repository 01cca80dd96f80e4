"""Graphs as expressions, and expressions as graphs."""

from collections.abc import Mapping, Sequence

from eqsat.dpl.expr import Call, Const, Expr, Item, Var, topological
from eqsat.errors import RuleError
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.types import Type


def lift(graph: Graph) -> dict[str, Expr]:
    """The expression of each value of a graph, in the order in which the graph defines them."""
    values: dict[str, Expr] = {name: Var(name, graph.type_of(name)) for name in graph.inputs}
    for name, constant in graph.constants.items():
        values.setdefault(name, Const(constant, name))
    for node in graph.nodes:
        made = Call(node, tuple(values[v] if v else None for v in node.inputs), tuple(map(graph.type_of, node.outputs)))
        for index, value in enumerate(node.outputs):
            if value:
                values[value] = made if len(node.outputs) == 1 else Item(made, index)
    return values


def lower(graph: Graph, outputs: Mapping[str, Expr], order: Sequence[Expr]) -> Graph:
    """A graph that computes ``outputs``; what comes from ``graph`` keeps its names and, where data flow allows, its place."""
    return _Lowering(graph, outputs).run(order)


def graph_of(outputs: Mapping[str, Expr], name: str = "graph") -> Graph:
    """A graph that computes these expressions; its inputs are the variables they read, in the order they are met."""
    order = topological(list(outputs.values()))
    found = {e.name: e for e in order if isinstance(e, Var)}
    types = {**{n: e.type for n, e in found.items()}, **{n: e.type for n, e in outputs.items()}}
    known = {n: t for n, t in types.items() if t is not None}
    return lower(Graph((), tuple(found), tuple(outputs), known, {}, name), outputs, order)


class _Lowering:
    def __init__(self, graph: Graph, outputs: Mapping[str, Expr]) -> None:
        self._graph, self._outputs = graph, outputs
        self._names: dict[Expr, str] = {}
        self._call_names: dict[Call, tuple[str, ...]] = {}
        self._taken: set[str] = {*graph.inputs, *graph.outputs}
        self._nodes: list[Node] = []
        self._types: dict[str, Type] = {name: graph.type_of(name) for name in graph.inputs}
        self._constants: dict[str, Constant] = {}

    def run(self, order: Sequence[Expr]) -> Graph:
        wanted: dict[Expr, str] = {}
        for name, expr in self._outputs.items():
            if isinstance(expr, Call | Item):
                wanted.setdefault(expr, name)
        calls = [e for e in order if isinstance(e, Call)]
        items: dict[Call, dict[int, Item]] = {}
        for item in order:
            if isinstance(item, Item) and isinstance(item.of, Call):
                items.setdefault(item.of, {})[item.index] = item
        for made in calls:
            own: list[str] = []
            for index in range(made.outputs):
                value: Expr | None = made if made.outputs == 1 else items.get(made, {}).get(index)
                own.append(self._name(made, index, wanted.get(value) if value is not None else None))
            self._call_names[made] = tuple(own)
        for made in calls:
            inputs = tuple(self._value(a) for a in made.args)
            node, names = made.node, self._call_names[made]
            self._nodes.append(Node(node.op, inputs, names, node.attributes, node.domain, node.name, node.opaque))
            self._types.update((n, t) for n, t in zip(names, made.types, strict=True) if n)
        for name, expr in self._outputs.items():
            if wanted.get(expr) != name and not (isinstance(expr, Var) and expr.name == name):
                self._nodes.append(Node("Identity", (self._value(expr),), (name,)))
                self._types[name] = self._graph.type_of(name)
        return Graph(
            tuple(self._nodes),
            self._graph.inputs,
            self._graph.outputs,
            self._types,
            self._constants,
            self._graph.name,
            self._graph.envelope,
        )

    def _name(self, made: Call, index: int, wanted: str | None) -> str:
        if wanted is not None:
            return wanted
        own = made.names[index] if index < len(made.names) else ""
        if own and own not in self._taken:
            self._taken.add(own)
            return own
        return self._fresh(own or made.node.op.lower())

    def _fresh(self, stem: str) -> str:
        known = self._graph.types
        number = 1
        while f"{stem}_{number}" in self._taken or f"{stem}_{number}" in known or f"{stem}_{number}" in self._constants:
            number += 1
        self._taken.add(f"{stem}_{number}")
        return f"{stem}_{number}"

    def _value(self, expr: Expr | None) -> str:
        if expr is None:
            return ""
        if isinstance(expr, Var):
            return expr.name
        if isinstance(expr, Call):
            return self._call_names[expr][0]
        if isinstance(expr, Item) and isinstance(expr.of, Call):
            return self._call_names[expr.of][expr.index]
        if not isinstance(expr, Const):
            raise RuleError(f"a tuple is no operand: {expr!r}")
        found = self._names.get(expr)
        if found is None:
            found = expr.name if expr.name and expr.name not in self._taken else self._fresh(expr.name or "c")
            self._taken.add(found)
            self._names[expr] = found
            self._constants[found] = expr.data
        return found
