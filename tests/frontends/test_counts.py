"""Extents that are counted with divisions towards zero are those of the convolutions that they are about."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model, node, noise, run

import eqsat
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.types import Dim, TensorType

COUNT = "floordiv(height + 3, 4)"


def _patches(*, convolved: bool = True) -> onnx.ModelProto:
    """Patches of an image, by steps of four, in as many rows as ``(height - 1) / 4 + 1`` squared, and half as many rows less
    two; without the convolution the count alone."""
    integers = {"less": [-1], "one": [1], "two": [2], "four": [4], "rest": [-1]}
    nodes = [
        node("Shape", ["image"], ["height"], start=2, end=3),
        node("Add", ["less", "height"], ["last"]),
        node("Div", ["last", "four"], ["steps"]),
        node("Add", ["steps", "one"], ["count"]),
    ]
    if convolved:
        nodes += [
            node("Sub", ["steps", "two"], ["fewer"]),
            node("Div", ["fewer", "two"], ["half"]),
            node("Conv", ["image", "w"], ["patches"], kernel_shape=[7, 7], strides=[4, 4], pads=[3, 3, 3, 3]),
            node("Shape", ["image"], ["batch"], start=0, end=1),
            node("Mul", ["count", "count"], ["all"]),
            node("Concat", ["batch", "all", "rest", "two"], ["target"], axis=0),
            node("Reshape", ["patches", "target"], ["rows"]),
        ]
    types = {"count": TensorProto.INT64, "half": TensorProto.INT64, "rows": TensorProto.FLOAT}
    return model(
        nodes,
        {"image": noise(1, 3, 1, 1)},
        {"w": noise(4, 3, 7, 7), **{k: np.array(v) for k, v in integers.items()}},
        opset=18,
        outputs=[helper.make_tensor_value_info(o, types[o], None) for o in list(types)[: 3 if convolved else 1]],
        shapes={"image": ["batch", 3, "height", "height"]},
    )


def _shape(graph: eqsat.Graph, value: str) -> tuple[Dim, ...] | None:
    found = graph.type_of(value)
    assert isinstance(found, TensorType)
    return found.shape


def test_a_convolution_tells_how_many_patches_there_are() -> None:
    graph = load_onnx(_patches())
    assert _shape(graph, "patches") == ("batch", 4, COUNT, COUNT)
    assert _shape(graph, "rows") == ("batch", f"{COUNT}*{COUNT}", 2, 2)


@pytest.mark.parametrize("height", [1, 2, 4, 5, 9, 16, 17])
def test_counts_are_right_from_the_least_image_on(height: int) -> None:
    source, feeds = _patches(), {"image": noise(2, 3, height, height)}
    found = run(eqsat.optimize(source).to_onnx(), feeds)
    for result, expected in zip(found, run(source, feeds), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_without_a_convolution_an_empty_image_has_one_patch() -> None:
    source = _patches(convolved=False)
    assert [n.op for n in load_onnx(source).nodes] == ["Shape", "Add", "Div", "Add"]
    assert run(eqsat.optimize(source).to_onnx(), {"image": noise(1, 3, 0, 0)})[0].tolist() == [1]
