"""Integer products as ONNX Runtime has kernels: MatMulIntegerToFloat, DynamicQuantizeMatMul, QGemm.

The left operand is of type uint8: the kernels for two signed operands are several times slower than a product of floats.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.onnxruntime.quantised import number
from eqsat.rules.quantised.integer_bounds import INT32_MAX, OPERANDS, along, scaled, total
from eqsat.rules.quantised.integer_products import left, right
from eqsat.rules.quantised.pairs import per_tensor, positive, unblocked
from eqsat.rules.terms import add, constant, int64s, mul, transpose
from eqsat.samples import Sampler, fixed

DOMAIN = "com.microsoft"
SOURCE = "contrib operators of ONNX Runtime; Jacob et al. 2017"
TO_FLOAT = f"{DOMAIN}::MatMulIntegerToFloat"
_MOVED = 2.0**-14
"""Part of the elements of a result that the rounding of a bias may move."""

x, a, w, sa, sw, sy, za, zw, zy, c = variables("x a w sa sw sy za? zw? zy? c")
bias = variables("bias?")[0]


def _drawn_weight(d: Sampler, inner: int, columns: int, *, swapped: bool = False) -> dict[str, Any]:
    """A weight with one scale, or one for each column, or (wrongly) one for each row."""
    dtype = d.choose(("int8", "int8", "uint8"))
    shape = (columns, inner) if swapped else (inner, columns)
    axis = (0 if swapped else 1) if d.chance(0.8) else int(swapped)
    vector = d.chance(0.5)
    extent = (shape[axis],) if vector else d.choose(((), (1,)))
    found: dict[str, Any] = {"w": fixed(d.integers(shape, dtype)), "sw": fixed(d.positive(extent))}
    if d.chance(0.6):
        found["zw"] = fixed(d.integers(extent, dtype, 0, 3))
    elif dtype == "int8":
        found["zw"] = fixed(np.zeros(extent, dtype))
    return found | {"right": {"axis": axis - (2 if d.chance() else 0)} if vector else {}}


def _drawn_left(d: Sampler, shape: tuple[int, ...]) -> dict[str, Any]:
    dtype = "uint8" if d.chance(0.9) else "int8"
    extent = d.choose(((), (1,)))
    found: dict[str, Any] = {"a": d.integers(shape, dtype), "sa": fixed(d.positive(extent)), "left": {}}
    if dtype == "int8" or d.chance(0.8):
        found["za"] = fixed(d.integers(extent, dtype))
    return found


def _product(d: Sampler) -> dict[str, Any]:
    inner, columns, *batch = d.extents(d.integer(3, 5))
    return {**_drawn_left(d, (*batch, inner)), **_drawn_weight(d, inner, columns)}


def check_operands(m: Match) -> None:
    m.check(OPERANDS)
    m.require(unblocked(m.left.attributes, m.right.attributes), "blocks")


def check_columns(m: Match, axis: int = 1) -> None:
    """Raises `Unmet` unless the right operand has one scale, or is a matrix with one for each index of ``axis``."""
    m.require(m.a.rank >= 2 and m.w.rank >= 2, "a vector")
    matrix = m.w.rank == 2 and along(m.right, m.w, m.sw, m.zw, axis)
    m.require(per_tensor(m.sw, m.zw) or matrix, "the scales are not those of the columns")


def check_sums(m: Match, length: object, bias: float = 0.0) -> None:
    """Raises `Unmet` if a sum may exceed int32, or its scaled value leave float32."""
    largest = total(length, m.a, m.za, m.w, m.zw, bias)
    m.require(largest <= INT32_MAX and scaled(m.sa, m.sw, largest), "a sum may overflow, or scales out of range")


def _check_scales(m: Match) -> None:
    """Raises `Unmet` unless the left operand has one scale, all scales are positive and all zero points known."""
    m.require(all(positive(s) and s.dtype is DType.FLOAT for s in (m.sa, m.sw)), "no positive constant scales")
    m.require(per_tensor(m.sa, m.za), "several scales on the left")
    m.require(all(z is None or z.is_constant for z in (m.za, m.zw)), "an unknown zero point")


def _column(value: Ref | None) -> Term | None:
    """A scale or zero point of the right operand: a number of rank 0, or a vector."""
    return value if value is None or math.prod(value.static_shape) != 1 else number(value, value.dtype)


def _scalar(value: Ref | None) -> Term | None:
    return None if value is None else number(value, value.dtype)


def _columns(m: Match) -> tuple[Term | None, Term | None]:
    """Scale and zero point of the right operand, both numbers or both vectors."""
    if m.zw is not None:
        m.require(math.prod(m.sw.static_shape) == math.prod(m.zw.static_shape), "scales and zero points differ")
    return _column(m.sw), _column(m.zw)


@rule(
    apply("MatMul", left, right),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_product,
    domain=DOMAIN,
)
def fuse_integer_product(m: Match) -> Term:
    """``DQ(a) @ DQ(w) == MatMulIntegerToFloat(a, w)`` where no sum overflows."""
    check_operands(m)
    m.require(per_tensor(m.sa, m.za), "several scales on the left")
    check_columns(m)
    check_sums(m, m.a.shape[-1])
    scale, zero = _columns(m)
    return apply(TO_FLOAT, m.a, m.w, _scalar(m.sa), scale, _scalar(m.za), zero)


def _gemm(d: Sampler) -> dict[str, Any]:
    rows, inner, columns = d.extents(3)
    swapped = d.chance()
    found = {**_drawn_left(d, (rows, inner)), **_drawn_weight(d, inner, columns, swapped=swapped)}
    if d.chance(0.7):
        found["bias"] = fixed(d.floats((columns,) if d.chance(0.8) else d.broadcast_of((rows, columns))))
    attributes = {"transB": int(swapped)}
    return found | {"gemm": attributes if d.chance(0.9) else {**attributes, "beta": 0.5}}


@rule(
    apply("Gemm", left, right, bias).named("gemm"),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_gemm,
    domain=DOMAIN,
)
def fuse_integer_product_with_bias(m: Match) -> Term:
    """``Gemm(DQ(a), DQ(w), bias) == MatMulIntegerToFloat(a, w, bias)`` for a vector ``bias`` where no sum overflows."""
    check_operands(m)
    m.require(per_tensor(m.sa, m.za), "several scales on the left")
    node = m.gemm
    m.require(node.attr("alpha", 1.0) == 1.0 and node.attr("beta", 1.0) == 1.0, "scaled")
    m.require(not node.attr("transA", 0), "the left operand is transposed")
    swapped = bool(node.attr("transB", 0))
    check_columns(m, 0 if swapped else 1)
    check_sums(m, m.a.shape[-1])
    if m.bias is not None:
        m.require(m.bias.rank == 1 and m.bias.static_shape[0] == m.root.shape[-1], "no vector for the columns")
    scale, zero = _columns(m)
    weight = transpose(m.w, (1, 0)) if swapped else m.w
    return apply(TO_FLOAT, m.a, weight, _scalar(m.sa), scale, _scalar(m.za), zero, m.bias)


def _accumulator(d: Sampler) -> dict[str, Any]:
    inner, columns, *batch = d.extents(d.integer(3, 4))
    found = {"a": d.integers((*batch, inner), "uint8"), "w": fixed(d.integers((inner, columns), "int8"))}
    found["sa"] = d.positive(d.choose(((), (1,))))
    found["sw"] = d.either(d.positive(d.choose(((), (columns,), (columns,), (batch[-1], 1)))))
    if d.chance(0.7):
        found["za"] = d.integers(d.choose(((), (1,))), "uint8")
    if "za" in found and d.chance():
        found["zw"] = fixed(d.integers((), "int8", -2, 2))
    return found | {"cast": {"to": int(DType.FLOAT)}}


@rule(
    mul(apply("Cast", apply("MatMulInteger", a, w, za, zw)).named("cast"), mul(sa, sw)),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_accumulator,
    domain=DOMAIN,
)
def fuse_scales_into_integer_product(m: Match) -> Term:
    """``Cast(MatMulInteger(a, w, za, zw)) * (sa * sw) == MatMulIntegerToFloat(a, w, sa, sw, za, zw)``, ``sa`` one number."""
    m.require(m.a.dtype is DType.UINT8, "the left integers are not unsigned")
    m.require(m.root.dtype is DType.FLOAT and m.a.rank >= 2 and m.w.rank == 2, "no float32, or no matrices")
    m.require(per_tensor(m.sa, m.za) and m.sa.rank <= 1, "several scales on the left")
    m.require(all(v is None or v.rank <= 1 for v in (m.sw, m.zw)), "scales of rows")
    extents = {math.prod(v.static_shape) for v in (m.sw, m.zw) if v is not None}
    m.require(extents <= {1} or extents == {m.root.shape[-1]} == {m.w.shape[-1]}, "scales of other than the columns")
    scale, zero = _columns(m)
    return apply(TO_FLOAT, m.a, m.w, _scalar(m.sa), scale, _scalar(m.za), zero)


def _with_bias(d: Sampler) -> dict[str, Any]:
    found = _product(d)
    del found["left"], found["right"]
    found["sw"] = fixed(d.positive(()))
    found |= {"a": d.integers(found["a"].shape, "uint8"), "za": fixed(d.integers((), "uint8"))}
    found["zw"] = fixed(d.integers((), found["w"].array.dtype.name))
    columns = found["w"].array.shape[-1]
    return {
        **found,
        "c": d.either(
            d.floats((columns,) if d.chance(0.7) else d.broadcast_with((*found["a"].shape[:-1], columns))), 0.7
        ),
    }


@rule(
    add(apply(TO_FLOAT, a, w, sa, sw, za, zw), c),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_with_bias,
    domain=DOMAIN,
)
def fuse_bias_into_integer_product(m: Match) -> Term:
    """``MatMulIntegerToFloat(a, w) + c == MatMulIntegerToFloat(a, w, bias=c)`` for a vector ``c`` for the columns."""
    m.require(m.c.rank == 1 and m.c.static_shape[0] == m.w.shape[-1], "no vector for the columns")
    return apply(TO_FLOAT, m.a, m.w, m.sa, m.sw, m.za, m.zw, m.c)


def _check_bias(m: Match, bias: Ref) -> None:
    """Raises `Unmet` where rounding the bias to the scale of the sums moves too many elements by a quantum: as large a part of
    them as its error is of a quantum, on average over the columns."""
    with np.errstate(all="ignore"):  # a bias that is not finite has no error either
        unit = (np.float64(m.sa.elements) * m.sw.elements).reshape(-1)
        units = bias.elements.reshape(-1) / unit
        error = np.abs(units - np.rint(units)) * unit / float(m.sy.elements.reshape(()))
        fine = bool(error.mean() <= _MOVED and error.max() <= 0.5)
    m.require(fine, "a rounded bias would move too many elements")


def _requantised(d: Sampler) -> dict[str, Any]:
    found = _with_bias(d)
    found.pop("c")
    columns = found["w"].array.shape[-1]
    small = np.float32(2.0**-6)
    if d.chance(0.4):
        found["sw"] = fixed(d.positive((columns,)))
        found |= {"zw": fixed(np.zeros(columns, found["w"].array.dtype))} if d.chance(0.4) else {"zw": None}
    found |= {"sa": fixed(found["sa"].array.reshape(()) * small), "sw": fixed(found["sw"].array * small)}
    units = np.rint(d.floats((columns,)) * 1e3).astype(np.float32)
    found["bias"] = fixed(units * found["sa"].array * found["sw"].array if d.chance(0.8) else d.floats((columns,)))
    found["sy"] = fixed(d.positive(d.choose(((), (1,)))))
    return found | {"zy": fixed(d.integers((), d.choose(("uint8", "uint8", "int8")))), "quantized": {}}


@rule(
    apply(
        "QuantizeLinear",
        apply(TO_FLOAT, a, w, sa, sw, za, zw, bias),
        sy,
        zy,
    ).named("quantized"),
    where=[constant("bias")],
    exactness=Exactness.LSB,
    quanta=1,
    source=SOURCE,
    sample=_requantised,
    domain=DOMAIN,
)
def add_bias_to_accumulator(m: Match) -> Term:
    """``Q(MatMulIntegerToFloat(a, w, bias)) == QGemm(a, w, round(bias / (sa * sw)))``; ``a`` becomes a matrix.

    The bias is a whole number of units of the sums, as quantisers of models make it, or so close that rounding it moves less
    than one of 2**14 elements.
    """
    m.require(m.bias is not None and m.w.rank == 2, "no bias, or several matrices")
    bias: Any = m["bias"]
    m.require(m.a.dtype is DType.UINT8 and m.root.dtype is DType.UINT8, "not unsigned")
    m.require(unblocked(m.quantized.attributes) and (m.zy is None or m.zy.is_constant), "blocks or another precision")
    _check_scales(m)
    m.require(positive(m.sy) and m.sy.dtype is DType.FLOAT and per_tensor(m.sy, m.zy), "several scales of the result")
    fine = m.sa.interval[0] * m.sw.interval[0]
    _check_bias(m, bias)
    largest = max(map(abs, bias.interval)) / fine
    m.require(largest < 2**30, "the bias does not fit into int32")
    check_sums(m, m.w.shape[0], largest + 1)
    scale, zero = _columns(m)
    rounded = apply("Round", apply("Div", bias, mul(m.sa, m.sw)))
    integers = apply("Cast", rounded, to=int(DType.INT32))
    if zero is None:  # the kernel wants as many zero points as scales
        extents = () if math.prod(m.sw.static_shape) == 1 else m.sw.static_shape
        zero = literal(np.zeros(extents, m.w.dtype.numpy))
    points = (number(m.za, DType.UINT8), zero, number(m.zy, DType.UINT8))
    matrix = m.a if m.a.rank == 2 else apply("Reshape", m.a, int64s((-1, int(m.w.static_shape[0]))))
    product = apply(
        f"{DOMAIN}::QGemm",
        matrix,
        _scalar(m.sa),
        points[0],
        m.w,
        scale,
        points[1],
        integers,
        number(m.sy, DType.FLOAT),
        points[2],
    )
    return product if m.a.rank == 2 else apply("Reshape", product, int64s(m.root.static_shape))


def _dynamic(d: Sampler) -> dict[str, Any]:
    inner, columns, *batch = d.extents(d.integer(3, 4))
    extent = d.choose(((), (columns,)))
    dtype = d.choose(("int8", "uint8"))
    found = {"x": d.floats((*batch, inner)), "w": fixed(d.integers((inner, columns), dtype))}
    found |= {"sw": fixed(d.positive(extent)), "zw": fixed(d.integers(extent, dtype))}
    return found | ({"bias": fixed(d.floats((columns,)))} if d.chance(0.6) else {})


_quantised = apply("DynamicQuantizeLinear", x, outputs=3)


@rule(
    apply(TO_FLOAT, _quantised.output(0), w, _quantised.output(1), sw, _quantised.output(2), zw, bias),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_dynamic,
    domain=DOMAIN,
)
def fuse_dynamic_quantisation_into_product(m: Match) -> Term:
    """``MatMulIntegerToFloat(DynamicQuantizeLinear(x), w, bias) == DynamicQuantizeMatMul(x, w, bias)``."""
    m.require(m.x.rank >= 2 and m.w.rank == 2, "no matrices")
    return apply(f"{DOMAIN}::DynamicQuantizeMatMul", m.x, m.w, m.sw, m.zw, m.bias)
