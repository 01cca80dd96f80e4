"""Ranges below opset 11, which has Range: places of all that is in a vector of ones."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, node, noise, run

import eqsat
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.types import TensorType

ROOT = np.float32(4)


def _counted(filled: int = 1) -> list[onnx.NodeProto]:
    """``arange(length)`` as PyTorch's exporter writes it at opset 9, of a value ``x`` of [batch, length, 16]."""
    value = numpy_helper.from_array(np.array([filled], np.int64))
    return [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["extent"], axis=0),
        node("Unsqueeze", ["extent"], ["length"], axes=[0]),
        node("ConstantOfShape", ["length"], ["full"], value=value),
        node("NonZero", ["full"], ["at"]),
        node("Transpose", ["at"], ["column"], perm=[1, 0]),
        node("Squeeze", ["column"], ["counts"], axes=[1]),
    ]


def _model(nodes: list[onnx.NodeProto], output: str, dtype: int) -> onnx.ModelProto:
    made = helper.make_tensor_value_info(output, dtype, None)
    constants = {"one": np.array(1), "root": ROOT, "low": np.float32(-1e9)}
    shapes = {"x": ["batch", "length", 16]}
    return model(nodes, {"x": noise(2, 5, 16)}, constants, opset=9, outputs=[made], shapes=shapes)


@pytest.mark.parametrize(("filled", "extent"), [(1, True), (-2, True), (0, False)])
def test_places_of_all_that_is_there_count_along_the_extent(filled: int, extent: bool) -> None:
    source = _model(_counted(filled), "counts", TensorProto.INT64)
    graph = load_onnx(source)
    found = graph.type_of("counts")
    assert isinstance(found, TensorType)
    assert (found.shape == ("length",)) is extent
    optimised = eqsat.optimize(source, form="flat")
    assert ("NonZero" in optimised.report.operators_after) is not extent
    assert "NonZero" in eqsat.optimize(source, form="flat", opset=10).report.operators_after
    result = optimised.to_onnx()
    for length in (0, 1, 7):
        feeds = {"x": noise(2, length, 16)}
        np.testing.assert_array_equal(run(result, feeds)[0], run(source, feeds)[0])


def test_a_causal_mask_of_such_ranges_is_that_of_attention() -> None:
    attention = [
        node("Unsqueeze", ["counts"], ["keys"], axes=[0]),
        node("Unsqueeze", ["counts"], ["queries"], axes=[1]),
        node("Greater", ["keys", "queries"], ["later"]),
        node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["x", "k"], ["scores"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Where", ["later", "low", "scaled"], ["masked"]),
        node("Softmax", ["masked"], ["weights"], axis=2),
        node("MatMul", ["weights", "x"], ["y"]),
    ]
    result = eqsat.optimize(_model(_counted() + attention, "y", TensorProto.FLOAT), form="flat", opset=23)
    (found,) = (n for n in result.program.graph.nodes if n.op == "Attention")
    assert found.attributes["is_causal"] == 1
