"""Powers by constants: products, roots and reciprocals take a tenth of the time of a power of any number.

A root is asked for a base that is not negative: the power of minus infinity by 1/2 is infinite, its root NaN.
"""

from functools import reduce
from typing import Any

import numpy as np

from eqsat.conditions import between, constant, floating, kernels, number, same_type, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply
from eqsat.rules.terms import mul
from eqsat.samples import Applied, Sampler, fixed

equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="pow is within one unit in the last place, product and root are rounded correctly",
)
_QUARTERS, _MOST = 4, 4.0


def is_product(exponent: float) -> bool:
    """Whether a power is made of few products, roots, and roots of roots."""
    return 0 < abs(exponent) <= _MOST and (exponent * _QUARTERS).is_integer()


def has_roots(x: Ref, exponent: float) -> bool:
    return x.low >= 0 and (exponent > 0 or x.low > 0)


def power(base: Term, exponent: float) -> Term:
    """``base`` to an exponent that `is_product`: square by square, times root and root of root."""
    whole, quarters = divmod(int(abs(exponent) * _QUARTERS), _QUARTERS)
    found: list[Term] = []
    square = base
    while whole:
        if whole % 2:
            found.append(square)
        whole //= 2
        square = mul(square, square)
    if quarters:
        root = apply("Sqrt", base)
        found += [root] * (quarters > 1) + [apply("Sqrt", root)] * (quarters % 2)
    result = reduce(mul, found)
    return apply("Reciprocal", result) if exponent < 0 else result


equation("square_instead_of_raising", "x ** 2 == x * x", same_type("x"))


def _base(d: Sampler) -> dict[str, Any]:
    """A base whose bounds are known, infinities among its elements; at times extents, or another exponent."""
    x = Applied(d.choose(("Abs", "Relu", "Exp", "Neg")), d.floats(d.shape(), infinite=d.chance()))
    if d.chance(0.1):
        x = Applied("Shape", x.array)
    shape = (2,) + (1,) * x.array.ndim if d.chance(0.1) else ()
    return {"x": x, "c": fixed(np.full(shape, 0.5 if d.chance(0.85) else 1.5, np.float32))}


equation(
    "take_root_instead_of_raising",
    "x ** c == Sqrt(x)",
    number("c", 0.5),
    same_type("x"),
    floating("x"),
    between("x", low=0),
    sample=_base,
)


def _exponents(d: Sampler) -> dict[str, Any]:
    """Exponents of any base if they are whole, else mostly of one whose bounds are known, infinities among its elements."""
    exponent = d.choose((-1.0, 3.0, 4.0, -0.5, 0.75, 1.5, -0.25, 2.5, 0.3, 5.0))
    whole = exponent.is_integer()
    drawn = d.floats(d.shape(), infinite=not whole)
    x = drawn if whole and d.chance(0.9) else Applied(d.choose(("Abs", "Relu", "Exp", "Neg", "Neg")), drawn)
    c = np.full((2,) + (1,) * drawn.ndim if d.chance(0.1) else d.choose(((), drawn.shape)), exponent, np.float32)
    if c.ndim and d.chance():
        c[..., -1:] = 1.5
    return {"x": x, "c": fixed(c)}


equation(
    "multiply_instead_of_raising",
    "x ** c == power(x, c.low)",
    kernels("x", DType.FLOAT),
    constant("c"),
    same_type("x"),
    "one exponent: c.low == c.high",
    "which few products make: is_product(c.low)",
    worthwhile("that is not 1, 2 or 1/2: c.low not in (1, 2, 0.5)"),
    "whole, or of what is not negative, nor 0 where that divides: c.low.is_integer() or has_roots(x, c.low)",
    sample=_exponents,
)
