"""Activations as ONNX Runtime has kernels: Gelu, BiasGelu, FastGelu, QuickGelu. Those whose kernels go element by element through
the functions of C take many times as long as exponentials, which are computed for 16 elements at once: Mish of 16,384 elements
takes 192 us, and 22 us so spelled; PRelu of images 4 to 16 times as long as a maximum, or a sum of both halves."""

import math
from functools import partial

from eqsat.conditions import constant, finite, kernels, same_type
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rules.onnxruntime.parameters import lies_along

_equations = partial(
    Equations,
    __name__,
    domain="com.microsoft",
    exactness=Exactness.ROUNDING,
    source="contrib operators of ONNX Runtime",
)
equation = _equations(where=[kernels("x", DType.FLOAT)])
fused = _equations(where=[kernels("x", DType.FLOAT, DType.FLOAT16)])  # of half precision there are kernels for GPUs


for kind, name, kernel, biased in (("none", "gelu", "Gelu", "BiasGelu"), ("tanh", "fast_gelu", "FastGelu", "FastGelu")):
    fused(  # for files of old opsets, too
        f"use_{name}_of_runtime", f"Gelu(x, approximate={kind!r}) == com.microsoft.{kernel}(x)"
    )
    fused(
        f"fuse_bias_into_{name}",
        f"Gelu(x + b, approximate={kind!r}) == com.microsoft.{biased}(x, b)",
        "b lies along the last axis: lies_along(b, x)",
        functions=named(lies_along),
    )
fused(
    "recognise_quick_gelu",
    "x * Sigmoid(x * c) == com.microsoft.QuickGelu(x, alpha=c.low)",
    constant("c"),
    same_type("x"),
    "c is one finite number: c.low == c.high and finite(c.low)",
    functions={"finite": math.isfinite},
)
fused("recognise_swish_as_quick_gelu", "x * Sigmoid(x) == com.microsoft.QuickGelu(x, alpha=1.0)")


E, TWO = "Exp(Clip(x, None, number(20, x.dtype)))", "number(2, x.dtype)"
SQUARES = f"({E} * ({E} + {TWO}))"  # of 1 + exp(x), less 1; beyond 20 the quotient is 1
equation(
    "spell_mish_by_exponentials",
    f"Mish(x) == x * ({SQUARES} / ({SQUARES} + {TWO}))",
    source="tanh(log(u)) = (u^2 - 1) / (u^2 + 1)",
)
equation(
    "spell_elu_by_exponential",
    "Elu(x, alpha=1) == Max(x, Exp(Clip(x, None, number(0, x.dtype))) - number(1, x.dtype))",
    source="exp(x) - 1 >= x",
)
equation(
    "take_larger_of_value_and_its_part_instead_of_prelu",
    "PRelu(x, s) == Max(x, x * s)",
    constant("s"),
    "a positive part: 0 < s.low and s.high <= 1",
    source="ONNX PRelu",
    drawn="s = ... | d.floats([], infinite=True)",
)
equation(
    "add_halves_instead_of_prelu",
    "PRelu(x, s) == Relu(x) + Clip(x, None, number(0, x.dtype)) * s",
    constant("s"),
    finite("s"),
    source="ONNX PRelu",
    drawn="s = ... | d.floats([], infinite=True)",
)
