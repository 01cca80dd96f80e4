"""Quantised values: which pairs cancel, what moves onto the integers, and what must not."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  # names float8_e4m3fn
import numpy as np
import pytest
from graph_checks import counts, optimized

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

Q, DQ = "QuantizeLinear", "DequantizeLinear"


def parameters(b: GraphBuilder, scale: Any = 0.25, zero: Any = None, dtype: str = "float32") -> list[str]:
    found = [b.constant(np.asarray(scale, dtype))]
    return found if zero is None else [*found, b.constant(zero)]


def integers(b: GraphBuilder, dtype: str = "int8", shape: tuple[int, ...] = (2, 3, 4, 4)) -> str:
    return b.input("q", dtype, shape)


@pytest.mark.parametrize(
    ("zero", "carrier"),
    [
        (np.int8(3), "float32"),
        (np.uint8(128), "float32"),
        (np.int16(-9), "float32"),
        (np.uint16(77), "float32"),
        (np.int8(0), "float16"),
    ],
)
def test_quantising_what_was_dequantised_is_the_integers(zero: Any, carrier: str) -> None:
    b = GraphBuilder()
    first, second = parameters(b, 0.37, zero, carrier), parameters(b, [0.37], zero, carrier)
    q = integers(b, zero.dtype.name)
    assert counts(optimized(b.finish({"y": b.op(Q, b.op(DQ, q, *first), *second)}))) == {}


def test_absent_zero_point_is_zero() -> None:
    b = GraphBuilder()
    x = b.op(DQ, integers(b, "uint8"), *parameters(b))
    assert counts(optimized(b.finish({"y": b.op(Q, x, *parameters(b, zero=np.uint8(0)))}))) == {}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.25, np.int8(3)), (0.5, np.int8(3))),
        ((0.25, np.int8(3)), (0.25, np.int8(4))),
        ((0.25, np.int8(3)), (0.25, np.uint8(3))),
        ((0.25, np.int16(3), "float16"), (0.25, np.int16(3), "float16")),
        ((1e37, np.int8(3)), (1e37, np.int8(3))),
        ((1e-40, np.int8(3)), (1e-40, np.int8(3))),
    ],
    ids=["scale", "zero point", "type", "carrier", "overflow", "subnormal"],
)
def test_other_pairs_stay(first: Any, second: Any) -> None:
    b = GraphBuilder()
    x = b.op(DQ, integers(b, first[1].dtype.name), *parameters(b, *first))
    graph = b.finish({"y": b.op(Q, x, *parameters(b, *second))})
    assert counts(eqsat.optimize(graph, verify=False, form="flat")) == {Q: 1, DQ: 1}


@pytest.mark.parametrize(("factor", "cancels"), [(1.001, True), (0.999, True), (1.003, False), (0.997, False)])
def test_scales_cancel_where_they_are_so_close_that_no_integer_changes(factor: float, cancels: bool) -> None:
    b = GraphBuilder()
    x = b.op(DQ, integers(b), *parameters(b, 0.25, np.int8(-128)))
    y = b.op(Q, x, *parameters(b, 0.25 * factor, np.int8(-128)))
    assert (counts(optimized(b.finish({"y": y}))) == {}) is cancels


@pytest.mark.parametrize(
    ("addend", "factor", "vanishes"),
    [(1e-12, 1, True), (0.09, 1, True), (0.05, 1.0005, True), (0.13, 1, False), (0.09, 1.001, False), (-0.2, 1, False)],
)
def test_addend_below_half_a_quantum_vanishes_between_dequantise_and_quantise(
    addend: float, factor: float, vanishes: bool
) -> None:
    b = GraphBuilder()
    x = b.op(DQ, integers(b), *parameters(b, 0.25, np.int8(-128)))
    x = b.op("Add", x, b.constant(np.float32(addend)))
    y = b.op(Q, x, *parameters(b, 0.25 * factor, np.int8(-128)))
    assert (counts(optimized(b.finish({"y": y}))) == {}) is vanishes


def test_scales_along_another_axis_stay() -> None:
    b = GraphBuilder()
    q = integers(b, shape=(3, 3))
    scale = parameters(b, [0.25, 0.5, 1.0], np.zeros(3, np.int8))
    graph = b.finish({"y": b.op(Q, b.op(DQ, q, *scale, axis=0), *scale, axis=1)})
    assert counts(optimized(graph)) == {Q: 1, DQ: 1}


def test_computed_scales_stay() -> None:
    b = GraphBuilder()
    q, s = integers(b), b.input("s", "float32", ())
    zero = b.constant(np.int8(0))
    result = eqsat.optimize(b.finish({"y": b.op(Q, b.op(DQ, q, s, zero), s, zero)}), verify=False, form="flat")
    assert counts(result) == {Q: 1, DQ: 1}


def test_dequantising_what_was_quantised_stays() -> None:
    b = GraphBuilder()
    x, p = b.input("x", "float32", (64,)), parameters(b, 0.25, np.int8(3))
    assert counts(optimized(b.finish({"y": b.op(DQ, b.op(Q, x, *p), *p)}))) == {Q: 1, DQ: 1}


MOVEMENT = {
    "Reshape": lambda b, x: b.op("Reshape", x, b.constant([3, -1], "int64")),
    "Flatten": lambda b, x: b.op("Flatten", x),
    "Unsqueeze": lambda b, x: b.op("Unsqueeze", x, b.constant([1], "int64")),
    "Transpose": lambda b, x: b.op("Transpose", x, perm=(0, 2, 3, 1)),
    "Slice": lambda b, x: b.op("Slice", x, *(b.constant([n], "int64") for n in (1, 3, 2, 1))),
    "Gather": lambda b, x: b.op("Gather", x, b.constant([2, 0], "int64"), axis=1),
    "Expand": lambda b, x: b.op("Expand", x, b.constant([2, 2, 3, 4, 4], "int64")),
    "Tile": lambda b, x: b.op("Tile", x, b.constant([1, 2, 1, 1], "int64")),
    "Split": lambda b, x: b.op("Split", x, outputs=2, axis=3, num_outputs=2)[0],
    "GatherElements": lambda b, x: b.op("GatherElements", x, b.constant(np.zeros((2, 3, 4, 1), np.int64)), axis=3),
    "GatherND": lambda b, x: b.op("GatherND", x, b.constant([[1, 2], [0, 0]], "int64")),
    "SpaceToDepth": lambda b, x: b.op("SpaceToDepth", x, blocksize=2),
    "Resize": lambda b, x: b.op("Resize", x, None, b.constant([1, 1, 2, 2], "float32"), mode="nearest"),
    "MaxPool": lambda b, x: b.op("MaxPool", x, kernel_shape=(2, 2)),
    "Relu": lambda b, x: b.op("Relu", x),
}


@pytest.mark.parametrize("op", sorted(MOVEMENT))
@pytest.mark.parametrize("zero", [np.int8(-5), np.uint8(7)])
def test_movement_between_dequantise_and_quantise_happens_on_integers(zero: Any, op: str) -> None:
    b = GraphBuilder()
    p = parameters(b, 0.3, zero)
    graph = b.finish({"y": b.op(Q, MOVEMENT[op](b, b.op(DQ, integers(b, zero.dtype.name), *p)), *p)})
    left = counts(optimized(graph))
    assert Q not in left
    assert DQ not in left


def test_concat_of_equal_parameters_happens_on_integers() -> None:
    b = GraphBuilder()
    p = parameters(b, 0.3, np.int8(1))
    parts = [b.op(DQ, b.input(f"q{i}", "int8", (2, i + 1)), *p) for i in range(3)]
    assert counts(optimized(b.finish({"y": b.op("Concat", *parts, axis=1)}))) == {"Concat": 1, DQ: 1}


def test_concat_of_other_parameters_stays() -> None:
    b = GraphBuilder()
    parts = [b.op(DQ, b.input(f"q{i}", "int8", (2, 2)), *parameters(b, 0.3 + i, np.int8(1))) for i in range(2)]
    assert counts(optimized(b.finish({"y": b.op("Concat", *parts, axis=1)}))) == {"Concat": 1, DQ: 2}


def test_table_is_looked_up_before_it_is_dequantised() -> None:
    b = GraphBuilder()
    table = b.constant(np.random.default_rng(0).integers(-128, 127, (4000, 16)).astype(np.int8))
    rows = b.op("Gather", b.op(DQ, table, *parameters(b, 0.3, np.int8(1))), b.constant([5, 3], "int64"))
    graph = b.finish({"y": b.op("Add", rows, b.input("x", "float32", (16,)))})
    assert counts(optimized(graph)) == {"Add": 1}


def test_scales_for_each_channel_follow_a_transpose() -> None:
    b = GraphBuilder()
    p = parameters(b, [0.5, 1.25, 3.0], np.array([1, 2, 3], np.int8))
    x = b.op("Transpose", b.op(DQ, integers(b), *p, axis=1), perm=(0, 2, 3, 1))
    assert counts(optimized(b.finish({"y": b.op(Q, x, *p, axis=-1)}))) == {"Transpose": 1}


def test_scales_for_each_channel_do_not_pass_a_reshape() -> None:
    b = GraphBuilder()
    p = parameters(b, [0.5, 1.25, 3.0], np.array([1, 2, 3], np.int8))
    x = b.op("Reshape", b.op(DQ, integers(b, shape=(3, 4)), *p, axis=0), b.constant([4, 3], "int64"))
    assert counts(optimized(b.finish({"y": b.op(Q, x, *p, axis=1)}))) == {Q: 1, DQ: 1}


def test_windows_that_mix_scales_stay() -> None:
    b = GraphBuilder()
    p = parameters(b, [0.5, 1.25, 3.0, 0.1], np.zeros(4, np.int8))
    x = b.op("MaxPool", b.op(DQ, integers(b), *p, axis=2), kernel_shape=(2, 1), pads=(1, 0, 0, 0))
    assert counts(optimized(b.finish({"y": b.op(Q, x, *p, axis=2)}))) == {"MaxPool": 1, Q: 1, DQ: 1}


@pytest.mark.parametrize("op", ["Sigmoid", "Exp", "LeakyRelu", "Softsign"])
def test_monotone_functions_do_not_move_onto_integers(op: str) -> None:
    b = GraphBuilder()
    p = parameters(b, 0.1, np.int8(0))
    graph = b.finish({"y": b.op(Q, b.op(op, b.op(DQ, integers(b), *p)), *p)})
    assert counts(optimized(graph)) == {op: 1, Q: 1, DQ: 1}


@pytest.mark.parametrize(("zero", "left"), [(np.uint8(0), {Q: 1}), (np.int8(-128), {Q: 1}), (np.int8(0), None)])
def test_relu_before_quantise_is_its_saturation(zero: Any, left: dict[str, int] | None) -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", (64,)))
    found = counts(optimized(b.finish({"y": b.op(Q, x, *parameters(b, 0.02, zero))})))
    assert found == left if left else sum(found.values()) == 2


@pytest.mark.parametrize(("low", "folds"), [(-64.0, True), (-32.0, True), (-31.5, False)])
def test_clip_outside_the_range_of_quantise_vanishes(low: float, folds: bool) -> None:
    b = GraphBuilder()
    x = b.op("Clip", b.input("x", "float32", (64,)), b.constant(np.float32(low)), b.constant(np.float32(31.75)))
    found = counts(optimized(b.finish({"y": b.op(Q, x, *parameters(b, 0.25, np.int8(0)))})))
    assert ("Clip" not in found) == folds


def test_negative_scale_reverses_the_order() -> None:
    b = GraphBuilder()
    p = parameters(b, -0.25, np.int8(0))
    x = b.op("Relu", b.op(DQ, integers(b), *p))
    assert counts(optimized(b.finish({"y": x}))) == {"Relu": 1, DQ: 1}


CHOICES = {
    "Where": lambda b, x, y: b.op(
        "Where", b.op("Greater", b.input("c", "float32", (3, 1, 4)), b.constant(np.float32(0))), x, y
    ),
    "Max": lambda b, x, y: b.op("Max", x, y),
    "Min": lambda b, x, y: b.op("Min", x, y),
}


@pytest.mark.parametrize("op", sorted(CHOICES))
@pytest.mark.parametrize("scales", [(0.3, 0.3), (0.3, 0.7), (-0.3, -0.3)])
def test_choice_between_dequantised_values_happens_on_integers(scales: tuple[float, float], op: str) -> None:
    """Only where both have the same scale, and a positive one."""
    b = GraphBuilder()
    first, second = (parameters(b, scale, np.int8(3)) for scale in scales)
    values = [b.op(DQ, integers(b), *first), b.op(DQ, b.input("p", "int8", (2, 3, 4, 4)), *second)]
    graph = b.finish({"y": b.op(Q, CHOICES[op](b, *values), *first)})
    moves = scales[0] == scales[1] and scales[0] > 0
    assert (DQ not in counts(optimized(graph))) == moves


def test_interpolation_stays_in_floats() -> None:
    b = GraphBuilder()
    p = parameters(b, 0.3, np.int8(3))
    resized = b.op("Resize", b.op(DQ, integers(b), *p), None, b.constant([1, 1, 2, 2], "float32"), mode="linear")
    assert DQ in counts(optimized(b.finish({"y": b.op(Q, resized, *p)})))


BETWEEN = {
    "Clip": lambda b, x: b.op("Clip", x, b.constant(np.float32(-1.1)), b.constant(np.float32(6))),
    "Max": lambda b, x: b.op("Max", b.constant(np.float32(1)), x),
    "Min": lambda b, x: b.op("Min", x, b.constant(np.array([1, 2, 3, 4], np.float32))),
}


@pytest.mark.parametrize("op", sorted(BETWEEN))
@pytest.mark.parametrize(("scales", "left"), [((0.3, 0.3), {}), ((0.3, 0.7), {Q: 1, DQ: 1})])
def test_clamp_between_dequantise_and_quantise_happens_on_integers(
    scales: tuple[float, float], left: dict[str, int], op: str
) -> None:
    """Whether the bounds are on the grid or not."""
    b = GraphBuilder()
    first, second = (parameters(b, scale, np.int8(3)) for scale in scales)
    clamped = BETWEEN[op](b, b.op(DQ, integers(b), *first))
    found = counts(optimized(b.finish({"y": b.op(Q, clamped, *second)})))
    assert {name: n for name, n in found.items() if name in (Q, DQ)} == left


def test_what_onnx_leaves_open_is_left_to_the_runtime() -> None:
    """A mask of minus infinity was calibrated to an infinite step: its quantum is that of NaN, whatever that is there."""
    b = GraphBuilder()
    zero, low = b.constant(np.float32(0)), b.constant(np.float32(-np.inf))
    mask = b.op("Where", b.input("c", "bool", (3, 4)), zero, low)
    graph = b.finish({"y": b.op(Q, mask, *parameters(b, np.inf, np.int8(0)))})
    for form in ("flat", "onnxruntime"):
        assert eqsat.optimize(graph, form=form).report.verification["verdict"] == "equal"


def test_what_is_left_open_and_nobody_looks_at_is_computed_ahead() -> None:
    """The bucket of a position, by the logarithm of 0, that a choice then leaves out."""
    b = GraphBuilder()
    rounded = b.op("Cast", b.constant(np.array([-np.inf, 2.5], np.float32)), to=7)
    chosen = b.op("Where", b.constant(np.array([False, True])), rounded, b.constant(np.array(7, np.int64)))
    graph = b.finish({"y": b.op("Add", b.input("x", "int64", (2,)), chosen)})
    assert eqsat.optimize(graph).report.operators_after == {"Add": 1}


IN_HALF = {"stated": ("float32", {"precision": 10}), "of the scale": ("float16", {}), "float32": ("float32", {})}


@pytest.mark.parametrize("way", IN_HALF)
def test_quotients_in_half_precision_leave_what_is_beside_the_quantiser(way: str) -> None:
    """There the least int16 is 5 steps off, a scale just below half a quantum is one of half a quantum, and 1e5 is infinite."""
    of_scale, attributes = IN_HALF[way]

    def quantised(before: Any, scale: float, zero: Any, behind: Any = lambda b, q: q) -> Graph:
        b = GraphBuilder()
        x = before(b, b.input("x", "float32", (3, 1)))
        return b.finish({"y": behind(b, b.op(Q, x, *parameters(b, scale, zero, of_scale), **attributes))})

    def constant(b: GraphBuilder, value: float) -> str:
        return b.constant(np.float32(value))

    graphs = (
        quantised(lambda b, x: b.op("Clip", x, constant(b, -328.05777)), 0.01001, np.int16(5)),
        quantised(
            lambda b, x: b.op("Sigmoid", x),
            0.00784315,
            np.uint8(0),
            lambda b, q: b.op("Clip", q, b.constant(np.uint8(0)), b.constant(np.uint8(127))),
        ),
        quantised(lambda b, x: b.op("Mul", x, constant(b, 2**-10)), 1, np.int8(0)),
        quantised(lambda b, x: b.op("Mul", x, constant(b, 0.00099)), 1, np.int16(0)),
        quantised(lambda b, x: b.op("Div", x, b.input("c", "float32", (3, 1))), 1, np.int16(0)),
    )
    for graph in graphs:
        result = eqsat.optimize(graph, verify=False, form="flat")
        feeds = {"x": np.array([[-1e5], [512.2], [4e7]], np.float32), "c": np.array([[8], [0.03], [3000]], np.float32)}
        given = {name: feeds[name] for name in graph.inputs}
        with np.errstate(over="ignore"):
            found, expected = (run(g, given)["y"] for g in (result.program.graph, graph))
        np.testing.assert_array_equal(found, expected)
        changed = counts(result) != {n.op: 1 for n in graph.nodes}
        assert changed is (way == "float32")


@pytest.mark.parametrize("carrier", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", ["ArgMax", "TopK"])
def test_positions_are_those_of_integers_where_floats_tell_these_apart(op: str, carrier: str) -> None:
    b = GraphBuilder()
    attributes: dict[str, Any] = {"output_dtype": 16} if carrier == "bfloat16" else {}
    x = b.op(DQ, b.input("q", "uint8", (1, 4)), *parameters(b, 0.3, np.uint8(0)), **attributes)
    y = b.op(op, x, axis=1) if op == "ArgMax" else b.op(op, x, b.constant([2], "int64"), axis=1, outputs=2)[1]
    graph = b.finish({"y": y})
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert (DQ in counts(result)) is (carrier == "bfloat16")
    feeds = {"q": np.array([[253, 255, 254, 1]], np.uint8)}
    np.testing.assert_array_equal(run(result.program.graph, feeds)["y"], run(graph, feeds)["y"])


@pytest.mark.parametrize(("attributes", "drops"), [({}, False), ({"precision": 1}, True)])
def test_clip_before_a_quantiser_of_float16_that_divides_in_float32_vanishes(
    attributes: dict[str, int], drops: bool
) -> None:
    """As files of older opsets are read."""
    b = GraphBuilder()
    x = b.op("Clip", b.input("x", "float16", (4,)), b.constant(np.float16(-60000)))
    y = b.op(Q, x, *parameters(b, 0.02, np.int16(3), "float16"), **dict[str, Any](attributes))
    assert ("Clip" in counts(eqsat.optimize(b.finish({"y": y}), verify=False, form="flat"))) is not drops


@pytest.mark.parametrize("op", ["Relu", "Clip"])
def test_clamps_before_floats_of_eight_bits_stay(op: str) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 4))
    bounds = [b.constant(np.float32(v)) for v in (-1, 1)] if op == "Clip" else []
    zero = b.constant(np.zeros((), "float8_e4m3fn"))
    y = b.op(Q, b.op(op, x, *bounds), b.constant(np.float32(0.1)), zero)
    assert counts(eqsat.optimize(b.finish({"y": y}), verify=False, form="flat")) == {op: 1, Q: 1}


def test_bounds_of_a_clip_may_be_vectors_of_one_number() -> None:
    b = GraphBuilder()
    low, high = (b.constant(np.array([v], np.float32)) for v in (0, 99))
    y = b.op(Q, b.op("Clip", b.input("x", "float32", (2, 4)), low, high), *parameters(b, 0.1, np.uint8(0)))
    assert counts(eqsat.optimize(b.finish({"y": y}), verify=False, form="flat")) == {Q: 1}


def test_a_vector_times_weights_less_sums_that_are_a_matrix_stays() -> None:
    b = GraphBuilder()
    a, w = b.input("a", "uint8", (4,)), b.input("w", "int8", (4, 3))
    sums = b.op("ReduceSum", b.op("Cast", w, to=6), b.constant([0], "int64"), keepdims=1)
    y = b.op("Sub", b.op("MatMulInteger", a, w), b.op("Mul", sums, b.constant(np.int32(128))))
    result = optimized(b.finish({"y": y}))
    assert counts(result) == {"MatMulInteger": 1, "Cast": 1, "ReduceSum": 1, "Mul": 1, "Sub": 1}


def test_values_dequantised_to_different_types_share_no_scales() -> None:
    b = GraphBuilder()
    q, p = (b.input(name, "int8", (2, 3)) for name in "qp")
    one, two = (b.op(DQ, value, *parameters(b, scale)) for value, scale in ((q, 0.3), (p, 0.7)))
    half = b.op(DQ, q, *parameters(b, 0.11), output_dtype=10)
    optimized(b.finish({"y": b.op("Mul", one, two), "e": half}), tolerance=1e-3)
