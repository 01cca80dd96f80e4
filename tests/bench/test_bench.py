"""Timing whole models: who takes part, ratios, errors, predicted beside measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.cli import app
from eqsat.errors import ModelError
from eqsat.options import Options
from eqsat.speed.bench import Bench, bench_files, bench_model
from eqsat.speed.contest import Contestant, Protocol, contest, levels_of, ratio_of_medians
from eqsat.speed.profile import KernelTime, Profile, profiler_seconds

SHORT = Protocol(runs=2, processes=1, threads=1)


def graph(bias: float = 0.0) -> eqsat.Graph:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (64, 128))
    w = b.constant(np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32))
    y = b.op("Transpose", b.op("Transpose", b.op("MatMul", x, w), perm=(1, 0)), perm=(1, 0))
    return b.finish({"y": b.op("Add", y, b.constant(np.full(128, bias, np.float32)))})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_onnx(graph(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_original_and_result_at_every_level(model: Path) -> None:
    found = bench_model(
        model, Options(verify=False, cost="roofline"), protocol=SHORT, levels=("basic", "all"), profile=True
    )
    names = [m.contestant.name for m in found.measured]
    assert names == ["original disable", "original basic", "original all", "eqsat basic", "eqsat all"]
    assert all(len(m.samples) == 1 and len(m.samples[0]) == 2 for m in found.measured)
    assert all(m.error is not None and m.error < 1e-5 for m in found.measured)
    best = found.best("eqsat")
    assert best is not None
    assert best.median_s == min(m.median_s for m in found.measured if m.contestant.name.startswith("eqsat"))
    for value, low, high in found.ratios().values():
        assert 0 < low <= value <= high
    assert found.profile is not None
    assert [k.key for k in found.profile.kernels] == ["MatMul"]
    assert found.profile.unpriced == 0
    assert 0 < found.profile.measured_s < 0.1
    assert 0 < found.profile.predicted_s < 0.1
    json.dumps(found.to_dict())
    assert "original all" in str(found)


def test_what_the_profiler_takes_is_not_the_kernels() -> None:
    found = profiler_seconds(threads=1, runs=5)
    assert 0 < found < 1e-4


def test_relative_errors_are_of_priced_kernels_that_take_long_enough() -> None:
    times = (("Add", 3e-5, 2e-5), ("Mul", None, 2e-5), ("Sub", 3e-6, 2e-6), ("Add", 2e-5, 4e-5))
    profile = Profile(tuple(KernelTime(key, "y", predicted, measured) for key, predicted, measured in times))
    assert profile.relative_errors() == [("Add", pytest.approx(0.5)), ("Add", pytest.approx(-0.5))]
    assert profile.median_relative_error == pytest.approx(0.5)
    assert profile.predicted_s == pytest.approx(5.3e-5)
    assert Profile(()).median_relative_error is None


def test_errors_are_those_of_the_outputs(tmp_path: Path, model: Path) -> None:
    other = tmp_path / "other.onnx"
    save_onnx(graph(bias=1.0), other)
    found = bench_files([model, other], protocol=SHORT, levels=("disable",))
    original, moved = found.measured
    assert original.error == pytest.approx(0, abs=1e-6)
    x = found.of("eqsat disable")
    assert x is moved
    assert moved.error is not None
    assert moved.error > 1e-3


def test_a_contestant_that_does_not_run_is_left_out(tmp_path: Path, model: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    broken = Contestant("broken", str(tmp_path / "broken.onnx"))
    x = np.ones((64, 128), np.float32)
    first, second = contest([*levels_of("original", model, ("disable",)), broken], {"x": x}, {"y": x}, SHORT)
    assert first.samples
    assert not second.samples
    assert "broken.onnx" in second.misfit
    assert "does not run" in str(Bench("m", (first, second), {}, 1))
    with pytest.raises(ModelError, match=r"nothing runs: .*broken\.onnx"):
        contest([broken], {}, {}, SHORT)


def test_ratios_and_their_intervals() -> None:
    random = np.random.default_rng(0)
    slow = [list(2.0 + 0.1 * random.standard_normal(20)) for _ in range(3)]
    fast = [list(1.0 + 0.05 * random.standard_normal(20)) for _ in range(3)]
    value, low, high = ratio_of_medians(slow, fast)
    assert 1.9 < low < value < high < 2.1
    assert ratio_of_medians(slow, fast) == (value, low, high)


def test_the_command(model: Path, tmp_path: Path) -> None:
    arguments = ["bench", str(model), "--runs", "2", "--processes", "1", "--threads", "1", "--levels", "all", "--json"]
    result = CliRunner().invoke(app, [*arguments, str(tmp_path / "bench.json")])
    assert result.exit_code == 0, result.output
    assert "eqsat all" in result.stdout
    assert json.loads((tmp_path / "bench.json").read_text())["best"] == "eqsat all"
    assert CliRunner().invoke(app, ["bench", str(model), "--runs", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["bench", str(model), "--levels", "most"]).exit_code == 2
