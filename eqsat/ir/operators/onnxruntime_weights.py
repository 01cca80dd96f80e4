"""Products with weights of 4 bits, two in a byte, in ONNX Runtime: MatMulNBits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir.composite import define_composite, only_attributes
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.types import DType, TensorType, Type

NAME = "MatMulNBits"
MIDDLE = 8
"""Zero point where none is given."""


def blocks_of(attributes: Attributes) -> tuple[int, int, int]:
    """Rows and columns of the weight, and rows to a block. Raises `ShapeError` for what the definition does not cover."""
    only_attributes(NAME, attributes, "K", "N", "bits", "block_size", "accuracy_level")
    inner, columns, block = (int(attributes[name]) for name in ("K", "N", "block_size"))
    if attributes.get("bits", 4) != 4 or attributes.get("accuracy_level", 0) not in (0, 1) or inner % block:
        raise ShapeError(f"{NAME}: other than 4 bits, roughly, or in unequal blocks is not covered by the definition")
    return inner, columns, block


def _halves(b: Any, packed: str, rows: int, each: int) -> str:
    """Bytes as ``[rows, each]`` integers of 4 bits in bytes, low halves first."""
    low = b.op("BitwiseAnd", packed, b.constant(np.uint8(15)))
    high = b.op("BitShift", packed, b.constant(np.uint8(4)), direction="RIGHT")
    last = b.constant([-1], "int64")
    pairs = b.op("Concat", b.op("Unsqueeze", low, last), b.op("Unsqueeze", high, last), axis=-1)
    return b.op("Reshape", pairs, b.constant([rows, each], "int64"))


def _matmul_nbits(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """``x @ dequantised weight``: the weight column by column, in blocks of rows with a scale and a zero point each."""
    inner, columns, block = blocks_of(attributes)
    x, packed, scales, zeros, *others = [*inputs, None][: max(len(inputs), 4)]
    if any(others) or not packed or not scales:
        raise ShapeError(f"{NAME}: other orders of rows, and a bias, are not covered by the definition")
    count = inner // block
    integers = _halves(b, packed, columns * count, block)
    if not zeros:
        points = b.constant(np.full(columns * count, MIDDLE, np.uint8))
    elif b.type_of(zeros).dtype is DType.UINT8:
        rows = _halves(b, b.op("Reshape", zeros, b.constant([columns, -1], "int64")), columns, count + count % 2)
        cut = b.op("Slice", rows, *(b.constant([n], "int64") for n in (0, count, 1)))
        points = b.op("Reshape", cut, b.constant([-1], "int64"))
    else:
        raise ShapeError(f"{NAME}: zero points that are no integers are not covered by the definition")
    flat = b.op("Reshape", scales, b.constant([-1], "int64"))
    weight = b.op("DequantizeLinear", integers, flat, points, axis=0)
    weight = b.op("Reshape", weight, b.constant([columns, inner], "int64"))
    return [b.op("MatMul", x, b.op("Transpose", weight, perm=(1, 0)))]


def _flops(app: Application, outputs: Sequence[Type]) -> float:
    inner, columns, _ = blocks_of(app.attributes)
    found = outputs[0]
    size = found.size if isinstance(found, TensorType) else None
    return 2.0 * inner * (size or columns)


def _outline(app: Application) -> tuple[Type, ...]:
    """The type of a product by weights of any width, order and precision."""
    x = app.tensor(0)
    return (TensorType(x.dtype, None if x.shape is None else (*x.shape[:-1], int(app.attributes["N"]))),)


define_composite(f"com.microsoft::{NAME}", _matmul_nbits, Kind.ANCHOR, flops=_flops, outline=_outline)
