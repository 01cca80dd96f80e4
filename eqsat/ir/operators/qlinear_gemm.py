"""``eqsat::QLinearGemm(a, za, w, bias, scale, sy, zy)``: a biased product of 8-bit integers, requantised.

``a`` (..., K) has the zero point ``za``, ``w`` (K, N) has none; ``bias`` (N,) is int32 and of the same ``scale`` as the sums,
one number or one for each column (N,). The result has the scale ``sy`` and the zero point ``zy``. Libraries for accelerators
have such a kernel (cuBLASLt and CUTLASS with an epilogue); ONNX has none, ONNX Runtime one for matrices (QGemm).
"""

from collections.abc import Sequence
from typing import Any

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import check_vector, count
from eqsat.ir.traits import Product, Traits
from eqsat.ir.types import DType, TensorType, Type

QLINEAR_GEMM = "eqsat::QLinearGemm"


def _infer(app: Application) -> tuple[Type, ...]:
    a, w, bias, zero = app.tensor(0), app.tensor(2), app.tensor(3), app.tensor(6)
    if a.shape is None or w.shape is None or len(a.shape) < 2 or len(w.shape) != 2:
        raise ShapeError(f"QLinearGemm takes integers of rank 2 or more and a matrix, got {a} and {w}")
    check_vector(app, 3, w.shape[1], "the bias")
    if bias.dtype not in (DType.INT32, DType.UNDEFINED):
        raise ShapeError(f"QLinearGemm takes a bias of int32, got {bias}")
    return (TensorType(zero.dtype, (*a.shape[:-1], w.shape[1])),)


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    a, za, w, bias, scale, sy, zy = inputs
    sums = b.op("Add", b.op("MatMulInteger", a, w, za), bias)
    rank = len(b.type_of(sums).shape)
    along = {"axis": rank - 1} if b.type_of(scale).shape else {}
    return [b.op("QuantizeLinear", b.op("DequantizeLinear", sums, scale, **along), sy, zy)]


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    shape = app.shape(2)
    inner = shape[0] if shape and isinstance(shape[0], int) else 1
    return 2.0 * inner * count(outputs[0])


define_composite(
    QLINEAR_GEMM,
    _expand,
    Kind.ANCHOR,
    infer=_infer,
    flops=_flops,
    traits=Traits(product=Product(weights=2, bias=3), quantises=True),
)
