"""What random applications of operators are drawn from: shapes, numbers, windows; and the registry of who draws them."""

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


def scales(rng: Rng, *shape: int) -> np.ndarray:
    return np.asarray(rng.uniform(0.01, 0.5, shape), np.float32)


def window(rng: Rng, rank: int, kernel: Sequence[int], *, dilate: bool = True) -> tuple[dict[str, Any], list[int]]:
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
