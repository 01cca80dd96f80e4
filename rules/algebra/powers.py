"""Powers by constants: products, roots and reciprocals take a tenth of the time of a power of any number.

A root is asked for a base that is not negative: the power of minus infinity by 1/2 is infinite, its root NaN.
"""

from functools import reduce

from eqsat.conditions import between, constant, floating, kernels, number, same_type, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, apply
from eqsat.rules.terms import mul

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


equation(
    "take_root_instead_of_raising",
    "x ** c == Sqrt(x)",
    number("c", 0.5),
    same_type("x"),
    floating("x"),
    between("x", low=0),
    drawn=("", 'x = Applied("Neg", d.floats([A, K], infinite=True))', 'x = Applied("Shape", d.floats([A, K]))'),
)


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
    drawn=(
        'x = Applied("Abs" | "Exp" | "Neg", d.floats([A, K])); c = 3.0 | -1.0 | -0.5 | 0.75 | 1.5 | -0.25 | 0.3 | 5.0',
        'x = Applied("Neg", d.floats([A, K])); c = 1.5 | -0.5',
        "c = 0.3 | 5.0",
        "c = fixed([[[3.0]]], 'float32')",
        "x: float32[A, K]; c = d.rng.choice([3.0, 4.0], [K]).astype('float32')",
    ),
)
