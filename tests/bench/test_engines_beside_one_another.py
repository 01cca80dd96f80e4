"""Engines timed beside one another: who takes part, in processes of their own, and which pair is the fastest."""

from __future__ import annotations

import json
import platform
import signal
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.backends.onnxruntime import Session
from eqsat.cli import app
from eqsat.errors import OptionError
from eqsat.speed import contest as contests
from eqsat.speed import engines
from eqsat.speed.bench import Bench
from eqsat.speed.contest import Contestant, Measured, Protocol, contest

SHORT = Protocol(runs=2, processes=2, threads=1)
has_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = eqsat.GraphBuilder()
    w = b.constant(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32))
    y = b.op("MatMul", b.input("x", "float32", (4, 8)), w)
    save_onnx(b.finish({"y": b.op("Relu", b.op("Relu", y))}), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


Process = Callable[[dict[str, Any]], tuple[Any, str]]


def processes(monkeypatch: pytest.MonkeyPatch, answer: Process) -> list[list[str]]:
    """Lets ``answer`` stand in for processes, and lists the engines of each."""
    begun: list[list[str]] = []

    def process(task: dict[str, Any]) -> tuple[Any, str]:
        begun.append([c["engine"] for c in task["contestants"]])
        return answer(task)

    monkeypatch.setattr(contests, "_process", process)
    return begun


def fine(task: dict[str, Any], seconds: float = 1.0) -> tuple[Any, str]:
    return [{"seconds": [seconds] * task["runs"], "error": 0.0, "misfit": ""} for _ in task["contestants"]], ""


def test_each_engine_has_processes_of_its_own_which_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = processes(monkeypatch, fine)
    pairs = [("original", "onnxruntime"), ("eqsat", "onnxruntime"), ("original", "openvino"), ("eqsat", "openvino")]
    found = contest([Contestant(f"{a} {b}", "m", b) for a, b in pairs], {}, {}, SHORT)
    assert begun == [["onnxruntime"] * 2, ["openvino"] * 2] * 2
    assert [m.samples for m in found] == [((1.0, 1.0), (1.0, 1.0))] * 4


def test_who_ends_a_process_is_found_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(task: dict[str, Any]) -> tuple[Any, str]:
        return (None, "ended") if any(c["name"] == "bad" for c in task["contestants"]) else fine(task)

    begun = processes(monkeypatch, dying)
    good, bad = contest([Contestant("good", "m"), Contestant("bad", "m")], {}, {}, SHORT)
    assert len(good.samples) == 2
    assert (bad.samples, bad.misfit) == ((), "ended")
    assert [len(team) for team in begun] == [2, 1, 1, 1]


def test_a_process_that_crashes_is_named_by_its_signal(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        returncode = -signal.SIGSEGV

    monkeypatch.setattr(contests.subprocess, "run", lambda *args, **options: Done())
    with pytest.raises(eqsat.ModelError, match=f"signal {int(signal.SIGSEGV)}"):
        contest([Contestant("m", str(model))], {}, {}, SHORT)


def test_a_process_that_takes_too_long_is_ended(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = contests.subprocess.TimeoutExpired("worker", 5)

    def waiting(*args: Any, **options: Any) -> None:
        assert options["timeout"] == 5
        raise late

    monkeypatch.setattr(contests.subprocess, "run", waiting)
    with pytest.raises(eqsat.ModelError, match="takes more than 5 s"):
        contest([Contestant("m", str(model))], {}, {}, Protocol(limit_s=5))


def test_engines_that_are_not_installed_say_how_to_get_them(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: name if name == "onnxruntime" else None)
    found = eqsat.bench(model, engines="all", runs=2, processes=1, threads=1)
    assert found.skipped["openvino"] == "is not installed: pip install 'eqsat[openvino]'"
    assert found.skipped["inductor"] == "is not installed: pip install 'eqsat[torch]'"
    assert [m.contestant.name for m in found.comparable] == ["original onnxruntime", "eqsat onnxruntime"]
    assert all(m.contestant.level == "all" and m.error is not None and m.error < 1e-5 for m in found.comparable)
    assert "best of ours, eqsat onnxruntime, is " in str(found)
    with pytest.raises(OptionError, match="openvino is not installed"):
        eqsat.bench(model, engines=("openvino",))


@pytest.mark.parametrize("options", [{"target": "tvm-like"}, {"form": "flat"}, {"opset": 17}])
def test_an_engine_decides_about_target_form_and_opset(model: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        eqsat.bench(model, engines="onnxruntime", **options)


def test_unknown_engines_and_precisions_are_one_clear_error(model: Path) -> None:
    with pytest.raises(OptionError, match=r"'opnvino' does not exist; did you mean 'openvino'"):
        eqsat.bench(model, engines="opnvino")
    with pytest.raises(OptionError, match=r"'bf61' does not exist; did you mean 'bf16'"):
        eqsat.bench(model, precision="bf61")
    with pytest.raises(OptionError, match="runs is '3'; it must be a whole number from 1 on"):
        eqsat.bench(model, runs="3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="time one model"):
        eqsat.bench(model, model, engines="all")


def measured(name: str, seconds: float, precision: str = "f32") -> Measured:
    samples = tuple(tuple(seconds * (1 + 0.001 * k) for k in range(5)) for _ in range(3))
    return Measured(Contestant(name, "m", name.split()[1], precision=precision), samples, 0.0)


def race_of(*found: Measured) -> engines.Race:
    return engines.Race(Bench("m", found, {}, 1), {})


def test_the_fastest_pair_is_the_original_only_where_ours_is_slower() -> None:
    ours, raw = measured("eqsat openvino", 1.0), measured("original openvino", 0.9999)
    assert race_of(ours, raw, measured("eqsat onnxruntime", 2.0)).fastest() is ours
    faster = measured("original openvino", 0.5)
    assert race_of(ours, faster).fastest() is faster
    quick = measured("eqsat onnxruntime", 0.1)
    assert race_of(ours, faster, quick).fastest() is quick


def test_lower_precision_is_a_row_of_its_own_that_beats_nothing() -> None:
    found = race_of(measured("eqsat openvino", 1.0), measured("eqsat openvino bf16", 0.1, "bf16"))
    assert found.fastest().contestant.name == "eqsat openvino"
    assert "class lossy" in str(found.bench)


def test_the_report_says_which_engine_and_what_the_others_took(model: Path) -> None:
    result = eqsat.fastest(model, "onnxruntime", runs=2, processes=1, threads=1)
    said = result.report.engine
    assert said["name"] == "onnxruntime"
    assert said["program"] in said["median_s"]
    assert "onnxruntime is the fastest, with " in str(result.report)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_a_graph_that_is_no_file_can_race_too(model: Path) -> None:
    result = eqsat.fastest(eqsat.load(model), "onnxruntime", runs=2, processes=1, threads=1)
    assert set(result.report.engine["median_s"]) == {"original onnxruntime", "eqsat onnxruntime"}


def test_where_the_original_is_fastest_it_is_the_result(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_ours(task: dict[str, Any]) -> tuple[Any, str]:
        names = [c["name"] for c in task["contestants"]]
        return [{"seconds": [9.0 if "eqsat" in n else 1.0] * 3, "error": 0.0, "misfit": ""} for n in names], ""

    processes(monkeypatch, slow_ours)
    result = eqsat.fastest(model, "onnxruntime", processes=2)
    assert result.report.operators_after == result.report.operators_before
    assert result.report.engine["program"] == "original onnxruntime"


def test_the_commands(model: Path, tmp_path: Path) -> None:
    short = ["bench", str(model), "--engines", "onnxruntime", "--runs", "2", "--processes", "1", "--threads", "1"]
    done = CliRunner().invoke(app, [*short, "--json", str(tmp_path / "bench.json")])
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "bench.json").read_text())["best"] == "eqsat onnxruntime"
    done = CliRunner().invoke(app, ["optimize", str(model), "--engine", "onnxruntime", "-o", str(tmp_path / "o.onnx")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "o.onnx").exists()
    done = CliRunner().invoke(app, ["optimize", str(model), "--engine", "onnxruntime", "--form", "flat"])
    assert done.exit_code == 2
    assert "form: the engine decides" in done.stderr


@pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="ARM64 has it")
def test_onnxruntime_says_where_it_multiplies_in_bfloat16(model: Path) -> None:
    found = eqsat.bench(model, engines="onnxruntime", precision="bf16", runs=2, processes=1, threads=1)
    row = next(m for m in found.measured if m.contestant.name == "eqsat onnxruntime bf16")
    assert "on ARM64 only (mlas.enable_gemm_fastmath_arm64_bfloat16)" in row.misfit
    assert found.of("eqsat onnxruntime") is not None
    with pytest.raises(OptionError, match="ARM64 only"):
        eqsat.run(eqsat.load(model), {}, engine="onnxruntime", precision="bf16")


def test_onnxruntime_is_asked_for_bfloat16_on_arm(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    options = Session(model, precision="bf16").inference_session.get_session_options()
    assert options.get_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16") == "1"


@pytest.mark.parametrize("engine", ["numpy", "relax"])
def test_engines_without_lower_precision_refuse_it(model: Path, engine: str) -> None:
    with pytest.raises(OptionError, match="no precision bf16"):
        eqsat.run(eqsat.load(model), {}, engine=engine, precision="bf16")


@has_openvino
def test_openvino_multiplies_in_bfloat16_only_when_asked(model: Path) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    graph = eqsat.load(model)
    expected = eqsat.run(graph, x)["y"]
    np.testing.assert_allclose(eqsat.run(graph, x, engine="openvino")["y"], expected, rtol=1e-5, atol=1e-6)
    import openvino  # pyright: ignore[reportMissingImports]

    if "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        with pytest.raises(OptionError, match="no products of bfloat16"):
            eqsat.run(graph, x, engine="openvino", precision="bf16")
        return
    found = eqsat.run(graph, x, engine="openvino", precision="bf16")["y"]
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert 1e-5 < error < 5e-2


@has_openvino
def test_openvino_and_onnxruntime_side_by_side(model: Path) -> None:
    found = eqsat.bench(model, engines="onnxruntime,openvino", runs=2, processes=1, threads=1)
    assert len(found.comparable) == 4
    assert all(m.error is not None and m.error < 1e-5 for m in found.comparable)
