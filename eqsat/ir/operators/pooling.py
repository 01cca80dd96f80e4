"""Pooling over spatial axes: MaxPool, AveragePool and the global forms."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import count
from eqsat.ir.operators.elementwise import defines, input_flops, narrow, wide
from eqsat.ir.operators.windows import Window, spatial_rank
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

_WINDOWS = Traits(spatial=True, rising=True, homogeneous=True)
_LARGEST, _AVERAGE = replace(_WINDOWS, sources=(0,)), replace(_WINDOWS, affine=(0,))


def _infer_pool(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    shape = x.shape
    if shape is not None:
        window = Window.of(app.attributes, app.attr("kernel_shape", ()))
        window.check(app, spatial_rank(app, shape))
        shape = (*shape[:2], *[window.output(app, i, d) for i, d in enumerate(shape[2:])])
    return (TensorType(x.dtype, shape), TensorType(DType.INT64, shape))[: max(app.outputs, 1)]


def _pool_flops(app: Application, outputs: Sequence[Type]) -> float:
    kernel: Sequence[int] = app.attr("kernel_shape", ())
    return count(outputs[0]) * float(np.prod(kernel)) if outputs else 0.0


@defines("MaxPool", infer=_infer_pool, flops=_pool_flops, bit_exact=True, traits=_LARGEST, kind=Kind.REDUCTION)
def _max_pool(attributes: Attributes, x: np.ndarray) -> Any:
    """Largest element of each window; border elements never win. Indices count elements of the whole input."""
    window = Window.of(attributes, attributes["kernel_shape"])
    lowest: Any = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
    data, numbers = window.padded(x, lowest)
    where_from = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    if attributes.get("storage_order", 0):
        spatial = x.shape[2:]
        size = int(np.prod(spatial))
        order = np.arange(size, dtype=np.int64).reshape(spatial[::-1]).transpose()
        base = np.arange(x.shape[0] * x.shape[1], dtype=np.int64) * size
        where_from = base.reshape(*x.shape[:2], *(1,) * len(spatial)) + order
    indices, _ = window.padded(where_from, -1)
    best: np.ndarray | None = None
    found: np.ndarray | None = None
    for _, where in window.taps(numbers):
        value, index = data[where], indices[where]
        if best is None or found is None:
            best, found = value.copy(), index.copy()
            continue
        better = (index >= 0) & ((value > best) | (found < 0) | (np.isnan(value) if x.dtype.kind == "f" else False))
        best = np.where(better, value, best)
        found = np.where(better, index, found)
    assert best is not None
    assert found is not None
    return best, found


@defines("AveragePool", infer=_infer_pool, flops=_pool_flops, traits=_AVERAGE, kind=Kind.REDUCTION)
def _average_pool(attributes: Attributes, x: Any) -> Any:
    """Mean of each window: over the elements inside the input, or with ``count_include_pad`` inside the padded input."""
    window = Window.of(attributes, attributes["kernel_shape"])
    data, numbers = window.padded(wide(x), 0)
    inside = np.ones((1, 1, *x.shape[2:]), np.float32)
    if attributes.get("count_include_pad", 0):
        # The border that was asked for counts; what ceil_mode lets a window see beyond it does not.
        widths = [(0, 0), (0, 0), *[window.border(i, d) for i, d in enumerate(x.shape[2:])]]
        inside = np.pad(inside, widths, constant_values=1)
        missing = [(0, p - d) for p, d in zip(data.shape[2:], inside.shape[2:], strict=True)]
        inside = np.pad(inside, [(0, 0), (0, 0), *missing])
    else:
        inside, _ = window.padded(inside, 0)
    total = np.zeros((*x.shape[:2], *numbers), data.dtype)
    number = np.zeros((1, 1, *numbers), np.float32)
    for _, where in window.taps(numbers):
        total += data[where]
        number += inside[where]
    return narrow(total / number.astype(total.dtype), x)


def _infer_global(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    return (TensorType(x.dtype, (*x.shape[:2], *(1,) * (len(x.shape) - 2))),)


@defines("GlobalAveragePool", infer=_infer_global, flops=input_flops, traits=_AVERAGE, kind=Kind.REDUCTION)
def _global_average(attributes: Attributes, x: Any) -> Any:
    """Mean over all positions of each channel."""
    return narrow(wide(x).mean(axis=tuple(range(2, x.ndim)), keepdims=True), x)


@defines("GlobalMaxPool", infer=_infer_global, flops=input_flops, bit_exact=True, traits=_LARGEST, kind=Kind.REDUCTION)
def _global_max(attributes: Attributes, x: Any) -> Any:
    """Largest element over all positions of each channel."""
    return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
