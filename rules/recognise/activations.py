"""Gelu in the spellings of exporters becomes one operator, and is spelled out where a target has none.

They meet step by step: divisions by constants are products already, numbers stand outside of products, ``x ** 3`` is one power,
the factor 1/2 stands at ``1 + y``, and ``(1 + tanh(u)) / 2`` is a sigmoid, which costs less. The product ``x * sigmoid(1.702 x)``
is another function (`eqsat.rules.recognise.gates`). In the approximate Gelu, 0.044715 is the coefficient of the cube.
"""

import math

from eqsat.conditions import about, between, constant, kernels, number, same_type, single_or_half, varies, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rules.linear.alignment import FLOAT, FLOATS

equation = Equations(__name__, exactness=Exactness.ROUNDING)
NARROW = single_or_half("x")
WIDE = kernels("x", DType.FLOAT, DType.DOUBLE)
GELU = "ONNX Gelu; Hendrycks and Gimpel 2016"

equation(
    "recognise_gelu",
    "x * ((Erf(x * about(sqrt(1/2))) + 1) * 0.5) == Gelu(x, approximate='none')",
    forward=[same_type("x"), NARROW],
    backward=[WIDE],
    reverse="spell_out_gelu",
    source=GELU,
)
equation(
    "recognise_approximate_gelu",
    "x * Sigmoid((x + x ** 3 * about(0.044715)) * about(sqrt(8/pi))) == Gelu(x, approximate='tanh')",
    forward=[same_type("x"), NARROW],
    backward=[kernels("x", DType.FLOAT)],  # for doubles, too, its definition has numbers in single precision
    reverse="spell_out_approximate_gelu",
    source=GELU,
)

# --- steps on the way there

GATE = worthwhile(between("y", -1, 1), "y from -1 to 1, as in gates")
equation(
    "move_half_into_gate",
    "(x * (one + y)) * half == x * ((y + one) * half)",
    number("one", 1),
    number("half", 0.5),
    GATE,
    source="associativity over the reals",
)
equation(
    "gather_gated_value",
    "x + x * y == x * (y + 1)",
    NARROW,
    varies("x", "y"),
    GATE,
    source="distributivity over the reals",
)
equation(
    "use_sigmoid_instead_of_tanh",
    "(Tanh(u) + 1) * 0.5 == Sigmoid(u * 2)",
    same_type("u"),
    kernels("u", *sorted(FLOATS)),
    source="tanh(u) = 2 sigmoid(2u) - 1",
)
equation(
    "raise_to_third_power",
    "(x * x) * x == x ** 3",
    varies("x"),
    FLOAT,
    source="pow is within one unit in the last place",
)
COEFFICIENT, FACTOR = worthwhile(about("a", 0.044715)), worthwhile(about("c", math.sqrt(2 / math.pi)))
equation(
    "expand_cubic",
    "(x * c) * (1 + (x * x) * a) == (x + x ** 3 * a) * c",
    same_type("x"),
    NARROW,
    constant("a", "c"),
    COEFFICIENT,
    FACTOR,
    source="distributivity",
)
equation(
    "expand_unscaled_cubic",
    "x * (1 + (x * x) * a) == x + x ** 3 * a",
    same_type("x"),
    NARROW,
    constant("a"),
    COEFFICIENT,
    source="distributivity",
)
equation(
    "factor_cubic",
    "x * c + x ** e * about(0.044715 * sqrt(2/pi)) == (x + x ** e * 0.044715) * c",
    same_type("x"),
    NARROW,
    constant("e", "c"),
    about("c", math.sqrt(2 / math.pi)),
    source="distributivity",
)
