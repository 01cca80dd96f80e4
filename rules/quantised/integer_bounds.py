"""When a product of dequantised values may be computed on the integers: no overflow, and rounding below half a quantum.

The operands are ``a``, dequantised by ``left``, and ``w``, dequantised by ``right``; the result is quantised by ``n``. No runtime
at hand multiplies two signed operands well, or signed ones by unsigned ones at all: so ``a`` is unsigned.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import named
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Condition, Hint, Ref, Term, Unmet, apply, literal
from eqsat.rules.linear.alignment import largest, reshaped, spread
from eqsat.rules.quantised.scales import BYTES, integer_range, ordinary, per_tensor, positive, unblocked
from eqsat.rules.terms import div, mul

INT32_MAX = 2**31 - 1
_UNIT = 2.0**-24
_HALF = 0.5


def reach(value: Ref, zero: Ref | None) -> float:
    """Largest ``|q - zero|`` of 8-bit integers ``q``."""
    points = (0.0, 0.0) if zero is None else _ends(zero)
    return max(abs(end - point) for end in _ends(value) for point in points)


def _ends(value: Ref) -> tuple[float, float]:
    """The least and the largest that an 8-bit integer may be."""
    least, greatest = integer_range(value.dtype)
    low, high = value.interval
    return max(low, least), min(high, greatest)


def total(length: Dim, a: Ref, za: Ref | None, w: Ref, zw: Ref | None, bias: float = 0.0) -> float:
    """Largest sum of ``length`` products and a bias; infinite for a length without limit."""
    each = reach(a, za) * reach(w, zw)
    return (a.values.largest(length) * each if each else 0.0) + bias


def scaled(sa: Ref, sw: Ref, most: float) -> bool:
    """Whether the sums times their scales are normal floats."""
    return ordinary(sa.low * sw.low, sa.high * sw.high, max(most, 1))


def magnitudes(w: Ref, zw: Ref | None, sw: Ref, axis: int) -> float:
    """Largest sum of the magnitudes of constant weights in a column, dequantised; the columns lie along ``axis``. Infinite where
    elements are not known. Of real weights it is a fourth of what it could be."""
    try:
        elements, scales = w.elements.astype(np.int16), sw.elements.astype(np.float64).reshape(-1)
        points = 0 if zw is None else zw.elements.astype(np.int16).reshape(-1)
    except Unmet:
        return math.inf
    columns = np.moveaxis(elements, axis, -1).reshape(-1, elements.shape[axis] if w.rank > 1 else 1)
    return float((np.abs(columns - points).sum(axis=0, dtype=np.int64) * scales).max(initial=0))


def rounding(
    length: Dim,
    left: tuple[Ref, Ref, Ref | None],
    right: tuple[Ref, Ref, Ref | None],
    sy: Ref,
    axis: int,
    bias: float = 0.0,
    rows: int = 0,
) -> float:
    """By how many quanta of the result a sum of floats and a bias, in units of the sums, may be off the sum of integers.

    The error of summing floats grows with the square root of their number (Higham and Mary 2019), twice of which is allowed for.
    ``left``, ``right``: integers, scale and zero point. The elements of weights are looked at where their ends do not do.
    """
    (a, sa, za), (w, sw, zw) = left, right
    each = 2 * math.sqrt(sa.values.largest(length) + rows + 4) * _UNIT * sa.high / sy.low
    found = each * total(length, a, za, w, zw, bias) * sw.high
    if found <= _HALF:
        return found
    return min(found, each * (reach(a, za) * magnitudes(w, zw, sw, axis) + bias * sw.high))


def units(bias: Ref | None, sa: Ref, sw: Ref) -> float:
    """Bound on ``|bias / (sa * sw)|``, rounded: channel by channel where the elements are known, else from the bounds of both."""
    if bias is None:
        return 0.0
    try:
        return float(np.abs(bias.value / (sa.value.astype(np.float64) * sw.value)).max(initial=0)) + 1
    except Unmet:
        return largest(bias) / (sa.low * sw.low) + 1


def in_units(bias: Ref | None, sa: Ref, sw: Ref, channels: int) -> Term | None:
    """The bias of each channel in units of ``sa * sw``, as the sums are."""
    if bias is None:
        return None
    return apply("Cast", apply("Round", div(spread(bias, channels), one_rank(sa, sw))), to=int(DType.INT32))


def moved(bias: Ref | None, sa: Ref, sw: Ref, sy: Ref, step: int = 1) -> float:
    """The share of elements that a bias moves by a quantum of the result where it is rounded to whole steps of so many units:
    by how much of a quantum it is off, on average."""
    if bias is None:
        return 0.0
    try:
        unit = abs(step) * sa.value.astype(np.float64) * sw.value
        with np.errstate(invalid="ignore"):  # by a step of 0
            return float(np.abs(np.remainder(bias.value + unit / 2, unit) - unit / 2).mean()) / sy.low
    except Unmet:
        return abs(step) * sa.high * sw.high / (4 * sy.low)


def one_rank(sa: Ref, sw: Ref) -> Term:
    """The scale of the sums: a number where both are numbers."""
    return mul(sa, sw) if sa.rank == 0 or sw.rank else mul(reshaped(sa, ()), sw)


def zero_point(value: Ref | None, dtype: DType) -> Term:
    """A zero point that is stated."""
    return literal(0, dtype) if value is None else value


def points(zw: Ref | None, w: Ref, sw: Ref) -> Term:
    """The zero points of the right operand, as many as it has scales."""
    return literal(np.zeros(sw.static_shape, w.dtype.numpy)) if zw is None else zw


def is_zero(value: Ref | None) -> bool:
    """Whether a constant zero point is 0, stated or not."""
    return value is None or value.interval == (0.0, 0.0)


def along(node: Ref, value: Ref, s: Ref, z: Ref | None, axis: int) -> bool:
    """Whether a value is dequantised by one scale, or by one for each index of an axis, not of blocks."""
    sliced = unblocked(node.attributes) and node.attr("axis", 1) % max(value.rank, 1) == axis % max(value.rank, 1)
    return by_one(node, s, z) or sliced


def by_one(node: Ref, s: Ref, z: Ref | None) -> bool:
    """Whether a node quantises or dequantises by one scale."""
    return per_tensor(s, z) and unblocked(node.attributes)


functions: dict[str, Any] = named(
    total,
    scaled,
    rounding,
    moved,
    units,
    in_units,
    one_rank,
    zero_point,
    points,
    is_zero,
    along,
    by_one,
    positive,
)
functions |= {"INT32_MAX": INT32_MAX}
shorthands = {
    "A(a)": ("DequantizeLinear(a, sa, *za, **left)", "a"),
    "W(w)": ("DequantizeLinear(w, sw, *zw, **right)", "w"),
    "Y(y)": ("QuantizeLinear(y, sy, *zy, **n)", "y"),
}
_ORDINARY: dict[str, Any] = {"constant": True, "low": 1e-3, "high": 1e3}
OPERANDS = (
    kernels("a", DType.UINT8),
    kernels("w", *BYTES),
    varies("root"),
    Condition(
        "positive scales, all of float32",
        lambda m: (
            positive(m.sa) and positive(m.sw) and all(v.dtype is DType.FLOAT for v in (m.sa, m.sw, m.left, m.right))
        ),
        hints=(Hint("sa", **_ORDINARY), Hint("sw", **_ORDINARY), Hint("bias", dtypes=frozenset((DType.FLOAT,)))),
    ),
    constant("za", "zw"),
)
NO_VECTORS = worthwhile("kernels for matrices: a.rank >= 2 and w.rank >= 2")
ONE_LEFT_SCALE = Condition(
    "one scale on the left", lambda m: by_one(m.left, m.sa, m.za), hints=(Hint("sa", single=True),)
)
UNSIGNED_RESULT = worthwhile(
    Condition(
        "kernels for an unsigned result",
        lambda m: m.root.dtype is DType.UINT8,
        hints=(Hint("zy", dtypes=frozenset((DType.UINT8,))), Hint("sy", low=1e-3)),
    )
)


def columns(axis: int | str = 1) -> str:
    """The right scales are those of the columns, which lie along ``axis`` of a matrix."""
    matrix = f"w.rank == 2 and along(right, w, sw, zw, {axis})"
    return f"the right scales are those of the columns: by_one(right, sw, zw) or {matrix}"


def sums(length: str, bias: str = "0") -> tuple[str, ...]:
    """The sums of so many products, and a bias, fit into int32, and their scaled values into float32."""
    found = f"total({length}, a, za, w, zw, {bias})"
    return (f"no sum overflows: {found} <= INT32_MAX", f"scaled sums in range: scaled(sa, sw, {found})")


def few_moved(step: str = "1") -> str:
    """The bias in whole steps of so many units moves few elements by a quantum."""
    return worthwhile(
        f"a rounded bias moves few elements, as verification wants: moved(bias, sa, sw, sy, {step}) <= 1 / 128"
    )


def requantised(length: str, axis: int | str, bias: str = "0", rows: int = 0) -> tuple[Condition | str, ...]:
    """The sums of floats are within half a quantum of those of integers, whose columns lie along ``axis``; ``rows`` are summed
    besides."""
    found = f"rounding({length}, (a, sa, za), (w, sw, zw), sy, {axis}, {bias}, {rows})"
    return (
        "a positive float32 scale of the result: sy.dtype is float32 and positive(sy)",
        Condition("one scale of the result", lambda m: by_one(m.n, m.sy, m.zy), hints=(Hint("sy", single=True),)),
        constant("zy"),
        *sums(length, bias),
        f"rounding within half a quantum: {found} <= 0.5",
    )
