"""Graph -> e-graph: one e-node per node, equal nodes once."""

from dataclasses import dataclass

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.graph import Graph, Node
from eqsat.ir.limits import limits_of
from eqsat.ir.operator import operator
from eqsat.ir.schema_operator import outputs_asked_for


@dataclass(frozen=True)
class Encoding:
    """Where each value of the graph is in the e-graph.

    ``handles``: value -> handle. ``node_handles[i]``: handle of the i-th node of ``graph``.
    """

    graph: Graph
    egraph: EGraph
    handles: dict[str, int]
    node_handles: tuple[int, ...]


def encode(graph: Graph, *, fold_inexact: bool = True) -> Encoding:
    """The e-graph that holds exactly the spellings in ``graph``."""
    egraph = EGraph(fold_inexact=fold_inexact, limits=limits_of(graph))
    handles: dict[str, int] = {"": ABSENT_INPUT}
    read = set(graph.reads())
    for name in graph.inputs:
        handles[name] = egraph.add_input(name, graph.type_of(name))
    for name, constant in graph.constants.items():
        if name in read and name not in handles:
            handles[name] = egraph.add_constant(constant)
    node_handles: list[int] = []
    for original in graph.nodes:
        node = _without_unused_outputs(original, read)
        children = [handles[value] for value in node.inputs]
        while children and children[-1] == ABSENT_INPUT and not node.opaque:
            children.pop()
        handle = egraph.add_node(node, children, [graph.type_of(v) for v in node.outputs])
        node_handles.append(handle)
        if len(node.outputs) == 1:
            handles[node.outputs[0]] = handle
        else:
            for index, value in enumerate(node.outputs):
                if value:
                    handles[value] = egraph.add_projection(handle, index)
    return Encoding(graph, egraph, handles, tuple(node_handles))


def _without_unused_outputs(node: Node, read: set[str]) -> Node:
    """The same computation asked for fewer outputs, where those at the end need not be asked for."""
    if node.opaque or len(node.outputs) == 1:
        return node
    definition = operator(node.op, node.domain)
    if definition is not None:
        named = [
            [node.outputs[i] for i in group if i < len(node.outputs)]
            for group in (definition.needed, definition.together)
        ]
        read = read.union(named[0], named[1] if not read.isdisjoint(named[1]) else ())
    outputs = node.outputs[: outputs_asked_for(node.key, node.outputs, read)]
    return Node(node.op, node.inputs, outputs, node.attributes, node.domain, node.name)
