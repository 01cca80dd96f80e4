"""Activations quantised row by row as they come, as torchao and LLM.int8() do: the largest magnitude of a row is its scale."""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import DType

ROWS, INNER, COLUMNS = 6, 128, 64
RNG = np.random.default_rng(0)
QUANTUM = 2 / 127
"""What an integer that is rounded the other way moves a result by, and more."""


def scale(b: GraphBuilder, x: str, form: str) -> str:
    """127.5 times less than the largest magnitude of each row."""
    axes, zero = b.constant(np.array([-1])), b.constant(np.float32(0))
    if form == "at once":
        largest = b.op("ReduceMax", b.op("Abs", x), axes)
    else:
        least, greatest = b.op("ReduceMin", x, axes), b.op("ReduceMax", x, axes)
        if form == "with zero":
            least, greatest = b.op("Min", least, zero), b.op("Max", greatest, zero)
        if form == "absolute":
            largest = b.op("Max", b.op("Abs", least), b.op("Abs", greatest))
        else:
            largest = b.op("Max", b.op("Neg", least), greatest)
    return b.op("Clip", b.op("Div", largest, b.constant(np.float32(127.5))), b.constant(np.float32(1e-7)))


def layer(form: str = "with zero", *, unsigned: bool = False, lead: tuple[int | str, ...] = (ROWS,)) -> Graph:
    """A linear layer of weights with a scale for each column. ``unsigned``: integers are made unsigned before the product, and
    what that adds to the sums is taken off. Rows along several axes are made one for the product, and several again."""
    b = GraphBuilder()
    x = b.input("x", "float32", (*lead, INNER))
    weights = RNG.integers(-127, 128, (INNER, COLUMNS)).astype(np.int8)
    s = scale(b, x, form)
    points = b.op("Expand", b.constant(np.float32(0)), b.op("Shape", s))
    for dtype in (DType.INT8, DType.FLOAT):
        points = b.op("Cast", points, to=int(dtype))
    whole = b.op("Add", b.op("Round", b.op("Mul", x, b.op("Reciprocal", s))), points)
    integers = b.op(
        "Cast", b.op("Clip", whole, b.constant(np.float32(-128)), b.constant(np.float32(127))), to=int(DType.INT8)
    )
    if len(lead) > 1:
        integers = b.op("Reshape", integers, b.constant(np.array([-1, INNER])))
        s = b.op("Reshape", s, b.constant(np.array([-1, 1])))
    if unsigned:
        wide = b.op("Add", b.op("Cast", integers, to=int(DType.INT32)), b.constant(np.int32(128)))
        sums = b.op("MatMulInteger", b.op("Cast", wide, to=int(DType.UINT8)), b.constant(weights))
        added = b.op("ReduceSum", b.op("Cast", b.constant(weights), to=int(DType.INT32)), b.constant(np.array([0])))
        sums = b.op("Sub", sums, b.op("Mul", added, b.constant(np.int32(128))))
    else:
        sums = b.op("MatMulInteger", integers, b.constant(weights))
    columns = b.constant(RNG.uniform(0.001, 0.01, COLUMNS).astype(np.float32))
    product = b.op("Mul", b.op("Mul", b.op("Cast", sums, to=int(DType.FLOAT)), s), columns)
    if len(lead) > 1:
        several = b.op("Slice", b.op("Shape", x), b.constant(np.array([0])), b.constant(np.array([-1])))
        extents = b.op("Concat", several, b.constant(np.array([COLUMNS])), axis=0)
        product = b.op("Reshape", product, extents)
    return b.finish({"y": b.op("Add", product, b.constant(RNG.normal(size=COLUMNS).astype(np.float32)))})


def feeds() -> dict[str, np.ndarray]:
    x = RNG.normal(size=(ROWS, INNER)).astype(np.float32)
    x[1] = 0
    x[2] = -np.abs(x[2])
    return {"x": x}


@pytest.mark.parametrize("form", ["with zero", "opposite", "absolute", "at once"])
def test_scale_of_a_row_is_its_largest_magnitude(form: str) -> None:
    graph = layer(form)
    found = counts(optimized(graph, tolerance=QUANTUM))
    assert found["Abs"] == found["ReduceMax"] == 1
    assert found.keys().isdisjoint({"ReduceMin", "Min", "Max", "Neg"})


@pytest.mark.parametrize("unsigned", [False, True])
def test_rows_are_quantised_by_their_scales_and_multiplied_unsigned(unsigned: bool) -> None:
    graph = layer(unsigned=unsigned)
    result = optimized(graph, tolerance=QUANTUM, form="onnxruntime", cost="kernels")
    found = counts(result)
    assert found["QuantizeLinear"] == 1
    assert found.keys().isdisjoint({"Round", "Cast", "Sub"})
    (product,) = (n for n in result.program.graph.nodes if n.op.startswith("MatMulInteger"))
    assert str(result.program.graph.type_of(product.inputs[0] or "")).startswith("uint8")
    given = feeds()
    expected, program = run(graph, given)["y"], to_model(result.program.graph)
    for level in ("disable", "all"):
        found_there = Session(program.SerializeToString(), level).run(given)["y"]
        np.testing.assert_allclose(found_there, expected, atol=QUANTUM * np.abs(expected).max())


@pytest.mark.parametrize("lead", [("n",), (2, 3), ("n", "m")])
def test_rows_of_any_number_are_multiplied_where_they_are(lead: tuple[int | str, ...]) -> None:
    graph = layer("opposite", lead=lead)
    result = optimized(graph, tolerance=QUANTUM, form="onnxruntime")
    found = counts(result)
    assert found["QuantizeLinear"] == found["ReduceMax"] == 1
    assert found.keys().isdisjoint({"Round", "ReduceMin", "Expand", "Shape"})
    assert found.get("Reshape", 0) <= 1  # the scales of rows, as QuantizeLinear takes them
