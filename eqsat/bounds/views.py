"""Classes that are views of one another as one class, for bounds in which views cost nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from networkx.utils import UnionFind

from eqsat.cost.target import Target
from eqsat.extract.components import strong_components
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.ir.operator import Kind
from eqsat.ir.operators.recenter import RECENTER


def usable_operations(graph: FusionGraph, target: Target) -> list[bool]:
    """Whether each operation may be part of a program for the target."""
    return [
        o.name not in target.unsupported and "unwritable" not in o.labels and graph.owner[i] not in o.inputs
        for i, o in enumerate(graph.operations)
    ]


class Merged(NamedTuple):
    """``operations`` and ``classes``: the new numbers of those of the graph that was merged, where they still have one."""

    graph: FusionGraph
    operations: dict[int, int]
    classes: dict[int, int]


def merge_views(
    graph: FusionGraph, usable: Sequence[bool], *, free: bool = True, coarse: Target | None = None
) -> Merged:
    """The usable operations of a graph, of those (but anchors) that differ in the order of their inputs one.

    If views are ``free``, a view of one input and its input, of equal sizes in memory, become one class, if none of them is a
    leaf (whose views a kernel may compute otherwise, and read less). What computes one of them then computes the other. Every
    program of the graph and its kernels is one of the result at no greater cost: views only get fewer, and no value gets
    another size. Operators become equal whose inputs differ in views only. What computes a value from a view of it stays: it
    may be what a kernel is built around. ``usable[i]``: whether operation ``i`` may be chosen at all.

    ``coarse``: a target for which signed and unsigned spellings of 8-bit integers, 128 apart, are taken to be one value, and so
    are values of equal numbers of elements that elementwise operators compute from one another, with leaves at most: a value,
    scaled or quantised, say, and back. It takes the fewest bytes of these, but for roots, which are written as they are.
    Constants of one element, which kernels hold in their code, cost nothing and are left out. Programs only get cheaper by all
    that: an operator between two spellings of a value can be left out of a kernel.
    """
    first = _first_of_each(graph, usable, free=free, coarse=coarse is not None)
    merged = _Merging(graph, usable, first, coarse)
    return Merged(merged.result, merged.places, merged.number)


def _first_of_each(graph: FusionGraph, usable: Sequence[bool], *, free: bool, coarse: bool) -> list[int]:
    """For each class the first of those that become one with it."""
    parts = UnionFind(range(len(graph.members)))
    for index, operation in enumerate(graph.operations):
        equal = (free and operation.is_plain_view) or (coarse and operation.name == RECENTER)
        if usable[index] and len(operation.inputs) == 1 and equal:
            own, other = graph.owner[index], operation.inputs[0]
            if graph.bytes[own] == graph.bytes[other] and graph.members[other]:
                parts.union(own, other)
    for component in _converted(graph, usable) if coarse else ():
        parts.union(*component)
    first = list(range(len(graph.members)))
    for together in parts.to_sets():
        least = min(together)
        for cls in together:
            first[cls] = least
    return first


class _Merging:
    """``result``: the merged graph. ``number``: class -> class there; ``places``: operation -> operation there, if it has one."""

    def __init__(self, graph: FusionGraph, usable: Sequence[bool], first: Sequence[int], coarse: Target | None) -> None:
        self._graph = graph
        self._coarse = coarse
        self.result = FusionGraph()
        self.number: dict[int, int] = {}
        self.places: dict[int, int] = {}
        self._seen: dict[tuple[object, ...], int] = {}
        self._add_classes(first)
        self._computed = {self.number[cls] for cls, members in enumerate(graph.members) if members}
        for cls, members in enumerate(graph.members):
            for index in members:
                if usable[index]:
                    self._add(index, self.number[cls])
        for cls, members in enumerate(graph.members):
            own = self.number[cls]
            if members and not self.result.members[own]:  # no leaf, but a class that nothing derives
                self.result.add(own, replace(graph.operations[members[0]], inputs=(own,)))
        self.result.roots = tuple(dict.fromkeys(self.number[c] for c in graph.roots))

    def _add_classes(self, first: Sequence[int]) -> None:
        graph, result = self._graph, self.result
        least = list(graph.bytes)
        for cls, size in enumerate(graph.bytes):
            least[first[cls]] = min(least[first[cls]], size)
        for cls, own in enumerate(first):
            if own == cls:
                self.number[cls] = result.add_class_of(graph, cls)
                free_read = self._coarse is not None and graph.scalar[cls]
                result.bytes[-1] = 0.0 if free_read else least[cls]
            else:
                self.number[cls] = self.number[own]

    def _add(self, index: int, target: int) -> None:
        """Adds an operation of class ``target`` of the result, unless it is there or only leads back to that class."""
        operation, coarse = self._graph.operations[index], self._coarse
        inputs = tuple(dict.fromkeys(self.number[c] for c in operation.inputs))
        shortened = len(inputs) < len(operation.inputs)
        if coarse is not None and not operation.has_parts:
            kept = _without_scalars(inputs, self.result.scalar, coarse, ordered=operation.kind is Kind.ANCHOR)
            inputs = kept or inputs
        same = (
            target,
            operation.name,
            operation.labels,
            inputs if operation.kind is Kind.ANCHOR else frozenset(inputs),
            operation.flops,
            operation.dtype if coarse is None else coarse.peak(operation.dtype),
            operation.row_bytes,
        )
        read = inputs if operation.is_view else tuple(c for c in inputs if c in self._computed)
        between = operation.is_view or (coarse is not None and _is_conversion(operation))
        if between and read == (target,):
            return
        if same not in self._seen:
            self._seen[same] = self.result.add(target, replace(operation, inputs=inputs))
        self.places[index] = self._seen[same]
        if shortened:
            self.result.collapsed.add(self._seen[same])


def _is_conversion(operation: Operation) -> bool:
    return "elementwise" in operation.labels and not (operation.is_view or operation.has_parts)


def _converted(graph: FusionGraph, usable: Sequence[bool]) -> list[list[int]]:
    """Sets of classes that elementwise operators compute from one another, each from one of them and leaves."""
    ways: list[list[int]] = [[] for _ in graph.members]
    for cls, members in enumerate(graph.members):
        for index in members:
            read = graph.inputs_of(index)
            if not usable[index] or len(read) != 1 or not _is_conversion(graph.operations[index]):
                continue
            alike = graph.elements[read[0]] == graph.elements[cls]
            if alike and cls not in graph.roots and read[0] not in graph.roots:  # roots are written as they are
                ways[cls].append(read[0])
    return [component for component in strong_components(ways) if len(component) > 1]


def _without_scalars(
    inputs: Sequence[int], scalar: Sequence[bool], target: Target, *, ordered: bool
) -> tuple[int, ...]:
    """Inputs without constants of one element; if ``ordered``, with as many that what stages may take them stays the same."""
    if not ordered:
        return tuple(c for c in inputs if not scalar[c])
    first = sorted({0, *(s.from_input for t in target.templates for s in t.stages)})
    spare = iter(c for c in range(len(scalar)) if scalar[c])
    kept: list[int] = []
    for position, cls in enumerate(inputs):
        if not scalar[cls]:
            least = max(k for k in first if k <= position)
            kept += [c for c, _ in zip(spare, range(least - len(kept)), strict=False)]
            kept.append(cls)
    return tuple(kept)
