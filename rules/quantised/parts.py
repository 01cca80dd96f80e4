"""Biases of the parts of a Split, between two quantisations, added to the whole at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.quantised.pairs import per_tensor, positive, same_zero_point, unblocked
from eqsat.rules.terms import add, div, int64s, mul
from eqsat.rules.views.splits import again, splits
from eqsat.samples import Drawing, Instance, Sampler, fixed

Step = tuple[Ref, tuple[Ref | None, ...]]
Biased = tuple[Step, Ref, Step]
"""A dequantisation, a bias, a quantisation."""

_LARGEST = 1e6
"""Quotients of scales and biases up to which a rounding of float32 stays below a quantum."""


def _biased(view: GroupView, part: Ref, columns: int) -> Iterator[Biased]:
    """How ``part`` is dequantised, gets a vector for its columns, and becomes unsigned bytes."""
    for op, dequantized, given in view.users(part):
        if op != "DequantizeLinear" or not _is_plain(dequantized, given) or given[0] is None:
            continue
        for op, total, operands in view.users(dequantized):
            bias = next((o for o in operands if o is not None and o.is_constant), None)
            if op != "Add" or bias is None or bias.static_shape != (columns,):
                continue
            if any(op == "DequantizeLinear" for op, _ in view.spellings(bias)):
                continue  # QLinearAdd is one kernel for each part
            for op, quantized, inputs in view.users(total):
                if op == "QuantizeLinear" and quantized.dtype is DType.UINT8 and _is_plain(quantized, inputs):
                    yield (dequantized, given), bias, (quantized, inputs)


def _is_plain(node: Ref, inputs: tuple[Ref | None, ...]) -> bool:
    _, scale, zero = (*inputs, None)[:3]
    if scale is None or scale.dtype is not DType.FLOAT or not positive(scale) or not per_tensor(scale, zero):
        return False
    return unblocked(node.attributes) and (zero is None or zero.is_constant)


def _zero(step: Step) -> Ref | None:
    return (*step[1], None)[2]


def _ratio(value: Ref, by: Ref) -> float:
    """The greatest ``|value| / by``."""
    return max(map(abs, value.interval)) / by.interval[0]


def _drawn(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, *columns = d.extents(4)
    value = drawing.value(d.integers((rows, sum(columns)), "uint8"))
    parts = drawing.op("Split", value, drawing.value(fixed(columns, "int64")), outputs=3, axis=1)
    zeros = [drawing.value(fixed(d.integers((), "uint8", 100, 150))) for _ in range(2)]
    results = []
    for part, n in zip(parts, columns, strict=True):
        scales = [drawing.value(fixed(d.positive(d.choose(((), (1,)))))) for _ in range(2)]
        bias = drawing.value(fixed(d.floats((n,) if d.chance(0.95) else (rows, n))))
        zero = zeros[1] if d.chance(0.95) else drawing.value(fixed(d.integers((), "uint8")))
        total = drawing.op("Add", drawing.op("DequantizeLinear", part, scales[0], zeros[0]), bias)
        results.append(drawing.op("QuantizeLinear", total, scales[1], zero))
    return drawing.finish(*results)


@group_rule(
    exactness=Exactness.LSB,
    source="((q - z) * s + b) / t == (q - z) * (s / t) + b / t",
    sample=_drawn,
    domain="com.microsoft",
)
def add_biases_before_split(view: GroupView) -> Iterator[Merge]:
    """``Q(DQ(Split(x)[i], s_i, z) + b_i, t_i, y) == Split(Q(DQ(x, 1, z) * Concat(s_i / t_i) + Concat(b_i / t_i), 1, y))[i]``.

    All parts have the same zero points; at most one quantum at rounding ties. Where each operator is a kernel of its own that
    is four instead of three for each part.
    """
    for (_, value, axis, sizes), parts in splits(view):
        if axis != value.rank - 1 or value.dtype is not DType.UINT8 or len(parts) < len(sizes):
            continue
        try:
            choices = [next(_biased(view, parts[i], n), None) for i, n in enumerate(sizes)]
            found = [c for c in choices if c is not None]
            if len(found) == len(sizes) and _is_alike(found):
                yield from _merged(value, sizes, found)
        except Unmet:
            continue


def _is_alike(found: list[Biased]) -> bool:
    first = found[0]
    points = all(same_zero_point(_zero(first[k]), _zero(f[k])) for f in found for k in (0, 2))  # type: ignore[arg-type]
    return points and all(max(_ratio(f[0][1][1], f[2][1][1]), _ratio(f[1], f[2][1][1])) < _LARGEST for f in found)  # type: ignore[arg-type]


def _merged(value: Ref, sizes: tuple[int, ...], found: list[Biased]) -> Iterator[Merge]:
    factors, biases = [], []
    for n, (dequantized, bias, quantized) in zip(sizes, found, strict=True):
        scale, result = dequantized[1][1], quantized[1][1]
        assert scale is not None
        assert result is not None
        ratio = apply("Reshape", div(scale, result), int64s((1,)))
        factors.append(apply("Expand", ratio, int64s((n,))))
        biases.append(div(bias, apply("Reshape", result, int64s(()))))
    one = literal(np.float32(1))
    (dequantized, _, quantized) = found[0]
    terms = mul(_linear("DequantizeLinear", value, one, _zero(dequantized)), apply("Concat", *factors, axis=0))
    total = add(terms, apply("Concat", *biases, axis=0))
    made = again(_linear("QuantizeLinear", total, one, _zero(quantized)), value.rank - 1, sizes)
    for index, (_, _, result) in enumerate(found):
        yield result[0], made.output(index)


def _linear(op: str, value: Term, scale: Term, zero: Ref | None) -> Apply:
    args: Any = (value, scale) if zero is None else (value, scale, apply("Reshape", zero, int64s(())))
    return apply(op, *args)
