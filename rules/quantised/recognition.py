"""Quantisation that was lowered to arithmetic is QuantizeLinear and DequantizeLinear again, its range explicit.

QuantizeLinear saturates at the ends of the integer type. A narrower range, such as -127 to 127, is another function: it stays as
a Clip of the integers, until the bounds of the quantised value show that nothing lies beyond.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised.pairs import BYTES, integer_range, like, positive_scale, quantize, whole_tensor, zero_of
from eqsat.rules.terms import add, constant, every_element, mul
from eqsat.samples import Applied, Sampler, fixed

EXACT = Exactness.EXACT
LOWERING = "ONNX QuantizeLinear and DequantizeLinear: rounding half to even, then saturation"
x, q, s, c, e, z = variables("x q s c e z?")
low, high = variables("low high")
a, b = variables("a? b?")


def _whole_number(m: Match, value: Ref) -> int:
    """The one element of a constant, if it is a whole number."""
    m.require(value.value.size == 1, "not one number")
    found = float(value.value.reshape(-1)[0])
    m.require(math.isfinite(found) and found == round(found), "no whole number")
    return int(found)


# --- quantisation --------------------------------------------------------------------------------------------------------


def _near_ties(d: Sampler) -> np.ndarray:
    """Floats around the range of bytes, many of them halfway between whole numbers."""
    return (d.integers(d.shape(), "int16", -600, 600) / 2.0).astype(np.float32)


def _number(d: Sampler, value: float) -> Any:
    return fixed(np.full(d.choose(((), (), (1,), (1, 1))), value, np.float32))


def _range(d: Sampler, zero: int = 0) -> dict[str, Any]:
    """Bounds that are mostly the range of the type, or one narrower; and the type."""
    to = d.choose((DType.INT8, DType.UINT8))
    least, greatest = integer_range(to)
    low, high = d.choose(((least, greatest), (least + 1, greatest), (least, greatest - 1), (-7, 7), (-127.5, 127)))
    bounds = {"low": fixed(np.float32(low)), "high": fixed(np.float32(high))}
    return {"x": _near_ties(d), **bounds, "cast": {"to": int(to)}}


def _shifted_range(d: Sampler) -> dict[str, Any]:
    return _range(d) | {"c": _number(d, d.choose((0, 3, 100, -7, 0.5)))}


def _quantized(m: Match, zero: int) -> Term:
    """QuantizeLinear of ``x`` by the scale 1 in the type of the cast, clipped to the range from ``low`` to ``high``."""
    m.require(m.x.dtype is DType.FLOAT and m.root.dtype in BYTES, "no float32, or no 8-bit integers")
    m.require(m.root.shape == m.x.shape, "a constant enlarges the result")
    least, greatest = integer_range(m.root.dtype)
    first, last = _whole_number(m, m.low), _whole_number(m, m.high)
    m.require(least <= first <= last <= greatest, "the range is not one of the integer type")
    m.require(least <= zero <= greatest, "the zero point is outside the integer type")
    zero_point, one = literal(zero, m.root.dtype), literal(1, DType.FLOAT)
    return _clipped(apply("QuantizeLinear", m.x, one, zero_point), m.root.dtype, first, last)


def _clipped(value: Term, dtype: DType, first: int, last: int) -> Term:
    least, greatest = integer_range(dtype)
    lower = literal(first, dtype) if first > least else None
    upper = literal(last, dtype) if last < greatest else None
    return value if lower is None and upper is None else apply("Clip", value, lower, upper)  # type: ignore[arg-type]


@rule(
    apply("Cast", apply("Clip", apply("Round", x), low, high)).named("cast"),
    where=[constant("low", "high")],
    exactness=EXACT,
    source=LOWERING,
    sample=_range,
)
def recognise_quantize(m: Match) -> Term:
    """``Cast(Clip(Round(x), low, high)) == Clip(QuantizeLinear(x, 1), low, high)`` for whole bounds within 8-bit integers."""
    return _quantized(m, 0)


@rule(
    apply("Cast", apply("Clip", add(apply("Round", x), c), low, high)).named("cast"),
    where=[constant("low", "high", "c")],
    exactness=EXACT,
    source=LOWERING,
    sample=_shifted_range,
)
def recognise_quantize_with_zero_point(m: Match) -> Term:
    """``Cast(Clip(Round(x) + c, low, high)) == Clip(QuantizeLinear(x, 1, c), low, high)`` for whole numbers of 8 bits."""
    return _quantized(m, _whole_number(m, m.c))


@rule(
    add(apply("Clip", apply("Round", x), low, high), c),
    where=[constant("low", "high", "c")],
    exactness=EXACT,
    source="sums of whole numbers below 2^24 are exact, and larger ones lie beyond the bounds",
    sample=_shifted_range,
)
def add_zero_point_before_clip(m: Match) -> Term:
    """``Clip(Round(x), low, high) + c == Clip(Round(x) + c, low + c, high + c)`` for whole numbers of at most 16 bits."""
    m.require(m.x.dtype is DType.FLOAT and m.root.shape == m.x.shape, "no float32, or a constant enlarges the result")
    first, last, shift = (_whole_number(m, value) for value in (m.low, m.high, m.c))
    m.require(first <= last and max(map(abs, (first, last, shift))) < 1 << 16, "bounds out of order or range")
    low, high = literal(np.float32(first + shift)), literal(np.float32(last + shift))
    return apply("Clip", add(apply("Round", m.x), m.c), low, high)


def _clip_inside(d: Sampler) -> dict[str, Any]:
    bounds = {"low": d.choose((-7, 0, 7.5, -128)), "high": d.choose((7, 255, 6.5))}
    return {"x": _near_ties(d) / np.float32(d.choose((1, 16)))} | {k: fixed(np.float32(v)) for k, v in bounds.items()}


@rule(
    apply("Round", apply("Clip", x, low, high)),
    where=[constant("low", "high")],
    exactness=EXACT,
    source="rounding is monotone and keeps whole numbers",
    sample=_clip_inside,
)
def round_before_clip(m: Match) -> Term:
    """``Round(Clip(x, low, high)) == Clip(Round(x), low, high)`` for whole bounds."""
    _whole_number(m, m.low)
    _whole_number(m, m.high)
    return apply("Clip", apply("Round", m.x), m.low, m.high)


def _known_bounds(d: Sampler) -> dict[str, Any]:
    dtype = DType.of(d.choose(("int8", "uint8")))
    least, greatest = integer_range(dtype)
    x = d.floats(d.shape()) * np.float32(d.choose((1, 100)))
    scale = d.choose((1 / 254, 1 / 127, 1 / 64, 1.0))
    zero = d.choose((0, 0, least + 1, 3))
    found = {
        "s": fixed(np.float32(scale)),
        "z": fixed(zero, dtype),
        "x": Applied(d.choose(("Relu", "Sigmoid", "Tanh", "Neg")), x),
    }
    if d.chance(0.8):
        found["a"] = fixed(least + d.choose((0, 1, 120)), dtype)
    if d.chance(0.8):
        found["b"] = fixed(greatest - d.choose((0, 1, 100)), dtype)
    return found


@rule(
    apply("Clip", quantize(x), a, b),
    where=[constant("a", "b")],
    exactness=EXACT,
    source="quantisation is monotone",
    sample=_known_bounds,
)
def drop_clip_behind_quantize(m: Match) -> Term:
    """``Clip(Q(x, s, z), a, b) == Q(x, s, z)`` where the bounds of ``x`` show that no integer lies beyond ``a`` or ``b``."""
    m.require(m.x.dtype is DType.FLOAT and m.root.dtype in BYTES, "no float32, or no 8-bit integers")
    m.require(positive_scale.holds(m) and whole_tensor.holds(m), "the scale is not one positive number")
    least, greatest = (_quantized_bound(m, bound, sign) for bound, sign in zip(m.x.interval, (-1, 1), strict=True))
    m.require(m.a is None or int(m.a.value.reshape(-1)[0]) <= least, "elements may lie below the lower bound")
    m.require(m.b is None or int(m.b.value.reshape(-1)[0]) >= greatest, "elements may lie above the upper bound")
    return like(m.quantized, "QuantizeLinear", m.x, m.s, m.z)


def _quantized_bound(m: Match, bound: float, sign: int) -> int:
    """What a bound of ``x`` is quantised to, after it was moved outward by more than the roundings on the way."""
    m.require(not math.isnan(bound), "an element may be NaN")
    least, greatest = integer_range(m.root.dtype)
    if math.isinf(bound):
        return greatest if bound > 0 else least
    steps = (bound + sign * 1e-6 * abs(bound)) / float(m.s.value.reshape(-1)[0])
    return min(max(round(steps) + zero_of(m, m.root.dtype), least), greatest)


def _scaled(d: Sampler, *, exact: bool) -> dict[str, Any]:
    factor = float(2.0 ** d.integer(-5, 5)) if d.chance(0.9 if exact else 0.1) else d.choose((100.0, 0.3, 7.7))
    if d.chance(0.15):
        factor *= d.choose((-1.0, 1e34, 0.0))
    x = _near_ties(d) / np.float32(factor or 1)
    number = fixed(np.full(d.choose(((), (1,), (1,) * x.ndim)), factor, np.float32))
    found = {"x": x, "c": number, "e": fixed(np.float32(1 if d.chance(0.85) else 0.5))}
    return found | {"z": fixed(d.choose((0, 5)), d.choose(("int8", "uint8")))}


def _rescaled(m: Match, *, exact: bool) -> Term:
    m.require(m.x.dtype is DType.FLOAT and m.root.shape == m.x.shape, "no float32, or a factor that enlarges the value")
    m.require(m.e.rank == 0 and m.c.value.size == 1, "scales for each slice")
    factor = np.float32(m.c.value.reshape(()))
    m.require(np.isfinite(factor) and 1e-37 < factor < 1e37, "the factor is not positive, or far from 1")
    m.require((math.frexp(float(factor))[0] == 0.5) is exact, "the reciprocal is rounded, or is not")
    scale = literal(np.float32(1) / factor, DType.FLOAT)
    args = (m.x, scale) if m.z is None else (m.x, scale, m.z)
    return Apply("QuantizeLinear", args, m.quantized.attributes)


_product = apply("QuantizeLinear", mul(x, c), e, z).named("quantized")


@rule(
    _product,
    where=[constant("c", "e"), every_element("e", 1)],
    exactness=EXACT,
    source="the reciprocal of a power of two is exact",
    sample=lambda d: _scaled(d, exact=True),
)
def divide_by_power_of_two_in_quantize(m: Match) -> Term:
    """``QuantizeLinear(x * c, 1, z) == QuantizeLinear(x, 1 / c, z)`` for a power of two ``c``."""
    return _rescaled(m, exact=True)


@rule(
    _product,
    where=[constant("c", "e"), every_element("e", 1)],
    exactness=Exactness.LSB,
    quanta=1,
    source="the quotient by the rounded reciprocal is less than one part in a million away: ties may go the other way",
    sample=lambda d: _scaled(d, exact=False),
)
def divide_in_quantize_instead_of_multiplying(m: Match) -> Term:
    """``QuantizeLinear(x * c, 1, z) == QuantizeLinear(x, 1 / c, z)`` for positive ``c``."""
    return _rescaled(m, exact=False)


# --- dequantisation ------------------------------------------------------------------------------------------------------


def _integers(d: Sampler) -> dict[str, Any]:
    q = d.integers(d.shape(), d.choose(("int8", "uint8", "int8", "uint8", "int32")))
    axis = d.integer(0, q.ndim - 1)
    along = tuple(n if i == axis else 1 for i, n in enumerate(q.shape))[d.integer(0, axis) :]
    scale = d.scale(d.choose(((), (1,), along, along, d.broadcast_with(q.shape))))
    number = _number(d, d.choose((0, -3, -128, 7, 0.5)))
    return {"q": q, "s": d.either(scale, 0.9), "c": number, "cast": {"to": 1}}


def _dequantized(m: Match, zero: int | None) -> Term:
    m.require(m.q.dtype in BYTES and m.s.dtype is DType.FLOAT, "no 8-bit integers, or no float32 scale")
    m.require(m.root.dtype is DType.FLOAT and m.root.shape == m.q.shape, "the result has another type")
    extents = m.s.static_shape
    axes = [i - len(extents) for i, n in enumerate(extents) if n != 1]
    m.require(len(axes) <= 1, "the scale varies over several axes")
    scale = reshaped(m.s, [extents[axis] for axis in axes])
    if zero is not None:
        least, greatest = integer_range(m.q.dtype)
        m.require(least <= zero <= greatest, "the zero point is outside the integer type")
    zeros = np.full([extents[axis] for axis in axes], zero or 0)
    args = (m.q, scale) if zero is None else (m.q, scale, literal(zeros, m.q.dtype))
    attributes = {"axis": axes[0] + m.q.rank} if axes else {}
    return apply("DequantizeLinear", *args, **attributes)


@rule(
    mul(apply("Cast", q).named("cast"), s),
    where=[constant("s")],
    exactness=EXACT,
    source=LOWERING,
    sample=_integers,
)
def recognise_dequantize(m: Match) -> Term:
    """``Cast(q) * s == DequantizeLinear(q, s)`` for 8-bit integers and one scale, or one for each slice of an axis."""
    return _dequantized(m, None)


@rule(
    mul(add(apply("Cast", q).named("cast"), c), s),
    where=[constant("s", "c")],
    exactness=EXACT,
    source=LOWERING,
    sample=_integers,
)
def recognise_dequantize_with_zero_point(m: Match) -> Term:
    """``(Cast(q) + c) * s == DequantizeLinear(q, s, -c)`` for 8-bit integers and a whole number ``c``."""
    return _dequantized(m, -_whole_number(m, m.c))
