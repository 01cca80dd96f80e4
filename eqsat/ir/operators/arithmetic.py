"""Elementwise arithmetic: sums, products, roots, rounding, the mathematical functions of one variable."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import broadcast
from eqsat.ir.operators.elementwise import (
    Binary,
    Meaning,
    Unary,
    binary,
    define_elementwise,
    double,
    erf,
    function,
    infer_broadcast,
    infer_variadic,
    narrow,
    unary,
    wide,
)
from eqsat.ir.traits import EVERY, VARIADIC, Traits
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


def _pow(attributes: Attributes, base: Any, exponent: Any) -> Any:
    """``Y = base ^ exponent`` in the element type of the base, whatever that of the exponent."""
    if base.dtype.kind in "iu":
        if exponent.dtype.kind in "iu" and bool(np.all(exponent >= 0)):
            return narrow(np.power(base, exponent.astype(base.dtype)), base)
        return narrow(np.power(base.astype(np.float64), exponent.astype(np.float64)), base)
    # Each base with an exponent of its own: for a single one of 0.5 NumPy takes Sqrt, which differs at minus infinity.
    widened = double(base)
    bases, exponents = np.broadcast_arrays(widened, exponent.astype(widened.dtype))
    power = np.power(bases.ravel(), np.array(exponents, order="C").ravel()).reshape(bases.shape)
    return narrow(power, base)


def _mod(attributes: Attributes, a: Any, b: Any) -> Any:
    """``a - b*floor(a/b)`` (sign of the divisor), or with ``fmod=1`` ``a - b*trunc(a/b)`` (sign of the dividend)."""
    compute = np.fmod if attributes.get("fmod", 0) else np.mod
    return narrow(compute(a, b), a)


def _mean(attributes: Attributes, *inputs: np.ndarray) -> Any:
    """``(x0 + x1 + ...) / count``"""
    return narrow(reduce(np.add, map(wide, inputs)) / len(inputs), inputs[0])


def _variadic(compute: Binary) -> Meaning:
    """``compute`` of any number of operands, from the left."""

    def evaluate(attributes: Attributes, *inputs: np.ndarray) -> Any:
        return narrow(reduce(compute, inputs), inputs[0])

    return evaluate


def _clip(attributes: Attributes, x: Any, low: Any = None, high: Any = None) -> Any:
    """``min(max(x, low), high)``: where low > high the result is high."""
    result = x
    if low is not None:
        result = np.maximum(result, low.reshape(()))
    if high is not None:
        result = np.minimum(result, high.reshape(()))
    return narrow(result, x)


def _infer_clip(app: Application) -> tuple[Type, ...]:
    for i in (1, 2):
        if app.has(i) and app.shape(i) not in (None, (), (1,)):
            raise app.fail("bounds must be scalars")
    return (app.tensor(0),)


def _bit_shift(attributes: Attributes, x: Any, bits: Any) -> Any:
    compute = np.left_shift if attributes.get("direction") == "LEFT" else np.right_shift
    return narrow(compute(x, bits), x)


_SUM = Traits(operands=2, continuous=True, rising=True, neutral=0, affine=(0, 1), keeps_whole=True)
_PRODUCT = Traits(operands=2, continuous=True, homogeneous=True, neutral=1, affine=(0, 1), keeps_whole=True)
_QUOTIENT = Traits(operands=2, continuous=True, homogeneous=True, neutral=1, affine=(0,), divisors=(1,))
_EXTREMUM = Traits(operands=VARIADIC, sources=EVERY, rising=True, continuous=True, idempotent=True)
_STAIRS = function(whole=True, rising=True, idempotent=True)

# Y = A op B, one IEEE rounding each.
for _name, _compute, _commutes, _traits in (
    ("Add", np.add, True, _SUM),
    ("Sub", np.subtract, False, _SUM),
    ("Mul", np.multiply, True, _PRODUCT),
    ("Div", divide, False, _QUOTIENT),
    ("BitwiseAnd", np.bitwise_and, True, Traits(operands=2, idempotent=True)),
    ("BitwiseOr", np.bitwise_or, True, Traits(operands=2, idempotent=True, neutral=0)),
    ("BitwiseXor", np.bitwise_xor, True, Traits(operands=2, neutral=0)),
):
    _facts: dict[str, Any] = {"bit_exact": True, "commutative": _commutes, "traits": _traits}
    define_elementwise(_name, binary(_compute), infer=infer_broadcast, **_facts)

define_elementwise("Mod", _mod, infer=infer_broadcast, bit_exact=True, traits=Traits(operands=2, divisors=(1,)))
define_elementwise("BitShift", _bit_shift, infer=infer_broadcast, bit_exact=True, traits=Traits(operands=2, neutral=0))


def _is_no_double(attributes: Attributes, operands: Sequence[Any]) -> bool:
    """Some runtimes compute powers of integers in double precision, and cut off what the type has no room for."""
    base, exponent = operands
    if base is None or exponent is None or base.dtype.kind not in "iu":
        return False
    most = min(2**53, np.iinfo(base.dtype).max)
    with np.errstate(all="ignore"):
        return bool((np.abs(base.astype(np.float64)) ** exponent.astype(np.float64) > most).any())


_power = Traits(operands=2, continuous=True, neutral=1)
define_elementwise("Pow", _pow, infer=_infer_pow, traits=_power, disputed=_is_no_double)
_linear = Traits(operands=VARIADIC, affine=EVERY, rising=True, continuous=True)
define_elementwise(
    "Sum", _variadic(np.add), infer=infer_variadic, commutative=True, traits=replace(_linear, keeps_whole=True)
)
define_elementwise("Mean", _mean, infer=infer_variadic, commutative=True, traits=_linear)
define_elementwise(
    "Min", _variadic(np.minimum), infer=infer_variadic, bit_exact=True, commutative=True, traits=_EXTREMUM
)
define_elementwise(
    "Max", _variadic(np.maximum), infer=infer_variadic, bit_exact=True, commutative=True, traits=_EXTREMUM
)
_clamping = function(sources=(0, 1, 2), rising=True, continuous=True, idempotent=True)


def _is_open(attributes: Attributes, operands: Sequence[Any]) -> bool:
    """Of infinity without a bound runtimes make the largest number, and of what is no number what they like."""
    x, low, high = (None if o is None else o.astype(np.float64) for o in (*operands, None, None)[:3])
    if any(o is not None and bool(np.isnan(o).any()) for o in (x, low, high)):
        return True
    sides = ((-np.inf, low), (np.inf, high))
    return x is not None and any(
        bool((x == infinite).any()) and (bound is None or bool(np.isinf(bound).any())) for infinite, bound in sides
    )


define_elementwise("Clip", _clip, infer=_infer_clip, flops=2, bit_exact=True, traits=_clamping, disputed=_is_open)

_SIGNED = {"homogeneous": True, "continuous": True, "exact": True, "keeps_whole": True}
_RISES = {"rising": True, "continuous": True}

# Y = f(X), correctly rounded by every implementation.
_rounded: tuple[tuple[str, Unary, Traits], ...] = (
    ("Neg", np.negative, function(affine=(0,), **_SIGNED)),
    ("Abs", np.abs, function(idempotent=True, bounds=(0.0, math.inf), **_SIGNED)),
    ("Sign", np.sign, replace(_STAIRS, bounds=(-1.0, 1.0))),
    ("Floor", np.floor, _STAIRS),
    ("Ceil", np.ceil, _STAIRS),
    ("Round", np.rint, _STAIRS),  # half to even
    ("Sqrt", np.sqrt, function(bounds=(0.0, math.inf), **_RISES)),
    ("Reciprocal", lambda x: np.divide(np.ones((), x.dtype), x), function(continuous=True)),
    ("BitwiseNot", np.bitwise_not, function()),
)
for _name, _exact, _traits in _rounded:
    define_elementwise(_name, unary(_exact), bit_exact=True, traits=_traits)

# Y = f(X), to within an error that depends on the implementation.
for _name, _approximate, _traits in (
    ("Exp", np.exp, function(bounds=(0.0, math.inf), **_RISES)),
    ("Log", np.log, function(**_RISES)),
    ("Erf", erf, function(bounds=(-1.0, 1.0), value=math.erf, **_RISES)),
    ("Sin", np.sin, function(bounds=(-1.0, 1.0), continuous=True)),
    ("Cos", np.cos, function(bounds=(-1.0, 1.0), continuous=True)),
    ("Tan", np.tan, function(continuous=True)),
    ("Asin", np.arcsin, function(**_RISES)),
    ("Acos", np.arccos, function(continuous=True)),
    ("Atan", np.arctan, function(**_RISES)),
    ("Sinh", np.sinh, function(**_RISES)),
    ("Cosh", np.cosh, function(continuous=True)),
    ("Tanh", np.tanh, function(bounds=(-1.0, 1.0), value=math.tanh, **_RISES)),
    ("Asinh", np.arcsinh, function(**_RISES)),
    ("Acosh", np.arccosh, function(**_RISES)),
    ("Atanh", np.arctanh, function(**_RISES)),
):
    define_elementwise(_name, unary(_approximate), traits=_traits)
