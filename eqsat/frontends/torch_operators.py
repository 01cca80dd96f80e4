"""Operators that torch exports in no form, or in a wrong one, in ONNX. Imported once something is exported: needs onnxscript."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportReturnType=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from onnxscript import BFLOAT16, DOUBLE, FLOAT, FLOAT16, INT32, INT64, script
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core, special

Floats = TypeVar("Floats", FLOAT, FLOAT16, BFLOAT16, DOUBLE)
Ends = TypeVar("Ends", INT32, INT64)


def multiply_integers(a: Any, b: Any) -> Any:
    """The product of bytes in which torchao's dynamic quantisation ends (no form in torch 2.14)."""
    return op.MatMulInteger(a, b)


@script(default_opset=op)
def multiply_groups(x: Floats, weights: Floats, ends: Ends) -> Floats:
    """Rows of ``x`` up to each of ``ends``, by the matrix of their own in ``weights``, as experts do that tokens are sorted by.
    Rows behind the last end are zero. Only matrices that have rows are read."""
    stops = op.Cast(ends, to=INT64.dtype)
    starts = op.Concat(op.Constant(value_ints=[0]), op.Slice(stops, [0], [-1]), axis=0)
    used = op.Reshape(op.NonZero(stops - starts), [-1])
    found = op.MatMul(op.Slice(x, [0], [0]), op.Gather(weights, 0))
    for i in range(op.Size(used)):
        group = op.Gather(used, op.Reshape(i, [1]))
        rows = op.Slice(x, op.Gather(starts, group), op.Gather(stops, group), [0])
        found = op.Concat(found, op.MatMul(rows, op.Squeeze(op.Gather(weights, group), [0])), axis=0)
    missing = op.Shape(x, start=0, end=1) - op.Shape(found, start=0, end=1)
    rest = op.Expand(op.CastLike(0.0, x), op.Concat(missing, op.Shape(found, start=1, end=2), axis=0))
    return op.Concat(found, rest, axis=0)


def atan2(y: Any, x: Any) -> Any:
    """The angle of a point. Zeros have signs, as in torch: its exporter has pi and -pi for each other at ``y = 0`` (2.14)."""
    zero, pi = op.CastLike(0.0, x), op.CastLike(math.pi, x)

    def below(value: Any) -> Any:
        return op.Or(op.Less(value, zero), op.Less(op.Reciprocal(value), zero))

    at_zero = op.And(op.Equal(x, zero), op.Equal(y, zero))
    angle = op.Where(at_zero, y, op.Atan(op.Div(y, x)))
    return op.Where(below(x), op.Add(angle, op.Where(below(y), op.Neg(pi), pi)), angle)


def log_sigmoid(x: Any) -> Any:
    """Torch exports the logarithm of what is zero far below zero (2.14)."""
    return op.Neg(op.Softplus(op.Neg(x)))


def converting_first(form: Any) -> Callable[..., Any]:
    """An operator that converts its input to a type before it computes. What torch exports converts the result, as of a softmax
    in half precision that was to be one in float32 (2.14)."""
    signature = inspect.signature(form.func)

    @functools.wraps(form.func)
    def converted(*given: Any, **named: Any) -> Any:
        x, *_ = bound = signature.bind(*given, **named).arguments
        others = {name: value for name, value in bound.items() if name not in (x, "dtype")}
        source = bound[x]
        if bound.get("dtype") not in (None, -1):
            source = op.Cast(source, to=bound["dtype"])
            source.shape = bound[x].shape  # which forms read
        return form(source, **others)

    return converted


def translation_table() -> dict[Any, Any]:
    """Operator of torch -> its form. Those of transformers are there once it has registered them."""
    aten = torch.ops.aten
    found: dict[Any, Any] = {
        aten._int_mm.default: multiply_integers,
        aten.atan2.default: atan2,
        aten.log_sigmoid.default: log_sigmoid,
        aten.softmax.int: converting_first(core.aten_softmax),
        aten.log_softmax.int: converting_first(special.aten_special_log_softmax),
        aten.sum.default: converting_first(core.aten_sum),
        aten.sum.dim_IntList: converting_first(core.aten_sum_dim_IntList),
        aten.mean.dim: converting_first(core.aten_mean_dim),
    }
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback.default] = multiply_groups
    return found
