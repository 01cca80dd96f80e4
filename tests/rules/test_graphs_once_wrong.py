"""Small graphs of which rules once made something else, or on which they failed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from graph_checks import assert_close, counts

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.interpret import run
from eqsat.result import Result

INF = np.float32(np.inf)


def same(graph: Any, *feeds: dict[str, np.ndarray]) -> Result:
    """The optimised graph, after it computed the same as the original; a rule that fails ends the test."""
    result = eqsat.optimize(graph, verify=False, form="flat")
    for given in feeds:
        assert_close(run(graph, given), run(result.program.graph, given), 0)
    return result


def ints(b: GraphBuilder, *values: Any) -> list[str]:
    return [b.constant(v, "int64") for v in values]


def counted(b: GraphBuilder, extent: str = "n") -> str:
    """Places along an axis of an input ``y``, one below the other."""
    zero, one, axis = ints(b, 0, 1, [1])
    length = b.op("Squeeze", b.op("Shape", b.input("y", "float32", (extent,))))
    return b.op("Unsqueeze", b.op("Range", zero, length, one), axis)


def of_length(n: int) -> np.ndarray:
    return np.zeros(n, np.float32)


# --- numbers at the ends of their types


@pytest.mark.parametrize("factor", [11400714819323198, 2**60])
def test_a_product_that_wraps_around_keeps_its_maximum_with_zero(factor: int) -> None:
    b = GraphBuilder()
    wide = b.op("Cast", b.input("x", "uint32", (3,)), to=7)
    result = same(
        b.finish({"y": b.op("Max", b.op("Mul", wide, *ints(b, factor)), *ints(b, 0))}),
        {"x": np.array([3, 8, 4000000000], np.uint32)},
    )
    assert counts(result) == {"Cast": 1, "Mul": 1, "Max": 1}


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(1 - 2**63, None, 1), (None, 2**63 - 2, 1), (-(2**63), 2**63 - 1, 0)]
)
def test_clip_near_the_ends_of_64_bits(low: int | None, high: int | None, kept: int) -> None:
    b = GraphBuilder()
    bounds = [None if n is None else b.constant(np.int64(n)) for n in (low, high)]
    y = b.op("Clip", b.input("x", "int64", (3,)), *bounds)
    result = same(b.finish({"y": y}), {"x": np.array([-(2**63), 2**63 - 1, 5])})
    assert counts(result).get("Clip", 0) == kept


@pytest.mark.parametrize("limit", [20, 35])
def test_clip_by_a_computed_bound_below_another(limit: int) -> None:
    b = GraphBuilder()
    number = {n: b.constant(np.uint8(n)) for n in (20, 30, 40, 100)}
    x = b.op("Clip", b.input("x", "uint8", (4,)), number[30], number[40])
    bound = b.op("Clip", b.input("h", "uint8", ()), number[20], number[100])
    y = b.op("Max", b.op("Clip", x, None, bound), number[30])
    same(b.finish({"y": y}), {"x": np.array([0, 33, 37, 255], np.uint8), "h": np.array(limit, np.uint8)})


def test_a_bias_of_zeros_times_infinity_stays() -> None:
    b = GraphBuilder()
    bias = b.op("Mul", b.input("b", "float32", (2,)), b.constant(np.float32(0)))
    w = b.constant(np.ones((2, 3, 2), np.float32))
    x = np.ones((1, 3, 5), np.float32)
    same(
        b.finish({"y": b.op("Conv", b.input("x", "float32", (1, 3, 5)), w, bias)}),
        {"x": x, "b": np.array([np.inf, 1], np.float32)},
    )


@pytest.mark.parametrize(
    "steps", [(("Max", 1), ("Min", INF)), (("Min", 6), ("Max", -INF)), (("Relu", None), ("Clip", 1, INF))]
)
def test_no_clip_becomes_open_of_which_infinity_comes_out_finite(steps: tuple[Any, ...]) -> None:
    b = GraphBuilder()
    y = b.input("x", "float32", (3,))
    for op, *numbers in steps:
        y = b.op(op, y, *(b.constant(np.float32(n)) for n in numbers if n is not None))
    graph = eqsat.optimize(b.finish({"y": y}), verify=False, form="onnxruntime").program.graph
    assert all(None not in node.inputs and len(node.inputs) == 3 for node in graph.nodes if node.op == "Clip")


# --- symbols that may be 1


def test_places_that_a_symbol_may_repeat_are_no_strides() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (5, 10))
    grid = b.constant(10 * np.arange(5)[:, None] + np.arange(6))
    at = b.op("Add", grid, counted(b))
    y = b.op("Gather", b.op("Reshape", x, *ints(b, [-1])), at, axis=0)
    elements = np.arange(50, dtype=np.float32).reshape(5, 10)
    same(b.finish({"z": y}), *({"x": elements, "y": of_length(n)} for n in (1, 5)))


def test_places_that_a_symbol_may_repeat_make_no_triangle() -> None:
    b = GraphBuilder()
    grid = b.constant(np.arange(8) - np.arange(5)[:, None])
    y = b.op("And", b.op("LessOrEqual", grid, counted(b)), b.input("m", "bool", (5, 8)))
    same(b.finish({"z": y}), *({"y": of_length(n), "m": np.ones((5, 8), bool)} for n in (1, 5)))


def test_places_that_a_symbol_may_repeat_are_not_counted() -> None:
    b = GraphBuilder()
    factors = b.constant(np.arange(1, 5, dtype=np.float32)[None])
    angles = b.op("Mul", b.op("Cast", counted(b), to=1), factors)
    truth = b.op("Cast", b.input("b", "int64", (5,)), to=9)
    graph = b.finish({"z": b.op("Expand", angles, *ints(b, [5, 4])), "q": b.op("Not", truth)})
    same(graph, *({"y": of_length(n), "b": np.ones(5, np.int64)} for n in (1, 5)))


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_truth_values_computed_of_extents_count_as_numbers(op: str) -> None:
    b = GraphBuilder()
    shape = b.op("Shape", b.input("x", "float32", ("n", "m")))
    number = b.op("Cast", b.op("Not", b.op("Equal", shape, *ints(b, [-1, -1]))), to=7)
    target = b.op(op, number, b.constant(np.array([3, 4])) if op == "Mul" else number)
    graph = b.finish({"z": b.op("Expand", b.input("y", "float32", (1, 1)), target)})
    same(graph, {"x": np.zeros((2, 5), np.float32), "y": np.ones((1, 1), np.float32)})


# --- operands that enlarge the result


@pytest.mark.parametrize(
    "steps", [(("Mul", -np.ones(5)), ("Add", None)), (("Mul", 2 * np.ones(5)), ("Add", 1), ("Mul", 0.5))]
)
def test_a_constant_that_enlarges_the_result_stays(steps: tuple[tuple[str, Any], ...]) -> None:
    b = GraphBuilder()
    x = y = b.input("x", "float32", (1,))
    for op, number in steps:
        y = b.op(op, y, x if number is None else b.constant(np.asarray(number, np.float32)))
    result = same(b.finish({"y": y}), {"x": np.ones(1, np.float32)})
    assert sum(counts(result).values()) == len(steps)


# --- rules that failed: no warning is left


@pytest.mark.parametrize(("source", "number"), [("int8", 128), ("uint8", 0)])
def test_tables_are_looked_up_by_bytes(source: str, number: int) -> None:
    b = GraphBuilder()
    place = b.op("Add", b.op("Cast", b.input("q", source, (256,)), to=6), b.constant(np.int32(number)))
    table = b.constant(np.tanh(np.arange(256, dtype=np.float32) / 64 - 2))
    graph = b.finish({"y": b.op("Gather", table, place, axis=0)})
    result = same(graph, {"q": np.arange(256).astype(source)})
    assert counts(result) == {"Cast": 1, "Gather": 1}


def test_a_bound_may_be_looked_up() -> None:
    b = GraphBuilder()
    bound = b.op("Gather", b.constant(np.linspace(-1, 1, 10, dtype=np.float32)), b.input("i", "int64", ()), axis=0)
    y = b.op("Clip", b.constant(np.float32(0)), bound)
    same(b.finish({"y": y}), {"i": np.array(7)})


@pytest.mark.parametrize(("start", "end", "step"), [(-10, -100, -1), (0, 2, 1), (5, 0, -1)])
def test_extents_are_cut_out_as_slice_does(start: int, end: int, step: int) -> None:
    b = GraphBuilder()
    shape = b.op("Shape", b.input("x", "float32", (3, 4, "n")))
    y = b.op("Slice", shape, *ints(b, [start], [end], [0], [step]))
    same(b.finish({"y": y}), {"x": np.zeros((3, 4, 2), np.float32)})


def test_a_part_of_a_large_constant_may_be_empty() -> None:
    b = GraphBuilder()
    table = b.constant(np.random.default_rng(0).standard_normal((200, 32)).astype(np.float32))
    first, second = b.op("Split", table, *ints(b, [200, 0]), outputs=2, axis=0)
    joined = b.op("Concat", second, b.input("y", "float32", (2, 32)), axis=0)
    graph = b.finish({"z": b.op("Neg", first), "w": joined})
    same(graph, {"y": np.ones((2, 32), np.float32)})


def test_no_windows_are_looked_up() -> None:
    b = GraphBuilder()
    y = b.op("Gather", b.input("x", "float32", (3, 20)), b.constant(np.zeros((0, 8), np.int64)), axis=1)
    same(b.finish({"y": y}), {"x": np.ones((3, 20), np.float32)})


# --- what runtimes compute otherwise


@pytest.mark.parametrize(("step", "known"), [(1.0, True), (0.5, True), (0.1, False)])
def test_a_range_whose_sums_round_is_left_to_the_runtime(step: float, known: bool) -> None:
    b = GraphBuilder()
    places = b.op("Range", *(b.constant(np.float32(n)) for n in (0, 400 * step, step)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that rules are left out
        result = eqsat.optimize(b.finish({"y": b.op("Mul", b.input("x", "float32", (1,)), places)}))
    assert ("Range" not in result.report.operators_after) is known
