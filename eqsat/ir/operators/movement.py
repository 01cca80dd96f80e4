"""Operators that rearrange or repeat elements: Transpose, Expand, Tile, Concat, DepthToSpace, SpaceToDepth."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from eqsat.ir.extents import multiply, quotient, total
from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application, InferRule, Kind, no_flops
from eqsat.ir.operators.dims import axis_of, broadcast, common_dtype, format_shape, ints, listed, same_dim, unknown_dims
from eqsat.ir.operators.elementwise import Meaning, defines
from eqsat.ir.traits import EVERY, Traits, moving
from eqsat.ir.types import TensorType, Type


def define_injective(name: str, infer: InferRule, compute: Meaning, traits: Traits, **more: Any) -> None:
    """Registers an operator each of whose output elements is a copy of one input element."""
    defines(name, infer=infer, kind=Kind.INJECTIVE, flops=no_flops, bit_exact=True, traits=traits, **more)(compute)


def _infer_transpose(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    perm: Sequence[int] | None = app.attr("perm")
    if perm is None:
        return (TensorType(x.dtype, x.shape[::-1]),)
    if sorted(perm) != list(range(len(x.shape))):
        raise app.fail(f"perm {format_shape(perm)} does not permute the axes of {format_shape(x.shape)}")
    return (TensorType(x.dtype, tuple([x.shape[p] for p in perm])),)


def _transpose(attributes: Attributes, x: Any) -> Any:
    """``Y[i_perm] = X[i]``; the axes reversed without ``perm``."""
    return np.transpose(x, attributes.get("perm"))


def _infer_expand(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    return (TensorType(x.dtype, broadcast(app, x.shape, listed(app, 1))),)


def _expand(attributes: Attributes, x: Any, target: Any) -> Any:
    """``X`` broadcast against ``shape``, so an extent of 1 in ``shape`` keeps that of ``X``."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(ints(target))))


def _infer_tile(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    repeats = app.dims(1)
    if repeats is None:
        return (TensorType(x.dtype, unknown_dims(len(x.shape))),)
    if len(repeats) != len(x.shape):
        raise app.fail(f"repeats {format_shape(repeats)} must name each axis of {format_shape(x.shape)}")
    return (TensorType(x.dtype, tuple(map(multiply, x.shape, repeats))),)


def _tile(attributes: Attributes, x: Any, repeats: Any) -> Any:
    return np.tile(x, ints(repeats))


def _infer_concat(app: Application) -> tuple[Type, ...]:
    dtype = common_dtype(app, *range(len(app.types)))
    shapes = [app.shape(i) for i in range(len(app.types))]
    known = [s for s in shapes if s is not None]
    if not known:
        return (TensorType(dtype, None),)
    rank = len(known[0])
    axis = axis_of(app, app.attr("axis"), rank)
    result = list(known[0])
    for shape in known[1:]:
        if len(shape) != rank:
            raise app.fail(f"ranks differ: {format_shape(known[0])} and {format_shape(shape)}")
        for i, d in enumerate(shape):
            if i == axis or d == result[i]:
                continue
            merged = same_dim(result[i], d)
            if merged is None:
                raise app.fail(
                    f"extents of axis {i} differ: {format_shape(known[0])} and {format_shape(shape)} ({result[i]} != {d})"
                )
            result[i] = merged
    result[axis] = total(s[axis] for s in known) if len(known) == len(shapes) else fresh_symbol()
    return (TensorType(dtype, tuple(result)),)


def _concat(attributes: Attributes, *parts: Any) -> Any:
    return np.concatenate(parts, attributes["axis"])


def _infer_blocks(app: Application, *, to_depth: bool) -> tuple[Type, ...]:
    """Squares of ``blocksize`` by ``blocksize`` elements become channels, or channels become squares."""
    x, block = app.tensor(0), app.attr("blocksize")
    if x.shape is None:
        return (TensorType(x.dtype, unknown_dims(4)),)
    if len(x.shape) != 4:
        raise app.fail(f"the input must have rank 4, got {format_shape(x.shape)}")
    result = [x.shape[0]]
    for extent, factor, grows in zip(
        x.shape[1:], (block * block, block, block), (to_depth, *(not to_depth,) * 2), strict=True
    ):
        found = multiply(extent, factor) if grows else quotient(extent, factor)
        if found is None and isinstance(extent, int):
            raise app.fail(f"extent {extent} is no multiple of {factor}")
        result.append(fresh_symbol() if found is None else found)
    return (TensorType(x.dtype, tuple(result)),)


def _depth_to_space(attributes: Attributes, x: Any) -> Any:
    """Channels to ``blocksize x blocksize`` squares; the channel is ``(row, column, depth)`` for DCR, depth first for CRD."""
    b: Any = attributes["blocksize"]
    n, c, h, w = x.shape
    if attributes.get("mode", "DCR") == "CRD":
        moved = x.reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        moved = x.reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    return moved.reshape(n, c // (b * b), h * b, w * b)


def _space_to_depth(attributes: Attributes, x: Any) -> Any:
    """``blocksize x blocksize`` squares to channels, ordered ``(row, column, depth)`` for DCR, depth first for CRD."""
    b: Any = attributes["blocksize"]
    n, c, h, w = x.shape
    squares = x.reshape(n, c, h // b, b, w // b, b)
    moved = squares.transpose((0, 1, 3, 5, 2, 4) if attributes.get("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4))
    return moved.reshape(n, c * b * b, h // b, w // b)


def _reversed(rank: int) -> tuple[int, ...]:
    return tuple(reversed(range(rank)))


_permutes = moving(permutes=True)
_repeats = moving(widens=True, counts=(1,))

define_injective("Transpose", _infer_transpose, _transpose, _permutes, defaults={"perm": _reversed})
define_injective("Expand", _infer_expand, _expand, replace(_repeats, extents=1))
define_injective("Tile", _infer_tile, _tile, _repeats)
define_injective("Concat", _infer_concat, _concat, Traits(sources=EVERY, moves=True))
define_injective("DepthToSpace", partial(_infer_blocks, to_depth=False), _depth_to_space, _permutes)
define_injective("SpaceToDepth", partial(_infer_blocks, to_depth=True), _space_to_depth, _permutes)


def way_of(perm: Sequence[int], shape: Sequence[int]) -> str:
    """In which way a Transpose moves elements: they stay in their order, rows of them stay together, a matrix or several are
    transposed, or none of this, for which ONNX Runtime has no loop and takes many times as long."""
    if not perm or len(perm) != len(shape):
        return "last moves"
    long = [p for p in perm if shape[p] > 1]
    if long == sorted(long):
        return "copy"
    if long[-1] == max(long):
        return "rows"
    there = {p: k for k, p in enumerate(sorted(long))}
    breaks = sum(there[q] != there.get(p, -1) + 1 for p, q in zip((-1, *long), long, strict=False))
    return "last moves" if breaks == 2 else "scattered"
