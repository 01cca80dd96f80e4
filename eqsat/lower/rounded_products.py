"""Products whose weights are dequantised, as ONNX Runtime makes them when it loads a program.

A weight that is dequantised for a product of floats is run on every call at level BASIC, and from EXTENDED on becomes
``MatMulNBits`` with accuracy level 4 (``session.qdq_matmulnbits_accuracy_level``), which rounds the *activations* to 8 bits:
errors of 1e-2, and for many rows more time than a product of floats, for few less. As of 1.32 that is

- MatMul, or Gemm with ``alpha == beta == 1`` and no transposed operand, whose second operand is the result,
- of a matrix of 4 or 8 bits with constant scales: one, one for each column, or one for each block of 16 or more rows, along an
  axis that is not counted from the end,
- read by this product only, no output of the graph, with nothing in between but Transpose and Identity,
- and whose first operand is not itself the result of DequantizeLinear of bytes: products of two such become products of integers,
  as those of activations of 16 bits do not.

Whoever exported such a pair chose it, and it costs what the runtime makes of it; those of activations of 16 bits cost what the
product of floats does that the model asks for. A program gets none that its original does not have, but for such of weights that
lie side by side: the weight becomes a constant of floats.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from eqsat.cost.model import Work, at_load, work_of
from eqsat.cost.target import Target
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Application
from eqsat.ir.operators.matmul_nbits import MATMUL_NBITS
from eqsat.ir.types import DType, TensorType, type_of_array
from eqsat.lower.program import Kernel, Program

_Summary = tuple[tuple[int, ...], bytes]
"""Shape and contents of a matrix."""

_DEQUANTIZE = "DequantizeLinear"
_TRANSPARENT = ("Identity", "Transpose")
_MOST_BITS = 8
_BLOCK, _ROUNDS = 32, 4
"""Rows of a block where a column has one scale, and the accuracy level, unless a session says otherwise."""


def rounded_products(graph: Graph) -> Mapping[str, int]:
    """Dequantised constants, and the number of the product of each, which the runtime may compute on activations of 8 bits: see
    the head of the module. Which axis the scales lie along does not matter here: a Transpose changes it."""
    found: dict[str, int] = {}
    if all(node.key != _DEQUANTIZE for node in graph.nodes):
        return found
    makers, reads = graph.producers(), graph.reads()
    for index, node in enumerate(graph.nodes):
        if not _is_plain_product(node):
            continue
        value, maker = node.inputs[1], makers.get(node.inputs[1])
        while maker is not None and maker.key in _TRANSPARENT and reads[value] == 1:
            value = maker.inputs[0]
            maker = makers.get(value)
        first = makers.get(node.inputs[0])
        paired = first is not None and _dequantises_bytes(graph, first)
        if maker is not None and _is_weight(graph, maker) and reads[value] == 1 and not paired:
            found[value] = index
    return found


def _dequantises_bytes(graph: Graph, node: Node) -> bool:
    """Whether a node dequantises integers of 8 bits at most."""
    return node.key == _DEQUANTIZE and graph.type_of(node.inputs[0]).dtype.bits <= _MOST_BITS


def _is_plain_product(node: Node) -> bool:
    if node.key == "Gemm":
        plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
        return all(node.attributes.get(name, value) == value for name, value in plain.items())
    return node.key == "MatMul"


def _is_weight(graph: Graph, node: Node) -> bool:
    if not _dequantises_bytes(graph, node) or any(v and v not in graph.constants for v in node.inputs):
        return False
    integers, scale = graph.constants[node.inputs[0]], graph.constants[node.inputs[1]]
    seen = scale.size == 1 or node.attributes.get("axis", 1) >= 0
    return seen and len(integers.type.shape or ()) == 2


def works_of_pairs(graph: Graph, target: Target) -> Mapping[int, Work]:
    """What is left of DequantizeLinear and product where the runtime makes one operator of them: by the index of the node."""
    if not target.packed_products:
        return {}
    found: dict[int, Work] = {}
    products = rounded_products(graph)
    makers = graph.producers() if products else {}
    for index, node in enumerate(graph.nodes if products else ()):
        number = products.get(node.outputs[0])
        if number is None:
            continue
        product = graph.nodes[number]
        first = makers.get(product.inputs[0])
        work = None if first is not None and first.key == _DEQUANTIZE else _work_of_rounded(graph, node, product)
        if work is not None:
            found[number], found[index] = work, at_load(work)
    return found


def _work_of_rounded(graph: Graph, weight: Node, product: Node) -> Work | None:
    extents, integers = graph.type_of(product.inputs[1]).shape, graph.constants[weight.inputs[0]].dtype
    if extents is None or not all(isinstance(d, int) for d in extents):
        return None
    inner, columns = (int(d) for d in extents)
    block = weight.attributes.get("block_size", 0) or _BLOCK
    count = -(-inner // block)
    says = Attributes({"K": inner, "N": columns, "bits": integers.bits, "block_size": block, "accuracy_level": _ROUNDS})
    packed = TensorType(DType.UINT8, (columns, count, block * integers.bits // 8))
    types = [graph.type_of(product.inputs[0]), packed, TensorType(DType.FLOAT, (columns, count))]
    return work_of(Application(MATMUL_NBITS, says, types), [graph.type_of(product.outputs[0])])


def without_new_pairs(program: Program, original: Graph) -> Program:
    graph = program.graph
    new = _new_pairs(graph, original)
    if not new:
        return program
    folded = {i: node for i, node in enumerate(graph.nodes) if not new.isdisjoint(node.outputs)}
    made = {k.outputs[0]: k for k in program.kernels if not new.isdisjoint(k.outputs)}
    program = program.with_nodes_for(dict.fromkeys(folded, ()))
    used = {v for n in program.graph.nodes for v in n.inputs} | set(graph.outputs)
    constants = {**graph.constants, **{n.outputs[0]: _value(n, graph.constants) for n in folded.values()}}
    constants = {v: c for v, c in constants.items() if v in used}
    types = {v: t for v, t in graph.types.items() if v not in new}
    graph = replace(program.graph, types=types, constants=constants)
    origin = {v: o for v, o in program.origin.items() if v not in new}
    kernels = tuple(_relying_on(k, [made[v] for v in k.inputs if v in made]) for k in program.kernels)
    return replace(program, graph=graph, kernels=kernels, origin=origin)


def _new_pairs(graph: Graph, original: Graph) -> set[str]:
    """Dequantised weights for which the runtime rounds activations, and which are not made of such of the original."""
    given = rounded_products(original)
    new = rounded_products(graph).keys() - given.keys()
    if not new or not given:
        return new
    known = set(map(_summary, _integers(original, given).values()))
    return {value for value, integers in _integers(graph, new).items() if not _side_by_side(integers, known)}


def _integers(graph: Graph, values: Iterable[str]) -> dict[str, np.ndarray]:
    """What is dequantised to each of ``values``."""
    makers = graph.producers()
    return {value: graph.constants[makers[value].inputs[0]].numpy() for value in values}


def _summary(integers: np.ndarray) -> _Summary:
    return integers.shape, blake2b(integers.tobytes()).digest()


def _side_by_side(integers: np.ndarray, known: Collection[_Summary]) -> bool:
    """Whether a matrix consists of known ones along one of its axes."""
    for axis, extent in enumerate(integers.shape):
        widths = {shape[axis] for shape, _ in known}
        at = 0
        while at < extent:
            parts = (integers.take(range(at, at + w), axis) for w in widths if at + w <= extent)
            part = next((p for p in parts if _summary(p) in known), None)
            if part is None:
                break
            at += part.shape[axis]
        if at == extent:
            return True
    return False


def _value(node: Node, constants: Mapping[str, Constant]) -> Constant:
    operands = [constants[v].numpy() if v else None for v in node.inputs]
    array = np.ascontiguousarray(evaluate_operator(node.key, node.attributes, operands)[0])
    array.flags.writeable = False
    return Constant(type_of_array(array), array)


def _relying_on(kernel: Kernel, constants: Sequence[Kernel]) -> Kernel:
    """The kernel, which relies on the rules that the kernels of its ``constants`` relied on."""
    rules = set(kernel.rules).union(*(k.rules for k in constants))
    exactness = max((kernel.exactness, *(k.exactness for k in constants)))
    return replace(kernel, rules=tuple(sorted(rules)), exactness=exactness)
