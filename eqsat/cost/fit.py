"""The law of a family of kernels: seconds = start + operations / rate + bytes / bandwidth, fitted robustly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SUPPORTS = ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])
"""Which coefficients of a law are not 0."""

_ROUNDS = 12
_TOLERANCE = 0.02
MINIMUM = 3
"""Fewest different kernels that a law is fitted to."""


@dataclass(frozen=True, slots=True)
class Law:
    """Non-negative coefficients, so that more work never costs less. ``error``: median relative error on what it was
    fitted to."""

    start_s: float
    s_per_operation: float
    s_per_byte: float
    error: float = 0.0

    def seconds(self, flops: float, bytes: float) -> float:
        return self.start_s + self.s_per_operation * flops + self.s_per_byte * bytes


def fit_law(flops: Sequence[float], bytes: Sequence[float], seconds: Sequence[float]) -> Law:
    """The law that minimises the sum of absolute relative errors, by iteratively reweighted non-negative least squares:
    a timing that was disturbed pulls no harder than one that is a little off."""
    time = np.asarray(seconds, float)
    columns = np.stack([np.ones(len(time)), np.asarray(flops, float), np.asarray(bytes, float)], axis=1)
    relative = columns / time[:, None]
    scale = relative.max(axis=0)
    scale[scale == 0] = 1.0
    relative = relative / scale
    weight = np.ones(len(time))
    coefficients = np.zeros(3)
    for _ in range(_ROUNDS):
        coefficients = _least_squares(relative * weight[:, None], weight)
        error = np.abs(relative @ coefficients - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(error, _TOLERANCE))
    start, operation, byte = (float(c) for c in coefficients / scale)
    return Law(start, operation, byte, float(np.median(np.abs(relative @ coefficients - 1.0))))


def _least_squares(columns: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The coefficients of three columns, none negative, that come nearest to ``values``: the best of those that are for some of
    the columns. (scipy does the same for any number of columns, and takes half a second to load.)"""
    best, least = np.zeros(columns.shape[1]), float(values @ values)
    for support in _SUPPORTS:
        found = np.linalg.lstsq(columns[:, support], values, rcond=None)[0]
        error = columns[:, support] @ found - values
        if found.min() >= 0 and float(error @ error) < least:
            best, least = np.zeros(columns.shape[1]), float(error @ error)
            best[support] = found
    return best
