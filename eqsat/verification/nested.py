"""Values that are no arrays (sequences, maps, absent ones): the arrays in them, and how they are put together."""

from collections.abc import Iterator
from typing import Any, TypeGuard

import numpy as np

from eqsat.ir.types import is_array, is_sequence


def elements(value: Any) -> np.ndarray:
    """An array itself, or all elements of the arrays in a value, in one row."""
    if is_array(value):
        return value
    leaves = list(_leaves(value))
    if not leaves:
        return np.zeros(0, np.float32)
    joined = np.concatenate([np.ravel(leaf) for leaf in leaves])
    return joined if all(map(is_array, leaves)) else _narrowed(joined)


def misfit(reference: Any, value: Any) -> str:
    """Why the elements of two values cannot be compared one by one: lengths, keys, shapes or types. Empty if they can."""
    if is_sequence(reference) and is_sequence(value):
        if len(reference) != len(value):
            return f"{len(value)} elements where the original has {len(reference)}"
        return next((found for pair in zip(reference, value, strict=True) if (found := misfit(*pair))), "")
    if _is_map(reference) and _is_map(value):
        if list(reference) != list(value):
            return f"keys {list(value)} where the original has {list(reference)}"
        return misfit(list(reference.values()), list(value.values()))
    if is_array(reference) and is_array(value):
        if reference.dtype != value.dtype:
            return f"dtype {value.dtype} where the original has {reference.dtype}"
        return "" if reference.shape == value.shape else f"shape {value.shape} where the original has {reference.shape}"
    same = type(value) is type(reference)
    return "" if same else f"{type(value).__name__} where the original has {type(reference).__name__}"


def _is_map(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _leaves(value: Any) -> Iterator[Any]:
    if value is None:
        return
    if is_sequence(value) or _is_map(value):
        for part in value.values() if _is_map(value) else value:
            yield from _leaves(part)
    else:
        yield value


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Numbers of a map come as Python's, which do not tell their precision: it is single where that holds them."""
    if array.dtype != np.float64:
        return array
    with np.errstate(over="ignore"):
        single = array.astype(np.float32)
    return single if np.array_equal(single, array, equal_nan=True) else array
