"""Graphs that are the same but for the numbers of their classes and operations, so that repeated layers are looked at once."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from eqsat.extract.core import Core
from eqsat.fusion.graph import FusionGraph
from eqsat.ir.operator import Kind

_LEAF = -1


class Descriptions:
    """Graphs as extraction problems, with numbers for what the operations and classes are as costs: equal ones are equal
    problems. Graphs are to be compared within one of these."""

    def __init__(self) -> None:
        self._numbers: dict[object, float] = {}

    def of(self, graph: FusionGraph, mark: Callable[[int], object] = lambda cls: None) -> Core:
        """The problem of a graph; its ``parts`` are operations, -1 for what has none. ``mark``: what else tells a class from
        others."""
        nodes: list[list[int]] = [[] for _ in graph.members]
        owner: list[int] = []
        children: list[tuple[int, ...]] = []
        cost: list[float] = []
        parts: list[int] = []

        def add(cls: int, below: tuple[int, ...], part: int, *attribute: object) -> None:
            nodes[cls].append(len(owner))
            owner.append(cls)
            children.append(tuple(sorted(set(below))))
            cost.append(self._numbers.setdefault(attribute, float(len(self._numbers))))
            parts.append(part)

        for cls, members in enumerate(graph.members):
            kind = graph.bytes[cls], graph.elements[cls], graph.scalar[cls], mark(cls)
            if not members:
                add(cls, (), _LEAF, kind)
            for index in members:
                o = graph.operations[index]
                below = o.inputs
                if o.kind is Kind.ANCHOR:  # whose inputs have an order
                    below = tuple(range(len(nodes), len(nodes) + len(o.inputs)))
                    nodes.extend([] for _ in below)
                    for position, c in enumerate(o.inputs):
                        add(below[position], (c,), _LEAF, position)
                add(cls, below, index, kind, o.name, o.labels, o.kind, o.flops, o.dtype, o.row_elements, o.row_bytes)
        return Core(nodes, owner, children, cost, parts, graph.roots)


class Placed(NamedTuple):
    """A kernel by places of operations in an order that equal graphs have in common: those that it holds, and for each class that
    it writes one that computes it."""

    operations: tuple[int, ...]
    outputs: tuple[int, ...]


def placed(
    graph: FusionGraph, order: Sequence[int], kernels: Iterable[tuple[Collection[int], Collection[int]]]
) -> list[Placed]:
    """Kernels (operations, and the classes that are written) for all graphs that are equal to one in an ``order``."""
    place = {index: k for k, index in enumerate(order)}
    return [
        Placed(tuple(place[i] for i in operations), tuple(place[graph.members[c][0]] for c in outputs))
        for operations, outputs in kernels
    ]


def operations_in(core: Core, places: list[int]) -> list[int]:
    """The operations of a described graph in the order of ``places``, its nodes."""
    return [core.parts[n] for n in places if core.parts[n] != _LEAF]
