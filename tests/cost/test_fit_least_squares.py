"""Non-negative least squares of three columns, against scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from eqsat.cost.families import _least_squares


@pytest.mark.parametrize("seed", range(20))
def test_coefficients_are_as_good_as_those_of_scipy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns, values = rng.random((int(rng.integers(3, 40)), 3)) ** 3, rng.random(1)
    values = columns @ (rng.normal(size=3)) + values
    ours, theirs = _least_squares(columns, values), nnls(columns, values)[0]
    assert ours.min() >= 0
    assert np.linalg.norm(columns @ ours - values) <= np.linalg.norm(columns @ theirs - values) * (1 + 1e-9)


def test_columns_that_are_zero_or_equal_do_no_harm() -> None:
    columns = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    np.testing.assert_allclose(columns @ _least_squares(columns, np.array([2.0, 4.0, 6.0])), [2.0, 4.0, 6.0])
