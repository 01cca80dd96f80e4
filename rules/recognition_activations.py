"""Gelu in the spellings of exporters becomes one operator (E28).

They meet step by step: divisions by constants are products already, numbers stand outside of products, `x^3` is one power, the
factor 1/2 stands at ``1 + y``, and
``(1 + tanh(u)) / 2`` is a sigmoid, which costs less. The product ``x * sigmoid(1.702 x)`` is another function
(`eqsat.rules.recognition_gates`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.alignment import FLOATS
from eqsat.rules.sampling import Applied, Sampler, fixed
from eqsat.rules.terms import about, add, constant, every_element, mul, same_type

ROUNDING = Exactness.ROUNDING
GELU = "ONNX Gelu; Hendrycks and Gimpel 2016"
ROOT_OF_HALF = math.sqrt(0.5)
TWICE_ROOT = 2 * math.sqrt(2 / math.pi)
CUBIC = 0.044715
x, y, u, k, a, c, e, one, half = variables("x y u k a c e one half")


def _number(d: Sampler, array: np.ndarray, value: float, other: float) -> Any:
    """A constant of one element, mostly ``value``, sometimes ``other``; at times with more axes than ``array``."""
    shape = (1,) * (array.ndim + 1) if d.chance(0.07) else d.choose(((), (), (1,), (1,) * array.ndim))
    return fixed(np.full(shape, value if d.chance(0.85) else other, array.dtype))


def _halved(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape())
    bounded = Applied(d.choose(("Tanh", "Erf")), d.floats(x.shape))
    return {"x": x, "y": bounded if d.chance(0.9) else d.floats(x.shape)} | _one_and_half(d, x)


def _one_and_half(d: Sampler, array: np.ndarray) -> dict[str, Any]:
    return {"one": _number(d, array, 1.0, 2.0), "half": _number(d, array, 0.5, 0.25)}


def _move_half(m: Match) -> Term:
    """``x * ((1 + y) * 0.5)``, in which nothing overflows that did not before."""
    low, high = m.y.interval
    m.require(low >= -1 and high <= 1, "y may be outside -1 to 1")
    m.require(m.one.interval == (1, 1) and m.half.interval == (0.5, 0.5), "other constants than 1 and 1/2")
    return mul(m.x, mul(add(m.y, m.one), m.half))


@rule(
    mul(mul(x, add(y, one)), half),
    where=[constant("one", "half")],
    exactness=ROUNDING,
    source="associativity over the reals",
    family="E28",
    sample=_halved,
)
def move_half_into_gate(m: Match) -> Term:
    """``(x * (1 + y)) * 0.5 == x * ((1 + y) * 0.5)`` for ``y`` from -1 to 1."""
    return _move_half(m)


def _expanded(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape())
    y = d.floats(d.broadcast_with(x.shape))
    return {"x": x, "y": Applied(d.choose(("Tanh", "Erf")), y) if d.chance(0.9) else y}


@rule(
    add(x, mul(x, y)),
    exactness=ROUNDING,
    source="distributivity over the reals",
    family="E28",
    sample=_expanded,
)
def gather_gated_value(m: Match) -> Term:
    """``x + x * y == x * (1 + y)`` for ``y`` from -1 to 1, where nothing overflows."""
    low, high = m.y.interval
    m.require(m.x.dtype is DType.FLOAT and not m.x.is_constant and not m.y.is_constant, "no float32, or constant")
    m.require(low >= -1 and high <= 1, "y may be outside -1 to 1")
    return mul(m.x, add(m.y, literal(1, m.x.dtype)))


def _tanh_gate(d: Sampler) -> dict[str, Any]:
    u = d.floats(d.shape(), d.choose(("float32", "float32", "float16")))
    return {"u": u} | _one_and_half(d, u)


@rule(
    mul(add(apply("Tanh", u), one), half),
    where=[constant("one", "half"), every_element("one", 1), every_element("half", 0.5), same_type("u")],
    exactness=ROUNDING,
    source="tanh(u) = 2 sigmoid(2u) - 1",
    family="E28",
    sample=_tanh_gate,
)
def use_sigmoid_instead_of_tanh(m: Match) -> Term:
    """``(Tanh(u) + 1) * 0.5 == Sigmoid(u * 2)``."""
    m.require(m.u.dtype in FLOATS, "no float type that all kernels know")
    return apply("Sigmoid", mul(m.u, literal(2, m.u.dtype)))


def _cube(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats(d.shape(), d.choose(("float32", "float32", "float16")))}


@rule(
    mul(mul(x, x), x),
    exactness=ROUNDING,
    source="pow is within one unit in the last place",
    family="E28",
    sample=_cube,
)
def raise_to_third_power(m: Match) -> Term:
    """``(x * x) * x == x ^ 3``."""
    m.require(m.x.dtype in FLOATS and not m.x.is_constant, "no float type that all kernels know, or constant")
    return apply("Pow", m.x, literal(3, m.x.dtype))


def _cubic(first: Callable[[Sampler, np.ndarray], Any]) -> Any:
    """A sample of ``x`` around 1, the cubic coefficient, and what else a polynomial needs."""

    def draw(d: Sampler) -> dict[str, Any]:
        x = d.floats(d.shape())
        return {"x": x, "a": _number(d, x, CUBIC, -3.0), **first(d, x)}

    return draw


@rule(
    mul(mul(x, c), add(mul(mul(x, x), a), one)),
    where=[constant("a", "c", "one"), every_element("one", 1)],
    exactness=ROUNDING,
    source="distributivity",
    family="E28",
    sample=_cubic(lambda d, x: {"c": _number(d, x, 0.5 * TWICE_ROOT, 3.0), "one": _number(d, x, 1.0, 2.0)}),
)
def expand_cubic(m: Match) -> Term:
    """``(x * c) * (1 + (x * x) * a) == (x + x ^ 3 * a) * c`` for the coefficients of the approximate Gelu."""
    m.require(m.x.dtype is DType.FLOAT, "Gelu has a kernel in float32 only")
    m.require(m.root.type == m.x.type, "a constant enlarges the result")
    m.require(about("a", CUBIC).holds(m) and about("c", 0.5 * TWICE_ROOT).holds(m), "other coefficients")
    cube = apply("Pow", m.x, literal(3, m.x.dtype))
    return mul(add(m.x, mul(cube, m.a)), m.c)


@rule(
    mul(x, add(mul(mul(x, x), a), one)),
    where=[constant("a", "one"), every_element("one", 1), same_type("x")],
    exactness=ROUNDING,
    source="distributivity",
    family="E28",
    sample=_cubic(lambda d, x: {"one": _number(d, x, 1.0, 2.0)}),
)
def expand_unscaled_cubic(m: Match) -> Term:
    """``x * (1 + (x * x) * a) == x + x ^ 3 * a`` for the cubic coefficient ``a`` of the approximate Gelu."""
    m.require(m.x.dtype is DType.FLOAT, "Gelu has a kernel in float32 only")
    m.require(about("a", CUBIC).holds(m), "another coefficient")
    return add(m.x, mul(apply("Pow", m.x, literal(3, m.x.dtype)), m.a))


@rule(
    add(mul(x, c), mul(apply("Pow", x, e), a)),
    where=[constant("a", "c", "e"), same_type("x")],
    exactness=ROUNDING,
    source="distributivity",
    family="E28",
    sample=_cubic(
        lambda d, x: {
            "a": _number(d, x, CUBIC * 0.5 * TWICE_ROOT, 3.0),
            "c": _number(d, x, 0.5 * TWICE_ROOT, 3.0),
            "e": _number(d, x, 3.0, 2.0),
        }
    ),
)
def factor_cubic(m: Match) -> Term:
    """``x * c + x ^ e * (a * c) == (x + x ^ e * a) * c`` for the coefficients of the approximate Gelu."""
    m.require(m.x.dtype is DType.FLOAT, "Gelu has a kernel in float32 only")
    factor = 0.5 * TWICE_ROOT
    m.require(about("a", CUBIC * factor).holds(m) and about("c", factor).holds(m), "other coefficients")
    return mul(add(m.x, mul(apply("Pow", m.x, m.e), literal(CUBIC, m.x.dtype))), m.c)


def _erf_gelu(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(), wild=d.chance(0.2))
    return {"x": x, "k": _number(d, x, ROOT_OF_HALF, 0.70), **_one_and_half(d, x)}


@rule(
    mul(x, mul(add(apply("Erf", mul(x, k)), one), half)),
    where=[
        constant("k", "one", "half"),
        about("k", ROOT_OF_HALF),
        every_element("one", 1),
        every_element("half", 0.5),
        same_type("x"),
    ],
    exactness=ROUNDING,
    source=GELU,
    family="E28",
    sample=_erf_gelu,
)
def recognise_gelu(m: Match) -> Term:
    """``x * ((Erf(x * sqrt(1/2)) + 1) * 0.5) == Gelu(x)``."""
    m.require(m.x.dtype is DType.FLOAT, "Gelu has a kernel in float32 only")
    return apply("Gelu", m.x, approximate="none")


def _tanh_gelu(d: Sampler, x: np.ndarray) -> dict[str, Any]:
    return {"c": _number(d, x, TWICE_ROOT, 1.702), "e": _number(d, x, 3.0, 2.0)}


@rule(
    mul(x, apply("Sigmoid", mul(add(x, mul(apply("Pow", x, e), a)), c))),
    where=[
        constant("e", "a", "c"),
        every_element("e", 3),
        about("a", CUBIC),
        about("c", TWICE_ROOT),
        same_type("x"),
    ],
    exactness=ROUNDING,
    source=GELU,
    family="E28",
    sample=_cubic(_tanh_gelu),
)
def recognise_approximate_gelu(m: Match) -> Term:
    """``x * Sigmoid((x + x ^ 3 * 0.044715) * sqrt(8/pi)) == Gelu(x, approximate="tanh")``."""
    m.require(m.x.dtype is DType.FLOAT, "Gelu has a kernel in float32 only")
    return apply("Gelu", m.x, approximate="tanh")
