"""Pairs of quantisation of which ONNX Runtime makes another function.

- Where QuantizeLinear and DequantizeLinear follow the same two of other parameters, and nobody else reads what lies between, it
  makes one pair of both, whose range is what the ranges share (``DoubleQDQPairsRemover``, level BASIC). That rounds once instead
  of twice, by another scale.
- Softmax of what one scale dequantises, whose result is quantised and has no other reader, becomes QLinearSoftmax (level
  EXTENDED), which takes the next lower whole number of quanta in 1: with the scale 0.19, five.

That is so as of 1.32. Both ask for one constant scale and zero point, so the programs that are written have an equal one for each
index of an axis there, but where the original has the same.
"""

from collections import Counter

from eqsat.ir.graph import Graph, Node
from eqsat.lower.program import Program
from eqsat.lower.requantised_weights import first_axis, scaled_along

_QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_PAIRS = (_DEQUANTIZE, _QUANTIZE, _DEQUANTIZE, _QUANTIZE)
_SOFTMAX = (_QUANTIZE, "Softmax", _DEQUANTIZE)
_UNSHARED: dict[tuple[str, ...], int] = {_PAIRS: 3, _SOFTMAX: 1}
"""What is fused, from its result upwards, and how many of the values on the way have no other reader."""


def with_pairs_apart(program: Program, original: Graph) -> Program:
    """The program without what the runtime would fuse so, but for what the original has."""
    graph = program.graph
    found = _fused(graph)
    theirs = _fused(original).keys() if found else ()
    axes = {index: first_axis(graph, graph.nodes[index].outputs[0]) for v, index in found.items() if v not in theirs}
    return scaled_along(program, {index: axis for index, axis in axes.items() if axis is not None})


def _fused(graph: Graph) -> dict[str, int]:
    """By the result of what is fused: the node that dequantises within or before it."""
    makers = {n.outputs[0]: i for i, n in enumerate(graph.nodes) if n.outputs}
    reads = Counter([*(v for node in graph.nodes for v in node.inputs), *graph.outputs])
    found: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        for ops in _UNSHARED if node.key in (_QUANTIZE, _DEQUANTIZE) else ():
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
