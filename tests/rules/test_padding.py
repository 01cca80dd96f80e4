"""Borders that move into convolutions and pools, and those that must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

rng = np.random.default_rng(17)


def array(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def graph_of(build: Callable[[GraphBuilder], str]) -> Any:
    b = GraphBuilder()
    return b.finish({"y": build(b)})


def padded(b: GraphBuilder, pads: list[int], value: float | None = None, **attributes: Any) -> str:
    x = b.input("x", "float32", (1, 4, 6, 6))
    fill = [] if value is None else [b.constant(np.float32(value))]
    return b.op("Pad", x, b.constant(pads, "int64"), *fill, **attributes)


BORDER = [0, 0, 1, 0, 0, 0, 2, 1]


@pytest.mark.parametrize("own", [{}, {"pads": (1, 0, 0, 1)}, {"auto_pad": "VALID"}, {"strides": (2, 2)}])
@pytest.mark.parametrize("value", [None, 0.0, -0.0])
def test_border_of_zeros_joins_convolution(value: float | None, own: dict[str, Any]) -> None:
    graph = graph_of(lambda b: b.op("Conv", padded(b, BORDER, value), b.constant(array(3, 4, 3, 3)), **own))
    assert counts(optimized(graph)) == {"Conv": 1}


@pytest.mark.parametrize("batch", [2, "n"])
def test_border_of_rows_joins_convolution_of_them_as_images(batch: int | str) -> None:
    """As Keras convolves rows: padded in front, seen as images of one row."""
    b = GraphBuilder()
    rows = b.op("Pad", b.input("x", "float32", (batch, 4, 8)), b.constant([0, 0, 2, 0, 0, 0], "int64"))
    image = b.op("Conv", b.op("Unsqueeze", rows, b.constant([2], "int64")), b.constant(array(3, 4, 1, 3)))
    assert "Pad" not in counts(optimized(b.finish({"y": image}), cost="kernels"))


@pytest.mark.parametrize("length", [8, "n"])
def test_border_that_is_cut_off_is_left_out(length: int | str) -> None:
    """A causal convolution of PyTorch, with a border on either side: as many places are kept as there are, in front. Of no places
    ONNX Runtime convolves with a border on both sides alone."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 4, length))
    y = b.op("Conv", x, b.constant(array(4, 1, 4)), group=4, pads=(3, 3))
    extent, zero, two = b.op("Shape", x, start=2, end=3), b.constant([0], "int64"), b.constant([2], "int64")
    nodes = optimized(b.finish({"y": b.op("Slice", y, zero, extent, two)})).program.graph.nodes
    assert [(n.op, n.attributes.get("pads")) for n in nodes if n.op in ("Conv", "Slice")] == (
        [("Conv", (3, 0))] if length == 8 else [("Conv", (3, 3)), ("Slice", None)]
    )


@pytest.mark.parametrize(
    ("pads", "value", "mode", "own"),
    [
        (BORDER, 1.0, "constant", {}),
        (BORDER, None, "edge", {}),
        (BORDER, None, "reflect", {}),
        ([0, 0, -1, 0, 0, 0, 1, 0], None, "constant", {}),
        ([0, 1, 1, 0, 0, 0, 1, 0], None, "constant", {}),
        ([1, 0, 1, 0, 0, 0, 1, 0], None, "constant", {}),
        (BORDER, None, "constant", {"auto_pad": "SAME_UPPER"}),
    ],
)
def test_other_borders_stay_before_convolution(
    pads: list[int], value: float | None, mode: str, own: dict[str, Any]
) -> None:
    def build(b: GraphBuilder) -> str:
        return b.op("Conv", padded(b, pads, value, mode=mode), b.constant(array(3, 4 + pads[1], 3, 3)), **own)

    assert counts(optimized(graph_of(build))) == {"Pad": 1, "Conv": 1}


@pytest.mark.parametrize(
    ("value", "own", "folds"),
    [
        (None, {}, True),
        (None, {"pads": (1, 1, 1, 1)}, False),
        (None, {"pads": (1, 1, 0, 0), "count_include_pad": 1}, True),
        (2.0, {}, False),
        (None, {"ceil_mode": 1, "strides": (2, 2)}, False),
    ],
)
def test_border_of_average_pool(value: float | None, own: dict[str, Any], folds: bool) -> None:
    graph = graph_of(lambda b: b.op("AveragePool", padded(b, BORDER, value), kernel_shape=(4, 4), **own))
    assert ("Pad" not in counts(optimized(graph))) == folds


@pytest.mark.parametrize(
    ("pads", "value", "positive", "own", "folds"),
    [
        (BORDER, -np.inf, False, {}, True),
        (BORDER, 0.0, True, {}, True),
        (BORDER, 0.0, False, {}, False),
        (BORDER, -1e30, False, {}, False),
        ([0, 0, 3, 0, 0, 0, 3, 0], -np.inf, False, {}, False),
        (BORDER, -np.inf, False, {"dilations": (2, 2)}, False),
        (BORDER, -np.inf, False, {"ceil_mode": 1, "strides": (2, 2)}, False),
    ],
)
def test_border_of_max_pool(pads: list[int], value: float, positive: bool, own: dict[str, Any], folds: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 6, 6))
    x = b.op("Relu", x) if positive else x
    x = b.op("Pad", x, b.constant(pads, "int64"), b.constant(np.float32(value)))
    graph = b.finish({"y": b.op("MaxPool", x, kernel_shape=(3, 3), **own)})
    assert ("Pad" not in counts(optimized(graph))) == folds


@pytest.mark.parametrize(("value", "folds"), [(5, True), (0, False)])
def test_border_of_integer_convolution_is_the_zero_point(value: int, folds: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", "uint8", (1, 4, 6, 6))
    x = b.op("Pad", x, b.constant(BORDER, "int64"), b.constant(np.uint8(value)))
    w = b.constant(rng.integers(-9, 9, (3, 4, 3, 3)).astype(np.int8))
    graph = b.finish({"y": b.op("ConvInteger", x, w, b.constant(np.uint8(5)))})
    assert ("Pad" not in counts(optimized(graph))) == folds
