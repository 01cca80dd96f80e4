"""Operators that relabel elements without moving them: the same elements in the same order under another shape."""

from typing import Any

import numpy as np

from eqsat.ir.extents import among, differ, floor_divide, product, quotient, unbounded
from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application, InferRule, Kind, no_flops
from eqsat.ir.operators.dims import axes_of, axis_of, format_shape, ints, length, unknown_dims
from eqsat.ir.operators.elementwise import Meaning, defines
from eqsat.ir.traits import moving
from eqsat.ir.types import Dim, Shape, TensorType, Type


def _infer_reshape(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    target = app.dims(1)
    if target is None:
        rank = length(app, 1)
        if rank == 1 and x.shape is not None:
            return (TensorType(x.dtype, (product(x.shape),)),)
        return (TensorType(x.dtype, None if rank is None else unknown_dims(rank)),)
    return (TensorType(x.dtype, reshaped(app, x.shape, target)),)


def reshaped(app: Application, shape: Shape | None, target: list[Dim]) -> Shape:
    """Shape after Reshape to ``target``: 0 copies the input's extent, one -1 takes what is left."""
    zero_is_zero = bool(app.attr("allowzero", 0))
    result: list[Dim] = []
    free: int | None = None
    for i, d in enumerate(target):
        if d == -1:
            if free is not None:
                raise app.fail(f"target {format_shape(target)} has more than one -1")
            free = i
            result.append(1)
        elif d == 0 and not zero_is_zero:
            if shape is None:
                result.append(fresh_symbol())
            elif i < len(shape):
                result.append(shape[i])
            else:
                raise app.fail(f"target {format_shape(target)} copies axis {i} of {format_shape(shape)}")
        elif isinstance(d, int) and d < 0:
            raise app.fail(f"target {format_shape(target)} has a negative extent")
        else:
            result.append(among(d, shape or ()))
    if free is not None:
        result[free] = fresh_symbol() if shape is None else _rest(app, shape, result, target)
    elif shape is not None:
        _check_size(app, shape, result, target)
        result = _as_counted(shape, result)
    return tuple(result)


def _as_counted(shape: Shape, result: list[Dim]) -> list[Dim]:
    """The extents, those that are no less than some number as what there are elements for: frames of sound are counted with
    divisions towards zero, and where that makes a difference the elements are not as many."""
    if not any(isinstance(d, str) and "max(" in d for d in result):
        return result
    above = product(shape)
    if product(likely := list(map(unbounded, result))) == above:
        return likely
    for i, d in enumerate(result):
        told = quotient(above, product(result[:i] + result[i + 1 :])) if isinstance(d, str) and "max(" in d else None
        result = result if told is None else [*result[:i], told, *result[i + 1 :]]
    return result


def _rest(app: Application, shape: Shape, others: list[Dim], target: list[Dim]) -> Dim:
    """The extent that -1 stands for."""
    above, below = product(shape), product(others)
    found = quotient(above, below)
    if found is not None:
        return found
    if isinstance(above, int) and isinstance(below, int) and below:
        raise app.fail(f"{format_shape(shape)} has {above} elements, no multiple of target {format_shape(target)}")
    return floor_divide(above, below) if below != 0 else fresh_symbol()


def _check_size(app: Application, shape: Shape, result: list[Dim], target: list[Dim]) -> None:
    above, below = product(shape), product(result)
    if above == below or not differ(above, below):
        return
    raise app.fail(f"cannot reshape {format_shape(shape)} to {format_shape(target)} ({above} != {below} elements)")


def _reshape(attributes: Attributes, x: Any, shape: Any) -> Any:
    target = ints(shape)
    if not attributes.get("allowzero", 0):
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    if -1 in target and x.size == 0:  # numpy cannot divide 0 elements by 0
        known = int(np.prod([d for d in target if d != -1]))
        target = [(0 if known else 1) if d == -1 else d for d in target]
    return x.reshape(target)


def squeezed(app: Application, shape: Shape | None, axes: list[int] | None, known: bool) -> Shape | None:
    """Shape without ``axes`` (all extents of 1 if ``None``); ``known`` is false if axes are given but not at hand."""
    if shape is None:
        return None
    if not known:
        removed = length(app, 1)
        if removed is None:
            return None
        possible = sum(not isinstance(d, int) or d == 1 for d in shape)
        if removed > possible:
            raise app.fail(f"{removed} axes to drop, but {possible} extents of {format_shape(shape)} can be 1")
        return unknown_dims(len(shape) - removed)
    if axes is None:
        if not all(isinstance(d, int) for d in shape):
            return None
        return tuple(d for d in shape if d != 1)
    gone = {axis_of(app, axis, len(shape)) for axis in axes}  # named twice is as good as named once
    for axis in gone:
        if isinstance(shape[axis], int) and shape[axis] != 1:
            raise app.fail(f"axis {axis} of {format_shape(shape)} is {shape[axis]}, not 1")
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def _infer_squeeze(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    value = app.value(1)
    axes = None if value is None else ints(value)
    return (TensorType(x.dtype, squeezed(app, x.shape, axes, value is not None or not app.has(1))),)


def _squeeze(attributes: Attributes, x: Any, axes: Any = None) -> Any:
    return np.squeeze(x, None if axes is None else tuple({axis % x.ndim for axis in ints(axes)}))


def _infer_unsqueeze(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    value = app.value(1)
    if value is None:
        added = length(app, 1)
        return (TensorType(x.dtype, None if added is None else unknown_dims(len(x.shape) + added)),)
    rank = len(x.shape) + value.size
    axes = axes_of(app, ints(value), rank)
    rest = iter(x.shape)
    return (TensorType(x.dtype, tuple(1 if i in axes else next(rest) for i in range(rank))),)


def _unsqueeze(attributes: Attributes, x: Any, axes: Any) -> Any:
    return np.expand_dims(x, tuple(ints(axes)))


def _infer_flatten(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (TensorType(x.dtype, unknown_dims(2)),)
    axis = app.attr("axis", 1)
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise app.fail(f"axis {axis} is out of range for rank {rank}")
    axis += rank if axis < 0 else 0
    return (TensorType(x.dtype, (product(x.shape[:axis]), product(x.shape[axis:]))),)


def _flatten(attributes: Attributes, x: np.ndarray) -> Any:
    """All axes before ``axis`` as one, all others as one."""
    axis: int = attributes.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    rows = int(np.prod(x.shape[:axis]))
    return x.reshape(rows, int(np.prod(x.shape[axis:])))


def _infer_identity(app: Application) -> tuple[Type, ...]:
    found = app.types[0]  # may be a sequence or an optional
    return (app.tensor(0) if found is None else found,)


def _identity(attributes: Attributes, x: Any) -> Any:
    return x


def define_view(name: str, infer: InferRule, compute: Meaning, **traits: Any) -> None:
    kept = moving(permutes=True, **traits)
    defines(name, infer=infer, kind=Kind.VIEW, flops=no_flops, bit_exact=True, traits=kept)(compute)


define_view("Reshape", _infer_reshape, _reshape, counts=(1,), extents=1)
define_view("Squeeze", _infer_squeeze, _squeeze, counts=(1,))
define_view("Unsqueeze", _infer_unsqueeze, _unsqueeze, counts=(1,))
define_view("Flatten", _infer_flatten, _flatten)
define_view("Identity", _infer_identity, _identity)
