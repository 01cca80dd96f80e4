"""Activations and extremes that are written as a choice by an order, as in JAX.

A choice takes 4 to 7 ns an element in ONNX Runtime where the truth values are as many as the others, a maximum 0.2, LeakyRelu
0.3. Of NaN a choice takes the second value, the maximum NaN.
"""

from eqsat.conditions import constant, finite, one_element, same_type, single_or_half
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.operator import having
from eqsat.rewrite import for_each_operator

equation = Equations(__name__, where=[single_or_half("x")], source="ONNX operator specification")
ROUNDING = Exactness.ROUNDING


@for_each_operator(having("orders"))
def _by_order(op: str) -> None:
    """The first value where ``op`` says that it is larger, or the other way round."""
    order = f"{op}({{}}, {{}})"
    larger = order.format(*("xy" if op.startswith("Greater") else "yx"))
    name = op.lower()
    equation(f"take_larger_by_{name}", f"Where({larger}, x, y) == Max(x, y)", exactness=ROUNDING)
    equation(f"take_smaller_by_{name}", f"Where({larger}, y, x) == Min(x, y)", exactness=ROUNDING)
    positive = order.format("x", "0")
    chosen = "x, x * c" if op.startswith("Greater") else "x * c, x"
    equation(
        f"recognise_leaky_relu_by_{name}",
        f"Where({positive}, {chosen}) == LeakyRelu(x, alpha=c.low)",
        constant("c"),
        one_element("c"),
        *[finite("c")] * (op in ("Greater", "LessOrEqual")),  # these choose the product of 0
        same_type("x"),
    )
    exponential = "(e := Exp(Min(x, 0)) + -1)"
    chosen = f"x, {exponential}" if op.startswith("Greater") else f"{exponential}, x"
    equation(
        f"take_larger_of_value_and_exponential_by_{name}",
        f"Where({positive}, {chosen}) == Max(x, e)",
        same_type("x"),
        exactness=ROUNDING,
        source="exp(x) - 1 >= x",
    )
