"""Gelu in the spellings of exporters becomes one operator, and is spelled out where a target has none.

They meet step by step: divisions by constants are products already, numbers stand outside of products, ``x ** 3`` is one power,
the factor 1/2 stands at ``1 + y``, and ``(1 + tanh(u)) / 2`` is a sigmoid, which costs less. The product ``x * sigmoid(1.702 x)``
is another function (`eqsat.rules.recognition_gates`). In the approximate Gelu, 0.044715 is the coefficient of the cube.
"""

from __future__ import annotations

import math

from eqsat.conditions import about, between, constant, dtype_in, number, same_type, varies
from eqsat.equation import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rules.alignment import FLOATS

equation = Equations(__name__, exactness=Exactness.ROUNDING)
FLOAT32 = dtype_in("x", DType.FLOAT)
WIDE = dtype_in("x", DType.FLOAT, DType.DOUBLE)
GELU = "ONNX Gelu; Hendrycks and Gimpel 2016"

equation(
    "recognise_gelu",
    "x * ((Erf(x * about(sqrt(1/2))) + 1) * 0.5) == Gelu(x, approximate='none')",
    forward=[same_type("x"), FLOAT32],
    backward=[WIDE],
    reverse="spell_out_gelu",
    source=GELU,
)
equation(
    "recognise_approximate_gelu",
    "x * Sigmoid((x + x ** 3 * about(0.044715)) * about(sqrt(8/pi))) == Gelu(x, approximate='tanh')",
    forward=[same_type("x"), FLOAT32],
    backward=[WIDE],
    reverse="spell_out_approximate_gelu",
    source=GELU,
)

# --- steps on the way there

ONE_TO_ONE = between("y", -1, 1)  # so that nothing overflows that did not before
equation(
    "move_half_into_gate",
    "(x * (one + y)) * half == x * ((y + one) * half)",
    number("one", 1),
    number("half", 0.5),
    ONE_TO_ONE,
    source="associativity over the reals",
)
equation(
    "gather_gated_value",
    "x + x * y == x * (y + 1)",
    FLOAT32,
    varies("x", "y"),
    ONE_TO_ONE,
    source="distributivity over the reals",
)
equation(
    "use_sigmoid_instead_of_tanh",
    "(Tanh(u) + 1) * 0.5 == Sigmoid(u * 2)",
    same_type("u"),
    dtype_in("u", *sorted(FLOATS)),
    source="tanh(u) = 2 sigmoid(2u) - 1",
)
equation(
    "raise_to_third_power",
    "(x * x) * x == x ** 3",
    varies("x"),
    dtype_in("x", *sorted(FLOATS)),
    source="pow is within one unit in the last place",
)
equation(
    "expand_cubic",
    "(x * c) * (1 + (x * x) * a) == (x + x ** 3 * a) * c",
    same_type("x"),
    FLOAT32,
    constant("a", "c"),
    about("a", 0.044715),
    about("c", math.sqrt(2 / math.pi)),
    source="distributivity",
)
equation(
    "expand_unscaled_cubic",
    "x * (1 + (x * x) * a) == x + x ** 3 * a",
    same_type("x"),
    FLOAT32,
    constant("a"),
    about("a", 0.044715),
    source="distributivity",
)
equation(
    "factor_cubic",
    "x * c + x ** e * about(0.044715 * sqrt(2/pi)) == (x + x ** e * 0.044715) * c",
    same_type("x"),
    FLOAT32,
    constant("e", "c"),
    about("c", math.sqrt(2 / math.pi)),
    source="distributivity",
)
