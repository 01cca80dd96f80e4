"""Integer products as ONNX Runtime has kernels: MatMulIntegerToFloat, DynamicQuantizeMatMul, QGemm.

The left operand is of type uint8: the kernels for two signed operands are several times slower than a product of floats.
"""

from typing import Any

import numpy as np

from eqsat.conditions import constant, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.onnxruntime.parameters import SOURCE, column, dequantized, functions, known_parameters, quantized
from eqsat.rules.quantised.integer_bounds import INT32_MAX, scaled, total
from eqsat.samples import Sampler, fixed

_MOVED = 2.0**-14
"""Part of the elements of a result that the rounding of a bias may move."""

TO_FLOAT = "com.microsoft.MatMulIntegerToFloat"
ON_THE_WAY = "com.microsoft::DynamicQuantizeMatMul"
"""What plain ONNX is led to by `TO_FLOAT`, which it does not name itself."""


def sums_fit(a: Ref, za: Ref | None, w: Ref, zw: Ref | None, sa: Ref, sw: Ref, bias: Ref | None = None) -> bool:
    """Whether no sum of products and bias may exceed int32, nor its scaled value leave float32."""
    least = sa.low * sw.low
    found = total(a.shape[-1], a, za, w, zw, 0 if bias is None else max(map(abs, bias.interval)) / least + 1)
    return found <= INT32_MAX and scaled(sa, sw, found)


def are_columns(s: Ref, z: Ref | None, w: Ref) -> bool:
    """Whether there is one scale, or one for each column of ``w``, in a vector; of zero points likewise."""
    return all(v is None or v.shape in ((), (1,), w.shape[-1:]) for v in (s, z))


def moves_few(bias: Ref, sa: Ref, sw: Ref, sy: Ref) -> bool:
    """Whether rounding the bias to the scale of the sums moves few elements by a quantum: as large a part of them as its error
    is of a quantum, on average over the columns."""
    with np.errstate(all="ignore"):  # a bias that is not finite has no error either
        unit = (np.float64(sa.elements) * sw.elements).reshape(-1)
        units = bias.elements.reshape(-1) / unit
        error = np.abs(units - np.rint(units)) * unit / float(sy.elements.reshape(()))
        return bool(error.mean() <= _MOVED and error.max() <= 0.5)


def as_many(s: Ref, z: Ref | None, w: Ref) -> Term | None:
    """Zero points of the columns of ``w``, as many as scales."""
    return literal(np.zeros(s.static_shape if s.type.size != 1 else (), w.dtype.numpy)) if z is None else column(z)


equation = Equations(
    __name__,
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source=f"{SOURCE}; Jacob et al. 2017",
    functions=functions,
)
UNSIGNED = worthwhile("kernels for unsigned integers by bytes: a.dtype is uint8 and w.dtype in BYTES")
COLUMNS = (
    "one scale on the left: per_tensor(sa, za)",
    """one scale, or one for each column: per_tensor(sw, zw)
        or w.rank == 2 and dw.attr('axis', 1) % 2 == 1 and unblocked(dw.attributes)""",
)
FITS = "the sums fit into int32, and scaled into float32: sums_fit(a, za, w, zw, sa, sw)"


equation(
    "fuse_integer_product",
    f"""{dequantized("a")} @ {dequantized("w")}
        == {TO_FLOAT}(a, w, column(sa), column(sw), column(za), column(zw), None)""",
    UNSIGNED,
    varies("root"),
    *known_parameters("aw"),
    *COLUMNS,
    FITS,
    worthwhile("kernels for matrices: a.rank >= 2 and w.rank >= 2"),
)


ACCUMULATOR = """a: uint8[*ANY, A, K]; w: int8[K, N]; za = d.integers([] | [1], "uint8"); zw = d.integers([], "int8", -2, 2)
                 sa = d.positive([] | [1]); sw = d.positive([N] | []); k.to = 1"""
ACCUMULATED = (
    worthwhile("kernels for unsigned integers: a.dtype is uint8"),
    worthwhile("kernels for matrices: a.rank >= 2 and w.rank == 2"),
)
equation(
    "fuse_scales_into_integer_product",
    f"""Cast(MatMulInteger(a, w, *za, *zw), to=1, **k) * (sa * sw)
        == {TO_FLOAT}(a, w, column(sa), column(sw), column(za), column(zw))""",
    *ACCUMULATED,
    "one scale on the left: per_tensor(sa, za) and sa.rank <= 1",
    "one scale, or one for each column: are_columns(sw, zw, w)",
    drawn=(
        ACCUMULATOR,
        "sa = d.positive([] | [1]); sw = d.positive([N, 1] | [A, 1])",
        'sa = fixed(d.positive([]), "float64"); sw = fixed(d.positive([]), "float64"); k.to = 11',
        "a: int8[A, K]; za: int8[()]",
    ),
    domain=ON_THE_WAY,
)


equation(
    "fuse_scales_of_columns_into_integer_product",
    f"""Cast(MatMulInteger(a, w, *za, *zw), to=1, **k) * c
        == {TO_FLOAT}(a, w, number(1, float32), column(c), column(za), column(zw))""",
    constant("c"),
    *ACCUMULATED,
    "one zero point on the left: za is None or za.type.size == 1",
    "one scale, or one for each column: are_columns(c, zw, w)",
    drawn=(
        f"{ACCUMULATOR}; c = d.positive([N] | [] | [A, 1])",
        'c = d.positive([N]).astype("float64"); k.to = 11',
        "za: uint8[A]",
        "a: int8[A, K]; za: int8[()]",
    ),
)


def _with_bias(d: Sampler) -> dict[str, Any]:
    """A product with a bias of its own, (nearly) a whole number of units or not, or none, and one added."""
    inner, columns, *rows = d.extents(d.integer(3, 5))
    kind, several = d.choose(("int8", "uint8")), (columns,) if d.chance(0.4) else ()
    small = np.float32(2.0 ** d.choose((-6, -3, -3, -3, 0)))
    found: dict[str, Any] = {
        "a": d.integers((*rows, inner), "uint8" if d.chance(0.95) else "int8"),
        "w": fixed(d.integers((inner, columns), kind)),
        "sa": fixed(d.powers_of_two(()) * small),
        "sw": fixed(d.positive(several) * small),
        "sy": fixed(d.positive(d.choose(((), (1,), (1,), rows[1:2])))),
    }
    if small == 1:  # units of more than a quantum, and few of them
        found |= {"a": d.integers((*rows, inner), "uint8", 0, 1), "w": fixed(d.integers((inner, columns), kind, 0, 1))}
    found["zy"] = fixed(d.integers(found["sy"].array.shape, "uint8" if d.chance(0.85) else "int8"))
    found["za"] = fixed(d.integers((), found["a"].dtype, 0, 1 if small == 1 else 100))
    if d.chance(0.6):
        zeros = np.zeros(several, kind) if several and d.chance() else d.integers((), kind, 0, 1 if small == 1 else 100)
        found["zw"] = fixed(zeros)
    unit = found["sa"].array * found["sw"].array
    units = np.rint(d.floats((columns,)) * 1e3).astype(np.float32) * unit
    rounded, large = d.floats((columns,)) * unit, np.full((columns,), 2.0**32, np.float32) * unit
    found["c"] = fixed(d.choose((units, rounded, rounded) if small == 1 else (*[units] * 4, large)))
    if d.chance(0.1):
        found |= {"w": fixed(d.integers((*rows[:-1], inner, columns), kind))}
    return found


def _with_summand(d: Sampler) -> dict[str, Any]:
    found = _with_bias(d)
    columns = found["c"].array.shape
    result = (*found["a"].shape[:-1], *columns)
    return found | {"c": d.either(d.floats(columns if d.chance(0.7) else d.broadcast_with(result)), 0.7)}


equation(
    "fuse_bias_into_integer_product",
    f"{TO_FLOAT}(a, w, sa, sw, *za, *zw, **p) + c == {TO_FLOAT}(a, w, sa, sw, za, zw, c)",
    "a bias for each column: lies_along(c, w)",
    sample=_with_summand,
    domain=ON_THE_WAY,
)
_AS_MATRIX = """viewed(com.microsoft.QGemm(matrix(a), column(sa), scalar(za), w, column(sw), as_many(sw, zw, w),
                                           Cast(Round(c / (sa * sw)), to=6), scalar(sy), scalar(zy)), root)"""
_REQUANTISED = (
    "unsigned bytes: a.dtype is uint8 and root.dtype is uint8",
    "a matrix of weights: w.rank == 2",
    constant("sa", "sw", "za", "zw", "c", "sy", "zy"),
    worthwhile("kernels without blocks, or another precision: unblocked(q.attributes)"),
    worthwhile("kernels for positive scales of float32: are_scales(sa, sw, sy)"),
    "one scale of the result: per_tensor(sy, zy)",
    "rounding the bias moves few elements: moves_few(c, sa, sw, sy)",
    "the sums fit into int32, and scaled into float32: sums_fit(a, za, w, zw, sa, sw, c)",
    worthwhile("rows of a matrix, or known extents: root.rank == 2 or root.type.is_static"),
)
equation(
    "add_bias_to_accumulator",
    quantized(f"{TO_FLOAT}(a, w, sa, sw, *za, *zw, c, **p)") + f" == {_AS_MATRIX}",
    *_REQUANTISED,
    "as many zero points as scales: zw is None or zw.type.size == sw.type.size",
    exactness=Exactness.LSB,
    quanta=1,
    sample=_with_bias,
)


def _layer(d: Sampler) -> dict[str, Any]:
    """The same, dequantised: at times by scales of the rows of either operand, or with a bias that is not one of the columns."""
    found = _with_bias(d)
    rows, (inner, columns) = found["a"].shape[-2], found["w"].array.shape[-2:]
    zeros = found.pop("zw", None)
    found["dw"] = {"axis": found["w"].array.ndim - 1}
    if d.chance(0.1) and found["w"].array.ndim == 2:
        size = min(inner, columns)
        found |= {"a": found["a"][..., :size], "w": fixed(found["w"].array[:size, :size]), "dw": {"axis": 0}}
        scales = d.positive((size,))
        found |= {"sw": fixed(scales), "c": fixed(np.rint(d.floats((size,)) * 1e3) * found["sa"].array * scales)}
    elif d.chance(0.1):
        found |= {"sa": fixed(d.powers_of_two((rows,))), "za": None, "da": {"axis": found["a"].ndim - 2}}
    elif d.chance(0.1):
        found["c"] = fixed(d.choose((found["c"].array[:1], found["c"].array[:1, None].repeat(rows, 0))))
    if zeros is not None:
        found["zw"] = fixed(np.full(found["sw"].array.shape, zeros.array.flat[0], zeros.array.dtype))
    return found


equation(
    "multiply_and_add_bias_to_accumulator",
    quantized(f"{dequantized('a')} @ {dequantized('w')} + c") + f" == {_AS_MATRIX}",
    UNSIGNED,
    varies("root"),
    *COLUMNS,
    "a bias for each column: lies_along(c, w)",
    *_REQUANTISED,
    *known_parameters("aw"),
    exactness=Exactness.LSB,
    quanta=1,
    sample=_layer,
    domain="com.microsoft::QGemm",
    outside="com.microsoft",
)


DYNAMIC = "DynamicQuantizeLinear(x, outputs=3)"
equation(
    "fuse_dynamic_quantisation_into_product",
    f"""{TO_FLOAT}({DYNAMIC}[0], w, {DYNAMIC}[1], sw, {DYNAMIC}[2], *zw, *c, **p)
        == com.microsoft.DynamicQuantizeMatMul(x, w, sw, zw, c)""",
    worthwhile("kernels for matrices: x.rank >= 2 and w.rank == 2"),
    # those of unsigned ones are slower, and no timings say so
    worthwhile("weights that are multiplied signed: w.dtype is int8 or not w.is_constant"),
    drawn="""x: float32[*ANY, A, K]; w: int8[K, N] | uint8[K, N]; sw: float32[()] | float32[N]; c: float32[N]
             zw = fixed(0, "int8") | fixed(3, "int8")""",
    domain=ON_THE_WAY,
)
