"""``com.microsoft::MatMulNBits(x, w, scales, *zero_points, *g_idx, *bias)``: a product by weights of few bits, packed in bytes.

``x @ dequantised(w) + bias``. The weight is stored column by column, each in blocks of ``block_size`` rows with one scale and one
zero point: bytes ``[N, blocks, bytes of a block]``, first integers in the low bits. Zero points are packed likewise, or floats.

``accuracy_level`` says how precise the kernel has to be at least. At 4 it may round ``x`` to 8 bits, each row in the same blocks;
ONNX Runtime does so where the weight is constant, the zero points are integers and there is a kernel for blocks of that size. It
rounds a row alike for all columns: products side by side are the same numbers. But the product is no linear function of ``x``
then, to within the rounding of floats, so nothing of that kind is stated: it is linear in the scales, and in the bias.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count, same_dim
from eqsat.ir.outlines import rows_by
from eqsat.ir.traits import Product, ProductAxes, Traits
from eqsat.ir.types import DType, TensorType, Type

MATMUL_NBITS = "com.microsoft::MatMulNBits"
_NAME = "MatMulNBits"
_ATTRIBUTES = ("K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked")
_LEVELS = range(5)
_BITS = (2, 4, 8)


class Packing:
    """How the weight of a use lies in bytes. Raises `ShapeError` for a use that the definition does not cover."""

    def __init__(self, attributes: Attributes) -> None:
        only_attributes(_NAME, attributes, *_ATTRIBUTES)
        number: Any = attributes.get
        self.inner, self.columns, self.block = (int(number(name, 0)) for name in ("K", "N", "block_size"))
        self.bits, level = int(number("bits", 4)), int(number("accuracy_level", 0))
        if self.bits not in _BITS or level not in _LEVELS or number("weight_prepacked", 0):
            raise ShapeError(f"{_NAME}: {self.bits} bits, level {level} or weights packed for a device are not covered")
        if min(self.inner, self.columns) < 1 or self.block < 16 or self.block & (self.block - 1):
            raise ShapeError(f"{_NAME}: blocks hold 16 or more rows, a power of 2; got {self.block} of {self.inner}")
        self.count = -(-self.inner // self.block)

    def bytes_of(self, integers: int) -> int:
        return -(-integers * self.bits // 8)

    @property
    def weight(self) -> tuple[int, int, int]:
        return self.columns, self.count, self.bytes_of(self.block)


def _infer(app: Application) -> tuple[Type, ...]:
    p, x = Packing(app.attributes), app.tensor(0)
    if x.shape is None or not x.shape or same_dim(x.shape[-1], p.inner) is None:
        raise app.fail(f"the rows of the first operand have {p.inner} elements")
    if app.shape(1) != p.weight or app.tensor(1).dtype is not DType.UINT8:
        raise app.fail(f"the weight is {list(p.weight)} bytes")
    _check_by_block(app, 2, p.columns, p.count, x.dtype)
    if app.has(3) and app.tensor(3).dtype is DType.UINT8:
        _check_by_block(app, 3, p.columns, p.bytes_of(p.count), DType.UINT8)
    elif app.has(3):
        _check_by_block(app, 3, p.columns, p.count, x.dtype)
    if app.has(4):
        raise app.fail("other orders of rows are not covered")
    if app.has(5) and app.tensor(5) != TensorType(x.dtype, (p.columns,)):
        raise app.fail(f"the bias is a number for each of {p.columns} columns")
    return (TensorType(x.dtype, (*x.shape[:-1], p.columns)),)


def _check_by_block(app: Application, index: int, columns: int, each: int, dtype: DType) -> None:
    """Raises `ShapeError` unless an input has ``each`` elements for each column, in a matrix or one behind the other."""
    found = app.tensor(index)
    if found.dtype is not dtype or found.shape not in ((columns, each), (columns * each,)):
        raise app.fail(f"input {index} has {each} elements of type {dtype.name.lower()} for each of {columns} columns")


# --- what it is built from -------------------------------------------------------------------------------------------


def _expand(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    p = Packing(attributes)
    x, packed, scales, zeros, _, bias = [*inputs, *[None] * 6][:6]
    own = b.type_of(x).dtype
    wide = own if own is DType.DOUBLE else DType.FLOAT  # halves are computed in single precision, and rounded once
    x, scales, bias = (v and _as(b, v, wide) for v in (x, scales, bias))
    weight = b.op("Reshape", _weight(b, p, packed or "", scales or "", zeros), _extents(b, p.columns, -1))
    if p.inner % p.block:
        weight = _first(b, weight, p.inner, 1)
    product = b.op("MatMul", x, b.op("Transpose", weight, perm=(1, 0)))
    return [_as(b, b.op("Add", product, bias) if bias else product, own)]


def _as(b: Any, value: str, dtype: DType) -> str:
    return value if b.type_of(value).dtype is dtype else b.op("Cast", value, to=int(dtype))


def _extents(b: Any, *extents: int) -> str:
    return b.constant(list(extents), "int64")


def _first(b: Any, value: str, count: int, axis: int) -> str:
    return b.op("Slice", value, *(_extents(b, n) for n in (0, count, axis)))


def _weight(b: Any, p: Packing, packed: str, scales: str, zeros: str | None) -> str:
    """The weight in floats, a block in each row."""
    blocks, dtype = p.columns * p.count, b.type_of(scales).dtype
    integers = _unpacked(b, p.bits, packed, blocks, p.block)
    flat = b.op("Reshape", scales, _extents(b, -1))
    if zeros and b.type_of(zeros).dtype is not DType.UINT8:
        points = zeros
    elif zeros:
        stored = p.bytes_of(p.count) * 8 // p.bits
        rows = _unpacked(b, p.bits, b.op("Reshape", zeros, _extents(b, p.columns, -1)), p.columns, stored)
        points = b.op("Reshape", rows if stored == p.count else _first(b, rows, p.count, 1), _extents(b, -1))
    else:
        points = b.constant(np.full(blocks, 1 << (p.bits - 1), np.uint8))
    if dtype is DType.FLOAT and b.type_of(points).dtype is DType.UINT8:
        return b.op("DequantizeLinear", integers, flat, points, axis=0)
    column = _extents(b, -1, 1)
    shifted = b.op("Sub", _as(b, integers, dtype), b.op("Reshape", _as(b, points, dtype), column))
    return b.op("Mul", shifted, b.op("Reshape", scales, column))


def _unpacked(b: Any, bits: int, packed: str, rows: int, each: int) -> str:
    """Bytes as ``[rows, each]`` integers in bytes, those in the low bits first."""
    mask, last = b.constant(np.uint8((1 << bits) - 1)), _extents(b, -1)
    parts: list[str] = []
    for shift in range(0, 8, bits):
        moved = b.op("BitShift", packed, b.constant(np.uint8(shift)), direction="RIGHT") if shift else packed
        kept = moved if shift + bits == 8 else b.op("BitwiseAnd", moved, mask)
        parts.append(b.op("Unsqueeze", kept, last))
    return b.op("Reshape", b.op("Concat", *parts, axis=-1) if len(parts) > 1 else packed, _extents(b, rows, each))


# --- what is known of it ---------------------------------------------------------------------------------------------


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    """A multiplication and an addition for each row of each column; of any number of rows, one."""
    rows = outputs[0] if outputs[0].shape else TensorType(DType.FLOAT, (app.attributes["N"],))
    return 2.0 * int(app.attributes["K"]) * count(rows)


def _outline(app: Application) -> tuple[Type, ...]:
    """The type of a product by weights of any width, order and precision."""
    return rows_by(app, int(app.attributes["N"]))


_AXES = ProductAxes(data=-1, inner=1, outer=0, result=-1)
_PRODUCT = Product(axes=lambda attributes: _AXES, bias=5, columns={2: 0, 3: 0}, scales=2, counted="N", packed=True)

define_composite(
    MATMUL_NBITS,
    _expand,
    Kind.ANCHOR,
    infer=_infer,
    flops=_flops,
    outline=_outline,
    defaults={"bits": 4, "accuracy_level": 0, "weight_prepacked": 0},
    traits=Traits(product=_PRODUCT, affine=(2, 5), vectors=(5,)),
)
