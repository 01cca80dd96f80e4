"""Convolutions on 8-bit integers: QLinearConv, its bias rounded to the scale of the sums, and ConvInteger, with fixed scales to
integers, and with one that is computed to floats: ConvInteger takes several times as long as Conv of the same windows by channel.
"""

import math

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised import integer_bounds
from eqsat.rules.quantised.integer_bounds import (
    ONE_LEFT_SCALE,
    OPERANDS,
    UNSIGNED_RESULT,
    few_moved,
    requantised,
    shorthands,
    sums,
)
from eqsat.rules.quantised.integer_products import SOURCE
from eqsat.rules.quantised.scales import column, per_tensor
from eqsat.rules.terms import add, mul, sub


def terms(w: Ref) -> int:
    """The number of products in a sum."""
    return math.prod(w.static_shape[1:])


def point_of(zw: Ref | None, w: Ref) -> Term:
    """The one zero point of the weights."""
    return literal(0 if zw is None else zw.low, w.dtype)


def rescaled(sums: Term, sa: Ref, sw: Ref) -> Term:
    """Sums of channels as floats."""
    scales = (reshaped(v, ()) if per_tensor(v) else v for v in (sa, sw))
    return apply("DequantizeLinear", sums, mul(*scales), **{} if per_tensor(sw) else {"axis": 1})


def biased(y: Term, bias: Ref | None, rank: int) -> Term:
    return y if bias is None else add(y, reshaped(bias, (*bias.static_shape, *(1,) * (rank - 2))))


def centred(w: Ref, zw: Ref | None) -> Term:
    """Integers less their one zero point, as floats."""
    floats = apply("Cast", w, to=int(DType.FLOAT))
    return floats if zw is None else sub(floats, apply("Cast", column(zw), to=int(DType.FLOAT)))


functions = integer_bounds.functions | named(column, per_tensor)
equation = Equations(__name__, source=SOURCE, shorthands=shorthands, functions=functions)
_channels = (*OPERANDS, ONE_LEFT_SCALE, "the scales are those of the channels: along(right, w, sw, None, 0)")
_ONE_POINT = "one zero point of the weights: zw is None or zw.low == zw.high"
equation(
    "convolve_integers",
    """Y(Conv(A(a), W(w), *bias, **conv)) == QLinearConv(a, sa, zero_point(za, a.dtype), w, sw, zero_point(zw, w.dtype),
       sy, zero_point(zy, root.dtype), in_units(bias, sa, sw, w.shape[0]), **conv)""",
    *_channels,
    worthwhile(_ONE_POINT),  # kernels take no more
    UNSIGNED_RESULT,
    constant("bias"),
    "the bias fits into int32: units(bias, sa, sw) < 2**30",
    "a rounded bias moves half a quantum at most: bias is None or sa.high * sw.high <= sy.low",
    few_moved(),
    *requantised("terms(w)", 0, "units(bias, sa, sw)"),
    exactness=Exactness.LSB,
    quanta=1,
)
equation(
    "convolve_integers_to_float",
    """Conv(A(a), W(w), *bias, **conv)
       == biased(rescaled(ConvInteger(a, w, zero_point(za, a.dtype), point_of(zw, w), **conv), sa, sw), bias, a.rank)""",
    *_channels,
    _ONE_POINT,
    *sums("terms(w)"),
    exactness=Exactness.ROUNDING,
    structure="product on integers",
)


equation(
    "convolve_floats",
    """Cast(ConvInteger(a, w, *za, *zw, **conv), to=1, **k) * (sa * sw)
       == Conv(DequantizeLinear(a, column(sa), column(za)), centred(w, zw) * sw, **conv)""",
    worthwhile("a scale that is computed, of constant weights: not sa.is_constant and w.is_constant"),
    constant("sw", "zw"),
    "one scale and zero point each: per_tensor(sa, za) and per_tensor(sw, zw)",
    "scales add no axes: sa.rank <= 1 and sw.rank <= 1",
    "no sum overflows: total(terms(w), a, za, w, zw) <= INT32_MAX",
    exactness=Exactness.ROUNDING,
    drawn=(
        """G = 1 | 2; a: uint8[A, C * G, W + 2]; w = fixed(d.integers([M * G, C, W], "int8")); sa = d.positive([] | [1])
           za = d.integers([] | [1], "uint8"); sw = d.positive([] | [1]); zw = d.integers([], "int8"); conv.group = G
           conv.pads = None | (1, 1); conv.strides = None; conv.dilations = None; conv.auto_pad = None""",
        'w = fixed(d.integers([M * G, C, W], "uint8")); zw = d.integers([], "uint8")',
        "sw = d.positive([3])",
        "sa = d.positive([1, 1, 1]) | d.positive([1, 1, 1, 1]); sw = d.positive([1, 1, 1, 1])",
        'sa = d.positive([1]).astype("float64"); sw = fixed(d.positive([]), "float64"); k.to = 11',
        """a = d.integers([2, 34000, 1], "uint8", 254); w = fixed(d.integers([1, 34000, 1], "uint8", 254)); conv.group = 1
           za = d.integers([], "uint8", 0, 1); zw: None; conv.pads = None""",
    ),
)
