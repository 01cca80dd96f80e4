"""Signed 8-bit integers computed as unsigned ones: the zero point moves by 128, the numbers they stand for do not.

Runtimes have fast kernels for unsigned activations times signed weights, and slow ones, or none, for two signed operands. So
each signed quantised value gets an unsigned spelling. ``R`` (Recenter) is the involution between the two; it moves from the
products that want unsigned operands to the quantisations that make them, past movement (`movement`), Concat and Split
(`joining`), and what rises, and cancels there.
"""

from collections.abc import Callable, Iterator

import numpy as np

from eqsat.conditions import constant, varies
from eqsat.equations import Equations, form, named, stated
from eqsat.exactness import Exactness
from eqsat.ir.operator import operators_with, traits_of
from eqsat.ir.operators.recenter import OTHER_SIGN, RECENTER, multiplies_bytes
from eqsat.ir.types import DType
from eqsat.rewrite import (
    PROJECTION,
    Apply,
    Condition,
    GroupView,
    Match,
    Ref,
    Term,
    apply,
    for_each_operator,
    group_rule,
    literal,
)
from eqsat.rules.quantised import pairs
from eqsat.rules.quantised.order import covers, takes_windows
from eqsat.rules.quantised.pairs import shorthands
from eqsat.rules.views.movement import moves_elements


def recenter(value: Term) -> Apply:
    """The same 8-bit integers, 128 greater and unsigned, or 128 less and signed."""
    return apply(RECENTER, value)


def recentred(zero: Ref | None, dtype: DType, like_scale: Ref) -> Term:
    """A zero point for recentred integers; ``dtype`` is the type of the integers before. Raises `Unmet` if it is not known."""
    elements = np.zeros(like_scale.static_shape, np.int64) if zero is None else zero.value.astype(np.int64)
    moved = elements + (128 if dtype is DType.INT8 else -128)
    return literal(moved.astype(OTHER_SIGN[dtype].numpy))


def shifted(bound: Ref | None, dtype: DType) -> Term | None:
    """A bound on integers of a type as one on the recentred integers."""
    return None if bound is None else recentred(bound, dtype, bound)


equation = Equations(
    __name__,
    source="adding 128 to the integer and to its zero point",
    functions=pairs.functions | named(covers),
    shorthands=shorthands,
)
equation(
    "quantize_unsigned",
    "Q(x) == R(like(n, 'QuantizeLinear', x, s, recentred(z, int8, s), output_dtype=None))",
    "signed bytes: root.dtype is int8",
    varies("root"),
)
equation(
    "quantize_signed",
    "R(Q(x)) == like(n, 'QuantizeLinear', x, s, recentred(z, uint8, s), output_dtype=None)",
    "unsigned bytes: n.dtype is uint8",
    varies("root"),
    domain="com.microsoft",  # operands on the right of products stay signed, whichever spelling of the unsigned ones is chosen
)
equation(
    "dequantize_unsigned",
    "D(q) == like(n, 'DequantizeLinear', R(q), s, recentred(z, int8, s))",
    "signed bytes: q.dtype is int8",
    varies("q"),  # constants stay signed, as kernels take weights
)
equation("cancel_recentring", "eqsat.Recenter(R(q), **again) == q", source="an involution")
equation(
    "move_recentring_before_clip",
    "R(Clip(q, *low, *high)) == Clip(R(q), shifted(low, q.dtype), shifted(high, q.dtype))",
    constant("low", "high"),
    source="adding a number is monotone",
)


@for_each_operator(takes_windows)
def _before(op: str) -> None:
    text = f"R({op}(q, **a)) == {op}(R(q), **a)"
    where = "every window covers data: covers(a)"
    equation(f"move_recentring_before_{op.lower()}", text, where, source="adding a number is monotone")


# --- where nothing else helps


_PASSED = ("QuantizeLinear", "Clip", "Concat", PROJECTION, RECENTER)
"""Beside movement and windows. By operator, not by trait: those that rules of this room pass."""


def _computed(view: GroupView) -> Callable[[Ref], bool]:
    passed = {*_PASSED, *operators_with(moves_elements), *operators_with(takes_windows)}
    return lambda value: any(op in passed for op, _ in view.spellings(value))


def _recentred_values(view: GroupView) -> Iterator[Match]:
    is_computed = _computed(view)
    for node, (value,) in view.nodes(RECENTER):
        if value is not None:
            yield Match({"q": value, "computed": is_computed(value)}, node)


@group_rule(
    find=_recentred_values,
    where=[Condition("nothing that makes q can be recentred", lambda m: not m.computed, worthwhile=True)],
    exactness=Exactness.EXACT,
    source="scale 1 and the integers' own zero points",
    forms=[form("R(q)", shorthands=shorthands)],
)
def spell_out_recentring(m: Match) -> Term:
    """``R(q: int8) == Q(D(q, 1, 0), 1, 128)``, and back alike."""
    signed, unsigned = literal(0, DType.INT8), literal(128, DType.UINT8)
    first, second = (signed, unsigned) if m.q.dtype is DType.INT8 else (unsigned, signed)
    one = literal(1, DType.FLOAT)
    return apply("QuantizeLinear", apply("DequantizeLinear", m.q, one, first), one, second)


# --- for kernels that are exact for unsigned operands alone


UNSIGNED = "eqsat.unsigned"
"""A domain that no target has: rules for consumers that ask for them by name, as others have kernels for signed weights."""

equation(
    "dequantize_constants_unsigned",
    "D(q) == like(n, 'DequantizeLinear', R(q), s, recentred(z, int8, s))",
    "signed bytes: q.dtype is int8",
    constant("q", "z"),
    domain=UNSIGNED,
)


def _signed_operands(view: GroupView) -> Iterator[Match]:
    for op in operators_with(multiplies_bytes):
        for node, inputs in view.nodes(op):
            for operand, point in traits_of(op, node.attributes).differences:
                given = (*inputs, *[None] * (point + 1 - len(inputs)))
                if given[operand] is not None:
                    bound = {"q": given[operand], "z": given[point], "operand": operand, "point": point}
                    yield Match({"op": op, "inputs": given, **bound}, node)


@group_rule(
    find=_signed_operands,
    where=stated("q", "signed bytes: q.dtype is int8"),
    exactness=Exactness.EXACT,
    source="adding 128 to the integer and to its zero point",
    forms=[form("MatMulInteger(x, y, *z, *w)")],
    domain=UNSIGNED,
)
def multiply_unsigned(m: Match) -> Term:
    """``f(q: int8, z) == f(R(q), z + 128)`` where of the integers and their zero point only the difference counts."""
    inputs = list(m.inputs)
    inputs[m.operand] = recenter(m.q)
    inputs[m.point] = literal(128, DType.UINT8) if m.z is None else recenter(m.z)
    return Apply(m.op, tuple(inputs), m.root.attributes)
