"""What the runtime of a target makes of a program when it loads it.

Operators on constants are computed then, and launch nothing. One is not: ONNX Runtime leaves DequantizeLinear where it is, for
products on integers. A weight that is dequantised for a product of floats is run on every call at level BASIC, and from EXTENDED
on becomes ``MatMulNBits`` with accuracy level 4 (``session.qdq_matmulnbits_accuracy_level``), which rounds the *activations* to 8
bits: errors of 1e-2, and on a CPU more time than the product of floats. As of 1.32 that is

- MatMul, or Gemm with ``alpha == beta == 1`` and no transposed operand, whose second operand is the result,
- of a matrix of 4 or 8 bits with constant scales: one, one for each column, or one for each block of 16 or more rows,
- read by this product only, no output of the graph, with nothing in between but Transpose and Identity,
- and whose first operand is not itself the result of DequantizeLinear: products of two such become products of integers.

Whoever exported such a pair chose it. A program gets none that its original does not have: the weight becomes a constant of
floats.

ONNX Runtime also makes one operator of an Add of two values of the same three axes and the LayerNormalization that alone reads
it: in 1.27 to 1.29 a faster one, from 1.30 on one that takes six times as long (510 us of 128 rows of 768, 75 apart). So the Add
becomes a Sum of two, which adds up the same, and which it leaves alone.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from eqsat.cost.target import Target
from eqsat.exactness import Exactness
from eqsat.ir.at_load import computed_at_load
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Graph, Node
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Kind, kind_of
from eqsat.ir.types import DType, TensorType, Type, type_of_array
from eqsat.lower.fused_pairs import with_pairs_apart
from eqsat.lower.program import Kernel, Program
from eqsat.lower.requantised_weights import with_weights_kept

_DEQUANTIZE = "DequantizeLinear"
_NORM, _NORM_OF_SUM = "LayerNormalization", "com.microsoft::SkipLayerNormalization"
_ROWS = 3
"""Axes of what is added where ONNX Runtime makes one operator of sum and norm."""

_TRANSPARENT = ("Identity", "Transpose")
_MOST_BITS = 8


def as_loaded(program: Program, original: Graph, target: Target, fuses_slowly: Collection[str] = ()) -> Program:
    """The program with nothing that the runtime would make another function of, or one of the operators that it
    ``fuses_slowly``, and with kernels that launch nothing, because they are computed when it is loaded, as views."""
    if _DEQUANTIZE in target.kept_at_load:
        program = with_weights_kept(_without_new_pairs(program, original), original, target)
        program = with_pairs_apart(program, original)
    if _NORM_OF_SUM in fuses_slowly:
        program = replace(program, graph=_with_sums_apart(program.graph))
    known = computed_at_load(program.graph, target.kept_at_load)
    kernels = tuple(replace(k, template="view") if known.issuperset(k.nodes) else k for k in program.kernels)
    return replace(program, kernels=kernels)


def launches(graph: Graph, target: Target) -> int:
    """Operators of a graph that the target runs on every call, views aside: kernels, where each is one operator."""
    known = computed_at_load(graph, target.kept_at_load)
    return sum(kind_of(n) is not Kind.VIEW and i not in known for i, n in enumerate(graph.nodes))


def weights_read_by_products_of_floats(graph: Graph) -> frozenset[str]:
    """Dequantised constants whose product the runtime may compute on activations of 8 bits: see the head of the module. Which
    axis the scales lie along does not matter here: a Transpose changes it."""
    makers = {v: n for n in graph.nodes for v in n.outputs if v}
    readers: dict[str, int] = dict.fromkeys(graph.outputs, 1)
    for node in graph.nodes:
        for value in node.inputs:
            readers[value] = readers.get(value, 0) + 1
    found: set[str] = set()
    for node in graph.nodes:
        if not _is_plain_product(node):
            continue
        value, maker = node.inputs[1], makers.get(node.inputs[1])
        while maker is not None and maker.key in _TRANSPARENT and readers[value] == 1:
            value = maker.inputs[0]
            maker = makers.get(value)
        first = makers.get(node.inputs[0])
        paired = first is not None and first.key == _DEQUANTIZE
        if maker is not None and _is_weight(graph, maker) and readers[value] == 1 and not paired:
            found.add(value)
    return frozenset(found)


def _is_plain_product(node: Node) -> bool:
    if node.key == "Gemm":
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
        return all(node.attributes.get(name, value) == value for name, value in plain.items())
    return node.key == "MatMul"


def _is_weight(graph: Graph, node: Node) -> bool:
    if node.key != _DEQUANTIZE or any(v and v not in graph.constants for v in node.inputs):
        return False
    integers = graph.constants[node.inputs[0]]
    return len(integers.type.shape or ()) == 2 and integers.dtype.bits <= _MOST_BITS


def _without_new_pairs(program: Program, original: Graph) -> Program:
    graph = program.graph
    new = weights_read_by_products_of_floats(graph) - weights_read_by_products_of_floats(original)
    if not new:
        return program
    constants = dict(graph.constants)
    nodes: list[Node] = []
    number: dict[int, int] = {}
    for index, node in enumerate(graph.nodes):
        if new.isdisjoint(node.outputs):
            number[index] = len(nodes)
            nodes.append(node)
        else:
            constants[node.outputs[0]] = _value(node, graph.constants)
    used = {v for n in nodes for v in n.inputs} | set(graph.outputs)
    made = {k.outputs[0]: k for k in program.kernels if not new.isdisjoint(k.outputs)}
    kernels = tuple(_renumbered(k, number, made) for k in program.kernels if new.isdisjoint(k.outputs))
    types = {v: t for v, t in graph.types.items() if v not in new}
    constants = {v: c for v, c in constants.items() if v in used}
    graph = replace(graph, nodes=tuple(nodes), types=MappingProxyType(types), constants=MappingProxyType(constants))
    origin = {v: o for v, o in program.origin.items() if v not in new}
    return Program(graph, kernels, MappingProxyType(origin))


def _with_sums_apart(graph: Graph) -> Graph:
    reads = Counter([*(v for node in graph.nodes for v in node.inputs), *graph.outputs])
    normed = {n.inputs[0] for n in graph.nodes if n.key == _NORM and reads[n.inputs[0]] == 1}
    if not any(n.key == "Add" and n.outputs[0] in normed for n in graph.nodes):
        return graph
    fused = {n.outputs[0] for n in graph.nodes if n.key == "Add" and _are_rows(*map(graph.type_of, n.inputs))}
    return graph.with_nodes([replace(n, op="Sum") if n.outputs[0] in normed & fused else n for n in graph.nodes])


def _are_rows(a: Type, b: Type) -> bool:
    return isinstance(a, TensorType) and a == b and a.rank == _ROWS and a.dtype is DType.FLOAT


def _value(node: Node, constants: Mapping[str, Constant]) -> Constant:
    operands = [constants[v].numpy() if v else None for v in node.inputs]
    array = np.ascontiguousarray(evaluate_operator(node.key, node.attributes, operands)[0])
    array.flags.writeable = False
    return Constant(type_of_array(array), array)


def _renumbered(kernel: Kernel, number: Mapping[int, int], made: Mapping[str, Kernel]) -> Kernel:
    """The kernel with its nodes where they are now; it relies on the rules that its constants rely on."""
    rules = set(kernel.rules).union(*(made[v].rules for v in kernel.inputs if v in made))
    exactness = max(
        (kernel.exactness, *(made[v].exactness for v in kernel.inputs if v in made)), default=Exactness.EXACT
    )
    return replace(
        kernel, nodes=tuple(number[i] for i in kernel.nodes), rules=tuple(sorted(rules)), exactness=exactness
    )
