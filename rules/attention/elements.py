"""What is known of the elements of a mask: all of them, or the few numbers that they may be."""

import math
from collections.abc import Sequence

import numpy as np

from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import traits_of
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Ref
from eqsat.rules.attention.magnitudes import ORDINARY
from eqsat.rules.attention.reading import Reader
from eqsat.rules.attention.scores import FLOATS

Levels = frozenset[float]
"""The numbers, in float32, that the elements of a value may be."""

_MOST_LEVELS = 8
_DEPTH = 8


def bounds_of(array: np.ndarray) -> tuple[float, float, bool] | None:
    """Least and greatest finite element, and whether there are minus infinities; ``None`` for NaN, infinity, nothing finite."""
    if array.dtype == object or np.isnan(array).any() or (array == np.inf).any() or not np.isfinite(array).any():
        return None
    finite = array[np.isfinite(array)]
    return (float(finite.min()), float(finite.max()), finite.size < array.size)


def elements_of(reader: Reader, value: Ref) -> np.ndarray | None:
    """The elements of a constant, or of a choice between constants that was too large to be folded; else ``None``."""
    if not value.is_constant:
        return None
    elements = value.values.literal_of(value.handle)
    for _, _, operands in reader.nodes(value, "Where") if elements is None else ():
        arrays = [elements_of(reader, x) for x in operands]
        if all(x is not None for x in arrays):
            return np.where(*arrays)  # type: ignore[arg-type]
    return elements.astype(np.float32) if elements is not None and value.dtype is DType.BFLOAT16 else elements


def levels_of(reader: Reader, value: Ref, depth: int = _DEPTH) -> Levels | None:
    """The numbers that the elements of a value may be, if they are known and few."""
    return reader.once(_search_levels, value, depth)


def _search_levels(reader: Reader, value: Ref, depth: int) -> Levels | None:
    if value.dtype is DType.BOOL:
        return frozenset((0.0, 1.0))
    if value.is_constant:
        array = elements_of(reader, value)
        return None if array is None else few(array)
    if value.low == value.high:
        return frozenset((value.low,))
    for op, inputs in reader.view.spellings(value) if depth else ():
        found, traits = None, traits_of(op)
        if op == "Where" and None not in inputs:
            found = _united([levels_of(reader, x, depth - 1) for x in _chosen(inputs) if x is not None])
        elif traits.operands == len(traits.affine) == 2 and value.dtype in FLOATS:
            sides = [levels_of(reader, x, depth - 1) for x in inputs if x is not None]
            if len(sides) == 2 and sides[0] is not None and sides[1] is not None:
                found = paired(op, sides[0], sides[1], value.dtype)
        elif traits.sources or (traits.converts and value.dtype in FLOATS):
            zero = [frozenset((0.0,))] if traits.or_zero else []
            given = [x for i, x in enumerate(inputs) if x is not None and i in (traits.sources or (0,))]
            found = _united([*(levels_of(reader, x, depth - 1) for x in given), *zero])
            found = found and few(_in(value.dtype, found))
        if found is not None:
            return found
    return None


def _chosen(inputs: Sequence[Ref | None]) -> Sequence[Ref | None]:
    """What a Where may take its elements of."""
    condition, *branches = inputs
    true = condition is not None and condition.dtype is DType.BOOL and condition.low >= 1
    return branches[:1] if true else branches


def paired(op: str, left: Levels, right: Levels, dtype: DType = DType.FLOAT) -> Levels | None:
    """What an operator makes of any two numbers in this precision; ``None`` if these are many, or NaN."""
    operands = _in(dtype, left)[:, None], _in(dtype, right)
    return few(evaluate_operator(op, NO_ATTRIBUTES, operands)[0].astype(np.float32))


def _in(dtype: DType, numbers: Levels) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.array(sorted(numbers), np.float32).astype(dtype.numpy)


def least_row(array: np.ndarray) -> float:
    """The least of the greatest elements of each row."""
    return float(np.atleast_1d(array).max(axis=-1, initial=-math.inf).min(initial=math.inf))


def least_row_of(reader: Reader, value: Ref, depth: int = _DEPTH) -> float:
    """`least_row` of rows of a constant, in whatever number and order, and of what is added to them; else minus infinity."""
    return reader.once(_search_least_row, value, depth)


def _search_least_row(reader: Reader, value: Ref, depth: int) -> float:
    array = elements_of(reader, value)
    if array is not None or not depth:
        return least_row(array) if array is not None and array.dtype.kind == "f" else -math.inf
    for op, inputs in reader.view.spellings(value):
        source, traits = inputs[0] if inputs else None, traits_of(op)
        if source is not None and traits.moves and traits.extents is not None and _same_rows(source, value):
            return least_row_of(reader, source, depth - 1)
    for _, _, (left, right) in reader.nodes(value, "Add"):
        found = (
            least_row_of(reader, x, depth - 1) + y.low
            for x, y in ((left, right), (right, left))
            if _same_rows(x, value)
        )
        return max(found, default=-math.inf)
    return -math.inf


def _same_rows(source: Ref, value: Ref) -> bool:
    return source.rank > 0 and source.shape[-1:] == value.shape[-1:]


def is_of_products(reader: Reader, value: Ref, depth: int = _DEPTH) -> bool:
    """Whether a value is made of products of activations by sums, ordinary numbers and movements: relative positions."""
    return reader.once(_is_of_products, value, depth)


def _is_of_products(reader: Reader, value: Ref, depth: int) -> bool:
    if max(-value.low, value.high) <= ORDINARY:
        return True
    for op, inputs in reader.view.spellings(value) if depth else ():
        traits = traits_of(op)
        if traits.product is not None and not traits.quantises:
            return True
        read = traits.sources if traits.moves else traits.affine if traits.operands == 2 else ()
        sources = [x for i, x in enumerate(inputs) if x is not None and i in read]
        if sources and all(is_of_products(reader, x, depth - 1) for x in sources):
            return True
    return False


def few(array: np.ndarray) -> Levels | None:
    if array.dtype.kind not in "fiub" or np.isnan(array).any():
        return None
    distinct = np.unique(array)
    return frozenset(distinct.astype(np.float32).tolist()) if distinct.size <= _MOST_LEVELS else None


def _united(parts: Sequence[Levels | None]) -> Levels | None:
    if any(part is None for part in parts):
        return None
    both: Levels = frozenset[float]().union(*(part for part in parts if part is not None))
    return both if len(both) <= _MOST_LEVELS else None


def is_causal(array: np.ndarray, queries: Dim, keys: Dim, before: int = 0, *, forbidding: float) -> bool:
    """Whether every row of a mask allows the keys up to its own place, adding nothing, and forbids all others.

    ``before``: number of keys that are there before those of the queries.
    """
    if array.ndim < 2 or array.shape[-2:] != (queries, keys) or array.dtype.kind != "f":
        return False
    earlier = np.tri(array.shape[-2], array.shape[-1], before, dtype=np.bool_)
    # Not in the type of the elements, which may have no such number.
    low = array[..., ~earlier] <= np.float64(forbidding)
    return not earlier.all() and bool((array[..., earlier] == 0).all() and low.all())
