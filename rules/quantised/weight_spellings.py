"""Dequantised weights by any spelling: quotients, and factors in a row, become the one scale that products on integers read.

Of values that vary, quotients and rows of factors become one factor by algebra, and that a scale by `quantised.recognition`.
Algebra leaves constants alone: it would only compute the same in other ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, GroupView, Merge, Ref, Term, Unmet, apply, group_rule, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised.pairs import BYTES, integer_range, positive, unblocked
from eqsat.samples import Drawing, Instance, Sampler, fixed
from eqsat.samples.quantised import parameters

_SPELLINGS = 4
"""By how many scales a weight is dequantised at most, through this rule: a weight that is a multiple of its own multiple has
ever new ones."""

_NEAR = 1e-6
_LEAST = float(np.finfo(np.float32).smallest_normal)
_GREATEST = float(np.finfo(np.float32).max) / 2**16


@dataclass(frozen=True)
class _Weight:
    """``(integers - zero) * scale``; ``axis`` is that of a scale for each slice, ``None`` for one number.

    ``bounds``: least and greatest element of the scale.
    """

    integers: Ref
    scale: Term
    bounds: tuple[float, float]
    zero: Term | None = None
    axis: int | None = None


def _drawn(d: Sampler) -> Instance:
    drawing = Drawing()
    shape = d.extents(d.integer(1, 3))
    drawn = parameters(d, shape, dtype=d.choose(("int8", "int8", "uint8", "int16")))
    integers = d.integers(shape, drawn["dtype"])
    stored = drawing.value(fixed(integers) if d.chance(0.9) else integers)
    if d.chance(0.4):
        zero = [drawing.value(drawn["z"])] if "z" in drawn else []
        value = drawing.op("DequantizeLinear", stored, drawing.value(drawn["s"]), *zero, **drawn["attributes"])
    else:
        value = drawing.op("Cast", stored, to=int(DType.FLOAT))
        if d.chance(0.5):
            value = drawing.op("Add", value, drawing.value(fixed(np.float32(d.choose((0, 3, -128, 0.5, 1000))))))
    several: list[str] = []
    for _ in range(d.integer(1, 3)):
        form = d.broadcast_with(shape) if d.chance(0.3) else d.choose(((), (1,), *_along(d, shape)))
        factor = d.powers_of_two(form) if d.chance(0.3) else d.positive(form)
        factor = factor * np.float32(d.choose((-1.0, 0.0, 1e36, 1e-39)) if d.chance(0.1) else 1.0)
        operands = (value, drawing.value(fixed(factor) if d.chance(0.95) else factor))
        op = d.choose(("Mul", "Div"))
        value = drawing.op(op, *(operands[::-1] if op == "Mul" and d.chance() else operands))
        several.append(value)
    return drawing.finish(value, *d.subset(several[:-1], 0.3))


def _along(d: Sampler, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of one factor for each slice of an axis."""
    axis = d.integer(0, len(shape) - 1)
    return [tuple(n if i == axis else 1 for i, n in enumerate(shape))[first:] for first in {0, axis}]


@group_rule(exactness=Exactness.ROUNDING, source="(q - z) * s * c", sample=_drawn)
def fold_factors_into_dequantized_weights(view: GroupView) -> Iterator[Merge]:
    """``DQ(q, s, z) * c == DQ(q, s * c, z)`` and ``DQ(q, s, z) / c == DQ(q, s / c, z)`` for constants.

    ``Cast(q)`` is ``DQ(q, 1)``, and ``Cast(q) + k`` for a whole number ``k`` is ``DQ(q, 1, -k)``.
    """
    weights: dict[int, list[_Weight]] = {}
    several: dict[int, int] = {}
    for node, weight in _dequantized(view):
        weights.setdefault(node.handle, []).append(weight)
        several[weight.integers.handle] = several.get(weight.integers.handle, 0) + 1
    for node, weight in _lowered(view):
        weights.setdefault(node.handle, []).append(weight)
    for op, node, value, factor in _scaled_values(view):
        for weight in weights.get(value.handle, ()):
            handle = weight.integers.handle
            try:
                found = _scaled(node, weight, op, factor)
            except Unmet:
                continue
            there = any(_alike(found, other) for other in weights.get(node.handle, ()))
            if not there and several.get(handle, 0) < _SPELLINGS:
                several[handle] = several.get(handle, 0) + 1
                yield node, _term(found)


def _scaled_values(view: GroupView) -> Iterator[tuple[str, Ref, Ref, Ref]]:
    """Products and quotients: operator, result, and the operands, those of a product in either order."""
    for op in ("Mul", "Div"):
        for node, (a, b) in view.nodes(op):
            assert a is not None
            assert b is not None
            yield op, node, a, b
            if op == "Mul":
                yield op, node, b, a


def _dequantized(view: GroupView) -> Iterator[tuple[Ref, _Weight]]:
    """Constant 8-bit integers that are dequantised by constants."""
    for node, inputs in view.nodes("DequantizeLinear"):
        integers, scale, zero = (*inputs, None)[:3]
        assert integers is not None
        assert scale is not None
        try:
            known = integers.is_constant and (zero is None or zero.is_constant) and positive(scale)
            if not known or integers.dtype not in BYTES or node.dtype is not DType.FLOAT:
                continue
            if unblocked(node.attributes) and scale.dtype is DType.FLOAT:
                sliced = scale.type.size != 1
                axis = int(node.attr("axis", 1)) % integers.rank if sliced else None
                yield node, _Weight(integers, scale, scale.interval, zero, axis)
        except Unmet:
            continue


def _lowered(view: GroupView) -> Iterator[tuple[Ref, _Weight]]:
    """Constant 8-bit integers as floats, and sums of those with a whole number."""
    casts: dict[int, Ref] = {}
    for node, (integers,) in view.nodes("Cast"):
        assert integers is not None
        if integers.is_constant and integers.dtype in BYTES and node.dtype is DType.FLOAT:
            casts.setdefault(node.handle, integers)
            yield node, _Weight(integers, literal(1, DType.FLOAT), (1.0, 1.0))
    for node, (a, b) in view.nodes("Add"):
        assert a is not None
        assert b is not None
        for cast, shift in ((a, b), (b, a)):
            integers = casts.get(cast.handle)
            if integers is None or not shift.is_constant or shift.type.size != 1:
                continue
            zero = -float(shift.value.reshape(()))
            least, greatest = integer_range(integers.dtype)
            if zero == round(zero) and least <= zero <= greatest:
                yield node, _Weight(integers, literal(1, DType.FLOAT), (1.0, 1.0), literal(int(zero), integers.dtype))


def _scaled(node: Ref, weight: _Weight, op: str, factor: Ref) -> _Weight:
    """The weight times, or divided by, a constant. Raises `Unmet` unless the product has one scale, or one for each slice of
    an axis, all of ordinary size."""
    shape = weight.integers.static_shape
    if node.static_shape != shape or not factor.is_constant or factor.dtype is not DType.FLOAT:
        raise Unmet("a factor that varies, or enlarges the weight")
    extents = factor.static_shape
    axes = [i - len(extents) + len(shape) for i, n in enumerate(extents) if n != 1]
    axis = axes[0] if axes else weight.axis
    if len(axes) > 1 or axis != (axis if weight.axis is None else weight.axis):
        raise Unmet("the scale varies over several axes")
    low, high = factor.interval
    if not _LEAST <= low <= high < np.inf:
        raise Unmet("a factor is not positive and normal")
    least, greatest = weight.bounds
    bounds = (least * low, greatest * high) if op == "Mul" else (least / high, greatest / low)
    if not _LEAST <= bounds[0] <= bounds[1] <= _GREATEST:
        raise Unmet("a scale out of range")
    scale = apply(op, weight.scale, reshaped(factor, (shape[axes[0]],) if axes else ()))
    zero = weight.zero
    if zero is not None and axes and weight.axis is None:
        number = apply("Reshape", zero, literal([1], "int64"))
        zero = apply("Expand", number, literal([shape[axes[0]]], "int64"))
    return _Weight(weight.integers, scale, bounds, zero, axis)


def _alike(a: _Weight, b: _Weight) -> bool:
    """Whether two spellings of one weight have the same scales, up to rounding."""
    near = all(abs(p - q) <= _NEAR * p for p, q in zip(a.bounds, b.bounds, strict=True))
    return a.integers.handle == b.integers.handle and near


def _term(weight: _Weight) -> Apply:
    attributes: dict[str, Any] = {} if weight.axis is None else {"axis": weight.axis}
    args = (weight.integers, weight.scale) if weight.zero is None else (weight.integers, weight.scale, weight.zero)
    return apply("DequantizeLinear", *args, **attributes)
