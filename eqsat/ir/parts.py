"""Parts of a graph as graphs of their own."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.order import reached
from eqsat.ir.types import Type

_SIGHT = 3
"""How far nodes look around that are told apart by what they see."""

_CONTEXT = 32
"""Nodes that stand at most so far before or behind one in their order are around it."""

_LIST, _SMALL = 16, 4096
"""Elements of constants that tell nodes apart: of a list all of them count, of others whether they are all the same."""


def subgraph(
    graph: Graph,
    nodes: Sequence[Node],
    inputs: Iterable[str],
    outputs: Iterable[str],
    types: Mapping[str, Type] | None = None,
) -> Graph:
    """The graph of ``nodes``, which read ``inputs`` and constants of ``graph``. ``types`` replaces types of values."""
    taken = tuple(dict.fromkeys(inputs))
    used = {value for node in nodes for value in node.inputs} | set(outputs)
    constants = {k: c for k, c in graph.constants.items() if k in used and k not in taken}
    merged = {**graph.types, **(types or {})}
    defined = {*taken, *(value for node in nodes for value in node.outputs)}
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=taken,
        outputs=tuple(dict.fromkeys(outputs)),
        types={k: t for k, t in merged.items() if k in defined},
        constants=constants,
    )


def part_at(graph: Graph, places: Collection[int]) -> Graph:
    """The nodes at ``places`` as a graph of their own: what they read of others is an input, what others read an output."""
    nodes = [graph.nodes[i] for i in sorted(places)]
    made = {value for node in nodes for value in node.outputs if value}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value)
    wanted = {value for i, node in enumerate(graph.nodes) if i not in places for value in node.inputs}
    wanted.update(graph.outputs)
    inputs = [v for v in read if v not in made and v not in graph.constants]
    return subgraph(graph, nodes, inputs, [v for node in nodes for v in node.outputs if v in wanted and v])


def part_of_every_kind(graph: Graph) -> Graph:
    """A part of ``graph`` in which each kind of node is once at least, with what stands around it.

    Nodes are of one kind that have equal operators, attributes, types, and small constants as far as equations ask for those, and
    are among such. All nodes of one operator that read a value of the part stand side by side in it, as many as there are. What
    computes constants and lists of extents that the part reads belongs to it. What it computes and others read, too, is an
    output.
    """
    wires = _Wires(graph)
    order = [i for i, node in enumerate(graph.nodes) if not wires.constant.issuperset(node.outputs)]
    kinds = _kinds(graph, wires)
    first = {kinds[i]: place for place, i in reversed(list(enumerate(order)))}
    near = {i for place in first.values() for i in order[max(0, place - _CONTEXT) : place + _CONTEXT + 1]}
    return part_at(graph, wires.with_constants(wires.with_readers_alike(near)))


class _Wires:
    """Which nodes of a graph, by their places, write and read a value. ``constant``: what is computed of constants alone."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        self._lists = {v for v in graph.types if _is_list(graph.type_of(v))}
        self.constant = set(graph.constants) | {""}
        self.writer: dict[str, int] = {}
        self.readers: dict[str, list[tuple[int, int]]] = {}
        for i, node in enumerate(graph.nodes):
            if self.constant.issuperset(node.inputs):
                self.constant.update(node.outputs)
            self.writer.update((value, i) for value in node.outputs if value)
            for place, value in enumerate(node.inputs):
                if value not in graph.constants:
                    self.readers.setdefault(value, []).append((i, place))

    def with_readers_alike(self, kept: set[int]) -> set[int]:
        """``kept`` with all nodes that read a value as one of them does that has the same operator."""
        read = {(v, place, self._nodes[i].key) for i in kept for place, v in enumerate(self._nodes[i].inputs)}
        varying = {v for v, _, _ in read} - self.constant - self._lists
        return kept | {i for v in varying for i, place in self.readers[v] if (v, place, self._nodes[i].key) in read}

    def with_constants(self, kept: set[int]) -> set[int]:
        """``kept`` with what computes constants, and lists of integers, that it reads."""

        def writers(i: int) -> list[int]:
            given = (v for v in self._nodes[i].inputs if v in self.constant or v in self._lists)
            return [self.writer[v] for v in given if v in self.writer]

        return reached(kept, writers)


def _is_list(type: Type) -> bool:
    return type.dtype.is_integer and type.shape is not None and len(type.shape) <= 1


def _kinds(graph: Graph, wires: _Wires) -> list[int]:
    """A number for each node, the same for nodes of one kind."""
    numbers: dict[Hashable, int] = {}

    def number(key: Hashable) -> int:
        return numbers.setdefault(key, len(numbers))

    contents = {name: _content(constant) for name, constant in graph.constants.items()}
    types = {v: number(graph.type_of(v)) for n in graph.nodes for v in (*n.inputs, *n.outputs)}
    kinds = [
        number((n.key, n.attributes, *((types[v], contents.get(v)) for v in n.inputs), *(types[v] for v in n.outputs)))
        for n in graph.nodes
    ]
    for _ in range(_SIGHT):
        kinds = [
            number(
                (
                    kinds[i],
                    tuple(kinds[wires.writer[v]] if v in wires.writer else -1 for v in node.inputs),
                    frozenset((kinds[r], p) for v in node.outputs for r, p in wires.readers.get(v, ())),
                )
            )
            for i, node in enumerate(graph.nodes)
        ]
    return kinds


def _content(constant: Constant) -> Hashable:
    """What equations ask of small constants: elements of lists, and whether all are one of the numbers that they single out."""
    if constant.size > _SMALL:
        return None
    array = constant.numpy()
    if constant.size <= _LIST and array.dtype.kind in "iub" and array.dtype.itemsize != 1:
        return array.tobytes()
    elements = set(array.ravel().tolist())  # numpy does not compare integers of 4 bits with 128
    return next((number for number in (0, 1, 128) if elements <= {number}), None)
