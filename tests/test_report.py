"""What the report says of a result, and what is minimised by default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.backends.onnx_needs import needs_of
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import DType
from eqsat.options import Options
from eqsat.report import recognized_structures
from eqsat.report_phrases import of_growth, of_untouched


def _gelu_model(opset: int = 17) -> onnx.ModelProto:
    """Linear and GELU, spelled out by an exporter of an opset without Gelu."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((64, 64)).astype(np.float32),
        "b": rng.standard_normal(64).astype(np.float32),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
    }
    steps = [
        ("MatMul", ["x", "w"], "p"),
        ("Add", ["p", "b"], "h"),
        ("Div", ["h", "root"], "d"),
        ("Erf", ["d"], "e"),
        ("Add", ["e", "one"], "s"),
        ("Mul", ["h", "s"], "g"),
        ("Mul", ["g", "half"], "y"),
    ]
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output]) for op, inputs, output in steps],
        "gelu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(
    ("options", "form", "cost"),
    [
        ({}, "onnxruntime", "measured"),
        ({"form": "flat"}, "flat", "kernels"),
        ({"cost": "bytes"}, "onnxruntime", "bytes"),
        ({"target": "tensorrt-like"}, "flat", "kernels"),
        ({"form": "onnxruntime", "target": "tvm-like"}, "onnxruntime", "kernels"),
        ({"devices": {"*": "cpu"}}, "flat", "kernels"),
    ],
)
def test_least_time_in_the_operators_of_the_runtime_unless_asked_otherwise(
    options: dict[str, Any], form: str, cost: str
) -> None:
    chosen = Options(**options)
    assert (chosen.file_form, chosen.cost_model.name) == (form, cost)


def test_what_is_written_by_default_is_not_predicted_to_be_slower(real_model: Callable[[str], Path]) -> None:
    default = eqsat.optimize(real_model("squeezenet"), verify=False).report
    assert default.predicted_s_before is not None
    assert default.predicted_s_after is not None
    assert default.predicted_s_after <= default.predicted_s_before * (1 + 1e-9)
    assert "SLOWER" not in str(default)


def test_the_report_says_when_fewer_kernels_take_longer(real_model: Callable[[str], Path]) -> None:
    fewest = eqsat.optimize(real_model("squeezenet"), form="flat", verify=False).report
    assert fewest.kernels_after < fewest.launches_before
    assert fewest.predicted_s_before is not None
    assert fewest.predicted_s_after is not None
    assert fewest.predicted_s_after > 1.01 * fewest.predicted_s_before
    assert "SLOWER: --cost measured minimises it" in str(fewest)


def test_the_report_says_what_a_file_needs_of_its_readers() -> None:
    flat = eqsat.optimize(_gelu_model(), form="flat").report
    assert flat.needs == {"opset": 20, "opset_before": 17, "onnxruntime": "1.17"}
    assert "needs      opset 20 (the model had 17): ONNX Runtime 1.17 or newer" in str(flat)
    b = GraphBuilder()
    x = b.input("x", "float32", (8, 64))
    gated = b.op("Mul", x, b.op("Sigmoid", b.op("Mul", x, b.constant(np.float32(1.702)))))
    own = eqsat.optimize(b.finish({"y": gated}), form="onnxruntime", cost="kernels").report
    assert own.needs == {"domains": ["com.microsoft"]}
    assert "domain com.microsoft: ONNX Runtime" in str(own)
    assert eqsat.optimize(_gelu_model(), only_rules=()).report.needs == {}


def test_the_report_says_which_release_has_the_operators() -> None:
    def greater(dtype: str) -> Graph:
        b = GraphBuilder()
        x, y = b.input("x", "float32", (4,)), b.input("y", "float32", (4,))
        larger = b.op("Max", b.op("Cast", x, to=int(DType.of(dtype))), b.op("Cast", y, to=int(DType.of(dtype))))
        return replace(b.finish({"z": larger}), envelope=Envelope(17))

    graph, newer = greater("float64"), greater("int8")
    assert needs_of(newer, graph, "flat") == {"onnxruntime": "1.31", "operators": ["Max"]}
    assert needs_of(newer, newer, "flat") == {}
    report = eqsat.optimize(graph, verify=False).report
    report.needs = needs_of(newer, graph, "flat")
    assert "needs      ONNX Runtime 1.31 or newer for Max" in str(report)


def test_the_report_says_which_operators_other_engines_refuse() -> None:
    b = GraphBuilder()
    scale, zero = b.constant(np.float32(0.05)), b.constant(np.uint8(128))
    weights = b.constant(np.random.default_rng(0).integers(-100, 100, (64, 64)).astype(np.int8))

    def through_bytes(value: str) -> str:
        return b.op("DequantizeLinear", b.op("QuantizeLinear", value, scale, zero), scale, zero)

    x = through_bytes(b.input("x", "float32", (8, 64)))
    w = b.op("DequantizeLinear", weights, b.constant(np.float32(0.01)), b.constant(np.int8(0)))
    graph = b.finish({"y": through_bytes(b.op("MatMul", x, w))})
    report = eqsat.optimize(graph, form="flat").report
    assert report.needs == {"unread": {"OpenVINO 2026.4": ["QLinearMatMul"]}, "vnni": ["QLinearMatMul"]}


def test_a_fused_result_is_compared_with_the_original_as_the_target_fuses_it() -> None:
    report = eqsat.optimize(_gelu_model(), target="tensorrt-like").report
    assert (report.kernels_before, report.launches_before, report.kernels_after) == (7, 1, 1)
    assert report.counted_only
    assert "kernels 1 -> 1 (the original fused by the target, from 7)" in str(report)
    assert "are counted, not run" in str(report)


def test_errors_are_said_by_the_scale_of_the_output() -> None:
    text = str(eqsat.optimize(_gelu_model()).report)
    assert "of the largest element of its output (tolerance " in text


def _activated(key: str, **attributes: float) -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 4))
    domain, _, op = key.rpartition("::")
    extra = [b.constant(np.ones(4, np.float32))] if op == "BiasGelu" else []
    extra = [b.constant(np.ones(x, np.float32)) for x in ((2, 4), (4,))] if op.startswith("Skip") else extra
    return b.finish({"y": b.op(op, x, *extra, domain=domain, **attributes)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("graph", "structure"),
    [
        (_activated("com.microsoft::BiasGelu"), "gelu"),
        (_activated("com.microsoft::QuickGelu"), "gelu"),
        (_activated("com.microsoft::QuickGelu", alpha=1.0), "silu"),
        (_activated("com.microsoft::SkipLayerNormalization"), "layer_norm"),
        (_activated("com.microsoft::SkipSimplifiedLayerNormalization"), "rms_norm"),
    ],
    ids=["bias gelu", "quick gelu", "silu", "skip layer norm", "skip rms norm"],
)
def test_fused_operators_of_the_runtime_are_counted_as_what_they_are(graph: Graph, structure: str) -> None:
    assert recognized_structures(graph) == {structure: 1}


def test_what_is_printed_has_ten_lines_whatever_there_is_to_say() -> None:
    plain = eqsat.optimize(_gelu_model(), form="flat").report
    assert len(str(plain).splitlines()) < 10
    report = replace(
        plain,
        stop_reason="time_limit",
        counted_only=True,
        missed={"attention": {"a mask of unknown shape": 2, "its scores are read twice": 1}},
        opaque={"my::Op": 3, "If": 1},
        unverified_rules=["mine"],
        assumed={"batch": 1},
        bodies={
            **{"count": 2, "optimised": 1, "operators_before": 9, "operators_after": 5},
            **{"verdicts": {}, "not_run": {}, "kept": {"it reads what is not there": 1}},
        },
        placement={"devices": {"cpu": {"target": "x", "kernels": 2}}, "copies": 1, "copied_bytes": 8},
        memory_budget={"bytes": 1e6, "candidates": 1},
        predicted_s_before=1e-3,
        predicted_s_after=2e-3,
        verification={"verdict": "not run", "notes": ["first of all", "give inputs with --inputs"]},
    )
    lines = str(report).splitlines()
    assert len(lines) == 10
    labels = {line.split()[0]: line for line in lines[1:]}
    for label, words in {
        "predicted": ["SLOWER"],
        "needs": ["opset 20"],
        "not": ["2 x no attention: a mask of unknown shape", "and 1 more"],
        "untouched": ["my::Op x3", "If x1"],
        "note": ["time_limit", "counted, not run", "batch = 1", "1 copies of 8 bytes", "1 untouched", "budget 1.0 MB"],
        "verified": ["not run", "give inputs with --inputs", "unverified rule mine"],
        "seconds": ["-v", "--json"],
    }.items():
        for word in words:
            assert word in labels[label]
    whole = report.details()
    assert "its scores are read twice" in whole
    assert "it reads what is not there" in whole
    assert "first of all" in whole
    assert all(f"    {rule} " in whole for rule, counts in report.rules.items() if counts["uses"])


def test_a_result_that_nobody_verified_says_so() -> None:
    report = eqsat.optimize(_gelu_model(), verify=False).report
    assert "verified   no: not asked for" in str(report)


def test_a_file_laid_out_for_one_processor_says_where_to_start() -> None:
    assert of_untouched({"my::Op": 2}) == "my::Op x2"
    assert "start from the file" in of_untouched({"com.microsoft.nchwc::Conv": 3})


@pytest.mark.parametrize(
    ("least", "said"),
    [
        (10.0, "proved least of"),
        (8.0, "at most 25 % above the least of"),
        (0.5, "not known to be near the least (lower bound 0.5)"),
    ],
)
def test_how_far_a_result_may_be_from_the_least_is_a_part_of_the_least(least: float, said: str) -> None:
    b = GraphBuilder()
    report = eqsat.optimize(b.finish([b.op("Relu", b.input("x", "float32", (3,)))]), verify=False).report
    assert said in str(replace(report, cost_before=10.0, cost_after=10.0, lower_bound=least, gap=1 - least / 10))


def _tied(words: int) -> Graph:
    """Scores of all words, by an embedding that is also the last layer's weight."""
    b = GraphBuilder()
    rows = b.constant(np.random.default_rng(0).standard_normal((words, 64)).astype(np.float32))
    ids = b.input("ids", DType.INT64, (8,))
    return b.finish([b.op("MatMul", b.op("Gather", rows, ids, axis=0), b.op("Transpose", rows, perm=(1, 0)))])


@pytest.mark.parametrize("form", ["onnxruntime", "flat", "openvino"])
def test_a_large_weight_that_is_read_in_two_layouts_is_held_once(form: str) -> None:
    result = eqsat.optimize(_tied(4096), form=form)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert result.report.constant_bytes_after == result.report.constant_bytes_before
    assert (result.report.operators_after["Transpose"], result.report.kernels_after) == (1, 2)
    assert result.to_onnx().ByteSize() < 1.1 * result.report.constant_bytes_before


def test_constants_that_a_file_holds_twice_are_said_in_the_report() -> None:
    report = eqsat.optimize(_tied(96), verify=False).report
    assert report.constant_bytes_after == 2 * report.constant_bytes_before
    assert of_growth(report.constant_bytes_before, report.constant_bytes_after) in str(report)
    assert not of_growth(1_000_000, 1_020_000)
    assert not of_growth(100, 10_000)


def test_the_report_says_that_inputs_with_values_in_the_file_are_no_constants() -> None:
    """As torch lists the weights with ``keep_initializers_as_inputs``, and brevitas the biases."""
    proto = _gelu_model()
    bias = next(t for t in proto.graph.initializer if t.name == "b")
    assert eqsat.optimize(proto).report.overridable == 0
    proto.graph.input.append(helper.make_tensor_value_info(bias.name, bias.data_type, bias.dims))
    report = eqsat.optimize(proto).report
    assert report.overridable == 1
    assert "1 input has a value in the file that callers may override" in str(report)
    assert "if nobody does, --no-overrides makes it a constant" in str(report)


def test_inputs_with_values_in_the_file_are_constants_if_nobody_overrides_them() -> None:
    """Of a shape: nothing behind it is known before."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Reshape", ["r", "shape"], ["y"])]
    shape = numpy_helper.from_array(np.array([-1, 4], np.int64), "shape")
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8)),
        helper.make_tensor_value_info("shape", TensorProto.INT64, (2,)),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    proto = helper.make_model(helper.make_graph(nodes, "g", inputs, [output], [shape]), ir_version=8)
    result = eqsat.optimize(proto, no_overrides=True)
    assert result.report.verification["verdict"] == "equal"
    assert result.report.overridable == 0
    assert [i.name for i in result.to_onnx().graph.input] == ["x"]
    assert result.original.type_of("y").shape == (4, 4)
    with pytest.raises(eqsat.OptionError, match="no_overrides: a Graph takes no such option"):
        eqsat.optimize(result.original, no_overrides=True)


@pytest.mark.parametrize(("part", "said"), [(0.25, True), (1e-4, False), (0.0, False)])
def test_weights_that_processors_are_slow_with_are_said_in_the_report(part: float, said: bool) -> None:
    """As weight decay leaves them of channels that a network does without."""
    weights = np.random.default_rng(0).standard_normal((100, 100)).astype(np.float32) + 8
    weights[:, 0] = 0  # a zero is as fast as other numbers
    weights.reshape(-1)[2 : 2 + 3 * round(part * weights.size) : 3] = 1e-40
    b = eqsat.GraphBuilder()
    graph = b.finish({"y": b.op("MatMul", b.input("x", "float32", (4, 100)), b.constant(weights))})
    report = eqsat.optimize(graph, verify=False).report
    assert report.subnormal == pytest.approx(part, abs=0.02)
    assert ("% of the weights are subnormal numbers" in str(report)) == said
