"""Algebra (E18): neutral elements, signs and powers. Never ``x*0 == 0``, ``x - x == 0`` or ``x/x == 1``: x may be infinite.

Forms that other rules look for are the normal ones: a subtracted constant is an added one, a negation a product with -1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.sampling import Applied, Sampler, fixed
from eqsat.rules.terms import add, condition, constant, div, every_element, mul, same_type, signed, sub

EXACT, ROUNDING = Exactness.EXACT, Exactness.ROUNDING
IEEE = "IEEE 754: exact up to the sign of zero"
x, y, c = variables("x y c")


def _shape_and_other(d: Sampler) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = d.shape()
    return shape, d.broadcast_with(shape)


def _numbers(d: Sampler, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype.startswith("float"):
        return d.floats(shape, dtype, wild=dtype != "float16", infinite=d.chance(0.25))
    return d.integers(shape, dtype)


def _one(d: Sampler, unsigned: bool = False) -> dict[str, Any]:
    dtypes = ("float32", "float16", "int32", *(("uint8",) if unsigned else ()))
    return {"x": _numbers(d, d.shape(), d.choose(dtypes))}


def _with_neutral(neutral: float) -> Any:
    """A sample of ``x`` and a constant that is mostly ``neutral``, sometimes not, sometimes no constant, at times larger."""

    def draw(d: Sampler) -> dict[str, Any]:
        shape, other = _shape_and_other(d)
        dtype = d.choose(("float32", "float32", "float16", "int32"))
        array = np.full(other, neutral, dtype)
        if d.chance(0.2):
            array = np.asarray(np.where(d.booleans(other), array, np.asarray(2, dtype)))
        return {"x": _numbers(d, shape, dtype), "c": d.either(array, 0.9)}

    return draw


# --- neutral elements ----------------------------------------------------------------------------------------------------


@rule(
    add(x, c),
    where=[constant("c"), every_element("c", 0), same_type("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_with_neutral(0),
)
def remove_added_zero(m: Match) -> Term:
    """``x + 0 == x``."""
    return m.x


@rule(
    sub(x, c),
    where=[constant("c"), every_element("c", 0), same_type("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_with_neutral(0),
)
def remove_subtracted_zero(m: Match) -> Term:
    """``x - 0 == x``."""
    return m.x


@rule(
    mul(x, c),
    where=[constant("c"), every_element("c", 1), same_type("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_with_neutral(1),
)
def remove_factor_one(m: Match) -> Term:
    """``x * 1 == x``."""
    return m.x


@rule(
    div(x, c),
    where=[constant("c"), every_element("c", 1), same_type("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_with_neutral(1),
)
def remove_divisor_one(m: Match) -> Term:
    """``x / 1 == x``."""
    return m.x


@rule(
    apply("Pow", x, c),
    where=[constant("c"), every_element("c", 1), same_type("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_with_neutral(1),
)
def remove_exponent_one(m: Match) -> Term:
    """``x ^ 1 == x``."""
    return m.x


# --- signs ---------------------------------------------------------------------------------------------------------------


@rule(apply("Neg", apply("Neg", x)), exactness=EXACT, source=IEEE, family="E18", sample=_one)
def cancel_double_negation(m: Match) -> Term:
    """``-(-x) == x``."""
    return m.x


@rule(
    apply("Neg", x),
    where=[signed("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=lambda d: _one(d, d.chance(0.2)),
)
def normalise_negation(m: Match) -> Term:
    """``-x == x * -1``."""
    return mul(m.x, literal(-1, m.x.dtype))


def _pair(d: Sampler) -> dict[str, Any]:
    shape, other = _shape_and_other(d)
    dtype = d.choose(("float32", "float32", "float16", "int32"))
    return {"x": _numbers(d, shape, dtype), "y": _numbers(d, other, dtype)}


@rule(add(x, apply("Neg", y)), exactness=EXACT, source=IEEE, family="E18", sample=_pair)
def subtract_instead_of_adding_negation(m: Match) -> Term:
    """``x + -y == x - y``."""
    return sub(m.x, m.y)


def _negated_summand(d: Sampler) -> dict[str, Any]:
    drawn = _pair(d)
    factor = np.full(d.choose(((), (1,), (1,) * (drawn["y"].ndim + 2))), d.choose((-1, -1, -1, -2)), drawn["y"].dtype)
    return drawn | {"c": fixed(factor)}


def _subtracted_multiple(d: Sampler) -> dict[str, Any]:
    drawn = _pair(d)
    form = d.choose(((), (1,), (1,) * (drawn["y"].ndim + 2), drawn["y"].shape))
    return drawn | {"c": d.either(np.full(form, d.choose((3, -2, 100)), drawn["y"].dtype), 0.9)}


@rule(
    add(x, mul(y, c)),
    where=[constant("c"), every_element("c", -1)],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_negated_summand,
)
def subtract_instead_of_adding_opposite(m: Match) -> Term:
    """``x + y * -1 == x - y``."""
    m.require(m.c.rank <= m.y.rank and not m.y.is_constant, "the factor adds axes, or both are constant")
    return sub(m.x, m.y)


@rule(
    sub(x, mul(y, c)),
    where=[constant("c")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_subtracted_multiple,
)
def add_opposite_multiple_instead_of_subtracting(m: Match) -> Term:
    """``x - y * c == x + y * -c`` for one number ``c``."""
    m.require(m.x.dtype.is_float, "no floats")
    m.require(m.c.type.size == 1 and not m.y.is_constant, "several factors, or both are constant")
    return add(m.x, mul(m.y, apply("Neg", m.c)))


@rule(sub(x, apply("Neg", y)), exactness=EXACT, source=IEEE, family="E18", sample=_pair)
def add_instead_of_subtracting_negation(m: Match) -> Term:
    """``x - -y == x + y``."""
    return add(m.x, m.y)


@rule(mul(apply("Neg", x), apply("Neg", y)), exactness=EXACT, source=IEEE, family="E18", sample=_pair)
def cancel_signs_of_product(m: Match) -> Term:
    """``-x * -y == x * y``."""
    return mul(m.x, m.y)


@rule(apply("Neg", sub(x, y)), exactness=EXACT, source=IEEE, family="E18", sample=_pair)
def exchange_negated_difference(m: Match) -> Term:
    """``-(x - y) == y - x``."""
    return sub(m.y, m.x)


@rule(apply("Abs", apply("Neg", x)), exactness=EXACT, source=IEEE, family="E18", sample=_one)
def remove_sign_below_abs(m: Match) -> Term:
    """``|-x| == |x|``."""
    return apply("Abs", m.x)


@rule(
    sub(c, x),
    where=[constant("c"), every_element("c", 0), same_type("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_with_neutral(0),
)
def negate_instead_of_subtracting_from_zero(m: Match) -> Term:
    """``0 - x == -x``."""
    return apply("Neg", m.x)


def _difference(d: Sampler) -> dict[str, Any]:
    shape, other = _shape_and_other(d)
    dtype = d.choose(("float32", "float16", "int32", "uint8"))
    return {"x": _numbers(d, shape, dtype), "c": d.either(_numbers(d, other, dtype), 0.85)}


@rule(
    sub(x, c),
    where=[constant("c"), signed("x")],
    exactness=EXACT,
    source=IEEE,
    family="E18",
    sample=_difference,
)
def add_negated_constant(m: Match) -> Term:
    """``x - c == x + -c``."""
    return add(m.x, apply("Neg", m.c))


@rule(add(x, x), exactness=EXACT, source=IEEE, family="E18", sample=lambda d: _one(d, True))
def double_instead_of_adding(m: Match) -> Term:
    """``x + x == x * 2``."""
    return mul(m.x, literal(2, m.x.dtype))


# --- powers, reciprocals -------------------------------------------------------------------------------------------------


@condition("float")
def _float(m: Match) -> bool:
    return m.x.dtype.is_float


def _power(exponent: float) -> Any:
    def draw(d: Sampler) -> dict[str, Any]:
        array = d.floats(d.shape(), wild=d.chance(), infinite=d.chance(0.25))
        found = exponent if d.chance(0.85) else 3.0
        larger = (2,) + (1,) * array.ndim
        shape = larger if d.chance(0.1) else d.choose(((), (1,)))
        return {"x": array, "c": fixed(np.full(shape, found, d.choose(("float32", "int64"))))}

    return draw


@rule(
    apply("Pow", x, c),
    where=[constant("c"), every_element("c", 2), same_type("x")],
    exactness=ROUNDING,
    source="pow is within one unit in the last place, the product is rounded correctly",
    family="E18",
    sample=_power(2),
)
def square_instead_of_raising(m: Match) -> Term:
    """``x ^ 2 == x * x``."""
    return mul(m.x, m.x)


@condition("x at least 0")
def _nonnegative(m: Match) -> bool:
    return m.x.interval[0] >= 0


def _root(d: Sampler) -> dict[str, Any]:
    x = Applied(d.choose(("Abs", "Relu", "Exp", "Neg")), d.floats(d.shape(), infinite=d.chance()))
    if d.chance(0.1):
        x = Applied("Abs", d.integers(x.array.shape, "int32", -99, 99))
    shape = (2,) + (1,) * x.array.ndim if d.chance(0.1) else ()
    return {"x": x, "c": fixed(np.full(shape, 0.5 if d.chance(0.85) else 1.5, np.float32))}


@rule(
    apply("Pow", x, c),
    where=[constant("c"), every_element("c", 0.5), same_type("x"), _float, _nonnegative],
    exactness=ROUNDING,
    source="pow is within one unit in the last place; pow(-inf, 0.5) is inf, sqrt(-inf) is NaN",
    family="E18",
    sample=_root,
)
def take_root_instead_of_raising(m: Match) -> Term:
    """``x ^ 0.5 == Sqrt(x)`` for ``x`` of at least 0."""
    return apply("Sqrt", m.x)


@rule(
    div(c, x),
    where=[constant("c"), every_element("c", 1), same_type("x"), _float],
    exactness=EXACT,
    source="IEEE 754: one rounding each",
    family="E18",
    sample=_with_neutral(1),
)
def normalise_reciprocal(m: Match) -> Term:
    """``1 / x == Reciprocal(x)``."""
    return apply("Reciprocal", m.x)


def _quotient(d: Sampler) -> dict[str, Any]:
    shape, other = _shape_and_other(d)
    return {"x": d.floats(shape, wild=True), "y": d.floats(other)}


@rule(
    mul(x, apply("Reciprocal", y)),
    exactness=ROUNDING,
    source="two roundings become one",
    family="E18",
    sample=_quotient,
)
def divide_instead_of_multiplying_by_reciprocal(m: Match) -> Term:
    """``x * Reciprocal(y) == x / y``."""
    return div(m.x, m.y)
