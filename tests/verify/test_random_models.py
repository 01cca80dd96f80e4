"""Random models of ONNX keep what they compute, at all levels of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import pytest

from benchmarks.model_parts import Refused
from benchmarks.random_files import Drawn, draw_model, unlike
from benchmarks.soundness_of_models import outcomes


@pytest.mark.thorough
def test_random_models_of_each_kind_are_sound() -> None:
    found = list(outcomes(range(21), seed=5))
    assert len(found) > 14
    assert not [f"{label}: {wrong}" for label, wrong in found if wrong]


def _first_drawn(kind: str, seeds: Iterable[int]) -> Drawn:
    """The first model of which something comes: which seeds that are changes with the rules whose instances are drawn."""
    for seed in seeds:
        with suppress(Refused):
            return draw_model(kind, seed)
    raise AssertionError("no model is drawn")


@pytest.mark.thorough
def test_equal_seeds_give_equal_models() -> None:
    one, two = (_first_drawn("windows", range(5, 20)) for _ in range(2))
    assert one.model == two.model
    assert not unlike(
        [feeds[k] for feeds in one.feeds for k in feeds], [feeds[k] for feeds in two.feeds for k in feeds]
    )


def test_values_that_differ_are_told() -> None:
    one, row = np.ones(3, np.float32), np.ones((1, 3), np.float32)
    assert unlike(one, row) == "is float32(1, 3), not float32(3,)"
    assert unlike(one, one * 2) == "is 2.0 at (0,), not 1.0 (3 of 3 elements)"
    assert unlike(one, np.array([1, np.nan, 1], np.float32)) == "is nan at (1,), not 1.0 (1 of 3 elements)"
    assert not unlike(one, one + np.float32(1e-4))
    assert not unlike(np.zeros(2, np.uint8), np.array([0, 1], np.uint8))
    assert unlike([one], [])
