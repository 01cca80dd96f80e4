"""The Python API: what is found by typing, quick to import, and as clear about mistakes as the command line."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.cost.model import Rates
from eqsat.options import AllOptions, Options, SharedOptions


@pytest.fixture
def graph() -> eqsat.Graph:
    b = eqsat.GraphBuilder("g")
    x, w = b.input("x", "float32", ("n", 3)), b.constant(np.eye(3, dtype=np.float32) * 2)
    return b.finish({"y": b.op("Relu", b.op("Identity", b.op("MatMul", x, w)))})


def test_importing_brings_nothing_heavy() -> None:
    heavy = "numpy", "onnx", "onnxruntime", "egglog", "scipy", "highspy", "networkx", "torch", "rich", "typer"
    program = f"import sys, eqsat; eqsat.__version__, dir(eqsat); print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_names_are_listed_and_lead_somewhere() -> None:
    assert set(eqsat.__all__) <= set(dir(eqsat))
    for name in eqsat.__all__:
        assert getattr(eqsat, name) is not None
    assert {n for names in eqsat._HOMES.values() for n in names.split()} == set(eqsat.__all__) - {"__version__"}
    source = ast.parse(Path(eqsat.__file__).read_text())
    (typed,) = (node for node in source.body if isinstance(node, ast.If))
    imported = {
        (node.module, alias.name) for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert imported == {(module, n) for module, names in eqsat._HOMES.items() for n in names.split()}
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        _ = eqsat.optimise  # pyright: ignore[reportAttributeAccessIssue]


def test_functions_stay_functions_when_their_packages_are_imported() -> None:
    program = "import eqsat.verification, eqsat.speed.bench, eqsat.inspection, eqsat.why, eqsat.comparison, eqsat; "
    program += "print(*(callable(getattr(eqsat, n)) for n in 'verify bench inspect explain compare load'.split()))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"True"}


def test_types_of_options_are_those_of_options() -> None:
    typed = {name: hint.__forward_arg__ for name, hint in AllOptions.__annotations__.items()}
    assert typed == {f.name: f.type for f in dataclasses.fields(Options)}
    assert SharedOptions.__annotations__.keys() < AllOptions.__annotations__.keys()


@pytest.mark.parametrize("function", [eqsat.optimize, eqsat.compare, eqsat.pareto, eqsat.explain, eqsat.bench])
def test_help_shows_every_option_with_its_default_and_meaning(function: Any) -> None:
    shown = inspect.signature(function).parameters
    expected = SharedOptions if function in (eqsat.compare, eqsat.pareto) else AllOptions
    assert shown.keys() >= expected.__annotations__.keys()
    assert shown["numerics"].default == "lsb"
    for name in Options.__dataclass_fields__:
        assert f"``{name}``" in function.__doc__, name


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seed", "a"),
        ("seed", 1.5),
        ("verification_runs", 1.5),
        ("time_limit_s", None),
        ("node_limit", "many"),
        ("only_rules", "remove_identity"),
        ("disabled_rules", None),
        ("keep", "y"),
        ("opset", "17"),
        ("assume", {"n": "2"}),
        ("assume", {"n": (1, 2, 3)}),
        ("assume", 3),
        ("target", 3),
        ("consumer", 3),
        ("form", ["flat"]),
        ("only_rules", 3),
        ("keep", 3),
        ("dims", "n=3"),
        ("devices", 3),
        ("feeds", "inputs.npz"),
        ("prove", "no"),
        ("all_rules", 1),
        ("no_overrides", 1),
        ("keep_egraph", None),
        ("verify", np.zeros(2)),
    ],
)
def test_a_value_of_another_kind_is_an_error_that_names_the_option(option: str, value: Any) -> None:
    with pytest.raises(eqsat.OptionError, match=f"^{option}"):
        Options.of({option: value})


def test_values_of_another_kind_are_errors_of_other_functions_too(graph: eqsat.Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_onnx(graph, path)
    given: dict[str, Any] = {"dims": "n=3"}
    for function in (eqsat.load, eqsat.inspect):
        with pytest.raises(eqsat.OptionError, match="dims is 'n=3'; expected a mapping by name"):
            function(path, **given)
    for name, value in (("cost", 3), ("target", 3.5), ("target", {})):
        given = {name: value}
        with pytest.raises(eqsat.OptionError, match=f"{name} is .*; expected a list with at least one entry"):
            eqsat.compare(graph, **given)
    rates = Rates(launch="3")  # pyright: ignore[reportArgumentType]
    with pytest.raises(eqsat.OptionError, match="launch is 3; it must be a number >= 0"):
        eqsat.optimize(graph, cost=rates)


def test_whole_numbers_may_be_numpys() -> None:
    b = eqsat.GraphBuilder("g")
    model = eqsat.optimize(b.finish({"y": b.op("Relu", b.input("x", "float32", ("n", "m")))}), verify=False).to_onnx()
    given: dict[str, Any] = {
        "dims": {"n": np.int64(3)},
        "assume": {"m": (np.int64(2), np.int32(4))},
        "opset": np.int64(17),
    }
    found = eqsat.optimize(model, verify=False, **given)
    assert found.original.type_of("x").shape == (3, "m")
    assert [size["assumed"] for size in found.report.sizes][-1] == {"m": 4}
    assert eqsat.inspect(model, given["dims"]).to_dict()


def test_names_of_files_and_inputs_of_another_kind_are_named(graph: eqsat.Graph, tmp_path: Path) -> None:
    result: Any = eqsat.optimize(graph, verify=False)
    anything: Any
    for anything in (None, 3, b"model.onnx", result, "a\0b"):
        for function in (result.save, eqsat.bench, eqsat.load_rules):
            with pytest.raises(eqsat.EqsatError, match="expected the path of a file, got"):
                function(anything)
    with pytest.raises(eqsat.ModelError, match="is the name of no file"):
        eqsat.optimize("a\0b")
    anything = np.zeros((2, 4), np.float32)
    with pytest.raises(eqsat.FeedError, match="expected an array by name of each input, got ndarray"):
        eqsat.run(graph, anything)
    for feeds in (3, "inputs.npz", {"x": anything}):
        given: dict[str, Any] = {"feeds": feeds}
        with pytest.raises(eqsat.OptionError, match=r"feeds is .*; expected a list of inputs"):
            eqsat.verify(graph, graph, **given)
    for threads in (0, 2.5):
        given = {"threads": threads}
        with pytest.raises(eqsat.OptionError, match=r"threads is .*; it must be a whole number from 1 on"):
            result.session(**given)


def test_progress_is_a_function(graph: eqsat.Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_onnx(graph, path)
    given: dict[str, Any] = {"progress": "no"}
    for function in (eqsat.optimize, eqsat.compare, eqsat.pareto, eqsat.explain, eqsat.bench, eqsat.fastest):
        with pytest.raises(eqsat.OptionError, match="progress is 'no'; expected a function"):
            function(path, **given)


def test_what_runs_is_a_graph_or_a_program(graph: eqsat.Graph) -> None:
    given: Any = eqsat.optimize(graph, verify=False)
    with pytest.raises(
        eqsat.OptionError, match=r"program is of Result; expected a Graph or a Program \(result\.program\)"
    ):
        eqsat.run(given, {})


def test_a_machine_is_one_or_describes_one(graph: eqsat.Graph) -> None:
    given: dict[str, Any] = {"machine": 3}
    with pytest.raises(eqsat.OptionError, match="machine is 3; expected a Machine"):
        eqsat.optimize(graph, **given)


def test_numerics_may_be_a_class(graph: eqsat.Graph) -> None:
    given: dict[str, Any] = {"numerics": eqsat.Exactness.EXACT}
    assert eqsat.optimize(graph, verify=False, **given).report.numerics == "exact"


@pytest.mark.parametrize("given", [{"runs": 0}, {"seed": -1}])
def test_models_are_compared_in_one_run_at_least(given: dict[str, Any], graph: eqsat.Graph) -> None:
    with pytest.raises(eqsat.OptionError):
        eqsat.verify(graph, graph, **given)


def test_misspelt_options_name_the_nearest_one(graph: eqsat.Graph) -> None:
    wrong: dict[str, Any] = {"numeric": "exact"}
    for function in (eqsat.optimize, eqsat.compare, eqsat.pareto, eqsat.explain):
        with pytest.raises(eqsat.OptionError, match=r"'numeric' does not exist; did you mean 'numerics'\?"):
            function(graph, **wrong)
    for option, value, near in (
        ("target", "onnxruntime-cup", "onnxruntime-cpu"),
        ("cost", "kernel", "kernels"),
        ("numerics", "exakt", "exact"),
        ("form", "flatt", "flat"),
        ("only_rules", ["remove_identiti"], "remove_identity"),
    ):
        given: dict[str, Any] = {option: value}
        with pytest.raises(eqsat.OptionError, match=f"did you mean '{near}'"):
            eqsat.optimize(graph, **given)


def test_a_result_is_called_like_a_function(graph: eqsat.Graph) -> None:
    result = eqsat.optimize(graph, form="flat")
    x = np.array([[-1, 2, 3]], np.float32)
    for found in (result(x), result(x=x)):
        np.testing.assert_array_equal(found["y"], [[0, 4, 6]])
    with pytest.raises(eqsat.FeedError, match="got 2, the model takes"):
        result(x, x)
    with pytest.raises(eqsat.FeedError, match=r"\['x'\] are given by position and by name"):
        result(x, x=x)
    with pytest.raises(eqsat.FeedError, match="dtype float64"):
        result(x.astype(float))


def test_a_result_hands_out_a_session_that_owns_its_weights(graph: eqsat.Graph) -> None:
    b = eqsat.GraphBuilder("large")
    w = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    large = b.finish({"y": b.op("MatMul", b.input("x", "float32", (1, 200)), b.constant(w))})
    session = eqsat.optimize(large, verify=False).session("basic", threads=1)
    x = np.ones((1, 200), np.float32)
    np.testing.assert_allclose(np.asarray(session.run(None, {"x": x})[0]), x @ w)
    with pytest.raises(eqsat.OptionError, match="choose one of disable, basic, extended, all"):
        eqsat.optimize(graph, form="flat").session("most")


def test_a_result_is_an_onnx_model_in_each_form(graph: eqsat.Graph, tmp_path: Path) -> None:
    result = eqsat.optimize(graph, form="flat")
    for form in ("flat", "functions", "onnxruntime"):
        model = result.to_onnx(form=form)
        onnx.checker.check_model(model)
        result.save(tmp_path / "saved.onnx", form=form)
        assert onnx.load(tmp_path / "saved.onnx").SerializeToString() == model.SerializeToString()
    assert [n.op_type for n in result.to_onnx().graph.node] == ["MatMul", "Relu"]


def test_a_result_goes_to_another_process(
    real_model: Callable[[str], Path], graph: eqsat.Graph, tmp_path: Path
) -> None:
    for number, source in enumerate((graph, real_model("squeezenet"))):  # weights in memory, and in a file
        result = eqsat.optimize(source, verify=False)
        copy = pickle.loads(pickle.dumps(result))
        for name, each in (("here", result), ("there", copy)):
            each.save(tmp_path / f"{name}{number}.onnx")
        assert (tmp_path / f"here{number}.onnx").read_bytes() == (tmp_path / f"there{number}.onnx").read_bytes()
        assert copy.report.kernels_after == result.report.kernels_after
        assert len(pickle.dumps(result)) < 100_000


def test_functions_beside_the_commands_take_models_in_memory(graph: eqsat.Graph) -> None:
    result = eqsat.optimize(graph, form="flat")
    model = result.to_onnx()
    assert eqsat.load(model).operator_counts() == {"MatMul": 1, "Relu": 1}
    assert eqsat.inspect(graph).operators == {"MatMul": 1, "Identity": 1, "Relu": 1}
    assert eqsat.inspect(graph, {}, nodes=True).nodes[0]["operator"] == "MatMul"
    assert eqsat.verify(graph, model).passed
    feeds = [{"x": np.ones((2, 3), np.float32)}]
    assert eqsat.verify(graph, model, feeds=feeds).runs == 1
    b = eqsat.GraphBuilder("other")
    other = b.finish({"y": b.op("Neg", b.input("x", "float32", ("n", 3)))})
    assert eqsat.verify(graph, other).verdict == "failed"


def test_models_are_timed_from_python(graph: eqsat.Graph, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    eqsat.optimize(graph, only_rules=()).save(path)
    found = eqsat.bench(path, runs=1, processes=1, threads=1, levels=("all",), cost="kernels")
    assert found.best("eqsat") is not None
    with pytest.raises(eqsat.OptionError, match="did you mean 'basic'"):
        eqsat.bench(path, levels=("basics",))


def test_a_result_is_a_table_in_a_notebook() -> None:
    from xml.etree import ElementTree

    b = eqsat.GraphBuilder("a<b & c")
    marked = b.finish({"y": b.op("Identity", b.op("Identity", b.input("x", "float32", (2,))))})
    table = ElementTree.fromstring(eqsat.optimize(marked, form="flat")._repr_html_())
    rows = [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]
    assert rows[0] == ["", "before", "after"]
    assert ["Identity", "2", "1"] in rows
    assert "a<b & c" in (table.findtext("caption") or "")
    assert "verified: equal" in rows[-1][0]


def test_models_are_optimised_in_any_thread(graph: eqsat.Graph) -> None:
    expected = eqsat.optimize(graph).to_onnx().SerializeToString(deterministic=True)
    for _ in range(2):  # threads that are gone leave nothing behind that others use
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda _: eqsat.optimize(graph).to_onnx(), range(6)))
        assert {m.SerializeToString(deterministic=True) for m in found} == {expected}
