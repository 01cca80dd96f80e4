"""Slice and Split: contiguous or strided parts of a tensor; Pad: borders of a constant, of the edge, reflected or wrapped."""

from functools import reduce
from typing import Any, Literal

import numpy as np

from eqsat.ir.extents import (
    add,
    at_least,
    at_least_where,
    differ,
    maximum,
    minimum,
    multiply,
    operands,
    quotient,
    subtract,
    symbols,
    total,
)
from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import axes_of, axis_of, common_dtype, format_shape, ints, length, replaced, unknown_dims
from eqsat.ir.operators.movement import define_injective
from eqsat.ir.traits import moving
from eqsat.ir.types import Dim, TensorType, Type

_FAR = 10**9
"""A bound from here on means "to the end": exporters write INT64_MAX, INT32_MAX or, those of TensorFlow, this."""


def _infer_slice(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    rank = len(x.shape)
    if any(app.has(i) and app.tensor(i).rank not in (1, None) for i in range(1, 5)):
        raise app.fail("starts, ends, axes and steps must be vectors")
    starts, ends, steps = app.dims(1), app.dims(2), app.value(4)
    axes = _slice_axes(app, rank)
    if axes is None:
        return (TensorType(x.dtype, unknown_dims(rank)),)
    result = list(x.shape)
    if starts is None or ends is None or (app.has(4) and steps is None):
        for axis in axes:
            result[axis] = fresh_symbol()
        return (TensorType(x.dtype, tuple(result)),)
    strides = [1] * len(axes) if steps is None else ints(steps)
    if not len(starts) == len(ends) == len(strides) == len(axes):
        raise app.fail("starts, ends, axes and steps must be equally long")
    for axis, start, end, step in zip(axes, starts, ends, strides, strict=True):
        if step == 0:
            raise app.fail("a step of 0")
        result[axis] = _sliced(result[axis], start, end, step)
    return (TensorType(x.dtype, tuple(result)),)


def _slice_axes(app: Application, rank: int) -> list[int] | None:
    if app.has(3):
        value = app.value(3)
        return None if value is None else axes_of(app, ints(value), rank)
    number = length(app, 1)
    if number is not None and number > rank:
        raise app.fail(f"{number} starts for rank {rank}")
    return None if number is None else list(range(number))


def elements(d: int, start: int, end: int, step: int) -> range:
    """The indices a slice of an axis of extent ``d`` picks.

    As in Python, except that a backward slice from before the front starts at element 0, where Python picks nothing.
    """
    first = start + d if start < 0 else start
    last = end + d if end < 0 else end
    if step > 0:
        return range(min(max(first, 0), d), min(max(last, 0), d), step)
    return range(min(max(first, 0), d - 1), min(max(last, -1), d - 1), step)


def _sliced(d: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """The extent of a slice of an axis of extent ``d``."""
    if isinstance(d, int) and isinstance(start, int) and isinstance(end, int):
        return len(elements(d, start, end, step))
    if step == 1:
        first, last = (_position(d, bound) for bound in (start, end))
        if first is None and last == d:
            return _last(d, subtract(d, start))
        if first is None or last is None:
            return fresh_symbol()
        if last == d:  # what is left behind the start
            return minimum(d, subtract(0, start)) if _from_end(d, start) else _or_nothing(_behind(d, start), d)
        return _or_nothing(subtract(last, first), d)
    whole = step == -1 and start == -1 and isinstance(end, int) and end <= -_FAR
    return d if whole else fresh_symbol()


def _last(d: Dim, n: Dim) -> Dim:
    """How many there are from ``d - n`` on, on an axis of extent ``d``: ``n``, and if there are fewer, ``n - d`` or all.

    Of a symbol ``n`` only: each further slice would have a longer text.
    """
    if not (isinstance(d, int) and isinstance(n, str) and symbols(n) == frozenset({n})):
        return fresh_symbol()
    return minimum(d, subtract(n, multiply(d, minimum(1, maximum(0, subtract(n, d))))))


def _or_nothing(number: Dim, d: Dim) -> Dim:
    """The number, or 0 if it is negative, where there is an axis of extent ``d``."""
    return number if at_least_where(number, 0, d) else maximum(number, 0)


def _behind(d: Dim, start: Dim) -> Dim:
    """``d - start``, which may be negative; for the larger of two the smaller of what is left behind each."""
    larger = operands(start, "max") if isinstance(start, str) else ()
    return reduce(minimum, (maximum(subtract(d, n), 0) for n in larger)) if larger else subtract(d, start)


def _from_end(d: Dim, bound: Dim) -> bool:
    """Whether a bound counts from the end; all of what is empty is either way nothing."""
    return at_least(-1, bound) or add(d, bound) == 0


def _position(d: Dim, bound: Dim) -> Dim | None:
    """Where a bound lies on an axis of extent ``d``: counted from the front, within the axis."""
    if isinstance(bound, int) and bound >= _FAR:
        return d
    if _from_end(d, bound):
        return maximum(add(d, bound), 0)
    if bound != d and not at_least_where(bound, 0, d):
        return None
    return bound if at_least_where(d, bound, d) else minimum(bound, d)


def _slice(attributes: Attributes, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """``Y = X[start:end:step]`` along each listed axis, with bounds clamped to the axis."""
    first, last = ints(starts), ints(ends)
    chosen = ints(axes) if axes is not None else list(range(len(first)))
    strides = ints(steps) if steps is not None else [1] * len(first)
    where: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(first, last, chosen, strides, strict=True):
        picked = elements(x.shape[axis], start, end, step)
        stop = picked.stop if picked.stop >= 0 else None  # -1 would count from the end
        where[axis] = slice(picked.start, stop, step) if picked else slice(0)
    return x[tuple(where)]


def _infer_split(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,) * app.outputs
    axis = axis_of(app, app.attr("axis", 0), len(x.shape))
    d = x.shape[axis]
    if app.has(1):
        sizes = app.dims(1)
        if sizes is None:
            return tuple(TensorType(x.dtype, replaced(x.shape, axis, fresh_symbol())) for _ in range(app.outputs))
        if differ(total(sizes), d):
            raise app.fail(f"parts {format_shape(sizes)} do not sum to extent {d} of axis {axis}")
        if len(sizes) != app.outputs:
            raise app.fail(f"{len(sizes)} parts for {app.outputs} outputs")
        return tuple(TensorType(x.dtype, replaced(x.shape, axis, n)) for n in sizes)
    parts = app.attr("num_outputs")
    if parts != app.outputs:
        raise app.fail(f"num_outputs is {parts} for {app.outputs} outputs, and no sizes are given")
    if not isinstance(d, int):
        each = quotient(d, parts)
        dims: list[Dim] = [fresh_symbol() if each is None else each for _ in range(parts)]
        return tuple(TensorType(x.dtype, replaced(x.shape, axis, n)) for n in dims)
    return tuple(TensorType(x.dtype, replaced(x.shape, axis, n)) for n in equal_parts(d, parts))


def equal_parts(extent: int, parts: int) -> list[int]:
    """Sizes of ``parts`` equal parts, of which the last ones are smaller where it does not divide."""
    each = -(-extent // parts)
    return [max(0, min(each, extent - i * each)) for i in range(parts)]


def _split(attributes: Attributes, x: Any, sizes: Any = None) -> Any:
    axis = attributes.get("axis", 0)
    parts = equal_parts(x.shape[axis], attributes["num_outputs"]) if sizes is None else ints(sizes)
    return tuple(np.split(x, np.cumsum(parts)[:-1].tolist(), axis))


define_injective("Slice", _infer_slice, _slice, moving(counts=(1, 2, 3, 4)))
define_injective("Split", _infer_split, _split, moving(counts=(1,)))


# --- borders ---------------------------------------------------------------------------------------------------------


_MODES: dict[str, Literal["edge", "reflect", "wrap"]] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _infer_pad(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    common_dtype(app, 0, optional=2)
    if x.shape is None:
        return (x,)
    rank = len(x.shape)
    pads = app.dims(1)
    chosen = app.value(3)
    if pads is None or (app.has(3) and chosen is None):
        return (TensorType(x.dtype, unknown_dims(rank)),)
    axes = axes_of(app, ints(chosen), rank) if chosen is not None else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise app.fail(f"pads {format_shape(pads)} must hold two numbers for each of {len(axes)} axes")
    result = list(x.shape)
    for i, axis in enumerate(axes):
        d = result[axis]
        result[axis] = padded = total((d, pads[i], pads[i + len(axes)]))
        if isinstance(padded, int) and padded < 0:
            raise app.fail(f"pads {format_shape(pads)} remove more than extent {d} of axis {axis}")
    return (TensorType(x.dtype, tuple(result)),)


def _pad(attributes: Attributes, x: Any, pads: Any, fill: Any = None, axes: Any = None) -> Any:
    """``X`` with borders; a negative pad removes elements instead."""
    pads = ints(pads)
    chosen = ints(axes) if axes is not None else list(range(x.ndim))
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        widths[axis] = (pads[i], pads[i + len(chosen)])
    crop = tuple(slice(max(-a, 0), d - max(-b, 0)) for (a, b), d in zip(widths, x.shape, strict=True))
    grow = [(max(a, 0), max(b, 0)) for a, b in widths]
    mode = str(attributes.get("mode", "constant"))
    if mode != "constant":
        return np.pad(x[crop], grow, _MODES[mode])
    value = fill.reshape(()) if fill is not None else _nothing(x.dtype)
    result = np.full([d + a + b for d, (a, b) in zip(x[crop].shape, grow, strict=True)], value, x.dtype)
    result[tuple(slice(a, a + d) for d, (a, _) in zip(x[crop].shape, grow, strict=True))] = x[crop]
    return result


def _nothing(dtype: np.dtype[Any]) -> Any:
    return "" if dtype.kind in "OUST" else np.zeros((), dtype)


define_injective("Pad", _infer_pad, _pad, moving(0, 2, or_zero=True, counts=(1, 3)))
