"""Convolutions on 8-bit integers: QLinearConv, its bias rounded to the scale of the sums, and ConvInteger."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Term, Unmet, apply, literal, rule, variables
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised.integer_bounds import check_operands, check_requantisation, check_sums, zero_point
from eqsat.rules.quantised.integer_products import SOURCE, left, right, sy, zy
from eqsat.rules.quantised.pairs import per_tensor
from eqsat.rules.terms import add, div, mul
from eqsat.samples import Sampler, fixed
from eqsat.samples.linear import convolution

bias = variables("bias?")[0]


def _sample(d: Sampler) -> dict[str, Any]:
    drawn = convolution(d)
    outputs = drawn["w"].shape[0]
    extent = (outputs,) if d.chance(0.6) else ()
    axis = 0 if d.chance(0.85) else 1
    if axis == 1 and extent:
        extent = (drawn["w"].shape[1],)
    kind = d.choose(("int8", "int8", "uint8"))
    found: dict[str, Any] = {
        "a": d.integers(drawn["x"].shape, "uint8" if d.chance(0.9) else "int8"),
        "w": fixed(d.integers(drawn["w"].shape, kind)),
        "sa": fixed(d.positive(())),
        "sw": fixed(d.positive(extent)),
        "left": {},
        "right": {"axis": axis},
        "conv": drawn["attributes"],
        "quantized": {},
        "sy": fixed(d.positive(()) * np.float32(d.choose((1.0, 8.0, 64.0, 64.0)))),
        "zy": fixed(d.integers((), "uint8")),
    }
    found["za"] = fixed(d.integers((), DType.of(found["a"].dtype)))
    if kind == "int8" or d.chance():
        found["zw"] = fixed(np.full(extent, d.integers((), kind, 0, 3), kind))
    if drawn["b"] is not None:
        found["bias"] = d.either(drawn["b"] * np.float32(100), 0.9)
    return found


def _largest_integer_bias(m: Match) -> float:
    """Bound on ``|bias / (sa * sw)|``: channel by channel where the elements are known, else from the bounds of both."""
    try:
        return float(np.abs(m.bias.value / (m.sa.value.astype(np.float64) * m.sw.value)).max(initial=0))
    except Unmet:
        return max(map(abs, m.bias.interval)) / (m.sa.interval[0] * m.sw.interval[0])


def _sum_length(m: Match) -> int:
    """Number of products that a sum consists of. Raises `Unmet` unless the operands are those of an integer convolution."""
    check_operands(m, m.left, m.right)
    m.require(per_tensor(m.sa, m.za), "several scales of the input")
    m.require(per_tensor(m.sw) or m.right.attr("axis", 1) % m.w.rank == 0, "the scales are not those of the channels")
    m.require(m.zw is None or m.zw.interval[0] == m.zw.interval[1], "several zero points of the weights")
    return math.prod(m.w.static_shape[1:])


@rule(
    apply("QuantizeLinear", apply("Conv", left, right, bias).named("conv"), sy, zy).named("quantized"),
    exactness=Exactness.LSB,
    quanta=1,
    source=SOURCE,
    sample=_sample,
)
def convolve_integers(m: Match) -> Term:
    """``Q(Conv(DQ(a, sa, za), DQ(w, sw, zw), bias), sy, zy) == QLinearConv(a, w, sy, zy, round(bias / (sa * sw)))``.

    For unsigned ``a``, one scale of the weights or one for each output channel, and one zero point of all of them. The border is
    ``za``, which stands for 0. The rounded bias may move a result by half of ``sa * sw``, which is at most half a quantum.
    """
    m.require(m.root.dtype is DType.UINT8, "a signed result")
    length = _sum_length(m)
    args: list[Term] = []
    shift = 0.0
    if m.bias is not None:
        m.require(m.bias.is_constant and m.bias.dtype is DType.FLOAT, "the bias is not constant")
        shift = _largest_integer_bias(m) + 1
        m.require(shift < 2**30, "the bias does not fit into int32")
        m.require(
            m.sa.interval[1] * m.sw.interval[1] <= m.sy.interval[0], "a rounded bias may move more than half a quantum"
        )
        args.append(apply("Cast", apply("Round", div(m.bias, mul(m.sa, m.sw))), to=int(DType.INT32)))
    total = check_sums(m, length, shift)
    check_requantisation(m, length, total)
    points = [zero_point(z, v.dtype) for z, v in ((m.za, m.a), (m.zw, m.w), (m.zy, m.root))]
    operands = (m.a, m.sa, points[0], m.w, m.sw, points[1], m.sy, points[2], *args)
    return Apply("QLinearConv", operands, m.conv.attributes)


@rule(
    apply("Conv", left, right, bias).named("conv"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_sample,
)
def convolve_integers_to_float(m: Match) -> Term:
    """``Conv(DQ(a, sa, za), DQ(w, sw, zw), bias) == DQ(ConvInteger(a, w, za, zw), sa * sw) + bias`` for unsigned ``a``.

    One scale of the weights or one for each output channel, and one zero point of all of them.
    """
    check_sums(m, _sum_length(m))
    trailing = (1,) * (m.a.rank - 2)
    points = [zero_point(z, v.dtype) for z, v in ((m.za, m.a), (m.zw, m.w))]
    if m.zw is not None and m.zw.rank:
        points[1] = literal(m.zw.interval[0], m.w.dtype)
    product = Apply("ConvInteger", (m.a, m.w, *points), m.conv.attributes)
    attributes = {} if per_tensor(m.sw) else {"axis": 1}
    scales = [reshaped(v, ()) if per_tensor(v) else v for v in (m.sa, m.sw)]
    y = apply("DequantizeLinear", product, mul(*scales), **attributes)
    if m.bias is None:
        return y
    return add(y, reshaped(m.bias, (*m.bias.static_shape, *trailing)))
