"""Dequantised weights by any spelling: quotients, and factors in a row, become the one scale that products on integers read.

Of values that vary, quotients and rows of factors become one factor by algebra, and that a scale by `quantised.recognition`.
Algebra leaves constants alone: it would only compute the same in other ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import form
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Condition, GroupView, Match, Ref, Term, apply, group_rule, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised.pairs import BYTES, integer_range, positive, shorthands, steps, unblocked
from eqsat.rules.quantised.recognition import varying, whole
from eqsat.rules.terms import int64s, reshape

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

    def times(self, op: str, low: float, high: float) -> tuple[float, float]:
        """The bounds of the scale times, or divided by, a factor between positive numbers."""
        least, greatest = self.bounds
        return (least * low, greatest * high) if op == "Mul" else (least / high, greatest / low)

    def is_like(self, other: _Weight, bounds: tuple[float, float]) -> bool:
        """Whether another spelling has a scale with these bounds, up to rounding."""
        near = all(abs(p - q) <= _NEAR * p for p, q in zip(bounds, other.bounds, strict=True))
        return near and self.integers.handle == other.integers.handle


_KNOWN = (constant("q", "c", "e", "k"), kernels("q", *BYTES), *(kernels(name, DType.FLOAT) for name in ("c", "e", "k")))
_FORMS = (
    *("D(q) * c", "D(q) / c", "D(q) * c / e", "Cast(q, to=1) * c / e"),
    *("(Cast(q, to=1) + k) * c", "(Cast(q, to=1) + k) / c * e"),
)


def _weights(view: GroupView) -> dict[int, list[_Weight]]:
    """Values that are constant bytes by constants: dequantised ones, floats with the same numbers, and those plus a number."""
    found: dict[int, list[_Weight]] = {}
    for node, integers, scale, zero in steps(view, "DequantizeLinear"):
        known = integers.is_constant and (zero is None or zero.is_constant) and positive(scale)
        of_types = integers.dtype in BYTES and node.dtype is scale.dtype is DType.FLOAT
        if known and of_types and unblocked(node.attributes):
            axis = int(node.attr("axis", 1)) % integers.rank if scale.type.size != 1 else None
            found.setdefault(node.handle, []).append(_Weight(integers, scale, scale.interval, zero, axis))
    casts: dict[int, _Weight] = {}
    for node, (integers,) in view.nodes("Cast"):
        if integers is not None and integers.is_constant and integers.dtype in BYTES and node.dtype is DType.FLOAT:
            casts.setdefault(node.handle, _Weight(integers, literal(1, DType.FLOAT), (1.0, 1.0)))
            found.setdefault(node.handle, []).append(casts[node.handle])
    for node, cast, shift in _of_two(view, "Add"):
        weight = casts.get(cast.handle)
        if weight is not None and shift.is_constant and shift.type.size == 1 and whole(shift):
            dtype, zero = weight.integers.dtype, -int(shift.interval[0])
            least, greatest = integer_range(dtype)
            if least <= zero <= greatest:
                found.setdefault(node.handle, []).append(replace(weight, zero=literal(zero, dtype)))
    return found


def _of_two(view: GroupView, op: str) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Results and operands, those of a sum or product in either order."""
    for node, (a, b) in view.nodes(op):
        if a is not None and b is not None:
            yield node, a, b
            if op != "Div":
                yield node, b, a


def _scaled(view: GroupView) -> Iterator[Match]:
    weights = _weights(view)
    several = Counter(w.integers.handle for found in weights.values() for w in found if isinstance(w.scale, Ref))
    for op in ("Mul", "Div"):
        for node, value, factor in _of_two(view, op):
            for weight in weights.get(value.handle, ()):
                there = weights.get(node.handle, ())
                yield Match({"weight": weight, "op": op, "c": factor, "there": there, "several": several}, node)


def _axis(m: Match) -> int | None:
    """The axis along which the factor varies."""
    axes = varying(m.c)
    return axes[0] + m.weight.integers.rank if axes else None


def _along_one_axis(m: Match) -> bool:
    both = {axis for axis in (_axis(m), m.weight.axis) if axis is not None}
    return len(varying(m.c)) <= 1 and len(both) <= 1


def _bounds(m: Match) -> tuple[float, float]:
    return m.weight.times(m.op, *m.c.interval)


@group_rule(
    find=_scaled,
    where=[
        worthwhile(Condition("a constant factor", lambda m: m.c.is_constant)),
        Condition("it enlarges nothing", lambda m: m.root.static_shape == m.weight.integers.static_shape),
        Condition("the scale varies over one axis at most", _along_one_axis),
        Condition("the factor is positive and normal", lambda m: _LEAST <= m.c.low <= m.c.high < np.inf),
        Condition("a scale of ordinary size", lambda m: _LEAST <= _bounds(m)[0] <= _bounds(m)[1] <= _GREATEST),
        worthwhile(Condition("few scales", lambda m: m.several[m.weight.integers.handle] < _SPELLINGS)),
        worthwhile(Condition("another scale", lambda m: not any(m.weight.is_like(w, _bounds(m)) for w in m.there))),
    ],
    exactness=Exactness.ROUNDING,
    source="(q - z) * s * c",
    forms=[form(text, *_KNOWN, shorthands=shorthands) for text in _FORMS],
)
def fold_factors_into_dequantized_weights(m: Match) -> Term:
    """``D(q, s, z) * c == D(q, s * c, z)`` and ``D(q, s, z) / c == D(q, s / c, z)`` for constants.

    ``Cast(q)`` is ``D(q, 1)``, and ``Cast(q) + k`` for a whole number ``k`` is ``D(q, 1, -k)``.
    """
    weight, axis = m.weight, _axis(m)
    m.several[weight.integers.handle] += 1
    extent = () if axis is None else (weight.integers.static_shape[axis],)
    scale, zero = apply(m.op, weight.scale, reshaped(m.c, extent)), weight.zero
    if zero is not None and extent and weight.axis is None:
        zero = apply("Expand", reshape(zero, (1,)), int64s(extent))
    along = weight.axis if axis is None else axis
    return apply("DequantizeLinear", weight.integers, scale, zero, **{} if along is None else {"axis": along})
