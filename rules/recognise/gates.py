"""Gated activations that exporters spell out become one operator, and are spelled out where a target has none.

A value times a bounded function of itself. Swish has a factor inside: with 1 it is SiLU, with 1.702 the quick GELU, which is
another function than Gelu. Half precision is left alone where operators are spelled out: kernels compute inside in float32,
which the spelling would not.
"""

import math

from eqsat.conditions import constant, kernels, same_type, single_or_half, varies
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref


def one_number(c: Ref) -> bool:
    return c.value.size == 1


equation = Equations(__name__, exactness=Exactness.ROUNDING, functions={"finite": math.isfinite})
NARROW = single_or_half("x")
WIDE = kernels("x", DType.FLOAT, DType.DOUBLE)

SWISH = "ONNX Swish; Ramachandran et al. 2017; Hendrycks and Gimpel 2016 for 1.702"
equation("recognise_silu", "x * Sigmoid(x) == Swish(x, alpha=1.0)", NARROW, source=SWISH)
equation(
    "recognise_swish",
    "x * Sigmoid(x * c) == Swish(x, alpha=float(c.value.reshape(-1)[0]))",
    constant("c"),
    same_type("x"),
    NARROW,
    "c is one finite number: one_number(c) and finite(c.low)",
    source=SWISH,
)
equation(
    # Also where the target has a kernel: what other rules make with a Swish, most files are too old to hold.
    "spell_out_swish",
    "Swish(x, alpha=a) == x * Sigmoid(x if a == 1 else x * number(a, x.dtype))",
    WIDE,
    source=SWISH,
)
equation(
    "open_swi_glu",
    "SwiGLU(x, y, alpha=a) == x * Sigmoid(x if a == 1 else x * number(a, x.dtype)) * y",
    WIDE,
    source="ONNX SwiGLU; Shazeer 2020",
)
equation(
    "softplus_of_large_values",  # as PyTorch defines it, with 20
    "Where(x > c, x, (y := Softplus(x))) == y",
    constant("c"),
    same_type("y"),
    NARROW,
    "nothing is left of exp(-x) beside a larger x: c.low >= 17",
    source="log(1 + exp(x)) = x + log(1 + exp(-x))",
)
equation(
    "recognise_mish",
    "x * Tanh(Softplus(x)) == Mish(x)",
    forward=[NARROW],
    backward=[WIDE],
    reverse="spell_out_mish",
    source="ONNX Mish; Misra 2019",
)
equation(
    "recognise_hard_swish",
    "x * HardSigmoid(x, alpha=1/6, beta=1/2) == HardSwish(x)",
    forward=[NARROW],
    backward=[WIDE],
    reverse="spell_out_hard_swish",
    source="ONNX HardSwish; Howard et al. 2019",
)
equation(
    # Of gates only: ONNX Runtime's Sigmoid is right to some ulp of 1 and 0 below -18, where 1 / (1 + exp(-x)) has all its
    # digits, and classifiers divide by sums of such. Where the exponential overflows, both are 0.
    "recognise_sigmoid_of_gate",
    "y * (s := Reciprocal(Exp(x * -1) + 1)) == y * Sigmoid(x)",
    "the numbers enlarge nothing: s.type == x.type",
    NARROW,
    source="ONNX Sigmoid",
)
equation(
    "multiply_by_sigmoid_instead_of_dividing",
    "x / (Exp(x * c) + 1) == x * Sigmoid(x * (c * -1))",  # where the exponential overflows, both are about 0
    constant("c"),
    same_type("x"),
    NARROW,
    source=SWISH,
)

RAMP = (same_type("x"), NARROW)
equation(
    "recognise_hard_sigmoid",
    "Clip(x + 3, 0, 6) * about(1/6) == HardSigmoid(x, alpha=1/6, beta=1/2)",
    *RAMP,
    source="ONNX HardSigmoid",
)
equation(
    "move_sixth_into_gate",  # in which less overflows
    "(x * Clip(x + 3, 0, 6)) * about(1/6) == x * HardSigmoid(x, alpha=1/6, beta=1/2)",
    *RAMP,
    varies("x"),
    source="associativity over the reals",
)
