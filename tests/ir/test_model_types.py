"""Inferred types of the shipped models against ONNX's own shape inference."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from onnx import shape_inference

from benchmarks.inflate import MODELS
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.schema_operator import from_type_proto
from eqsat.ir.types import TensorType, compatible


def _with_empty_weights(skeleton: Path, folder: Path) -> tuple[Path, onnx.ModelProto]:
    """A copy of the model whose weight file has the right length and takes no space, and the model without weights."""
    model = onnx.load(str(skeleton), load_external_data=False)
    lengths: dict[str, int] = {}
    for tensor in model.graph.initializer:
        place = {e.key: e.value for e in tensor.external_data}
        if place:
            end = int(place.get("offset", 0)) + int(place["length"])
            lengths[place["location"]] = max(end, lengths.get(place["location"], 0))
    for name, length in lengths.items():
        with (folder / name).open("wb") as file:
            file.truncate(length)
    return Path(shutil.copyfile(skeleton, folder / skeleton.name)), model


@pytest.mark.parametrize("skeleton", sorted(MODELS.glob("*.onnx")), ids=lambda p: p.stem)
def test_types_agree_with_onnx_and_are_complete(skeleton: Path, tmp_path: Path) -> None:
    path, model = _with_empty_weights(skeleton, tmp_path)
    del model.graph.value_info[:]
    graph = load_onnx(path)
    theirs = {
        v.name: from_type_proto(v.type) for v in shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    }
    compared = 0
    for name, found in graph.types.items():
        assert isinstance(found, TensorType)
        assert found.is_static, f"{name}: {found}"  # every input of these models has a known shape
        if name in theirs:
            assert compatible(found, theirs[name]), f"{name}: {found}, ONNX infers {theirs[name]}"
            compared += 1
    assert compared > 0.8 * len(graph.nodes)
