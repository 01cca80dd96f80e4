"""Quantisation that was lowered to arithmetic is QuantizeLinear and DequantizeLinear again, its range explicit.

QuantizeLinear saturates at the ends of the integer type. A narrower range, such as -127 to 127, is another function: it stays as
a Clip of the integers, until the bounds of the quantised value show that nothing lies beyond.
"""

import math
from functools import partial
from typing import Any

import numpy as np

from eqsat.conditions import constant, every_element, kernels, one_element, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Apply, Literal, Ref, Term, apply, literal, present
from eqsat.rules.linear.alignment import least_normal, reshaped
from eqsat.rules.quantised import pairs
from eqsat.rules.quantised.pairs import (
    BYTES,
    bytes_behind,
    integer_range,
    one_scale,
    positive_scale,
    shorthands,
    zero_of,
)
from eqsat.samples import Applied, Sampler, fixed

CARRIERS = (DType.FLOAT, *HALVES)
"""Types that quantisers take, in which bytes are exact, and sums of whole numbers that are bytes."""


def whole(*values: Ref) -> bool:
    """Whether each constant is one whole number."""
    found = [float(v.value.reshape(-1)[0]) for v in values if v.value.size == 1]
    return len(found) == len(values) and all(math.isfinite(f) and f == round(f) for f in found)


def number_of(value: Ref) -> int:
    return int(value.value.reshape(-1)[0])


def within(dtype: DType, *numbers: int) -> bool:
    """Whether numbers are ascending, and of an integer type."""
    first, last = integer_range(dtype)
    return all(a <= b for a, b in zip((first, *numbers), (*numbers, last), strict=True))


def narrowed(value: Term, dtype: DType, low: Ref, high: Ref) -> Term:
    """Integers clipped to a range, where it is narrower than that of the type."""
    bounds = (number_of(low), number_of(high))
    ends = zip(bounds, integer_range(dtype), strict=True)
    kept: list[Any] = [literal(b, dtype) if b != end else None for b, end in ends]
    return value if kept == [None, None] else apply("Clip", value, *kept)


def shifted(bound: Ref, c: Ref) -> Literal:
    return literal(number_of(bound) + number_of(c), bound.dtype)


def quantised_bound(bound: float, s: Ref, z: Ref | None, dtype: DType, outward: int) -> int:
    """What a bound on elements is quantised to, after it was moved outward by more than the roundings on the way."""
    least, greatest = integer_range(dtype)
    if not math.isfinite(bound):
        return greatest if bound > 0 or (math.isnan(bound) and outward > 0) else least
    steps = (bound + outward * 1e-6 * abs(bound)) / float(s.value.reshape(-1)[0])
    return min(max(round(steps) + zero_of(z, dtype), least), greatest)


def reciprocal(c: Ref) -> Literal:
    return literal(1 / c.value.reshape(()), c.dtype)


def is_ordinary(c: Ref) -> bool:
    """Whether a number and its reciprocal are positive, and normal with room to spare."""
    least = 2 * least_normal(c)
    return least <= c.low <= c.high <= 1 / least


def power_of_two(c: Ref) -> bool:
    """Whether the reciprocal of a number is exact."""
    return math.frexp(float(c.value.reshape(())))[0] == 0.5


def varying(s: Ref) -> list[int]:
    """The axes along which a value varies, counted from the end."""
    extents = s.static_shape
    return [i - len(extents) for i, n in enumerate(extents) if n != 1]


def by_slices(op: str, x: Ref, s: Ref, zero: Literal | None, attributes: Attributes = NO_ATTRIBUTES) -> Term:
    """QuantizeLinear or DequantizeLinear by one scale, or one for each slice of the axis along which it varies, and one number as
    zero point."""
    extents = [s.static_shape[axis] for axis in varying(s)]
    zeros = zero and literal(np.full(extents, zero.constant.numpy()))
    axis = varying(s)[0] + x.rank if extents else None
    return Apply(op, present(x, reshaped(s, extents), zeros), attributes.updated(axis=axis))


equation = Equations(
    __name__,
    source="ONNX QuantizeLinear and DequantizeLinear: rounding half to even, then saturation",
    shorthands=shorthands,
    functions=pairs.functions | {"BYTES": BYTES, "BYTES_AND_SUMS": BYTES | {DType.INT32}},
)
_SAME_SHAPE = "constants enlarge nothing: root.shape == x.shape"

# --- quantisation


def _near_ties(d: Sampler) -> np.ndarray:
    """Floats around the range of bytes, many of them halfway between whole numbers."""
    return (d.integers(d.shape(), "int16", -600, 600) / 2.0).astype(d.choose(("float32",) * 9 + ("float16",)))


def _number(d: Sampler, value: float, like: np.ndarray) -> Any:
    return fixed(np.full(d.choose(((), (), (1,), (1, 1))), value, like.dtype))


def _range(d: Sampler) -> dict[str, Any]:
    """Bounds that are mostly the range of the type, or one narrower; the type; and a number to be added."""
    x, to = _near_ties(d), d.choose((DType.INT8, DType.UINT8) * 4 + (DType.INT32,))
    least, greatest = integer_range(to if to in BYTES else DType.INT8)
    ranges = ((least, greatest), (least + 1, greatest), (least, greatest - 1), (-7, 7), (-127.5, 127), (-np.inf, 127))
    bounds = zip(("low", "high"), d.choose(ranges), strict=True)
    constants = {name: fixed(np.asarray(value, x.dtype)) for name, value in bounds}
    return {"x": x, **constants, "cast": {"to": int(to)}, "c": _number(d, d.choose((0, 3, 100, -7, 0.5)), x)}


_of_the_type = (
    constant("low", "high"),
    kernels("x", *CARRIERS),
    bytes_behind,
    "whole bounds: whole(low, high)",
    "a range of the type: within(root.dtype, number_of(low), number_of(high))",
)
for _name, _rounded, _zero, _where in (
    ("recognise_quantize", "Round(x)", "0", ()),
    (
        "recognise_quantize_with_zero_point",
        "Round(x) + c",
        "number_of(c)",
        (constant("c"), _SAME_SHAPE, "a zero point of the type: whole(c) and within(root.dtype, number_of(c))"),
    ),
):
    equation(
        _name,
        f"""Cast(Clip({_rounded}, low, high), **cast)
           == narrowed(QuantizeLinear(x, number(1, x.dtype), number({_zero}, root.dtype)), root.dtype, low, high)""",
        *_of_the_type,
        *_where,
        sample=_range,
    )
equation(
    "add_zero_point_before_clip",
    "Clip(Round(x), low, high) + c == Clip(Round(x) + c, shifted(low, c), shifted(high, c))",
    constant("low", "high", "c"),
    kernels("x", *CARRIERS),
    "whole numbers: whole(low, high, c)",
    source="rounding of sums is monotone",
    sample=_range,
)


equation(
    "round_before_clip",
    "Round(Clip(x, low, high)) == Clip(Round(x), low, high)",
    constant("low", "high"),
    "whole bounds: whole(low, high)",
    source="rounding is monotone and keeps whole numbers",
)


def _in_half(d: Sampler, node: str, scale: str, value: float) -> dict[str, Any]:
    """A scale by which a quantiser divides in float16, as it is of that type or the node says so."""
    stated = d.chance()
    return {
        scale: fixed(value, "float32" if stated else "float16"),
        node: {"precision": int(DType.FLOAT16)} if stated else {},
    }


def _known_bounds(d: Sampler) -> dict[str, Any]:
    dtype = DType.of(d.choose(("int8", "uint8")))
    least, greatest = integer_range(dtype)
    scale, zero = d.choose((1 / 254, 1 / 127, 1 / 64, 1.0)), d.choose((0, 0, least + 1, 3))
    x = d.floats(d.shape()) * np.float32(d.choose((1, 100)))
    several = d.choose(((),) * 8 + (x.shape[:1],))
    scales = np.full(several, d.choose((scale,) * 8 + (-scale,)), np.float32)
    scales.reshape(-1)[:1] *= np.float32(d.choose((1, 4)))
    found: dict[str, Any] = {"s": fixed(scales), "z": fixed(np.full(several, zero), dtype), "n": {"axis": 0}}
    found["x"] = Applied(d.choose(("Relu", "Sigmoid", "Tanh", "Neg")), x)
    if d.chance(0.8):
        found["a"] = fixed(least + d.choose((0, 1, 120)), dtype)
    if d.chance(0.8):
        found["b"] = fixed(greatest - d.choose((0, 1, 100)), dtype)
    if d.chance(0.15):  # 1 / s is less than 127.5, and no longer so in float16
        found |= _in_half(d, "n", "s", 0.00784315)
        found |= {"x": Applied("Sigmoid", x * 100), "z": fixed(0, "uint8"), "a": None, "b": fixed(127, "uint8")}
    return found


equation(
    "drop_clip_behind_quantize",
    "Clip(Q(x), *a, *b) == Q(x)",
    constant("a", "b"),
    "quotients in float32: x.dtype is float32 and one_precision(n.attributes, x, s)",
    positive_scale,
    one_scale,
    "no integer below a: a is None or number_of(a) <= quantised_bound(x.low, s, z, root.dtype, -1)",
    "no integer above b: b is None or number_of(b) >= quantised_bound(x.high, s, z, root.dtype, 1)",
    source="quantisation is monotone",
    sample=_known_bounds,
)


def _scaled(d: Sampler, exact: float) -> dict[str, Any]:
    factor = float(2.0 ** d.integer(-5, 5)) if d.chance(exact) else d.choose((100.0, 0.3, 7.7))
    x, half = _near_ties(d), d.chance(0.2)
    if half:  # quotients in float16, where whole numbers are far apart
        x = x.astype(np.float32) * 60
    if d.chance(0.25):
        factor *= d.choose((-1.0, 1e34 if x.dtype == np.float32 else 100.0, 0.0, 0.0))
    x = x / x.dtype.type(factor or 1)
    shapes = ((), (1,), (1,) * x.ndim)
    number = np.full(d.choose((*shapes, *shapes, (1,) * (x.ndim + 1), x.shape)), factor, x.dtype)
    number.reshape(-1)[0] *= d.choose((1, 1, 1, 2))
    found = {"x": x, "c": fixed(number), "e": fixed(x.dtype.type(1 if d.chance(0.85) else 0.5))}
    found |= {"z": fixed(d.choose((0, 5)), d.choose(("int8", "uint8")))}
    return found | (_in_half(d, "n", "e", 1) | {"z": fixed(5, "int16")} if half else {})


_QUOTIENT = "QuantizeLinear(x * c, e, *z, **n) == QuantizeLinear(x, reciprocal(c), z, **n)"
_one_factor = (
    constant("c", "e"),
    every_element("e", 1),
    _SAME_SHAPE,
    "one precision: one_precision(n.attributes, x, e)",
    worthwhile("kernels for a scalar: e.rank == 0"),
    one_element("c"),
    "the factor is positive and ordinary: is_ordinary(c)",
)
equation(
    "divide_by_power_of_two_in_quantize",
    _QUOTIENT,
    *_one_factor,
    kernels("x", *CARRIERS),
    "a power of two: power_of_two(c)",
    source="the reciprocal of a power of two is exact",
    sample=partial(_scaled, exact=0.8),
)
equation(
    "divide_in_quantize_instead_of_multiplying",
    _QUOTIENT,
    *_one_factor,
    kernels("x", DType.FLOAT),
    worthwhile("no power of two: not power_of_two(c)"),
    exactness=Exactness.LSB,
    quanta=1,
    source="the quotient by the rounded reciprocal is less than one part in a million away: ties may go the other way",
    sample=partial(_scaled, exact=0.1),
)


def _rows(d: Sampler) -> dict[str, Any]:
    """Scales of the slices of an axis that are computed, or one; at times of two axes, or more than the value has."""
    x = _near_ties(d).astype(d.choose(("float32",) * 9 + ("float16",)))
    kept = d.integer(-1, x.ndim - 1)
    shape = [n if i == kept or d.chance(0.1) else 1 for i, n in enumerate(x.shape)]
    scales = d.positive(d.choose((tuple(shape),) * 8 + ((2, *shape),))).astype(x.dtype)
    one, integers = x.dtype.type(1 if d.chance(0.9) else 0.5), d.choose(("int8", "uint8"))
    if d.chance(0.15):  # zero points of their own
        several = {"e": fixed(np.full(x.shape[:1], one)), "z": fixed(d.integers(x.shape[:1], integers))}
        return {"x": x, "c": scales, "n": {"axis": 0}, **several}
    found = {"x": x, "c": scales, "e": fixed(one), "z": fixed(d.choose((0, 5)), integers)}
    return found | (_in_half(d, "n", "e", 1) if d.chance(0.15) else {})


equation(
    "divide_by_computed_scales_in_quantize",
    "QuantizeLinear(x / c, e, *z, **n) == by_slices('QuantizeLinear', x, c, z and zero_number(z, z.dtype), n.attributes)",
    varies("c"),
    every_element("e", 1),
    kernels("x", DType.FLOAT),
    "one zero point: z is None or z.type.size == 1",
    "no blocks, one precision: one_precision(n.attributes, x, e)",
    "the scale enlarges nothing: root.shape == x.shape and c.rank <= x.rank",
    "the scale varies over one axis at most: len(varying(c)) <= 1",
    source="ONNX QuantizeLinear: x / s, rounded",
    sample=_rows,
)

# --- dequantisation


_scales = (
    constant("s"),
    kernels("s", *CARRIERS),
    "the scale enlarges nothing: root.shape == q.shape",
    "the scale varies over one axis at most: len(varying(s)) <= 1",
)
equation(
    "recognise_dequantize",
    "Cast(q, **cast) * s == by_slices('DequantizeLinear', q, s, None)",
    "bytes, or sums of such: q.dtype in BYTES_AND_SUMS",
    worthwhile("kernels for sums: q.dtype is not int32 or s.dtype is float32"),
    *_scales,
)
equation(
    "recognise_dequantize_with_zero_point",
    "(Cast(q, **cast) + c) * s == by_slices('DequantizeLinear', q, s, number(-number_of(c), q.dtype))",
    constant("c"),
    "bytes: q.dtype in BYTES",
    *_scales,
    "a zero point of the type: whole(c) and within(q.dtype, -number_of(c))",
)
