"""The form ``functions``: one node of the main graph per kernel, each the call of a function; it computes the same anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator
from onnxruntime_programs import integer_layer

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.backends.onnx_kernels import KERNEL_DOMAIN
from eqsat.backends.onnxruntime import sums_saturate
from eqsat.errors import OutputError
from eqsat.ir.graph import Graph
from eqsat.verification.feeds import random_feeds

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
RNG = np.random.default_rng(5)


def fire() -> Graph:
    """A squeeze and two expanding convolutions with rectifiers, joined, pooled."""
    b = eqsat.GraphBuilder("fire")
    x = b.input("x", "float32", (1, 8, 12, 12))

    def convolution(value: str, channels: int, features: int, size: int) -> str:
        w = b.constant(RNG.normal(size=(features, channels, size, size)).astype(np.float32) / 8)
        bias = b.constant(RNG.normal(size=features).astype(np.float32))
        return b.op("Relu", b.op("Conv", value, w, bias, pads=(size // 2,) * 4))

    squeezed = convolution(x, 8, 4, 1)
    joined = b.op("Concat", convolution(squeezed, 4, 8, 1), convolution(squeezed, 4, 8, 3), axis=1)
    return b.finish({"y": b.op("Reshape", b.op("GlobalAveragePool", joined), b.constant(np.array([1, 16])))})


def layers(rows: int | str = 4, depth: int = 3) -> Graph:
    """Layers of one shape, each with a scale of its own, a constant that all have, and a list of integers."""
    b = eqsat.GraphBuilder("layers")
    x = b.input("x", "float32", (rows, 16))
    for i in range(depth):
        y = b.op("MatMul", x, b.constant(RNG.normal(size=(16, 16)).astype(np.float32) / 4))
        y = b.op("Tanh", b.op("Max", y, b.constant(np.float32(-0.1 * (i + 1)))))
        x = b.op("Min", b.op("Softmax", y, axis=-1), b.constant(np.float32(0.75)))
    return b.finish({"y": x})


def bert_layer() -> Graph:
    """Attention of two heads, a residual sum with its norm, an activation between two products."""
    b = eqsat.GraphBuilder("layer")
    x = b.input("x", "float32", (2, 6, 16))

    def project(value: str, size: int, features: int) -> str:
        w = b.constant(RNG.normal(size=(size, features)).astype(np.float32) / 4)
        return b.op("Add", b.op("MatMul", value, w), b.constant(RNG.normal(size=features).astype(np.float32)))

    def heads(value: str, perm: tuple[int, ...]) -> str:
        return b.op("Transpose", b.op("Reshape", value, b.constant(np.array([2, 6, 2, 8]))), perm=perm)

    q, k, v = (heads(project(x, 16, 16), perm) for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    mixed = b.op("MatMul", b.op("Softmax", b.op("Mul", b.op("MatMul", q, k), b.constant(np.float32(0.35))), axis=-1), v)
    joined = b.op("Reshape", b.op("Transpose", mixed, perm=(0, 2, 1, 3)), b.constant(np.array([2, 6, 16])))
    scale, bias = (b.constant(RNG.normal(size=16).astype(np.float32)) for _ in "sb")
    normed = b.op("LayerNormalization", b.op("Add", x, project(joined, 16, 16)), scale, bias)
    hidden = b.op("Gelu", project(normed, 16, 32), approximate="none")
    return b.finish({"y": b.op("Add", normed, project(hidden, 32, 16))})


GRAPHS: dict[str, Callable[[], Graph]] = {
    "fire": fire,
    "bert layer": bert_layer,
    "int8 layer": integer_layer,
    "layers": layers,
    "symbolic": lambda: layers("rows"),
}


def run_at(path: Path, level: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feeds)]


@pytest.mark.parametrize("target", ["launch-count", "tensorrt-like"])
@pytest.mark.parametrize("name", GRAPHS)
def test_one_node_per_kernel_and_the_same_outputs_everywhere(name: str, target: str, tmp_path: Path) -> None:
    if name == "int8 layer" and sums_saturate():
        pytest.skip("what ONNX Runtime makes of pairs of quantisation at ALL cuts off sums on this processor")
    result = eqsat.optimize(GRAPHS[name](), target=target, form="functions", verify=False)
    result.save(tmp_path / "functions.onnx")
    result.save(tmp_path / "flat.onnx", form="flat")
    model = onnx.load(tmp_path / "functions.onnx")
    onnx.checker.check_model(model)
    assert [n.name for n in model.graph.node] != []
    assert sorted(n.name for n in model.graph.node) == sorted(k.name for k in result.program.kernels)
    assert {n.domain for n in model.graph.node} == {KERNEL_DOMAIN}
    assert all(f.doc_string.startswith("template ") for f in model.functions)
    named = {v.name for v in (*model.graph.value_info, *model.graph.output)}
    assert {v for n in model.graph.node for v in n.output} <= named
    feeds = random_feeds(result.original, 3)
    expected = run_at(tmp_path / "flat.onnx", "ORT_DISABLE_ALL", feeds)
    reference = [np.asarray(v) for v in ReferenceEvaluator(str(tmp_path / "functions.onnx")).run(None, feeds)]
    for found, value in zip(run_at(tmp_path / "functions.onnx", "ORT_DISABLE_ALL", feeds), expected, strict=True):
        np.testing.assert_array_equal(found, value)
    for found in (*(run_at(tmp_path / "functions.onnx", level, feeds) for level in LEVELS), reference):
        for output, value in zip(found, expected, strict=True):
            whole = value.dtype.kind in "iu"  # a sum in another order may fall on the other side of a rounding
            np.testing.assert_allclose(output, value, rtol=0 if whole else 1e-5, atol=1 if whole else 1e-5)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_file_of_functions_is_read_back_as_the_flat_graph(name: str, tmp_path: Path) -> None:
    result = eqsat.optimize(GRAPHS[name](), target="tensorrt-like", verify=False)
    result.save(tmp_path / "functions.onnx", form="functions")
    result.save(tmp_path / "flat.onnx", form="flat")
    graph, flat = eqsat.load(tmp_path / "functions.onnx"), eqsat.load(tmp_path / "flat.onnx")
    assert graph.operator_counts() == flat.operator_counts()
    feeds = random_feeds(flat, 4)
    for value, found in zip(eqsat.run(flat, feeds).values(), eqsat.run(graph, feeds).values(), strict=True):
        np.testing.assert_array_equal(found, value)
    eqsat.optimize(tmp_path / "functions.onnx", form="flat")  # verifies


def test_equal_kernels_share_a_function_and_pass_what_they_differ_in(tmp_path: Path) -> None:
    result = eqsat.optimize(layers(), target="launch-count", verify=False)
    result.save(tmp_path / "a.onnx", form="functions")
    model = onnx.load(tmp_path / "a.onnx")
    floats = {
        f.name: [c.item() for c in map(_constant, f.node) if c is not None and c.dtype == np.float32]
        for f in model.functions
    }
    calls = [n for n in model.graph.node if 0.75 in floats[n.op_type]]
    (shared,) = {n.op_type for n in calls}
    assert len(calls) == 3
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    bounds = [
        float(weights[v].item()) for n in model.graph.node for v in n.input if v in weights and weights[v].size == 1
    ]
    assert sorted(bounds) == pytest.approx([-0.3, -0.2, -0.1]), shared


def _constant(node: onnx.NodeProto) -> np.ndarray | None:
    return onnx.numpy_helper.to_array(node.attribute[0].t) if node.op_type == "Constant" else None


def test_equal_programs_give_equal_bytes(tmp_path: Path) -> None:
    result = eqsat.optimize(bert_layer(), target="tensorrt-like", verify=False)
    for name in "ab":
        result.save(tmp_path / f"{name}.onnx", form="functions")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_devices_survive_the_functions(tmp_path: Path) -> None:
    result = eqsat.optimize(layers(), verify=False, form="flat")
    last = result.program.graph.outputs[0]
    graph = replace(result.program.graph, devices={last: "gpu"})
    save_onnx(graph, tmp_path / "placed.onnx", form="functions", kernels=result.program.kernels)
    assert eqsat.load(tmp_path / "placed.onnx").devices.get(last) == "gpu"


def test_a_graph_without_kernels_cannot_be_written_as_functions(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is in no kernel"):
        save_onnx(layers(), tmp_path / "x.onnx", form="functions")
