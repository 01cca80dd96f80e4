"""Matrix products: MatMul, Gemm and the integer forms."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import (
    broadcast,
    check_broadcasts_to,
    common_dtype,
    count,
    format_shape,
    same_dim,
    unknown_dims,
)
from eqsat.ir.operators.elementwise import defines, double, narrow, wide
from eqsat.ir.traits import Product, ProductAxes, Traits
from eqsat.ir.types import Dim, DType, Shape, TensorType, Type


def _gemm_axes(attributes: Attributes) -> ProductAxes:
    columns = 0 if attributes.get("transB", 0) else 1
    return ProductAxes(data=0 if attributes.get("transA", 0) else 1, inner=1 - columns, outer=columns, result=1)


_COLUMNS = Product(axes=lambda attributes: ProductAxes(data=-1, inner=-2, outer=-1, result=-1))


def product_shape(app: Application, a: Shape | None, b: Shape | None) -> Shape | None:
    """Shape of ``A @ B``: batch axes broadcast, a vector operand gains an axis that is dropped from the result."""
    if a is None or b is None:
        return None
    if not a or not b:
        raise app.fail(f"operands must have rank 1 or more: {format_shape(a)} @ {format_shape(b)}")
    inner = b[0] if len(b) == 1 else b[-2]
    if a[-1] != inner and same_dim(a[-1], inner) is None:
        raise app.fail(f"inner extents differ: {format_shape(a)} @ {format_shape(b)} ({a[-1]} != {inner})")
    batch = broadcast(app, a[:-2], b[:-2]) if len(a) > 2 or len(b) > 2 else ()
    assert batch is not None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``A @ B``; floats added up in float64 and rounded to float32, half precision once more, or as `as_kernels_do` says."""
    left, right = wide(a), wide(b)
    if left.dtype != np.float32 or adds_as_kernels_do():
        return narrow(np.matmul(left, right), a)
    found = np.asarray(np.matmul(double(left), double(right)))
    fix_order(np.atleast_2d(left), right if right.ndim > 1 else right[:, np.newaxis], found)
    return narrow(found.astype(np.float32), a)


_as_kernels_do = ContextVar("as_kernels_do", default=False)


def adds_as_kernels_do() -> bool:
    return _as_kernels_do.get()


@contextmanager
def as_kernels_do() -> Generator[None]:
    """Meanwhile products of floats are added up in float32, in some order: what differs more than kernels do is to be seen."""
    before = _as_kernels_do.set(True)
    try:
        yield
    finally:
        _as_kernels_do.reset(before)


_AT_ONCE = 1 << 22
"""Products that are added up at a time."""


def fix_order(a: np.ndarray, b: np.ndarray, found: np.ndarray) -> None:
    """Adds up once more, in an order of its own, those sums of ``found = A @ B`` that another order may round to another float32.
    In which order a library for products adds up depends on the processor.

    Sums of ``n`` terms in any order are within ``n u (|A| @ |B|)`` of the exact one, where ``u`` is half an epsilon. Twice that
    bound leaves room for both, and for its being computed in float32. Where it is infinite some order overflows on the way: NaN.
    """
    inner = a.shape[-1]
    error = np.matmul(np.abs(a), np.abs(b)) * np.float32((inner + 1) * np.finfo(np.float64).eps)
    sums = found.reshape(error.shape)
    sums[np.isfinite(sums) & np.isinf(error)] = np.nan
    places = np.nonzero(np.isfinite(sums) & ((sums - error).astype(np.float32) != (sums + error).astype(np.float32)))
    rows = np.broadcast_to(a, (*error.shape[:-2], *a.shape[-2:]))
    columns = np.broadcast_to(b, (*error.shape[:-2], *b.shape[-2:])).swapaxes(-1, -2)
    step = max(_AT_ONCE // max(inner, 1), 1)
    for first in range(0, len(places[0]), step):
        *batch, row, column = (axis[first : first + step] for axis in places)
        sums[(*batch, row, column)] = (double(rows[(*batch, row)]) * columns[(*batch, column)]).sum(axis=-1)


def integer_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``A @ B`` of integers of 9 bits as int32 that wraps: float64 holds every partial sum exactly, and has a fast product."""
    return np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64).astype(np.int32)


def matmul_flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiplication and an addition for each output element and inner index."""
    inner = (app.shape(0) or (1,))[-1]
    return 2.0 * count(outputs[0]) * (inner if isinstance(inner, int) else 1)


def _infer_matmul(app: Application) -> tuple[Type, ...]:
    a, b = app.tensor(0), app.tensor(1)
    dtype = a.dtype if a.dtype is b.dtype else common_dtype(app, 0, 1)
    return (TensorType(dtype, product_shape(app, a.shape, b.shape)),)


@defines(
    "MatMul",
    infer=_infer_matmul,
    kind=Kind.ANCHOR,
    flops=matmul_flops,
    traits=Traits(product=_COLUMNS, affine=(0, 1), homogeneous=True, keeps_whole=True),
)
def _matmul(attributes: Attributes, a: Any, b: Any) -> Any:
    """``Y = A @ B``"""
    return matmul(a, b)


def _infer_gemm(app: Application) -> tuple[Type, ...]:
    a, b = app.shape(0), app.shape(1)
    dtype = common_dtype(app, 0, 1, optional=2)
    for found in (a, b):
        if found is not None and len(found) != 2:
            raise app.fail(f"operands must be matrices, got {format_shape(found)}")
    rows = _extents(a, bool(app.attr("transA", 0)))
    columns = _extents(b, bool(app.attr("transB", 0)))
    if same_dim(rows[1], columns[0]) is None:
        raise app.fail(
            f"inner extents differ: {format_shape(rows)} @ {format_shape(columns)} ({rows[1]} != {columns[0]})"
        )
    shape = (rows[0], columns[1])
    check_broadcasts_to(app, 2, shape, "C")
    return (TensorType(dtype, shape),)


def _extents(shape: Shape | None, transposed: bool) -> tuple[Dim, Dim]:
    rows, columns = shape if shape is not None else unknown_dims(2)
    return (columns, rows) if transposed else (rows, columns)


def _gemm_flops(app: Application, outputs: Sequence[Type]) -> float:
    inner = _extents(app.shape(0), bool(app.attr("transA", 0)))[1]
    return count(outputs[0]) * (2.0 * (inner if isinstance(inner, int) else 1) + app.has(2))


@defines(
    "Gemm",
    infer=_infer_gemm,
    kind=Kind.ANCHOR,
    flops=_gemm_flops,
    traits=Traits(product=Product(bias=2, axes=_gemm_axes), affine=(0, 1, 2), keeps_whole=True, zero_if_absent=(2,)),
)
def _gemm(attributes: Attributes, a: Any, b: Any, c: Any = None) -> Any:
    """``Y = alpha * A' @ B' + beta * C``, where ``'`` transposes on request"""
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    left = wide(a).T if attributes.get("transA", 0) else wide(a)
    right = wide(b).T if attributes.get("transB", 0) else wide(b)
    result = matmul(left, right)
    if alpha != 1.0:
        result = alpha * result
    if c is not None:
        result = result + (wide(c) if beta == 1.0 else beta * wide(c))
    return narrow(result, a)


def shifted(x: np.ndarray, zero: np.ndarray | None, *, columns: bool) -> np.ndarray:
    """``x - zero`` in int32. A vector of zero points holds one for each row, or each column."""
    result = x.astype(np.int32)
    if zero is None:
        return result
    point = zero.astype(np.int32)
    if point.ndim == 1 and point.size > 1 and not columns:
        point = point[:, None]
    return result - (point.reshape(()) if point.size == 1 else point)


def _infer_matmul_integer(app: Application) -> tuple[Type, ...]:
    return (TensorType(DType.INT32, product_shape(app, app.shape(0), app.shape(1))),)


@defines(
    "MatMulInteger",
    infer=_infer_matmul_integer,
    kind=Kind.ANCHOR,
    flops=matmul_flops,
    bit_exact=True,
    traits=Traits(product=replace(_COLUMNS, columns={3: -1}), differences=((0, 2), (1, 3))),
)
def _matmul_integer(attributes: Attributes, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """``Y = (A - a_zero_point) @ (B - b_zero_point)`` in int32"""
    return integer_matmul(shifted(a, a_zero, columns=False), shifted(b, b_zero, columns=True))


def _infer_qlinear_matmul(app: Application) -> tuple[Type, ...]:
    return (TensorType(app.tensor(7).dtype, product_shape(app, app.shape(0), app.shape(3))),)


@defines(
    "QLinearMatMul",
    infer=_infer_qlinear_matmul,
    kind=Kind.ANCHOR,
    flops=matmul_flops,
    traits=Traits(product=replace(_COLUMNS, weights=3), quantises=True, differences=((0, 2), (3, 5))),
)
def _qlinear_matmul(attributes: Attributes, *inputs: np.ndarray) -> Any:
    """``Y = saturate(round((A - a_zero) @ (B - b_zero) * (a_scale*b_scale/y_scale)) + y_zero)``"""
    from eqsat.ir.operators.quantization import requantize

    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = inputs
    total = integer_matmul(shifted(a, a_zero, columns=False), shifted(b, b_zero, columns=True))
    row_scale = a_scale[:, None] if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    return requantize(total, row_scale, b_scale, y_scale, y_zero)
