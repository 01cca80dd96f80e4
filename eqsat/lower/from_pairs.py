"""Operators that the runtime makes of pairs of quantisation, as such pairs.

A file in plain ONNX has no ``QLinearAdd``. Between DequantizeLinear and QuantizeLinear an Add is one for ONNX Runtime from its
level EXTENDED on, though: one kernel, which programs are chosen by, and which is written as what the runtime makes it of.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from eqsat.cost.target import Target
from eqsat.ir.composite import expanded
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
    graph = expanded(program.graph, lambda node: node.key not in spelled)
    parts = iter(enumerate(graph.nodes))
    place = [tuple(_up_to(parts, node.outputs)) for node in program.graph.nodes]
    kernels = tuple(replace(k, nodes=tuple(j for i in k.nodes for j in place[i])) for k in program.kernels)
    return replace(program, graph=graph, kernels=kernels)


def _up_to(nodes: Iterator[tuple[int, Node]], outputs: tuple[str, ...]) -> Iterator[int]:
    """The numbers of the next nodes, up to the one that has ``outputs``."""
    for index, node in nodes:
        yield index
        if node.outputs == outputs:
            return
