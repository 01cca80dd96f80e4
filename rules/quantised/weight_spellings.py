"""Dequantised weights by any spelling: quotients, and factors in a row, become the one scale that products on integers read.

Of values that vary, quotients and rows of factors become one factor by algebra, and that a scale by `quantised.recognition`.
Algebra leaves constants alone: it would only compute the same in other ways.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from eqsat.conditions import constant, kernels, worthwhile
from eqsat.equations import form, group_rule, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import GroupView, Match, Ref, Term, apply, literal
from eqsat.rules.linear.alignment import reshaped
from eqsat.rules.quantised.recognition import varying, whole, within
from eqsat.rules.quantised.scales import BYTES, ordinary, positive, shorthands, steps, unblocked
from eqsat.rules.terms import by_class, complete_nodes, int64s, reshape

_SPELLINGS = 4
"""By how many scales a weight is dequantised at most, through this rule: a weight that is a multiple of its own multiple has
ever new ones."""


@dataclass(frozen=True)
class _Weight:
    """``(integers - zero) * scale``; ``axis`` is that of a scale for each slice, ``None`` for one number."""

    integers: Ref
    scale: Term
    zero: Term | None = None
    axis: int | None = None

    def scaled(self, op: str, low: float, high: float) -> tuple[float, float]:
        """The bounds of the scale times, or divided by, a factor between positive numbers."""
        least, greatest = self.scale.interval if isinstance(self.scale, Ref) else (1.0, 1.0)
        return (least * low, greatest * high) if op == "Mul" else (least / high, greatest / low)


_KNOWN = (constant("q", "c", "e", "k"), kernels("q", *BYTES), *(kernels(name, DType.FLOAT) for name in ("c", "e", "k")))
_FORMS = (
    *("D(q) * c", "D(q) / c", "D(q) * c / e", "Cast(q, to=1) * c / e"),
    *("(Cast(q, to=1) + k) * c", "(Cast(q, to=1) + k) / c * e"),
)


def _weights(view: GroupView) -> dict[int, list[_Weight]]:
    """Values that are constant bytes by constants: dequantised ones, floats with the same numbers, and those plus a number."""
    found: list[tuple[Ref, _Weight]] = []
    for node, integers, scale, zero in steps(view, "DequantizeLinear"):
        known = integers.is_constant and (zero is None or zero.is_constant) and positive(scale)
        of_types = integers.dtype in BYTES and node.dtype is scale.dtype is DType.FLOAT
        if known and of_types and unblocked(node.attributes):
            axis = int(node.attr("axis", 1)) % integers.rank if scale.type.size != 1 else None
            found.append((node, _Weight(integers, scale, zero, axis)))
    casts: dict[int, _Weight] = {}
    for node, (integers,) in complete_nodes(view, "Cast"):
        if integers.is_constant and integers.dtype in BYTES and node.dtype is DType.FLOAT:
            casts.setdefault(node.handle, _Weight(integers, literal(1, DType.FLOAT)))
            found.append((node, casts[node.handle]))
    for node, cast, shift in _of_two(view, "Add"):
        weight = casts.get(cast.handle)
        if weight is not None and shift.is_constant and shift.type.size == 1 and whole(shift):
            dtype, zero = weight.integers.dtype, -int(shift.low)
            if within(dtype, zero):
                found.append((node, replace(weight, zero=literal(zero, dtype))))
    return by_class(found)


def _of_two(view: GroupView, op: str) -> Iterator[tuple[Ref, Ref, Ref]]:
    """Results and operands, those of a sum or product in either order."""
    for node, (a, b) in complete_nodes(view, op):
        yield node, a, b
        if op != "Div":
            yield node, b, a


def _scaled(view: GroupView) -> Iterator[Match]:
    weights = _weights(view)
    several = Counter(w.integers.handle for found in weights.values() for w in found if isinstance(w.scale, Ref))
    for op in ("Mul", "Div"):
        for node, value, factor in _of_two(view, op):
            dequantised = {weight.integers.handle for weight in weights.get(node.handle, ())}
            for weight in weights.get(value.handle, ()):
                if weight.integers.handle not in dequantised:  # another scale would differ by its rounding alone
                    yield Match({"weight": weight, "op": op, "c": factor, "several": several}, node)


def axis_of(c: Ref, weight: _Weight) -> int | None:
    """The axis of the weight along which a factor varies."""
    axes = varying(c)
    return axes[0] + weight.integers.rank if axes else None


def along_one_axis(c: Ref, weight: _Weight) -> bool:
    both = {axis for axis in (axis_of(c, weight), weight.axis) if axis is not None}
    return len(varying(c)) <= 1 and len(both) <= 1


@group_rule(
    find=_scaled,
    where=[
        worthwhile("a constant factor: c.is_constant"),
        "it enlarges nothing: root.static_shape == weight.integers.static_shape",
        "the scale varies over one axis at most: along_one_axis(c, weight)",
        "the factor is positive and normal: ordinary(*c.interval, most=1)",
        "a scale of ordinary size: ordinary(*weight.scaled(op, *c.interval))",
        worthwhile(f"few scales: several[weight.integers.handle] < {_SPELLINGS}"),
    ],
    exactness=Exactness.ROUNDING,
    source="(q - z) * s * c",
    functions=named(ordinary),
    forms=[form(text, *_KNOWN, shorthands=shorthands) for text in _FORMS],
)
def fold_factors_into_dequantized_weights(m: Match) -> Term:
    """``D(q, s, z) * c == D(q, s * c, z)`` and ``D(q, s, z) / c == D(q, s / c, z)`` for constants.

    ``Cast(q)`` is ``D(q, 1)``, and ``Cast(q) + k`` for a whole number ``k`` is ``D(q, 1, -k)``.
    """
    weight, axis = m.weight, axis_of(m.c, m.weight)
    m.several[weight.integers.handle] += 1
    extent = () if axis is None else (weight.integers.static_shape[axis],)
    scale, zero = apply(m.op, weight.scale, reshaped(m.c, extent)), weight.zero
    if zero is not None and extent and weight.axis is None:
        zero = apply("Expand", reshape(zero, (1,)), int64s(extent))
    along = weight.axis if axis is None else axis
    return apply("DequantizeLinear", weight.integers, scale, zero, **{} if along is None else {"axis": along})
