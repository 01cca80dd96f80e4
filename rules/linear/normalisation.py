"""BatchNormalization at inference is a multiplication and an addition."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.linear.alignment import FLOATS
from eqsat.rules.terms import add, condition, div, mul, sub
from eqsat.samples import Sampler

x, gamma, beta, mean, var = variables("x gamma beta mean var")


@condition("not training")
def inference(m: Match) -> bool:
    return m.norm.attr("training_mode", 0) == 0


def _sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape(2, 4)
    dtype = d.choose(("float32", "float32", "float64"))
    vectors = {name: d.either(d.floats((shape[1],), dtype)) for name in ("gamma", "beta", "mean")}
    attributes: dict[str, Any] = {} if d.chance() else {"epsilon": d.choose((1e-3, 0.5))}
    if d.chance(0.1):
        attributes["training_mode"] = 1
    variance = d.either(d.positive((shape[1],), dtype))
    return {"x": d.floats(shape, dtype), **vectors, "var": variance, "norm": attributes}


@rule(
    apply("BatchNormalization", x, gamma, beta, mean, var).named("norm"),
    where=[inference],
    exactness=Exactness.ROUNDING,
    source="ONNX BatchNormalization; TVM SimplifyInference",
    sample=_sample,
)
def batch_normalization_as_scale_and_shift(m: Match) -> Term:
    """``BatchNormalization(x, gamma, beta, mean, var) == x * scale + (beta - mean * scale)``.

    ``scale = gamma / sqrt(var + epsilon)``, both along axis 1 of ``x``. The statistics need not be constant. In half
    precision ``epsilon`` would be lost: scale and shift are computed in float32.
    """
    m.require(m.x.rank >= 2, "the input has no channel axis")
    m.require(m.x.dtype in FLOATS, "no float type that all kernels know")
    dtype = DType.DOUBLE if m.x.dtype is DType.DOUBLE else DType.FLOAT
    weight, bias, average, variance = (_in(v, dtype) for v in (m.gamma, m.beta, m.mean, m.var))
    epsilon = literal(np.float32(m.norm.attr("epsilon", 1e-5)), dtype)
    scale = div(weight, apply("Sqrt", add(variance, epsilon)))
    shift = sub(bias, mul(average, scale))
    return add(mul(m.x, _channels(m, scale)), _channels(m, shift))


def _in(value: Ref, dtype: DType) -> Term:
    return value if value.dtype is dtype else apply("Cast", value, to=int(dtype))


def _channels(m: Match, vector: Term) -> Term:
    """A vector in the element type of ``x``, shaped to broadcast along its axis 1."""
    if m.x.dtype is DType.FLOAT16:
        vector = apply("Cast", vector, to=int(DType.FLOAT16))
    if m.x.rank == 2:
        return vector
    return apply("Reshape", vector, literal([-1, *(1,) * (m.x.rank - 2)], DType.INT64))
