"""Operators of ONNX Runtime that pass through: the types of what they make are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.backends.onnx_file import save_onnx
from eqsat.backends.onnxruntime import Session
from eqsat.ir.types import DType, TensorType

RNG = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def _bytes(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape).astype(np.uint8)


IDS = np.array([[3, 0, 1]], np.int64)
ROWS = _floats(2, 3, 32)
STEP = np.array(0.1, np.float32)
TWO_WAYS = {"hidden_size": 5, "direction": "bidirectional"}
CASES: dict[str, Sequence[tuple[np.ndarray, list[np.ndarray | None], dict[str, Any]]]] = {
    "MatMulBnb4": [
        (ROWS, [_bytes(8 * 32 // 2), _floats(8)], {"K": 32, "N": 8, "block_size": 32, "quant_type": 1}),
    ],
    "GatherBlockQuantized": [
        (IDS, [_bytes(5, 32), _floats(5, 2)], {"bits": 8, "block_size": 16}),
        (IDS, [_bytes(5, 16), _floats(5, 2)], {"bits": 4, "block_size": 16}),
    ],
    "DynamicQuantizeLSTM": [
        (ROWS, [*(_bytes(2, n, 20) for n in (32, 5)), *[None] * 5, *[_floats(2), np.zeros(2, np.uint8)] * 2], TWO_WAYS),
    ],
    "Attention": [(ROWS, [_floats(32, 48), _floats(48), np.ones((2, 3, 3), np.int32)], {"num_heads": 2})],
    "QAttention": [
        (_bytes(2, 3, 32), [_bytes(32, 48), _floats(48), STEP, STEP], {"num_heads": 2}),
    ],
}
"""What an operator is applied to: an input, constants, attributes."""


def _model(
    op: str, x: np.ndarray, constants: Sequence[np.ndarray | None], attributes: dict[str, Any]
) -> onnx.ModelProto:
    names = ["" if c is None else f"c{i}" for i, c in enumerate(constants)]
    operands = [names[0], "x", *names[1:]] if op == "GatherBlockQuantized" else ["x", *names]
    node = helper.make_node(op, operands, ["y"], domain="com.microsoft", **attributes)
    given = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), ["n", *x.shape[1:]])
    made = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    stored = [numpy_helper.from_array(np.asarray(c), name) for c, name in zip(constants, names, strict=True) if name]
    graph = helper.make_graph([node, helper.make_node("Neg", ["y"], ["z"])], "g", [given], [made], stored)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("op", CASES)
def test_types_are_those_that_the_runtime_finds(op: str) -> None:
    for x, constants, attributes in CASES[op]:
        model = _model(op, x, constants, attributes)
        graph = eqsat.load(model)
        assert graph.nodes[0].opaque
        found = graph.type_of(graph.nodes[0].outputs[0])
        assert isinstance(found, TensorType)
        assert found.shape is not None
        made = Session(model, "disable").run({"x": x})["z"]
        assert tuple(x.shape[0] if d == "n" else d for d in found.shape) == made.shape
        assert found.dtype.numpy == made.dtype


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("Affine", {"alpha": 2.0, "beta": 1.0}),
        ("Crop", {"border": [1, 2, 3, 4]}),
        ("Crop", {"border": [1, 2, 3, 4], "scale": [5, 6]}),
        ("ImageScaler", {"bias": [1.0, 2.0, 3.0], "scale": 0.5}),
        ("ParametricSoftplus", {"alpha": 2.0, "beta": 1.0}),
        ("ScaledTanh", {"alpha": 2.0, "beta": 1.0}),
    ],
)
def test_types_of_what_onnx_has_no_more_are_those_that_the_runtime_finds(op: str, attributes: dict[str, Any]) -> None:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, "w"])
    made = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    nodes = [helper.make_node(op, ["x"], ["y"], **attributes), helper.make_node("Neg", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "g", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)
    loaded = eqsat.load(model, dims={"n": 2, "w": 15})
    assert loaded.nodes[0].opaque
    ran = Session(model, "disable").run({"x": _floats(2, 3, 16, 15)})["z"]
    assert loaded.type_of("y") == TensorType(DType.FLOAT, ran.shape)


def test_what_the_outline_does_not_cover_has_no_type() -> None:
    """Weights of an extent that is not known."""
    model = _model("Attention", ROWS, [_floats(32, 48), _floats(48)], {"num_heads": 2})
    kept = [t for t in model.graph.initializer if t.name != "c0"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.input.append(helper.make_tensor_value_info("c0", TensorProto.FLOAT, ["rows", "columns"]))
    graph = eqsat.load(model)
    found = graph.type_of(graph.nodes[0].outputs[0])
    assert not isinstance(found, TensorType) or found.shape is None


def test_extents_behind_what_the_runtime_laid_out_in_blocks_are_known(tmp_path: Path) -> None:
    """The file as ONNX Runtime saves it at its highest level, where this processor has kernels for blocks of channels."""
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", ("n", 3, 25, 24))
    first = b.op("Relu", b.op("Conv", x, b.constant(_floats(16, 3, 3, 3)), strides=(2, 2)))
    pooled = b.op("MaxPool", first, kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 0))
    wide = b.op("Conv", b.op("Sin", pooled), b.constant(_floats(24, 16, 1, 1)))
    apart = b.op("AveragePool", b.op("Conv", wide, b.constant(_floats(24, 1, 3, 3)), group=24), kernel_shape=(2, 2))
    save_onnx(b.finish({"y": b.op("GlobalAveragePool", apart), "z": b.op("Neg", apart)}), tmp_path / "x.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "saved.onnx"), 4
    onnxruntime.InferenceSession(str(tmp_path / "x.onnx"), options, providers=["CPUExecutionProvider"])
    graph = eqsat.load(tmp_path / "saved.onnx")
    blocked = {n.op for n in graph.nodes if n.domain == "com.microsoft.nchwc"}
    if not blocked:
        pytest.skip("no kernels for blocks of channels")
    assert {"Conv", "MaxPool", "ReorderInput", "ReorderOutput"} <= blocked
    values = [v for n in graph.nodes for v in n.outputs]
    made = Session(tmp_path / "saved.onnx", extra_outputs=values).run({"x": _floats(2, 3, 25, 24)}, values)
    for value in values:
        found = graph.type_of(value)
        assert isinstance(found, TensorType)
        assert found.dtype.numpy == made[value].dtype
        extents = [2 if d == "n" else d for d in found.shape or ()]
        assert [d if isinstance(d, int) else e for d, e in zip(extents, made[value].shape, strict=True)] == [
            *made[value].shape
        ]
    outputs = [graph.type_of(n.outputs[0]) for n in graph.nodes if n.op in ("ReorderOutput", "Conv")]
    assert all(isinstance(d, int) for t in outputs if isinstance(t, TensorType) for d in (t.shape or ("",))[1:])
