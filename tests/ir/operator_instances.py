"""Random applications of every operator we define: attributes and input arrays, adversarial values among them.

`INSTANCES[op](rng)` draws one. Ranks, broadcasting, extents of 1, element types, absent inputs and attributes vary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Rng = np.random.Generator


@dataclass(frozen=True)
class Instance:
    """One application; an absent optional input is ``None``."""

    op: str
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any]
    outputs: int = 1


SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -3.4e38, 3.4e38, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -1.0)
"""Floats on which implementations disagree first: signed zeros, infinities, NaN, a subnormal, limits, rounding ties."""


def numbers(
    rng: Rng, shape: Sequence[int], dtype: Any = np.float32, special: bool = True, spread: float = 2.0
) -> np.ndarray:
    """Normal floats or uniform integers; with ``special``, a fifth of them are adversarial values or limits of the type."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = max(limits.min, -100), min(limits.max, 100)
        x = np.asarray(rng.integers(low, high, shape, endpoint=True)).astype(dtype)
        extremes = np.array([0, 1, limits.min, limits.max], dtype)
    else:
        x = np.asarray(rng.normal(0, spread, shape)).astype(dtype)
        with np.errstate(over="ignore"):
            extremes = np.array(SPECIAL).astype(dtype)
    if special:
        x = np.asarray(np.where(rng.random(shape) < 0.2, rng.choice(extremes, shape), x)).astype(dtype)
    return x


def extents(rng: Rng, low: int = 0, high: int = 4) -> tuple[int, ...]:
    rank = int(rng.integers(low, high, endpoint=True))
    return tuple(int(d) for d in rng.choice([1, 2, 3, 4, 5], rank))


def broadcasting(rng: Rng, number: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast against each other."""
    full = extents(rng)
    shapes = []
    for _ in range(number):
        kept = full[int(rng.integers(0, len(full), endpoint=True)) if rng.random() < 0.4 else 0 :]
        shapes.append(tuple(1 if rng.random() < 0.25 else d for d in kept))
    return shapes


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def axis_in(rng: Rng, rank: int) -> int:
    return int(rng.integers(-rank, rank))


def i64(*values: Any) -> np.ndarray:
    return np.array(values[0] if len(values) == 1 and isinstance(values[0], list | tuple) else values, np.int64)


Draw = Callable[[Rng], Instance]
INSTANCES: dict[str, Draw] = {}


def instance(*names: str) -> Callable[[Callable[[Rng, str], tuple[Any, ...]]], None]:
    """Registers a function ``(rng, op) -> inputs, attributes[, outputs]`` for each operator it draws."""

    def register(draw: Callable[[Rng, str], tuple[Any, ...]]) -> None:
        for name in names:
            INSTANCES[name] = lambda rng, name=name: Instance(name, *draw(rng, name))

    return register


FLOATS = (np.float32, np.float32, np.float32, np.float64, np.float16)


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
    fmod = 1 if dtype.kind == "f" else pick(rng, 0, 1)
    return [a, np.where(b == 0, 3, b).astype(dtype)], {"fmod": fmod}


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
    dtype = pick(rng, np.uint8, np.uint32, np.uint64)
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


@instance("Reshape")
def _reshape(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng)
    if rng.random() < 0.15:
        shape = (0, *shape)
        return [numbers(rng, shape), i64([*shape[:2], *shape[2:]])], {"allowzero": 1}
    rest = int(np.prod(shape))
    target: list[int] = []
    for i in range(int(rng.integers(0, 4))):
        if i < len(shape) and rest % shape[i] == 0 and rng.random() < 0.4:
            target.append(0)
            rest //= shape[i]
        else:
            d = int(rng.choice([d for d in range(1, rest + 1) if rest % d == 0]))
            target.append(d)
            rest //= d
    if rest != 1 or rng.random() < 0.3:
        target.insert(len(target), rest if rng.random() < 0.4 else -1)
    return [numbers(rng, shape), i64(target)], {}


@instance("Transpose")
def _transpose(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng)
    return [numbers(rng, shape)], pick(rng, {}, {"perm": [int(p) for p in rng.permutation(len(shape))]})


@instance("Squeeze")
def _squeeze(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng)
    ones = [i - (len(shape) if rng.random() < 0.5 else 0) for i, d in enumerate(shape) if d == 1]
    if rng.random() < 0.4 or not ones:
        return [numbers(rng, shape)], {}
    return [numbers(rng, shape), i64(ones[: int(rng.integers(1, len(ones) + 1))])], {}


@instance("Unsqueeze")
def _unsqueeze(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 0, 3)
    added = int(rng.integers(1, 3))
    rank = len(shape) + added
    axes = rng.permutation(rank)[:added] - rank * rng.integers(0, 2, added)
    return [numbers(rng, shape), i64(axes.tolist())], {}


@instance("Flatten")
def _flatten(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    return [numbers(rng, shape)], pick(rng, {}, {"axis": int(rng.integers(-len(shape), len(shape) + 1))})


@instance("Expand")
def _expand(rng: Rng, op: str) -> tuple[Any, ...]:
    x, target = broadcasting(rng, 2)
    return [numbers(rng, x), i64(target)], {}


@instance("Slice")
def _slice(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    number = int(rng.integers(1, len(shape) + 1))
    axes = rng.permutation(len(shape))[:number]
    bounds = [-(2**63), -9, -3, -2, -1, 0, 1, 2, 3, 9, 2**31 - 1, 2**63 - 1]
    starts, ends = ([pick(rng, *bounds) for _ in axes] for _ in range(2))
    kind = pick(rng, np.int64, np.int64, np.int32)
    if kind == np.int32:
        starts, ends = (np.clip(v, -(2**31), 2**31 - 1).tolist() for v in (starts, ends))
    steps = [pick(rng, 1, 1, 2, 3, -1, -2) for _ in axes] if rng.random() < 0.6 else None
    if steps is not None:  # ONNX Runtime reads the largest end of a backward slice as the front: not what ONNX says
        ends = [1 if step < 0 and end > 9 else end for step, end in zip(steps, ends, strict=True)]
    inputs: list[Any] = [numbers(rng, shape), np.array(starts, kind), np.array(ends, kind)]
    if steps is not None or rng.random() < 0.5:
        signed = axes - len(shape) * rng.integers(0, 2, number)
        inputs.append(signed.astype(kind))
        if steps is not None:
            inputs.append(np.array(steps, kind))
    return inputs, {}


@instance("Concat")
def _concat(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    shapes = [list(shape) for _ in range(int(rng.integers(1, 4)))]
    for s in shapes:
        s[axis] = int(rng.integers(0, 4))
    dtype = pick(rng, np.float32, np.int64)
    return [numbers(rng, s, dtype) for s in shapes], {"axis": axis}


@instance("Split")
def _split(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = list(extents(rng, 1))
    axis = axis_in(rng, len(shape))
    if rng.random() < 0.5:
        sizes = rng.integers(0, 4, int(rng.integers(1, 4))).tolist()
        shape[axis] = sum(sizes)
        return [numbers(rng, shape), i64(sizes)], {"axis": axis}, len(sizes)
    parts = int(rng.integers(1, 4))
    shape[axis] = parts * int(rng.integers(1, 4)) + (1 if parts == 2 else 0)
    return [numbers(rng, shape)], {"axis": axis, "num_outputs": parts}, parts


@instance("Pad")
def _pad(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = tuple(d + 3 for d in extents(rng, 1))
    mode = pick(rng, "constant", "edge", "reflect", "wrap")
    axes = rng.permutation(len(shape))[: int(rng.integers(1, len(shape) + 1))]
    listed = rng.random() < 0.5
    number = len(axes) if listed else len(shape)
    pads = rng.integers(-1 if mode == "constant" else 0, 3, 2 * number)
    dtype = pick(rng, np.float32, np.int32)
    inputs: list[Any] = [numbers(rng, shape, dtype), i64(pads.tolist())]
    inputs.append(numbers(rng, (), dtype) if mode == "constant" and rng.random() < 0.7 else None)
    inputs.append(i64(axes.tolist()) if listed else None)
    return inputs, ({} if mode == "constant" and rng.random() < 0.5 else {"mode": mode})


@instance("Gather")
def _gather(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    d = shape[axis]
    return [numbers(rng, shape), rng.integers(-d, d, extents(rng, 0, 2)).astype(pick(rng, np.int32, np.int64))], {
        "axis": axis
    }


@instance("GatherElements")
def _gather_elements(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    chosen = [int(rng.integers(1, d + 1)) for d in shape]
    chosen[axis] = int(rng.integers(1, 4))
    return [numbers(rng, shape), rng.integers(-shape[axis], shape[axis], chosen)], {"axis": axis}


@instance("GatherND")
def _gather_nd(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 2)
    batch = int(rng.integers(0, len(shape)))
    depth = int(rng.integers(1, len(shape) - batch + 1))
    lead = (*shape[:batch], *extents(rng, 0 if batch else 1, 2))
    indices = np.stack([rng.integers(-d, d, lead) for d in shape[batch : batch + depth]], axis=-1)
    return [numbers(rng, shape), indices.astype(np.int64)], {"batch_dims": batch}


@instance("Tile")
def _tile(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    return [numbers(rng, shape), i64(rng.integers(0, 4, len(shape)).tolist())], {}


@instance("DepthToSpace", "SpaceToDepth")
def _blocks(rng: Rng, op: str) -> tuple[Any, ...]:
    b = pick(rng, 1, 2, 3)
    n, c, h, w = (int(d) for d in rng.integers(1, 4, 4))
    if op == "SpaceToDepth":
        return [numbers(rng, (n, c, h * b, w * b))], {"blocksize": b}
    return [numbers(rng, (n, c * b * b, h, w))], {"blocksize": b, "mode": pick(rng, "DCR", "CRD")}


@instance("Identity", "Size")
def _identity(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), pick(rng, np.float32, np.int8, np.bool_))], {}


@instance("Shape")
def _shape(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng))], {k: int(rng.integers(-5, 6)) for k in ("start", "end") if rng.random() < 0.5}


@instance("ConstantOfShape")
def _constant_of_shape(rng: Rng, op: str) -> tuple[Any, ...]:
    from eqsat.ir.constants import Constant

    value = Constant.of(numbers(rng, (1,), pick(rng, np.float32, np.int64, np.bool_)))
    return [i64(extents(rng))], pick(rng, {}, {"value": value})


@instance("Range")
def _range(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, np.int64, np.int32, np.float32)
    start, limit = (rng.integers(-10, 10) for _ in range(2))
    return [np.array(v, dtype) for v in (start, limit, pick(rng, 1, 2, 3, -1, -2))], {}


@instance("Dropout")
def _dropout(rng: Rng, op: str) -> tuple[Any, ...]:
    x = numbers(rng, extents(rng, 1))
    return [x, *pick(rng, [], [np.array(0.3, np.float32)], [np.array(0.3, np.float32), np.array(False)])], {}, 2


@instance("MatMul")
def _matmul(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 5, 3))
    left, right = ((*s, ...) for s in broadcasting(rng, 2))
    a, b = (*left[:-1][-2:], m, k), (*right[:-1][-2:], k, n)
    a = (k,) if rng.random() < 0.15 else a
    b = (k,) if rng.random() < 0.15 else b
    dtype = pick(rng, np.float32, np.float64, np.int32, np.int64)
    return [numbers(rng, s, dtype, special=False) for s in (a, b)], {}


@instance("Gemm")
def _gemm(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 5, 3))
    attributes: dict[str, Any] = {t: 1 for t in ("transA", "transB") if rng.random() < 0.5}
    attributes |= {s: float(rng.uniform(0.1, 2)) for s in ("alpha", "beta") if rng.random() < 0.5}
    a, b = ((k, m) if "transA" in attributes else (m, k)), ((n, k) if "transB" in attributes else (k, n))
    c = pick(rng, None, (), (1,), (n,), (1, n), (m, 1), (m, n))
    dtype = pick(rng, np.float32, np.float64)
    inputs: list[Any] = [numbers(rng, s, dtype, special=False) for s in (a, b)]
    return [*inputs, *([] if c is None else [numbers(rng, c, dtype, special=False)])], attributes


@instance("MatMulInteger")
def _matmul_integer(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 9, 3))
    left, right = pick(rng, np.uint8, np.int8), pick(rng, np.uint8, np.int8)
    a, b = (*extents(rng, 0, 1), m, k), (k, n)
    zeros: list[Any] = [None, None]
    if rng.random() < 0.7:
        zeros[0] = numbers(rng, (), left)
    if rng.random() < 0.7:
        zeros[1] = numbers(rng, pick(rng, (), (n,)), right)
    return [numbers(rng, a, left), numbers(rng, b, right), *zeros], {}


def _scale(rng: Rng, *shape: int) -> np.ndarray:
    return np.asarray(rng.uniform(0.01, 0.5, shape), np.float32)


@instance("QLinearMatMul")
def _qlinear_matmul(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 9, 3))
    left, right = pick(rng, (np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
    a, b = numbers(rng, (m, k), left), numbers(rng, (k, n), right)
    columns = pick(rng, (), (n,))
    b_zero = numbers(rng, columns, right)
    return [
        a,
        _scale(rng),
        numbers(rng, (), left),
        b,
        _scale(rng, *columns),
        b_zero,
        np.asarray(_scale(rng) * 40, np.float32),
        numbers(rng, (), left),
    ], {}


def _window(rng: Rng, rank: int, kernel: Sequence[int], *, dilate: bool = True) -> tuple[dict[str, Any], list[int]]:
    """Attributes of a sliding window, and extents it fits into."""
    attributes: dict[str, Any] = {}
    if rng.random() < 0.6:
        attributes["strides"] = [int(d) for d in rng.integers(1, 4, rank)]
    if dilate and rng.random() < 0.5:
        attributes["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
    if rng.random() < 0.3:
        attributes["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
        # ONNX Runtime computes "same" padding of dilated or narrow windows otherwise than ONNX says.
        attributes.pop("dilations", None)
        attributes["strides"] = [min(k, s) for k, s in zip(kernel, attributes.get("strides", [1] * rank), strict=True)]
    elif rng.random() < 0.7:
        attributes["pads"] = [int(rng.integers(0, k)) for k in (*kernel, *kernel)]
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attributes.get("dilations", [1] * rank), strict=True)]
    return attributes, [r + int(rng.integers(0, 6)) for r in reach]


@instance("Conv")
def _conv(rng: Rng, op: str) -> tuple[Any, ...]:
    rank = pick(rng, 1, 2, 2, 3)
    kernel = tuple(int(d) for d in rng.integers(1, 4, rank))
    attributes, spatial = _window(rng, rank, kernel)
    group = pick(rng, 1, 1, 2, 3)
    each, out = int(rng.integers(1, 4)), group * int(rng.integers(1, 4))
    if group > 1 or rng.random() < 0.3:
        attributes["group"] = group
    if rng.random() < 0.5:
        attributes["kernel_shape"] = list(kernel)
    x = numbers(rng, (int(rng.integers(1, 3)), each * group, *spatial), special=False)
    w = numbers(rng, (out, each, *kernel), special=False)
    return [x, w, *([numbers(rng, (out,), special=False)] if rng.random() < 0.5 else [])], attributes


@instance("ConvInteger")
def _conv_integer(rng: Rng, op: str) -> tuple[Any, ...]:
    kernel = tuple(int(d) for d in rng.integers(1, 4, 2))
    attributes, spatial = _window(rng, 2, kernel, dilate=False)
    each, out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    zeros = [numbers(rng, (), np.uint8)] if rng.random() < 0.7 else []
    return [
        numbers(rng, (1, each, *spatial), np.uint8),
        numbers(rng, (out, each, *kernel), np.uint8),
        *zeros,
    ], attributes


@instance("QLinearConv")
def _qlinear_conv(rng: Rng, op: str) -> tuple[Any, ...]:
    kernel = tuple(int(d) for d in rng.integers(1, 4, 2))
    attributes, spatial = _window(rng, 2, kernel)
    each, out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    x, w = numbers(rng, (1, each, *spatial), np.uint8), numbers(rng, (out, each, *kernel), np.int8)
    channels = pick(rng, (), (out,))
    w_zero = np.zeros(channels, np.int8)
    bias = [rng.integers(-500, 500, out).astype(np.int32)] if rng.random() < 0.5 else []
    zeros = numbers(rng, (), np.uint8), numbers(rng, (), np.uint8)
    return [
        x,
        _scale(rng),
        zeros[0],
        w,
        _scale(rng, *channels),
        w_zero,
        np.asarray(_scale(rng) * 40, np.float32),
        zeros[1],
        *bias,
    ], attributes


@instance("ConvTranspose")
def _conv_transpose(rng: Rng, op: str) -> tuple[Any, ...]:
    rank = pick(rng, 1, 2, 2, 3)
    kernel = tuple(int(d) for d in rng.integers(1, 4, rank))
    group = pick(rng, 1, 1, 2)
    each, out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    strides = [int(d) for d in rng.integers(1, 4, rank)]
    attributes: dict[str, Any] = {"strides": strides, "group": group}
    if rng.random() < 0.4:
        attributes["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
    dilations = attributes.get("dilations", [1] * rank)
    if rng.random() < 0.4 and not attributes.get("dilations"):
        attributes["output_padding"] = [int(rng.integers(0, s)) for s in strides]
    if rng.random() < 0.25 and all(k >= s for k, s in zip(kernel, strides, strict=True)):
        attributes["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    elif rng.random() < 0.6:
        limits = [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)]
        attributes["pads"] = [int(rng.integers(0, limit + 1)) for limit in limits * 2]
    x = numbers(rng, (int(rng.integers(1, 3)), each * group, *rng.integers(2, 5, rank)), special=False)
    w = numbers(rng, (each * group, out, *kernel), special=False)
    return [x, w, *([numbers(rng, (out * group,), special=False)] if rng.random() < 0.5 else [])], attributes


@instance("MaxPool", "AveragePool")
def _pool(rng: Rng, op: str) -> tuple[Any, ...]:
    rank = pick(rng, 1, 2, 2, 3)
    kernel = tuple(int(d) for d in rng.integers(1, 4, rank))
    attributes, spatial = _window(rng, rank, kernel)
    attributes["kernel_shape"] = list(kernel)
    if "auto_pad" not in attributes and rng.random() < 0.4:
        attributes["ceil_mode"] = 1
    if op == "AveragePool" and rng.random() < 0.5:
        attributes["count_include_pad"] = 1
    x = numbers(rng, (int(rng.integers(1, 3)), int(rng.integers(1, 4)), *spatial), special=False)
    return [x], attributes, 2 if op == "MaxPool" and rng.random() < 0.5 else 1


@instance("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng, 3, 5), special=False)], {}


@instance(
    *(f"Reduce{n}" for n in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"))
)
def _reduce(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng)
    dtype = pick(rng, np.float32, np.float32, np.float64, np.int32)
    if "Log" in op or op in ("ReduceL2", "ReduceMean"):
        dtype = np.float32
    x = numbers(rng, shape, dtype, special=False)
    x = np.asarray(np.abs(x) if op == "ReduceLogSum" else x % 5 if op == "ReduceProd" else x)
    attributes: dict[str, Any] = {"keepdims": pick(rng, 0, 1)} if rng.random() < 0.7 else {}
    if rng.random() < 0.3:
        attributes["noop_with_empty_axes"] = pick(rng, 0, 1) if op in ("ReduceSum", "ReduceMax", "ReduceMin") else 0
    if rng.random() < 0.3 or not shape:
        return [x], attributes
    axes = rng.permutation(len(shape))[: int(rng.integers(0, len(shape) + 1))]
    return [x, i64((axes - len(shape) * rng.integers(0, 2, len(axes))).tolist())], attributes


@instance("ArgMax", "ArgMin")
def _arg(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    attributes = {k: pick(rng, 0, 1) for k in ("keepdims", "select_last_index") if rng.random() < 0.6}
    return [rng.integers(0, 3, shape).astype(pick(rng, np.float32, np.int32))], {
        "axis": axis_in(rng, len(shape)),
        **attributes,
    }


@instance("Softmax", "LogSoftmax")
def _softmax(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    x = numbers(rng, shape, pick(rng, np.float32, np.float64), special=False, spread=pick(rng, 1.0, 100.0))
    return [x], pick(rng, {}, {"axis": axis_in(rng, len(shape))})


@instance("LayerNormalization", "RMSNormalization")
def _layer(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    attributes: dict[str, Any] = {} if rng.random() < 0.2 else {"axis": axis}
    normal = shape[attributes.get("axis", -1) :]
    if rng.random() < 0.5:
        attributes["epsilon"] = float(10.0 ** rng.integers(-8, 0))
    inputs = [numbers(rng, s, special=False) for s in (shape, normal)]
    if op == "RMSNormalization":
        return inputs, attributes
    more = [numbers(rng, normal, special=False)] if rng.random() < 0.6 else []
    return [*inputs, *more], attributes, pick(rng, 1, 3)


@instance("GroupNormalization", "InstanceNormalization", "BatchNormalization")
def _channel_norm(rng: Rng, op: str) -> tuple[Any, ...]:
    groups, each = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    channels = groups * each
    shape = (int(rng.integers(1, 4)), channels, *(int(d) for d in rng.integers(2, 5, int(rng.integers(1, 4)))))
    x, scale, bias = (numbers(rng, s, special=False) for s in (shape, (channels,), (channels,)))
    attributes: dict[str, Any] = {"epsilon": 1e-3} if rng.random() < 0.5 else {}
    if op == "GroupNormalization":
        return [x, scale, bias], {**attributes, "num_groups": groups}
    if op == "InstanceNormalization":
        return [x, scale, bias], attributes
    mean, variance = numbers(rng, (channels,), special=False), np.abs(numbers(rng, (channels,), special=False))
    if rng.random() < 0.5:
        return [x, scale, bias, mean, variance], attributes
    return [x, scale, bias, mean, variance], {**attributes, "training_mode": 1, "momentum": 0.75}, 3


@instance("QuantizeLinear", "DequantizeLinear")
def _quantize(rng: Rng, op: str) -> tuple[Any, ...]:
    shape = extents(rng, 1)
    axis = axis_in(rng, len(shape))
    per_axis = rng.random() < 0.5
    granularity = (shape[axis],) if per_axis else ()
    integer = pick(rng, np.int8, np.uint8, np.int16, np.uint16)
    attributes: dict[str, Any] = {"axis": axis} if per_axis else {}
    if op == "QuantizeLinear":
        x = numbers(rng, shape, spread=20.0)
        x = np.where(np.isnan(x), 0, x).astype(np.float32)
        ties = (rng.integers(-300, 300, shape) * 0.5).astype(np.float32)
        scale = _scale(rng, *granularity) if rng.random() < 0.6 else np.ones(granularity, np.float32)
        x = np.where(rng.random(shape) < 0.3, ties, x).astype(np.float32)
    else:
        integer = pick(rng, integer, np.int32)
        x, scale = numbers(rng, shape, integer), _scale(rng, *granularity)
    zeros = [numbers(rng, granularity, integer)] if rng.random() < 0.7 and integer != np.int32 else []
    if op == "QuantizeLinear" and not zeros:
        attributes |= pick(rng, {}, {"output_dtype": {np.int8: 3, np.uint8: 2, np.int16: 5, np.uint16: 4}[integer]})
    return [x, scale, *zeros], attributes


@instance("DynamicQuantizeLinear")
def _dynamic(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng, 1), special=False) + np.float32(pick(rng, 0, 5, -5))], {}, 3
