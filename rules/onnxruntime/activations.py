"""Activations as ONNX Runtime has kernels: Gelu, BiasGelu, FastGelu, QuickGelu."""

import math

from eqsat.conditions import constant, kernels, same_type
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rules.onnxruntime.parameters import lies_along

equation = Equations(
    __name__, domain="com.microsoft", exactness=Exactness.ROUNDING, source="contrib operators of ONNX Runtime"
)
FLOAT32 = kernels("x", DType.FLOAT)


for kind, name, kernel, biased in (("none", "gelu", "Gelu", "BiasGelu"), ("tanh", "fast_gelu", "FastGelu", "FastGelu")):
    equation(  # for files of old opsets, too
        f"use_{name}_of_runtime", f"Gelu(x, approximate={kind!r}) == com.microsoft.{kernel}(x)", FLOAT32
    )
    equation(
        f"fuse_bias_into_{name}",
        f"Gelu(x + b, approximate={kind!r}) == com.microsoft.{biased}(x, b)",
        FLOAT32,
        "b lies along the last axis: lies_along(b, x)",
        functions=named(lies_along),
    )
equation(
    "recognise_quick_gelu",
    "x * Sigmoid(x * c) == com.microsoft.QuickGelu(x, alpha=c.low)",
    constant("c"),
    same_type("x"),
    FLOAT32,
    "c is one finite number: c.low == c.high and finite(c.low)",
    functions={"finite": math.isfinite},
)
equation("recognise_swish_as_quick_gelu", "x * Sigmoid(x) == com.microsoft.QuickGelu(x, alpha=1.0)", FLOAT32)
