"""Reductions that need none: of single elements, and of values that were put side by side for them."""

from __future__ import annotations

import pytest

import eqsat
from tests.graph_checks import counts, optimized


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_reduction_of_single_elements_is_a_view(op: str, keepdims: int) -> None:
    b = eqsat.GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", ("rows", 1, 4)))
    y = b.op("Tanh", b.op(op, x, b.constant([1], "int64"), keepdims=keepdims))
    assert not {op, "Reshape"} & counts(optimized(b.finish({"y": y}), form="flat")).keys()


def test_a_reduction_of_an_unknown_number_of_elements_stays() -> None:
    b = eqsat.GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", ("rows", "some", 4)))
    y = b.op("ReduceMax", x, b.constant([1], "int64"))
    assert counts(optimized(b.finish({"y": y}), form="flat"))["ReduceMax"] == 1


@pytest.mark.parametrize(("op", "step"), [("ReduceSum", "Sum"), ("ReduceMean", "Mean"), ("ReduceMax", "Max")])
def test_values_that_are_stacked_and_reduced_are_combined(op: str, step: str) -> None:
    """As ``torch.stack((x, y, z)).sum(0)`` is exported."""
    b = eqsat.GraphBuilder()
    first = b.constant([0], "int64")
    values = [b.op("Unsqueeze", b.input(name, "float32", ("rows", 4)), first) for name in "abc"]
    y = b.op(op, b.op("Concat", *values, axis=0), first, keepdims=0)
    assert counts(optimized(b.finish({"y": y}), form="flat")) == {step: 1}


def test_doubles_are_not_combined_for_want_of_a_kernel() -> None:
    """ONNX Runtime has Mean of float32 alone."""
    b = eqsat.GraphBuilder()
    first = b.constant([0], "int64")
    values = [b.op("Unsqueeze", b.input(name, "float64", ("rows", 4)), first) for name in "abc"]
    result = optimized(b.finish({"y": b.op("ReduceMean", b.op("Concat", *values, axis=0), first, keepdims=0)}))
    assert "Mean" not in counts(result)
    assert not result.report.left_out
