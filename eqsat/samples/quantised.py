"""What the samples of quantised operators share: scales, zero points, integers, and floats that meet rounding ties."""

from typing import Any

import numpy as np

from eqsat.samples import Sampler, fixed

Drawn = dict[str, Any]


def parameters(d: Sampler, shape: tuple[int, ...], *, per_axis: float = 0.25, dtype: str | None = None) -> Drawn:
    """Scale ``s``, zero point ``z`` (maybe absent), their integer type and the attributes of the node that uses them.

    One scale for the whole tensor, for each index of an axis, or for each block.
    """
    dtype = dtype or d.choose(("int8", "uint8", "int8", "uint8", "int16"))
    attributes: Drawn = {}
    extent: tuple[int, ...] = d.choose(((), (1,)))
    if shape and per_axis and d.chance(0.1):
        axis = d.integer(0, len(shape) - 1)
        attributes |= {"axis": axis, "block_size": 2}
        extent = tuple(-(-n // 2) if i == axis else n for i, n in enumerate(shape))
    elif shape and d.chance(per_axis):
        axis = d.integer(0, len(shape) - 1)
        attributes["axis"] = axis if d.chance() else axis - len(shape)
        extent = (shape[axis],)
    scale = d.powers_of_two(extent) if d.chance(0.4) else d.positive(extent)
    if d.chance(0.15):
        scale = scale * np.float32(d.choose((-1.0, -1.0, 1e-39, 1e33)))
    info = np.iinfo(dtype)
    ends = d.choose((int(info.min), 0, d.integer(-5, 5) if dtype != "uint8" else d.integer(0, 200)))
    zero = np.full(extent, ends, dtype)
    if zero.size > 1 and d.chance(0.4):
        zero.reshape(-1)[0] += 1
    found: Drawn = {"s": fixed(scale), "attributes": attributes, "dtype": dtype, "scale": scale, "zero": zero}
    if ends or dtype != "uint8" or d.chance(0.7):
        found["z"] = fixed(zero)
    return found


def values(drawn: Drawn) -> Drawn:
    """The entries of `parameters` that are variables of a pattern."""
    return {name: drawn[name] for name in ("s", "z") if name in drawn}


def ties(d: Sampler, shape: tuple[int, ...], drawn: Drawn) -> np.ndarray:
    """Floats of which many lie halfway between two integers, and some beyond the integers' range."""
    halves = d.rng.integers(-40, 40, shape) / 2.0
    array = halves * float(drawn["scale"].reshape(-1)[0] if drawn["scale"].size else 1.0)
    far = d.rng.random(shape) < 0.1
    return np.where(far, array * 100, array).astype(np.float32)
