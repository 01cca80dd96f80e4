"""Fixtures that many tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.inflate import MODELS, inflate
from eqsat.rewrite import registered_rules, unregister


@pytest.fixture(scope="session")
def real_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a shipped model by name, with its weights, which are written on first use."""
    folder = tmp_path_factory.mktemp("models")
    return lambda name: inflate(MODELS / f"{name}.onnx", folder)


@pytest.fixture
def temporary_rules() -> Iterator[None]:
    """Takes back the rules that a test registers."""
    before = {r.name for r in registered_rules()}
    yield
    for made in registered_rules():
        if made.name not in before:
            unregister(made.name)
