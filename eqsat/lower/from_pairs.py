"""Operators that the runtime makes of pairs of quantisation, as such pairs.

A file in plain ONNX has no ``QLinearAdd``. Between DequantizeLinear and QuantizeLinear an Add is one for ONNX Runtime from its
level EXTENDED on, though: one kernel, which programs are chosen by, and which is written as what the runtime makes it of. So is
an integer product between DynamicQuantizeLinear and its scales (DynamicQuantizeMatMul).
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from eqsat.cost.target import Target
from eqsat.ir.composite import expanded, once
from eqsat.ir.graph import Graph, Node
from eqsat.lower.program import Program


def with_pairs_spelled(program: Program, original: Graph, target: Target, domains: Collection[str]) -> Program:
    """The program with operators that ``target`` makes of pairs as kernels of these, unless the file may name all of their
    ``domains``, or the original has them."""
    known = {n.key for n in original.nodes}
    keys = target.from_pairs - known
    spelled = {n.key for n in program.graph.nodes if n.key in keys and n.domain not in domains}
    if not spelled:
        return program
    own = {n.outputs for n in program.graph.nodes}
    graph = expanded(program.graph, lambda node: node.key not in spelled)
    parts = iter(graph.nodes)
    place = [[n.outputs for n in _up_to(parts, node.outputs)] for node in program.graph.nodes]
    graph = once(graph, lambda node: node.outputs not in own)  # several quantise the same value
    number = {n.outputs: i for i, n in enumerate(graph.nodes)}
    kernels = tuple(
        replace(k, nodes=tuple(number[v] for i in k.nodes for v in place[i] if v in number)) for k in program.kernels
    )
    return replace(program, graph=graph, kernels=kernels)


def _up_to(nodes: Iterator[Node], outputs: tuple[str, ...]) -> Iterator[Node]:
    """The next nodes, up to the one that has ``outputs``."""
    for node in nodes:
        yield node
        if node.outputs == outputs:
            return
