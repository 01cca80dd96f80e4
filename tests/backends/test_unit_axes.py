"""Transposes that move axes of extent 1 along with another, which ONNX Runtime runs element by element."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import eqsat
from eqsat.backends.onnx_file import save_onnx, to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

Extents = tuple[int | str, ...]


def _transposed(shape: Extents, perm: tuple[int, ...], dtype: str = "float32") -> Graph:
    b = GraphBuilder()
    return b.finish({"y": b.op("Transpose", b.input("x", dtype, shape), perm=perm)})


def _operators(graph: Graph, form: str) -> list[str]:
    return [n.op_type for n in to_model(graph, form=form).graph.node]


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((1, 3, 3, 16, 20), (1, 0, 2, 4, 3)),
        ((1, 40, 1, 30), (0, 3, 2, 1)),
        ((40, 1, 30), (2, 1, 0)),
        ((40, 1, 6, 1, 5), (4, 3, 0, 1, 2)),
        ((1, 8, 9, 3, 10), (3, 0, 4, 1, 2)),  # two axes side by side
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_axes_of_extent_1_are_left_out(shape: Any, perm: tuple[int, ...], dtype: str) -> None:
    graph = _transposed(shape, perm, dtype)
    x = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    for form in ("flat", "onnxruntime"):
        assert _operators(graph, form) == ["Squeeze", "Transpose", "Unsqueeze"]
        found = Session(to_model(graph, form=form)).run({"x": x})["y"]
        np.testing.assert_array_equal(found, x.transpose(perm))


@pytest.mark.parametrize(
    ("shape", "perm"),
    [
        ((1, 3, 3, 16, 20), (0, 1, 2, 4, 3)),  # one axis moves
        ((1, 64, 1, 30), (0, 2, 3, 1)),  # so here
        ((1, 16, 1, 4, 32), (2, 0, 3, 1, 4)),  # rows stay together
        ((1, 12, 10, 16), (3, 0, 2, 1)),  # more than one axis of several places
        ((1, 4, 1, 5), (0, 3, 2, 1)),  # small
        (("n", 40, 1, 30), (0, 3, 2, 1)),  # may be an axis of several places
    ],
)
def test_other_transposes_stay(shape: Extents, perm: tuple[int, ...]) -> None:
    assert _operators(_transposed(shape, perm), "onnxruntime") == ["Transpose"]


def test_other_readers_get_the_transpose() -> None:
    assert _operators(_transposed((1, 40, 1, 30), (0, 3, 2, 1)), "openvino") == ["Transpose"]


def test_files_of_an_old_opset_hold_them(tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 40, 1, 30])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 30, 1, 40])
    node = onnx.helper.make_node("Transpose", ["x"], ["y"], perm=[0, 3, 2, 1])
    graph = onnx.helper.make_graph([node], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 11)], ir_version=6)
    result = eqsat.optimize(model, form="flat")
    result.save(tmp_path / "result.onnx")
    written = onnx.load(tmp_path / "result.onnx")
    assert [n.op_type for n in written.graph.node] == ["Squeeze", "Transpose", "Unsqueeze"]
    assert written.opset_import[0].version == 11
    save_onnx(result.program.graph, tmp_path / "functions.onnx", form="functions", kernels=result.program.kernels)
    fed = np.arange(1200, dtype=np.float32).reshape(1, 40, 1, 30)
    for name in ("result.onnx", "functions.onnx"):
        np.testing.assert_array_equal(
            Session(onnx.load(tmp_path / name)).run({"x": fed})["y"], fed.transpose(0, 3, 2, 1)
        )
