"""Pad: borders of a constant, of the edge, of the reflected or of the wrapped tensor."""

from typing import Any, Literal

import numpy as np

from eqsat.ir.extents import add
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import axes_of, common_dtype, format_shape, ints, unknown_dims
from eqsat.ir.operators.movement import define_injective
from eqsat.ir.traits import moving
from eqsat.ir.types import TensorType, Type

_MODES: dict[str, Literal["edge", "reflect", "wrap"]] = {"edge": "edge", "reflect": "reflect", "wrap": "wrap"}


def _infer_pad(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if app.has(2):
        common_dtype(app, 0, 2)
    if x.shape is None:
        return (x,)
    rank = len(x.shape)
    value = app.value(1)
    chosen = app.value(3)
    if value is None or (app.has(3) and chosen is None):
        return (TensorType(x.dtype, unknown_dims(rank)),)
    axes = axes_of(app, ints(chosen), rank) if chosen is not None else list(range(rank))
    pads = ints(value)
    if len(pads) != 2 * len(axes):
        raise app.fail(f"pads {format_shape(pads)} must hold two numbers for each of {len(axes)} axes")
    result = list(x.shape)
    for i, axis in enumerate(axes):
        added = pads[i] + pads[i + len(axes)]
        d = result[axis]
        if isinstance(d, int):
            if d + added < 0:
                raise app.fail(f"pads {format_shape(pads)} remove more than extent {d} of axis {axis}")
            result[axis] = d + added
        else:
            result[axis] = add(d, added)
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
