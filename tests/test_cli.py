"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.__main__ import main
from eqsat.commands.common import errors

STAGES = [f"eqsat: {stage}" for stage in ("load", "saturate", "extract", "verify", "save")]
"""What the command line says where it has no terminal to say more."""


def _process(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What a process of its own prints, libraries included, and how it ends."""
    command = [sys.executable, "-W", "error", "-m", "eqsat", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _eqsat(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has imported everything already."""
    command = ["eqsat", *map(str, arguments)]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as end:
            main()
    return subprocess.CompletedProcess(command, int(end.value.code or 0), out.getvalue(), err.getvalue())


def _model(path: Path, factor: float = 2.0, **changes: object) -> Path:
    """``y = Relu(Identity(x @ w) * factor)`` with a symbolic batch."""
    w = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Identity", ["m"], ["i"]),
        helper.make_node("Mul", ["i", "f"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [w, numpy_helper.from_array(np.array(factor, np.float32), "f")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return _model(tmp_path / "model.onnx")


def test_optimize_writes_a_smaller_model_and_reports(model: Path, tmp_path: Path) -> None:
    done = _eqsat(
        "optimize", model, "-o", tmp_path / "out.onnx", "--json", tmp_path / "report.json", "--dim", "batch=2"
    )
    assert done.returncode == 0
    assert "kernels" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["operators_after"] == {"MatMul": 1, "Relu": 1}
    assert report["verification"]["verdict"] in ("equal", "within tolerance")
    written = onnx.load(tmp_path / "out.onnx")
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert [n.op_type for n in written.graph.node] == ["MatMul", "Relu"]


def test_json_on_standard_output_is_all_there_is(model: Path) -> None:
    done = _eqsat("optimize", model, "--json", "-", "--no-verify")
    assert json.loads(done.stdout)["stop_reason"] == "saturated"


def test_quiet_says_nothing_and_verbose_names_the_stages(model: Path) -> None:
    assert _eqsat("optimize", model, "-q", "--no-verify").stdout == ""
    assert "saturate" in _eqsat("optimize", model, "-v", "--no-verify").stderr


def test_verbose_prints_the_whole_report(model: Path) -> None:
    short, whole = (_eqsat("optimize", model, "--no-verify", *flags).stdout for flags in ((), ("-v",)))
    assert "e-nodes in" not in short
    assert "e-nodes in" in whole


def test_without_a_terminal_each_stage_is_a_line(model: Path, tmp_path: Path) -> None:
    done = _process("optimize", model, "-o", tmp_path / "out.onnx", "--json", "-")
    assert done.stderr.splitlines() == STAGES
    assert json.loads(done.stdout)
    assert _eqsat("optimize", model, "-q").stderr == ""


def test_verbose_says_which_kernel_is_verified(model: Path) -> None:
    steps = _eqsat("optimize", model, "-v").stderr
    assert "verify (kernel 1 of 1)" in steps
    assert "verify (run 2 of " in steps


def _custom(path: Path) -> Path:
    """A model whose operator no runtime here has."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    nodes = [helper.make_node("Rotate", ["x"], ["r"], domain="my.own"), helper.make_node("Abs", ["r"], ["y"])]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=9), path)
    return path


def test_a_result_that_could_not_be_verified_is_written_and_the_status_is_3(tmp_path: Path) -> None:
    custom, out = _custom(tmp_path / "custom.onnx"), tmp_path / "out.onnx"
    done = _eqsat("optimize", custom, "-o", out)
    assert done.returncode == 3
    assert out.exists()
    assert "not verified, though" in done.stderr
    assert "Rotate" in done.stderr
    assert "not run" in done.stdout
    assert "--verify none" in done.stdout
    quiet = _eqsat("optimize", custom, "-q")
    assert (quiet.returncode, quiet.stdout) == (3, "")
    assert "not verified" in quiet.stderr
    assert _eqsat("optimize", custom, "-o", out, "--no-verify").returncode == 0
    assert _eqsat("optimize", custom, "-o", out, "--verify", "none").returncode == 0
    compared = _eqsat("verify", custom, custom)
    assert compared.returncode == 3
    assert "The models were not compared." in compared.stdout


def test_verify_speaks_in_sentences(model: Path, tmp_path: Path) -> None:
    assert _eqsat("verify", model, model).stdout.startswith("The outputs are equal bit by bit in ")
    other = _model(tmp_path / "other.onnx", factor=2.02)
    text = _eqsat("verify", model, other).stdout
    assert text.startswith("The outputs differ.")
    assert "run 1 (batch=2): output 'y'" in text
    assert "Verification(" not in text


def test_an_interrupt_while_the_program_loads_is_one_line() -> None:
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'eqsat.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from eqsat.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "eqsat: interrupted; nothing was written\n")


def test_the_package_loads_what_is_asked_for() -> None:
    script = (
        "import sys, eqsat.cli\n"
        "assert 'numpy' not in sys.modules\n"
        "assert set(eqsat.__all__) <= set(dir(eqsat))\n"
        "assert all(hasattr(eqsat, name) for name in eqsat.__all__)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    with pytest.raises(AttributeError, match="nothing"):
        _ = eqsat.nothing  # type: ignore[attr-defined]


def test_verify_tells_equal_from_different(model: Path, tmp_path: Path) -> None:
    other = _model(tmp_path / "other.onnx", factor=2.02)
    assert _eqsat("verify", model, model).returncode == 0
    done = _eqsat("verify", model, other, "--json", "-")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "failed"


def test_inputs_of_the_user(model: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "good.npz", x=np.ones((5, 4), np.float32))
    np.savez(tmp_path / "bad.npz", z=np.ones((5, 4), np.float32))
    assert _eqsat("optimize", model, "--inputs", tmp_path / "good.npz").returncode == 0
    assert _eqsat("verify", model, model, "--inputs", tmp_path / "good.npz").returncode == 0
    done = _eqsat("optimize", model, "--inputs", tmp_path / "bad.npz", "-o", tmp_path / "out.onnx")
    assert done.returncode == 2
    assert "missing ['x']" in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_inspect_rules_targets_version(model: Path) -> None:
    data = json.loads(_eqsat("inspect", model, "--json", "-").stdout)
    assert data["operators"] == {"Identity": 1, "MatMul": 1, "Mul": 1, "Relu": 1}
    assert data["symbols"] == ["batch"]
    assert "MatMul" in _eqsat("inspect", model).stdout
    rules = json.loads(_eqsat("rules", "--json", "-").stdout)
    assert {"name", "family", "equation", "conditions", "exactness", "source"} <= rules[0].keys()
    assert "launch-count" in _eqsat("targets").stdout
    assert _eqsat("--version").stdout == f"eqsat {eqsat.__version__}\n"


def test_one_rule_is_shown_by_name() -> None:
    shown = _eqsat("rules", "remove_identity").stdout
    assert shown.startswith("remove_identity  [")
    assert "rules" not in shown
    (only,) = json.loads(_eqsat("rules", "remove_identity", "--json", "-").stdout)
    assert only["name"] == "remove_identity"
    wrong = _eqsat("rules", "remove_identiti")
    assert wrong.returncode == 2
    assert "did you mean 'remove_identity'?" in wrong.stderr


def test_inspect_lists_nodes_that_explain_finds(model: Path) -> None:
    shown = _eqsat("inspect", model, "--nodes").stdout.splitlines()
    (line,) = (line for line in shown if "MatMul ->" in line)
    name = line.split()[1]
    assert line.endswith("m: float32[batch, 3]")
    assert _eqsat("explain", model, "--near", name, "-q").returncode == 0
    assert "inspect --nodes" in _eqsat("explain", model, "--near", "nobody at all").stderr
    assert json.loads(_eqsat("inspect", model, "--nodes", "--json", "-").stdout)["nodes"][0]["name"] == name


def test_the_model_itself_is_written_over_only_when_asked(model: Path) -> None:
    before = model.read_bytes()
    done = _eqsat("optimize", model, "-o", model.parent / "." / model.name)
    assert done.returncode == 2
    assert "--overwrite" in done.stderr
    assert model.read_bytes() == before
    assert _eqsat("optimize", model, "-o", model, "--overwrite").returncode == 0
    assert model.read_bytes() != before


def test_the_report_lists_rules_that_matched_only(model: Path) -> None:
    rules = json.loads(_eqsat("optimize", model, "--no-verify", "--json", "-").stdout)["rules"]
    assert rules["remove_identity"]["matches"] == 1
    assert all(found["matches"] for found in rules.values())


def test_shells_complete_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # tests need not be run by a shell
    done = _eqsat("--show-completion", "bash")
    assert "complete" in done.stdout
    assert "eqsat" in done.stdout


@pytest.mark.parametrize(
    "command", ["optimize", "verify", "inspect", "rules", "targets", "bench", "compare", "explain"]
)
def test_h_is_help(command: str) -> None:
    assert _eqsat(command, "-h").stdout == _eqsat(command, "--help").stdout


def test_help_teaches() -> None:
    for command in ((), ("optimize",), ("verify",), ("inspect",), ("rules",), ("targets",)):
        done = _eqsat(*command, "--help")
        assert done.returncode == 0
        assert len(done.stdout) > 200


def _break(model: Path, how: str) -> list[object]:
    """Arguments of an ``optimize`` that must fail, for each kind of bad input."""
    folder = model.parent
    proto = onnx.load(model)
    if how == "missing":
        return [folder / "nothing.onnx"]
    if how == "folder":
        return [folder]
    if how == "text":
        model.write_text("this is no model")
    elif how == "empty":
        model.write_bytes(b"")
    elif how == "truncated":
        model.write_bytes(model.read_bytes()[:-40])
    elif how == "undefined":
        proto.graph.node[0].input[0] = "nobody"
    elif how == "cycle":
        proto.graph.node[0].input[0] = "y"
    elif how == "opset":
        proto.opset_import[0].version = 999
    elif how == "shapes":
        proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
    elif how in ("data missing", "data outside"):
        tensor = proto.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        location = "gone.bin" if how == "data missing" else "../secret.bin"
        for key, value in (("location", location), ("offset", "0"), ("length", "48")):
            tensor.external_data.add(key=key, value=value)
        (folder.parent / "secret.bin").write_bytes(bytes(48))
    if how in ("undefined", "cycle", "opset", "shapes", "data missing", "data outside"):
        model.write_bytes(proto.SerializeToString())
    options = {
        "target": ["--target", "abacus"],
        "cost": ["--cost", "beauty"],
        "numerics": ["--numerics", "vague"],
        "dim": ["--dim", "batch"],
        "dim name": ["--dim", "nobody=3"],
        "dim value": ["--dim", "batch=0"],
        "dim twice": ["--dim", "batch=1", "--dim", "batch=2"],
        "assume less": ["--assume", "batch<=8"],
        "assume twice": ["--assume", "batch=1,batch=1..4"],
        "rule": ["--disable-rule", "nobody"],
        "form": ["--form", "origami"],
        "keep": ["--keep", "nobody"],
        "inputs": ["--inputs", folder / "nothing.npz"],
        "assume signs": ["--assume", "batch=--3"],
        "assume nothing": ["--dim", "batch=1", "--assume", "batch=1"],
        "consumer": ["--for", ""],
        "inputs unused": ["--inputs", folder / "nothing.npz", "--no-verify"],
        "full none": ["--verify", "full", "--no-verify"],
    }
    return [model, *options.get(how, [])]


@pytest.mark.parametrize(
    "how",
    [
        *("missing", "folder", "text", "empty", "truncated", "undefined", "cycle", "opset", "shapes", "data missing"),
        *(
            "data outside",
            "target",
            "cost",
            "numerics",
            "dim",
            "dim name",
            "dim value",
            "dim twice",
            "assume less",
            "assume twice",
            "rule",
            "form",
            "keep",
            "inputs",
            "assume signs",
            "assume nothing",
            "consumer",
            "inputs unused",
            "full none",
        ),
    ],
)
def test_bad_input_is_one_line_and_status_2(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    arguments = _break(_model(folder / "model.onnx"), how)
    before = sorted(folder.iterdir())
    done = _eqsat("optimize", *arguments, "-o", folder / "out.onnx")
    assert done.returncode == 2, done.stderr
    said = [line for line in done.stderr.splitlines() if line not in STAGES]
    assert len(said) == 1
    assert said[0].startswith("eqsat: ")
    assert "Traceback" not in done.stderr
    assert sorted(folder.iterdir()) == before


def test_unwritable_output_is_refused_before_any_work(model: Path, tmp_path: Path) -> None:
    for output in (tmp_path / "no" / "such" / "folder.onnx", tmp_path):
        done = _eqsat("optimize", model, "-o", output)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1


def test_standard_output_is_for_reports_only(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in (("optimize", model, "-o", "-"), ("calibrate", "--operators", "Relu", "--database", "-")):
        done = _eqsat(*command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "standard output" in done.stderr
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("broken", ["missing", "text"])
def test_a_model_beside_others_that_cannot_be_read_is_an_error(model: Path, broken: str) -> None:
    other = model.with_name("other.onnx")
    if broken == "text":
        other.write_text("this is no model")
    done = _eqsat("bench", model, other)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "other.onnx" in done.stderr


@pytest.mark.parametrize("command", ["optimize", "compare", "explain", "bench", "inspect"])
def test_a_report_that_cannot_be_written_is_refused_before_any_work(command: str, model: Path, tmp_path: Path) -> None:
    output = ["-o", tmp_path / "out.onnx"] if command == "optimize" else []
    done = _eqsat(command, model, *output, "--json", tmp_path / "no" / "report.json")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("arguments", [("bench", "MODEL", "--levels", ","), ("calibrate", "--operators", "")])
def test_a_list_of_names_that_names_nothing_is_refused(arguments: tuple[str, ...], model: Path) -> None:
    done = _eqsat(*(model if a == "MODEL" else a for a in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert "names nothing" in done.stderr


def test_inspect_says_why_an_operator_of_ones_own_is_untouched(tmp_path: Path) -> None:
    rules, model = tmp_path / "mine.py", tmp_path / "mine.onnx"
    rules.write_text(
        "from eqsat.ir.composite import define_composite\nfrom eqsat.ir.operator import Kind\n"
        "define_composite('mine::Sum', lambda b, a, i: [b.op('Add', i[0], i[1])], Kind.ELEMENTWISE)"
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Sum", ["x"], ["y"], domain="mine")], "g", [x], [y])
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), model)
    assert "mine::Sum x1: domain mine" in _eqsat("inspect", model).stdout
    assert "are not covered by the definition: IndexError" in _eqsat("inspect", model, "--rules", rules).stdout
    assert "its definition does not cover this node" in _eqsat("optimize", model, "--rules", rules).stderr


def test_a_report_that_does_not_fit_leaves_the_last_one(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("{}")
    command = [sys.executable, "-m", "eqsat", "inspect", str(model), "--json", str(report)]
    done = subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"eqsat: {report}: cannot write the JSON report: File too large\n"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path != model] == [("report.json", "{}")]


def test_without_docstrings_there_are_no_rules() -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "eqsat", "rules"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith("; python -OO drops docstrings, and so does PYTHONOPTIMIZE=2\n")
    assert done.stderr.count("\n") == 1


def test_json_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    done = _eqsat("inspect", model, "--json", tmp_path / "no" / "report.json")
    assert done.returncode == 2
    assert "report.json" in done.stderr


def test_real_model_from_the_command_line(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    done = _process("optimize", real_model("squeezenet"), "-o", tmp_path / "out.onnx", "--cost", "roofline-launch")
    assert done.returncode == 0, done.stderr
    assert _process("verify", real_model("squeezenet"), tmp_path / "out.onnx").returncode == 0


def test_extract_reads_files_of_the_extraction_gym(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "nodes": {
            "shared": {"op": "f", "children": ["leaf"], "eclass": "a", "cost": 5},
            "left": {"op": "g", "children": ["leaf"], "eclass": "b", "cost": 3},
            "via": {"op": "h", "children": ["shared"], "eclass": "b", "cost": 1},
            "leaf": {"op": "x", "children": [], "eclass": "x", "cost": 0},
        },
        "root_eclasses": ["a", "b"],
    }
    (tmp_path / "graph.json").write_text(json.dumps(data))
    found = json.loads(_eqsat("extract", tmp_path / "graph.json", "--json", "-").stdout)
    assert found.keys() == {"cost", "lower_bound", "gap", "seconds", "work", "method", "nodes"}
    assert (found["cost"], found["lower_bound"], sorted(found["nodes"])) == (6, 6, ["leaf", "shared", "via"])
    assert "proved optimal" in _eqsat("extract", tmp_path / "graph.json").stdout
    (tmp_path / "bad.json").write_text("{}")
    done = _eqsat("extract", tmp_path / "bad.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    data["nodes"]["left"]["children"] = data["nodes"]["via"]["children"] = ["left"]
    (tmp_path / "circle.json").write_text(json.dumps(data))
    assert "circle.json: root e-class 'b': no acyclic choice" in _eqsat("extract", tmp_path / "circle.json").stderr


def test_an_output_takes_the_place_of_no_device(model: Path, tmp_path: Path) -> None:
    device = tmp_path / "null"
    os.mkfifo(device)
    done = _eqsat("optimize", model, "-o", device)
    assert done.returncode == 2
    assert "is no regular file" in done.stderr
    assert device.is_fifo()


def test_a_report_replaces_no_model(model: Path, tmp_path: Path) -> None:
    before, output = model.read_bytes(), tmp_path / "out.onnx"
    for command in (["inspect", model, "--json", model], ["optimize", model, "-o", output, "--json", output]):
        done = _eqsat(*command)
        assert done.returncode == 2
        assert "no JSON" in done.stderr
    assert model.read_bytes() == before
    onnx.checker.check_model(onnx.load(output))


def test_names_and_extents_beyond_all_limits_are_one_line(model: Path, tmp_path: Path) -> None:
    for option, status in (
        (["-o", tmp_path / ("a" * 300)], 2),
        (["--dim", f"batch={10**20}"], 2),
        (["--dim", f"batch={10**17}"], 3),  # no memory holds such inputs, to compare on
        (["--seed", -1], 2),
    ):
        done = _eqsat("optimize", model, *option)
        assert done.returncode == status
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (MemoryError("4 TiB"), 2)])
def test_what_ends_a_command_early_is_one_line(
    error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, errors():
        raise error
    assert ended.value.exit_code == status
    assert capsys.readouterr().err.count("\n") == 1
