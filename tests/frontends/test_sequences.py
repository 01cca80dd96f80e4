"""Sequences of known elements are read as the tensors that are taken out of them."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx_models import assert_same, info, model, node, noise, run

from eqsat.backends.onnx_file import to_model
from eqsat.frontends.onnx.model import load_onnx

X = noise(5, 6)


def _read(nodes: list[onnx.NodeProto], feeds: dict[str, Any], shape: Any = None, **numbers: Any) -> list[str]:
    """The operators as which nodes are read that write `y`, which is what it was."""
    source = model(nodes, feeds, {k: np.array(v) for k, v in numbers.items()}, shapes={"x": shape or X.shape})
    before = run(source, feeds)
    source.graph.output[0].CopyFrom(info("y", before[0], [f"d{i}" for i in range(before[0].ndim)]))
    graph = load_onnx(source)
    assert_same(before, run(to_model(graph), feeds))
    return [n.op for n in graph.nodes]


@pytest.mark.parametrize("index", [0, 1, 2, -1, -3])
@pytest.mark.parametrize(("axis", "sizes"), [(0, 2), (-1, 2), (1, (1, 2, 3)), (0, (3, 0, 2))])
def test_a_piece_is_a_slice(axis: int, sizes: Any, index: int) -> None:
    nodes = [node("SplitToSequence", ["x", "n"], ["s"], axis=axis), node("SequenceAt", ["s", "i"])]
    assert _read(nodes, {"x": X}, n=sizes, i=index) == ["Slice"]


@pytest.mark.parametrize("keep", [0, 1])
def test_a_row_is_a_slice_with_and_without_its_axis(keep: int) -> None:
    nodes = [node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=keep), node("SequenceAt", ["s", "i"])]
    assert _read(nodes, {"x": X}, i=-2) == ["Slice", "Squeeze"][: 2 - keep]


def test_pieces_of_a_symbolic_extent_are_counted_from_the_start() -> None:
    nodes = [node("SplitToSequence", ["x", "n"], ["s"]), node("SequenceAt", ["s", "i"])]
    assert _read(nodes, {"x": X}, ("rows", 6), n=2, i=2) == ["Slice"]
    assert _read(nodes, {"x": X}, ("rows", 6), n=2, i=-1) == ["SplitToSequence", "SequenceAt"]


def test_elements_are_what_a_sequence_was_made_of() -> None:
    made = [node("Relu", ["x"], ["r"]), node("SequenceConstruct", ["x", "r"], ["s"])]
    assert _read([*made, node("SequenceAt", ["s", "i"])], {"x": X}, i=-1) == ["Relu", "Identity"]
    whole = [*made, node("ConcatFromSequence", ["s"], axis=1)]
    assert _read(whole, {"x": X}) == ["Relu", "Concat"]
    stacked = [*made, node("ConcatFromSequence", ["s"], axis=-1, new_axis=1)]
    assert _read(stacked, {"x": X}) == ["Relu", "Unsqueeze", "Unsqueeze", "Concat"]


def test_what_is_not_known_stays_a_sequence() -> None:
    taken = [node("SplitToSequence", ["x", "n"], ["s"], axis=1), node("SequenceAt", ["s", "i"])]
    assert _read(taken, {"x": X, "i": np.array(1)}, n=2) == ["SplitToSequence", "SequenceAt"]
    assert _read(taken, {"x": X, "n": np.array(2)}, i=1) == ["SplitToSequence", "SequenceAt"]
    again = [node("SplitToSequence", ["x", "n"], ["s"], axis=1), node("ConcatFromSequence", ["s"], axis=1)]
    assert _read(again, {"x": X}, n=2) == ["SplitToSequence", "ConcatFromSequence"]
