"""Tensors from shapes and scalars: Constant, ConstantOfShape, Range, Shape, Size; and Dropout, an identity at inference."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.errors import ModelError
from eqsat.ir.constants import Constant
from eqsat.ir.extents import maximum, subtract
from eqsat.ir.graph import Attributes
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.operator import Application, Kind, no_flops
from eqsat.ir.operators.dims import common_dtype, format_shape, ints, listed
from eqsat.ir.operators.elementwise import defines, narrow, wide
from eqsat.ir.shape_values import shape_range
from eqsat.ir.traits import Traits
from eqsat.ir.types import DType, TensorType, Type, type_of_array

_WHOLE, _MOST_ADDED = 2**24, 2**16
"""Whole numbers up to here are added without rounding in single precision; so many steps are added up to see whether they are."""


def constant_of(attributes: Attributes) -> np.ndarray:
    """The tensor that a Constant node's one attribute describes."""
    for name, value in attributes.items():
        if isinstance(value, Constant):
            return value.numpy()
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if name in ("value_string", "value_strings"):
            return np.asarray(value, object)
    raise ModelError(f"Constant: no attribute that holds a dense tensor among {list(attributes)}")


def _infer_constant(app: Application) -> tuple[Type, ...]:
    value = app.attr("value")
    return (value.type if isinstance(value, Constant) else type_of_array(constant_of(app.attributes)),)


@defines("Constant", infer=_infer_constant, kind=Kind.VIEW, flops=no_flops, bit_exact=True)
def _constant(attributes: Attributes) -> Any:
    return constant_of(attributes)


def _infer_shape(app: Application) -> tuple[Type, ...]:
    shape = app.shape(0)
    if shape is None:
        return (TensorType(DType.INT64, (fresh_symbol(),)),)
    return (TensorType(DType.INT64, (len(shape[shape_range(app.attributes, len(shape))]),)),)


@defines("Shape", infer=_infer_shape, kind=Kind.VIEW, flops=no_flops, bit_exact=True)
def _shape(attributes: Attributes, x: Any) -> Any:
    extents = np.shape(x)
    return np.asarray(extents[shape_range(attributes, len(extents))], np.int64)


def _infer_size(app: Application) -> tuple[Type, ...]:
    return (TensorType(DType.INT64, ()),)


@defines("Size", infer=_infer_size, kind=Kind.VIEW, flops=no_flops, bit_exact=True)
def _size(attributes: Attributes, x: Any) -> Any:
    return np.asarray(np.size(x), np.int64)


def _fill(attributes: Attributes) -> np.ndarray:
    value = attributes.get("value")
    return value.numpy().reshape(()) if isinstance(value, Constant) else np.zeros((), np.float32)


def _infer_constant_of_shape(app: Application) -> tuple[Type, ...]:
    dtype = DType.of(_fill(app.attributes).dtype)
    shape = listed(app, 0)
    if shape is not None and any(isinstance(d, int) and d < 0 for d in shape):
        raise app.fail(f"negative extent in {format_shape(shape)}")
    return (TensorType(dtype, shape),)


@defines(
    "ConstantOfShape",
    infer=_infer_constant_of_shape,
    kind=Kind.INJECTIVE,
    flops=no_flops,
    bit_exact=True,
    traits=Traits(exact=True, widens=True, counts=(0,), extents=0),
)
def _constant_of_shape(attributes: Attributes, shape: Any) -> Any:
    """A tensor of the given shape filled with ``value`` (float32 zero if absent)."""
    fill = _fill(attributes)
    return np.full(ints(shape), fill, fill.dtype)


def _steps(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> int:
    """``max(ceil((limit - start) / delta), 0)``"""
    first, last, step = (v.reshape(()).item() for v in (start, limit, delta))
    if isinstance(first, int):
        return max(-(-(last - first) // step), 0)
    return max(int(np.ceil((last - first) / step)), 0)


_NO_SCALARS = "start, limit and delta must be scalars"


def _infer_range(app: Application) -> tuple[Type, ...]:
    dtype = common_dtype(app, 0, 1, 2)
    start, limit, delta = app.value(0), app.value(1), app.value(2)
    if start is None or limit is None or delta is None:
        bounds = [app.dims(i) for i in range(3)]
        if any(b is not None and len(b) != 1 for b in bounds):
            raise app.fail(_NO_SCALARS)
        (first,), (last,), step = ([None] if b is None else b for b in bounds)
        if first is None or last is None or step != [1]:
            return (TensorType(dtype, (fresh_symbol(),)),)
        return (TensorType(dtype, (maximum(subtract(last, first), 0),)),)
    if not start.size == limit.size == delta.size == 1:
        raise app.fail(_NO_SCALARS)
    if not delta.any() or not all(np.isfinite(float(v.item())) for v in (start, limit, delta)):
        raise app.fail(f"from {start.item()} to {limit.item()} in steps of {delta.item()} is no range")
    return (TensorType(dtype, (_steps(start, limit, delta),)),)


def _is_added_up(attributes: Attributes, operands: Sequence[Any]) -> bool:
    """ONNX multiplies steps; runtimes add them up, and round each sum."""
    if any(o is None or o.dtype.kind in "iu" for o in operands):
        return False
    start, limit, delta = map(float, (o.reshape(()) for o in operands))
    if start.is_integer() and delta.is_integer() and max(abs(start), abs(limit)) + abs(delta) <= _WHOLE:
        return False
    if delta == 0 or not np.isfinite((start, limit, delta)).all() or (number := _steps(*operands)) > _MOST_ADDED:
        return True
    first, step = map(wide, (operands[0], operands[2]))
    added = np.add.accumulate(np.append(first, np.full(max(number - 1, 0), step, first.dtype)), dtype=first.dtype)
    return not np.array_equal(narrow(added[:number], operands[0]), _range(attributes, *operands))


@defines(
    "Range",
    infer=_infer_range,
    kind=Kind.OPAQUE,
    traits=Traits(keeps_whole=True, counts=(0, 1, 2)),
    disputed=_is_added_up,
)
def _range(attributes: Attributes, start: Any, limit: Any, delta: Any) -> Any:
    """``start + i*delta`` for each i below ``ceil((limit - start) / delta)``; of half precision in that of ``stash_type``"""
    first, step = map(wide, (start, delta))
    if first is not start and attributes.get("stash_type", 1) == int(DType.DOUBLE):
        first, step = first.astype(np.float64), step.astype(np.float64)
    index = np.arange(_steps(start, limit, delta))
    return narrow(first.reshape(()) + index.astype(first.dtype) * step.reshape(()), start)


def _infer_dropout(app: Application) -> tuple[Type, ...]:
    x = app.tensor(0)
    for i, what in ((1, "ratio"), (2, "training_mode")):
        if app.has(i) and app.shape(i):
            raise app.fail(f"{what} must be a scalar")
    return (x, TensorType(DType.BOOL, x.shape))


@defines("Dropout", infer=_infer_dropout, kind=Kind.ELEMENTWISE, deterministic=False)
def _dropout(attributes: Attributes, x: np.ndarray, ratio: Any = None, training_mode: Any = None) -> Any:
    """``X`` and a mask of ones; when training, ``X * mask / (1 - ratio)`` with a mask drawn at random."""
    share = float(ratio.reshape(())) if ratio is not None else 0.5
    training = training_mode is not None and bool(training_mode.reshape(()))
    if not training or share == 0.0:
        return (x, np.ones(x.shape, np.bool_))
    seed: Any = attributes.get("seed")
    mask = np.random.RandomState(seed).uniform(0, 1, x.shape) >= share
    return (narrow(x * mask * (1 / (1 - share)), x), mask)
