"""The work of a group of operators, so that every cost model prices kernels of any size with one method."""

from __future__ import annotations

from collections.abc import Iterable

from eqsat.cost.model import Work
from eqsat.fusion.operation import FusionGraph
from eqsat.ir.operator import Kind

_RANK = {
    Kind.VIEW: 0,
    Kind.ELEMENTWISE: 1,
    Kind.INJECTIVE: 2,
    Kind.REDUCTION: 3,
    Kind.ANCHOR: 4,
    Kind.OPAQUE: 5,
}


def group_work(
    graph: FusionGraph, operations: Iterable[int], inputs: Iterable[int], root: int, also: Iterable[int] = ()
) -> Work:
    """The work of one kernel that computes class ``root``, and ``also`` further classes.

    ``operations`` are the indices of its operators, ``inputs`` the distinct classes it reads, leaves included. Operations are
    summed; bytes are those of the inputs, each once, and of the classes written. The element type is that of the anchor, or of the
    operator with the most operations.
    """
    names: list[str] = []
    most = -1.0
    kind, dtype = Kind.VIEW, "default"
    total = 0.0
    for index in sorted(operations):
        operation = graph.operations[index]
        names.append(operation.name)
        flops = operation.flops
        total += flops
        rank = _RANK[operation.kind]
        if rank > _RANK[kind] or most < 0 or (rank == _RANK[kind] and flops > most):
            dtype, most = operation.dtype, flops
            kind = operation.kind if rank > _RANK[kind] else kind
    read = sum(graph.bytes[c] for c in inputs)
    wrote = graph.bytes[root] + sum(graph.bytes[c] for c in also)
    return Work(tuple(names), kind, total, read, wrote, dtype)
