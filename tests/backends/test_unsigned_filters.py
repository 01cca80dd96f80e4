"""Convolutions of integers, which ONNX Runtime computes faster by unsigned filters."""

from __future__ import annotations

import numpy as np
import pytest

from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import DType

RANDOM = np.random.default_rng(1)


def _convolved(filters: np.ndarray | None, zeros: tuple[int | None, ...], *, group: int = 1) -> Graph:
    """``zeros``: zero points of the image and of the filters; none where there is none."""
    b = GraphBuilder()
    x = b.input("x", "uint8", (1, 4, 5, 5))
    w = b.input("w", "int8", (6, 4, 3, 3)) if filters is None else b.constant(filters)
    dtypes = ("uint8", "int8" if filters is None else str(filters.dtype))
    points = [None if z is None else b.constant(np.asarray(z, d)) for z, d in zip(zeros, dtypes, strict=False)]
    return b.finish({"y": b.op("ConvInteger", x, w, *points, pads=[1, 1, 1, 1], group=group)})


@pytest.mark.parametrize("zeros", [(), (7,), (7, -3), (None, 5)])
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_constant_filters_are_unsigned_and_sums_the_same(zeros: tuple[int | None, ...], group: int, form: str) -> None:
    filters = RANDOM.integers(-128, 128, (6, 4 // group, 3, 3)).astype(np.int8)
    graph = _convolved(filters, zeros, group=group)
    model = to_model(graph, form=form)
    dtypes = {t.name: t.data_type for t in model.graph.initializer}
    (node,) = model.graph.node
    assert {dtypes[node.input[i]] for i in (1, 3)} == {int(DType.UINT8)}
    x = RANDOM.integers(0, 256, (1, 4, 5, 5)).astype(np.uint8)
    np.testing.assert_array_equal(Session(model).run({"x": x})["y"], run(graph, {"x": x})["y"])


@pytest.mark.parametrize("filters", [None, RANDOM.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8)])
def test_other_filters_stay(filters: np.ndarray | None) -> None:
    (node,) = to_model(_convolved(filters, ())).graph.node
    assert len(node.input) == 2
