"""Quantisation that torch exports in no form, or in a wrong one, in ONNX: scales computed of the values, ranges narrower than a
type's, products of bytes."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportReturnType=false, reportCallIssue=false, reportArgumentType=false

from typing import Any

import numpy as np
import torch
from onnxscript import FLOAT, INT64, ir
from onnxscript import opset18 as op


def multiply_integers(a: Any, b: Any) -> Any:
    """The product of bytes in which torchao's dynamic quantisation ends (no form in torch 2.14)."""
    return op.MatMulInteger(a, b)


def quantised(x: Any, scale: Any, zero_point: Any, least: int, most: int, dtype: int) -> Any:
    """Torch exports no limits but those of the type, as in calibration for processors that have seven bits, or four (2.14), and
    no scale that is computed."""
    found = op.QuantizeLinear(x, op.CastLike(_number(scale), x), _zero_point(zero_point, dtype))
    limits = np.iinfo(ir.DataType(dtype).numpy())
    if least <= limits.min and most >= limits.max:
        return found
    return op.Clip(found, _zero_point(least, dtype), _zero_point(most, dtype))


def dequantised(
    x: Any, scale: Any, zero_point: Any, least: int, most: int, dtype: int, *, out_dtype: int | None = None
) -> Any:
    """Torch exports no scale that is computed (2.14)."""
    found = op.DequantizeLinear(x, op.Cast(_number(scale), to=FLOAT.dtype), _zero_point(zero_point, dtype))
    return found if out_dtype in (None, -1, FLOAT.dtype) else op.Cast(found, to=out_dtype)


def parameters(x: Any, least: int, most: int, epsilon: float, dtype: int) -> tuple[Any, Any]:
    """The scale and zero point by which all elements, and zero, are in the range (no form in torch 2.14)."""
    x = op.Cast(x, to=FLOAT.dtype)
    low, high = op.Min(op.ReduceMin(x, keepdims=False), 0.0), op.Max(op.ReduceMax(x, keepdims=False), 0.0)
    scale = op.Max(op.Div(op.Sub(high, low), float(most - least)), float(epsilon))
    zero_point = op.Clip(op.Sub(float(least), op.Round(op.Div(low, scale))), float(least), float(most))
    return op.Unsqueeze(scale, [0]), op.Unsqueeze(op.Cast(zero_point, to=INT64.dtype), [0])


def _number(value: Any) -> Any:
    """A number of Python's, or the only element of a tensor."""
    return op.Constant(value_float=value) if isinstance(value, int | float) else op.Squeeze(value)


def _zero_point(value: Any, dtype: int) -> Any:
    number = op.Constant(value_int=value) if isinstance(value, int) else op.Squeeze(value)
    return op.Cast(number, to=dtype)


def quantised_table() -> dict[Any, Any]:
    """Operator of torch -> its form. Those of quantised graphs are there once something has registered them."""
    found: dict[Any, Any] = {torch.ops.aten._int_mm.default: multiply_integers}
    library = torch.ops.quantized_decomposed
    if hasattr(library, "choose_qparams"):
        found |= {
            library.quantize_per_tensor.default: quantised,
            library.quantize_per_tensor.tensor: quantised,
            library.dequantize_per_tensor.default: dequantised,
            library.dequantize_per_tensor.tensor: dequantised,
            library.choose_qparams.tensor: parameters,
        }
    return found
