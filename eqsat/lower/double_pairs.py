"""Values that are quantised twice in a row.

Where QuantizeLinear and DequantizeLinear follow the same two of other parameters, and nobody else reads what lies between, ONNX
Runtime makes one pair of both, whose range is what the ranges share (``DoubleQDQPairsRemover``, at level ALL; 1.32). That rounds
once instead of twice, by another scale. It asks for one constant scale and zero point each, so the programs that are written have
an equal one for each index of an axis between the pairs, but where the original has the same two in a row.
"""

from collections import Counter
from dataclasses import replace
from types import MappingProxyType

from eqsat.ir.graph import Graph, Node
from eqsat.lower.program import Program
from eqsat.lower.requantised_weights import along, first_axis

_PAIR = _QUANTIZE, _DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
_ABOVE = (_QUANTIZE, _DEQUANTIZE, _QUANTIZE)
"""What stands before the DequantizeLinear of a second pair."""


def with_pairs_apart(program: Program, original: Graph) -> Program:
    """The program without pairs of which the runtime would make one, but for those that the original has."""
    graph = program.graph
    found = _between_pairs(graph)
    theirs = _between_pairs(original).keys() if found else ()
    axes = {index: first_axis(graph, value) for behind, (index, value) in found.items() if behind not in theirs}
    if not axes:
        return program
    constants, nodes = dict(graph.constants), list(graph.nodes)
    taken = {*graph.types, *constants, *graph.inputs}
    for index, axis in axes.items():
        if axis is not None:
            nodes[index] = along(graph, nodes[index], axis, constants, taken)
    return replace(program, graph=replace(graph, nodes=tuple(nodes), constants=MappingProxyType(constants)))


def _between_pairs(graph: Graph) -> dict[str, tuple[int, str]]:
    """By the result of the second pair: the node that dequantises between the two, and what it makes."""
    makers = {n.outputs[0]: i for i, n in enumerate(graph.nodes) if n.key in _PAIR}
    if len(makers) < len(_ABOVE):
        return {}
    reads = Counter([*(v for node in graph.nodes for v in node.inputs), *graph.outputs])
    found: dict[str, tuple[int, str]] = {}
    for node in graph.nodes:
        chain = [node]
        for op in _ABOVE if node.key == _DEQUANTIZE else ():
            value = chain[-1].inputs[0]
            if value in makers and reads[value] == 1 and graph.nodes[makers[value]].key == op:
                chain.append(graph.nodes[makers[value]])
        if len(chain) > len(_ABOVE) and all(_has_numbers(graph, n) for n in chain):
            between = chain[2].outputs[0]
            found[node.outputs[0]] = makers[between], between
    return found


def _has_numbers(graph: Graph, node: Node) -> bool:
    """Whether a node has one constant scale and one constant zero point."""
    parameters = [graph.constants.get(v) for v in node.inputs[1:]]
    return len(parameters) == 2 and all(c is not None and c.size == 1 for c in parameters)
