"""Attributes (and legal ranges) that a version added to an operator without changing nodes that do not use them."""

from typing import Any

import numpy as np

from eqsat.frontends.onnx.versions.steps import (
    Change,
    Values,
    add_step,
    first_output_only,
    set_attributes,
    set_inputs,
    unchanged,
    unless,
)
from eqsat.ir.graph import Node
from eqsat.ir.types import HALVES, DType, is_sequence

ONES = object()
"""Stands for a list of ones of any length."""

ADDED_ATTRIBUTES: dict[str, dict[int, dict[str, Any]]] = {
    "ArgMax": {12: {"select_last_index": 0}},
    "ArgMin": {12: {"select_last_index": 0}},
    "Attention": {25: {"left_window_size": -1, "right_window_size": -1}},
    "AveragePool": {10: {"ceil_mode": 0}, 19: {"dilations": ONES}},
    "Cast": {19: {"saturate": 1}, 24: {"round_mode": "up"}},
    "CastLike": {19: {"saturate": 1}, 24: {"round_mode": "up"}},
    "DepthToSpace": {11: {"mode": "DCR"}},
    "DequantizeLinear": {21: {"block_size": 0}, 23: {"output_dtype": 0}},
    "GRU": {14: {"layout": 0}},
    "GatherND": {12: {"batch_dims": 0}},
    "GroupNormalization": {21: {"stash_type": 1}},
    "LSTM": {14: {"layout": 0}},
    "LpPool": {18: {"ceil_mode": 0, "dilations": ONES}},
    "MaxPool": {8: {"storage_order": 0}, 10: {"ceil_mode": 0, "dilations": ONES}},
    "QuantizeLinear": {19: {"saturate": 1}, 21: {"block_size": 0, "output_dtype": 0}},
    "RNN": {14: {"layout": 0}},
    "Range": {27: {"stash_type": 1}},
    "Reshape": {14: {"allowzero": 0}},
    "Resize": {18: {"antialias": 0, "axes": None, "keep_aspect_ratio_policy": "stretch"}},
    "ScatterElements": {16: {"reduction": "none"}},
    "ScatterND": {16: {"reduction": "none"}},
    "Shape": {15: {"start": 0, "end": None}},
    "SpaceToDepth": {28: {"mode": "DCR"}},
    "TopK": {11: {"largest": 1, "sorted": 1}},
}
"""Operator -> version -> attribute -> its neutral value (``None``: only absence is neutral)."""

_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"
_WITH_AXIS = ["ArgMax", "ArgMin", "Concat", "Flatten", "Gather", "Split", "Softmax", "LogSoftmax", "Hardmax"]
_WITH_AXES = [*(f"Reduce{r}" for r in _REDUCTIONS.split()), "Squeeze", "Unsqueeze"]


def without_neutral(**defaults: Any) -> Change:
    """The node without these attributes, unless one of them has another value than given."""

    def down(node: Node, values: Values) -> Node | None:
        if not any(a in node.attributes for a in defaults):
            return node
        for name, default in defaults.items():
            value = node.attributes.get(name)
            if value is None or (default is ONES and is_sequence(value) and all(v == 1 for v in value)):
                continue
            if value != default:
                return None
        return set_attributes(node, **dict.fromkeys(defaults))

    return down


def _from_front(attribute: str) -> Change:
    """Axes that count from the end count from the front instead: of the result, if the operator adds them."""

    def down(node: Node, values: Values) -> Node | None:
        given = node.attributes.get(attribute, ())
        axes: list[int] = list(given) if is_sequence(given) else [given]
        if all(a >= 0 for a in axes):
            return node
        rank = values.type_of(node.inputs[0]).rank
        if rank is None:
            return None
        rank += len(axes) if node.op == "Unsqueeze" else 0
        counted = tuple(a + rank if a < 0 else a for a in axes)
        return set_attributes(node, **{attribute: counted if is_sequence(given) else counted[0]})

    return down


def _indices_from_front(node: Node, values: Values) -> Node | None:
    indices = values.constant(node.inputs[1])
    return None if indices is not None and indices.size and indices.min() < 0 else node


def _without_lengths(node: Node, values: Values) -> Node | None:
    """Before version 24 attention does not know how long each sequence is."""
    return None if any(node.inputs[6:]) else set_inputs(node, node.inputs[:6])


def _quantisation_axis(node: Node, values: Values) -> Node | None:
    """Before version 13 scale and zero point are scalars, and there is no axis."""
    if values.type_of(node.inputs[1]).rank != 0:
        return None if "axis" in node.attributes else node
    return set_attributes(node, axis=None)


def _divided_in_single(node: Node, values: Values) -> Node:
    """Below opset 23 ONNX Runtime divides halves in single precision; from then on nodes have to ask for that."""
    if values.type_of(node.inputs[1]).dtype not in HALVES:
        return node
    return set_attributes(node, precision=int(DType.FLOAT))


def _divided_as_before(node: Node, values: Values) -> Node | None:
    scale = values.type_of(node.inputs[1]).dtype
    precision = node.attributes.get("precision", 0) or int(scale)
    if precision != int(DType.FLOAT if scale in HALVES else scale) and not _divides_exactly(
        values.constant(node.inputs[1])
    ):
        return None
    return set_attributes(node, precision=None)


def _divides_exactly(scale: np.ndarray | None) -> bool:
    """Whether quotients of halves by a scale are as many digits long as they are."""
    return scale is not None and bool(np.all(np.frexp(scale.astype(np.float64))[0] == 0.5))


def _stated_zero(node: Node, values: Values) -> Node:
    """Below opset 21 ONNX Runtime takes signed bytes for unsigned ones unless a zero point says what they are: see
    `eqsat.backends.onnxruntime_form`."""
    integers, scale = map(values.type_of, node.inputs[:2])
    if any(node.inputs[2:]) or integers.dtype is not DType.INT8 or scale.shape not in ((), (1,)):
        return node
    zero = values.add_constant(np.zeros((1,) * len(scale.shape), np.int8), f"{node.inputs[1]}_zero")
    return set_inputs(node, [*node.inputs[:2], zero])


def _of_integers(node: Node, values: Values) -> Node | None:
    """Before version 28 only integers have a remainder with the sign of the divisor."""
    return node if node.attributes.get("fmod") or values.type_of(node.inputs[0]).dtype.is_integer else None


def _same_shapes(node: Node, values: Values) -> Node | None:
    """Before version 8 the variadic operators do not broadcast."""
    shapes = {values.type_of(v).shape for v in node.inputs}
    return node if len(shapes) == 1 and None not in shapes else None


for _op, _versions in ADDED_ATTRIBUTES.items():
    for _version, _defaults in _versions.items():
        add_step(_op, _version, unchanged, without_neutral(**_defaults), additive=True)
for _ops, _attribute in ((_WITH_AXIS, "axis"), (_WITH_AXES, "axes")):
    for _op in _ops:
        add_step(_op, 11, unchanged, _from_front(_attribute), additive=True)
for _op in ("Gather", "ScatterElements"):
    add_step(_op, 11, unchanged, _indices_from_front, additive=True)
add_step("QuantizeLinear", 23, _divided_in_single, _divided_as_before)
for _op in ("QuantizeLinear", "DequantizeLinear"):
    add_step(_op, 13, unchanged, _quantisation_axis, additive=True)
for _op in ("Max", "Mean", "Min", "Sum"):
    add_step(_op, 8, unchanged, _same_shapes, additive=True)
for _op in ("ScatterElements", "ScatterND"):
    add_step(_op, 18, unchanged, unless("reduction", "max", "min"), additive=True)
add_step("Mod", 28, unchanged, _of_integers, additive=True)
add_step("DequantizeLinear", 21, unchanged, _stated_zero, additive=True)
add_step("MaxPool", 8, unchanged, first_output_only, additive=True)
add_step("Gemm", 11, unchanged, lambda node, values: node if any(node.inputs[2:3]) else None, additive=True)
add_step("Attention", 24, unchanged, _without_lengths, additive=True)
add_step("Pad", 19, unchanged, unless("mode", "wrap"), additive=True)
