"""Activation functions: elementwise, each with its equation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import check_broadcasts_to, common_dtype
from eqsat.ir.operators.elementwise import (
    OfOne,
    define_elementwise,
    double,
    erf,
    function,
    infer_broadcast,
    narrow,
    unary,
)
from eqsat.ir.traits import Traits, whatever
from eqsat.ir.types import TensorType, Type

GELU = function(continuous=True, bounds=(-0.1701, math.inf), structure="gelu")

Activation = Callable[[np.ndarray, Attributes], Any]


def sigmoid(x: np.ndarray) -> np.ndarray:
    """``1 / (1 + exp(-x))``, written so that exp never overflows."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x: np.ndarray) -> np.ndarray:
    """``log(1 + exp(x))``, written so that exp never overflows."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


_TWO_OVER_PI, _CUBIC = float(np.float32(2 / np.pi)), float(np.float32(0.044715))
"""In ONNX's definition of Gelu as a function they are float32 whatever its input is."""


def _gelu(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x/2 * (1 + erf(x/sqrt 2))``, or ``x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))``"""
    if attributes.get("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(float(np.sqrt(_TWO_OVER_PI)) * (x + _CUBIC * x * x * x)))
    return 0.5 * x * (1 + erf(x * float(np.sqrt(0.5))))


def _elu(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x`` where x >= 0, else ``alpha * (exp(x) - 1)``"""
    return np.where(x >= 0, x, attributes.get("alpha", 1.0) * np.expm1(np.minimum(x, 0)))


def _celu(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``max(0, x) + min(0, alpha * (exp(x/alpha) - 1))``"""
    alpha: Any = attributes.get("alpha", 1.0)
    return np.maximum(x, 0) + np.minimum(0, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _selu(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``gamma * (x where x > 0 else alpha * (exp(x) - 1))``"""
    alpha = attributes.get("alpha", 1.67326319217681884765625)
    gamma = attributes.get("gamma", 1.05070102214813232421875)
    return gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``max(0, min(1, alpha*x + beta))``"""
    return np.maximum(0, np.minimum(1, attributes.get("alpha", 0.2) * x + attributes.get("beta", 0.5)))


def _hard_swish(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x * max(0, min(1, x/6 + 1/2))``"""
    return x * np.maximum(0, np.minimum(1, x * float(np.float32(1 / 6)) + 0.5))


def _swish(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x * sigmoid(alpha*x)``"""
    return x * sigmoid(attributes.get("alpha", 1.0) * x)


def gated(b: Any, x: str | None, alpha: float) -> str:
    """``x * sigmoid(alpha*x)``, as operators."""
    scaled = x if alpha == 1 else b.op("Mul", x, b.constant(alpha, b.type_of(x).dtype))
    return b.op("Mul", x, b.op("Sigmoid", scaled))


def _spelled_swish(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    """As files have it: ONNX Runtime loads the opset of Swish, but has neither a kernel for it nor expands it."""
    return [gated(b, inputs[0], attributes.get("alpha", 1.0))]


def _swi_glu(attributes: Attributes, gate: Any, x: Any) -> Any:
    """``swish(gate) * x``"""
    return narrow(_swish(double(gate), attributes) * double(x), x)


def _spelled_swi_glu(b: Any, attributes: Attributes, inputs: Sequence[str | None]) -> Sequence[str]:
    return [b.op("Mul", *_spelled_swish(b, attributes, inputs[:1]), inputs[1])]


def _leaky_relu(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x`` where x >= 0, else ``alpha*x``"""
    return np.where(x >= 0, x, attributes.get("alpha", 0.01) * x)


def _thresholded_relu(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x`` where x > alpha, else 0"""
    return np.where(x > attributes.get("alpha", 1.0), x, 0)


def _shrink(x: np.ndarray, attributes: Attributes) -> np.ndarray:
    """``x + bias`` below -lambd, ``x - bias`` above lambd, else 0"""
    bias, lambd = attributes.get("bias", 0.0), attributes.get("lambd", 0.5)
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def _with_attributes(compute: Activation) -> OfOne:
    return lambda attributes, x: narrow(compute(double(x), attributes), x)


def _prelu(attributes: Attributes, x: Any, slope: Any) -> Any:
    """``x`` where x >= 0, else ``slope*x``"""
    return narrow(np.where(x >= 0, x, x * slope), x)


def _infer_prelu(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is not None:
        check_broadcasts_to(app, 1, x.shape, "the slope")
    return (TensorType(common_dtype(app, 0, 1), x.shape),)


def _never_falls(attributes: Attributes) -> bool:
    return attributes.get("alpha", 1.0) >= 0


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


_POSITIVE = (0.0, math.inf)
_RISES = {"rising": True, "continuous": True}
_kept = function(sources=(0,), or_zero=True, rising=True, idempotent=True, holds=_never_falls)
_rectified = replace(_kept, continuous=True, homogeneous=True, bounds=_POSITIVE, holds=whatever)
_leaking = function(homogeneous=True, holds=_never_falls, **_RISES)
_sigmoid = function(bounds=(0.0, 1.0), value=_logistic, **_RISES)
_smooth = function(continuous=True)
_hard_swish_traits = replace(_smooth, bounds=(-0.3751, math.inf), structure="hard_swish")

define_elementwise("Relu", unary(lambda x: np.maximum(x, 0)), bit_exact=True, traits=_rectified)
define_elementwise("LeakyRelu", _with_attributes(_leaky_relu), flops=2, traits=_leaking)
# The slope of PRelu is broadcast to the data, never the data to the slope.
define_elementwise("PRelu", _prelu, infer=_infer_prelu, flops=2, traits=Traits(continuous=True, homogeneous=True))
define_elementwise("ThresholdedRelu", _with_attributes(_thresholded_relu), bit_exact=True, traits=_kept)
define_elementwise("Shrink", _with_attributes(_shrink), flops=2, traits=function())
define_elementwise("Sigmoid", unary(sigmoid), flops=4, traits=_sigmoid)
define_elementwise("HardSigmoid", _with_attributes(_hard_sigmoid), flops=4, traits=replace(_smooth, bounds=(0.0, 1.0)))
define_elementwise("HardSwish", _with_attributes(_hard_swish), flops=5, traits=_hard_swish_traits)
define_elementwise(
    "Swish", _with_attributes(_swish), flops=5, expand=_spelled_swish, traits=replace(_smooth, structure="silu")
)
define_elementwise(
    "SwiGLU",
    _swi_glu,
    infer=infer_broadcast,
    flops=6,
    expand=_spelled_swi_glu,
    traits=Traits(operands=2, continuous=True),
)
define_elementwise("Softplus", unary(softplus), flops=3, traits=function(bounds=_POSITIVE, **_RISES))
define_elementwise(
    "Softsign", unary(lambda x: x / (1 + np.abs(x))), flops=3, traits=function(bounds=(-1.0, 1.0), **_RISES)
)
define_elementwise(
    "Mish",
    unary(lambda x: x * np.tanh(softplus(x))),
    flops=5,
    traits=replace(_smooth, bounds=(-0.3089, math.inf), structure="mish"),
)
define_elementwise("Elu", _with_attributes(_elu), flops=3, traits=_smooth)
define_elementwise("Celu", _with_attributes(_celu), flops=5, traits=_smooth)
define_elementwise("Selu", _with_attributes(_selu), flops=4, traits=_smooth)
define_elementwise("Gelu", _with_attributes(_gelu), flops=5, traits=GELU)
