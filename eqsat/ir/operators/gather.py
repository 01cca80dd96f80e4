"""Gather, GatherElements, GatherND: elements or slices picked by index tensors."""

from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.operators.dims import axis_of, format_shape, same_dim
from eqsat.ir.operators.movement import define_injective
from eqsat.ir.traits import moving
from eqsat.ir.types import DType, TensorType, Type


def _check_indices(app: Application) -> TensorType:
    indices = app.tensor(1)
    if indices.dtype not in (DType.INT32, DType.INT64, DType.UNDEFINED):
        raise app.fail("indices must be int32 or int64")
    return indices


def _infer_gather(app: Application) -> tuple[Type, ...]:
    x, indices = app.tensor(0), _check_indices(app)
    if x.shape is None:
        return (x,)
    axis = axis_of(app, app.attr("axis", 0), len(x.shape))
    d = x.shape[axis]
    value = app.value(1)
    if value is not None and value.size and isinstance(d, int) and not (value.min() >= -d and value.max() < d):
        raise app.fail(f"index out of range for extent {d} of axis {axis}")
    if indices.shape is None:
        return (TensorType(x.dtype, None),)
    return (TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :]),)


def _gather(attributes: Attributes, x: Any, indices: Any) -> Any:
    """``Y[.., i.., ..] = X[.., indices[i..], ..]`` along ``axis``; negative indices count from the end."""
    return np.asarray(np.take(x, indices, attributes.get("axis", 0)))


def _infer_gather_elements(app: Application) -> tuple[Type, ...]:
    x, indices = app.tensor(0), _check_indices(app)
    if x.shape is not None:
        axis = axis_of(app, app.attr("axis", 0), len(x.shape))
        if indices.shape is not None and len(indices.shape) != len(x.shape):
            raise app.fail(f"ranks differ: {format_shape(x.shape)} and {format_shape(indices.shape)}")
        for i, (d, n) in enumerate(zip(x.shape, indices.shape or (), strict=False)):
            if i != axis and isinstance(d, int) and isinstance(n, int) and n > d:
                raise app.fail(f"indices {format_shape(indices.shape)} exceed {format_shape(x.shape)} at axis {i}")
    return (TensorType(x.dtype, indices.shape),)


def _gather_elements(attributes: Attributes, x: Any, indices: Any) -> Any:
    """``Y[i, j, k] = X[indices[i, j, k], j, k]`` for axis 0, likewise for the others."""
    axis: Any = attributes.get("axis", 0)
    axis %= max(x.ndim, 1)
    where: list[Any] = list(np.ogrid[tuple(slice(d) for d in indices.shape)])
    where[axis] = indices
    return np.asarray(x[tuple(where)])


def _infer_gather_nd(app: Application) -> tuple[Type, ...]:
    x, indices = app.tensor(0), _check_indices(app)
    if x.shape is None or indices.shape is None:
        return (TensorType(x.dtype, None),)
    batch = app.attr("batch_dims", 0)
    if not indices.shape or not 0 <= batch < min(len(x.shape), len(indices.shape)):
        raise app.fail(f"batch_dims {batch} leaves nothing to index")
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        return (TensorType(x.dtype, None),)
    if batch + depth > len(x.shape):
        raise app.fail(f"indices of length {depth} exceed the rank of {format_shape(x.shape)}")
    lead = [same_dim(a, b) for a, b in zip(x.shape[:batch], indices.shape[:batch], strict=True)]
    if None in lead:
        raise app.fail(f"batch extents differ: {format_shape(x.shape)} and {format_shape(indices.shape)}")
    dims = (*(d for d in lead if d is not None), *indices.shape[batch:-1], *x.shape[batch + depth :])
    return (TensorType(x.dtype, dims),)


def _gather_nd(attributes: Attributes, x: np.ndarray, indices: np.ndarray) -> Any:
    """``Y[b.., i..] = X[b.., indices[b.., i.., :], ..]`` with ``batch_dims`` shared leading axes."""
    batch: int = attributes.get("batch_dims", 0)
    rank = indices.ndim - 1
    lead = [
        np.arange(int(d)).reshape([-1 if i == j else 1 for j in range(rank)]) for i, d in enumerate(x.shape[:batch])
    ]
    where = (*lead, *np.moveaxis(indices, -1, 0))
    return np.asarray(x[where]) if where else x.copy()


_looked_up = moving(indices=(1,))

define_injective("Gather", _infer_gather, _gather, _looked_up)
define_injective("GatherElements", _infer_gather_elements, _gather_elements, _looked_up)
define_injective("GatherND", _infer_gather_nd, _gather_nd, _looked_up)
