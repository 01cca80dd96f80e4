"""Quantisation that was lowered to arithmetic is QuantizeLinear and DequantizeLinear again, its range explicit.

QuantizeLinear saturates at the ends of the integer type. A narrower range, such as -127 to 127, is another function: it stays as
a Clip of the integers, until the bounds of the quantised value show that nothing lies beyond.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, every_element, kernels, one_element, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Apply, Literal, Ref, Term, apply, literal, present
from eqsat.rules.linear.alignment import least_normal, reshaped
from eqsat.rules.quantised import scales
from eqsat.rules.quantised.scales import (
    BYTES,
    bytes_behind,
    integer_range,
    one_scale,
    positive_scale,
    shorthands,
    zero_of,
)

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
    functions=scales.functions | {"BYTES": BYTES, "BYTES_AND_SUMS": BYTES | {DType.INT32}},
)
_SAME_SHAPE = "constants enlarge nothing: root.shape == x.shape"

# --- quantisation


TIES = "x = (d.integers([*ANY, A], 'int16', -600, 600) / 2).astype('float32' | 'float16');"
"""Floats around the range of bytes, many of them halfway between whole numbers."""
RANGE = (
    f"{TIES} low = -128 | -127 | -7; high = 127 | 126 | 7; cast.to = 3; c = 0 | 3 | 100 | -7",
    "low = 0 | 1 | -7; high = 255 | 254 | 127; cast.to = 2",
    "low = -127.5; high = 127",
    "low = -inf | 5; high = 127 | -5",
    "c = 0.5 | 300",
    "c = fixed([[[[3]]]], 'float32') | fixed([3], 'float32')",
    "cast.to = 6",
)
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
        drawn=RANGE,
    )
equation(
    "add_zero_point_before_clip",
    "Clip(Round(x), low, high) + c == Clip(Round(x) + c, shifted(low, c), shifted(high, c))",
    constant("low", "high", "c"),
    kernels("x", *CARRIERS),
    "whole numbers: whole(low, high, c)",
    source="rounding of sums is monotone",
    drawn=RANGE,
)


equation(
    "round_before_clip",
    "Round(Clip(x, low, high)) == Clip(Round(x), low, high)",
    constant("low", "high"),
    "whole bounds: whole(low, high)",
    source="rounding is monotone and keeps whole numbers",
)


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
    drawn=(
        """x = Applied("Relu" | "Tanh" | "Neg", d.floats([*ANY, K]) * 30); s = fixed(1 / 127 | 1 / 254 | 1.0, "float32")
           z = fixed(0 | 3, "int8"); a = fixed(-128 | -127 | -8, "int8"); b = fixed(127 | 126 | 27, "int8"); n.axis = 0""",
        """x = Applied("Sigmoid" | "Relu", d.floats([*ANY, K])); s = fixed(1 / 254 | 1 / 64, "float32"); z = fixed(0 | 1, "uint8")
           a = fixed(0 | 1 | 3, "uint8"); b = fixed(255 | 254 | 155, "uint8")""",
        "x = Applied('Tanh', d.floats([K, A])); s = fixed([1 / 127] + [1 / 32] * (K - 1), 'float32'); z = fixed([0] * K, 'int8')",
        "s = fixed(-1 / 127, 'float32')",
        """x = Applied("Sigmoid", d.floats([A]) * 100); s = fixed(0.00784315, "float32"); n.precision = 10; z = fixed(0, "uint8")
           a: None; b = fixed(127, "uint8")""",
    ),
)


SCALED = (
    """N = 2.0 ** d.integer(-5, 5) | 0.3 | 7.7; x = (d.integers([*ANY, A], "int16", -600, 600) / 2 / N).astype("float32")
       c = N; e = 1; z = fixed(0 | 5, "int8" | "uint8"); n.precision = None""",
    "c = -N | 0.0 | 1e34 * N",
    "c = fixed([N, 2 * N], 'float32'); x: float32[A, 2]",
    "c = fixed([[[[[N]]]]], 'float32')",
    "e = 0.5",
    """x = (d.integers([A], "int16", -9000, 9000) / N).astype("float32"); e = fixed(1, "float16") | 1; n.precision = None | 10
       z = fixed(5, "int16")""",
)
"""Quotients that are whole numbers and a half, and, in half precision, larger ones, of which it has not all."""
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
    drawn=SCALED,
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
    drawn=(SCALED[0].replace("2.0 ** d.integer(-5, 5)", "100.0"), *SCALED[1:]),
)


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
    drawn=(
        f"{TIES} c = d.positive([A] | [1]); e = 1; z = fixed(0 | 5, 'int8' | 'uint8'); n.precision = None",
        "x: float32[B, A]; c = d.positive([B, 1] | [B, A])",
        "c = d.positive([2, 1, 1, 1, 1])",
        "x: float32[B, A]; e = fixed([1] * B, 'float32'); z = fixed(d.integers([B], 'int8')); n.axis = 0",
        "e = 0.5",
        "x: float32[B, A]; n.precision = 10",
    ),
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
