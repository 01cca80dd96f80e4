"""What the samples of linear operators share: random convolutions and products, and constants that may lie along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.samples import Fixed, Sampler, fixed


def shape_along(d: Sampler, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """Mostly a shape with the extent of ``axis`` and ones; else one number, or any shape that broadcasts with ``shape``."""
    kind = d.rng.random()
    if kind < 0.2:
        return d.choose(((), (1,), (1,) * len(shape)))
    if kind < 0.4:
        return d.broadcast_with(shape)
    axis %= len(shape)
    full = tuple(n if i == axis else 1 for i, n in enumerate(shape))
    return full[d.integer(0, axis) :]


def kept_shape_along(d: Sampler, shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """A shape mostly along an axis that broadcasts with ``shape`` without enlarging it."""
    found = shape_along(d, shape, axis)
    return found if np.broadcast_shapes(found, tuple(shape)) == tuple(shape) else d.broadcast_of(tuple(shape))


def extremes(d: Sampler) -> tuple[np.float32, np.float32, np.float32]:
    """Factors for input, weights and scale: mostly ones, else such that weights times scale alone overflow."""
    found = (1e-30, 1e20, 1e25) if d.chance(0.1) else (1.0, 1.0, 1.0)
    return np.float32(found[0]), np.float32(found[1]), np.float32(found[2])


def or_integers(d: Sampler, drawn: dict[str, Any]) -> dict[str, Any]:
    """The drawn variables, at times as integers other than 0, which a rule for floats must leave alone."""
    return {name: _as_integers(value) for name, value in drawn.items()} if d.chance(0.08) else drawn


def _as_integers(value: Any) -> Any:
    if isinstance(value, Fixed):
        return fixed(_as_integers(value.array))
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        near = np.clip(np.rint(value), -99, 99).astype(np.int32)
        return np.where(near == 0, np.int32(1), near)
    return value


def overflowing_bias(d: Sampler, drawn: dict[str, Any]) -> dict[str, Any]:
    """The drawn ``x``, ``w``, ``b`` and ``c``, at times so large that ``b + c`` overflows where the whole sum does not."""
    if d.chance(0.8) or drawn.get("b") is None:
        return drawn
    large = {name: fixed(np.full_like(drawn[name].array, 2.5e38)) for name in ("b", "c")}
    return drawn | large | {"x": np.clip(drawn["x"], -2, 2) * np.float32(4e37)}


def convolution(d: Sampler, *, transposed: bool = False, square: bool = False) -> dict[str, Any]:
    """Input, weights, maybe a bias and the attributes of a Conv or ConvTranspose, and the shape of its result.

    ``square``: the last extent of the result is often the number of output channels, so that a vector along the width
    looks like one along the channels.
    """
    group = d.choose((1, 1, 2, 3))
    each_in, each_out, batch = d.extents(3, ones=0.2)
    rank = d.choose((1, 2))
    kernel = [d.integer(1, 3) for _ in range(rank)]
    attributes: dict[str, Any] = {"group": group} if group > 1 or d.chance() else {}
    if d.chance():
        attributes["pads"] = tuple(d.integer(0, 1) for _ in range(2 * rank))
    if d.chance(0.3):
        attributes["strides"] = tuple(d.integer(1, 2) for _ in range(rank))
    if d.chance(0.2):
        attributes["dilations"] = tuple(d.integer(1, 2) for _ in range(rank))
    if d.chance(0.3):
        attributes["kernel_shape"] = tuple(kernel)
    inputs, outputs = group * each_in, group * each_out
    extents = [d.integer(5, 7) for _ in range(rank)]
    if square and d.chance():
        attributes = {"group": group}
        extents[-1] = outputs + kernel[-1] - 1 if not transposed else max(outputs - kernel[-1] + 1, 1)
    x = d.floats((batch, inputs, *extents))
    w = d.floats((inputs, each_out, *kernel) if transposed else (outputs, each_in, *kernel))
    b = d.floats((outputs,)) if d.chance() else None
    return {"x": x, "w": w, "b": b, "attributes": attributes, "result": _result(x, w, attributes, transposed)}


def _result(x: np.ndarray, w: np.ndarray, attributes: dict[str, Any], transposed: bool) -> tuple[int, ...]:
    from eqsat.ir.graph import Attributes
    from eqsat.ir.interpret import evaluate_operator

    op = "ConvTranspose" if transposed else "Conv"
    return evaluate_operator(op, Attributes(attributes), (x, w))[0].shape


def gemm(d: Sampler, *, factors: bool = False) -> dict[str, Any]:
    """Operands, maybe a bias and the attributes of a Gemm, and the shape of its result."""
    m, k, n = d.extents(3, ones=0.15) if d.chance(0.85) else (d.integer(2, 4),) * 3  # square: operands of one type
    attributes: dict[str, Any] = {name: 1 for name in ("transA", "transB") if d.chance(0.4)}
    if factors and d.chance(0.7):
        attributes |= {name: d.choose((0.5, 3.0, -1.25)) for name in ("alpha", "beta")}
    x = d.floats((k, m) if attributes.get("transA") else (m, k))
    w = d.floats((n, k) if attributes.get("transB") else (k, n))
    b = d.floats(d.broadcast_of((m, n))) if d.chance(0.7) else None
    return {"x": x, "w": w, "b": b, "attributes": attributes, "result": (m, n)}
