"""The work of a group of operators, so that every cost model prices kernels of any size with one method."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

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


def group_work(graph: FusionGraph, operations: Iterable[int], inputs: Iterable[int], root: int) -> Work:
    """The work of one kernel that computes class ``root``.

    ``operations`` are the indices of its operators, ``inputs`` the distinct classes it reads, leaves included. Operations are
    summed; bytes are those of the inputs, each once, and of the root. The element type is that of the anchor, or of the
    operator with the most operations. A kernel of one operator is that operator's own work, types and all.
    """
    names: list[str] = []
    parts: list[Work] = []
    most = -1.0
    kind, dtype = Kind.VIEW, "default"
    total = 0.0
    for index in sorted(operations):
        operation = graph.operations[index]
        names.append(operation.name)
        if operation.work is not None:
            parts.append(operation.work)
        flops = operation.flops
        total += flops
        rank = _RANK[operation.kind]
        if rank > _RANK[kind] or most < 0 or (rank == _RANK[kind] and flops > most):
            dtype, most = operation.dtype, flops
            kind = operation.kind if rank > _RANK[kind] else kind
    read = sum(graph.bytes[c] for c in inputs)
    if len(names) == len(parts) == 1:
        return replace(parts[0], bytes_read=read, bytes_written=graph.bytes[root])
    return Work(tuple(names), kind, total, read, graph.bytes[root], dtype, parts=tuple(parts))
