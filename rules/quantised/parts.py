"""Biases of the parts of a Split, between two quantisations, added to the whole at once."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Condition, GroupView, Match, Ref, Term, apply, group_rule, literal
from eqsat.rules.cuts import cuts_of_bytes
from eqsat.rules.quantised.pairs import Step, same_zero_point, steps
from eqsat.rules.terms import add, div, int64s, mul, split, spread_out
from eqsat.samples import Drawing, Instance, Sampler, fixed

_LARGEST = 1e6
"""Quotients of scales and biases up to which a rounding of float32 stays below a quantum."""


class _Biased(NamedTuple):
    """How a part is dequantised, gets a vector for its columns, and becomes unsigned bytes."""

    dequantized: Step
    bias: Ref
    quantized: Step

    @property
    def ratios(self) -> tuple[float, float]:
        """The greatest scale and bias, in quanta of the result."""
        (_, _, scale, _), bias, (_, _, quantum, _) = self
        least = quantum.interval[0]
        return scale.interval[1] / least, max(map(abs, bias.interval)) / least


def _biased(view: GroupView, part: Ref, columns: int, plain: dict[int, list[Step]]) -> Iterator[_Biased]:
    for dequantized in plain.get(part.handle, ()):
        for op, total, operands in view.users(dequantized.node):
            bias = next((o for o in operands if o is not None and o.is_constant), None)
            if op != "Add" or bias is None or bias.type.shape != (columns,):
                continue
            if any(op == "DequantizeLinear" for op, _ in view.spellings(bias)):
                continue  # QLinearAdd is one kernel for each part
            for quantized in plain.get(total.handle, ()):
                if quantized.node.dtype is DType.UINT8:
                    yield _Biased(dequantized, bias, quantized)


def _drawn(d: Sampler) -> Instance:
    drawing = Drawing()
    rows, *columns = d.extents(4)
    value = drawing.value(d.integers((rows, sum(columns)), "uint8"))
    parts = drawing.op("Split", value, drawing.value(fixed(columns, "int64")), outputs=3, axis=1)
    zeros = [drawing.value(fixed(d.integers((), "uint8", 100, 150))) for _ in range(2)]
    results: list[str] = []
    for part, n in zip(parts, columns, strict=True):
        scales = [drawing.value(fixed(d.positive(d.choose(((), (1,)))))) for _ in range(2)]
        bias = drawing.value(fixed(d.floats((n,) if d.chance(0.95) else (rows, n))))
        zero = zeros[1] if d.chance(0.95) else drawing.value(fixed(d.integers((), "uint8")))
        total = drawing.op("Add", drawing.op("DequantizeLinear", part, scales[0], zeros[0]), bias)
        results.append(drawing.op("QuantizeLinear", total, scales[1], zero))
    return drawing.finish(*results)


def _splits(view: GroupView) -> Iterator[Match]:
    """The parts of each Split along the last axis all of whose parts are biased between quantisations by one scale."""
    plain: dict[int, list[Step]] = {}
    for op in ("DequantizeLinear", "QuantizeLinear"):
        for step in steps(view, op):
            if step.is_plain:
                plain.setdefault(step.value.handle, []).append(step)
    for value, sizes, parts, axis in cuts_of_bytes(view):
        if axis != value.rank - 1:
            continue
        choices = [next(_biased(view, p, n, plain), None) for p, n in zip(parts, sizes, strict=True)]
        found = [c for c in choices if c is not None]
        if len(found) == len(sizes):
            for index, part in enumerate(found):
                yield Match({"value": value, "sizes": sizes, "parts": found, "index": index}, part.quantized.node)


def _one_zero_point(m: Match) -> bool:
    before, _, behind = m.parts[0]
    return all(same_zero_point(before.z, p[0].z) and same_zero_point(behind.z, p[2].z) for p in m.parts)


@group_rule(
    find=_splits,
    where=[
        Condition("the same zero points", _one_zero_point),
        Condition("ordinary quotients", lambda m: all(max(p.ratios) < _LARGEST for p in m.parts)),
    ],
    exactness=Exactness.LSB,
    source="((q - z) * s + b) / t == (q - z) * (s / t) + b / t",
    sample=_drawn,
    domain="com.microsoft",
)
def add_biases_before_split(m: Match) -> Term:
    """``Q(D(Split(x)[i], s_i, z) + b_i, t_i, y) == Split(Q(D(x, 1, z) * Concat(s_i / t_i) + Concat(b_i / t_i), 1, y))[i]``.

    All parts have the same zero points; at most one quantum at rounding ties. Where each operator is a kernel of its own that
    is four instead of three for each part.
    """
    factors = [spread_out(div(p.dequantized.s, p.quantized.s), n) for p, n in zip(m.parts, m.sizes, strict=True)]
    biases = [div(p.bias, apply("Reshape", p.quantized.s, int64s(()))) for p in m.parts]
    before, _, behind = m.parts[0]
    terms = mul(_by_one("DequantizeLinear", m.value, before.z), apply("Concat", *factors, axis=0))
    total = add(terms, apply("Concat", *biases, axis=0))
    return split(_by_one("QuantizeLinear", total, behind.z), m.sizes, m.value.rank - 1).output(m.index)


def _by_one(op: str, value: Term, zero: Ref | None) -> Apply:
    """``op`` by the scale 1."""
    return apply(op, value, literal(np.float32(1)), None if zero is None else apply("Reshape", zero, int64s(())))
