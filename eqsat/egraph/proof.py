"""Asking whether rules prove two programs equal."""

from collections.abc import Iterable

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import encode
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.saturate import Limits, saturate
from eqsat.ir.graph import Graph
from eqsat.rewrite import AnyRule


def proves(rules: Iterable[AnyRule], start: Graph, goal: Graph, limits: Limits | None = None) -> bool:
    """Whether saturating ``start`` under ``rules`` yields each output of ``goal``, in order.

    Only ``start`` is rewritten: ``goal`` must be spelled as the rules spell it. Both read the same inputs by name.
    """
    encoding = encode(start)
    saturate(encoding.egraph, tuple(rules), limits)
    outputs = _place(encoding.egraph, goal)
    find = encoding.egraph.find
    return len(outputs) == len(start.outputs) and all(
        find(encoding.handles[name]) == find(handle) for name, handle in zip(start.outputs, outputs, strict=True)
    )


def _place(egraph: EGraph, graph: Graph) -> list[int]:
    """Handles of the outputs of a graph whose nodes are looked up in an e-graph, or added where they are missing."""
    handles = {"": ABSENT_INPUT}
    handles.update({name: egraph.add_input(name, graph.type_of(name)) for name in graph.inputs})
    handles.update({name: egraph.add_constant(constant) for name, constant in graph.constants.items()})
    for node in graph.nodes:
        children = [handles[value] for value in node.inputs]
        handle = egraph.add_node(node, children, [graph.type_of(v) for v in node.outputs])
        for index, value in enumerate(node.outputs):
            handles[value] = egraph.add_projection(handle, index)
    return [handles[name] for name in graph.outputs]
