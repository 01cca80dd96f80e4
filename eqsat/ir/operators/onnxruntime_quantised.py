"""Operators of ONNX Runtime on 8-bit integers: QLinearAdd and its relatives.

Each means: dequantise the inputs, apply the operator in float32, quantise the result. The kernels compute with the quotient
of the scales, or by a table of 256 entries, so that at rounding ties they may differ by one quantum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Expand, Kind
from eqsat.ir.types import TensorType

POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _scalar(b: GraphBuilder, value: str | None) -> None:
    found = b.type_of(value) if value else None
    if found is not None and not (isinstance(found, TensorType) and found.size == 1):
        raise ShapeError(f"scales and zero points of quantised operators are single numbers, got {found}")


def _dequantized(b: GraphBuilder, inputs: Sequence[str | None], at: int) -> str:
    """The value that the integers, scale and zero point from input ``at`` on stand for."""
    scale, zero = inputs[at + 1], inputs[at + 2] if at + 2 < len(inputs) else None
    _scalar(b, scale)
    _scalar(b, zero)
    return b.op("DequantizeLinear", inputs[at], scale, zero)


def _quantized(b: GraphBuilder, value: str, inputs: Sequence[str | None], at: int, like: str | None) -> str:
    """``value`` by the scale and zero point from input ``at`` on, of the integer type of ``like``."""
    scale, zero = inputs[at], inputs[at + 1] if at + 1 < len(inputs) else None
    _scalar(b, scale)
    _scalar(b, zero)
    dtype = b.type_of(like or "")
    assert isinstance(dtype, TensorType)
    if zero:
        return b.op("QuantizeLinear", value, scale, zero)
    return b.op("QuantizeLinear", value, scale, b.constant(0, dtype.dtype))


def _binary(op: str) -> Expand:
    def expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
        only_attributes(f"QLinear{op}", attributes)
        value = b.op(op, _dequantized(b, inputs, 0), _dequantized(b, inputs, 3))
        return [_quantized(b, value, inputs, 6, inputs[0])]

    return expand


def _unary(op: str, *names: str) -> Expand:
    """``op`` with those of the attributes that it knows, too."""

    def expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
        kept = {k: v for k, v in attributes.items() if k != "channels_last"}
        only_attributes(f"QLinear{op}", Attributes(kept), *names)
        if attributes.get("channels_last", 0):
            raise ShapeError(f"QLinear{op}: attribute 'channels_last' is not covered by the definition")
        value = b.op(op, _dequantized(b, inputs, 0), **kept)
        return [_quantized(b, value, inputs, 3, inputs[0])]

    return expand


def _concat(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    only_attributes("QLinearConcat", attributes, "axis")
    parts = [_dequantized(b, inputs, at) for at in range(2, len(inputs), 3)]
    return [_quantized(b, b.op("Concat", *parts, axis=attributes["axis"]), inputs, 0, inputs[2])]


define_composite("com.microsoft::QLinearAdd", _binary("Add"), Kind.ELEMENTWISE)
define_composite("com.microsoft::QLinearMul", _binary("Mul"), Kind.ELEMENTWISE)
define_composite("com.microsoft::QLinearSigmoid", _unary("Sigmoid"), Kind.ELEMENTWISE)
define_composite("com.microsoft::QLinearLeakyRelu", _unary("LeakyRelu", "alpha"), Kind.ELEMENTWISE)
define_composite("com.microsoft::QLinearAveragePool", _unary("AveragePool", *POOL), Kind.REDUCTION)
define_composite("com.microsoft::QLinearGlobalAveragePool", _unary("GlobalAveragePool"), Kind.REDUCTION)
define_composite("com.microsoft::QLinearConcat", _concat, Kind.INJECTIVE)
