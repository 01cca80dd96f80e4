"""BatchNormalization at inference is a multiplication and an addition."""

import numpy as np

from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import Ref, Term, apply, literal
from eqsat.rules.linear.alignment import FLOAT, limit
from eqsat.rules.terms import add, converted, div, mul, reshape, sub


def precise(x: Ref) -> DType:
    """The type in which scale and shift are computed: in half precision epsilon would be lost."""
    return DType.DOUBLE if x.dtype is DType.DOUBLE else DType.FLOAT


def wide(x: Ref, value: Ref) -> Term:
    """A vector in that type."""
    return converted(value, value.dtype, precise(x))


def gain(x: Ref, gamma: Ref, var: Ref, epsilon: float) -> Term:
    """``gamma / Sqrt(var + epsilon)``"""
    number = literal(np.float32(epsilon), precise(x))
    return div(wide(x, gamma), apply("Sqrt", add(wide(x, var), number)))


def shift(x: Ref, beta: Ref, mean: Ref, scale: Term) -> Term:
    """``beta - mean * scale``"""
    return sub(wide(x, beta), mul(wide(x, mean), scale))


def fit(x: Ref, gamma: Ref, beta: Ref, mean: Ref, var: Ref, epsilon: float) -> bool:
    """Whether gain and shift are finite in the type of ``x``. In half precision they may not be where ``x - mean`` is small, so
    they have to be known."""
    if x.dtype not in HALVES:
        return True
    a, b, m, v = (vector.value.astype(np.float64) for vector in (gamma, beta, mean, var))
    with np.errstate(all="ignore"):
        scale = a / np.sqrt(v + epsilon)
        return bool((np.maximum(np.abs(scale), np.abs(b - m * scale)) < limit(x)).all())


def channels(x: Ref, vector: Term) -> Term:
    """A vector in the element type of ``x``, shaped to broadcast along its axis 1."""
    vector = converted(vector, precise(x), x.dtype)
    return vector if x.rank == 2 else reshape(vector, (-1, *(1,) * (x.rank - 2)))


equation = Equations(__name__, exactness=Exactness.ROUNDING)
equation(
    "batch_normalization_as_scale_and_shift",
    """BatchNormalization(x, gamma, beta, mean, var, epsilon=e, training_mode=0, **n)
       == x * channels(x, gain(x, gamma, var, e)) + channels(x, shift(x, beta, mean, gain(x, gamma, var, e)))""",
    FLOAT,
    "gain and shift are finite: fit(x, gamma, beta, mean, var, e)",
    source="ONNX BatchNormalization; TVM SimplifyInference",
)
