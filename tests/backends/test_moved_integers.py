"""Dequantised integers that are moved: ONNX Runtime's optimiser quantises them again behind the movement, as unsigned bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnx_form import in_form
from eqsat.backends.onnxruntime import Session
from eqsat.frontends.onnx.envelope import Envelope
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

DRAW = np.random.default_rng(11)


def moved(dtype: str, *, zero: bool = False, quantised: bool = False, opset: int = 18) -> Graph:
    """Integers (or floats, quantised) that are dequantised, and then moved by one operator after the other."""
    b = GraphBuilder()
    scale = b.constant(np.float32(0.01))
    point = (b.constant(np.zeros((), dtype)),) if zero else ()
    x = b.input("x", "float32" if quantised else dtype, (4, 6))
    x = b.op("QuantizeLinear", x, scale, b.constant(np.zeros((), dtype))) if quantised else x
    y = b.op("DequantizeLinear", x, scale, *point)
    outputs = {"erf": b.op("Erf", y)}
    y = b.op("Reshape", y, b.constant([2, 2, 6], "int64"))
    y = b.op("Transpose", y, perm=(0, 2, 1))
    outputs["middle"] = b.op("Sigmoid", y)
    y = b.op(
        "Slice",
        b.op("Unsqueeze", y, b.constant([0], "int64")),
        *(b.constant([n], "int64") for n in (1, 5)),
        None,
        b.constant([1], "int64"),
    )
    outputs["last"] = b.op("Erf", y)
    return replace(b.finish(outputs), envelope=Envelope(opset=opset))


def integers(dtype: str) -> dict[str, np.ndarray]:
    limits = np.iinfo(dtype)
    return {"x": DRAW.integers(max(limits.min, -900), min(limits.max, 900), (4, 6)).astype(dtype)}


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_they_stay_right_at_the_highest_level(dtype: str, zero: bool, opset: int) -> None:
    graph = moved(dtype, zero=zero, opset=opset)
    feeds = integers(dtype)
    expected = run(graph, feeds)
    found = Session(to_model(graph, form="flat"), "all").run(feeds)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", ["flat", "functions", "onnxruntime"])
def test_integers_are_moved_and_dequantised_behind(form: str) -> None:
    graph = moved("int8")
    written = in_form(graph, form)
    written.check()
    made = written.producers()
    sources = [made.get(n.inputs[0]) for n in written.nodes if n.op == "DequantizeLinear"]
    assert [n.op if n is not None else "" for n in sources] == ["", "Transpose", "Slice"]
    feeds = integers("int8")
    for name, value in run(written, feeds).items():
        np.testing.assert_array_equal(value, run(graph, feeds)[name])
    assert in_form(written, form) is written


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
@pytest.mark.parametrize("padded", [True, False])
def test_the_largest_of_signed_bytes_are_dequantised_behind_their_pool(padded: bool, form: str) -> None:
    """From opset 21 on no signed bytes load that are dequantised before a MaxPool."""
    b = GraphBuilder()
    parameters = b.constant(np.float32(0.1)), b.constant(np.int8(3))
    x = b.op("QuantizeLinear", b.input("x", "float32", (1, 2, 6, 6)), *parameters)
    y = b.op("DequantizeLinear", x, *parameters)
    y = b.op("MaxPool", y, kernel_shape=(2, 2), strides=(2, 2), pads=(1, 1, 0, 0) if padded else (0, 0, 0, 0))
    graph = replace(b.finish({"y": b.op("Erf", y)}), envelope=Envelope(opset=21))
    feeds = {"x": DRAW.uniform(-13, 13, (1, 2, 6, 6)).astype(np.float32)}
    expected = run(graph, feeds)["y"]
    for level in ("basic", "extended", "all"):
        found = Session(to_model(graph, form=form), level).run(feeds)["y"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_unsigned_bytes_and_several_scales_stay() -> None:
    graph = moved("uint8")
    assert in_form(graph, "flat") is graph
    b = GraphBuilder()
    y = b.op("DequantizeLinear", b.input("x", "int8", (3, 4)), b.constant(np.array([1, 2, 3], np.float32)), axis=0)
    graph = b.finish({"y": b.op("Transpose", y, perm=(1, 0))})
    assert in_form(graph, "flat") is graph


def test_values_side_by_side_stay() -> None:
    b = GraphBuilder()
    scale = b.constant(np.float32(0.1))
    parts = [b.op("DequantizeLinear", b.input(name, "int8", (3, 4)), scale) for name in "ab"]
    graph = b.finish({"y": b.op("Concat", *parts, axis=0)})
    assert in_form(graph, "flat") is graph


def test_pairs_for_openvino_say_that_they_are_signed() -> None:
    """There the pair stays before the movement."""
    graph = moved("int8", quantised=True)
    model = to_model(graph, form="openvino")
    pairs = [n for n in model.graph.node if n.op_type == "DequantizeLinear"]
    assert {len(n.input) for n in pairs} == {3}
    feeds = {"x": DRAW.uniform(-1.2, 1.2, (4, 6)).astype(np.float32)}
    expected = run(graph, feeds)
    for level in ("disable", "basic", "all"):
        for name, value in Session(model, level).run(feeds).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [18, 21])
def test_scaled_product_of_integers_may_be_viewed(opset: int) -> None:
    """``Reshape(Cast(x @ w) * s)`` is dequantised in one step, and the file is right at every level."""
    helper, tensor = onnx.helper, onnx.TensorProto
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=tensor.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["scaled"]),
        helper.make_node("Reshape", ["scaled", "shape"], ["viewed"]),
        helper.make_node("Softmax", ["viewed"], ["y"]),
    ]
    constants = {
        "w": DRAW.integers(-128, 128, (8, 6)).astype(np.int8),
        "scale": np.float32(0.001),
        "shape": np.array([2, 12]),
    }
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "product",
            [helper.make_tensor_value_info("x", tensor.INT8, (4, 8))],
            [helper.make_tensor_value_info("y", tensor.FLOAT, (2, 12))],
            [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    result = eqsat.optimize(model, form="flat", cost="kernels", verify="full")
    assert result.program.graph.operator_counts() == {
        "MatMulInteger": 1,
        "DequantizeLinear": 1,
        "Reshape": 1,
        "Softmax": 1,
    }
    assert result.report.verification["levels"]["all"]["max_abs_error"] == 0


@pytest.mark.parametrize(("shape", "axis"), [((8, 6), 0), ((8, 6), 1), ((3, 1, 8, 6), 0), ((3, 8, 6), 2)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_products_of_what_several_scales_dequantise_run_at_every_level(
    shape: tuple[int, ...], axis: int, left: bool, transposed: bool
) -> None:
    """ONNX Runtime fuses them into a product that takes scales of columns only, and ends the run."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    count = shape[axis]
    scales, points = rng.uniform(0.01, 0.03, count).astype(np.float32), rng.integers(100, 150, count).astype(np.uint8)
    integers = rng.integers(0, 256, shape).astype(np.uint8)
    perm = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    weights = b.input("w", "uint8", integers.transpose(perm).shape) if transposed else b.constant(integers)
    lies = perm[axis] if transposed else axis
    weights = b.op("DequantizeLinear", weights, b.constant(scales), b.constant(points), axis=lies)
    weights = b.op("Transpose", weights, perm=perm) if transposed else weights
    step = b.constant(np.float32(0.02)), b.constant(np.uint8(120))
    extents = (6, 4) if left else (3, 5, 8)
    x = b.op("QuantizeLinear", b.input("x", "float32", extents), *step)
    x = b.op("DequantizeLinear", x, *step)
    graph = b.finish({"y": b.op("MatMul", weights, x) if left else b.op("MatMul", x, weights)})
    feeds = {"x": rng.normal(size=extents).astype(np.float32), "w": integers.transpose(perm)}
    feeds = {name: feeds[name] for name in graph.inputs}
    expected, found = (Session(to_model(graph), level).run(feeds)["y"] for level in ("disable", "all"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert ("Reshape" in in_form(graph, "flat").operator_counts()) == (left or (shape, axis) != ((8, 6), 1))


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_sums_are_normalised_over_the_axes_that_are_given(bias: bool, constant: bool) -> None:
    """ONNX Runtime fuses sum and norm into one over the last axis, where the scale has one axis."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(2, 5, 3)).astype(np.float32) for name in ("x", "y")}
    total = b.op("Add", b.input("x", "float32", (2, 5, 3)), b.input("y", "float32", (2, 5, 3)))
    parameters: list[str] = []
    for name in ("scale", "bias")[: 1 + bias]:
        array = rng.normal(size=3).astype(np.float32)
        if not constant:
            feeds[name] = array
        parameters.append(b.constant(array) if constant else b.input(name, "float32", (3,)))
    graph = b.finish({"z": b.op("LayerNormalization", total, *parameters, axis=-2)})
    expected, found = (Session(to_model(graph), level).run(feeds)["z"] for level in ("disable", "all"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, run(graph, feeds)["z"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_rows_of_a_product_with_a_bias_stay_right(dtype: str) -> None:
    """ONNX Runtime makes a Gemm of the two, and moves the rows itself."""
    b = GraphBuilder()
    rows = b.op("DequantizeLinear", b.input("x", dtype, (1, 4, 6)), b.constant(np.float32(0.01)))
    product = b.op("MatMul", rows, b.constant(DRAW.normal(size=(6, 5)).astype(np.float32)))
    graph = b.finish({"y": b.op("Add", product, b.constant(np.ones(5, np.float32)))})
    feeds = {"x": integers(dtype)["x"].reshape(1, 4, 6)}
    found = Session(to_model(graph, form="flat"), "all").run(feeds)
    np.testing.assert_allclose(found["y"], run(graph, feeds)["y"], rtol=1e-5, atol=1e-5)
