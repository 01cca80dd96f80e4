"""Scaler, LinearRegressor and ArrayFeatureExtractor of ``ai.onnx.ml``: our definitions against the kernels of ONNX Runtime,
and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from graph_checks import counts, optimized
from onnx import helper

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import LEVELS, Session
from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.interpret import run

ML = "ai.onnx.ml"
rng = np.random.default_rng(5)


def _floats(count: int) -> list[float]:
    return [float(v) for v in rng.normal(size=count).astype(np.float32)]


def _scaler(features: int) -> dict[str, Any]:
    return {"offset": _floats(features), "scale": _floats(features)}


USES = [
    *(
        ("Scaler", shape, dtype, _scaler(4))
        for shape in ((5, 4), (4,))
        for dtype in ("float32", "float64", "int64", "int32")
    ),
    *(("Scaler", shape, "float32", _scaler(1)) for shape in ((5, 4), (4,))),
    ("LinearRegressor", (5, 4), "float32", {"coefficients": _floats(8), "intercepts": _floats(2), "targets": 2}),
    ("LinearRegressor", (5, 4), "float32", {"coefficients": _floats(4)}),
]


@pytest.mark.parametrize(("op", "shape", "dtype", "attributes"), USES)
def test_kernel_computes_what_the_definition_says(
    op: str, shape: tuple[int, ...], dtype: str, attributes: dict[str, Any]
) -> None:
    b = GraphBuilder()
    graph = b.finish({"y": b.op(op, b.input("x", dtype, shape), domain=ML, **attributes)})
    feeds = {"x": (10 * rng.normal(size=shape)).astype(dtype)}
    expected = run(graph, feeds)["y"]
    for level in LEVELS:
        found = Session(to_model(graph), level).run(feeds)["y"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 if op == "LinearRegressor" else 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("indices", [[1, 3, 0], [[3, 1]], [[0], [2]], 2])
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 3, 4), (0, 4)])
def test_features_are_looked_up_along_the_last_axis(shape: tuple[int, ...], indices: Any, dtype: str) -> None:
    b = GraphBuilder()
    x = b.input("x", dtype, shape)
    y = b.op("ArrayFeatureExtractor", x, b.constant(np.array(indices, np.int64)), domain=ML)
    graph = b.finish({"y": y})
    feeds = {"x": (10 * rng.normal(size=shape)).astype(dtype)}
    expected = run(graph, feeds)["y"]
    for level in LEVELS:
        found = Session(to_model(graph), level).run(feeds)["y"]
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


def test_features_in_another_order_before_a_dense_layer_are_its_weights_in_that_order() -> None:
    order = onnx.numpy_helper.from_array(np.array([[3, 0, 2, 1]]), "order")
    model = _file(
        helper.make_node("ArrayFeatureExtractor", ["x", "order"], ["f"], domain=ML),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    )
    model.graph.initializer.append(order)
    assert counts(eqsat.optimize(model, form="flat")) == {"Gemm": 1}


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [
        ("Scaler", (2, 4, 4), _scaler(4)),
        ("Scaler", (2, 4), _scaler(3)),
        ("Scaler", (2, 4), {"offset": _floats(1), "scale": _floats(4)}),
        ("Scaler", ("n", "m"), _scaler(4)),
        ("LinearRegressor", (2, 4), {"coefficients": _floats(3)}),
        ("LinearRegressor", (2, 4), {"coefficients": _floats(4), "post_transform": "LOGISTIC"}),
    ],
)
def test_other_uses_are_not_covered(op: str, shape: Sequence[int | str], attributes: dict[str, Any]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    with pytest.raises(ShapeError):
        b.op(op, x, domain=ML, **attributes)


def _file(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """Rows of four features from scikit-learn's converter, which does not say what comes between."""
    weights = [
        onnx.numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n)
        for n, s in (("w", (4, 8)), ("b", (1, 8)))
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", None])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(ML, 1)]
    return helper.make_model(helper.make_graph(list(nodes), "g", [x], [y], weights), opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(("offset", "left"), [(1.5, {"Gemm": 1}), (2000.0, {f"{ML}::Scaler": 1, "Gemm": 1})])
def test_scaled_features_of_a_dense_layer_are_scaled_by_its_weights(offset: float, left: dict[str, int]) -> None:
    """Unless that leaves few digits of them."""
    model = _file(
        helper.make_node("Scaler", ["x"], ["s"], domain=ML, offset=[offset] * 4, scale=[0.5] * 4),
        helper.make_node("Cast", ["s"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    )
    result = eqsat.optimize(model, form="flat")
    assert counts(result) == left
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_scaled_features_of_a_linear_regressor_are_too() -> None:
    b = GraphBuilder()
    x = b.op("Scaler", b.input("x", "float32", ("n", 4)), domain=ML, **_scaler(4))
    y = b.op("LinearRegressor", x, domain=ML, coefficients=_floats(4), intercepts=_floats(1))
    assert counts(optimized(b.finish({"y": y}))) == {"Gemm": 1}
