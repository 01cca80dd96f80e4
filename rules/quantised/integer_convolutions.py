"""Convolutions on 8-bit integers: QLinearConv, its bias rounded to the scale of the sums, and ConvInteger."""

import math

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
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
from eqsat.rules.quantised.pairs import per_tensor
from eqsat.rules.terms import add, mul


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


equation = Equations(__name__, source=SOURCE, shorthands=shorthands, functions=integer_bounds.functions)
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
