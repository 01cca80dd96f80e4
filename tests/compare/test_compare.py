"""Comparing cost models: every cell against an independent computation; user functions; Pareto fronts; the command."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_graphs import price_by_hand, two_branches, wide_then_narrow
from typer.testing import CliRunner

import eqsat
from eqsat.cli import app
from eqsat.comparison.differences import kendall_tau
from eqsat.comparison.pareto import non_dominated
from eqsat.cost.model import Work
from eqsat.cost.target import Target, load_target
from eqsat.errors import EqsatError, OptionError, OutputError
from eqsat.verification import verify_program

MODELS = ("kernels", "bytes", "flops", "roofline", "roofline-launch")
TARGETS = ("launch-count", "tensorrt-like", "onnxruntime-cpu")


@pytest.fixture(scope="module")
def small() -> eqsat.Comparison:
    return eqsat.compare(two_branches(), cost=MODELS, target=TARGETS)


def check_cells(comparison: eqsat.Comparison) -> None:
    """Recomputes every cell of every row from the row's program."""
    assert [(r.target, r.cost_model) for r in comparison.rows] == list(
        itertools.product(comparison.targets, comparison.cost_models)
    )
    for row, data in zip(comparison.rows, comparison.to_dict()["results"], strict=True):
        program, report = row.result.program, row.result.report
        prices = {model: price_by_hand(program, row.target, model) for model in MODELS}
        assert data["kernels"] == sum(k.template != "view" for k in program.kernels)
        assert data["operators"] == len(program.graph.nodes)
        assert data["bytes"] == pytest.approx(prices["bytes"], rel=1e-9)
        assert data["flops"] == pytest.approx(prices["flops"], rel=1e-9)
        assert data["predicted_time_s"] == pytest.approx(prices["roofline-launch"], rel=1e-9)
        assert data["prices"] == pytest.approx({m: prices[m] for m in comparison.cost_models}, rel=1e-9)
        assert data["cost"] == pytest.approx(prices[row.cost_model], rel=1e-9)
        assert data["lower_bound"] <= data["cost"] * (1 + 1e-9) <= data["cost_before"] * (1 + 2e-9)
        assert data["gap"] == pytest.approx(1 - data["lower_bound"] / data["cost"], abs=1e-9)
        assert data["bound_scope"] in ("e-graph", "pool")
        assert data["peak_memory_bytes"] == report.peak_memory_bytes
        assert data["least_peak_memory_bytes"] <= data["peak_memory_bytes"]
        assert data["seconds"] > 0
    for target in comparison.targets:
        rows = comparison.rows_of(target)
        for model in comparison.cost_models:  # the row of a model is the best of the target under that model
            own = comparison.row(target, model).measures.prices[model]
            assert own <= min(r.measures.prices[model] for r in rows) * (1 + 1e-9)
        for a, b in itertools.product(comparison.cost_models, repeat=2):
            columns = [[float(f"{r.measures.prices[m]:.8e}") for r in rows] for m in (a, b)]
            assert comparison.agreement[target][a][b] == pytest.approx(tau_by_hand(*columns))


def tau_by_hand(a: list[float], b: list[float]) -> float | None:
    """Tau-b by its definition: concordant less discordant pairs over the geometric mean of untied pairs."""
    pairs = [(x - y, u - v) for (x, u), (y, v) in itertools.combinations(list(zip(a, b, strict=True)), 2)]
    untied = math.sqrt(sum(p != 0 for p, _ in pairs) * sum(q != 0 for _, q in pairs))
    return sum((p * q > 0) - (p * q < 0) for p, q in pairs) / untied if untied else None


def test_every_cell_of_a_small_comparison(small: eqsat.Comparison) -> None:
    check_cells(small)
    assert len({r.measures.kernels for r in small.rows}) > 1


def test_every_cell_of_a_real_model(real_model: Callable[[str], Path]) -> None:
    check_cells(eqsat.compare(real_model("squeezenet"), cost=MODELS[:2] + MODELS[3:], target=TARGETS))


def test_targets_that_have_all_kernels_of_another_are_never_worse() -> None:
    """Also where a limit stops the search: kernels and bytes do not depend on the rates of the machine."""
    names = ["tensorrt-like", "tensorrt-like-rownorm", "h200"]
    found = eqsat.compare(two_branches(), cost=["kernels", "bytes"], target=names, time_limit_s=0.01)
    for further, model in itertools.product(names[1:], ["kernels", "bytes"]):
        of_first, own = (found.row(name, model).measures.prices[model] for name in (names[0], further))
        assert own <= of_first * (1 + 1e-9)


def test_kernels_of_other_targets() -> None:
    names = ("tensorrt-like", "tensorrt-like-rownorm", "h200", "launch-count", "onnxruntime-cpu")
    targets = [load_target(name) for name in names]
    has = [[a.has_kernels_of(b) for b in targets] for a in targets]
    assert [row[:3] for row in has[:3]] == [[True, False, False], [True, True, False], [True, False, True]]
    assert [row.count(True) for row in has[3:]] == [1, 1]


def test_rows_compute_what_the_original_does(small: eqsat.Comparison) -> None:
    for row in small.rows:
        original, program = row.result.original, row.result.program
        assert verify_program(original, program, runs=1).verdict in ("equal", "within tolerance")


def test_one_saturation_for_each_scope_of_rules(small: eqsat.Comparison) -> None:
    assert [e["targets"] for e in small.egraphs] == [["launch-count", "tensorrt-like"], ["onnxruntime-cpu"]]


@pytest.mark.parametrize(
    ("a", "b", "tau"),
    [
        ([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0], 4 / 6),  # five pairs agree, one does not
        ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], -1.0),
        ([1.0, 1.0, 2.0], [1.0, 2.0, 3.0], 2 / math.sqrt(6)),  # one tie in a
        ([1.0, 1.0 + 1e-12, 2.0], [1.0, 1.0, 2.0], 1.0),  # noise of summation is a tie
        ([1.0, 2.0, math.inf], [1.0, 2.0, 3.0], 1.0),
        ([1.0, 1.0], [1.0, 2.0], None),
        ([1.0], [1.0], None),
    ],
)
def test_kendall_tau_by_hand(a: list[float], b: list[float], tau: float | None) -> None:
    assert kendall_tau(a, b) == pytest.approx(tau)


def test_differences_name_the_place_and_the_operators() -> None:
    """Two transposes that cancel cost nothing to drop; a model that loves transposes keeps them."""

    def loves_transposes(work: Work) -> float:
        return 0.0 if work.operators == ("Transpose",) else 1.0 if work.operators == ("Sigmoid",) else 2.0

    found = eqsat.compare(two_branches(), cost=["kernels", "bytes", loves_transposes])
    same, other, _ = found.differences["onnxruntime-cpu"]
    assert (same.first, same.second, other.second) == ("kernels", "bytes", "loves_transposes")
    for d in found.differences["onnxruntime-cpu"]:
        assert sum(d.by_operator.values()) == d.values + d.only_first + d.only_second
        first, second = (found.row("onnxruntime-cpu", m).result.program.graph for m in (d.first, d.second))
        surplus = {}
        for pair, count in d.by_operator.items():
            a, b = pair.split(" -> ")
            surplus[a] = surplus.get(a, 0) - count
            surplus[b] = surplus.get(b, 0) + count
        surplus.pop("nothing", None)
        counts = [g.operator_counts() for g in (first, second)]
        for op in {*counts[0], *counts[1]}:
            assert counts[1].get(op, 0) - counts[0].get(op, 0) == surplus.get(op, 0)
        assert all(p.node for p in d.places)
        assert (d.kernels_only_first == d.kernels_only_second == 0) == (not d.by_operator)


def test_identical_choices_do_not_differ() -> None:
    def bytes_again(work: Work, target: Target) -> float:
        return 0.0 if work.kind.value in target.free_kinds else work.bytes

    (found,) = eqsat.compare(two_branches(), cost=["bytes", bytes_again]).differences["onnxruntime-cpu"]
    assert (found.values, found.only_first, found.only_second, found.by_operator, found.places) == (0, 0, 0, {}, ())


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _timeless(v) for k, v in data.items() if k != "seconds"}
    return [_timeless(v) for v in data] if isinstance(data, list | tuple) else data


def test_json_is_the_same_twice(small: eqsat.Comparison) -> None:
    again = eqsat.compare(two_branches(), cost=MODELS, target=TARGETS)
    first, second = (json.dumps(_timeless(c.to_dict()), allow_nan=False) for c in (small, again))
    assert first == second
    fronts = [json.dumps(_timeless(eqsat.pareto(two_branches()).to_dict()), allow_nan=False) for _ in range(2)]
    assert fronts[0] == fronts[1]


def test_text_has_every_row(small: eqsat.Comparison) -> None:
    text = str(small)
    for target in TARGETS:
        assert f"{target}: results" in text
    assert all(sum(line.strip().startswith(f"{m} ") for line in text.splitlines()) >= 3 * len(TARGETS) for m in MODELS)


def test_functions_as_cost_models() -> None:
    def square(work: Work) -> float:
        return work.bytes**2

    class Doubled:
        name, unit = "doubled", "half bytes"

        def kernel_cost(self, work: Work, target: Target) -> float:
            return 2 * work.bytes

    found = eqsat.optimize(two_branches(), cost=square, verify=False, form="flat")
    assert (found.report.cost_model, found.report.cost_unit) == ("square", "units")
    found = eqsat.optimize(two_branches(), cost=Doubled(), verify=False, form="flat")
    assert (found.report.cost_model, found.report.cost_unit) == ("doubled", "half bytes")
    assert found.report.cost_after == 2 * price_by_hand(found.program, "onnxruntime-cpu", "bytes")


def test_a_function_may_forbid_kernels() -> None:
    def no_epilogues(work: Work) -> float:
        return math.inf if len(work.operators) > 1 else 1.0

    found = eqsat.optimize(two_branches(), cost=no_epilogues, target="tensorrt-like", verify=False)
    assert all(len(k.nodes) == 1 for k in found.program.kernels)


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "tensorrt-like"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda work: -1.0, "returned -1.0"),
        (lambda work: math.nan, "returned nan"),
        (lambda work: "dear", "returned 'dear'"),
        (lambda work: 1 / 0, "failed with ZeroDivisionError"),
        (lambda: 1.0, "expected (work) or (work, target)"),
        (lambda a, b, c: 1.0, "expected (work) or (work, target)"),
        (lambda work: math.inf, "every program has an infinite price; of the original those of "),
        (
            type("Model", (), {"kernel_cost": lambda self, work, target: 1.0}),
            "is a class; give an object of it, Model()",
        ),
        (17, "neither a name"),
        ("cheapest", "choose one of kernels"),
    ],
)
def test_functions_that_are_no_cost_model(function: Any, said: str, target: str) -> None:
    with pytest.raises(OptionError) as error:
        eqsat.optimize(two_branches(), cost=function, target=target, verify=False, form="flat")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cost": ["nope"]}, "cost model 'nope' does not exist"),
        ({"target": ["nope"]}, "target 'nope' does not exist"),
        ({"cost": ["bytes", "bytes"]}, "same name"),
        ({"target": ["h100", "h100"]}, "same name"),
        ({"cost": []}, "at least one"),
        ({"cost": "bytes"}, "expected a list"),
        ({"memory_budget_bytes": 5}, "option of optimize only"),
        ({"numerics": "sloppy"}, "sloppy"),
    ],
)
def test_bad_options(options: dict[str, Any], said: str) -> None:
    with pytest.raises(EqsatError, match=said):
        eqsat.compare(two_branches(), **options)


@pytest.mark.parametrize("target", ["onnxruntime-cpu", "tensorrt-like"])
@pytest.mark.parametrize("graph", [two_branches(), wide_then_narrow(3)], ids=lambda g: g.name)
def test_no_point_of_a_front_is_beaten(graph: eqsat.Graph, target: str) -> None:
    front = eqsat.pareto(graph, target=target, time_limit_s=5.0)
    points = [p.objectives for p in front.points]
    assert points
    assert len(points) == len(set(points))
    for a, b in itertools.permutations(points, 2):
        assert any(x < y for x, y in zip(a, b, strict=True))
    candidates = [*points, *front.dominated]
    for axis in range(3):
        assert min(p[axis] for p in points) == min(c[axis] for c in candidates)
    for loser in front.dominated:
        assert any(all(x <= y for x, y in zip(p, loser, strict=True)) for p in points)
    for point in front.points:
        program = point.result.program
        program.graph.check()
        assert point.predicted_time_s == pytest.approx(price_by_hand(program, target, "roofline-launch"))
        assert point.kernels == program.kernel_count == point.result.report.kernels_after
    if front.complete:  # single objectives are candidates
        kernels = eqsat.optimize(graph, target=target, cost="kernels", verify=False, form="flat")
        time = eqsat.optimize(graph, target=target, cost="roofline-launch", verify=False, form="flat")
        assert min(p[0] for p in points) <= kernels.report.kernels_after
        assert min(p[1] for p in points) <= time.report.cost_after * (1 + 1e-9)


def test_non_dominated_by_hand() -> None:
    points = [(3, 1.0, 5), (1, 3.0, 5), (2, 2.0, 5), (2, 2.0, 6), (3, 3.0, 4), (1, 3.0, 5), (4, 1.0, 5)]
    assert [points[i] for i in non_dominated(points)] == [(1, 3.0, 5), (2, 2.0, 5), (3, 1.0, 5), (3, 3.0, 4)]


def test_an_operator_without_kernel_is_dear() -> None:
    target = replace(load_target("onnxruntime-cpu"), name="no-sigmoid", unsupported=frozenset(("Sigmoid", "Softmax")))
    (row,) = eqsat.compare(two_branches(), cost=["kernels"], target=[target]).rows
    assert row.measures.prices["kernels"] == pytest.approx(row.result.report.cost_after)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    eqsat.optimize(two_branches(), only_rules=(), verify=False, form="flat").save(path)
    return path


def test_command_writes_table_and_json(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    done = CliRunner().invoke(app, ["compare", str(model), "--cost", "kernels,bytes", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert "onnxruntime-cpu: results" in done.output
    data = json.loads(path.read_text())
    assert list(data) == [
        "model", "targets", "cost_models", "egraphs", "results", "agreement", "differences", "seconds",
    ]  # fmt: skip
    done = CliRunner().invoke(app, ["compare", str(model), "--pareto", "--json", "-"])
    assert done.exit_code == 0, done.output
    data = json.loads(done.output)
    assert list(data) == ["model", "target", "points", "dominated", "candidates", "complete", "seconds"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cost", "kernels,nope"], "cost model 'nope' does not exist; choose one of kernels"),
        (["--target", "nope"], "target 'nope' does not exist; choose one of"),
        (["--cost", ","], "--cost ',' names nothing"),
        (["--pareto", "--target", "h100,h200"], "--pareto takes one target, not 2"),
        (["--plot", "/nowhere/at/all.png"], "the folder /nowhere/at does not exist"),
    ],
)
def test_command_refuses_in_one_line(model: Path, arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["compare", str(model), *arguments])
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is missing")


@needs_matplotlib
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pictures(small: eqsat.Comparison, tmp_path: Path) -> None:
    small.plot(tmp_path / "c.png")
    eqsat.pareto(two_branches()).plot(tmp_path / "p.png")
    for name in ("c.png", "p.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    with pytest.raises(OutputError, match="cannot write the picture"):
        small.plot(tmp_path / "c.nonsense")


def test_without_matplotlib_the_table_is_still_printed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    done = CliRunner().invoke(app, ["compare", str(model), "--cost", "kernels", "--plot", str(tmp_path / "c.png")])
    assert done.exit_code == 0
    assert "results" in done.stdout
    assert done.stderr == "eqsat: no picture: matplotlib is not installed; pip install 'eqsat[plot]'\n"
    assert not (tmp_path / "c.png").exists()
