"""Graphs of a few operations that fall into blocks, shared by the tests of this folder."""

from __future__ import annotations

import pytest

from eqsat.bounds.blocks import bound as blockwise
from eqsat.bounds.blocks import separators


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separators however close they are, and blocks whatever kernels are bound by."""
    for name in ("_LEAST_HEAVY", "_LEAST_READ", "_LEAST_LIGHT"):
        monkeypatch.setattr(separators, name, 1)
    monkeypatch.setattr(blockwise, "_LEAST_BYTES", 0.0)
