"""Sums that are normalised, which ONNX Runtime fuses into an operator that takes longer than the two from 1.30 on."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

Models = Callable[[str], Path]


def _norm_of_sum(extents: tuple[int | str, ...] = (1, 64, 128), *, read_twice: bool = False) -> Graph:
    b = GraphBuilder()
    x, y = (b.input(name, "float32", extents) for name in "xy")
    scale, shift = (b.constant(np.full(128, n, np.float32)) for n in (1.5, 0.5))
    total = b.op("Add", b.op("Sin", x), y)
    norm = b.op("LayerNormalization", total, scale, shift, axis=-1)
    return b.finish({"norm": norm, "total": b.op("Neg", total)} if read_twice else {"norm": norm})


def _operators(graph: Graph, **options: str) -> list[str]:
    written = eqsat.optimize(graph, **{"form": "onnxruntime", **options}).to_onnx()  # pyright: ignore[reportArgumentType]
    return [n.op_type for n in written.graph.node]


def test_a_sum_that_is_normalised_is_one_that_is_not_fused(tmp_path: Path) -> None:
    assert _operators(_norm_of_sum()) == ["Sin", "Sum", "LayerNormalization"]
    assert "Sum" in _operators(_norm_of_sum(), form="flat", consumer="onnxruntime=1.32")
    written = eqsat.optimize(_norm_of_sum(), form="onnxruntime").to_onnx()
    assert _loaded(written, tmp_path) == ["Sin", "Sum", "LayerNormalization"]


def _loaded(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Operators of what ONNX Runtime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "loaded.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(folder / "loaded.onnx").graph.node]


def test_plain_files_leave_the_extents_of_rows_open(tmp_path: Path, real_model: Models) -> None:
    model = eqsat.optimize(real_model("dynamic/bert.dynamo"), form="flat", verify=False).to_onnx()
    assert "Sum" not in {n.op_type for n in model.graph.node}
    assert "SkipLayerNormalization" not in _loaded(model, tmp_path)
    shapes = [v.type.tensor_type.shape.dim for v in model.graph.value_info]
    assert not any(d.dim_param for shape in shapes for d in shape)
    assert any(d.dim_value for shape in shapes for d in shape)


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (_norm_of_sum((64, 128)), {}),
        (_norm_of_sum(read_twice=True), {}),
        (_norm_of_sum(), {"form": "flat"}),
        (_norm_of_sum(), {"consumer": "onnxruntime=1.24"}),
    ],
    ids=["two axes", "read twice", "plain ONNX", "a release that fuses well"],
)
def test_other_sums_stay(graph: Graph, options: dict[str, str]) -> None:
    assert "Sum" not in _operators(graph, **options)


def test_the_result_optimised_again_is_the_same() -> None:
    again = eqsat.optimize(_norm_of_sum(), form="onnxruntime").to_onnx()
    twice = eqsat.optimize(again, form="onnxruntime").to_onnx()
    assert [n.op_type for n in twice.graph.node] == ["Sin", "Sum", "LayerNormalization"]


@pytest.mark.parametrize("bias", [(3, 4), (3, 1), (1,), (4,), ()])
def test_each_parameter_of_a_norm_over_several_axes_has_axes_of_its_own(bias: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    scale = b.constant(np.linspace(1, 2, 4, dtype=np.float32))
    shift = b.constant(np.arange(math.prod(bias), dtype=np.float32).reshape(bias))
    graph = b.finish({"y": b.op("LayerNormalization", x, scale, shift, axis=1)})
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    found = Session(to_model(graph)).run(feeds)["y"]
    np.testing.assert_allclose(found, run(graph, feeds)["y"], rtol=1e-5, atol=1e-5)


def test_a_norm_without_a_shift_is_not_written_with_an_absent_one() -> None:
    """Which ONNX Runtime's own fusion reads, and ends the process."""
    b = GraphBuilder()
    x, y = (b.input(name, "float32", ("n", 6, 32)) for name in "xy")
    scale, bias = (b.constant(np.linspace(n, 1, 32, dtype=np.float32)) for n in (2, -1))
    norm = b.op("SkipLayerNormalization", x, y, scale, None, bias, domain="com.microsoft", epsilon=1e-5)
    found = eqsat.optimize(b.finish([norm]), form="onnxruntime", verify=False)
    [written] = [n for n in found.to_onnx().graph.node if n.op_type == "LayerNormalization"]
    assert len(written.input) == 2
    assert all(written.input)
