"""A graph as the optimiser of ONNX Runtime leaves it right.

Behind a DequantizeLinear of one scale its level BASIC goes on through what moves elements (QDQPropagation), and puts a
QuantizeLinear and a DequantizeLinear of the same parameters behind each: a pair that changes nothing if the integers are unsigned
bytes. Otherwise, as of 1.32: without a zero point it makes unsigned bytes of signed ones (below opset 21) and of integers of 32
bits, so that negative elements become 0; with one, signed bytes do not load from opset 21 on, those of 32 bits nowhere. So the
integers are moved, and dequantised behind. Where a product and a bias become a Gemm, it is ONNX Runtime that moves the rows, by a
Reshape to a matrix; there the scale is written for each index of an axis, which it leaves alone.

A product of two operands that are dequantised, one of them by several scales, its level EXTENDED fuses into MatMulIntegerToFloat,
whatever axis the scales lie along. The kernel takes scales of the columns of a matrix, and ends the run with an error for
others (1.32). So a Reshape comes between the two.
"""

import math
from dataclasses import replace

import numpy as np

from eqsat.backends.onnxruntime_kernels import may_run
from eqsat.backends.transposed_products import give_one_rank
from eqsat.backends.written import Written, changed, dtype_of, has_one_scale
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import traits_of
from eqsat.ir.types import UNKNOWN, DType, TensorType, Type

_SAFE = DType.UINT8
_LEAST_BITS = 8


def for_onnxruntime(graph: Graph) -> Graph:
    """``graph``, computing the same: integers are moved before they are dequantised where moving floats would not stay right,
    no product is fused with scales that its kernel does not take, and there are none on which the runtime ends the process."""
    return changed(graph, _move_integers, _scale_each_slice, _keep_scales_apart, give_one_rank)


def _move_integers(written: Written) -> None:
    graph = written.old
    dequantised: dict[str, tuple[str, Node]] = {}  # from a value to its integers and how they are dequantised
    for node in graph.nodes:
        integers, how = dequantised.get(node.inputs[0] if node.inputs else "", ("", node))
        type = _type_of_integers(graph, how, node) if how is not node else UNKNOWN
        operands = [type, *(graph.type_of(v) if v else None for v in node.inputs[1:])]
        if how is node or not _only_moves(node) or not may_run(node.key, operands):
            written.nodes.append(node)
            if _is_at_risk(graph, node):
                alone = replace(node, attributes=node.attributes.updated(axis=None))
                dequantised[node.outputs[0]] = node.inputs[0], alone
            continue
        moved = written.value(node.op, integers, *node.inputs[1:], type=type, attributes=node.attributes)
        written.put(node, how, moved, *how.inputs[1:])
        dequantised[node.outputs[0]] = moved, how


def _scale_each_slice(written: Written) -> None:
    graph = written.old
    added = {v for n in graph.nodes if n.key == "Add" for v in n.inputs}
    rows = {n.inputs[0] for n in graph.nodes if n.key == "MatMul" and n.outputs[0] in added}
    for node in graph.nodes:
        axis, extent = _first_axis(graph.type_of(node.outputs[0])) if node.outputs[0] in rows else (0, 0)
        parameters = [graph.constants.get(v) for v in node.inputs[1:]]
        if not extent or not _is_at_risk(graph, node) or None in parameters:
            written.nodes.append(node)
            continue
        repeated = (
            written.constant(np.repeat(c.numpy().reshape(-1), extent), f"{v}_along_{axis}")
            for v, c in zip(node.inputs[1:], parameters, strict=True)
            if c is not None
        )
        how = replace(node, attributes=node.attributes.updated(axis=axis))
        written.put(node, how, node.inputs[0], *repeated)


def _first_axis(type: Type) -> tuple[int, int]:
    """The first axis of a value of more than two axes whose extent is known and not 1, and that extent; 0 where there is none."""
    shape = (type.shape or ()) if isinstance(type, TensorType) else ()
    known = ((i, d) for i, d in enumerate(shape) if isinstance(d, int) and d > 1)
    return next(known, (0, 0)) if len(shape) > 2 else (0, 0)


def _keep_scales_apart(written: Written) -> None:
    graph = written.old
    fused: set[str] = set()
    for node in graph.nodes:
        makers = [written.producers.get(v) for v in node.inputs]
        if node.key == "MatMul" and all(m is not None and m.key == "DequantizeLinear" for m in makers):
            fused.update(
                v for v, m, at in zip(node.inputs, makers, (0, 1), strict=True) if m and _is_refused(graph, m, at)
            )
    for node in graph.nodes:
        type = graph.type_of(node.outputs[0])
        extents = (type.shape or ()) if isinstance(type, TensorType) else ()
        shape = tuple(d for d in extents if isinstance(d, int))
        if node.outputs[0] not in fused or len(shape) < len(extents):
            written.nodes.append(node)
            continue
        axis = node.attributes.get("axis", 1) % len(shape)
        parts = tuple(map(math.prod, (shape[:axis], shape[axis : axis + 1], shape[axis + 1 :])))
        integers = written.reshaped(node.inputs[0], parts)
        scaled = written.value(
            node.op,
            integers,
            *node.inputs[1:],
            type=replace(type, shape=parts),
            attributes=node.attributes.updated(axis=1),
        )
        written.put(node, Node("Reshape", (), ()), scaled, written.number(shape, node.outputs[0]))


def _is_refused(graph: Graph, node: Node, operand: int) -> bool:
    """Whether the kernel of a product of integers does not take the scales of an operand: not one, nor one for each column."""
    type = graph.type_of(node.outputs[0])
    of_columns = (
        operand == 1 and isinstance(type, TensorType) and type.rank == 2 and node.attributes.get("axis", 1) in (1, -1)
    )
    return not (has_one_scale(graph, node, "DequantizeLinear") or of_columns or node.attributes.get("block_size", 0))


def _only_moves(node: Node) -> bool:
    """Whether each element of the one result is one of the first input, and there are no more of them."""
    if node.opaque or node.domain or len(node.outputs) > 1:
        return False
    facts = traits_of(node.key, node.attributes)
    return facts.moves and facts.sources == (0,) and not (facts.or_zero or facts.widens)


def _type_of_integers(graph: Graph, how: Node, node: Node) -> Type:
    """The type of what ``node`` moves, before ``how`` dequantises it."""
    floats = graph.type_of(node.outputs[0])
    return TensorType(dtype_of(graph, how.inputs[0]), floats.shape) if isinstance(floats, TensorType) else floats


def _is_at_risk(graph: Graph, node: Node) -> bool:
    """Whether a node dequantises integers other than unsigned bytes by a constant scale."""
    if not has_one_scale(graph, node, "DequantizeLinear") or node.inputs[1] not in graph.constants:
        return False
    dtype = dtype_of(graph, node.inputs[0])
    return dtype.is_integer and dtype.bits >= _LEAST_BITS and dtype is not _SAFE
