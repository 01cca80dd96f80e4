"""Reductions over axes: sums, means, extrema, products, norms, and the index of an extremum."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind
from eqsat.ir.operators.dims import axis_of, ints, length, unknown_dims
from eqsat.ir.operators.elementwise import defines, double, input_flops, wide
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type

Reduce = Callable[[np.ndarray, tuple[int, ...]], Any]


def _infer(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (x,)
    rank = len(x.shape)
    keep = app.attr("keepdims", 1)
    axes: list[int]
    value = app.value(1)
    if not app.has(1) or length(app, 1) == 0 or (value is not None and value.size == 0):
        if app.attr("noop_with_empty_axes", 0):
            return (x,)
        axes = list(range(rank))
    else:
        if value is None:
            number = length(app, 1)
            if keep:
                return (TensorType(x.dtype, unknown_dims(rank)),)
            return (TensorType(x.dtype, None if number is None else unknown_dims(rank - number)),)
        # A scalar has no axis to name, yet exporters write 0 or -1, and name an axis twice; implementations take both.
        axes = [axis_of(app, axis, max(rank, 1)) for axis in ints(value)]
    reduced = set(axes)
    if keep:
        return (TensorType(x.dtype, tuple(1 if i in reduced else d for i, d in enumerate(x.shape))),)
    return (TensorType(x.dtype, tuple(d for i, d in enumerate(x.shape) if i not in reduced)),)


def _define(name: str, reduce: Reduce, *, bit_exact: bool = False, step: Reduce | None = None, **traits: Any) -> None:
    """``reduce`` over the axes of input 1; ``step`` is what an empty list of axes with ``noop_with_empty_axes`` leaves."""

    @defines(
        name,
        infer=_infer,
        kind=Kind.REDUCTION,
        flops=input_flops,
        bit_exact=bit_exact,
        traits=Traits(reduces=True, counts=(1,), **traits),
    )
    def evaluate(attributes: Attributes, x: Any, axes: Any = None) -> Any:
        chosen = () if axes is None else tuple({a % max(x.ndim, 1) for a in ints(axes)})
        if not chosen and attributes.get("noop_with_empty_axes", 0):
            return x if step is None else np.asarray(step(wide(x), ())).astype(x.dtype)
        if not chosen or x.ndim == 0:
            chosen = tuple(range(x.ndim))
        result = np.asarray(reduce(wide(x), chosen))
        if attributes.get("keepdims", 1):
            result = result.reshape(tuple(1 if i in chosen else d for i, d in enumerate(x.shape)))
        return result.astype(x.dtype, copy=False)


def _mean(x: np.ndarray, axes: tuple[int, ...]) -> Any:
    number = int(np.prod([x.shape[a] for a in axes]))
    if x.dtype.kind in "iu":
        return (x.sum(axis=axes) / max(number, 1)).astype(x.dtype)
    return x.sum(axis=axes) / x.dtype.type(number)


def _extremum(of: Callable[..., Any], lowest: bool) -> Reduce:
    def reduce(x: np.ndarray, axes: tuple[int, ...]) -> Any:
        ends = (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max) if x.dtype.kind in "iu" else (-np.inf, np.inf)
        return of(x, axis=axes, initial=lowest if x.dtype == np.bool_ else ends[lowest])

    return reduce


def _log_sum_exp(x: np.ndarray, axes: tuple[int, ...]) -> Any:
    x = double(x)
    if any(x.shape[a] == 0 for a in axes):
        return np.log(np.exp(x).sum(axis=axes))
    top = x.max(axis=axes, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(x - top).sum(axis=axes)) + np.squeeze(top, axis=axes)


_SUM: dict[str, Any] = {"affine": (0,), "homogeneous": True, "rising": True}
_LARGEST: dict[str, Any] = {"folds": True, "sources": (0,), "homogeneous": True, "rising": True}
_SIZE: dict[str, Any] = {"bounds": (0.0, math.inf)}

_define(
    "ReduceSum", lambda x, axes: x.sum(axis=axes, dtype=x.dtype), folds=True, repeats="Sum", keeps_whole=True, **_SUM
)
_define("ReduceMean", _mean, repeats="Mean", **_SUM)
_define("ReduceProd", lambda x, axes: x.prod(axis=axes, dtype=x.dtype), folds=True, keeps_whole=True)
_define("ReduceMax", _extremum(np.max, lowest=False), bit_exact=True, repeats="Max", **_LARGEST)
_define("ReduceMin", _extremum(np.min, lowest=True), bit_exact=True, repeats="Min", **_LARGEST)
_define(
    "ReduceL1",
    lambda x, axes: np.abs(x).sum(axis=axes, dtype=x.dtype),
    step=lambda x, _: np.abs(x),
    folds=True,
    homogeneous=True,
    **_SIZE,
)
_define(
    "ReduceL2",
    lambda x, axes: np.sqrt((x * x).sum(axis=axes, dtype=x.dtype)),
    step=lambda x, _: np.sqrt(x * x),
    homogeneous=True,
    **_SIZE,
)
_define(
    "ReduceSumSquare",
    lambda x, axes: (x * x).sum(axis=axes, dtype=x.dtype),
    step=lambda x, _: x * x,
    folds=True,
    **_SIZE,
)
_define(
    "ReduceLogSum", lambda x, axes: np.log(double(x.sum(axis=axes, dtype=x.dtype))), step=lambda x, _: np.log(double(x))
)
_define("ReduceLogSumExp", _log_sum_exp, step=lambda x, _: x, rising=True)


def _infer_arg(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    if x.shape is None:
        return (TensorType(DType.INT64, None),)
    axis = axis_of(app, app.attr("axis", 0), len(x.shape))
    kept = (1,) if app.attr("keepdims", 1) else ()
    return (TensorType(DType.INT64, (*x.shape[:axis], *kept, *x.shape[axis + 1 :])),)


def _define_arg(name: str, of: Callable[..., Any]) -> None:
    @defines(name, infer=_infer_arg, kind=Kind.REDUCTION, flops=input_flops, bit_exact=True, traits=Traits(folds=True))
    def evaluate(attributes: Attributes, x: Any) -> Any:
        """Index of the extremum along the axis; of equal ones the first, or the last with ``select_last_index``."""
        axis: Any = attributes.get("axis", 0)
        if attributes.get("select_last_index", 0):
            result = x.shape[axis] - 1 - of(np.flip(x, axis), axis=axis)
        else:
            result = of(x, axis=axis)
        if attributes.get("keepdims", 1):
            result = np.expand_dims(result, axis)
        return np.asarray(result).astype(np.int64)


_define_arg("ArgMax", np.argmax)
_define_arg("ArgMin", np.argmin)
