"""Elementwise arithmetic: sums, products, roots, rounding, the mathematical functions of one variable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import broadcast
from eqsat.ir.operators.elementwise import (
    binary,
    define_elementwise,
    infer_broadcast,
    infer_variadic,
    narrow,
    unary,
    wide,
    wide_unary,
)
from eqsat.ir.types import TensorType, Type


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``a / b``; for integers rounded toward zero, as in C. Numpy rounds toward minus infinity."""
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    inexact = quotient * b != a
    return quotient + (inexact & ((a < 0) != (b < 0))).astype(a.dtype)


def _infer_pow(app: Application) -> tuple[Type, ...]:
    base, exponent = app.tensor(0), app.tensor(1)
    return (TensorType(base.dtype, broadcast(app, base.shape, exponent.shape)),)


def _pow(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``Y = base ^ exponent`` in the element type of the base, whatever that of the exponent."""
    base, exponent = inputs
    if base.dtype.kind in "iu":
        if exponent.dtype.kind in "iu" and bool(np.all(exponent >= 0)):
            return (narrow(np.power(base, exponent.astype(base.dtype)), base),)
        return (narrow(np.power(base.astype(np.float64), exponent.astype(np.float64)), base),)
    # Each base with an exponent of its own: for a single one of 0.5 NumPy takes Sqrt, which differs at minus infinity.
    bases, exponents = np.broadcast_arrays(wide(base), exponent.astype(wide(base).dtype))
    power = np.power(bases.ravel(), np.array(exponents, order="C").ravel()).reshape(bases.shape)
    return (narrow(power, base),)


def _mod(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``a - b*floor(a/b)`` (sign of the divisor), or with ``fmod=1`` ``a - b*trunc(a/b)`` (sign of the dividend)."""
    a, b = inputs
    compute = np.fmod if attributes.get("fmod", 0) else np.mod
    return (narrow(compute(a, b), a),)


def _sum(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``x0 + x1 + ...`` from the left."""
    return (narrow(reduce(np.add, inputs), inputs[0]),)


def _mean(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``(x0 + x1 + ...) / count``"""
    return (narrow(reduce(np.add, map(wide, inputs)) / len(inputs), inputs[0]),)


def _min(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    return (narrow(reduce(np.minimum, inputs), inputs[0]),)


def _max(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    return (narrow(reduce(np.maximum, inputs), inputs[0]),)


def _clip(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    """``min(max(x, low), high)``: where low > high the result is high."""
    x = inputs[0]
    low = inputs[1] if len(inputs) > 1 else None
    high = inputs[2] if len(inputs) > 2 else None
    result = x
    if low is not None:
        result = np.maximum(result, low.reshape(()))
    if high is not None:
        result = np.minimum(result, high.reshape(()))
    return (narrow(result, x),)


def _infer_clip(app: Application) -> tuple[Type, ...]:
    for i in (1, 2):
        if app.has(i):
            bound = app.tensor(i)
            if bound.shape is not None and bound.shape not in ((), (1,)):
                raise app.fail("bounds must be scalars")
    return (app.tensor(0),)


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return erf(x)


def _bit_shift(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    compute = np.left_shift if attributes.get("direction") == "LEFT" else np.right_shift
    return (narrow(compute(inputs[0], inputs[1]), inputs[0]),)


# Y = A op B, one IEEE rounding each.
for _name, _compute, _commutes in (
    ("Add", np.add, True),
    ("Sub", np.subtract, False),
    ("Mul", np.multiply, True),
    ("Div", divide, False),
    ("BitwiseAnd", np.bitwise_and, True),
    ("BitwiseOr", np.bitwise_or, True),
    ("BitwiseXor", np.bitwise_xor, True),
):
    define_elementwise(_name, binary(_compute), infer=infer_broadcast, bit_exact=True, commutative=_commutes)

define_elementwise("Mod", _mod, infer=infer_broadcast, bit_exact=True)
define_elementwise("BitShift", _bit_shift, infer=infer_broadcast, bit_exact=True)
define_elementwise("Pow", _pow, infer=_infer_pow)
define_elementwise("Sum", _sum, infer=infer_variadic, commutative=True)
define_elementwise("Mean", _mean, infer=infer_variadic, commutative=True)
define_elementwise("Min", _min, infer=infer_variadic, bit_exact=True, commutative=True)
define_elementwise("Max", _max, infer=infer_variadic, bit_exact=True, commutative=True)
define_elementwise("Clip", _clip, infer=_infer_clip, flops=2, bit_exact=True)

# Y = f(X), correctly rounded by every implementation.
for _name, _exact in (
    ("Neg", np.negative),
    ("Abs", np.abs),
    ("Sign", np.sign),
    ("Floor", np.floor),
    ("Ceil", np.ceil),
    ("Round", np.rint),  # half to even
    ("Sqrt", np.sqrt),
    ("Reciprocal", lambda x: np.divide(np.ones((), x.dtype), x)),
    ("BitwiseNot", np.bitwise_not),
):
    define_elementwise(_name, unary(_exact), bit_exact=True)

# Y = f(X), to within an error that depends on the implementation.
for _name, _approximate in (
    ("Exp", np.exp),
    ("Log", np.log),
    ("Erf", _erf),
    ("Sin", np.sin),
    ("Cos", np.cos),
    ("Tan", np.tan),
    ("Asin", np.arcsin),
    ("Acos", np.arccos),
    ("Atan", np.arctan),
    ("Sinh", np.sinh),
    ("Cosh", np.cosh),
    ("Tanh", np.tanh),
    ("Asinh", np.arcsinh),
    ("Acosh", np.arccosh),
    ("Atanh", np.arctanh),
):
    define_elementwise(_name, wide_unary(_approximate))
