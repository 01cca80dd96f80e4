"""Peak memory of a program, by liveness of its intermediate values."""

from __future__ import annotations

from eqsat.cost.model import nominal
from eqsat.ir.graph import Graph
from eqsat.ir.operator import Kind, kind_of
from eqsat.ir.types import TensorType, Type


def peak_memory_bytes(graph: Graph) -> int:
    """Most bytes of inputs, intermediates and outputs alive at once when nodes run in order; constants are not counted.

    A view shares the buffer of its input. A symbolic extent counts as in `eqsat.cost.model.nominal`; a value of
    unknown rank as nothing.
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
            shared = buffer.get(node.inputs[0]) if kind_of(node) is Kind.VIEW and node.inputs else None
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


def _bytes(type: Type) -> int:
    found = nominal(type)
    return (found.bytes or 0) if isinstance(found, TensorType) and found.dtype != 0 else 0
