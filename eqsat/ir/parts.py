"""Parts of a graph as graphs of their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.types import TensorType, Type

_SIGHT = 3
"""How far nodes look around that are told apart by what they see."""

_CONTEXT = 12
"""Nodes on each side of one that stand for all that it depends on: more than patterns of rules reach."""

_HUB = 8
"""A value that more nodes read leads from one of them to no other: all layers read a mask."""

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
        types=MappingProxyType({k: t for k, t in merged.items() if k in defined}),
        constants=MappingProxyType(constants),
    )


def part_of_every_kind(graph: Graph) -> Graph:
    """A part of ``graph`` in which each kind of node is once at least, with what is around it.

    Nodes are of one kind that have equal operators, attributes, types, and small constants as far as equations ask for those, and
    are among such. What is computed for the part and read outside is an output of it.
    """
    around = _Neighbours(graph)
    first: dict[int, int] = {}
    for index, kind in enumerate(_kinds(graph, around)):
        first.setdefault(kind, index)
    kept = around.with_lists(around.within(set(first.values()), _CONTEXT))
    nodes = [graph.nodes[i] for i in sorted(kept)]
    made = {value for node in nodes for value in node.outputs if value}
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value)
    outside = {value for i, node in enumerate(graph.nodes) if i not in kept for value in node.inputs}
    inputs = [v for v in graph.inputs if v in read]
    inputs += [v for v in read if v not in made and v not in graph.constants and v not in inputs]
    outside.update(graph.outputs)
    return subgraph(graph, nodes, inputs, [v for node in nodes for v in node.outputs if v in outside])


class _Neighbours:
    """Which nodes of a graph, by their places, write what others read."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.writer = {value: i for i, node in enumerate(graph.nodes) for value in node.outputs if value}
        self.readers: dict[str, list[tuple[int, int]]] = {}
        for i, node in enumerate(graph.nodes):
            for place, value in enumerate(node.inputs):
                if value in self.writer:
                    self.readers.setdefault(value, []).append((i, place))

    def within(self, nodes: set[int], distance: int) -> set[int]:
        """``nodes``, and what is at most ``distance`` from one of them."""
        found, border = set(nodes), nodes
        for _ in range(distance):
            border = {i for node in border for i in self._beside(node)} - found
            found |= border
        return found

    def _beside(self, index: int) -> Iterable[int]:
        node = self._graph.nodes[index]
        yield from (self.writer[v] for v in node.inputs if v in self.writer)
        for value in node.outputs:
            readers = self.readers.get(value, ())
            if len(readers) <= _HUB:
                yield from (i for i, _ in readers)

    def with_lists(self, nodes: set[int]) -> set[int]:
        """``nodes``, and all that computes the lists of integers that they read: most are extents."""
        found, waiting = set(nodes), list(nodes)
        while waiting:
            for value in self._graph.nodes[waiting.pop()].inputs:
                writer = self.writer.get(value)
                if writer is not None and writer not in found and _is_list(self._graph.type_of(value)):
                    found.add(writer)
                    waiting.append(writer)
        return found


def _is_list(type: Type) -> bool:
    return isinstance(type, TensorType) and type.dtype.is_integer and type.shape is not None and len(type.shape) <= 1


def _kinds(graph: Graph, around: _Neighbours) -> list[int]:
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
                    tuple(kinds[around.writer[v]] if v in around.writer else -1 for v in node.inputs),
                    frozenset((kinds[r], p) for v in node.outputs for r, p in around.readers.get(v, ())),
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
    return next((number for number in (0, 1, 128) if np.all(array == number)), None)
