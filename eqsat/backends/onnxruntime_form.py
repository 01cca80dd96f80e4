"""A graph as the optimiser of ONNX Runtime leaves it right.

Behind a DequantizeLinear of one scale its level BASIC goes on through what moves elements, and MaxPool (QDQPropagation), and puts
a QuantizeLinear and a DequantizeLinear of the same parameters behind each: a pair that changes nothing if the integers are
unsigned bytes. Otherwise, as of 1.32: without a zero point it makes unsigned bytes of signed ones (below opset 21) and of
integers of 32 bits, so that negative elements become 0; with one, signed bytes do not load from opset 21 on, those of 32 bits
nowhere. So the integers are moved, and dequantised behind. Where a product and a bias become a Gemm, it is ONNX Runtime that
moves the rows, by a Reshape to a matrix; there the scale is written for each index of an axis, which it leaves alone.

Signed bytes that a node quantises by one scale and a zero point its level EXTENDED makes unsigned, with one zero point for those
who dequantise them without, which does not load where these have several scales (1.32). So they get a zero point for each.

A product of two operands that are dequantised, one of them by several scales, transposed or not, its level EXTENDED fuses into
MatMulIntegerToFloat, whatever axis the scales lie along. The kernel takes scales of the columns of a matrix, and for others it
ends the run with an error (1.32). So a Reshape comes between the two.

A sum that is normalised over its last axes its level EXTENDED fuses into SkipLayerNormalization, which normalises over the last
one, whatever axis says, where the scale has one axis (1.32). So scale and bias get another.

A Transpose runs through the memory in order where one axis moves, or several side by side, and looks every element up where more
do; it does not see that axes of extent 1 move nothing (1.32: 3 x 3 x 64 x 196 floats whose last two axes change places take 38
us, and 581 us if an axis of extent 1 in front becomes the second). So those are squeezed out before, and come back behind. A
Reshape would not do: ONNX Runtime takes it for the Transpose that it is, and makes one of both.

Where it knows extents by the names of symbols it plans which value lies where one of the same shape lay, and holds that memory
for it all the while; what it knows less of is given back to the pool, and what is allocated next lies in memory that was just
used (1.32; sessions without `enable_mem_reuse` do not plan: a DeiT with a symbolic batch takes 0.92 of the time). So a Reshape
leaves an extent open instead of copying it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from eqsat.backends.onnxruntime_kernels import may_run
from eqsat.backends.transposed_products import give_one_rank
from eqsat.backends.unsigned_filters import make_filters_unsigned
from eqsat.backends.written import Written, changed, has_one_scale
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.operator import traits_of
from eqsat.ir.operators.movement import way_of
from eqsat.ir.operators.windows import covers_data
from eqsat.ir.types import HALVES, UNKNOWN, DType, TensorType, Type

_SAFE = DType.UINT8
_LEAST_BITS = 8
_LEAST_LOOKED_UP = 1024
"""Elements of a Transpose from which on looking them up takes longer than two views."""


def for_onnxruntime(graph: Graph) -> Graph:
    """``graph``, computing the same: integers are moved before they are dequantised where moving floats would not stay right,
    no product is fused with scales that its kernel does not take, sums are normalised over the axes that are given, no
    convolution of half precision shares its bias, transposes leave axes of extent 1, views do not hand on the name of a
    symbol, no product ends the process, and integers are convolved by unsigned filters."""
    return changed(
        graph,
        _move_integers,
        _scale_each_slice,
        _keep_zeros,
        _keep_scales_apart,
        _keep_axes_of_norms,
        _share_no_bias,
        _leave_unit_axes,
        _leave_extents_open,
        give_one_rank,
        make_filters_unsigned,
    )


def _move_integers(written: Written) -> None:
    graph = written.old
    dequantised: dict[str, tuple[str, Node]] = {}  # from a value to its integers and how they are dequantised
    for node in written.each():
        integers, how = dequantised.get(node.inputs[0] if node.inputs else "", ("", node))
        type = _type_of_integers(graph, how, node) if how is not node else UNKNOWN
        operands = (type, *graph.operand_types(node)[1:])
        follows = how is not node and (_only_moves(node) or _picks_largest(graph, node, how))
        if not follows or not may_run(node.key, operands):
            if _is_at_risk(graph, node):
                alone = replace(node, attributes=node.attributes.updated(axis=None))
                dequantised[node.outputs[0]] = node.inputs[0], alone
            continue
        moved = written.value(node.op, integers, *node.inputs[1:], type=type, attributes=node.attributes)
        written.put(node, how, moved, *how.inputs[1:])
        dequantised[node.outputs[0]] = moved, how


def _keep_zeros(written: Written) -> None:
    graph = written.old
    for node in written.each():
        maker = (
            written.producers.get(node.inputs[0]) if node.key == "DequantizeLinear" and len(node.inputs) == 2 else None
        )
        scales = graph.type_of(node.inputs[1]) if maker is not None and maker.key == "QuantizeLinear" else UNKNOWN
        shape = scales.shape or ()
        extents = [d for d in shape if isinstance(d, int)]
        several = len(extents) == len(shape) and math.prod(extents) != 1
        if several and graph.type_of(node.inputs[0]).dtype is DType.INT8:
            zeros = written.constant(np.zeros(extents, np.int8), f"{node.inputs[0]}_zero")
            written.put(node, node, *node.inputs, zeros)


def _scale_each_slice(written: Written) -> None:
    graph = written.old
    added = {v for n in graph.nodes if n.key == "Add" for v in n.inputs}
    rows = {n.inputs[0] for n in graph.nodes if n.key == "MatMul" and n.outputs[0] in added}
    for node in written.each():
        axis, extent = _first_axis(graph.type_of(node.outputs[0])) if node.outputs[0] in rows else (0, 0)
        parameters = [graph.constants.get(v) for v in node.inputs[1:]]
        if not extent or not _is_at_risk(graph, node) or None in parameters:
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
    shape = type.shape or ()
    known = ((i, d) for i, d in enumerate(shape) if isinstance(d, int) and d > 1)
    return next(known, (0, 0)) if len(shape) > 2 else (0, 0)


def _keep_scales_apart(written: Written) -> None:
    graph = written.old
    fused: set[str] = set()
    for node in graph.nodes:
        made = [_before_transpose(written, v) for v in node.inputs] if node.key == "MatMul" else []
        if made and all(m is not None and m.key == "DequantizeLinear" for m, _ in made):
            fused.update(
                m.outputs[0] for at, (m, perm) in enumerate(made) if m is not None and _is_refused(graph, m, at, perm)
            )
    for node in written.each():
        type = graph.type_of(node.outputs[0])
        extents = type.shape or ()
        shape = tuple(d for d in extents if isinstance(d, int))
        if node.outputs[0] not in fused or len(shape) < len(extents):
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


def _is_norm(node: Node) -> bool:
    return node.key == "LayerNormalization" and not node.opaque


def _keep_axes_of_norms(written: Written) -> None:
    graph = written.old
    for node in written.each():
        x, scale = (graph.type_of(v) for v in node.inputs[:2]) if _is_norm(node) else (UNKNOWN, UNKNOWN)
        shape = scale.shape
        last = node.attributes.get("axis", -1) in (-1, (x.rank or 0) - 1)
        if not (x.rank is None or last or shape is None or len(shape) != 1 or not isinstance(shape[0], int)):
            written.put(node, node, node.inputs[0], *(v and _with_two_axes(written, v) for v in node.inputs[1:]))


def _with_two_axes(written: Written, value: str) -> str:
    """``value``, with an axis before its own if it has one alone."""
    shape = written.old.type_of(value).shape or ()
    return written.reshaped(value, (1, shape[0])) if len(shape) == 1 and isinstance(shape[0], int) else value


def _share_no_bias(written: Written) -> None:
    graph = written.old
    for node in written.each():
        bias = node.inputs[2] if node.key == "Conv" and len(node.inputs) > 2 else ""
        if bias in graph.constants and written.reads[bias] > 1 and graph.type_of(bias).dtype in HALVES:
            written.put(node, node, *node.inputs[:2], written.constant(graph.constants[bias].numpy(), bias))


def _leave_unit_axes(written: Written) -> None:
    """Transposes of matrices, but for axes of extent 1, between views without those."""
    graph = written.old
    for node in written.each():
        moves = node.key == "Transpose" and not node.opaque
        perm: tuple[int, ...] = tuple(node.attributes.get("perm", ())) if moves else ()
        shape = tuple(d for d in graph.type_of(node.inputs[0]).shape or () if isinstance(d, int)) if moves else ()
        if not _is_slow(shape, perm):
            continue
        dtype = graph.type_of(node.inputs[0]).dtype
        kept = [axis for axis, extent in enumerate(shape) if extent > 1]
        order = [kept.index(axis) for axis in perm if axis in kept]
        squeezed = TensorType(dtype, tuple(shape[axis] for axis in kept))
        moved = TensorType(dtype, tuple(shape[kept[i]] for i in order))
        units = [tuple(i for i, axis in enumerate(axes) if axis not in kept) for axes in (range(len(shape)), perm)]
        value = written.value("Squeeze", node.inputs[0], units[0], type=squeezed)
        value = written.value("Transpose", value, type=moved, attributes=Attributes({"perm": tuple(order)}))
        written.put(node, Node("Unsqueeze", (), ()), value, written.number(units[1], node.outputs[0]))


def _leave_extents_open(written: Written) -> None:
    """Reshapes that copy one extent, a symbol, take what is left for it: the others are numbers above 0."""
    graph = written.old
    for node in written.each():
        copies = node.key == "Reshape" and not node.opaque and not node.attributes.get("allowzero", 0)
        constant = graph.constants.get(node.inputs[1]) if copies else None
        target = [] if constant is None else [int(d) for d in constant.numpy()]
        shape = graph.type_of(node.outputs[0]).shape or ()
        if -1 not in target and target.count(0) == 1 and not isinstance(shape[target.index(0)], int):
            taken = tuple(d or -1 for d in target)
            written.put(node, node, node.inputs[0], written.number(taken, node.inputs[1]))


def _is_slow(shape: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether matrices are transposed where axes of extent 1 are left out, and elements scattered where they are not."""
    if len(shape) != len(perm) or math.prod(shape) < _LEAST_LOOKED_UP:
        return False
    return way_of(perm, shape) == "last moves" and way_of(perm, (2,) * len(perm)) == "scattered"


def _before_transpose(written: Written, value: str) -> tuple[Node | None, tuple[int, ...]]:
    """What computes a value, but for a transpose, and its permutation if there is one."""
    maker = written.producers.get(value)
    if maker is None or maker.key != "Transpose" or maker.opaque:
        return maker, ()
    return written.producers.get(maker.inputs[0]), tuple(maker.attributes.get("perm", (1, 0)))


def _is_refused(graph: Graph, node: Node, operand: int, perm: tuple[int, ...]) -> bool:
    """Whether the kernel of a product of integers does not take the scales of an operand, which is transposed by ``perm``: not
    one, nor one for each column."""
    type = graph.type_of(node.outputs[0])
    matrix = operand == 1 and type.rank == 2
    of_columns = matrix and node.attributes.get("axis", 1) % 2 == (0 if perm == (1, 0) else 1)
    return not (has_one_scale(graph, node, "DequantizeLinear") or of_columns or node.attributes.get("block_size", 0))


def _only_moves(node: Node) -> bool:
    """Whether each element of the one result is one of the first input, and there are no more of them."""
    if node.opaque or node.domain or len(node.outputs) > 1:
        return False
    facts = traits_of(node.key, node.attributes)
    return facts.moves and facts.sources == (0,) and not (facts.or_zero or facts.widens)


def _picks_largest(graph: Graph, node: Node, how: Node) -> bool:
    """Whether each element of the one result is the largest integer in a window, too, where ``how`` dequantises those."""
    facts = traits_of(node.key, node.attributes)
    picks = facts.rising and facts.spatial and facts.sources == (0,) and not (facts.moves or facts.or_zero)
    if not picks or node.opaque or node.domain or len(node.outputs) > 1 or "kernel_shape" not in node.attributes:
        return False
    return covers_data(node.attributes) and float(graph.constants[how.inputs[1]].numpy().min()) > 0


def _type_of_integers(graph: Graph, how: Node, node: Node) -> Type:
    """The type of what ``node`` moves, before ``how`` dequantises it."""
    floats = graph.type_of(node.outputs[0])
    return TensorType(graph.type_of(how.inputs[0]).dtype, floats.shape) if isinstance(floats, TensorType) else floats


def _is_at_risk(graph: Graph, node: Node) -> bool:
    """Whether a node dequantises integers other than unsigned bytes by a constant scale."""
    if not has_one_scale(graph, node, "DequantizeLinear") or node.inputs[1] not in graph.constants:
        return False
    dtype = graph.type_of(node.inputs[0]).dtype
    return dtype.is_integer and dtype.bits >= _LEAST_BITS and dtype is not _SAFE
