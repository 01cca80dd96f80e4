"""Graphs as `networkx` sees them, for its algorithms and drawings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from eqsat.ir.graph import Graph
from eqsat.ir.nominal import nominal_bytes
from eqsat.ir.operator import kind_of
from eqsat.ir.operators.devices import device_of

if TYPE_CHECKING:
    import networkx as nx


def network_of(graph: Graph) -> nx.MultiDiGraph[Any]:
    """See `Graph.to_networkx`."""
    import networkx as nx

    network: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=graph.name)
    maker: dict[str, Hashable] = {}
    for index, node in enumerate(graph.nodes):
        network.add_node(
            index,
            role="operator",
            op=node.key,
            label=node.key,
            name=node.name,
            kind=kind_of(node).value,
            attributes=dict(node.attributes),
            opaque=node.opaque,
            device=device_of(node, graph.devices),
        )
        maker.update((v, index) for v in node.outputs if v)
    read = ((v, index, position) for index, node in enumerate(graph.nodes) for position, v in enumerate(node.inputs))
    connect(network, graph, maker, read, graph.constants)
    return network


def connect(
    network: nx.MultiDiGraph[Any],
    graph: Graph,
    maker: Mapping[str, Hashable],
    read: Iterable[tuple[str, Hashable, int]],
    constants: Iterable[str],
) -> None:
    """Adds inputs, outputs and ``constants`` of a graph to its network, and an edge for each value that is read.

    ``maker``: value -> what computes it; ``read``: a value, what reads it, and at which position.
    """
    sources = dict(maker)
    for role, names in (("input", graph.inputs), ("constant", constants)):
        for name in names:
            sources[name] = (role, name)
            network.add_node(sources[name], role=role, label=name, type=str(graph.type_of(name)))
    for position, name in enumerate(graph.outputs):
        network.add_node(("output", name), role="output", label=name, type=str(graph.type_of(name)))
        if name in sources:
            _add_edge(network, graph, name, sources[name], ("output", name), position)
    for value, reader, position in read:
        if value in sources:
            _add_edge(network, graph, value, sources[value], reader, position)


def _add_edge(network: nx.MultiDiGraph[Any], graph: Graph, value: str, a: Hashable, b: Hashable, position: int) -> None:
    type = graph.type_of(value)
    size = nominal_bytes(type)
    network.add_edge(a, b, key=(value, position), value=value, position=position, type=str(type), bytes=size)
