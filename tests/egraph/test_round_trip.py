"""Without rules the e-graph gives back the program it was given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import same_graph
from small_graphs import feeds, graph

from eqsat.cost.model import find_cost_model
from eqsat.cost.target import load_target
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.egraph.snapshot import take_snapshot
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.lower.lowering import lower
from eqsat.lower.selection import select


def round_trip(original: Graph) -> Graph:
    encoding = encode(original)
    saturate(encoding.egraph, [])
    snapshot = take_snapshot(encoding.egraph)
    selection = select(encoding, snapshot, find_cost_model("kernels"), load_target("launch-count"))
    return lower(encoding, snapshot, selection, {}).graph


def _residual(b: Any, x: str, w: str) -> Any:
    h = b.op("Relu", b.op("MatMul", x, w))
    return b.op("Add", h, b.op("Neg", h)), h


def _split(b: Any, x: str) -> Any:
    left, right = b.op("Split", x, b.constant([1, 3], "int64"), outputs=2, axis=0)
    return b.op("Concat", right, left, axis=0)


def _optional(b: Any, x: str) -> Any:
    return b.op("Clip", x, None, b.constant(1.0, "float32"))


def _attributes(b: Any, x: str) -> Any:
    return b.op("Transpose", b.op("LeakyRelu", x, alpha=0.1), perm=(1, 0))


PROGRAMS = {
    "shared value": graph(_residual, x=(2, 3), w=(3, 4)),
    "several outputs": graph(_split, x=(4, 2)),
    "absent input": graph(_optional, x=(3,)),
    "attributes": graph(_attributes, x=(2, 3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_comes_back(name: str) -> None:
    original = PROGRAMS[name]
    back = round_trip(original)
    assert str(back) == str(original)
    assert same_graph(back, original)


def test_input_that_is_an_output_is_copied() -> None:
    original = graph(lambda b, x: (x, b.op("Relu", x)), x=(3,))
    arrays = feeds(original)
    expected, found = run(original, arrays), run(round_trip(original), arrays)
    assert all(np.array_equal(found[name], array) for name, array in expected.items())


def test_equal_nodes_become_one() -> None:
    twice = graph(lambda b, x: b.op("Add", b.op("Relu", x), b.op("Relu", x)), x=(3,))
    assert [n.op for n in round_trip(twice).nodes] == ["Relu", "Add"]


@pytest.mark.parametrize("read", [[0], [1], [0, 1], [2]])
def test_outputs_that_a_kernel_does_not_do_without_stay(read: list[int]) -> None:
    """ONNX Runtime has batch normalisation in training with all of its outputs only."""
    b = GraphBuilder()
    x, *vectors = b.input("x", "float32", (2, 3, 4)), *[b.input(name, "float32", (3,)) for name in "sbmv"]
    made = b.op("BatchNormalization", x, *vectors, outputs=3, training_mode=1)
    (node,) = round_trip(b.finish({f"y{i}": made[i] for i in read})).nodes
    assert all(node.outputs)
    assert len(node.outputs) == 3


@pytest.mark.parametrize(("read", "asked"), [([0], 1), ([1], 3), ([0, 1], 3), ([2], 3)])
def test_keys_and_values_of_attention_are_asked_for_together(read: list[int], asked: int) -> None:
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (1, 2, 3, 4)) for name in "qkv")
    stored = [b.input(name, "float32", (1, 2, 5, 4)) for name in ("past_k", "past_v")]
    made = b.op("Attention", q, k, v, None, *stored, outputs=3)
    (node,) = round_trip(b.finish({f"y{i}": made[i] for i in read})).nodes
    assert len(list(filter(None, node.outputs))) == asked


def test_symbolic_extents_survive() -> None:
    original = graph(lambda b, x: b.op("Relu", x), x=("n", 4))
    assert str(round_trip(original).type_of("y0")) == "float32[n, 4]"
