"""Operators that torch's exporter has no form for, in ONNX. Imported once something is exported: needs onnxscript."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportReturnType=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false

from typing import Any, TypeVar

import torch
from onnxscript import BFLOAT16, DOUBLE, FLOAT, FLOAT16, INT32, INT64, script
from onnxscript import opset18 as op

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


def translation_table() -> dict[Any, Any]:
    """Operator of torch -> its form. Those of transformers are there once it has registered them."""
    found: dict[Any, Any] = {torch.ops.aten._int_mm.default: multiply_integers}
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        found[torch.ops.transformers.grouped_mm_fallback.default] = multiply_groups
    return found
