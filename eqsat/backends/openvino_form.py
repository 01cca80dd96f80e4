"""A graph as OpenVINO takes it.

It makes one operator of QuantizeLinear and a DequantizeLinear directly behind it, and that part of the product that it reads.
Apart from one another they are arithmetic, and what reads the second one is computed on floats: so quantisers stand before what
only moves elements, in pairs. Of two pairs around Relu with the same scale rules leave the one before it, and then the product
that reads Relu is computed on floats: so the pair comes behind it. Neither comes directly to another pair.

A quantiser behind a Concat, or a Relu of one, it moves before it. With a zero point, and its integers dequantised for another
quantiser, that ends the process of 2026.4.1; with zero points for each slice the model does not load. There it sees no Concat.

The operator of a pair ranges from the lowest to the highest value that it has. Where one of these is infinite in float32, all
results are NaN (2026.4.1): a scale of 2.7e36, of scores to which a mask of the lowest number was added, times -128. Such
quantisers are spelled out.
"""

from dataclasses import replace

import numpy as np

from eqsat.backends.written import Written, changed, has_one_scale
from eqsat.frontends.onnx.envelope import envelope_of
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.operator import Kind, kind_of, traits_of
from eqsat.ir.types import DType, TensorType


def for_openvino(graph: Graph) -> Graph:
    """``graph``, computing the same, so that OpenVINO finds its kernels in it."""
    steps = _one_scale_of_equal_ones, _pair_behind_relu, _pair, _hide_concat, _spell_out_infinite_levels, _align_angles
    return _with_defaults_read(changed(graph, *steps))


def _with_defaults_read(graph: Graph) -> Graph:
    """An operator reads each output that is an input with a value in the file: OpenVINO knows such values only where one does."""
    defaults = envelope_of(graph).defaults
    unread = [
        v for v in graph.inputs if v in defaults and v in graph.outputs and not any(v in n.inputs for n in graph.nodes)
    ]
    if not unread:
        return graph
    taken = graph.names()
    readers = [Node("Identity", (v,), (fresh_name(f"{v}_read", taken),)) for v in unread]
    types = {n.outputs[0]: graph.type_of(n.inputs[0]) for n in readers}
    return replace(graph, nodes=(*graph.nodes, *readers), types={**graph.types, **types})


def _one_scale_of_equal_ones(written: Written) -> None:
    """Equal scales for each slice, and equal zero points, are one: programs for ONNX Runtime have such scales."""
    graph = written.old
    for node in written.each():
        quantises = node.key in ("QuantizeLinear", "DequantizeLinear")
        operands = [graph.constants.get(v) for v in node.inputs[1:]] if quantises else []
        arrays = [c.numpy().reshape(-1) for c in operands if c is not None and c.size > 1]
        equal = len(arrays) == len(operands) > 0 and not any((a != a[0]).any() for a in arrays)
        if not equal or node.inputs[0] in graph.constants:
            continue
        like = replace(node, attributes=node.attributes.updated(axis=None, block_size=None))
        single = (written.constant(a[0], f"{v}_of_all") for a, v in zip(arrays, node.inputs[1:], strict=True))
        written.put(node, like, node.inputs[0], *single)


def _pair_behind_relu(written: Written) -> None:
    """``Relu(DQ(Q(x)))`` is ``DQ(Q(Relu(x)))``: quantisers rise, and zero stays zero."""
    graph = written.old
    quantised = {node.inputs[0] for node in graph.nodes if node.key == "QuantizeLinear"}
    for node in written.each():
        rectified = node.key == "Relu" and node.outputs[0] not in quantised
        behind = written.producers.get(node.inputs[0]) if rectified else None
        before = written.producers.get(behind.inputs[0]) if behind is not None else None
        if behind is None or before is None or not _is_pair(written, before, behind):
            continue
        floats = written.value("Relu", before.inputs[0], type=graph.type_of(before.inputs[0]))
        type = graph.type_of(before.outputs[0])
        integers = written.value("QuantizeLinear", floats, *before.inputs[1:], type=type, attributes=before.attributes)
        written.put(node, behind, integers, *behind.inputs[1:])


def _is_pair(written: Written, quantiser: Node, dequantiser: Node) -> bool:
    """Whether two nodes quantise and dequantise by one scale above zero, and are read by nobody else."""
    graph = written.old
    if not has_one_scale(graph, quantiser, "QuantizeLinear") or not has_one_scale(
        graph, dequantiser, "DequantizeLinear"
    ):
        return False
    scale = graph.constants.get(quantiser.inputs[1])
    alone = all(written.reads[n.outputs[0]] == 1 for n in (quantiser, dequantiser))
    return (
        alone
        and quantiser.inputs[1:] == dequantiser.inputs[1:]
        and scale is not None
        and float(scale.numpy().min()) > 0
    )


def _pair(written: Written) -> None:
    """Quantisers of one scale come before what only moves elements, and what dequantises their integers directly behind them.

    Floats that others read as well stay where they are, unless moving them is a view: else they would be moved twice.
    """
    graph = written.old
    dequantised = {node.outputs[0] for node in graph.nodes if node.key == "DequantizeLinear"}
    for node in written.each():
        integers, behind = (
            _origin(written, node.inputs[0]) if has_one_scale(graph, node, "DequantizeLinear") else ("", [])
        )
        quantiser = written.producers.get(integers)
        if quantiser is None or not has_one_scale(graph, quantiser, "QuantizeLinear"):
            continue
        floats, before = _origin(written, quantiser.inputs[0], views=True)
        again = floats in dequantised
        if not behind and (not before or again):
            continue
        value, shape = floats, graph.type_of(floats)
        moves = reversed([*behind, *before])
        *steps, last = (*moves, quantiser, node) if again else (quantiser, node, *moves)
        for step in steps:
            quantises = step in (quantiser, node)
            at = shape if quantises else graph.type_of(step.outputs[0])
            dtype = graph.type_of(step.outputs[0] if quantises else node.outputs[0]).dtype
            type = replace(at, dtype=dtype) if isinstance(at, TensorType) else at
            shape = type if again else shape
            attributes = step.attributes.updated(axis=None) if quantises else step.attributes
            value = written.value(step.op, value, *step.inputs[1:], type=type, attributes=attributes)
        written.put(node, last, value, *last.inputs[1:])


def _origin(written: Written, value: str, views: bool = False) -> tuple[str, list[Node]]:
    """What a value is moved from, and the nodes that move it, last first. ``views``: those that others read, too, if they are
    views only."""
    found: list[Node] = []
    while (node := written.producers.get(value)) is not None and not node.opaque and not node.domain:
        alone = not views or written.reads[value] == 1 or kind_of(node) is Kind.VIEW
        if not alone or not traits_of(node.key, node.attributes).permutes:
            break
        found.append(node)
        value = node.inputs[0]
    return value, found


def _hide_concat(written: Written) -> None:
    """``Max(x, x)`` comes between a Concat and a quantiser that OpenVINO would fail to move before it."""
    graph = written.old
    again = {_before_arithmetic(written, n.inputs[0]) for n in graph.nodes if n.key == "QuantizeLinear"}
    shifted = [n for n in graph.nodes if n.key == "DequantizeLinear" and _has_zero_point(graph, n)]
    stuck = {n.inputs[0] for n in shifted if n.outputs[0] in again or not has_one_scale(graph, n, n.key)}
    for node in written.each():
        source = _before_arithmetic(written, node.inputs[0], "Relu") if node.outputs[0] in stuck else ""
        joined = written.producers.get(source)
        if node.key == "QuantizeLinear" and joined is not None and joined.key == "Concat":
            hidden = written.value("Max", node.inputs[0], node.inputs[0], type=graph.type_of(node.inputs[0]))
            written.put(node, node, hidden, *node.inputs[1:])


def _before_arithmetic(written: Written, value: str, *others: str) -> str:
    """What a value is computed from by sums and products with constants, and by operators of ``others``."""
    while (node := written.producers.get(value)) is not None and not node.opaque:
        operands = [v for v in node.inputs if v not in written.old.constants]
        traits = traits_of(node.key, node.attributes)
        affine = traits.operands == 2 and traits.affine
        if len(operands) != 1 or not (affine or node.key in ("BatchNormalization", *others)):
            break
        value = operands[0]
    return value


def _has_zero_point(graph: Graph, node: Node) -> bool:
    zero = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
    return len(node.inputs) > 2 and (zero is None or bool(zero.numpy().any()))


def _spell_out_infinite_levels(written: Written) -> None:
    """The arithmetic of quantisers comes in their place where the lowest or highest level is infinite.

    Where only their integers are read that is floats throughout: a Cast, or a Clip, would end a kernel of attention.
    """
    graph = written.old
    levels = {node.outputs[0]: found for node in graph.nodes if (found := _levels(graph, node)) is not None}
    zeros = {node.outputs[0]: node.inputs[2:] for node in graph.nodes if node.outputs[0] in levels}
    behind = (n for n in graph.nodes if has_one_scale(graph, n, "DequantizeLinear"))
    in_pair = {n.outputs[0] for n in behind if zeros.get(n.inputs[0]) == n.inputs[2:]}
    whole: dict[str, str] = {}
    for node in written.each():
        if (found := levels.get(node.outputs[0])) is not None:
            zero, lowest, highest = found
            type = graph.type_of(node.inputs[0])
            steps = written.value("Round", written.value("Div", *node.inputs[:2], type=type), type=type)
            above = written.value("Max", steps, lowest - zero, type=type)
            whole[node.outputs[0]] = value = written.value("Min", above, highest - zero, type=type)
            sums = written.value("Add", value, zero, type=type)
            to = Attributes({"to": int(graph.type_of(node.outputs[0]).dtype)})
            written.put(node, Node("Cast", (), (), to), sums)
        elif node.outputs[0] in in_pair:
            written.put(node, Node("Mul", (), ()), whole[node.inputs[0]], node.inputs[1])


def _align_angles(written: Written) -> None:
    """Cosines and sines get the rank of what they turn, by axes of 1 in front: else OpenVINO does not find a rotary embedding."""
    graph = written.old
    turning = {m.outputs[0] for node in graph.nodes for m in _rotary_products(written, node)}
    for node in written.each():
        types = graph.operand_types(node)
        shapes = [t.shape if isinstance(t, TensorType) and t.shape is not None else () for t in types]
        low = min((0, 1), key=lambda i: len(shapes[i])) if node.outputs[0] in turning else 0
        missing = len(shapes[1 - low]) - len(shapes[low]) if node.outputs[0] in turning else 0
        if not missing or not shapes[low]:
            continue
        type = TensorType(graph.type_of(node.inputs[low]).dtype, ((1,) * missing + shapes[low]))
        aligned = written.value("Unsqueeze", node.inputs[low], tuple(range(missing)), type=type)
        written.put(node, node, *(aligned if i == low else v for i, v in enumerate(node.inputs)))


def _rotary_products(written: Written, node: Node) -> tuple[Node, ...]:
    """The two products of ``x * cos + Concat(-b, a) * sin``, if a node is their sum."""
    made = [written.producers.get(v) for v in node.inputs] if node.key == "Add" else []
    products = tuple(m for m in made if m is not None and m.key == "Mul")
    return products if len(products) == 2 and any(_is_turned(written, v) for m in products for v in m.inputs) else ()


def _is_turned(written: Written, value: str) -> bool:
    halves = written.producers.get(value)
    first = written.producers.get(halves.inputs[0]) if halves is not None and halves.key == "Concat" else None
    return first is not None and first.key == "Neg"


def _levels(graph: Graph, node: Node) -> tuple[float, float, float] | None:
    """Zero point, lowest and highest byte of a quantiser with one scale for all, if a level is infinite; else ``None``."""
    if node.key != "QuantizeLinear" or graph.type_of(node.inputs[0]).dtype is not DType.FLOAT:
        return None
    operands = [graph.constants.get(v) for v in node.inputs[1:]]
    if any(c is None or c.size != 1 for c in operands) or graph.type_of(node.outputs[0]).dtype not in (
        DType.INT8,
        DType.UINT8,
    ):
        return None
    scale, zero = (float(c.numpy().reshape(())) for c in (*operands, Constant.of(np.float32(0)))[:2] if c is not None)
    limits = np.iinfo(graph.type_of(node.outputs[0]).dtype.numpy)
    lowest, highest = float(limits.min), float(limits.max)
    with np.errstate(over="ignore"):
        levels = np.float32(scale) * np.array((lowest - zero, highest - zero), np.float32)
    return None if np.isfinite(levels).all() else (zero, lowest, highest)
