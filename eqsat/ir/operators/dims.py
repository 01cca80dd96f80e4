"""Arithmetic on dimensions that may be symbolic.

Nothing is assumed of a symbol except that it stands for one non-negative integer.
"""

import math
from collections.abc import Sequence

import numpy as np

from eqsat.errors import ShapeError
from eqsat.ir import extents
from eqsat.ir.infer import fresh_symbol
from eqsat.ir.limits import at_most, limits_of_broadcast
from eqsat.ir.nominal import note_equal
from eqsat.ir.operator import Application
from eqsat.ir.traits import VARIADIC
from eqsat.ir.types import Dim, DType, Shape, Type, type_of_array


def unknown_dims(rank: int) -> Shape:
    """``rank`` dimensions about which nothing is known."""
    return tuple(fresh_symbol() for _ in range(rank))


def listed(app: Application, index: int) -> Shape | None:
    """The extents that input ``index`` lists, as far as they are known; ``None`` if not even how many there are."""
    found = app.dims(index)
    if found is not None:
        return tuple(found)
    rank = length(app, index)
    return None if rank is None else unknown_dims(rank)


def ints(value: np.ndarray) -> list[int]:
    """Elements of a vector of integers, or of a single one. Raises `ShapeError` for a matrix."""
    if value.ndim > 1:
        raise ShapeError(f"a list of extents, axes or positions must be a vector, got {type_of_array(value)}")
    return value.reshape(-1).tolist()


def length(app: Application, index: int) -> int | None:
    """Number of elements of vector input ``index``, if known: enough to know a rank when the elements are not."""
    shape = app.shape(index)
    if shape is None:
        return None
    if not shape:
        return 1
    return shape[0] if isinstance(shape[0], int) else None


def broadcast(app: Application, a: Shape | None, b: Shape | None) -> Shape | None:
    """Shape of two operands that broadcast against each other, aligned at the last axis.

    ``1`` yields to anything, a symbol yields to an extent above 1; two different symbols give a third one, because either
    may be 1: the same one, whatever the order in which they meet. What one axis says of an extent goes for the others:
    ``(min(256, past + seq) - min(256, past), min(256, past + seq))`` with ``(seq, past + seq)`` is that.
    """
    if a == b:
        return a
    if a is None or b is None:
        return None
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    result, limits = list(a), list[tuple[Dim, int]]()
    for i, y in enumerate(b, lead):
        x = result[i]
        if x == y or y == 1:
            continue
        if x == 1:
            result[i] = y
        elif isinstance(x, int):
            if isinstance(y, int):
                raise app.fail(f"shapes {format_shape(a)} and {format_shape(b)} do not broadcast ({x} != {y})")
        elif isinstance(y, int):
            result[i] = y
        else:
            result[i] = extents.broadcast(x, y)
            limits += limits_of_broadcast(x, y)
    for larger, most in limits:
        result = [at_most(d, larger, most) for d in result]
    return tuple(result)


def format_shape(shape: Sequence[Dim] | None) -> str:
    """A shape as errors print it: ``(2, n)``."""
    if shape is None:
        return "(unknown rank)"
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def same_dim(a: Dim, b: Dim) -> Dim | None:
    """The better name of an extent known under two names, or ``None`` if they contradict each other.

    A number is better than a symbol, a symbol of the model better than one of ours.
    """
    if a == b:
        return a
    note_equal(a, b)
    if isinstance(a, int):
        return None if isinstance(b, int) else a
    if isinstance(b, int):
        return b
    return b if extents.is_nameless(a) else a


def axis_of(app: Application, axis: int, rank: int) -> int:
    """``axis`` counted from the front."""
    if not -rank <= axis < rank:
        raise app.fail(f"axis {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis


def axes_of(app: Application, axes: Sequence[int], rank: int) -> list[int]:
    """``axes`` counted from the front. Raises `ShapeError` if one is named twice."""
    result = [axis_of(app, axis, rank) for axis in axes]
    if len(set(result)) != len(result):
        raise app.fail(f"axes {list(axes)} name an axis twice")
    return result


def count(type: Type | None) -> float:
    """Number of elements, where an unknown extent counts as 1 (work is then per unit of that extent)."""
    if type is None or type.shape is None:
        return 0.0
    return float(math.prod(d for d in type.shape if isinstance(d, int)))


def common_dtype(app: Application, *indices: int, optional: int = VARIADIC) -> DType:
    """The one element type of several inputs, and of an ``optional`` one if it is there. Raises `ShapeError` if they differ."""
    result = DType.UNDEFINED
    for index in (*indices, optional) if app.has(optional) else indices:
        found = app.tensor(index).dtype
        if found is result or found is DType.UNDEFINED:
            continue
        if result is not DType.UNDEFINED:
            raise app.fail(f"element types differ: {result.numpy.name} and {found.numpy.name}")
        result = found
    return result


def check_vector(app: Application, index: int, extent: Dim | None, what: str) -> None:
    """Raises `ShapeError` unless input ``index``, if present, is a vector of ``extent`` elements."""
    if not app.has(index):
        return
    shape = app.shape(index)
    if shape is None or (len(shape) == 1 and (extent is None or same_dim(shape[0], extent) is not None)):
        return
    raise app.fail(f"{what} {format_shape(shape)} must be a vector of {'?' if extent is None else extent} elements")


def check_broadcasts_to(app: Application, index: int, shape: Shape, what: str) -> None:
    """Raises `ShapeError` unless input ``index``, if present, broadcasts to ``shape`` without enlarging it."""
    given = app.shape(index) if app.has(index) else None
    if given is None:
        return
    grown = broadcast(app, shape, given)
    if (
        grown is None
        or len(given) > len(shape)
        or any(same_dim(a, b) is None for a, b in zip(shape, grown, strict=True))
    ):
        raise app.fail(f"{what} {format_shape(given)} must broadcast to {format_shape(shape)}")


def replaced(shape: Shape, axis: int, dim: Dim) -> Shape:
    """``shape`` with extent ``dim`` at ``axis``."""
    return (*shape[:axis], dim, *shape[axis + 1 :])
