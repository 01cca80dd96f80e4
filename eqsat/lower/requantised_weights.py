"""Weights of floats that ONNX Runtime rounds to bytes.

Where a product reads what DequantizeLinear makes with one scale, ONNX Runtime rounds its weights to 8 bits, with one scale for
all, and its bias to that of the sums, so that it can compute on integers (``WeightBiasQuantization``, from level BASIC on). That
is another function: results are off by a quantum in every third element. As of 1.32 those are

- Conv, ConvTranspose and Gemm, and MatMul that an Add of a constant follows, which become a Gemm,
- whose weights are a constant of floats, or computed from constants when the program is loaded,
- or whose bias is a constant in half precision, which has no room for it in units of the sums: it overflows.

A scale for each index of an axis, all of them equal, means the same, and is left alone. So the programs that are written have
that, but for products that the original has, and quantises: whoever wrote them gets what the runtime makes of them.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from eqsat.cost.target import Target
from eqsat.ir.at_load import computed_at_load
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.operator import traits_of
from eqsat.ir.types import HALVES, UNKNOWN, DType
from eqsat.lower.program import Program

_DEQUANTIZE = "DequantizeLinear"


def with_weights_kept(program: Program, original: Graph, target: Target) -> Program:
    """The program without products whose weights or bias the runtime would round, but for those that the original has."""
    graph = program.graph
    found = _rounded(graph, target)
    theirs = _quantised(original, _rounded(original, target)) if found else frozenset[str]()
    return scaled_along(program, {index: axis for product, (index, axis) in found.items() if product not in theirs})


def scaled_along(program: Program, axes: Mapping[int, int]) -> Program:
    """The program with nodes that dequantise, by number, that have their scale for each index of an axis."""
    if not axes:
        return program
    graph = program.graph
    constants, nodes = dict(graph.constants), list(graph.nodes)
    taken = graph.names()
    for index, axis in axes.items():
        nodes[index] = _along(graph, nodes[index], axis, constants, taken)
    graph = replace(graph, nodes=tuple(nodes), constants=constants)
    return replace(program, graph=graph)


def _rounded(graph: Graph, target: Target) -> dict[str, tuple[int, int]]:
    """The results of such products: each with the node that dequantises the first operand, and the axis along which its scale
    may lie."""
    scaled = {n.outputs[0]: i for i, n in enumerate(graph.nodes) if _has_one_scale(graph, n)}
    if not scaled:
        return {}
    loaded = {v for i in computed_at_load(graph, target.kept_at_load) for v in graph.nodes[i].outputs}
    loaded.update(graph.constants)
    sums = (n.inputs for n in graph.nodes if n.key == "Add" and not graph.constants.keys().isdisjoint(n.inputs))
    added = set(chain.from_iterable(sums))
    found: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        is_product = not node.domain and traits_of(node.key).product is not None
        if not is_product or (node.op == "MatMul" and node.outputs[0] not in added):
            continue
        first, *others = node.inputs
        axis = first_axis(graph, first) if first in scaled else None
        if axis is None:
            continue
        weights, *bias = [graph.type_of(v).dtype if v in loaded else None for v in others]
        if weights is DType.FLOAT or (bias and bias[0] in HALVES):
            found[node.outputs[0]] = scaled[first], axis
    return found


def _quantised(graph: Graph, values: Collection[str]) -> frozenset[str]:
    """Those of some values that are quantised as they are, and read by nobody else, which is when the runtime rounds."""
    reads = graph.reads()
    quantised = (n.inputs[0] for n in graph.nodes if n.key == "QuantizeLinear")
    return frozenset(v for v in quantised if v in values and reads[v] == 1)


def _has_one_scale(graph: Graph, node: Node) -> bool:
    if node.key != _DEQUANTIZE:
        return False
    parameters = [graph.constants.get(v) for v in node.inputs[1:] if v]
    return all(c is not None and c.size == 1 for c in parameters)


def first_axis(graph: Graph, value: str) -> int | None:
    """The first axis of known extent above 1: the farther in front it is, the longer are the rows of one scale."""
    shape = graph.types.get(value, UNKNOWN).shape
    return next((i for i, d in enumerate(shape or ()) if isinstance(d, int) and d > 1), None)


def _along(graph: Graph, node: Node, axis: int, constants: dict[str, Constant], taken: set[str]) -> Node:
    """A node that dequantises with its scale, and its zero point, for each index of an axis; ``constants`` get them."""
    extent = (graph.types[node.outputs[0]].shape or ())[axis]
    assert isinstance(extent, int)
    inputs = list(node.inputs)
    for k, value in enumerate(node.inputs[1:], 1):
        if value:
            inputs[k] = fresh_name(f"{value}_along_{axis}", taken)
            constants[inputs[k]] = Constant.of(np.repeat(constants[value].numpy().reshape(-1), extent))
    return replace(node, inputs=tuple(inputs), attributes=Attributes({**node.attributes, "axis": axis}))
