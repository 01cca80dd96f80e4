"""Operators of ONNX Runtime on 8-bit integers: QLinearAdd and its relatives.

Each means: dequantise the inputs, apply the operator in float32, quantise the result. The kernels compute with the quotient
of the scales, or by a table of 256 entries, so that at rounding ties they may differ by one quantum. QLinearConv is that of
ONNX, on images with the channels last if it says so.
"""

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Expand, Kind
from eqsat.ir.traits import Traits

POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
OPERANDS = {
    **dict.fromkeys(("Add", "Mul"), 2),
    **dict.fromkeys(("Sigmoid", "LeakyRelu", "AveragePool", "GlobalAveragePool", "Softmax"), 1),
}
"""Float operators ``f`` with a kernel ``QLinear<f>`` on bytes, and how many operands that dequantises."""


def _number(b: GraphBuilder, value: str | None, axes: int) -> None:
    """Raises `ShapeError` unless a scale or zero point is one number in a tensor of at most so many ``axes``."""
    found = b.type_of(value) if value else None
    if found is None:
        return
    if not (found.shape is not None and found.size == 1 and len(found.shape) <= axes):
        form = "scalars" if axes == 0 else "scalars or vectors of one element"
        raise ShapeError(f"scales and zero points of the quantised operator are {form}, got {found}")


def _dequantized(b: GraphBuilder, inputs: Sequence[str | None], at: int, axes: int) -> str:
    """The value that the integers, scale and zero point from input ``at`` on stand for."""
    scale, zero = inputs[at + 1], inputs[at + 2] if at + 2 < len(inputs) else None
    _number(b, scale, axes)
    _number(b, zero, axes)
    return b.op("DequantizeLinear", inputs[at], scale, zero)


def _quantized(b: GraphBuilder, value: str, inputs: Sequence[str | None], at: int, like: str | None, axes: int) -> str:
    """``value`` by the scale and zero point from input ``at`` on, of the integer type of ``like``."""
    scale, zero = inputs[at], inputs[at + 1] if at + 1 < len(inputs) else None
    _number(b, scale, axes)
    _number(b, zero, axes)
    return b.op("QuantizeLinear", value, scale, zero or b.constant(0, b.type_of(like or "").dtype))


def _on_bytes(op: str, *names: str, axes: int) -> Expand:
    """``op`` with those of the attributes that it knows, too. ``axes``: of scales and zero points, at most."""

    def expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
        only_attributes(f"QLinear{op}", attributes, *names, channels_last=0)
        number, kept = OPERANDS[op], {k: v for k, v in attributes.items() if k != "channels_last"}
        value = b.op(op, *(_dequantized(b, inputs, 3 * i, axes) for i in range(number)), **kept)
        return [_quantized(b, value, inputs, 3 * number, inputs[0], axes)]

    return expand


def _concat(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("QLinearConcat", attributes, "axis")
    parts = [_dequantized(b, inputs, at, 1) for at in range(2, len(inputs), 3)]
    return [_quantized(b, b.op("Concat", *parts, axis=attributes["axis"]), inputs, 0, inputs[2], 1)]


def _convolution(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """QLinearConv, with ``channels_last`` on images (N, H, W, C); the weights (M, C / group, kH, kW) are the same."""
    kept = {k: v for k, v in attributes.items() if k != "channels_last"}
    if not attributes.get("channels_last", 0):
        return [b.op("QLinearConv", *inputs, **kept)]
    image = b.type_of(inputs[0])
    if image.shape is None:
        raise ShapeError(f"QLinearConv with the channels last takes an image of known rank, got {image}")
    rank = len(image.shape)
    first = b.op("Transpose", inputs[0], perm=(0, rank - 1, *range(1, rank - 1)))
    result = b.op("QLinearConv", first, *inputs[1:], **kept)
    return [b.op("Transpose", result, perm=(0, *range(2, rank), 1))]


def _softmax(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("QLinearSoftmax", attributes, "axis", "opset")
    if attributes.get("opset", 0) < 13:
        raise ShapeError("QLinearSoftmax: attribute 'opset' below 13 is not covered by the definition")
    value = b.op("Softmax", _dequantized(b, inputs, 0, 0), axis=attributes.get("axis", -1))
    return [_quantized(b, value, inputs, 3, inputs[0], 0)]


for _name, _expand, _kind in (
    ("QLinearAdd", _on_bytes("Add", axes=0), Kind.ELEMENTWISE),
    ("QLinearMul", _on_bytes("Mul", axes=0), Kind.ELEMENTWISE),
    ("QLinearSigmoid", _on_bytes("Sigmoid", axes=1), Kind.ELEMENTWISE),
    ("QLinearLeakyRelu", _on_bytes("LeakyRelu", "alpha", axes=1), Kind.ELEMENTWISE),
    ("QLinearAveragePool", _on_bytes("AveragePool", *POOL, axes=0), Kind.REDUCTION),
    ("QLinearGlobalAveragePool", _on_bytes("GlobalAveragePool", axes=1), Kind.REDUCTION),
    ("QLinearConcat", _concat, Kind.INJECTIVE),
    ("QLinearSoftmax", _softmax, Kind.REDUCTION),
    ("QLinearConv", _convolution, Kind.ANCHOR),
):
    _facts: Any = {"QLinearSoftmax": {"structure": "softmax"}, "QLinearConv": {"differences": ((0, 2), (3, 5))}}
    _traits = Traits(quantises=True, **_facts.get(_name, {}))
    define_composite(f"com.microsoft::{_name}", _expand, _kind, traits=_traits)
