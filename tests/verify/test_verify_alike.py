"""Tolerances that are measured once for what is alike."""

from __future__ import annotations

import numpy as np

from eqsat.verification.compare import Yardstick


def measured(reference: np.ndarray, noise: float) -> Yardstick:
    yardstick = Yardstick(reference)
    yardstick.observe(reference + np.float32(noise))
    return yardstick


def test_tolerances_are_lent_to_arrays_whose_elements_are_as_large() -> None:
    lent = measured(np.full(8, 2, np.float32), 0.01).borrowed(np.full(8, 3, np.float32))
    assert lent is not None
    assert not lent.judge(np.full(8, 3.01, np.float32)).message
    assert lent.judge(np.full(8, 3.5, np.float32)).message


def test_tolerances_are_not_lent_to_arrays_whose_elements_are_smaller() -> None:
    assert measured(np.full(8, 2, np.float32), 0.01).borrowed(np.full(8, 1, np.float32)) is None


def test_tolerances_are_not_lent_to_arrays_of_other_shapes_or_dtypes() -> None:
    yardstick = measured(np.full(8, 2, np.float32), 0.01)
    assert yardstick.borrowed(np.full(9, 2, np.float32)) is None
    assert yardstick.borrowed(np.full(8, 2, np.float64)) is None
