"""Conversions: Cast, CastLike; QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, and requantisation of integer products.

Integers of 2 to 32 bits with one scale, one per slice of an axis or one per block are computed here; floats of 8 and 4 bits
go to the ONNX reference evaluator.
"""

from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import axis_of, common_dtype, format_shape, same_dim
from eqsat.ir.operators.elementwise import defines, function
from eqsat.ir.schema_operator import evaluate_by_reference
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

_BOUNDS = {
    d.numpy: ((-(2 ** (d.bits - 1)), 2 ** (d.bits - 1) - 1) if d.is_signed else (0, 2**d.bits - 1))
    for d in DType
    if d.is_integer and d.bits <= 32
}
"""Ends of the range of each integer type that quantisation knows. Numpy's ``iinfo`` lacks those below 8 bits."""

_ELSEWHERE = {"com.microsoft": 21}
"""Tools of ONNX Runtime write integers of 4 and 16 bits so in files of older opsets."""


def _check_granularity(app: Application) -> None:
    """Raises `ShapeError` unless there is one scale, or one for each slice of the axis, and as many zero points."""
    x, scale = app.shape(0), app.shape(1)
    if x is None or scale is None or app.attr("block_size", 0):
        return
    if len(scale) > 1:
        raise app.fail(f"scale {format_shape(scale)} must be a scalar or a vector")
    number = scale[0] if scale else 1
    if number != 1:
        extent = x[axis_of(app, app.attr("axis", 1), len(x))]
        if same_dim(number, extent) is None:
            raise app.fail(f"{number} scales for an axis of extent {extent}")
    zero = app.shape(2) if app.has(2) else None
    if zero is None or zero == scale:
        return
    if len(zero) > 1 or same_dim(zero[0] if zero else 1, number) is None:
        raise app.fail(f"scale {format_shape(scale)} and zero point {format_shape(zero)} differ")


def _infer_quantize(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    _check_granularity(app)
    dtype = app.tensor(2).dtype if app.has(2) else DType(app.attr("output_dtype", 0) or DType.UINT8)
    return (TensorType(dtype, x.shape),)


def _infer_dequantize(app: Application) -> tuple[Type, ...]:
    x, scale = app.tensor(0), app.tensor(1)
    _check_granularity(app)
    common_dtype(app, 0, optional=2)
    return (TensorType(DType(app.attr("output_dtype", 0) or scale.dtype), x.shape),)


def spread(v: np.ndarray, attributes: Attributes, shape: tuple[int, ...]) -> np.ndarray:
    """A scale or zero point (of the tensor, of each slice or of each block along the axis) shaped to broadcast."""
    axis: int = attributes.get("axis", 1)
    block: int = attributes.get("block_size", 0)
    if block:
        return np.repeat(v, block, axis)[(slice(None),) * (axis % len(shape)) + (slice(shape[axis]),)]
    if v.size == 1 and v.ndim <= 1:
        return v.reshape(())
    extents = [1] * len(shape)
    extents[axis] = -1
    return v.reshape(extents)


def _target(attributes: Attributes, zero: np.ndarray | None) -> np.dtype[Any]:
    return zero.dtype if zero is not None else DType(attributes.get("output_dtype", 0) or DType.UINT8).numpy


@defines(
    "QuantizeLinear",
    infer=_infer_quantize,
    kind=Kind.ELEMENTWISE,
    flops=3,
    bit_exact=True,
    traits=function(vectors=(1, 2), rising=True, quantises=True),
    also_in=_ELSEWHERE,
)
def _quantize(attributes: Attributes, x: Any, scale: Any, zero: Any = None) -> Any:
    """``saturate(round_half_even(x / scale) + zero_point)``, the quotient in the precision of the scale."""
    integer = _target(attributes, zero)
    if integer not in _BOUNDS:
        return evaluate_by_reference("QuantizeLinear", attributes, (x, scale, zero))
    steps = in_steps(attributes, x, scale)
    point = 0 if zero is None else spread(zero, attributes, x.shape)
    return _saturate(np.rint(steps, out=steps), point, integer)


def in_steps(attributes: Attributes, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """``x / scale``, which QuantizeLinear rounds. Where it is NaN, ONNX does not say which integer that makes."""
    precision = DType(attributes.get("precision", 0) or DType.of(scale.dtype)).numpy
    return np.asarray(x.astype(precision, copy=False) / spread(scale, attributes, x.shape).astype(precision))


def _saturate(steps: np.ndarray, zero: Any, integer: np.dtype[Any]) -> np.ndarray:
    low, high = _BOUNDS[integer]
    # Up to 16 bits float32 is as good: where it rounds a sum, that is far beyond the bounds.
    small = steps.dtype == np.float32 and high < 1 << 16
    precision = np.float32 if small else np.float64
    shifted = np.asarray(np.asarray(steps, precision) + np.asarray(zero, precision))
    return np.clip(shifted, low, high, out=shifted).astype(np.int32 if small else np.int64).astype(integer)


@defines(
    "DequantizeLinear",
    infer=_infer_dequantize,
    kind=Kind.ELEMENTWISE,
    flops=2,
    bit_exact=True,
    traits=function(vectors=(1, 2), widens=True),
    also_in=_ELSEWHERE,
)
def _dequantize(attributes: Attributes, x: Any, scale: Any, zero: Any = None) -> Any:
    """``(x - zero_point) * scale``"""
    if x.dtype not in _BOUNDS:
        return evaluate_by_reference("DequantizeLinear", attributes, (x, scale, zero))
    # ONNX Runtime subtracts in int32 and multiplies in float32: one rounding of the product (two beyond 24 bits).
    steps = x.astype(np.int32)
    if zero is not None:
        steps = steps - spread(zero.astype(np.int32), attributes, x.shape)
    product = steps.astype(np.float32) * spread(scale, attributes, x.shape).astype(np.float32)
    return np.asarray(product).astype(DType(attributes.get("output_dtype", 0) or DType.of(scale.dtype)).numpy)


def requantize(total: np.ndarray, a_scale: Any, b_scale: Any, y_scale: Any, y_zero: np.ndarray) -> np.ndarray:
    """``saturate(round_half_even(total * (a_scale*b_scale/y_scale)) + y_zero)``, the multiplier rounded to float32."""
    factor = np.asarray(a_scale, np.float32) * np.asarray(b_scale, np.float32) / np.asarray(y_scale, np.float32)
    return _saturate(np.rint(total.astype(np.float32) * factor), y_zero, y_zero.dtype)


def _infer_dynamic(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    return (TensorType(DType.UINT8, x.shape), TensorType(DType.FLOAT, ()), TensorType(DType.UINT8, ()))


@defines("DynamicQuantizeLinear", infer=_infer_dynamic, kind=Kind.REDUCTION, flops=4, traits=Traits(quantises=True))
def _dynamic(attributes: Attributes, x: Any) -> Any:
    """uint8 with scale ``(max(x, 0) - min(x, 0)) / 255`` and the zero point that makes 0 exact."""
    high = np.maximum(np.float32(0), x.max(initial=0))
    low = np.minimum(np.float32(0), x.min(initial=0))
    scale = np.float32((high - low) / np.float32(255))
    if scale == 0:
        return np.zeros(x.shape, np.uint8), np.asarray(np.float32(1)), np.asarray(np.uint8(0))
    zero = np.clip(np.rint((0 - low) / scale), 0, 255).astype(np.uint8)
    return _saturate(np.rint(x / scale), zero, np.dtype(np.uint8)), np.asarray(scale), np.asarray(zero)


# --- conversions -----------------------------------------------------------------------------------------------------


PLAIN = frozenset(
    d
    for d in DType
    if d.name.startswith(("INT", "UINT", "FLOAT", "DOUBLE", "BFLOAT", "BOOL", "COMPLEX")) and d.bits >= 8
) - {d for d in DType if d.name.startswith("FLOAT8")}
"""Element types between which numpy converts as ONNX does; the narrower ones saturate and need more care."""


def cast(x: np.ndarray, to: DType, attributes: Attributes) -> np.ndarray:
    """``x`` converted to ``to``: rounding to nearest even into floats, toward zero into integers."""
    if DType.of(x.dtype) in PLAIN and to in PLAIN:
        if to is DType.BOOL:
            return np.not_equal(x, np.zeros((), x.dtype))
        return x.astype(to.numpy)
    return evaluate_by_reference("Cast", attributes.updated(to=int(to)), [x])[0]


def _infer_cast(app: Application) -> tuple[Type, ...]:
    return (TensorType(DType(app.attr("to")), app.tensor(0).shape),)


@defines("Cast", infer=_infer_cast, kind=Kind.ELEMENTWISE, bit_exact=True, traits=function(converts=True, widens=True))
def _cast(attributes: Attributes, x: Any) -> Any:
    return cast(x, DType(attributes["to"]), attributes)


def _infer_cast_like(app: Application) -> tuple[Type, ...]:
    return (TensorType(app.tensor(1).dtype, app.tensor(0).shape),)


@defines("CastLike", infer=_infer_cast_like, kind=Kind.ELEMENTWISE, bit_exact=True, traits=Traits(converts=True))
def _cast_like(attributes: Attributes, x: Any, like: Any) -> Any:
    return cast(x, DType.of(like.dtype), attributes)
