"""Whether an array is another within an exactness class."""

import numpy as np

from eqsat.exactness import Exactness

ROUNDING_FACTOR = 32.0
"""Roundings, in units of the last place of the largest operand, that two ways to compute one value may differ by."""

TIES = 0.25
"""Share of the elements that class LSB may move by a quantum: more of them, of several values, are no rounding ties."""

_FEW_VALUES = 3


def difference(
    expected: np.ndarray,
    found: np.ndarray,
    exactness: Exactness,
    magnitude: np.ndarray | None = None,
    quanta: int = 0,
    inside: np.ndarray | None = None,
    quantum: float | np.ndarray = 0.0,
) -> str | None:
    """Why ``found`` is not ``expected`` within an exactness class, or ``None`` if it is.

    ``magnitude``: size of the terms each float was computed from, the yardstick of class ROUNDING. ``inside``: the elements to
    compare; all by default. ``quantum``: by how much class LSB may move single floats, all alike or each.
    """
    if expected.dtype != found.dtype:
        return f"dtype {found.dtype}, expected {expected.dtype}"
    if expected.shape != found.shape:
        return f"shape {found.shape}, expected {expected.shape}"
    if expected.dtype.kind in "OSU":
        return None if np.array_equal(expected, found) else "strings differ"
    same = expected == found
    if expected.dtype.kind not in "iub":
        same |= (expected != expected) & (found != found)
    wrong = ~same
    if exactness >= Exactness.LOSSY or not wrong.any():
        return None
    if expected.dtype.kind in "iu" and exactness >= Exactness.LSB:
        beyond = np.abs(expected.astype(np.int64) - found.astype(np.int64)) > quanta
        wrong &= beyond | (not _are_ties(expected, wrong))
    elif expected.dtype.kind not in "iub" and exactness >= Exactness.ROUNDING:
        wrong &= ~_within_rounding(expected, found, magnitude)
        if np.any(quantum) and wrong.any():
            with np.errstate(all="ignore"):
                moved = np.abs(expected.astype(np.float64) - found.astype(np.float64))
            wrong &= ~(moved <= 1.001 * quantum) | (not _are_ties(expected, wrong))
    if inside is not None:
        wrong &= inside
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    return f"{found[at]} at {list(at)}, expected {expected[at]} ({count} of {wrong.size} elements differ)"


def _are_ties(expected: np.ndarray, moved: np.ndarray) -> bool:
    """Whether so few elements, or such of so few values, are moved that they may lie at rounding ties."""
    return int(moved.sum()) <= TIES * moved.size or np.unique(expected[moved]).size <= _FEW_VALUES


def is_float(array: np.ndarray) -> bool:
    """Whether an array is of floats, those of other packages among them."""
    return array.dtype.kind in "fV"


def in_double(array: np.ndarray) -> np.ndarray:
    """The elements in double precision."""
    return np.asarray(array).astype(np.float64)


def unit_of(dtype: np.dtype) -> float:
    """The distance of 1 from the next float of a type."""
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def _within_rounding(expected: np.ndarray, found: np.ndarray, magnitude: np.ndarray | None) -> np.ndarray:
    import ml_dtypes

    info = ml_dtypes.finfo(expected.dtype)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    size = np.abs(a) if magnitude is None else np.fmax(np.abs(a), magnitude)
    with np.errstate(all="ignore"):
        close = np.abs(a - b) <= ROUNDING_FACTOR * (float(info.eps) * size + float(info.smallest_normal))
    return np.asarray(close & np.isfinite(a) & np.isfinite(b))
