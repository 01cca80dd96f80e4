"""Arithmetic that torch exports in no form, or in a wrong one, in ONNX: of signs, roundings, divisions and logarithms of sums."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportMissingParameterType=false
# pyright: reportUntypedFunctionDecorator=false, reportReturnType=false, reportCallIssue=false, reportArgumentType=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from onnx_ir import tensor_adapters
from onnxscript import DOUBLE, FLOAT, ir
from onnxscript import opset18 as op
from onnxscript.function_libs.torch_lib.ops import core


def read_as(found: Any, x: Any, dtype: Any) -> Any:
    """A value with the shape of another, which forms read."""
    found.shape, found.dtype = x.shape, dtype
    return found


def in_type(x: Any, dtype: Any) -> Any:
    return read_as(op.Cast(x, to=dtype), x, type(x.dtype)(dtype))


def number(value: float, x: Any) -> Any:
    """A number in the type of a value, with all the digits that this has; numbers of Python are single precision in ONNX."""
    return op.CastLike(op.Constant(value=ir.tensor(value, dtype=ir.DataType.DOUBLE)), x)


def below_zero(x: Any) -> Any:
    """Whether a number has a minus: zeros have signs, as in torch."""
    zero = op.CastLike(0.0, x)
    return op.Or(op.Less(x, zero), op.Less(op.Reciprocal(x), zero))


def atan2(y: Any, x: Any) -> Any:
    """The angle of a point. Torch exports pi and -pi for each other at ``y = 0`` (2.14)."""
    zero, pi = op.CastLike(0.0, x), number(math.pi, x)
    at_zero = op.And(op.Equal(x, zero), op.Equal(y, zero))
    angle = op.Where(at_zero, y, op.Atan(op.Div(y, x)))
    return op.Where(below_zero(x), op.Add(angle, op.Where(below_zero(y), op.Neg(pi), pi)), angle)


def copy_sign(x: Any, y: Any) -> Any:
    """No form in torch 2.14."""
    size = op.Abs(x) if x.dtype.is_floating_point() else op.Cast(op.Abs(x), to=FLOAT.dtype)
    minus, plus = op.CastLike(-1.0, size), op.CastLike(1.0, size)
    return op.Mul(size, op.Where(below_zero(op.CastLike(y, size)), minus, plus))  # of zeros, Where forgets the sign


def without_nan(form: Callable[..., Any]) -> Callable[..., Any]:
    """The larger or smaller of two numbers, of which one may be NaN (no form in torch 2.14)."""

    def found(a: Any, b: Any) -> Any:
        if not a.dtype.is_floating_point():
            return form(a, b)
        return op.Where(op.IsNaN(a), b, op.Where(op.IsNaN(b), a, form(a, b)))

    return found


def log_sigmoid(x: Any) -> Any:
    """Torch exports the logarithm of what is zero far below zero (2.14)."""
    return op.Neg(op.Softplus(op.Neg(x)))


def whole(form: Any) -> Callable[..., Any]:
    """A rounding: integers are whole, and have none in ONNX."""

    def rounded(x: Any) -> Any:
        return form(x) if x.dtype.is_floating_point() else op.Identity(x)

    return rounded


def log_of_sum(base: float) -> Callable[..., Any]:
    """The logarithm of a sum of powers of ``base``, which torch exports as the logarithm of what overflows (2.14)."""
    factor = math.log(base)

    def found(a: Any, b: Any) -> Any:
        apart = op.Mul(op.Abs(op.Sub(a, b)), number(-factor, a))
        more = op.Where(op.Equal(a, b), number(math.log(2), a), op.Softplus(apart))  # infinities are not apart
        return op.Add(op.Max(a, b), op.Mul(more, number(1 / factor, a)))

    return found


def logarithm(base: int) -> Callable[..., Any]:
    """Torch exports a quotient by the logarithm of ``base`` in single precision (2.14)."""

    def found(x: Any) -> Any:
        return op.Div(op.Log(x), number(math.log(base), x))

    return found


def hypotenuse(a: Any, b: Any) -> Any:
    """The length of what has two sides, whose squares may overflow (no form in torch 2.14)."""
    a, b = op.Abs(a), op.Abs(b)
    long, short = op.Max(a, b), op.Min(a, b)
    zero, one, infinity = (op.CastLike(value, a) for value in (0.0, 1.0, math.inf))
    share = op.Div(short, op.Where(op.Equal(long, zero), one, long))
    found = op.Mul(long, op.Sqrt(op.Add(op.Mul(share, share), one)))
    return op.Where(op.Or(op.Equal(a, infinity), op.Equal(b, infinity)), infinity, found)  # beside NaN, too


_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04, -1.25372503e-03),
    *(-4.17768164e-03, 2.46640727e-01, 1.50140941),
)
_FAR = (
    *(-2.00214257e-04, 1.00950558e-04, 1.34934322e-03, -3.67342844e-03, 5.73950773e-03, -7.6224613e-03),
    *(9.43887047e-03, 1.00167406, 2.83297682),
)


def inverse_error(x: Any) -> Any:
    """What the error function is ``x`` of, as single precision has it (M. Giles, Approximating the erfinv function, 2012; no form
    in torch 2.14)."""
    if x.dtype == DOUBLE.dtype:
        raise NotImplementedError("the inverse error function in double precision")
    y = op.Cast(x, to=FLOAT.dtype)

    def polynomial(coefficients: Sequence[float], at: Any) -> Any:
        found, *others = coefficients
        for coefficient in others:
            found = op.Add(op.Mul(found, at), coefficient)
        return found

    w = op.Neg(op.Log(op.Mul(op.Sub(1.0, y), op.Add(1.0, y))))
    near, far = polynomial(_NEAR, op.Sub(w, 2.5)), polynomial(_FAR, op.Sub(op.Sqrt(w), 3.0))
    found = op.Mul(op.Where(op.Less(w, 5.0), near, far), y)
    found = op.Where(op.Equal(op.Abs(y), 1.0), op.Mul(y, math.inf), found)
    return op.CastLike(found, x) if x.dtype.is_floating_point() else found


def quotient(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """Torch exports that of integers as one of floats, which have 24 bits (2.14). Known extents are numbers of Python."""
    if rounding_mode is not None and all(isinstance(v, int) for v in (a, b)) and b:
        down = a // b
        return op.Constant(value_int=down + (rounding_mode == "trunc" and down < 0 and down * b != a))
    if rounding_mode == "floor":
        return quotient_down(a, b)
    if not a.dtype.is_integer() or rounding_mode is None:
        return core.aten_div_mode(a, b, rounding_mode)
    return op.Div(a, op.CastLike(b, a))


def quotient_down(a: Any, b: Any) -> Any:
    """Torch exports that of floats as a quotient that is rounded, perhaps to the next integer (2.14). By a power of two it is
    not."""
    if a.dtype.is_integer() and isinstance(b, float):
        a = in_type(a, FLOAT.dtype)
    other = op.CastLike(b, a)
    other.dtype = a.dtype  # which the form gives its zeros
    if a.dtype.is_integer() or _is_power_of_two(b):
        return core.aten_floor_divide(a, other)
    rest, zero = op.Mod(a, other, fmod=1), op.CastLike(0.0, a)
    found = op.Round(op.Div(op.Sub(a, rest), other))
    found = op.Where(_across(rest, other, zero), op.Sub(found, op.CastLike(1.0, a)), found)
    return op.Where(op.Equal(other, zero), op.Div(a, other), found)


def remainder(a: Any, b: Any) -> Any:
    """Torch exports that of floats as a difference from a multiple, in which the quotient is rounded, perhaps to the next integer
    (2.14). By a power of two it is not."""
    other = op.CastLike(b, a)
    if a.dtype.is_integer() or _is_power_of_two(b):
        return core.aten_remainder(a, other)
    rest = op.Mod(a, other, fmod=1)
    return op.Where(_across(rest, other, op.CastLike(0.0, a)), op.Add(rest, other), rest)


def _is_power_of_two(value: Any) -> bool:
    return isinstance(value, int | float) and math.frexp(value)[0] == 0.5


def _across(rest: Any, divisor: Any, zero: Any) -> Any:
    """Whether what is left of a division has the other sign than what was divided by."""
    return op.And(op.Not(op.Equal(rest, zero)), op.Xor(op.Less(rest, zero), op.Less(divisor, zero)))


def difference_from(x: Any, number: float, alpha: float = 1) -> Any:
    """A number minus a tensor, whose integers torch does not convert where the number is none (2.14)."""
    if x.dtype.is_integer() and isinstance(number * alpha, float):
        x = in_type(x, FLOAT.dtype)
    return op.Sub(op.CastLike(number, x), x if alpha == 1 else op.Mul(x, op.CastLike(alpha, x)))


def power(x: Any, exponent: Any) -> Any:
    """Torch exports integers to the power of floats as integers (2.14)."""
    if x.dtype.is_integer() and exponent.dtype.is_floating_point():
        x = in_type(x, exponent.dtype)
    return op.Pow(x, exponent)


def power_by_number(x: Any, exponent: float) -> Any:
    """Torch exports the exponent in the type of the base, be it bytes, which ONNX Runtime has no kernel for (2.14)."""
    if isinstance(exponent, int) and x.dtype.is_integer():
        return op.Pow(x, op.Constant(value_int=exponent))
    return core.aten_pow_tensor_scalar(x, exponent)


def shifted(form: Any, direction: str) -> Callable[..., Any]:
    """A shift of bits, which torch exports as one of numbers with a sign (2.14)."""

    def found(a: Any, b: Any) -> Any:
        return form(a, b) if a.dtype.is_signed() else op.BitShift(a, op.CastLike(b, a), direction=direction)

    return found


def of_one_type(form: Any, *, divides: bool = False) -> Callable[..., Any]:
    """An operator under its other name, as ``multiply``, for which torch's exporter converts no types (2.14)."""

    def typed(x: Any) -> Any:
        if isinstance(x, int | float):
            return x
        return torch.empty([1] * len(x.shape), dtype=tensor_adapters.to_torch_dtype(x.dtype), device="meta")

    def found(a: Any, b: Any, **named: Any) -> Any:
        dtype = torch.result_type(typed(a), typed(b))
        dtype = torch.get_default_dtype() if divides and not dtype.is_floating_point else dtype
        a = in_type(a, tensor_adapters.from_torch_dtype(dtype))
        return form(a, op.CastLike(b, a) if isinstance(b, int | float) else in_type(b, a.dtype), **named)

    return found


def is_finite(x: Any) -> Any:
    """Integers are, which have no infinities in ONNX."""
    return core.aten_isfinite(x) if x.dtype.is_floating_point() else op.Equal(x, x)


def arithmetic_table() -> dict[Any, Any]:
    """Operator of torch -> its form."""
    aten = torch.ops.aten
    left, right = (
        shifted(f, d) for f, d in ((core.aten_bitwise_left_shift, "LEFT"), (core.aten_bitwise_right_shift, "RIGHT"))
    )
    of_number = (
        shifted(core.aten_bitwise_left_shift_tensor_scalar, "LEFT"),
        shifted(core.aten_bitwise_right_shift_tensor_scalar, "RIGHT"),
    )
    return {
        aten.multiply.Tensor: of_one_type(core.aten_mul),
        aten.subtract.Tensor: of_one_type(core.aten_sub),
        aten.divide.Tensor: of_one_type(core.aten_div, divides=True),
        aten.greater.Tensor: of_one_type(op.Greater),
        aten.greater_equal.Tensor: of_one_type(op.GreaterOrEqual),
        aten.less.Tensor: of_one_type(op.Less),
        aten.less_equal.Tensor: of_one_type(op.LessOrEqual),
        aten.not_equal.Tensor: of_one_type(core.aten_ne),
        aten.isfinite.default: is_finite,
        aten.atan2.default: atan2,
        aten.log_sigmoid.default: log_sigmoid,
        aten.log2.default: logarithm(2),
        aten.log10.default: logarithm(10),
        aten.erfinv.default: inverse_error,
        aten.hypot.default: hypotenuse,
        aten.copysign.Tensor: copy_sign,
        aten.copysign.Scalar: copy_sign,
        aten.fmax.default: without_nan(op.Max),
        aten.fmin.default: without_nan(op.Min),
        aten.floor.default: whole(core.aten_floor),
        aten.ceil.default: whole(core.aten_ceil),
        aten.round.default: whole(core.aten_round),
        aten.trunc.default: whole(core.aten_trunc),
        aten.logaddexp.default: log_of_sum(math.e),
        aten.logaddexp2.default: log_of_sum(2),
        aten.div.Tensor_mode: quotient,
        aten.div.Scalar_mode: quotient,
        aten.floor_divide.default: quotient_down,
        aten.floor_divide.Scalar: quotient_down,
        aten.rsub.Scalar: difference_from,
        aten.pow.Tensor_Tensor: power,
        aten.pow.Tensor_Scalar: power_by_number,
        aten.remainder.Tensor: remainder,
        aten.remainder.Scalar: remainder,
        aten.bitwise_left_shift.Tensor: left,
        aten.bitwise_right_shift.Tensor: right,
        aten.bitwise_left_shift.Tensor_Scalar: of_number[0],
        aten.bitwise_right_shift.Tensor_Scalar: of_number[1],
        aten.__lshift__.Scalar: of_number[0],
        aten.__rshift__.Scalar: of_number[1],
    }
