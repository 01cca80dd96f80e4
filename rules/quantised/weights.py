"""Dequantised weights side by side are one dequantised weight with a scale per slice, so that merged products stay compact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.quantised.pairs import BYTES, unblocked
from eqsat.samples import Drawing, Sampler, fixed
from eqsat.samples.quantised import parameters

Part = tuple[Ref, Ref, Ref | None, bool]
"""Integers, scale, zero point, and whether there is one of each for every slice of the axis."""


def _joined_sample(d: Sampler) -> Any:
    drawing = Drawing()
    shape = d.extents(2)
    axis = d.integer(0, 1)
    parts = []
    for _ in range(d.integer(2, 4)):
        extents = (d.integer(1, 4), shape[1]) if axis == 0 else (shape[0], d.integer(1, 4))
        drawn = parameters(d, extents, dtype=d.choose(("int8", "int8", "uint8")))
        integers = drawing.value(fixed(d.integers(extents, drawn["dtype"]), drawn["dtype"]))
        inputs = [integers, drawing.value(fixed(drawn["scale"]))]
        if "z" in drawn:
            inputs.append(drawing.value(fixed(drawn["zero"])))
        parts.append(drawing.op("DequantizeLinear", *inputs, **drawn["attributes"]))
    return drawing.finish(drawing.op("Concat", *parts, axis=axis))


@group_rule(exactness=Exactness.EXACT, source="each element is dequantised by itself", sample=_joined_sample)
def join_dequantized_weights(view: GroupView) -> Iterator[Merge]:
    """``Concat(DQ(q1, s1, z1), DQ(q2, s2, z2), ...) == DQ(Concat(q1, q2, ...), s, z)`` for constants.

    ``s`` and ``z`` hold one element for each slice of the axis.

    The parts may have parameters of their own for the whole tensor, or for each slice of the axis that is joined.
    """
    found: dict[int, list[tuple[Ref, tuple[Ref | None, ...]]]] = {}
    for node, inputs in view.nodes("DequantizeLinear"):
        found.setdefault(node.handle, []).append((node, inputs))
    for concat, values in view.nodes("Concat"):
        try:
            axis = int(concat.attr("axis", 0)) % concat.rank
            parts = [_part(found.get(v.handle, []), axis) for v in values if v is not None]
            if len(parts) == len(values) > 1 and len({p[0].dtype for p in parts}) == 1:
                yield concat, _joined(parts, axis)
        except Unmet:
            continue


def _part(spellings: list[tuple[Ref, tuple[Ref | None, ...]]], axis: int) -> Part:
    """The first spelling that is a dequantised constant. Raises `Unmet` if there is none."""
    for node, inputs in spellings:
        integers, scale, zero = (*inputs, None)[:3]
        if integers is None or scale is None or not unblocked(node.attributes) or node.attr("output_dtype", 0):
            continue
        known = all(v.is_constant and v.type.is_static for v in (integers, scale, zero) if v is not None)
        if not known or integers.dtype not in BYTES or integers.rank == 0:
            continue
        whole = scale.type.size == 1 and (zero is None or zero.type.size == 1)
        along = scale.rank == 1 and int(node.attr("axis", 1)) % integers.rank == axis
        if whole or along:
            return integers, scale, zero, not whole
    raise Unmet("a part is no dequantised constant")


def _joined(parts: list[Part], axis: int) -> Term:
    scales: list[Term] = []
    zeros: list[Term] = []
    for integers, scale, zero, sliced in parts:
        extent = integers.static_shape[axis]
        scales.append(scale if sliced else _repeated(scale, extent))
        if zero is None:
            zeros.append(literal(np.zeros(extent, integers.dtype.numpy)))
        else:
            zeros.append(zero if sliced else _repeated(zero, extent))
    columns = [apply("Concat", *terms, axis=0) for terms in (scales, zeros)]
    return apply("DequantizeLinear", apply("Concat", *(p[0] for p in parts), axis=axis), *columns, axis=axis)


def _repeated(value: Ref, extent: int) -> Term:
    return apply("Expand", apply("Reshape", value, literal([1], "int64")), literal([extent], "int64"))
