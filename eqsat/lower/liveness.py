"""Peak memory of a program, by liveness of its intermediate values."""

from __future__ import annotations

from eqsat.cost.model import NOMINAL_EXTENT
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Kind, operator
from eqsat.ir.types import TensorType, Type


def peak_memory_bytes(graph: Graph) -> int:
    """Most bytes of inputs, intermediates and outputs alive at once when nodes run in order; constants are not counted.

    A view shares the buffer of its input. A symbolic extent counts as `NOMINAL_EXTENT`; a value of unknown rank as nothing.
    """
    buffer: dict[str, str] = {}
    size: dict[str, int] = {}
    for name in graph.inputs:
        buffer[name] = name
        size[name] = _bytes(graph.type_of(name))
    for node in graph.nodes:
        for value in node.outputs:
            if not value:
                continue
            shared = buffer.get(node.inputs[0]) if _is_view(node) and node.inputs else None
            buffer[value] = shared or value
            size.setdefault(buffer[value], _bytes(graph.type_of(value)))
    last: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for value in (*node.inputs, *node.outputs):
            if value in buffer:
                last[buffer[value]] = i
    for value in graph.outputs:
        if value in buffer:
            last[buffer[value]] = len(graph.nodes)
    alive = sum(size[buffer[name]] for name in graph.inputs)
    peak = alive
    freed_at: dict[int, list[str]] = {}
    for name, i in last.items():
        freed_at.setdefault(i, []).append(name)
    for i, node in enumerate(graph.nodes):
        alive += sum(size[v] for v in node.outputs if v and buffer[v] == v)
        peak = max(peak, alive)
        alive -= sum(size[name] for name in freed_at.get(i, ()))
    return peak


def _is_view(node: Node) -> bool:
    definition = None if node.opaque else operator(node.op, node.domain)
    return definition is not None and definition.kind is Kind.VIEW


def _bytes(type: Type) -> int:
    if not isinstance(type, TensorType) or type.shape is None or type.dtype == 0:
        return 0
    return TensorType(type.dtype, tuple(NOMINAL_EXTENT if isinstance(d, str) else d for d in type.shape)).bytes or 0
