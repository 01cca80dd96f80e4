"""Small weights behind the DequantizeLinear that folding made floats of.

OpenVINO and TensorRT compute a product on integers only where both operands come out of DequantizeLinear. Folding makes a
constant of floats of a weight of up to 8 KiB, and with it products of floats of the first layers of a network and of those by
channel.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node, fresh_name
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import traits_of
from eqsat.ir.types import DType, TensorType
from eqsat.lower.program import Kernel, Program

_DEQUANTIZE = "DequantizeLinear"


def with_weights_paired(program: Program, original: Graph) -> Program:
    """The program with weights dequantised where the original dequantises them to the very same floats."""
    graph = program.graph
    wanted = _weights(graph)
    makers = {_contents(value): node for node, value in _dequantised(original, {c.type for c in wanted.values()})}
    found = {name: makers[key] for name, constant in wanted.items() if (key := _contents(constant.numpy())) in makers}
    if not found:
        return program
    constants = {v: c for v, c in graph.constants.items() if v not in found}
    names = {constant: v for v, constant in constants.items()}
    taken = graph.names()
    nodes: list[Node] = []
    for name, maker in found.items():
        operands: list[str] = []
        for value in maker.inputs:
            constant = original.constants[value] if value else None
            if constant is not None and constant not in names:
                names[constant] = fresh_name(value, taken)
                constants[names[constant]] = constant
            operands.append("" if constant is None else names[constant])
        nodes.append(replace(maker, inputs=tuple(operands), outputs=(name,)))
    before = tuple(
        Kernel(n.name or n.outputs[0], "view", (i,), tuple(v for v in n.inputs if v), n.outputs)
        for i, n in enumerate(nodes)
    )
    moved = tuple(replace(k, nodes=tuple(i + len(nodes) for i in k.nodes)) for k in program.kernels)
    types = {**graph.types, **{name: wanted[name].type for name in found}}
    written = replace(graph, nodes=(*nodes, *graph.nodes), constants=constants, types=types)
    return replace(program, graph=written, kernels=(*before, *moved))


def _weights(graph: Graph) -> Mapping[str, Constant]:
    """The constants of floats that products read."""
    products = (n for n in graph.nodes if not n.domain and traits_of(n.key).product is not None)
    read = {v: graph.constants[v] for n in products for v in n.inputs[:2] if v in graph.constants}
    return {v: c for v, c in read.items() if c.dtype is DType.FLOAT and len(c.shape) > 1}


def _dequantised(graph: Graph, types: set[TensorType]) -> Iterator[tuple[Node, np.ndarray]]:
    """Dequantised constants of some types, and what dequantises them."""
    for node in graph.nodes:
        if node.key == _DEQUANTIZE and graph.type_of(node.outputs[0]) in types:
            operands = [graph.constants.get(v) for v in node.inputs if v]
            if None not in operands:
                arrays = [graph.constants[v].numpy() if v else None for v in node.inputs]
                yield node, evaluate_operator(node.key, node.attributes, arrays)[0]


def _contents(array: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return array.shape, np.ascontiguousarray(array).tobytes()
