"""Quantisation: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and requantisation of integer products.

The common cases, integers of 8 to 32 bits with one scale or one per slice of an axis, are computed here; blocked and
8-bit-float forms go to the ONNX reference evaluator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, define
from eqsat.ir.operators.elementwise import flops_per_element
from eqsat.ir.schema_operator import evaluate_by_reference
from eqsat.ir.types import DType, TensorType, Type

_INTEGERS = frozenset(map(np.dtype, (np.int8, np.uint8, np.int16, np.uint16, np.int32)))


def _infer_quantize(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    dtype = app.tensor(2).dtype if app.has(2) else DType(app.attr("output_dtype", 0) or DType.UINT8)
    return (TensorType(dtype, x.shape),)


def _infer_dequantize(app: Application) -> tuple[Type, ...]:
    x, scale = app.tensor(0), app.tensor(1)
    return (TensorType(DType(app.attr("output_dtype", 0) or scale.dtype), x.shape),)


def _along_axis(v: np.ndarray, attributes: Attributes, rank: int) -> np.ndarray:
    """A scale or zero point of one element, or one for each slice of the axis, shaped to broadcast."""
    if v.size == 1 and v.ndim <= 1:
        return v.reshape(())
    axis: Any = attributes.get("axis", 1)
    shape = [1] * rank
    shape[axis] = -1
    return v.reshape(shape)


def _is_plain(attributes: Attributes, scale: np.ndarray, integer: np.dtype[Any]) -> bool:
    return (
        integer in _INTEGERS
        and not attributes.get("block_size", 0)
        and scale.ndim <= 1
        and scale.dtype == np.float32
        and not attributes.get("output_dtype", 0)
    )


def _quantize(attributes: Attributes, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """``saturate(round_half_even(x / scale) + zero_point)``"""
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 and inputs[2] is not None else None
    integer = np.dtype(np.uint8) if zero is None else zero.dtype
    plain = _is_plain(attributes, scale, integer) and not attributes.get("precision", 0)
    if not plain or x.dtype != np.float32:
        return evaluate_by_reference("QuantizeLinear", attributes, inputs)
    rank = x.ndim
    steps = np.rint(x / _along_axis(scale, attributes, rank))
    return (_saturate(steps, 0 if zero is None else _along_axis(zero, attributes, rank), integer),)


def _saturate(steps: np.ndarray, zero: Any, integer: np.dtype[Any]) -> np.ndarray:
    bounds = np.iinfo(integer)
    shifted = np.asarray(steps, np.float64) + np.asarray(zero, np.float64)
    return np.clip(shifted, bounds.min, bounds.max).astype(integer)


def _dequantize(attributes: Attributes, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """``(x - zero_point) * scale``"""
    x, scale = inputs[0], inputs[1]
    if not _is_plain(attributes, scale, x.dtype):
        return evaluate_by_reference("DequantizeLinear", attributes, inputs)
    # ONNX Runtime subtracts in int32 and multiplies in float32: one rounding of the product (two beyond 24 bits).
    steps = x.astype(np.int32)
    if len(inputs) > 2 and inputs[2] is not None:
        steps = steps - _along_axis(inputs[2].astype(np.int32), attributes, x.ndim)
    return (np.asarray(steps.astype(np.float32) * _along_axis(scale, attributes, x.ndim)),)


def requantize(total: np.ndarray, a_scale: Any, b_scale: Any, y_scale: Any, y_zero: np.ndarray) -> np.ndarray:
    """``saturate(round_half_even(total * (a_scale*b_scale/y_scale)) + y_zero)``, the multiplier rounded to float32."""
    factor = np.asarray(a_scale, np.float32) * np.asarray(b_scale, np.float32) / np.asarray(y_scale, np.float32)
    return _saturate(np.rint(total.astype(np.float32) * factor), y_zero, y_zero.dtype)


def _infer_dynamic(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    return (TensorType(DType.UINT8, x.shape), TensorType(DType.FLOAT, ()), TensorType(DType.UINT8, ()))


def _dynamic(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """uint8 with scale ``(max(x, 0) - min(x, 0)) / 255`` and the zero point that makes 0 exact."""
    x = inputs[0]
    high = np.maximum(np.float32(0), x.max(initial=0))
    low = np.minimum(np.float32(0), x.min(initial=0))
    scale = np.float32((high - low) / np.float32(255))
    if scale == 0:
        return np.zeros(x.shape, np.uint8), np.asarray(np.float32(1)), np.asarray(np.uint8(0))
    zero = np.clip(np.rint((0 - low) / scale), 0, 255).astype(np.uint8)
    return _saturate(np.rint(x / scale), zero, np.dtype(np.uint8)), np.asarray(scale), np.asarray(zero)


define(
    "QuantizeLinear",
    infer=_infer_quantize,
    evaluate=_quantize,
    kind=Kind.ELEMENTWISE,
    flops=flops_per_element(3),
    bit_exact=True,
)
define(
    "DequantizeLinear",
    infer=_infer_dequantize,
    evaluate=_dequantize,
    kind=Kind.ELEMENTWISE,
    flops=flops_per_element(2),
    bit_exact=True,
)
define(
    "DynamicQuantizeLinear",
    infer=_infer_dynamic,
    evaluate=_dynamic,
    kind=Kind.REDUCTION,
    flops=flops_per_element(4),
)
