"""Algebra: neutral elements and signs. Never ``x*0 == 0``, ``x - x == 0`` or ``x/x == 1``: x may be infinite.

Forms that other rules look for are the normal ones: a subtracted constant is an added one, a negation a product with -1.
"""

from eqsat.conditions import constant, floating, number, one_element, same_type, signed, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.operator import Operator, traits_of
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, for_each_operator
from eqsat.rules.views.extents import expanded

ROUNDING = Exactness.ROUNDING
equation = Equations(__name__, source="IEEE 754: exact up to the sign of zero", functions=named(expanded))

# --- neutral elements


def has_neutral_number(op: Operator) -> bool:
    """Not of truth values: one may be known to be true without being a constant (`selection`)."""
    return op.traits.neutral is not None and not op.traits.truth


@for_each_operator(has_neutral_number)
def _neutral(op: str) -> None:
    left = f"{op.replace('::', '.')}(x, {traits_of(op).neutral}, **a)"
    equation(f"remove_neutral_operand_of_{op.lower().replace('::', '_')}", f"{left} == expanded(x, root)")


# --- places


def stays_in_range(*counts: Ref) -> bool:
    """Whether sums of two of the numbers are sure not to wrap around. Places counted in 64 bits do not come near the end."""
    return counts[0].dtype is DType.INT64 or all(max(map(abs, n.interval)) < 2 ** (n.dtype.bits - 2) for n in counts)


equation(
    "count_from_sum",
    "Range(a, b, s, **p) + k == Range(a + k, b + k, s, **p)",
    "integers: k.dtype.is_integer",
    "one number: k.rank == 0",
    "sums do not wrap around: stays_in_range(k, a, b)",
    source="integers do not round",
    drawn=(
        """a = d.integers([], "int64", -5, 5); b = d.integers([], "int64", 4, 9); s = d.integers([], "int64", 1, 3)
           k = d.integers([], "int64", -5, 5)""",
        'a = fixed(2, "int64"); b = fixed(6, "int64"); s = fixed(1, "int64"); k = d.integers([4], "int64", -5, 5)',
        """a = fixed(-2, "int32"); b = fixed(7, "int32"); s = d.integers([], "int32", 1, 3)
           k = fixed(3, "int32") | fixed(2**31 - 1, "int32")""",
        """a = fixed(0.3, "float32"); b = fixed(1.2, "float32"); s = fixed(1 / 7, "float32")
           k = fixed(-0.7, "float32")""",
    ),
)

# --- signs

equation("cancel_double_negation", "-(-x) == x")
equation("normalise_negation", "-x == x * -1")
equation("add_instead_of_subtracting_negation", "x - -y == x + y")
equation("cancel_signs_of_product", "-x * -y == x * y")
equation("exchange_negated_difference", "-(x - y) == y - x")
equation("remove_sign_below_abs", "Abs(-x) == Abs(x)")
equation("negate_instead_of_subtracting_from_zero", "0 - x == -x", same_type("x"), signed("x"))
equation("add_negated_constant", "x - c == x + -c", constant("c"), signed("x"))
equation("double_instead_of_adding", "x + x == x * 2")
equation(
    "subtract_instead_of_adding_opposite",
    "x + (t := y * c) == x - y",
    number("c", -1),
    "the factor enlarges nothing: t.shape == y.shape",
    varies("y"),
)
equation(
    "add_opposite_multiple_instead_of_subtracting",
    "x - y * c == x + y * -c",
    constant("c"),
    worthwhile(floating("x")),
    worthwhile(one_element("c")),
    varies("y"),
)

# What passes gradients by a step that has none leaves behind: the code word of a value, or the largest of probabilities. Not so
# ``(x + c) - c``: with a huge constant that is how one rounds.
equation(
    "cancel_what_was_subtracted",
    "(x - y) + y == x",
    same_type("x"),
    varies("y"),
    exactness=ROUNDING,
    source="associativity over the reals",
)

# --- reciprocals

equation("normalise_reciprocal", "1 / x == Reciprocal(x)", same_type("x"), floating("x"))
equation(
    "divide_instead_of_multiplying_by_reciprocal",
    "x * Reciprocal(y) == x / y",
    exactness=ROUNDING,
    source="two roundings become one",
)
