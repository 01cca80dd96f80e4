"""Extents that are symbols: files do not hand on their names, by which ONNX Runtime would plan memory."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.types import Dim


def _reshaped(shape: tuple[Dim, ...], target: list[int]) -> onnx.ModelProto:
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    return to_model(b.finish({"y": b.op("Neg", b.op("Reshape", b.op("Sin", x), b.constant(target)))}))


@pytest.mark.parametrize(
    ("shape", "target", "written"),
    [
        (("n", 4, 6), [0, 24], [-1, 24]),
        ((4, "n", 6), [2, 0, 12], [2, -1, 12]),
        (("n", "m", 6), [0, 0, 2, 3], [0, 0, 2, 3]),
        (("n", 4, 6), [-1, 0, 3], [-1, 0, 3]),
        ((4, 6), [0, 2, 3], [0, 2, 3]),
    ],
    ids=["first", "second", "two symbols", "one that is taken already", "a number"],
)
def test_one_symbol_that_a_view_copies_is_left_open(
    shape: tuple[Dim, ...], target: list[int], written: list[int]
) -> None:
    model = _reshaped(shape, target)
    name = next(n.input[1] for n in model.graph.node if n.op_type == "Reshape")
    constants = {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer}
    assert constants[name] == written


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_an_open_extent_is_what_it_was(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 4, 6)).astype(np.float32)
    found = Session(_reshaped(("n", 4, 6), [0, 24])).run({"x": x})["y"]
    np.testing.assert_allclose(found, -np.sin(x).reshape(rows, 24), rtol=1e-6)


def test_only_inputs_and_outputs_name_symbols() -> None:
    def extents(values: Iterable[onnx.ValueInfoProto]) -> list[list[str | int]]:
        return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]

    graph = _reshaped(("n", 4, 6), [0, 24]).graph
    assert (extents(graph.input), extents(graph.output)) == ([["n", 4, 6]], [["n", 24]])
    assert extents(graph.value_info) == [[0, 4, 6], [0, 24]]
