"""Values between pairs of quantisation: ONNX Runtime fuses nothing in what is written that changes them."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import LEVELS, Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

FORMS = pytest.mark.parametrize("form", ["flat", "onnxruntime"])
SHAPES = pytest.mark.parametrize("shape", [("n", 8), (4, "n")])


def _paired(b: GraphBuilder, value: Any, scale: float) -> Any:
    parameters = b.constant(np.float32(scale)), b.constant(np.uint8(0))
    return b.op("DequantizeLinear", b.op("QuantizeLinear", value, *parameters), *parameters)


def _check_at_every_level(graph: Graph, form: str, **expected: int) -> None:
    program = eqsat.optimize(graph, form=form, numerics="exact").program.graph
    assert program.operator_counts() == expected
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)}
    right = Session(to_model(graph), "disable").run(feeds)["y"]
    for level in LEVELS:
        np.testing.assert_array_equal(Session(to_model(program), level).run(feeds)["y"], right, err_msg=level)


@FORMS
@SHAPES
def test_values_are_quantised_twice_where_nothing_is_left_between_the_pairs(shape: tuple[Any, ...], form: str) -> None:
    """Of two pairs in a row it makes one, of another scale; the Relu between them changes nothing."""
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    for scale in (0.5, 0.1):
        x = b.op("Relu", _paired(b, x, scale))
    _check_at_every_level(b.finish({"y": x}), form, QuantizeLinear=2, DequantizeLinear=2)


@FORMS
@SHAPES
def test_softmax_is_computed_on_floats_where_one_reader_is_left(shape: tuple[Any, ...], form: str) -> None:
    """QLinearSoftmax takes the scale 0.19 for a fifth. Up to 1.31 it is made, and fails, of scales along an axis, too."""
    b = GraphBuilder()
    y = b.op("Softmax", _paired(b, b.input("x", "float32", shape), 0.1), axis=-1)
    pairs = [_paired(b, y, 0.19) for _ in "ab"]
    graph = b.finish({"y": b.op("Concat", *pairs, axis=-1)})
    _check_at_every_level(graph, form, QuantizeLinear=2, DequantizeLinear=2, Mul=1, Softmax=1, Concat=1)
    sizes = {c.size for c in eqsat.optimize(graph, form=form, numerics="exact").program.graph.constants.values()}
    assert sizes == {1}


@FORMS
@pytest.mark.parametrize("shape", [(1, 1), ("n", "m")], ids=str)
def test_pairs_stay_two_where_no_axis_is_known_to_be_longer_than_one(shape: tuple[Any, ...], form: str) -> None:
    """Their scale cannot be written for each index of an axis: it is a product behind."""
    b = GraphBuilder()
    x = b.op("Identity", _paired(b, b.input("x", "float32", shape), 0.5))
    graph = b.finish({"y": _paired(b, b.op("Relu", x), 0.1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        counts = eqsat.optimize(graph, form=form, numerics="exact").program.graph.operator_counts()
    assert counts == {"QuantizeLinear": 2, "DequantizeLinear": 2, "Mul": 1}


@FORMS
def test_pairs_that_the_original_has_stay_two(form: str) -> None:
    b = GraphBuilder()
    graph = b.finish({"y": _paired(b, _paired(b, b.input("x", "float32", (4, 8)), 0.5), 0.1)})
    _check_at_every_level(graph, form, QuantizeLinear=2, DequantizeLinear=2)


@pytest.mark.parametrize(
    ("options", "apart"),
    [({"form": "flat"}, False), ({"form": "onnxruntime"}, True), ({"consumer": "onnxruntime=1.20"}, True)],
    ids=str,
)
def test_a_softmax_that_the_original_has_between_pairs_is_faster_on_floats(options: Any, apart: bool) -> None:
    b = GraphBuilder()
    x = _paired(b, b.input("x", "float32", (4, 64, 64)), 0.1)
    graph = b.finish({"y": _paired(b, b.op("Softmax", x, axis=-1), 1 / 255)})
    program = eqsat.optimize(graph, numerics="exact", **options).program.graph
    assert program.operator_counts().get("Mul", 0) == apart


def _made_at_extended(model: onnx.ModelProto, path: Path) -> Counter[str]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(n.op_type for n in onnx.load(path).graph.node)


def _bytes(b: GraphBuilder, value: Any, scale: float) -> Any:
    """What is dequantised of bytes that ``value`` is quantised to, or of constant ones."""
    zero = b.constant(np.array(0, value.dtype if isinstance(value, np.ndarray) else np.uint8))
    parameters = b.constant(np.float32(scale)), zero
    integers = b.constant(value) if isinstance(value, np.ndarray) else b.op("QuantizeLinear", value, *parameters)
    return b.op("DequantizeLinear", integers, *parameters)


def _layer(units: float) -> Graph:
    """Two quantised layers with a sum with constant bytes between; their bias is a whole number of units of the sums, or not."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = _bytes(b, b.input("x", "float32", (2, 4, 16)), 0.02)
    for scale in (0.25, 0.5):
        weight = _bytes(b, rng.integers(-127, 128, (16, 16)).astype(np.int8), 0.01)
        bias = b.constant((rng.integers(-500, 500, 16) * units).astype(np.float32))
        x = _bytes(b, b.op("Add", b.op("MatMul", x, weight), bias), 0.02 if scale == 0.25 else 0.5)
        if scale == 0.25:
            x = _bytes(b, b.op("Add", x, _bytes(b, rng.integers(0, 256, 16).astype(np.uint8), 0.01)), 0.02)
    return b.finish({"y": x})


def test_plain_onnx_keeps_the_pairs_that_kernels_are_made_of(tmp_path: Path) -> None:
    graph = _layer(0.02 * 0.01)
    result = eqsat.optimize(graph, form="flat")
    assert not any(node.domain for node in result.program.graph.nodes)
    made = _made_at_extended(to_model(result.program.graph), tmp_path / "made.onnx")
    assert made == {"QuantizeLinear": 1, "QGemm": 2, "QLinearAdd": 1, "DequantizeLinear": 1, "Reshape": made["Reshape"]}
    kernels = [k.template for k in result.program.kernels if len(k.nodes) > 1]
    assert sorted(kernels) == ["com.microsoft::QGemm", "com.microsoft::QGemm", "com.microsoft::QLinearAdd"]
    assert result.report.kernels_after == 5


def test_plain_onnx_has_products_that_quantise_their_input_as_the_runtime_makes_kernels_of_them(tmp_path: Path) -> None:
    """Two products of one input, with a bias and without: one value is quantised once, and each product is one kernel."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 16))
    a, scale, zero = b.op("DynamicQuantizeLinear", x, outputs=3)
    outputs: dict[str, Any] = {}
    for name, columns, of_weight in (("y", 8, 0.01), ("z", 24, 0.02)):
        weight = b.constant(rng.integers(-127, 128, (16, columns)).astype(np.int8))
        product = b.op("MatMulInteger", a, weight, zero, b.constant(np.int8(0)))
        factor = b.op("Mul", scale, b.constant(np.float32(of_weight)))
        outputs[name] = b.op("Mul", b.op("Cast", product, to=1), factor)
    outputs["y"] = b.op("Relu", b.op("Add", outputs["y"], b.constant(rng.normal(size=8).astype(np.float32))))
    result = eqsat.optimize(b.finish(outputs), form="flat", disabled_rules=["merge_matmulintegers_of_one_input"])
    assert not any(node.domain for node in result.program.graph.nodes)
    assert [node.op for node in result.program.graph.nodes].count("DynamicQuantizeLinear") == 1
    made = _made_at_extended(to_model(result.program.graph), tmp_path / "made.onnx")
    assert made == {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 2, "Relu": 1}
    assert sorted(len(k.nodes) for k in result.program.kernels) == [1, 5, 5]  # one of them holds DynamicQuantizeLinear
    assert [k.template for k in result.program.kernels].count("com.microsoft::DynamicQuantizeMatMul") == 2


def test_a_bias_of_no_whole_units_becomes_rows_in_plain_onnx() -> None:
    counts = eqsat.optimize(_layer(0.00012345), form="flat").program.graph.operator_counts()
    assert counts["QLinearMatMul"] == 2
    assert "Gemm" not in counts
