"""Pairs of quantisation of which ONNX Runtime makes another function.

- Where QuantizeLinear and DequantizeLinear follow the same two of other parameters, and nobody else reads what lies between, it
  makes one pair of both, whose range is what the ranges share (``DoubleQDQPairsRemover``, level BASIC). That rounds once instead
  of twice, by another scale.
- Softmax of what one scale dequantises, whose result is quantised and has no other reader, becomes QLinearSoftmax (level
  EXTENDED), which takes the next lower whole number of quanta in 1: with the scale 0.19, five.

That is so as of 1.32. The two pairs ask for one constant scale and zero point, so the programs that are written have an equal one
for each index of an axis there. QLinearSoftmax fails to load with those up to 1.31, so the scale is a product behind
DequantizeLinear, whose own scale is one, as it is where no axis is known to be longer than one; also where the original has the
same, if the reader runs QLinearSoftmax slower than the four (of 12 x 128 x 128 bytes 464 us and 150, on one thread).
"""

from collections import Counter
from collections.abc import Collection, Set
from dataclasses import replace

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node, fresh_name
from eqsat.lower.program import Program
from eqsat.lower.requantised_weights import first_axis, scaled_along

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_PAIRS = (_DEQUANTIZE, _QUANTIZE, _DEQUANTIZE, _QUANTIZE)
_SOFTMAX = (_QUANTIZE, "Softmax", _DEQUANTIZE)
_UNSHARED: dict[tuple[str, ...], int] = {_PAIRS: 3, _SOFTMAX: 1}
"""What is fused, from its result upwards, and how many of the values on the way have no other reader."""

_QLINEAR_SOFTMAX = "com.microsoft::QLinearSoftmax"


def with_pairs_apart(program: Program, original: Graph, fuses_slowly: Collection[str]) -> Program:
    """The program without what the runtime would fuse so, but for a Softmax that the original has there, unless the runtime
    ``fuses_slowly``."""
    graph = program.graph
    pairs, softmaxes = (_fused(graph, ops) for ops in (_PAIRS, _SOFTMAX))
    axes = {index: first_axis(graph, graph.nodes[index].outputs[0]) for index in pairs.values()}
    kept = _fused(original, _SOFTMAX).keys() if softmaxes and _QLINEAR_SOFTMAX not in fuses_slowly else ()
    found = scaled_along(program, {index: axis for index, axis in axes.items() if axis is not None})
    alone = {index for index, axis in axes.items() if axis is None}
    return _scaled_behind(found, alone | {index for v, index in softmaxes.items() if v not in kept})


def _scaled_behind(program: Program, indices: Set[int]) -> Program:
    """The program with nodes that dequantise, by number, whose scale is a product behind them."""
    if not indices:
        return program
    graph = program.graph
    constants, types = dict(graph.constants), dict(graph.types)
    taken = graph.names()
    made: dict[int, tuple[Node, Node]] = {}
    for index in sorted(indices):
        node = graph.nodes[index]
        (value,), (integers, scale, *point) = node.outputs, node.inputs
        one, unscaled = fresh_name(f"{scale}_one", taken), fresh_name(f"{value}_unscaled", taken)
        constants[one], types[unscaled] = Constant.of(np.ones_like(constants[scale].numpy())), types[value]
        first = replace(node, inputs=(integers, one, *point), outputs=(unscaled,))
        made[index] = first, Node("Mul", (unscaled, scale), (value,))
    graph = replace(graph, types=types, constants=constants)
    return replace(program, graph=graph).with_nodes_for(made)


def _fused(graph: Graph, ops: tuple[str, ...]) -> dict[str, int]:
    """By the result of what is fused: the node that dequantises within or before it."""
    found: dict[str, int] = {}
    if all(node.key != _QUANTIZE for node in graph.nodes):
        return found
    makers = {n.outputs[0]: i for i, n in enumerate(graph.nodes) if n.outputs}
    reads = graph.reads()
    for index, node in enumerate(graph.nodes):
        if node.key == ops[0]:
            chain = _chain(graph, makers, reads, index, ops)
            if len(chain) == len(ops) and all(_has_numbers(graph, graph.nodes[i]) for i in chain):
                found[node.outputs[0]] = chain[2]
    return found


def _chain(graph: Graph, makers: dict[str, int], reads: Counter[str], index: int, ops: tuple[str, ...]) -> list[int]:
    """A node and those above it, as far as they are ``ops``, and are fused."""
    chain: list[int] = []
    for op in ops:
        if graph.nodes[index].key != op:
            break
        chain.append(index)
        value = graph.nodes[index].inputs[0]
        if value not in makers or (reads[value] > 1 and len(chain) <= _UNSHARED[ops]):
            break
        index = makers[value]
    return chain


def _has_numbers(graph: Graph, node: Node) -> bool:
    """Whether a node, if it quantises or dequantises, does so by one constant scale and one constant zero point."""
    parameters = [graph.constants.get(v) for v in node.inputs[1:]]
    numbers = len(parameters) == 2 and all(c is not None and c.size == 1 for c in parameters)
    return (numbers or node.key == "Softmax") and not node.opaque
