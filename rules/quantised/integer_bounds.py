"""When a product of dequantised values may be computed on the integers: no overflow, and rounding below half a quantum."""

from __future__ import annotations

import math

import numpy as np

from eqsat.ir.types import DType
from eqsat.rewrite import Match, Ref, Term, literal
from eqsat.rules.quantised.pairs import BYTES, integer_range, per_tensor, positive, unblocked

INT32_MAX = 2**31 - 1
_UNIT = 2.0**-24


def reach(value: Ref, zero: Ref | None) -> float:
    """Largest ``|q - zero|`` of 8-bit integers ``q``."""
    least, greatest = integer_range(value.dtype)
    low, high = value.interval
    low, high = max(low, least), min(high, greatest)
    points = (0.0, 0.0) if zero is None else zero.interval
    return max(abs(end - point) for end in (low, high) for point in points)


def check_operands(m: Match, left: Ref, right: Ref) -> None:
    """Raises `Unmet` unless the left integers ``m.a`` are unsigned and the right ones ``m.w`` of 8 bits.

    No runtime at hand multiplies two signed operands well, or signed ones by unsigned ones at all. ``left`` and ``right`` are
    the nodes that dequantise.
    """
    m.require(
        m.a.dtype is DType.UINT8 and m.w.dtype in BYTES, "the left integers are not unsigned, or the right no bytes"
    )
    m.require(not m.root.is_constant and unblocked(left.attributes, right.attributes), "blocks, or a known value")
    m.require(all(v.dtype is DType.FLOAT and positive(v) for v in (m.sa, m.sw)), "no positive constant float32 scales")
    m.require(all(v is None or v.is_constant for v in (m.za, m.zw)), "the zero points are not constant")


def check_columns(m: Match, axis: int = 1) -> None:
    """Raises `Unmet` unless the right operand has one scale, or is a matrix with one for each index of ``axis``."""
    m.require(m.a.rank >= 2 and m.w.rank >= 2, "a vector")
    if not per_tensor(m.sw, m.zw):
        m.require(m.w.rank == 2 and m.right.attr("axis", 1) % 2 == axis, "the scales are not those of the columns")


def check_sums(m: Match, length: object, largest_bias: float = 0.0) -> float:
    """Largest sum of ``length`` products. Raises `Unmet` if it may exceed int32, or its scaled value leave float32."""
    if not isinstance(length, int):
        m.require(False, "the length of the sums is unknown")
        return math.inf
    total = length * reach(m.a, m.za) * reach(m.w, m.zw) + largest_bias
    m.require(total <= INT32_MAX, "a sum may overflow")
    least, greatest = (m.sa.interval[i] * m.sw.interval[i] for i in (0, 1))
    info = np.finfo(np.float32)
    m.require(
        least >= float(info.smallest_normal) and greatest * max(total, 1) < float(info.max), "scales out of range"
    )
    return total


def check_requantisation(m: Match, length: int, total: float, largest_bias: float = 0.0) -> None:
    """Raises `Unmet` unless the sum of floats is within half a quantum ``m.sy`` of the sum of integers.

    The error of summing floats grows with the square root of their number (Higham and Mary 2019), twice of which is allowed for.
    """
    m.require(m.sy.dtype is DType.FLOAT and positive(m.sy), "no positive constant float32 scale")
    m.require(per_tensor(m.sy, m.zy) and unblocked(m.quantized.attributes), "several scales of the result, or blocks")
    m.require(m.zy is None or m.zy.is_constant, "the zero point of the result is not constant")
    steps = (total * m.sa.interval[1] * m.sw.interval[1] + largest_bias) / m.sy.interval[0]
    m.require(2 * math.sqrt(length + 4) * _UNIT * steps <= 0.5, "rounding of the sums may exceed half a quantum")


def zero_point(value: Ref | None, dtype: DType) -> Term:
    """A zero point that is stated."""
    return literal(0, dtype) if value is None else value


def is_zero(value: Ref | None) -> bool:
    """Whether a constant zero point is 0, stated or not."""
    return value is None or value.interval == (0.0, 0.0)
