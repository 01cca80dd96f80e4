"""Signed 8-bit integers computed as unsigned ones: the zero point moves by 128, the numbers they stand for do not.

Runtimes have fast kernels for unsigned activations times signed weights, and slow ones, or none, for two signed operands. So
each signed quantised value gets an unsigned spelling. ``R`` (Recenter) is the involution between the two; it moves from the
products that want unsigned operands to the quantisations that make them, past movement (`movement`), Concat and Split
(`joining`), and what rises, and cancels there.
"""

from collections.abc import Iterator

import numpy as np

from eqsat.conditions import constant, every_element, varies, worthwhile
from eqsat.equations import Equations, form, named
from eqsat.ir.operator import operators_with, traits_of
from eqsat.ir.operators.recenter import OTHER_SIGN, RECENTER, multiplies_bytes
from eqsat.ir.types import DType
from eqsat.rewrite import PROJECTION, Apply, GroupView, Match, Ref, Term, apply, for_each_operator, literal
from eqsat.rules.quantised import scales
from eqsat.rules.quantised.order import covers, takes_windows
from eqsat.rules.quantised.scales import shorthands
from eqsat.rules.recognise.norms import axes_of
from eqsat.rules.terms import complete_nodes
from eqsat.rules.views.movement import moves_elements


def recenter(value: Term) -> Apply:
    """The same 8-bit integers, 128 greater and unsigned, or 128 less and signed."""
    return apply(RECENTER, value)


def recentred(zero: Ref | None, dtype: DType, like_scale: Ref) -> Term:
    """A zero point for recentred integers; ``dtype`` is the type of the integers before. Raises `Unmet` if it is not known."""
    elements = np.zeros(like_scale.static_shape, np.int64) if zero is None else zero.value.astype(np.int64)
    moved = elements + (128 if dtype is DType.INT8 else -128)
    return literal(moved.astype(OTHER_SIGN[dtype].numpy))


def recentred_point(zero: Ref | None, dtype: DType = DType.INT8) -> Term:
    """The zero point of integers of a type that are recentred with it; one that is absent is zero."""
    return recenter(literal(0, dtype) if zero is None else zero)


def shifted(bound: Ref | None, dtype: DType) -> Term | None:
    """A bound on integers of a type as one on the recentred integers."""
    return None if bound is None else recentred(bound, dtype, bound)


equation = Equations(
    __name__,
    source="adding 128 to the integer and to its zero point",
    functions=scales.functions | named(axes_of, covers, literal),
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
UNSIGNED = "eqsat.unsigned"
"""A domain that no target has: rules for consumers that ask for them by name, as others have kernels for signed weights."""
for _name, _of, _domain in (
    ("dequantize_unsigned", varies("q"), ""),  # constants stay signed, as kernels take weights,
    (
        "dequantize_constants_unsigned",
        constant("q", "z"),
        UNSIGNED,
    ),  # or where kernels are exact for unsigned operands alone
):
    equation(
        _name,
        "D(q) == like(n, 'DequantizeLinear', R(q), s, recentred(z, int8, s))",
        "signed bytes: q.dtype is int8",
        _of,
        domain=_domain,
    )


equation(
    "multiply_unsigned_activations",
    "MatMulInteger(q, w, *z, *y) == MatMulInteger(R(q), w, recentred_point(z), y)",
    "signed bytes: q.dtype is int8",
    varies("q"),
)
equation(
    "recentre_instead_of_adding",
    "Cast(Cast(q, **cast) + c, **back) == R(q)",
    "signed bytes in a wider type, and unsigned: q.dtype is int8 and c.dtype is int32 and root.dtype is uint8",
    every_element("c", 128),
    "c enlarges nothing: root.shape == q.shape",
    drawn="""q: int8[*ANY, A] | uint8[*ANY, A]; cast.to = 6; back.to = 2
             c = fixed(128 | 127, "int32") | fixed([128], "int32") | fixed([[[[128]]]], "int32")""",
)


equation(
    "shift_integers_instead_of_sums",
    "(p := MatMulInteger(a, w)) - ReduceSum(Cast(w, **cast), x, **r) * c == MatMulInteger(a, w, literal(int(c.low), uint8))",
    "unsigned bytes: a.dtype is uint8",
    "sums of columns: w.rank == 2 and axes_of(r, x, w) == (-2,)",
    "one number of the type: c.low == c.high and 0 <= c.low <= 255",
    "what is taken off enlarges nothing: root.shape == p.shape",
    source="(q - z) @ w = q @ w - z * sum(w)",
    drawn=(
        """a: uint8[A, K] | int8[A, K]; w = fixed(d.integers([K, N], "int8")); x = [0] | [-2]; r.keepdims = 0 | 1; cast.to = 6
           c = fixed(128 | 3 | 300 | -1, "int32")""",
        "a: uint8[K]; r.keepdims = 1",
        'a: uint8[K, K]; w = fixed(d.integers([K, K], "int8")); x = [1]',
    ),
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


def _recentred_values(view: GroupView) -> Iterator[Match]:
    passed = {*_PASSED, *operators_with(moves_elements), *operators_with(takes_windows)}
    for node, (value,) in complete_nodes(view, RECENTER):
        yield Match({"q": value, "computed": any(op in passed for op, _ in view.spellings(value))}, node)


@equation.over_groups(
    find=_recentred_values,
    where=[worthwhile("nothing that makes q can be recentred: not computed")],
    source="scale 1 and the integers' own zero points",
    forms=["R(q)"],
)
def spell_out_recentring(m: Match) -> Term:
    """``R(q: int8) == Q(D(q, 1, 0), 1, 128)``, and back alike."""
    signed, unsigned = literal(0, DType.INT8), literal(128, DType.UINT8)
    first, second = (signed, unsigned) if m.q.dtype is DType.INT8 else (unsigned, signed)
    one = literal(1, DType.FLOAT)
    return apply("QuantizeLinear", apply("DequantizeLinear", m.q, one, first), one, second)


# --- operands of products


def _operands(view: GroupView) -> Iterator[Match]:
    for op in operators_with(multiplies_bytes):
        for node, inputs in view.nodes(op):
            for operand, point in traits_of(op, node.attributes).differences:
                given = (*inputs, *[None] * (point + 1 - len(inputs)))
                if given[operand] is not None:
                    bound = {"q": given[operand], "z": given[point], "operand": operand, "point": point}
                    yield Match({"op": op, "inputs": given, **bound}, node)


def _recentred_operand(m: Match) -> Apply:
    inputs = list(m.inputs)
    inputs[m.operand] = recenter(m.q)
    inputs[m.point] = recentred_point(m.z, m.q.dtype)
    return Apply(m.op, tuple(inputs), m.root.attributes)


@equation.over_groups(
    find=_operands,
    where=["signed bytes: q.dtype is int8"],
    forms=["MatMulInteger(x, y, *z, *w)"],
    domain=UNSIGNED,  # for kernels that are exact for unsigned operands alone
)
def multiply_unsigned(m: Match) -> Term:
    """``f(q: int8, z) == f(R(q), z + 128)`` where of the integers and their zero point only the difference counts."""
    return _recentred_operand(m)


@equation.over_groups(
    find=_operands,
    where=[
        "unsigned bytes: q.dtype is uint8",
        "constant weights: operand and q.is_constant and (z is None or z.is_constant)",
        worthwhile("multiplied on the right: op != 'ConvInteger'"),  # kernels of which take filters on the left
    ],
    source="taking 128 off the integer and its zero point",
    forms=[form("MatMulInteger(x, y, *z, *w)", constant("y", "w"))],
)
def multiply_by_signed_weights(m: Match) -> Term:
    """``f(w: uint8, z) == f(R(w), z - 128)`` for constants where only the difference between integers and zero point counts."""
    return _recentred_operand(m)
