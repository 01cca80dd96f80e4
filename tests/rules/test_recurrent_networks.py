"""Recurrent networks as exporters write them lose the zeros that they start from, and transposes around joined directions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

GATES = {"LSTM": 4, "GRU": 3}
HIDDEN = 5


def two_layers(op: str, initial: float = 0.0) -> Graph:
    """Two layers of both directions, batch first, with initial states of as many rows as the batch."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", "time", 3))
    extents = b.op("Shape", x, start=0, end=1)
    shape = b.op("Concat", b.constant([4], "int64"), extents, b.constant([HIDDEN], "int64"), axis=0)
    zeros = b.op("Expand", b.constant(np.float32(initial)), shape)
    states = b.op("Split", zeros, b.constant([2, 2], "int64"), axis=0, outputs=2)
    value = b.op("Transpose", x, perm=(1, 0, 2))
    for inner, state in zip((3, 2 * HIDDEN), states, strict=True):
        rows = GATES[op] * HIDDEN
        weights = [rng.normal(size=(2, rows, n)).astype(np.float32) for n in (inner, HIDDEN)]
        started = [state] * (2 if op == "LSTM" else 1)
        options = {"direction": "bidirectional", "hidden_size": HIDDEN, "outputs": 2}
        value, _ = b.op(op, value, *map(b.constant, weights), None, None, *started, **options)
        joined = b.constant([0, 0, -1], "int64")
        value = b.op("Reshape", b.op("Transpose", value, perm=(0, 2, 1, 3)), joined)
    return b.finish({"y": b.op("Relu", b.op("Transpose", value, perm=(1, 0, 2)))})


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_states_of_zeros_and_the_transpose_behind_the_last_layer_are_left_out(op: str) -> None:
    result = eqsat.optimize(two_layers(op), numerics="exact")
    assert Counter(n.op for n in result.program.graph.nodes) == {op: 2, "Transpose": 3, "Reshape": 2, "Relu": 1}
    assert result.report.verification["verdict"] == "equal"


def test_other_initial_states_stay() -> None:
    result = eqsat.optimize(two_layers("GRU", initial=0.5))
    assert [len(n.inputs) for n in result.program.graph.nodes if n.op == "GRU"] == [6, 6]
