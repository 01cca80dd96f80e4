"""A product on 8-bit integers with a bias, requantised: one operator, or a product with more rows.

QLinearMatMul has no bias, and to add one between MatMulInteger and QuantizeLinear takes three operators more. Where the target
has no kernel for all of that, a column of ones on the left makes a row of the weights the bias: Pad writes columns that stand for
a few units of the left scale, and as many rows of the weights as it takes sum up to the bias. Rounded to the scale of the sums, a
bias moves one in a thousand elements of a layer of BERT by a quantum; ONNX Runtime has a product with a bias of floats that does
not, so that the rows are for programs that may not use its operators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operators.qlinear_gemm import QLINEAR_GEMM
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.linear.alignment import elements_along, largest, reshaped, spread
from eqsat.rules.quantised.integer_bounds import check_operands, check_requantisation, check_sums, is_zero, zero_point
from eqsat.rules.quantised.pairs import per_tensor
from eqsat.rules.terms import add, constant, div, int64s, mul, sub
from eqsat.samples import Sampler, fixed

SOURCE = "homogeneous coordinates: a sum with a constant is a product with one more row; Jacob et al. 2017"
ROWS = 16
"""Rows of the weights that a bias may become: two in a hundred of the products of a matrix with 768 rows."""

ROWS_BYTES = 1 << 16
"""They may take this much memory: more is not computed ahead (`eqsat.egraph.known`)."""

_LARGEST_WEIGHT = 127
a, w, sa, sw, sy, za, zw, zy, bias = variables("a w sa sw sy za? zw? zy? bias")
_left = apply("DequantizeLinear", a, sa, za).named("left")
_right = apply("DequantizeLinear", w, sw, zw).named("right")


def _drawn(d: Sampler, *, swapped: bool, batched: bool) -> dict[str, Any]:
    """Integers on the left, a weight with one scale or one for each column (or wrongly each row), and a bias.

    Mostly the sums and the bias are within the range of the result, and the quantum is no larger than it may be.
    """
    rows, inner, columns, batch = d.extents(4)
    lead = (batch, rows) if batched and d.chance() else (rows,)
    shape = (columns, inner) if swapped else (inner, columns)
    axis = int(not swapped) if d.chance(0.85) else int(swapped)
    extent = (shape[axis],) if d.chance(0.6) else ()
    kind = "int8" if d.chance(0.9) else "uint8"
    zero = d.choose((128, 128, 0, 255, 3))
    found: dict[str, Any] = {
        "a": d.integers((*lead, inner), "uint8" if d.chance(0.9) else "int8"),
        "w": fixed(d.integers(shape, kind)),
        "sa": fixed(d.positive(())),
        "sw": fixed(d.positive(extent)),
        "left": {},
        "right": {"axis": axis},
        "sy": fixed(d.positive(()) * np.float32(d.choose((1.0, 64.0, 512.0)))),
        "zy": fixed(d.integers((), "uint8")),
        "quantized": {},
    }
    signed = found["a"].dtype == np.int8
    found["za"] = fixed(np.int8(5) if signed else np.uint8(zero))
    if kind == "int8" or d.chance():
        found["zw"] = fixed(np.full(extent, d.choose((0, 0, 0, 2)), kind))
    shift = d.choose(((columns,), (columns,), (), (1,), d.broadcast_with((*lead, columns))))
    found["bias"] = fixed(d.floats(shift) * np.float32(d.choose((1.0, 300.0, 3000.0))))
    return found | _in_range(d, found) if d.chance(0.7) else found


def _in_range(d: Sampler, found: dict[str, Any]) -> dict[str, Any]:
    """Small weights, and a bias and a scale of the result on which every row of the bias bears."""
    scales = found["sa"].array * found["sw"].array
    kind, far = found["w"].array.dtype.name, d.choose((1, 3, 20))
    bias = d.floats(found["bias"].array.shape) * scales.min() * np.float32(d.choose((30.0, 1000.0, 30000.0)))
    units = float(np.abs(bias).max(initial=0.0) / scales.min()) + 1
    step = math.ceil(units / ((ROWS - 1) * _LARGEST_WEIGHT))
    return {
        "w": fixed(d.integers(found["w"].array.shape, kind, -far if kind == "int8" else 0, far)),
        "bias": fixed(bias),
        "sy": fixed(scales.max() * np.float32(4 * step * d.choose((1.01, 1.01, 3.0)))),
        "zy": fixed(d.integers((), "uint8", 100, 150)),
    }


def _sum_sample(d: Sampler) -> dict[str, Any]:
    return _drawn(d, swapped=False, batched=True)


def _gemm_sample(d: Sampler) -> dict[str, Any]:
    swapped = d.chance()
    attributes: dict[str, Any] = {"transB": 1} if swapped else {}
    found = _drawn(d, swapped=swapped, batched=False)
    if d.chance(0.1):
        attributes["alpha"] = 2.0
    if found["bias"].array.ndim > 2 or d.chance(0.8):
        found["bias"] = fixed(found["bias"].array.reshape(-1)[: found["w"].array.shape[0 if swapped else 1]])
    return found | {"gemm": attributes}


@dataclass(frozen=True)
class _Product:
    """What a product is made of: ``weights`` (inner, columns), ``units``: bound on the bias in units of ``sa * sw``."""

    weights: Term
    inner: int
    columns: int
    units: float


def _checked(m: Match, product: Ref, swapped: bool) -> _Product:
    """The product and its bias. ``swapped``: columns are the first axis of ``w``. Raises `Unmet`."""
    check_operands(m, m.left, m.right)
    m.require(m.a.rank >= 2 and m.w.rank == 2, "a vector, or several matrices of weights")
    m.require(m.root.dtype is DType.UINT8 and per_tensor(m.sa, m.za), "a signed result, or several scales on the left")
    m.require(m.w.dtype is DType.INT8 and is_zero(m.zw), "the weights are unsigned, or have a zero point")
    along_columns = m.right.attr("axis", 1) % 2 == int(not swapped)
    m.require(per_tensor(m.sw, m.zw) or along_columns, "the scales are not those of the columns")
    m.require(m.bias.dtype is DType.FLOAT, "no float32")
    elements_along(m.bias, product, -1)
    inner, columns = m.w.static_shape[::-1] if swapped else m.w.static_shape
    units = largest(m.bias) / (m.sa.interval[0] * m.sw.interval[0]) + 1
    return _Product(apply("Transpose", m.w, perm=(1, 0)) if swapped else m.w, inner, columns, units)


def _check_rounding(m: Match, product: _Product, step: int, rows: int = 0) -> None:
    """Raises `Unmet` where a bias in multiples of ``step`` is too coarse, or the sums may overflow."""
    coarsest = 4 * abs(step) * m.sa.interval[1] * m.sw.interval[1]
    m.require(coarsest <= m.sy.interval[0], "the bias is coarser than an eighth of a quantum")
    total = check_sums(m, product.inner, product.units + abs(step))
    check_requantisation(m, product.inner + rows, total)


def _biased(m: Match, node: Ref, swapped: bool) -> Term:
    """The product on integers with the bias added to the sums, as one operator of our own."""
    product = _checked(m, node, swapped)
    m.require(product.units < 2**30, "the bias does not fit into int32")
    _check_rounding(m, product, 1)
    scale = mul(m.sa, m.sw) if m.sa.rank == 0 or m.sw.rank else mul(reshaped(m.sa, ()), m.sw)
    bias = apply("Cast", apply("Round", div(spread(m.bias, product.columns), scale)), to=int(DType.INT32))
    points = zero_point(m.za, DType.UINT8), zero_point(m.zy, DType.UINT8)
    return apply(QLINEAR_GEMM, m.a, points[0], product.weights, bias, scale, m.sy, points[1])


def _padded(m: Match, node: Ref, swapped: bool) -> Term:
    """The product on integers whose last rows of weights are the bias."""
    product = _checked(m, node, swapped)
    columns = product.columns
    most = min(ROWS, ROWS_BYTES // max(columns, 1))
    step, unit = _unit(m, product.units, most)
    _check_rounding(m, product, step, most)
    full = math.ceil(product.units / (abs(step) * _LARGEST_WEIGHT))
    scaled = div(spread(m.bias, columns), mul(mul(m.sa, m.sw), literal(np.float32(step))))
    joined = apply("Concat", product.weights, _rows(scaled, full, columns), axis=0)
    pads = int64s([0] * (2 * m.a.rank - 1) + [full + 1])
    padded = apply("Pad", m.a, pads, literal(unit, DType.UINT8))
    zeros = literal(np.zeros(m.sw.static_shape, np.int8))
    points = zero_point(m.za, DType.UINT8), zero_point(m.zy, DType.UINT8)
    return apply("QLinearMatMul", padded, m.sa, points[0], joined, m.sw, zeros, m.sy, points[1])


def _unit(m: Match, units: float, most: int) -> tuple[int, int]:
    """What an added column stands for, in units of the left scale, and the integer that says so: as fine as the rows allow."""
    m.require(most >= 2 and math.isfinite(units), "too many columns, or no finite bias")
    zero = 0 if m.za is None else int(m.za.value.reshape(()))
    step = math.ceil(units / ((most - 1) * _LARGEST_WEIGHT))
    m.require(step <= max(255 - zero, zero), "the bias is larger than the rows can hold")
    step = step if zero + step <= 255 else -step
    return step, zero + step


def _rows(scaled: Term, full: int, columns: int) -> Term:
    """Rows of 8-bit integers with the sum ``scaled``, rounded: ``full`` equal ones and a remainder."""
    times = literal(np.float32(full))
    share = apply("Round", div(scaled, times))
    rest = apply("Round", sub(scaled, mul(share, times)))
    rows = [apply("Reshape", apply("Cast", row, to=int(DType.INT8)), int64s((1, columns))) for row in (share, rest)]
    return apply("Concat", apply("Gather", rows[0], int64s([0] * full), axis=0), rows[1], axis=0)


_sum = apply("QuantizeLinear", add(apply("MatMul", _left, _right).named("product"), bias), sy, zy).named("quantized")
_gemm = apply("QuantizeLinear", apply("Gemm", _left, _right, bias).named("gemm"), sy, zy).named("quantized")


def _orientation(m: Match) -> bool:
    """Whether a Gemm takes the transpose of its weight. Raises `Unmet` for factors, or a transposed left operand."""
    factors = m.gemm.attr("alpha", 1.0), m.gemm.attr("beta", 1.0)
    m.require(factors == (1.0, 1.0) and not m.gemm.attr("transA", 0), "factors, or a transposed left operand")
    return bool(m.gemm.attr("transB", 0))


def _define(pattern: Apply, sample: Any, **kind: str) -> Any:
    stated: Any = {"exactness": Exactness.LSB, "quanta": 1, "source": SOURCE, **kind}
    return rule(pattern, where=[constant("bias")], sample=sample, **stated)


@_define(_sum, _sum_sample, domain="eqsat")
def multiply_integers_and_add(m: Match) -> Term:
    """``Q(DQ(a, sa, za) @ DQ(w, sw) + b, sy, zy) == QLinearGemm(a, w, round(b / (sa * sw)), sa * sw, sy, zy)``.

    For unsigned ``a``. The rounding of the bias is at most an eighth of a quantum of the result.
    """
    return _biased(m, m.product, swapped=False)


@_define(_gemm, _gemm_sample, domain="eqsat")
def multiply_integers_with_bias(m: Match) -> Term:
    """``Q(Gemm(DQ(a, sa, za), DQ(w, sw), b), sy, zy) == QLinearGemm(a, w, round(b / (sa * sw)), sa * sw, sy, zy)`` for unsigned
    ``a`` and a weight of either orientation, as `multiply_integers_and_add`."""
    return _biased(m, m.gemm, _orientation(m))


@_define(_sum, _sum_sample, legalizes=QLINEAR_GEMM, outside="com.microsoft")
def multiply_integers_and_rows_of_bias(m: Match) -> Term:
    """``Q(DQ(a, sa, za) @ DQ(w, sw) + b, sy, zy) == QLinearMatMul(Pad(a), Concat(w, rows of b), sy, zy)`` for unsigned ``a``.

    Padded columns stand for ``step * sa``, and the rows sum up to ``b / (step * sa * sw)``, rounded: at most an eighth of a
    quantum of the result.
    """
    return _padded(m, m.product, swapped=False)


@_define(_gemm, _gemm_sample, legalizes=QLINEAR_GEMM, outside="com.microsoft")
def multiply_integers_with_rows_of_bias(m: Match) -> Term:
    """``Q(Gemm(DQ(a, sa, za), DQ(w, sw), b), sy, zy) == QLinearMatMul(Pad(a), Concat(w, rows of b), sy, zy)`` for unsigned ``a``
    and a weight of either orientation, as `multiply_integers_and_rows_of_bias`."""
    return _padded(m, m.gemm, _orientation(m))
