"""Classes that are views of one another as one class, for bounds in which views cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from eqsat.cost.target import Target
from eqsat.fusion.operation import FusionGraph, Operation
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
    graph: FusionGraph, usable: Sequence[bool], *, free: bool = True, recentered: Target | None = None
) -> Merged:
    """The usable operations of a graph, of those (but anchors) that differ in the order of their inputs one.

    If views are ``free``, a view of one input and its input, of equal sizes in memory, become one class, if none of them is a
    leaf (whose views a kernel may compute otherwise, and read less). What computes one of them then computes the other. Every
    program of the graph and its kernels is one of the result at no greater cost: views only get fewer, and no value gets
    another size. Operators become equal whose inputs differ in views only. What computes a value from a view of it stays: it
    may be what a kernel is built around. ``usable[i]``: whether operation ``i`` may be chosen at all.

    ``recentered``: a target for which signed and unsigned spellings of 8-bit integers, 128 apart, are taken to be one value,
    and constants of one element, which kernels hold in their code, cost nothing and are left out. Programs only get cheaper
    by that.
    """
    parent = list(range(len(graph.members)))

    def find(cls: int) -> int:
        while parent[cls] != cls:
            parent[cls] = parent[parent[cls]]
            cls = parent[cls]
        return cls

    def is_same(operation: Operation) -> bool:
        return recentered is not None and operation.name == RECENTER

    for index, operation in enumerate(graph.operations):
        if usable[index] and len(operation.inputs) == 1 and ((free and operation.is_plain_view) or is_same(operation)):
            own, other = graph.owner[index], operation.inputs[0]
            if graph.bytes[own] == graph.bytes[other] and graph.members[other]:
                first, second = sorted((find(own), find(other)))
                parent[second] = first
    number: dict[int, int] = {}
    result = FusionGraph()
    for cls in range(len(parent)):
        if find(cls) == cls:
            number[cls] = len(result.members)
            result.members.append([])
            result.elements.append(graph.elements[cls])
            free_read = recentered is not None and graph.scalar[cls]
            result.bytes.append(0.0 if free_read else graph.bytes[cls])
            result.scalar.append(graph.scalar[cls])
    places: dict[int, int] = {}
    seen: dict[tuple[object, ...], int] = {}
    for cls, members in enumerate(graph.members):
        target = find(cls)
        for index in members:
            operation = graph.operations[index]
            inputs = tuple(dict.fromkeys(number[find(c)] for c in operation.inputs))
            shortened = len(inputs) < len(operation.inputs)
            if recentered is not None and not operation.has_parts:
                kept = _without_scalars(inputs, result.scalar, recentered, ordered=operation.kind is Kind.ANCHOR)
                inputs = kept or inputs
            same = (
                target,
                operation.name,
                operation.labels,
                inputs if operation.kind is Kind.ANCHOR else frozenset(inputs),
                operation.flops,
                operation.dtype if recentered is None else recentered.peak(operation.dtype),
                operation.row_bytes,
            )
            if usable[index] and not ((operation.is_view or is_same(operation)) and inputs == (number[target],)):
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


def _without_scalars(
    inputs: Sequence[int], scalar: Sequence[bool], target: Target, *, ordered: bool
) -> tuple[int, ...]:
    """Inputs without constants of one element; if ``ordered``, with as many that what stages may take them stays the same."""
    if not ordered:
        return tuple(c for c in inputs if not scalar[c])
    first = sorted({s.from_input for t in target.templates for s in t.stages})
    spare = iter(c for c in range(len(scalar)) if scalar[c])
    kept: list[int] = []
    for position, cls in enumerate(inputs):
        if not scalar[cls]:
            least = max(k for k in first if k <= position)
            kept += [c for c, _ in zip(spare, range(least - len(kept)), strict=False)]
            kept.append(cls)
    return tuple(kept)
