"""The result of optimisation: a graph, partitioned into kernels, that knows which original value each of its values equals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph, Node
from eqsat.ir.networks import connect

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: the nodes it computes, what crosses its boundary, and the rules that made it.

    ``nodes`` are indices into the nodes of the program's graph. ``rules`` are the rewrite rules that prove the values of
    this kernel equal to the original's; ``exactness`` is the weakest class among them.
    """

    name: str
    template: str
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    rules: tuple[str, ...] = ()
    exactness: Exactness = Exactness.EXACT


@dataclass(frozen=True)
class Program:
    """An executable selection.

    ``origin`` maps a value of ``graph`` to the value of the original graph that it equals (up to the exactness of the
    rules used); values that the original never computed are absent. Nodes that only rearrange the view of a buffer belong
    to kernels whose template is ``"view"`` and launch nothing. ``constant_rules``: the rules by
    which outputs are constants, which no kernel computes; ``of_constants``: the weakest class among them.
    """

    graph: Graph
    kernels: tuple[Kernel, ...]
    origin: Mapping[str, str] = field(default_factory=dict[str, str])
    constant_rules: tuple[str, ...] = ()
    of_constants: Exactness = Exactness.EXACT

    @property
    def exactness(self) -> Exactness:
        """The weakest exactness class among the rules the program relies on."""
        return max((self.of_constants, *(k.exactness for k in self.kernels)))

    @property
    def kernel_count(self) -> int:
        """Kernels that launch (views do not)."""
        return sum(kernel.template != "view" for kernel in self.kernels)

    def with_nodes_for(self, made: Mapping[int, Sequence[Node]]) -> Program:
        """The program with other nodes, each a kernel of its own, in the place of some (by number)."""
        nodes: list[Node] = []
        place: dict[int, range] = {}
        for index, node in enumerate(self.graph.nodes):
            new = made.get(index, (node,))
            place[index] = range(len(nodes), len(nodes) + len(new))
            nodes += new
        kernels: list[Kernel] = []
        for kernel in self.kernels:
            moved = replace(kernel, nodes=tuple(j for i in kernel.nodes for j in place[i]))
            if made.keys().isdisjoint(kernel.nodes):
                kernels.append(moved)
                continue
            for j in moved.nodes:
                name, inputs = nodes[j].name or kernel.name, tuple(dict.fromkeys(v for v in nodes[j].inputs if v))
                own = Kernel(name, nodes[j].key, (j,), inputs, nodes[j].outputs, kernel.rules, kernel.exactness)
                kernels.append(own)
        return replace(self, graph=replace(self.graph, nodes=tuple(nodes)), kernels=tuple(kernels))

    def to_networkx(self, prices: Sequence[float] = ()) -> nx.MultiDiGraph[Any]:
        """The kernels as a `networkx.MultiDiGraph`, from what writes a value to what reads it.

        Its nodes are indices into ``kernels``, pairs ``("input", name)``, ``("output", name)``, and ``("constant", name)`` for
        outputs that no kernel computes. All have ``role`` and ``label``; kernels also ``template``, ``operators``, ``rules``,
        ``exactness``, ``bytes_read``, ``bytes_written``, and ``price`` where ``prices``, one for each kernel, are given (as by
        `eqsat.fusion.price_works`). Edges are as in `Graph.to_networkx`; constants that kernels read are no edges, and no bytes.
        """
        import networkx as nx

        graph = self.graph
        network: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=graph.name)
        for index, kernel in enumerate(self.kernels):
            network.add_node(
                index,
                role="kernel",
                label=kernel.name,
                template=kernel.template,
                operators=tuple(graph.nodes[i].key for i in kernel.nodes),
                rules=kernel.rules,
                exactness=kernel.exactness.label,
            )
        if prices:
            nx.set_node_attributes(network, dict(enumerate(prices)), "price")  # pyright: ignore[reportUnknownMemberType]
        maker = {v: index for index, kernel in enumerate(self.kernels) for v in kernel.outputs}
        read = ((v, i, position) for i, kernel in enumerate(self.kernels) for position, v in enumerate(kernel.inputs))
        connect(network, graph, maker, read, [v for v in graph.outputs if v in graph.constants])
        for index in range(len(self.kernels)):
            written = {data["value"]: data["bytes"] for _, _, data in network.out_edges(index, data=True)}
            network.nodes[index]["bytes_written"] = sum(written.values())
            read_bytes = {data["value"]: data["bytes"] for _, _, data in network.in_edges(index, data=True)}
            network.nodes[index]["bytes_read"] = sum(read_bytes.values())
        return network

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Outputs by name, computed by the reference interpreter in numpy."""
        from eqsat.ir.interpret import run

        return run(self.graph, feeds)
