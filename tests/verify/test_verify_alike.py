"""Tolerances that are measured once for what is alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.verification.compare import Yardstick
from eqsat.verification.pieces import session_of
from eqsat.verification.reference import Reference
from eqsat.verification.sensitivity import Sensitivity


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


def runs_with_noise(errors: list[float], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[bool]]:
    """How many it takes to judge results that are so many ulp off, one after the other, and which of them are refused."""
    b = GraphBuilder()
    x = b.input("x", "float32", (64, 64))
    graph = b.finish({"y": b.op("Reshape", b.op("Exp", b.op("Mul", x, x)), b.constant([-1], "int64"))})
    feeds = {"x": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)}
    right = session_of(graph).run(feeds)["y"]
    reference = Reference(graph, session_of(graph).run, [feeds])
    count = 0
    observe = Sensitivity.observe

    def counted(self: Sensitivity, *arguments: Any) -> None:
        nonlocal count
        count += 1
        observe(self, *arguments)

    monkeypatch.setattr(Sensitivity, "observe", counted)
    found = [right * np.float32(1 + e * 2.0**-23) for e in errors]
    refused = [bool(reference.judge(0, {"y": y}, Exactness.ROUNDING)["y"].message) for y in found]
    return count, refused


def test_what_the_last_rounding_explains_takes_no_run_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_with_noise([10.0], monkeypatch) == (0, [False])


def test_what_it_does_not_explain_takes_one_that_is_asked_again_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_with_noise([80.0, 80.0], monkeypatch) == (1, [False, False])


def test_what_no_noise_explains_is_refused_after_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_with_noise([1e4], monkeypatch) == (16, [True])
