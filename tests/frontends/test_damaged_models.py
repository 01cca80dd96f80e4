"""Whatever is done to the bytes or the messages of a model, it is optimised or refused by an error of our own."""

from pathlib import Path
from random import Random

import numpy as np
import onnx
import pytest
from onnx_models import assert_same, info, model, node, noise, run

from benchmarks.damaged import damaged, outcome
from eqsat.frontends.onnx.model import load_onnx


def _sources() -> list[bytes]:
    image, x = noise(1, 2, 6, 6), noise(2, 3, 4)
    relu = onnx.helper.make_graph([node("Relu", ["c"], ["z"])], "then", [], [info("z", x)])
    tanh = onnx.helper.make_graph([node("Tanh", ["c"], ["z"])], "else", [], [info("z", x)])
    models = [
        model(
            [
                node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
                node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
                node("Flatten", ["b"], ["c"], axis=1),
                node("Gemm", ["c", "v"], ["y"], alpha=0.5, transB=1),
            ],
            {"x": image},
            {"w": noise(3, 2, 3, 3), "v": noise(5, 27)},
        ),
        model(
            [
                node("Reshape", ["x", "s"], ["a"]),
                node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
                node("Softmax", ["b"], ["c"], axis=-1),
                node("If", ["p"], ["d"], then_branch=relu, else_branch=tanh),
                node("Slice", ["d", "z", "e", "i"], ["f"]),
                node("Cast", ["f"], ["g"], to=1),
                node("ReduceMean", ["g", "i"], ["y"], keepdims=0),
            ],
            {"x": x, "p": np.array(True)},
            {"s": np.array([0, 4, 3]), "z": np.array([0]), "e": np.array([2]), "i": np.array([1])},
            opset=18,
        ),
        model(
            [
                node("QuantizeLinear", ["x", "s", "z"], ["a"], axis=1),
                node("DequantizeLinear", ["a", "s", "z"], ["b"], axis=1),
                node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
                node("Split", ["b"], ["c", "d"], axis=2, num_outputs=2),
                node("Mul", ["c", "k"], ["y"]),
            ],
            {"x": x},
            {"s": np.array([0.5, 0.25, 1], np.float32), "z": np.array([0, 1, 2], np.int8)},
            opset=19,
        ),
    ]
    return [m.SerializeToString() for m in models]


@pytest.mark.parametrize("seed", range(6))
def test_damaged_models_are_optimised_or_refused(seed: int, tmp_path: Path) -> None:
    sources = _sources()
    found = {"optimised": 0, "refused": 0}
    for i in range(40):
        random = Random(f"{seed}-{i}")
        result = outcome(damaged(random.choice(sources), random), tmp_path / "damaged.onnx")
        assert result in found, f"{seed}-{i}: {result}"
        found[result] += 1
    assert min(found.values()) > 0


def test_constants_are_read_by_the_kind_of_their_attribute() -> None:
    """As ONNX Runtime reads them, whatever the attribute is called."""
    two = onnx.numpy_helper.from_array(np.full((), 2, np.float32))
    source = model([node("Constant", [], ["c"], value=two), node("Add", ["x", "c"])], {"x": noise(2, 3)})
    source.graph.node[0].attribute[0].name = "perm"
    assert load_onnx(source).constants["c"].numpy() == 2


def test_a_pool_whose_only_window_reaches_beyond_the_data() -> None:
    for op in ("AveragePool", "MaxPool"):
        feeds = {"x": noise(1, 2, 1)}
        source = model([node(op, ["x"], kernel_shape=[2], strides=[2], ceil_mode=1)], feeds, opset=18)
        graph = load_onnx(source)
        assert str(graph.type_of("y")) == "float32[1, 2, 1]"
        from eqsat.ir.interpret import run as run_program

        assert_same(run(source, feeds), [run_program(graph, feeds)["y"]])
