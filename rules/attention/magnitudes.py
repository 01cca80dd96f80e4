"""What numbers leave of scores that they are added to, or that they replace: how low forbids, absorbs, or costs digits."""

import numpy as np

from eqsat.ir.types import DType

MASK_FLOOR = -1e38
"""Least number of a float32 mask that is emitted: lower scores are minus infinity, or as good as that."""

FLOORS = {DType.FLOAT: MASK_FLOOR, DType.BFLOAT16: MASK_FLOOR, DType.FLOAT16: -65504.0}
"""To raise scores to such a number, or to a lower one, changes minus infinity, or what is as good as that."""

LARGEST = float(np.finfo(np.float32).max)

FORBIDDING = {DType.FLOAT: -1e8, DType.BFLOAT16: -1e9, DType.FLOAT16: -1e4}
"""A score that was replaced by this number or a lower one is out of the race, whatever it was before: those of ordinary queries
and keys are nowhere near it."""

SHRINKING = 100.0
"""Least factor, inverted, after which such a number is still far enough from the scores, which shrink as it does."""

ABSORBING = -1e30
"""Added to a score of ordinary size this leaves nothing of it, as if the score had been replaced."""

ABSORBED = -1e22
"""Least number of which nothing is left beside `ABSORBING`."""

LOW_ROW = {DType.FLOAT: float(np.float32(1e37)), DType.FLOAT16: 2.0**14}
"""Rows are shifted whose greatest number is further from zero than this, and then that is it, or about that."""

_PART_LOST = 8.0
"""A sum may miss this part of the step between neighbours: what scores add up to then still rounds as it did."""

SMALL = 64.0
"""Numbers of a float16 mask up to this size leave the scores as precise as they are."""

MORE_DIGITS = {DType.FLOAT16: 2.0**13, DType.BFLOAT16: 2.0**16}
"""Neighbours of a float32 that is this much larger than a number of these types are as far from it as those of the number are."""

ORDINARY = 1e4
"""Numbers up to this size beside products of activations are as scores are."""

_COARSE = 1 / 16
"""Numbers whose neighbours are this far from them leave of a score what a softmax notices to be gone."""


def in_float32(number: float) -> float:
    """The number as it is rounded to float32."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def is_coarse(numbers: np.ndarray) -> np.ndarray:
    """Which numbers have neighbours as far from them as `_COARSE`, or farther."""
    with np.errstate(all="ignore"):
        return np.asarray(np.isfinite(numbers) & (np.spacing(np.abs(numbers)) >= _COARSE))


def rounds_otherwise(a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    """Whether all of a row may be so far from zero that the rounding of a sum of two numbers decides what is left of scores.

    ``(s - 1e4) - 1e9`` is -1e9 less a multiple of 64, and so is ``s + (-1e4 - 1e9)``, but not always the same one. Of scores
    beyond 32, of which ``(s - 1e9) - 1e9`` rounds twice, nothing is said.
    """
    with np.errstate(all="ignore"):
        exact = a.astype(np.float64) + b
        total = exact.astype(dtype.numpy)
        lost = np.abs(exact - total.astype(np.float64))
        return bool((is_coarse(total) & (lost > np.spacing(np.abs(total)).astype(np.float64) / _PART_LOST)).any())
