"""What other platforms lack or do otherwise, taken away here: Windows has no ``resource``, and its pipes have few letters; older
processors have fewer instructions."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.egraph import saturate
from eqsat.ir.operators.matmul import fix_order

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


def _computed_from_constants() -> eqsat.Graph:
    random = np.random.default_rng(0)
    b = eqsat.GraphBuilder("g")

    def constant(*shape: int) -> str:
        return b.constant(random.standard_normal(shape).astype(np.float32))

    functions = ("Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Softplus", "Gelu", "Erf", "Softmax", "Elu")
    values = [b.op(function, constant(60, 60)) for function in functions]
    values.append(b.op("Pow", b.op("Abs", constant(60, 60)), b.constant(1.3, "float32")))
    values.append(b.op("MatMul", constant(60, 300), constant(300, 60)))
    values.append(b.op("Einsum", constant(60, 20), constant(60, 20), equation="ij,kj->ik"))
    values.append(b.op("Reshape", b.op("Conv", constant(1, 30, 6, 10), constant(60, 30, 1, 1)), b.constant([60, 60])))
    x = b.input("x", "float32", (60, 60))
    return b.finish({f"y{i}": b.op("Mul", x, value) for i, value in enumerate(values)})


def test_a_processor_with_fewer_instructions_writes_the_same_file(tmp_path: Path) -> None:
    model, files = tmp_path / "model.onnx", (tmp_path / "all.onnx", tmp_path / "fewer.onnx")
    save_onnx(_computed_from_constants(), model)
    instructions = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    fewer = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": " ".join(instructions)}
    for file, environment in zip(files, ({}, fewer), strict=True):
        command = [sys.executable, "-m", "eqsat", "optimize", model, "-o", file, "--verify", "none"]
        subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=True)
    first, second = map(onnx.load, files)
    assert {node.op_type for node in first.graph.node} == {"Mul"}
    assert first.SerializeToString() == second.SerializeToString()


def test_products_do_not_depend_on_the_order_in_which_a_library_adds_up() -> None:
    random = np.random.default_rng(0)
    half = random.standard_normal((3, 5, 4000)).astype(np.float32)
    a = np.concatenate((half, -half * random.choice((1, 1 + 1e-6), half.shape).astype(np.float32)), axis=-1)
    b = np.concatenate([random.standard_normal((4000, 6)).astype(np.float32)] * 2)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    order = random.permutation(8000)
    one, other = np.matmul(wide_a, wide_b), np.matmul(wide_a[..., order], wide_b[order])
    assert not np.array_equal(one.astype(np.float32), other.astype(np.float32))
    fix_order(a, b, one)
    fix_order(a, b, other)
    assert np.array_equal(one.astype(np.float32), other.astype(np.float32))
    np.testing.assert_allclose(one, [[[math.fsum(x * y) for y in wide_b.T] for x in m] for m in wide_a], rtol=1e-6)
