"""The table of peers: what is not installed is left out with a sentence, and a peer that fails leaves a dash and its words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import peers

Models = Callable[[str], Path]


def test_a_peer_that_is_not_installed_is_left_out_with_a_sentence(
    real_model: Models, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = real_model("dynamic/bert.dynamo")
    monkeypatch.setattr(
        peers, "PEERS", {"mine": ("no_such_package.part", ""), "broken": ("json", "raise SystemExit('no')")}
    )
    monkeypatch.setattr(sys, "argv", ["peers", str(path)])
    peers.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("no_such_package.part is left out")
    assert "mine" not in lines[1]
    assert lines[3].startswith("| bert.dynamo | 128 / 0 | - |")
    assert " / 2 |" in lines[3]
    assert lines[4] == "broken fails on bert.dynamo: no"


def test_the_runtime_as_a_peer_leaves_as_many_operators_as_it_writes(real_model: Models) -> None:
    _, script = peers.PEERS["extended"]
    cell, reason = peers.of_peer(sys.executable, script, real_model("dynamic/bert.dynamo"))
    assert (cell.endswith(" / 0"), reason) == (True, "")
