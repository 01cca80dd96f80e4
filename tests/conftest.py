"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.inflate import MODELS, inflate


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a shipped model by name, with its weights, which are written on first use."""
    folder = tmp_path_factory.mktemp("models")
    return lambda name: inflate(MODELS / f"{name}.onnx", folder)
