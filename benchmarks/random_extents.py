"""Extents that random models compute, in the spellings of exporters: see `benchmarks.random_shapes`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.random_models import Growing


def ints(g: Growing, *values: int) -> str:
    return g.constant(np.array(values, np.int64))


def one_op(g: Growing, op: str, *inputs: str, **attributes: Any) -> str:
    return g.op(op, *inputs, **attributes)[0]


def extent(g: Growing, x: str, axis: int) -> str:
    """A list of one extent of ``x``, in one of the spellings of exporters."""
    d, rank = g.d, g.visible[x].ndim
    kind = d.integer(0, 3)
    if kind == 0 and g.opset >= 15:
        return one_op(g, "Shape", x, start=axis, end=axis + 1)
    shape = one_op(g, "Shape", x)
    if kind == 1:
        return one_op(g, "Gather", shape, ints(g, axis - rank if d.chance(0.3) else axis))
    if kind == 2:
        return one_op(g, "Slice", shape, ints(g, axis), ints(g, axis + 1), ints(g, 0))
    number = one_op(g, "Gather", shape, g.constant(np.array(axis, np.int64)))
    return one_op(g, "Unsqueeze", number, ints(g, 0))


def known(g: Growing, x: str, axis: int) -> str:
    """The extent as it is computed, or as a number."""
    return ints(g, g.visible[x].shape[axis]) if g.d.chance(0.12) else extent(g, x, axis)


def calculated(g: Growing, x: str, axis: int) -> str:
    """A list of one number that depends on an extent."""
    d, n = g.d, extent(g, x, axis)
    kind = d.integer(0, 6)
    if kind == 0:
        return one_op(g, "Add", n, known(g, x, d.integer(0, g.visible[x].ndim - 1)))
    if kind == 1:
        return one_op(g, "Div", n, ints(g, d.choose((2, 2, 3))))
    if kind == 2:
        return one_op(g, "Sub", n, ints(g, d.integer(1, 2)))
    if kind == 3:
        floats = one_op(
            g, "Mul", one_op(g, "Cast", n, to=1), g.constant(np.array(d.choose((0.5, 1.5, 2.0)), np.float32))
        )
        return one_op(g, "Cast", one_op(g, d.choose(("Floor", "Ceil")), floats), to=7)
    if kind == 4:
        return one_op(g, d.choose(("Min", "Max")), n, ints(g, d.integer(1, 5)))
    if kind == 5:
        return one_op(g, "Mul", n, ints(g, 2))
    return n


def listing(g: Growing, *extents: str) -> str:
    return one_op(g, "Concat", *extents, axis=0)


def scalar(g: Growing, n: str) -> str:
    return (
        one_op(g, "Squeeze", n, ints(g, 0))
        if g.d.chance()
        else one_op(g, "Reshape", n, g.constant(np.zeros(0, np.int64)))
    )


def counted(g: Growing, n: str) -> str:
    """The numbers from 0 up to another."""
    zero, one = (g.constant(np.array(v, np.int64)) for v in (0, 1))
    return one_op(g, "Range", zero, n, one)


def some_axis(g: Growing, x: str) -> int:
    return g.d.integer(0, g.visible[x].ndim - 1)


def extents_of(g: Growing, x: str) -> list[str]:
    return [known(g, x, i) for i in range(g.visible[x].ndim)]


def filling(value: float, dtype: Any = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array([value], dtype))


def number(g: Growing, value: float) -> str:
    return g.constant(np.array(value, np.float32))
