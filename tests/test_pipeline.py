"""The main job, end to end, on real models and small graphs."""

from __future__ import annotations

import dataclasses
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import eqsat
import eqsat.rules  # registers the shipped rules
from eqsat import options
from eqsat.backends.onnx_form import may_hold
from eqsat.exactness import Exactness
from eqsat.extract import effort
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.graph import with_bodies
from eqsat.ir.interpret import run
from eqsat.report import Report
from eqsat.rewrite import apply, literal, rule, variables
from eqsat.rules.terms import mul

x, y, low, high = variables("x y low high")

KEYS = [
    "model",
    "target",
    "cost_model",
    "numerics",
    "exactness",
    "operators_before",
    "operators_after",
    "kernels_before",
    "launches_before",
    "kernels_after",
    "kernel_templates",
    "recognized",
    "cost_unit",
    "cost_before",
    "cost_after",
    "lower_bound",
    "gap",
    "bound_scope",
    "peak_memory_bytes",
    "constant_bytes_before",
    "constant_bytes_after",
    "needs",
    "counted_only",
    "opaque",
    "eclasses",
    "enodes",
    "iterations",
    "stop_reason",
    "rules",
    "memory_budget",
    "unverified_rules",
    "seconds",
    "verification",
    "work",
    "placement",
    "bodies",
    "missed",
    "assumed",
    "sizes",
    "withheld",
    "passed_opset",
    "engine",
    "rehearsal",
    "left_out",
    "overridable",
    "subnormal",
    "predicted_s_before",
    "predicted_s_after",
]


def _two_layers() -> eqsat.Graph:
    random = np.random.default_rng(0)
    b = eqsat.GraphBuilder("two")
    value = b.input("x", "float32", ("n", 8))
    for _ in range(2):
        w = b.constant(random.standard_normal((8, 8)).astype(np.float32))
        s = b.constant(random.random(8).astype(np.float32) + 1)
        value = b.op("Relu", b.op("Mul", b.op("MatMul", value, w), s))
    return b.finish({"y": value})


def test_report_has_exactly_the_published_keys() -> None:
    result = eqsat.optimize(_two_layers(), form="flat")
    data = result.report.to_dict()
    assert list(data) == KEYS
    assert {f.name for f in dataclasses.fields(Report)} == set(KEYS)
    json.dumps(data)
    assert data["kernels_before"] == 6
    assert data["kernels_after"] == 4
    assert data["exactness"] == "rounding"
    assert data["verification"]["verdict"] in ("equal", "within tolerance")
    assert set(data["seconds"]) == {"load", "rehearse", "encode", "saturate", "analyse", "extract", "lower", "verify"}
    assert data["lower_bound"] <= data["cost_after"] <= data["cost_before"]
    assert "kernels" in str(result.report)
    assert "<td" in result._repr_html_()


def test_program_runs_in_python() -> None:
    graph = _two_layers()
    result = eqsat.optimize(graph, form="flat")
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)}
    np.testing.assert_allclose(result.program.run(feeds)["y"], run(graph, feeds)["y"], rtol=1e-5)


def test_numerics_exact_uses_exact_rules_only() -> None:
    report = eqsat.optimize(_two_layers(), numerics="exact", form="flat").report
    assert report.exactness == "exact"
    assert report.verification["verdict"] == "equal"
    assert report.kernels_after == 6


def test_rules_can_be_chosen_and_left_out() -> None:
    every = eqsat.optimize(_two_layers(), form="flat").report
    used = [name for name, counts in every.rules.items() if counts["uses"] and not name.startswith("fold_constants")]
    assert used
    assert eqsat.optimize(_two_layers(), disabled_rules=used, form="flat").report.kernels_after == 6
    assert eqsat.optimize(_two_layers(), only_rules=used, form="flat").report.kernels_after == 4
    with pytest.raises(eqsat.OptionError, match="no_such_rule"):
        eqsat.optimize(_two_layers(), disabled_rules=["no_such_rule"], form="flat")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "abacus"}, "abacus"),
        ({"cost": "beauty"}, "beauty"),
        ({"numerics": "vague"}, "vague"),
        ({"time_limit_s": 0}, "time_limit_s"),
        ({"node_limit": -1}, "node_limit"),
        ({"keep": ["nothing"]}, "nothing"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(eqsat.OptionError, match=message):
        eqsat.optimize(_two_layers(), **dict[str, Any](form="flat") | options)


def test_kept_values_stay_outputs_under_their_names() -> None:
    graph = _two_layers()
    inner = graph.nodes[0].outputs[0]
    result = eqsat.optimize(graph, keep=[inner], form="flat")
    assert result.program.graph.outputs == ("y", inner)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_limits_are_results() -> None:
    report = eqsat.optimize(_two_layers(), node_limit=1, form="flat").report
    assert report.stop_reason == "node_limit"
    assert report.kernels_after <= report.kernels_before
    assert eqsat.optimize(_two_layers(), time_limit_s=1e-9, form="flat").report.stop_reason == "time_limit"
    assert eqsat.optimize(_two_layers(), memory_limit_bytes=1, form="flat").report.stop_reason in (
        "memory_limit",
        "saturated",
    )


def test_same_input_same_bytes(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    path = real_model("squeezenet")
    written = []
    for name in ("a.onnx", "b.onnx"):
        folder = tmp_path / name.removesuffix(".onnx")
        folder.mkdir()
        eqsat.optimize(path, verify=False, form="flat").save(folder / "model.onnx")
        written.append([p.read_bytes() for p in sorted(folder.iterdir())])
    assert written[0] == written[1]


@pytest.mark.thorough
def test_same_bytes_on_a_busy_machine_where_a_limit_ends_extraction(
    real_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Busy: by the clock of the extraction, all takes fifty times as long."""
    steps = 100_000
    monkeypatch.setattr(options, "ANSWER_STEPS", steps)
    path = real_model("nasrnn")
    written: list[list[bytes]] = []
    for factor in (1, 50):
        monkeypatch.setattr(effort, "time", SimpleNamespace(perf_counter=lambda f=factor: f * time.perf_counter()))
        result = eqsat.optimize(path, verify=False, target="h200", cost="roofline", time_limit_s=1e5)
        assert result.report.work["extraction"]["steps"] >= steps
        assert not result.report.work["extraction"]["late"]
        folder = tmp_path / str(factor)
        folder.mkdir()
        result.save(folder / "model.onnx")
        written.append([p.read_bytes() for p in sorted(folder.iterdir())])
    assert written[0] == written[1]


def test_the_ceiling_in_seconds_is_reported_where_it_ends_extraction() -> None:
    late = eqsat.optimize(_two_layers(), time_limit_s=1e-9, target="h200", cost="roofline", verify="none").report
    assert late.work["extraction"]["late"]
    assert "another run may find another program" in str(late)
    assert "another run" not in str(eqsat.optimize(_two_layers(), verify="none").report)


def test_verify_says_how() -> None:
    counts = [eqsat.optimize(_two_layers(), verify=how).report.verification for how in ("quick", "full", "none")]
    assert [set(found.get("levels", ())) for found in counts] == [{"all"}, {"basic", "extended", "all"}, set()]
    with pytest.raises(eqsat.OptionError, match="verify is 'much'"):
        eqsat.optimize(_two_layers(), verify="much")


def test_optimising_twice_changes_nothing_more(real_model: Callable[[str], Path], tmp_path: Path) -> None:
    first = eqsat.optimize(real_model("mobilenetv2"), verify=False, form="flat")
    first.save(tmp_path / "once.onnx")
    second = eqsat.optimize(tmp_path / "once.onnx", verify=False, form="flat")
    assert second.report.operators_before == second.report.operators_after == first.report.operators_after


@pytest.mark.parametrize(
    "name",
    [
        "squeezenet",
        "mobilenetv2",
        "mobilenetv3",
        *(pytest.param(n, marks=pytest.mark.thorough) for n in ("sd_unet", "resnet50_qdq")),
    ],
)
def test_real_models_are_verified_and_load(name: str, real_model: Callable[[str], Path], tmp_path: Path) -> None:
    result = eqsat.optimize(real_model(name), form="flat")
    report = result.report
    assert report.verification["verdict"] in ("equal", "within tolerance")
    assert report.stop_reason == "saturated"
    assert sum(report.operators_after.values()) <= sum(report.operators_before.values())
    result.save(tmp_path / f"{name}.onnx")
    onnx.checker.check_model(str(tmp_path / f"{name}.onnx"), full_check=True)
    original, written = (
        onnx.load(str(p), load_external_data=False) for p in (real_model(name), tmp_path / f"{name}.onnx")
    )
    assert list(original.graph.input) == list(written.graph.input)
    assert list(original.graph.output) == list(written.graph.output)
    versions = [{o.domain: o.version for o in m.opset_import} for m in (original, written)]
    assert all(versions[1][domain] >= version for domain, version in versions[0].items())


def test_no_batch_normalization_is_left_behind_a_convolution(real_model: Callable[[str], Path]) -> None:
    after = eqsat.optimize(real_model("mobilenetv2"), verify=False, form="flat").report.operators_after
    assert "BatchNormalization" not in after
    assert "Mul" not in after
    assert after["Add"] == 10  # the residual connections
    assert after["Conv"] == 52


def test_query_key_value_are_merged(real_model: Callable[[str], Path]) -> None:
    report = eqsat.optimize(real_model("bert_base_b1s128"), verify=False, form="flat", consumer="onnxruntime").report
    before, after = (
        {k: d.get(k, 0) for k in ("MatMul", "Gemm")} for d in (report.operators_before, report.operators_after)
    )
    assert sum(before.values()) == 97
    assert sum(after.values()) == 49  # 24 of the 73 are inside the attention operators


def _ignore_narrow_range() -> None:
    @rule(apply("Clip", x, low, high), exactness=Exactness.ROUNDING, source="wrong on purpose", family="test")
    def ignore_narrow_range(m):
        """``Clip(x, -127, 127) == x``: saturation of the cast to int8 is at -128."""
        m.require(m.low.value.item() == -127, "not the narrow range")
        return m.x


def _misplace_scale() -> None:
    @rule(mul(x, y), exactness=Exactness.ROUNDING, source="wrong on purpose", family="test")
    def misplace_scale(m):
        """``x * y == x / (y * 0.99)``: off by one percent."""
        m.require(m.y.is_constant and m.y.type.size == 1 and m.y.dtype.numpy == np.float32, "no constant scalar")
        return apply("Div", m.x, apply("Div", literal(np.float32(1.01)), m.y))


class _PreferDivision:
    """A cost model under which the wrong spelling wins."""

    name = "prefer-division"
    unit = "points"

    def kernel_cost(self, work, target) -> float:
        return 0.5 if work.operators == ("Div",) else 1.0


@pytest.mark.thorough
@pytest.mark.usefixtures("temporary_rules")
@pytest.mark.parametrize(("wrong", "cost"), [(_ignore_narrow_range, "kernels"), (_misplace_scale, _PreferDivision())])
def test_wrong_rules_are_caught_and_nothing_is_written(
    wrong: Callable[[], None], cost: Any, real_model: Callable[[str], Path]
) -> None:
    wrong()
    name = wrong.__name__.removeprefix("_")
    with pytest.raises(eqsat.VerificationError) as caught:
        eqsat.optimize(real_model("bert_int8_trivial"), only_rules=[name], cost=cost, verification_runs=1, form="flat")
    assert name in str(caught.value)


@pytest.mark.parametrize("op", ["RandomUniformLike", "Neg"])
def test_newer_operators_are_not_had_for_the_kernel_of_another(op: str) -> None:
    """ONNX Runtime has kernels for random numbers of opset 1, not of 22; Attention needs 23 and GELU 20."""
    make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    nodes = [
        make("MatMul", ["q", "k"], ["scores"]),
        make("Softmax", ["scores"], ["p"], axis=-1),
        make("MatMul", ["p", "v"], ["z"]),
        make(op, ["z"], ["y"]),
    ]
    values = [
        info(n, onnx.TensorProto.FLOAT, s) for n, s in (("q", [2, 3, 5, 4]), ("k", [2, 3, 4, 6]), ("v", [2, 3, 6, 4]))
    ]
    out = [info(n, onnx.TensorProto.FLOAT, [2, 3, 5, 4]) for n in ("y", "z")]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", values, out), opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=8
    )
    graph = load_onnx(model)
    assert may_hold(graph, "Gelu")
    assert may_hold(graph, "Attention") == (op == "Neg")
    result = eqsat.optimize(model, form="flat", cost="kernels")
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert ("Attention" in result.report.operators_after) == (op == "Neg")


def test_newer_operators_bring_bodies_to_their_opset_but_for_those_that_cannot_be_read() -> None:
    """GELU needs opset 20; the branches of the If are written for opset 16."""
    make, info, float32 = onnx.helper.make_node, onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT

    def branch(op: str) -> onnx.GraphProto:
        return onnx.helper.make_graph([make(op, ["z"], [op], axes=[1])], op, [], [info(op, float32, [2, 1])])

    constants = [
        onnx.numpy_helper.from_array(np.array(v, np.float32), n)
        for n, v in (("r", 2**0.5), ("one", 1.0), ("half", 0.5))
    ]
    nodes = [
        make("Div", ["x", "r"], ["d"]),
        make("Erf", ["d"], ["e"]),
        make("Add", ["e", "one"], ["a"]),
        make("Mul", ["x", "a"], ["m"]),
        make("Mul", ["m", "half"], ["z"]),
        make("If", ["c"], ["y"], then_branch=branch("ReduceMax"), else_branch=branch("ReduceMin")),
    ]
    inputs = [info("x", float32, [2, 4]), info("c", onnx.TensorProto.BOOL, [])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [info("y", float32, [2, 1])], constants)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 16)], ir_version=8)
    report = eqsat.optimize(model, form="flat").report
    assert report.operators_after == {"Gelu": 1, "If": 1}
    graph = load_onnx(model)
    unread = graph.with_nodes(
        [with_bodies(n, lambda body, names: (dataclasses.replace(body, graph=None), names)) for n in graph.nodes]
    )
    assert may_hold(graph, "Gelu")
    assert not may_hold(unread, "Gelu")
    assert report.verification["verdict"] in ("equal", "within tolerance")
    del model.graph.node[-1]
    model.graph.output[0].CopyFrom(info("z", float32, [2, 4]))
    del model.graph.input[1]
    assert eqsat.optimize(model, form="flat").report.operators_after == {"Gelu": 1}


def test_targets_with_kernels_of_several_operators(real_model: Callable[[str], Path]) -> None:
    """Two layers of MatMul, Mul, Relu are two kernels; the program still computes the same."""
    report = eqsat.optimize(_two_layers(), target="tensorrt-like").report
    assert report.kernels_after == 2
    assert report.kernel_templates == {"gemm": 2}
    assert report.verification["verdict"] in ("equal", "within tolerance")
    assert report.lower_bound <= report.cost_after <= report.cost_before
    assert report.bound_scope in ("e-graph", "pool")
    real = eqsat.optimize(real_model("squeezenet"), target="tvm-like").report
    assert real.kernels_after == 22  # pairs of convolutions are one, and what follows them too
    assert real.verification["verdict"] in ("equal", "within tolerance")


@pytest.mark.parametrize(("name", "chosen"), [("squeezenet", {}), ("squeezenet", {"target": "h200"}), ("llama", {})])
def test_nothing_waits_for_the_cyclic_garbage_collector(
    name: str, chosen: dict[str, Any], real_model: Callable[[str], Path]
) -> None:
    """It took a tenth of the time, and weights stayed in memory until it ran."""
    path = real_model(name)
    eqsat.optimize(path, **chosen)  # modules are imported
    gc.collect()
    gc.disable()
    try:
        eqsat.optimize(path, **chosen)
        assert gc.collect() == 0
    finally:
        gc.enable()
