"""Quantisers that OpenVINO computes wrong, spelled out.

It makes one operator of a pair of QuantizeLinear and DequantizeLinear, from the lowest to the highest value that the pair has.
Where one of these is infinite in float32, all results are NaN (2026.4.1): a scale of 2.7e36, of scores to which a mask of the
lowest number was added, times -128.
"""

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.types import DType, TensorType


def without_infinite_levels(graph: Graph) -> Graph:
    """``graph`` with the arithmetic of quantisers in their place whose lowest or highest level is infinite."""
    if not any(_levels(graph, node) for node in graph.nodes):
        return graph
    types, constants = dict(graph.types), dict(graph.constants)
    taken = {*types, *constants, *graph.inputs}
    nodes: list[Node] = []
    for node in graph.nodes:
        levels = _levels(graph, node)
        if levels is None:
            nodes.append(node)
            continue
        value, (y,) = node.inputs[0], node.outputs
        zero, lowest, highest = levels
        for op, *operands in (("Div", node.inputs[1]), ("Round",), ("Add", zero), ("Clip", lowest, highest)):
            names = [value]
            for operand in operands:
                if not isinstance(operand, str):
                    names.append(fresh_name(f"{y}_{op}", taken))
                    constants[names[-1]] = Constant.of(np.float32(operand))
                else:
                    names.append(operand)
            value = fresh_name(f"{y}_{op}", taken)
            types[value] = graph.type_of(node.inputs[0])
            nodes.append(Node(op, tuple(names), (value,)))
        nodes.append(Node("Cast", (value,), (y,), Attributes({"to": int(_dtype(graph, y))})))
    return replace(graph, nodes=tuple(nodes), types=MappingProxyType(types), constants=MappingProxyType(constants))


def _levels(graph: Graph, node: Node) -> tuple[float, float, float] | None:
    """Zero point, lowest and highest byte of a quantiser with one scale for all, if a level is infinite; else ``None``."""
    if node.key != "QuantizeLinear" or _dtype(graph, node.inputs[0]) is not DType.FLOAT:
        return None
    operands = [graph.constants.get(v) for v in node.inputs[1:]]
    if any(c is None or c.size != 1 for c in operands) or _dtype(graph, node.outputs[0]) not in (
        DType.INT8,
        DType.UINT8,
    ):
        return None
    scale, zero = (float(c.numpy().reshape(())) for c in (*operands, Constant.of(np.float32(0)))[:2] if c is not None)
    limits = np.iinfo(_dtype(graph, node.outputs[0]).numpy)
    lowest, highest = float(limits.min), float(limits.max)
    with np.errstate(over="ignore"):
        levels = np.float32(scale) * np.array((lowest - zero, highest - zero), np.float32)
    return None if np.isfinite(levels).all() else (zero, lowest, highest)


def _dtype(graph: Graph, value: str) -> DType:
    found = graph.type_of(value)
    return found.dtype if isinstance(found, TensorType) else DType.UNDEFINED
