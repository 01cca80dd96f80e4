"""Scales and zero points: what the rules of this room are written with.

``Q`` is QuantizeLinear, ``D`` DequantizeLinear, by a scale ``s`` and a zero point ``z`` that may be absent.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from eqsat.conditions import asks, condition, worthwhile
from eqsat.equations import named
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Apply, Condition, GroupView, Hint, Ref, Term, literal, present
from eqsat.rules.linear.alignment import largest, limit
from eqsat.rules.terms import by_class, reshape

BYTES = frozenset((DType.INT8, DType.UINT8))
"""Integer types on which kernels for movement, Clip and MaxPool exist."""

_CARRIED_BITS = {DType.FLOAT: 16, DType.DOUBLE: 16, DType.FLOAT16: 8}


def like(node: Ref, op: str, value: Term, scale: Term, zero: Term | None, **changes: Any) -> Apply:
    """``op`` with the attributes of ``node`` on another value; beside a single scale an axis says nothing, and is left out."""
    if isinstance(scale, Ref) and scale.shape in ((), (1,)) and unblocked(node.attributes):
        changes["axis"] = None
    return Apply(op, present(value, scale, zero), node.attributes.updated(**changes) if changes else node.attributes)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Least and greatest element of an integer type."""
    info = ml_dtypes.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def width(dtype: DType) -> int:
    """How far the ends of an integer type are apart."""
    least, greatest = integer_range(dtype)
    return greatest - least


def same_value(a: Ref, b: Ref) -> bool:
    """Whether two constants hold the same numbers; one number may be a scalar or a vector of one."""
    if a.handle == b.handle:
        return True
    if not (a.is_constant and b.is_constant) or a.dtype is not b.dtype:
        return False
    u, v = a.value, b.value
    return bool(np.array_equal(u, v)) or (u.size == v.size == 1 and bool(u.reshape(()) == v.reshape(())))


def same_integers(s: Ref, s2: Ref, integers: int, shift: float | None = None) -> bool:
    """Whether that many multiples of ``s``, moved by at most ``shift``, lie nearest the same multiples of ``s2``.

    By 0.4 quanta in float32: of a 16-bit integer the roundings on the way make less than the rest.
    """
    if shift is None and same_value(s, s2):
        return True
    if not (s.is_constant and s2.is_constant) or not s.dtype is s2.dtype is DType.FLOAT or not positive(s2):
        return False
    u, v = s.value.reshape(-1), s2.value.reshape(-1)
    return u.size == v.size and bool((integers * np.abs(u - v) + (shift or 0.0) <= 0.4 * v).all())


def same_zero_point(a: Ref | None, b: Ref | None) -> bool:
    """Whether two zero points are the same numbers; an absent one is zero."""
    if a is not None and b is not None:
        return same_value(a, b)
    given = a if a is not None else b
    return given is None or (given.is_constant and not given.value.any())


@asks(values={"single": True})
def per_tensor(*values: Ref | None) -> bool:
    """Whether each scale or zero point is a single number."""
    return all(v is None or math.prod(v.static_shape) == 1 for v in values)


def column(value: Ref | None) -> Term | None:
    """A scale or zero point of rank 0, or a vector of several; an absent one stays so."""
    return value if value is None or value.rank == 0 or value.type.size != 1 else reshape(value, ())


def unblocked(*attributes: Mapping[str, Any]) -> bool:
    """Whether no node scales in blocks, divides in another precision than its input's, or states which floats it makes."""
    return not any(a.get("block_size", 0) or a.get("precision", 0) or _states_floats(a) for a in attributes)


def _states_floats(attributes: Mapping[str, Any]) -> bool:
    """Whether ``output_dtype`` says other floats than the scale; of QuantizeLinear it says which integers."""
    return DType(attributes.get("output_dtype", 0)).is_float


def quotient_type(attributes: Mapping[str, Any], scale: Ref) -> DType:
    """The type in which QuantizeLinear divides."""
    return DType(attributes.get("precision", 0) or scale.dtype)


def one_precision(attributes: Mapping[str, Any], *operands: Ref) -> bool:
    """Whether QuantizeLinear divides in one type, whichever of the operands is the scale, into which each converts exactly."""
    found = quotient_type(attributes, operands[0])
    widens = found is DType.FLOAT and attributes.get("precision", 0)
    exact = all(v.dtype is found or (widens and v.dtype in HALVES) for v in operands)
    return exact and not attributes.get("block_size", 0)


def positive(scale: Ref) -> bool:
    """Whether a constant scale is a positive normal number everywhere."""
    if scale.dtype not in _CARRIED_BITS:
        return False
    least, greatest = scale.interval
    info = np.finfo(scale.dtype.numpy)
    return scale.is_constant and least >= float(info.smallest_normal) and greatest <= float(info.max)


def ordinary(low: float, high: float, most: float = 2.0**32) -> bool:
    """Whether scales in float32 are positive and normal, and integers up to ``most`` times them finite."""
    limits = np.finfo(np.float32)
    return float(limits.smallest_normal) <= low <= high < float(limits.max) / most


def holds_integers(carrier: DType, dtype: DType) -> bool:
    """Whether the results of `D` tell the integers of a type apart: the 8 bits of bfloat16 merge neighbours."""
    return dtype.is_integer and dtype.bits <= _CARRIED_BITS.get(carrier, 0)


def zero_of(z: Ref | None, dtype: DType) -> int:
    """The zero point of integers of a type as a number. Raises `Unmet` if it is not known at compile time."""
    return 0 if z is None else int(z.value.astype(dtype.numpy).reshape(()))


def zero_number(value: Ref | None, dtype: DType) -> Term:
    """A zero point as one number that is stated. Raises `Unmet` if it is not known at compile time."""
    return literal(zero_of(value, dtype), dtype)


def reach(dtype: DType, s: Ref, z: Ref | None) -> tuple[float, float]:
    """What the ends of an integer type stand for."""
    low, high = ((end - zero_of(z, dtype)) * float(s.value.reshape(())) for end in integer_range(dtype))
    return low, high


def same_axis(node: Ref, other: Ref) -> bool:
    """Whether two nodes with a scale for each slice scale along the same axis."""
    return node.attr("axis", 1) % node.rank == other.attr("axis", 1) % other.rank


class Step(NamedTuple):
    """A node of QuantizeLinear or DequantizeLinear as group rules see it."""

    node: Ref
    value: Ref
    s: Any
    z: Ref | None

    @property
    def is_plain(self) -> bool:
        """Whether a value is dequantised to float32, all of it by one constant positive scale of that type and zero point."""
        constants = self.s.is_constant and (self.z is None or self.z.is_constant)
        single = all(v is None or v.type.size == 1 for v in (self.s, self.z))
        ordinary = self.s.dtype is self.node.dtype is DType.FLOAT and positive(self.s)
        return constants and single and ordinary and unblocked(self.node.attributes)

    def again(self, op: str, value: Term) -> Apply:
        """``op`` by the same parameters on another value."""
        return like(self.node, op, value, self.s, self.z)


def steps(view: GroupView, op: str) -> Iterator[Step]:
    """Every node of QuantizeLinear or of DequantizeLinear."""
    for node, inputs in view.nodes(op):
        value, scale, zero = (*inputs, None)[:3]
        if value is not None and scale is not None:
            yield Step(node, value, scale, zero)


def dequantised_parts(view: GroupView) -> Iterator[tuple[Ref, list[list[Step]]]]:
    """Each Concat of several values that are all dequantised, and how each of them is."""
    found = by_class((step.node, step) for step in steps(view, "DequantizeLinear"))
    for concat, parts in view.nodes("Concat"):
        spelled = [found.get(v.handle, []) if v is not None else [] for v in parts]
        if len(parts) > 1 and all(spelled):
            yield concat, spelled


functions = {
    **named(like, width, largest, limit, same_integers, same_zero_point, same_axis, per_tensor, unblocked),
    **named(one_precision, quotient_type, holds_integers, integer_range, zero_of, zero_number, reach),
}
shorthands = {
    "Q(x)": ("QuantizeLinear(x, s, *z, **n)", 'like(n, "QuantizeLinear", x, s, z)'),
    "D(q)": ("DequantizeLinear(q, s, *z, **n)", 'like(n, "DequantizeLinear", q, s, z)'),
    "R(q)": ("eqsat.Recenter(q, **r)", "eqsat.Recenter(q)"),
}
positive_scale = Condition(
    "scale constant, positive and normal", lambda m: positive(m.s), hints=(Hint("s", constant=True, low=1e-30),)
)
one_scale = Condition(
    "one scale for the whole tensor", lambda m: per_tensor(m.s, m.z) and not m.n.attr("block_size", 0)
)
bytes_behind = condition("8-bit integers come out", Hint("z", dtypes=BYTES))(lambda m: m.root.dtype in BYTES)
bytes_before = condition("q of 8 bits", Hint("q", dtypes=BYTES))(lambda m: m.q.dtype in BYTES)
kernels_behind, kernels_before = worthwhile(bytes_behind), worthwhile(bytes_before)
"""Where the integers may have any number of bits, but kernels exist for bytes only."""
