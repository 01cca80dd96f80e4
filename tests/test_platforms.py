"""What other platforms lack or do otherwise, taken away here: Windows has no ``resource``, and its pipes have few letters."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import eqsat
from eqsat.egraph import saturate

NAME = "\N{CJK UNIFIED IDEOGRAPH-8F93}\N{LATIN SMALL LETTER A WITH DIAERESIS}"


def _on_windows(*arguments: object) -> subprocess.CompletedProcess[bytes]:
    """The command in a process without what Windows lacks; its output is that of a pipe there."""
    script = "import sys; sys.modules['resource'] = None; from eqsat.__main__ import main; main()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    return subprocess.run(command, capture_output=True, env=environment, check=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = eqsat.GraphBuilder(NAME)
    x = b.input("x", "float32", (2, 4))
    y = b.op("Add", b.op("MatMul", x, b.constant(np.ones((4, 4), np.float32))), b.constant(np.ones(4, np.float32)))
    path = tmp_path / f"{NAME}.onnx"
    eqsat.optimize(b.finish({NAME: y}), node_limit=1, verify="none").save(path)
    return path


def test_the_command_runs_where_there_is_no_resource_and_pipes_have_few_letters(model: Path) -> None:
    done = _on_windows("optimize", model, "-o", model.with_name("new.onnx"), "--json", "-")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    done = _on_windows("explain", model)
    assert (done.returncode, b"\\u8f93\xe4" in done.stdout) == (0, True), done.stderr


def test_a_limit_on_memory_is_refused_where_nobody_says_how_much_there_is(model: Path) -> None:
    done = _on_windows("optimize", model, "--memory-limit", 1 << 30)
    assert (done.returncode, b"limit the e-nodes instead" in done.stderr) == (2, True)


@pytest.mark.parametrize(("platform", "peak", "reached"), [
    ("darwin", 4097, True), ("darwin", 4095, False), ("freebsd", 5, True), ("freebsd", 3, False),
])  # fmt: skip
def test_memory_is_counted_in_the_unit_of_the_platform(
    platform: str, peak: int, reached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``/proc``, what is known is the peak of the resident set: in bytes on macOS, elsewhere in KiB."""

    def no_proc(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    peaks = itertools.chain((0,), itertools.repeat(peak))
    usage = type("Usage", (), {"ru_maxrss": property(lambda _: next(peaks))})()
    monkeypatch.setattr(saturate, "open", no_proc, raising=False)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(saturate, "resource", SimpleNamespace(getrusage=lambda _: usage, RUSAGE_SELF=0))
    b = eqsat.GraphBuilder("g")
    graph = b.finish({"y": b.op("Relu", b.op("Relu", b.input("x", "float32", (4,))))})
    found = eqsat.optimize(graph, memory_limit_bytes=4096, verify="none").report.stop_reason
    assert (found == "memory_limit") == reached
