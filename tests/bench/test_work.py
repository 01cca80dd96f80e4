"""No change makes the optimiser do more work unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.work import known, work_of

LARGE, SLOW = 1500, 8000
"""E-nodes of models that take more than half a second, and more than two."""


def _cases() -> list[Any]:
    """Each model and target in the table; how long it takes is marked."""
    cases: list[Any] = []
    for name, targets in known().items():
        for target, counts in targets.items():
            enodes = counts["saturation enodes"]
            marks = [pytest.mark.slow] if enodes > SLOW else [pytest.mark.thorough] if enodes > LARGE else []
            cases.append(pytest.param(name, target, marks=marks))
    return cases


@pytest.mark.parametrize(("name", "target"), _cases())
def test_work_is_what_the_table_says(name: str, target: str, real_model: Callable[[str], Path]) -> None:
    """If this fails, a change made the optimiser do more, or less: `python -m benchmarks.work --write` takes note of it."""
    counts, table = work_of(real_model(name), target), known()[name][target]
    assert counts.keys() == table.keys()
    for key, count in counts.items():
        assert count == pytest.approx(table[key], rel=0.1, abs=20), key
