"""What commands run in: streams that nobody reads, users without a home, pipes, other owners, little memory, signals."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
import pytest

import eqsat
from eqsat.__main__ import main
from eqsat.backends import consumer
from eqsat.backends.onnxruntime import Session
from eqsat.calibrate.calibration import calibrate, grid_of
from eqsat.cost import timings
from eqsat.errors import ResourceError
from eqsat.output import check_place, write_files
from eqsat.verification import check, levels

unix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")


def _graph(factor: float = 2.0) -> eqsat.Graph:
    b = eqsat.GraphBuilder("g")
    x = b.op("Identity", b.input("x", "float32", (2, 4)))
    return b.finish(
        {"y": b.op("Add", b.op("MatMul", x, b.constant(np.eye(4, dtype=np.float32))), b.constant(factor, "float32"))}
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    eqsat.optimize(_graph(), only_rules=(), verify=False).save(path)
    return path


@pytest.fixture
def another(tmp_path: Path) -> Path:
    path = tmp_path / "another.onnx"
    eqsat.optimize(_graph(3.0), only_rules=(), verify=False).save(path)
    return path


def _status(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["eqsat", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    return int(end.value.code or 0)


@contextmanager
def _stream(name: str, number: int) -> Iterator[None]:
    """A standard stream that goes to an open file."""
    with pytest.MonkeyPatch.context() as patch, os.fdopen(number, "w") as stream:
        assert isinstance(stream, TextIOWrapper)
        patch.setattr(sys, name, stream)
        yield


def _without_reader() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


def test_a_service_without_streams_writes_its_files(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert _status("optimize", model, "-o", tmp_path / "out.onnx", "--json", "-") == 0
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"))


def test_work_whose_stages_nobody_reads_goes_on(model: Path, tmp_path: Path) -> None:
    with _stream("stderr", _without_reader()):
        assert _status("optimize", model, "-o", tmp_path / "out.onnx") == 0
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"))


def test_the_status_is_that_of_the_work_where_nobody_reads_what_is_printed(model: Path, another: Path) -> None:
    for report in ((), ("--json", "-")):
        with _stream("stdout", _without_reader()):
            assert _status("verify", model, another, *report) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is full")
@pytest.mark.parametrize("arguments", [["targets"], ["targets", "--json", "-"], ["--version"], ["--help"]])
def test_standard_output_that_is_full_is_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with _stream("stdout", os.open("/dev/full", os.O_WRONLY)):
        assert _status(*arguments) == 2
    assert "standard output" in (said := capsys.readouterr().err)
    assert (said.count("\n"), "No space left on device" in said) == (1, True)


def test_temporary_files_that_find_no_room_are_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eqsat.pipeline.load", full)
    assert _status("optimize", model, "-q") == 2
    assert capsys.readouterr().err == "eqsat: temporary files: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="open files have no names")
def test_names_of_open_files_are_written_to_and_never_replaced(model: Path, tmp_path: Path) -> None:
    """Where they lead to a file, too: renaming to /dev/stdout would take the device from the whole machine."""
    with (tmp_path / "report.json").open("w") as file:
        name = f"/dev/fd/{file.fileno()}"
        with pytest.raises(eqsat.OutputError, match="is no regular file"):
            check_place(Path(name))
        assert _status("inspect", model, "-q", "--json", name) == 0
    assert json.loads((tmp_path / "report.json").read_text())["operators"]


@unix
def test_who_may_read_a_file_may_read_what_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "secret.onnx"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_files({path: lambda file: file.write(b"new")})
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


@unix
def test_a_model_from_a_pipe_is_read_once(model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(model.read_bytes()), daemon=True)
    writer.start()
    command = [sys.executable, "-m", "eqsat", "optimize", str(pipe)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, "a pipe, which is read once" in done.stdout) == (0, True), done.stderr
    writer.join()
    for timed in ((pipe,), (model, pipe)):
        with pytest.raises(eqsat.ModelError, match=r"pipe\.onnx: is a pipe or a device, which is read once"):
            eqsat.bench(*timed)


def test_without_a_home_there_are_no_timings_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a number in a container that is no user; `Path.home` is an error then."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    assert timings.default_table.__wrapped__("onnxruntime-cpu") is not None
    with pytest.raises(eqsat.OptionError, match="no home folder to keep the timings in; name a file with --database"):
        calibrate("onnxruntime-cpu", ())


def test_folders_that_may_not_be_entered_are_told_or_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = os.stat

    def refuse(path: Any, *given: Any, **more: Any) -> os.stat_result:
        if isinstance(path, str | Path) and "locked" in Path(path).parts:
            raise PermissionError(13, "Permission denied", str(path))
        return ask(path, *given, **more)

    monkeypatch.setattr(os, "stat", refuse)
    locked = tmp_path / "locked"
    with pytest.raises(eqsat.ModelError, match=r"m\.onnx: cannot read the model"):
        eqsat.load(locked / "m.onnx")
    with pytest.raises(eqsat.ModelError, match=r"m\.onnx: cannot read the model"):
        eqsat.bench(locked / "m.onnx")
    with pytest.raises(eqsat.OptionError, match=r"r\.py: no such file, or none that you may read"):
        eqsat.load_rules(locked / "r.py")
    monkeypatch.setattr(timings, "cache_folder", lambda: locked)
    assert timings.default_table.__wrapped__("onnxruntime-cpu") is not None


@unix
def test_what_is_asked_to_end_tidies_up(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, tempfile\n"
        "class Ended:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'eqsat.cli':\n"
        "            with tempfile.TemporaryDirectory():\n"
        "                os.kill(os.getpid(), signal.SIGTERM)\n"
        "                sum(range(1000))\n"
        "sys.meta_path.insert(0, Ended())\n"
        "from eqsat.__main__ import main\n"
        "main()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (128 + signal.SIGTERM, b"", [])


def test_a_runtime_that_finds_no_memory_or_threads_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(*_: object) -> NoReturn:
        raise RuntimeError("env.cc:327 PosixThread pthread_create failed, error code: 11")

    loaded = eqsat.optimize(_graph(), verify=False).to_onnx()
    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", short)
    with pytest.raises(ResourceError, match="pthread_create failed"):
        Session(loaded)
    consumer.newest_opset.__wrapped__()
    assert capsys.readouterr().out == ""


def test_a_result_that_finds_no_memory_is_not_compared_rather_than_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object, **__: object) -> NoReturn:
        raise ResourceError("model in memory: ONNX Runtime: std::bad_alloc")

    with monkeypatch.context() as patch:
        original = check.Original
        patch.setattr(check, "Original", lambda *a, **given: original(*a) if not given else short())
        found = eqsat.optimize(_graph()).report
        assert (found.verification["verdict"], found.left_out) == ("not run", [])
        assert "the result was not loaded" in found.verification["notes"][-1]
    opened = levels._open  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(
        levels, "_open", lambda graph, source, level: opened(graph, source, level) if source else short()
    )
    found = eqsat.optimize(eqsat.optimize(_graph(), only_rules=(), verify=False).to_onnx()).report
    assert (found.verification["verdict"] in ("equal", "within tolerance"), found.left_out) == (True, [])
    assert "level 'all': not compared" in "; ".join(found.verification["notes"])


def test_kernels_are_timed_only_where_their_runtime_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(eqsat.OptionError, match=r"OpenVINO is not installed: pip install 'eqsat\[openvino\]'"):
        calibrate("openvino-cpu", grid_of("openvino-cpu")[:2], tmp_path / "timings.json")
    assert not list(tmp_path.iterdir())


def test_packages_that_need_another_one_name_it() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "import eqsat\n"
        "for name in ('dynamo', 'fx'):\n"
        "    try:\n"
        "        getattr(eqsat, name)\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.count("needs PyTorch: pip install 'eqsat[torch]'") == 2, done


def test_processes_that_time_import_what_this_one_does(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what lies in the folder that they happen to run in."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('this is not numpy')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    found = eqsat.bench(model, levels=("disable",), runs=1, processes=1)
    assert [m.misfit for m in found.measured] == ["", ""]
