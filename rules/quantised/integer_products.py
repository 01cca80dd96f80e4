"""Matrix products on 8-bit integers: QLinearMatMul, and MatMulInteger with a float result.

The left operand is unsigned (`eqsat.rules.quantised.recentring` sees to that), the right one of either sign. Weights stay 8-bit
integers at rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, literal, rule, variables
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.parallel.products import split_last
from eqsat.rules.quantised.integer_bounds import (
    check_columns,
    check_operands,
    check_requantisation,
    check_sums,
    is_zero,
    zero_point,
)
from eqsat.rules.quantised.pairs import per_tensor
from eqsat.rules.terms import div, mul
from eqsat.samples import Drawing, Sampler, fixed

SOURCE = (
    "Jacob et al. 2017, Quantization and training of neural networks for efficient integer-arithmetic-only inference"
)
FLOAT = int(DType.FLOAT)
a, w, sa, sw, sy, za, zw, zy = variables("a w sa sw sy za? zw? zy?")
left = apply("DequantizeLinear", a, sa, za).named("left")
right = apply("DequantizeLinear", w, sw, zw).named("right")


def _operands(d: Sampler, *, rows: bool = False) -> dict[str, Any]:
    """Operands with one scale each, or one for each column (at times for each row, or each index of another axis)."""
    inner, columns, *batch = d.extents(d.integer(3, 5))
    dtype = "uint8" if d.chance(0.9) else "int8"
    stacked = (batch[0],) if len(batch) == 2 and d.chance(0.4) else ()
    shape = (*stacked, inner, columns)
    kind = d.choose(("int8", "int8", "uint8"))
    axis = len(shape) - 1 if d.chance(0.8) else d.integer(0, len(shape) - 1)
    extent = (shape[axis],) if d.chance(0.6) else d.choose(((), (1,)))
    found: dict[str, Any] = {"a": d.integers((*batch, inner), dtype), "w": d.either(d.integers(shape, kind), 0.8)}
    found |= {"sa": fixed(d.positive(())), "left": {}, "sw": fixed(d.positive(extent)), "right": {"axis": axis}}
    if rows and d.chance(0.5):
        first = len(batch) - 1 if d.chance(0.8) else len(batch)
        extents = (*batch, inner)
        found |= {"sa": fixed(d.positive((extents[first],))), "left": {"axis": first}}
    if dtype == "int8" or d.chance(0.8):
        one = d.integers((), dtype)
        found["za"] = fixed(np.full(found["sa"].array.shape, one, dtype))
    if kind == "int8" or d.chance():
        found["zw"] = fixed(d.integers(extent, kind, 0, d.choose((0, 3))))
    if d.chance(0.1):
        found["sw"] = fixed(found["sw"].array * np.float32(-1))
    return found


def _requantised(d: Sampler) -> dict[str, Any]:
    found = _operands(d, rows=d.chance(0.1))
    dtype = "uint8" if d.chance(0.9) else "int8"
    found |= {"sy": fixed(d.positive(()) * np.float32(d.choose((8.0, 64.0)))), "quantized": {}}
    return found | {"zy": fixed(d.integers((), dtype))}


@rule(
    apply("QuantizeLinear", apply("MatMul", left, right), sy, zy).named("quantized"),
    exactness=Exactness.LSB,
    quanta=1,
    source=SOURCE,
    sample=_requantised,
)
def multiply_integers(m: Match) -> Term:
    """``Q(DQ(a, sa, za) @ DQ(w, sw, zw), sy, zy) == QLinearMatMul(a, sa, za, w, sw, zw, sy, zy)`` for unsigned ``a``.

    ``sw`` is one scale or one for each column, the others are single; no sum overflows int32.
    """
    check_operands(m, m.left, m.right)
    check_columns(m)
    m.require(m.root.dtype is DType.UINT8 and per_tensor(m.sa, m.za), "a signed result, or several scales on the left")
    total = check_sums(m, m.a.shape[-1])
    check_requantisation(m, m.a.static_shape[-1] if isinstance(m.a.shape[-1], int) else 0, total)
    points = [zero_point(z, v.dtype) for z, v in ((m.za, m.a), (m.zw, m.w), (m.zy, m.root))]
    if m.zw is None and not per_tensor(m.sw):
        points[1] = literal(np.zeros(m.sw.static_shape, m.w.dtype.numpy))
    return apply("QLinearMatMul", m.a, m.sa, points[0], m.w, m.sw, points[1], m.sy, points[2])


@rule(
    apply("MatMul", left, right),
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=lambda d: _operands(d, rows=True),
)
def multiply_integers_to_float(m: Match) -> Term:
    """``DQ(a, sa, za) @ DQ(w, sw, zw) == Cast(MatMulInteger(a, w, za, zw)) * (sa * sw)`` for unsigned ``a``.

    ``sa`` is one scale or one for each row, ``sw`` one or one for each column; no sum overflows int32.
    """
    check_operands(m, m.left, m.right)
    check_columns(m)
    check_sums(m, m.a.shape[-1])
    row_scale: Term = m.sa
    if not per_tensor(m.sa):
        m.require(m.left.attr("axis", 1) % m.a.rank == m.a.rank - 2, "the scales on the left are not those of the rows")
        row_scale = reshaped(m.sa, (*m.sa.static_shape, 1))
    point = _single(m, m.za)
    zero = None if is_zero(m.zw) else m.zw
    product = apply("MatMulInteger", m.a, m.w, None if zero is None and is_zero(m.za) else point, zero)  # type: ignore[arg-type]
    return mul(apply("Cast", product, to=FLOAT), mul(row_scale, m.sw))


def _single(m: Match, zero: Ref | None) -> Term:
    """The zero point of the left operand as one number, which is what kernels take."""
    if zero is None:
        return literal(0, DType.UINT8)
    least, greatest = zero.interval
    m.require(least == greatest, "several zero points on the left")
    return literal(int(least), DType.UINT8)


# --- several products of one input ---------------------------------------------------------------------------------------

Product = tuple[Ref, tuple[Ref, ...]]


def _parallel_sample(d: Sampler) -> Any:
    drawing = Drawing()
    rows, inner, batch = d.extents(3)
    x = drawing.value(d.integers(d.choose(((rows, inner), (batch, rows, inner))), "uint8"))
    scale, zero = drawing.value(fixed(d.positive(()))), drawing.value(fixed(d.integers((), "uint8")))
    result_zero = drawing.value(fixed(d.integers((), "uint8")))
    values = []
    for _ in range(d.integer(2, 4)):
        columns = d.integer(2, 5)
        extent = (columns,) if d.chance() else ()
        parts = [d.integers((inner, columns), "int8"), d.positive(extent), d.integers(extent, "int8", 0, 2)]
        names = [drawing.value(fixed(p)) for p in parts]
        result = drawing.value(fixed(d.positive(()) * np.float32(64)))
        last = result_zero if d.chance(0.9) else drawing.value(fixed(d.integers((), "uint8")))
        values.append(drawing.op("QLinearMatMul", x, scale, zero, *names, result, last))
    return drawing.finish(*values)


@group_rule(exactness=Exactness.LSB, source="block matrices", sample=_parallel_sample)
def merge_integer_products_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(QLinearMatMul(a, w1, s1, y1), ...) == Split(QLinearMatMul(a, Concat(w1, ...), Concat(s1 / y1, ...), 1))``.

    Scales of the results become part of the scales of the columns; at most one quantum at rounding ties.
    """
    groups: dict[tuple[Any, ...], dict[int, Product]] = {}
    for node, inputs in view.nodes("QLinearMatMul"):
        try:
            operands = tuple(i for i in inputs if i is not None)
            if len(operands) == 8 and _is_part(operands):
                x, scale, zero, weight, _, _, _, last = operands
                key = (x.handle, scale.handle, zero.handle, weight.dtype, last.dtype, int(last.value.reshape(())))
                groups.setdefault(key, {}).setdefault(node.handle, (node, operands))
        except Unmet:
            continue
    for found in groups.values():
        parts = list(found.values())
        wide = [p for p in parts if _is_wide(view, p[1][3])]
        narrow = [p for p in parts if p not in wide]
        if len(narrow) > 1 and not wide:
            yield from _merged(narrow)


def _is_part(operands: tuple[Ref, ...]) -> bool:
    weight, scale, zero = operands[3:6]
    matrix = weight.rank == 2 and weight.is_constant and weight.type.is_static
    return matrix and scale.is_constant and zero.is_constant and per_tensor(operands[6], operands[7])


def _is_wide(view: GroupView, weight: Ref) -> bool:
    """Whether the weight is already made of several."""
    return any(op == "Concat" for op, _ in view.spellings(weight))


def _merged(parts: list[Product]) -> Iterator[Merge]:
    x, scale, zero = parts[0][1][:3]
    weights = [operands[3] for _, operands in parts]
    sizes = [w.static_shape[1] for w in weights]
    scales = [_spread(div(o[4], o[6]), n) for (_, o), n in zip(parts, sizes, strict=True)]
    zeros = [_spread(o[5], n) for (_, o), n in zip(parts, sizes, strict=True)]
    product = apply(
        "QLinearMatMul",
        x,
        scale,
        zero,
        apply("Concat", *weights, axis=1),
        apply("Concat", *scales, axis=0),
        apply("Concat", *zeros, axis=0),
        literal(1, DType.FLOAT),
        parts[0][1][7],
    )
    split = split_last(product, x.rank, sizes)
    for index, (node, _) in enumerate(parts):
        yield node, split.output(index)


def _spread(value: Term, columns: int) -> Term:
    """A number, or one for each column, as a vector."""
    return apply("Expand", apply("Reshape", value, literal([-1], "int64")), literal([columns], "int64"))
