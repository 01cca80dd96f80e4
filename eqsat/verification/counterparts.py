"""The part of the original that corresponds to a region of the program: what the region is measured against."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from eqsat.ir.graph import Graph, Node
from eqsat.ir.order import reached
from eqsat.ir.parts import subgraph
from eqsat.ir.types import Type
from eqsat.verification.values import data_dependent


@dataclass(frozen=True)
class Counterpart:
    """Nodes of the original that compute ``outputs`` from ``inputs`` (and constants).

    Constants that the original computes are computed here, too: folding rounds them. An output that does not depend on the
    region's inputs is computed from the values that both depend on; without any, and if it is no constant, it is left out.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class JoinedParts:
    """Counterparts side by side in one graph. ``names``: (number of the counterpart, value) -> value of ``graph``."""

    graph: Graph
    names: Mapping[tuple[int, str], str]

    def renamed(self, values: Set[str]) -> frozenset[str]:
        """Those values of the graph that stand for ``values`` of the original."""
        return frozenset(values) | {new for (_, old), new in self.names.items() if old in values}


def join(original: Graph, parts: Sequence[Counterpart]) -> JoinedParts:
    """One graph that computes the outputs of all ``parts``, each from the inputs of its own part."""
    names: dict[tuple[int, str], str] = {}
    types: dict[str, Type] = {}
    nodes: list[Node] = []
    inputs: dict[str, None] = {}
    for k, part in enumerate(parts):
        fed = set(part.inputs)
        own = {v: f"{k}:{v}" for node in part.nodes for v in node.outputs if v}
        names.update(((k, old), new) for old, new in own.items())
        types.update((new, original.type_of(old)) for old, new in own.items())
        inputs.update(dict.fromkeys(part.inputs))
        for node in part.nodes:
            read = tuple(v if v in fed else own.get(v, v) for v in node.inputs)
            nodes.append(replace(node, inputs=read, outputs=tuple(own.get(v, v) for v in node.outputs)))
    outputs = [names[k, v] for k, part in enumerate(parts) for v in part.outputs]
    return JoinedParts(subgraph(original, nodes, inputs, outputs, types), names)


class CounterpartFinder:
    """Finds the part of a graph that computes given values from given values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._producer = {v: i for i, node in enumerate(graph.nodes) for v in node.outputs if v}
        self._live = data_dependent(graph)

    def find(self, inputs: Iterable[str], outputs: Sequence[str]) -> Counterpart:
        """The nodes between ``inputs`` and ``outputs``, and those that compute what they read of constants. What they read
        besides, and does not depend on ``inputs``, is an input of the part as well."""
        boundary = set(inputs)
        wanted = [v for v in dict.fromkeys(outputs) if v in self._producer]
        between, beside = self._between(boundary, wanted)
        if beside:  # as a variance in two passes, computed from differences that the one in one pass does not need
            shared = self._shared(boundary, beside)
            between |= self._between(shared, beside)[0]
            boundary |= shared
        read = [v for i in between for v in self.graph.nodes[i].inputs]
        between |= self._constant_nodes([*read, *beside], boundary)
        nodes = tuple(self.graph.nodes[i] for i in sorted(between))
        computed = {v for node in nodes for v in node.outputs if v}
        read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
        fed = tuple(v for v in read if v in boundary or (v not in computed and v not in self.graph.constants))
        return Counterpart(nodes, fed, tuple(v for v in wanted if v in computed))

    def _between(self, boundary: set[str], wanted: Sequence[str]) -> tuple[set[int], list[str]]:
        """The nodes that compute values on the way from ``boundary`` to ``wanted``, and those of ``wanted`` that do not depend
        on it."""
        first = min((self._producer.get(v, 0) for v in boundary), default=len(self.graph.nodes))
        read = {v for value in wanted for v in self.graph.nodes[self._producer[value]].inputs if v}
        way = self._sources(read, boundary, first) - boundary
        found: set[int] = set()
        known = set(boundary)
        for i in sorted({self._producer[v] for v in (*way, *wanted) if v in self._producer}):
            if not known.isdisjoint(self.graph.nodes[i].inputs):
                found.add(i)
                known.update(v for v in self.graph.nodes[i].outputs if v)
        return found, [v for v in wanted if self._producer[v] not in found]

    def _constant_nodes(self, values: Iterable[str], boundary: Set[str]) -> set[int]:
        """The nodes that compute those of ``values`` that are made of constants, and of extents and ``boundary``, which are
        read."""
        found: set[int] = set()
        stack = list(values)
        while stack:
            value = stack.pop()
            i = self._producer.get(value)
            if i is None or value in boundary or not self._live.isdisjoint(self.graph.nodes[i].inputs):
                continue
            if i not in found:
                found.add(i)
                stack.extend(v for v in self.graph.nodes[i].inputs if v)
        return found

    def _shared(self, values: set[str], outputs: Sequence[str]) -> set[str]:
        """The last values that both ``values`` and ``outputs`` depend on, constants aside."""
        needed = self._sources(outputs, frozenset())
        return self._sources(values, needed) & needed & self._live

    def _sources(self, values: Iterable[str], known: Set[str], first: int = 0) -> set[str]:
        """``values`` and what they are computed from, back to values in ``known`` and to those from before node ``first``."""

        def operands(value: str) -> Iterable[str]:
            far = value in known or self._producer.get(value, -1) < first
            return () if far else filter(None, self.graph.nodes[self._producer[value]].inputs)

        return reached(values, operands)
