"""No change makes the optimiser do more work unseen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.work import TARGETS, known, work_of


@pytest.mark.parametrize("name", ["squeezenet", "tensat_bert"])
@pytest.mark.parametrize("target", TARGETS)
def test_work_is_what_the_table_says(name: str, target: str, real_model: Callable[[str], Path]) -> None:
    """If this fails, a change made the optimiser do more, or less: `python -m benchmarks.work --write` takes note of it."""
    counts, table = work_of(real_model(name), target), known()[name][target]
    assert counts.keys() == table.keys()
    for key, count in counts.items():
        assert count == pytest.approx(table[key], rel=0.1, abs=20), key
