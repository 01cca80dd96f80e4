"""Factors of integers: folded into the scale by which they are dequantised, those of integer sums among them.

A product of two dequantised values may pass a factor from one scale to the other: where one of the two is dequantised by another
scale anyway, once is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Merge, Ref, Term, Unmet, apply, group_rule, literal, rule, variables
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised.pairs import BYTES, dequantize, like, per_tensor, positive, q, s, same_zero_point, unblocked
from eqsat.rules.terms import constant, mul
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.quantised import parameters, values

c = variables("c")[0]


def _scaled_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, dtype=d.choose(("int8", "uint8", "int32")))
    if drawn["dtype"] == "int32":
        drawn.pop("z", None)
    factor = d.choose((0.125, 3.0, 0.3, 1e-3, -2.0, 1e38))
    extent = d.choose(((), (), (1,), (1,) * (len(shape) + d.integer(0, 1)), d.broadcast_of(shape)))
    found = {
        "q": d.integers(shape, drawn["dtype"], -1000, 1000)
        if drawn["dtype"] == "int32"
        else d.integers(shape, drawn["dtype"])
    }
    return found | {**values(drawn), "dq": drawn["attributes"], "c": d.either(np.full(extent, factor, np.float32), 0.9)}


@rule(
    mul(dequantize(q), c),
    where=[constant("c")],
    exactness=Exactness.ROUNDING,
    source="(q - z) * s * c",
    sample=_scaled_sample,
)
def fold_factor_into_dequantize(m: Match) -> Term:
    """``DQ(q, s, z) * c == DQ(q, s * c, z)`` for one positive number ``c``."""
    m.require(m.root.shape == m.q.shape and m.c.value.size == 1, "several factors, or one that enlarges the value")
    m.require(m.root.dtype is DType.FLOAT and m.s.dtype is DType.FLOAT, "no float32")
    factor = float(m.c.value.reshape(()))
    info = np.finfo(np.float32)
    least, greatest = (bound * factor for bound in m.s.interval)
    m.require(least >= float(info.smallest_normal) and greatest < float(info.max) / 2**32, "scales out of range")
    m.require(unblocked(m.dq.attributes) and not m.q.is_constant, "blocks, or a known value")
    return like(m.dq, "DequantizeLinear", m.q, mul(m.s, literal(np.float32(factor))), m.z)


def _accumulated(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    axis = d.integer(0, len(shape) - 1)
    along = tuple(n if i == axis else 1 for i, n in enumerate(shape))[d.integer(0, axis) :]
    scale = d.scale(d.choose(((), (1,), along, along, d.broadcast_with(shape))))
    return {
        "q": d.integers(shape, d.choose(("int32", "int32", "int64"))),
        "s": d.either(scale, 0.9),
        "cast": {"to": int(DType.FLOAT)},
    }


@rule(
    mul(apply("Cast", q).named("cast"), s),
    where=[constant("s")],
    exactness=Exactness.EXACT,
    source="ONNX DequantizeLinear of int32 has no zero point",
    sample=_accumulated,
)
def dequantize_accumulator(m: Match) -> Term:
    """``Cast(q: int32) * s == DequantizeLinear(q, s)`` for one scale, or one for each slice of an axis."""
    m.require(m.q.dtype is DType.INT32 and m.s.dtype is DType.FLOAT and m.root.dtype is DType.FLOAT, "other types")
    m.require(m.root.shape == m.q.shape, "the scale enlarges the value")
    extents = m.s.static_shape
    axes = [i - len(extents) for i, n in enumerate(extents) if n != 1]
    m.require(len(axes) <= 1, "the scale varies over several axes")
    attributes = {"axis": axes[0] + m.q.rank} if axes else {}
    return apply("DequantizeLinear", m.q, reshaped(m.s, [extents[axis] for axis in axes]), **attributes)


_Node = tuple[Ref, tuple[Ref | None, ...]]
_SCALES = 4
"""By how many scales a value is dequantised at most, through this rule: without a limit it would not end."""


def _shared_sample(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.shape()
    integers = [drawing.value(d.integers(s, "int8")) for s in (shape, d.broadcast_with(shape))]

    def dequantised(i: int) -> str:
        zero = zeros[i] if d.chance(0.7) else drawing.value(fixed(d.integers((), "int8")))
        return drawing.op("DequantizeLinear", integers[i], drawing.value(fixed(d.positive(()))), zero)

    zeros = [drawing.value(fixed(d.integers((), "int8"))) for _ in integers]
    first, other, second = dequantised(0), dequantised(0), dequantised(1)
    return drawing.finish(drawing.op("Mul", first, second), drawing.op("Erf", other))


@group_rule(exactness=Exactness.ROUNDING, source="(q1 - z1) * s1 * (q2 - z2) * s2", sample=_shared_sample)
def pass_factor_between_dequantized_values(view: GroupView) -> Iterator[Merge]:
    """``DQ(q1, s1, z1) * DQ(q2, s2, z2) == DQ(q1, t, z1) * DQ(q2, s1 * s2 / t, z2)``.

    Where ``DQ(q1, t, z1)`` is computed anyway.
    """
    by_class: dict[int, list[_Node]] = {}
    by_integers: dict[int, dict[int, _Node]] = {}
    for node, inputs in view.nodes("DequantizeLinear"):
        try:
            if inputs[0] is not None and _is_plain(node, inputs):
                by_class.setdefault(node.handle, []).append((node, inputs))
                by_integers.setdefault(inputs[0].handle, {}).setdefault(node.handle, (node, inputs))
        except Unmet:
            continue
    for product, (left, right) in view.nodes("Mul"):
        assert left is not None
        assert right is not None
        for kept, given in by_class.get(left.handle, [])[:1]:
            assert given[0] is not None
            for compensated, operands in by_class.get(right.handle, [])[:1]:
                assert operands[0] is not None
                several = by_integers[operands[0].handle]
                for other in by_integers[given[0].handle].values():
                    alike = same_zero_point(*((*inputs, None)[2] for inputs in (given, other[1])))
                    if alike and other[0].handle != kept.handle and len(several) < _SCALES:
                        moved = _compensated(given, other[1], operands, several)
                        if moved is not None:
                            yield product, mul(other[0], like(compensated, "DequantizeLinear", *moved))


def _is_plain(node: Ref, inputs: tuple[Ref | None, ...]) -> bool:
    """Whether 8-bit integers that are not constant are dequantised by one constant positive float32 scale."""
    integers, scale, zero = (*inputs, None)[:3]
    if integers is None or scale is None or integers.is_constant or integers.dtype not in BYTES:
        return False
    known = scale.is_constant and (zero is None or zero.is_constant) and per_tensor(scale, zero)
    return known and positive(scale) and scale.dtype is DType.FLOAT and unblocked(node.attributes)


def _compensated(
    given: tuple[Ref | None, ...],
    other: tuple[Ref | None, ...],
    operands: tuple[Ref | None, ...],
    several: dict[int, _Node],
) -> tuple[Term, Term, Term | None] | None:
    """What is dequantised by ``s1 * s2 / t``; ``None`` where it already is, or that scale leaves the normal range."""
    assert given[1] is not None
    assert other[1] is not None
    assert operands[0] is not None
    assert operands[1] is not None
    scales = [float(s.value.reshape(())) for s in (given[1], operands[1], other[1])]
    found = scales[0] * scales[1] / scales[2]
    there = [float(inputs[1].value.reshape(())) for _, inputs in several.values() if inputs[1] is not None]
    limits = np.finfo(np.float32)
    if not limits.smallest_normal < found < limits.max / 2**16 or any(abs(s - found) <= 1e-6 * found for s in there):
        return None
    return operands[0], literal(np.float32(found)), operands[2] if len(operands) > 2 else None
