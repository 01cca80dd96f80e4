"""Random applications of operators: views, movement and generators."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.ir.constants import Constant
from tests.ir.operator_drawing import (
    Rng,
    axis_in,
    broadcasting,
    extents,
    i64,
    instance,
    numbers,
    pick,
)


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
        return [numbers(rng, (n, c, h * b, w * b))], {"blocksize": b, "mode": pick(rng, "DCR", "CRD")}
    return [numbers(rng, (n, c * b * b, h, w))], {"blocksize": b, "mode": pick(rng, "DCR", "CRD")}


@instance("Identity", "Size")
def _identity(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng), pick(rng, np.float32, np.int8, np.bool_))], {}


@instance("Shape")
def _shape(rng: Rng, op: str) -> tuple[Any, ...]:
    return [numbers(rng, extents(rng))], {k: int(rng.integers(-5, 6)) for k in ("start", "end") if rng.random() < 0.5}


@instance("ConstantOfShape")
def _constant_of_shape(rng: Rng, op: str) -> tuple[Any, ...]:
    value = Constant.of(numbers(rng, (1,), pick(rng, np.float32, np.int64, np.bool_)))
    return [i64(extents(rng))], pick(rng, {}, {"value": value})


@instance("Range")
def _range(rng: Rng, op: str) -> tuple[Any, ...]:
    dtype = pick(rng, np.int64, np.int32, np.float32, np.float16)
    start, limit = (rng.integers(-10, 10) for _ in range(2))
    attributes = {"stash_type": pick(rng, 1, 11)} if dtype is np.float16 else {}
    return [np.array(v, dtype) for v in (start, limit, pick(rng, 1, 2, 3, -1, -2))], attributes


@instance("Dropout")
def _dropout(rng: Rng, op: str) -> tuple[Any, ...]:
    x = numbers(rng, extents(rng, 1))
    return [x, *pick(rng, [], [np.array(0.3, np.float32)], [np.array(0.3, np.float32), np.array(False)])], {}, 2
