"""Random applications of operators: elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ir.operator_drawing import (
    FLOATS,
    Rng,
    broadcasting,
    extents,
    instance,
    numbers,
    pick,
)


@instance("Neg", "Abs", "Sign")
def _signed(rng: Rng, op: str) -> tuple[Any, ...]:
    return [
        numbers(rng, extents(rng), pick(rng, np.float32, np.float64, np.int8, np.int32, np.int64), op != "Sign")
    ], {}


@instance("Floor", "Ceil", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Tanh", "Sigmoid", "Relu", "Softsign")
def _float_unary(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), pick(rng, *FLOATS), op != "Softsign")], {}


@instance("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")
def _trigonometric(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), np.float32, special=False)], {}


@instance("Softplus", "Mish", "HardSwish", "Swish")
def _plain_activation(rng: Rng, op: str) -> tuple[Any, ...]:
    x = numbers(rng, extents(rng, 1), np.float32, special=False, spread=pick(rng, 1.0, 30.0))
    return [x], ({"alpha": 1.5} if op == "Swish" and rng.random() < 0.5 else {})


@instance("SwiGLU")
def _gated(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    operands = [numbers(rng, shape, np.float32, special=False, spread=pick(rng, 1.0, 30.0)) for _ in range(2)]
    return operands, pick(rng, {}, {"alpha": 1.5})


@instance("Elu", "Celu", "Selu", "LeakyRelu", "ThresholdedRelu", "HardSigmoid")
def _activation(rng: Rng, op: str) -> tuple[Any, ...]:
    attributes = {"alpha": float(rng.uniform(0.1, 2))} if rng.random() < 0.6 else {}
    if op in ("Selu", "HardSigmoid") and rng.random() < 0.5:
        attributes["gamma" if op == "Selu" else "beta"] = float(rng.uniform(0.1, 2))
    return [numbers(rng, extents(rng, 1), np.float32, special=False, spread=pick(rng, 1.0, 30.0))], attributes


@instance("Shrink")
def _shrink(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng, 1), np.float32, special=False)], pick(rng, {}, {"lambd": 1.0, "bias": 0.25})


@instance("Gelu")
def _gelu(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng, 1), np.float32, special=False)], pick(rng, {}, {"approximate": "tanh"})


@instance("PRelu")
def _prelu(rng: Rng, op: str) -> tuple[Any, ...]:
    full = extents(rng, 1)
    slope = tuple(1 if rng.random() < 0.4 else d for d in full[int(rng.integers(0, len(full))) :])
    dtype = pick(rng, np.float32, np.float64)
    return [numbers(rng, full, dtype, special=False), numbers(rng, slope, dtype, special=False)], {}


@instance("Add", "Sub", "Mul")
def _arithmetic(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, *FLOATS, np.int32, np.int64)
    return [numbers(rng, s, dtype) for s in broadcasting(rng, 2)], {}


@instance("Div")
def _div(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = np.dtype(pick(rng, *FLOATS, np.int32, np.int64))
    a, b = (numbers(rng, s, dtype, special=dtype.kind == "f") for s in broadcasting(rng, 2))
    return [a, b if dtype.kind == "f" else np.where(b == 0, 3, b).astype(dtype)], {}


@instance("Mod")
def _mod(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = np.dtype(pick(rng, np.float32, np.int32, np.int64, np.uint8, np.int8))
    a, b = (numbers(rng, s, dtype, special=False) for s in broadcasting(rng, 2))
    return [a, np.where(b == 0, 3, b).astype(dtype)], {"fmod": pick(rng, 0, 1)}


@instance("Pow")
def _pow(rng: Rng, op: str) -> tuple[Any, ...]:
    a, b = broadcasting(rng, 2)
    base, exponent = pick(
        rng, (np.float32, np.float32), (np.float32, np.int64), (np.int32, np.int32), (np.int64, np.float32)
    )
    x = numbers(rng, a, base, special=False)
    y = np.abs(numbers(rng, b, exponent, special=False)) % 4
    return [x, np.asarray(np.floor(y) if np.dtype(base).kind == "i" else y, exponent)], {}


@instance("Sum", "Mean", "Min", "Max")
def _variadic(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = np.float32 if op in ("Sum", "Mean") else pick(rng, np.float32, np.int32, np.int64)
    return [
        numbers(rng, s, dtype, special=np.dtype(dtype).kind == "i") for s in broadcasting(rng, pick(rng, 1, 2, 3))
    ], {}


@instance("Clip")
def _clip(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, np.float32, np.float64, np.int8, np.int32, np.int64)
    low, high = (numbers(rng, (), dtype, special=False) if rng.random() < 0.7 else None for _ in range(2))
    return [numbers(rng, extents(rng), dtype, special=np.dtype(dtype).kind == "i"), low, high], {}


@instance("BitShift")
def _bit_shift(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, np.uint8, np.uint32, np.uint64, np.int8, np.int32)
    a, b = broadcasting(rng, 2)
    return [numbers(rng, a, dtype), rng.integers(0, 8, b).astype(dtype)], {"direction": pick(rng, "LEFT", "RIGHT")}


@instance("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def _bitwise(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, np.uint8, np.int32, np.int64)
    return [numbers(rng, s, dtype) for s in broadcasting(rng, 2)], {}


@instance("BitwiseNot")
def _bitwise_not(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), pick(rng, np.uint8, np.int32, np.int64))], {}


@instance("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _comparison(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, np.float32, np.float64, np.int32, np.int64)
    return [numbers(rng, s, dtype) for s in broadcasting(rng, 2)], {}


@instance("And", "Or", "Xor")
def _logic(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, s, np.bool_) for s in broadcasting(rng, 2)], {}


@instance("Not")
def _not(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), np.bool_)], {}


@instance("IsNaN")
def _is_nan(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), pick(rng, *FLOATS))], {}


@instance("IsInf")
def _is_inf(rng: Rng, op: str) -> tuple[Any, ...]:
    attributes = {k: pick(rng, 0, 1) for k in ("detect_positive", "detect_negative") if rng.random() < 0.5}
    return [numbers(rng, extents(rng), pick(rng, np.float32, np.float64))], attributes


@instance("Where")
def _where(rng: Rng, op: str) -> tuple[Any, ...]:
    c, x, y = broadcasting(rng, 3)
    dtype = pick(rng, np.float32, np.int64, np.uint8)
    return [numbers(rng, c, np.bool_), numbers(rng, x, dtype), numbers(rng, y, dtype)], {}


_CAST = {np.float32: 1, np.uint8: 2, np.int8: 3, np.int32: 6, np.int64: 7, np.bool_: 9, np.float16: 10, np.float64: 11}


@instance("Cast", "CastLike")
def _cast(rng: Rng, op: str) -> tuple[Any, ...]:
    source, target = pick(rng, *_CAST), pick(rng, *_CAST)
    integral = np.dtype(target).kind in "iu"
    x = numbers(rng, extents(rng), source, special=not integral)
    if integral:  # what is out of range is undefined
        x = np.asarray(np.abs(x)) if np.dtype(target).kind == "u" and np.dtype(source).kind != "b" else x
    return ([x], {"to": _CAST[target]}) if op == "Cast" else ([x, np.zeros((), target)], {})
