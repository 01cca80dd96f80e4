"""Classes that are views of one another as one class, for bounds in which views cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

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
    parent = list(range(len(graph.members)))

    def find(cls: int) -> int:
        while parent[cls] != cls:
            parent[cls] = parent[parent[cls]]
            cls = parent[cls]
        return cls

    def join(one: int, other: int) -> None:
        first, second = sorted((find(one), find(other)))
        parent[second] = first

    for index, operation in enumerate(graph.operations):
        equal = (free and operation.is_plain_view) or (coarse is not None and operation.name == RECENTER)
        if usable[index] and len(operation.inputs) == 1 and equal:
            own, other = graph.owner[index], operation.inputs[0]
            if graph.bytes[own] == graph.bytes[other] and graph.members[other]:
                join(own, other)
    for component in _converted(graph, usable) if coarse is not None else ():
        for cls in component:
            join(component[0], cls)
    least = list(graph.bytes)
    for cls, size in enumerate(graph.bytes):
        least[find(cls)] = min(least[find(cls)], size)
    number: dict[int, int] = {}
    result = FusionGraph()
    for cls in range(len(parent)):
        if find(cls) == cls:
            number[cls] = len(result.members)
            result.members.append([])
            result.elements.append(graph.elements[cls])
            free_read = coarse is not None and graph.scalar[cls]
            result.bytes.append(0.0 if free_read else least[cls])
            result.scalar.append(graph.scalar[cls])
    computed = {number[find(cls)] for cls, members in enumerate(graph.members) if members}
    places: dict[int, int] = {}
    seen: dict[tuple[object, ...], int] = {}
    for cls, members in enumerate(graph.members):
        target = find(cls)
        for index in members:
            operation = graph.operations[index]
            inputs = tuple(dict.fromkeys(number[find(c)] for c in operation.inputs))
            shortened = len(inputs) < len(operation.inputs)
            if coarse is not None and not operation.has_parts:
                kept = _without_scalars(inputs, result.scalar, coarse, ordered=operation.kind is Kind.ANCHOR)
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
            read = inputs if operation.is_view else tuple(c for c in inputs if c in computed)
            between = operation.is_view or (coarse is not None and _is_conversion(operation))
            if usable[index] and not (between and read == (number[target],)):
                if same not in seen:
                    seen[same] = result.add(number[target], replace(operation, inputs=inputs))
                places[index] = seen[same]
                if shortened:
                    result.collapsed.add(seen[same])
    for cls, members in enumerate(graph.members):
        own = number[find(cls)]
        if members and not result.members[own]:  # no leaf, but a class that nothing derives
            result.add(own, replace(graph.operations[members[0]], inputs=(own,)))
    result.roots = tuple(dict.fromkeys(number[find(c)] for c in graph.roots))
    return Merged(result, places, {cls: number[find(cls)] for cls in range(len(parent))})


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
