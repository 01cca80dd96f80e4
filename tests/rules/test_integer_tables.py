"""Functions of integers that stay the same beyond two numbers are tables: buckets of relative positions, above all."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

ROWS, HEADS = 32, 4


def _buckets(*, last: int | None = 15, places: str = "int32", quantised: bool = False) -> Graph:
    """A bias for each head by how far a key is from a query, as T5 computes it: near ones one by one, far ones by logarithm."""
    b = GraphBuilder()

    def number(value: float, dtype: str = "int64") -> str:
        return b.constant(np.asarray(value, dtype))

    x = b.input("x", places, ("queries", "keys"))
    x = b.op("Cast", x, to=7) if places != "int64" else x
    distance = b.op("Abs", x)
    far = b.op("Div", b.op("Cast", distance, to=1), number(8, "float32"))
    if quantised:
        step = number(0.25, "float32"), number(0, "uint8")
        far = b.op("DequantizeLinear", b.op("QuantizeLinear", far, *step), *step)
    far = b.op("Log", far)
    far = b.op("Mul", b.op("Div", far, number(np.log(16), "float32")), number(8, "float32"))
    far = b.op("Add", b.op("Cast", far, to=7), number(8))
    far = b.op("Min", far, number(last)) if last is not None else far
    bucket = b.op("Where", b.op("Less", distance, number(8)), distance, far)
    bucket = b.op("Add", b.op("Mul", b.op("Cast", b.op("Greater", x, number(0)), to=7), number(16)), bucket)
    table = np.random.default_rng(0).normal(size=(ROWS, HEADS)).astype(np.float32)
    return b.finish({"y": b.op("Gather", b.constant(table), bucket, axis=0)})


def _clipped() -> Graph:
    """Far places share a row by a Clip that has no lower bound."""
    b = GraphBuilder()
    distance = b.op("Abs", b.op("Cast", b.input("x", "int32", (2, "keys")), to=7))
    table = np.random.default_rng(0).normal(size=(ROWS, HEADS)).astype(np.float32)
    index = b.op("Clip", b.op("Add", distance, b.constant(np.int64(2))), None, b.constant(np.int64(9)))
    return b.finish({"y": b.op("Gather", b.constant(table), index, axis=0)})


def _optimised(graph: Graph) -> Graph:
    return eqsat.optimize(graph, form="flat", cost="kernels", verify=False).program.graph


@pytest.mark.parametrize(
    "graph", [_buckets(), _buckets(quantised=True), _clipped()], ids=["floats", "quantised", "clipped"]
)
def test_buckets_of_relative_positions_are_one_table(graph: Graph) -> None:
    made = _optimised(graph)
    assert made.operator_counts() == {"Clip": 1, "Gather": 1}
    x = np.concatenate([np.arange(-300, 300), [-(2**31), 2**31 - 1]]).astype(np.int32).reshape(2, -1)
    expected, found = (Session(to_model(g), "disable").run({"x": x})["y"] for g in (graph, made))
    np.testing.assert_array_equal(expected, found)


@pytest.mark.parametrize("graph", [_buckets(last=None), _buckets(places="int64")], ids=["no last one", "any number"])
def test_what_changes_far_away_is_no_table(graph: Graph) -> None:
    """The absolute value of the least integer of 64 bits is negative."""
    assert "Clip" not in _optimised(graph).operator_counts()
