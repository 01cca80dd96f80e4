"""An operator of one's own, and the rule that finds it: ``eqsat optimize model.onnx --rules my_operator.py``."""

import eqsat
from eqsat.conditions import same_type
from eqsat.ir.composite import define_composite
from eqsat.ir.operator import Kind


def hard_gelu(b, attributes, inputs):
    """``x * clip(x / 4 + 1/2, 0, 1)``, built from operators of ONNX."""
    (x,) = inputs
    quarter, half, zero, one = (b.constant(value, "float32") for value in (0.25, 0.5, 0.0, 1.0))
    return [b.op("Mul", x, b.op("Clip", b.op("Add", b.op("Mul", x, quarter), half), zero, one))]


define_composite("my.kernels::HardGelu", hard_gelu, Kind.ELEMENTWISE)

eqsat.equation(
    "recognise_hard_gelu",
    "x * Clip(x * 0.25 + 0.5, 0, 1) == my.kernels.HardGelu(x)",
    "float32: x.dtype is float32",
    same_type("x"),
    exactness="rounding",
    domain="my.kernels",
    reverse="spell_out_hard_gelu",
)
