"""Matrix products on 8-bit integers: QLinearMatMul, and MatMulInteger with a float result.

The left operand is unsigned (`eqsat.rules.quantised.recentring` sees to that), the right one of either sign. Weights stay 8-bit
integers at rest.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.equations import Equations, group_rule
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Merge, Ref, Term, apply, literal
from eqsat.rules.linear.alignment import reshaped, spread
from eqsat.rules.quantised import integer_bounds
from eqsat.rules.quantised.integer_bounds import (
    NO_VECTORS,
    ONE_LEFT_SCALE,
    OPERANDS,
    UNSIGNED_RESULT,
    columns,
    is_zero,
    requantised,
    shorthands,
    sums,
)
from eqsat.rules.quantised.scales import per_tensor
from eqsat.rules.terms import complete_nodes, div, split
from eqsat.samples import Drawing, Sampler, fixed

SOURCE = (
    "Jacob et al. 2017, Quantization and training of neural networks for efficient integer-arithmetic-only inference"
)


def left_zero(za: Ref | None, zw: Ref | None) -> Term | None:
    """The zero point of the left operand as one number, which is what kernels take; none where both are zero."""
    if is_zero(za) and is_zero(zw):
        return None
    return literal(0 if za is None else int(za.low), DType.UINT8)


def right_zero(zw: Ref | None) -> Ref | None:
    return None if is_zero(zw) else zw


def of_rows(s: Ref) -> Term:
    """One scale, or one for each row, beside a matrix."""
    return s if per_tensor(s) else reshaped(s, (*s.static_shape, 1))


equation = Equations(__name__, source=SOURCE, shorthands=shorthands, functions=integer_bounds.functions)
equation(
    "multiply_integers",
    """Y(A(a) @ W(w))
       == QLinearMatMul(a, sa, zero_point(za, a.dtype), w, sw, points(zw, w, sw), sy, zero_point(zy, root.dtype))""",
    UNSIGNED_RESULT,
    *OPERANDS,
    NO_VECTORS,
    columns(),
    ONE_LEFT_SCALE,
    *requantised("a.shape[-1]", -1),
    exactness=Exactness.LSB,
    quanta=1,
)
equation(
    "multiply_integers_to_float",
    "A(a) @ W(w) == Cast(MatMulInteger(a, w, left_zero(za, zw), right_zero(zw)), to=1) * (of_rows(sa) * sw)",
    *OPERANDS,
    NO_VECTORS,
    columns(),
    *sums("a.shape[-1]"),
    "the left scales are those of the rows: along(left, a, sa, None, -2)",
    "one zero point on the left: za is None or za.low == za.high",
    exactness=Exactness.ROUNDING,
    structure="product on integers",
)

# --- several products of one input


def _parallel_sample(d: Sampler) -> Any:
    drawing = Drawing()
    rows, inner, batch = d.extents(3)
    x = drawing.value(d.integers(d.choose(((rows, inner), (batch, rows, inner))), "uint8"))
    scale, zero = drawing.value(fixed(d.positive(()))), drawing.value(fixed(d.integers((), "uint8")))
    result_zero = drawing.value(fixed(d.integers((), "uint8")))
    values: list[str] = []
    for _ in range(d.integer(2, 4)):
        columns = d.integer(2, 5)
        extent = (columns,) if d.chance() else ()
        parts = [d.integers((inner, columns), "int8"), d.positive(extent), d.integers(extent, "int8", 0, 2)]
        names = [drawing.value(fixed(p)) for p in parts]
        result = drawing.value(fixed(d.positive(()) * np.float32(64)))
        last = result_zero if d.chance(0.9) else drawing.value(fixed(d.integers((), "uint8")))
        values.append(drawing.op("QLinearMatMul", x, scale, zero, *names, result, last))
    return drawing.finish(*values)


def _groups(view: GroupView) -> Iterator[dict[int, tuple[Ref, tuple[Ref, ...]]]]:
    """Products of one input by matrices that are constants, none of which is already made of several, and their operands."""
    groups: dict[tuple[Any, ...], dict[int, tuple[Ref, tuple[Ref, ...]]]] = {}
    for node, operands in complete_nodes(view, "QLinearMatMul"):
        x, scale, zero, weight, _, _, quantum, last = operands
        known = all(v.is_constant and v.type.is_static for v in operands[3:])
        if known and x.type.rank is not None and weight.rank == 2 and per_tensor(quantum, last):
            key = (x.handle, scale.handle, zero.handle, weight.dtype, last.dtype, last.interval)
            groups.setdefault(key, {}).setdefault(node.handle, (node, operands))
    for found in groups.values():
        joined = any(op == "Concat" for _, operands in found.values() for op, _ in view.spellings(operands[3]))
        if len(found) > 1 and not joined:
            yield found


@group_rule(exactness=Exactness.LSB, source="block matrices", sample=_parallel_sample)
def merge_integer_products_of_one_input(view: GroupView) -> Iterator[Merge]:
    """``(QLinearMatMul(a, w1, s1, y1), ...) == Split(QLinearMatMul(a, Concat(w1, ...), Concat(s1 / y1, ...), 1))``.

    Scales of the results become part of the scales of the columns; at most one quantum at rounding ties.
    """
    for found in _groups(view):
        nodes, products = zip(*found.values(), strict=True)
        x, scale, zero, *_, last = products[0]
        weights = [o[3] for o in products]
        sizes = [w.static_shape[1] for w in weights]
        scales = [div(spread(o[4], n), o[6]) for o, n in zip(products, sizes, strict=True)]
        zeros = [spread(o[5], n) for o, n in zip(products, sizes, strict=True)]
        right = (apply("Concat", *parts, axis=axis) for parts, axis in ((weights, 1), (scales, 0), (zeros, 0)))
        wide = apply("QLinearMatMul", x, scale, zero, *right, literal(1, DType.FLOAT), last)
        parts = split(wide, sizes, x.rank - 1)
        yield from ((node, parts.output(index)) for index, node in enumerate(nodes))
