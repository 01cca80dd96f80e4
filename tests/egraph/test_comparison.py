"""How closely the spellings of a value are compared: by the terms it is made of, by quanta, and where ONNX says what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_graphs import graph, make_rule

import eqsat.rules  # noqa: F401  # registers the shipped rules
from eqsat.egraph.encode import encode
from eqsat.egraph.magnitude import magnitude_of, moved_with
from eqsat.egraph.saturate import saturate
from eqsat.egraph.soundness import check_egraph
from eqsat.egraph.undefined import undefined
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import NO_ATTRIBUTES, Graph
from eqsat.rewrite import Apply, literal, registered_rules, variables
from eqsat.rules.terms import add, sub, transpose

x, c, d, s = variables("x c d s")
HALVES = NO_ATTRIBUTES.updated(axis=0)


def _messages(graph: Graph, values: np.ndarray, rules: Any = None) -> list[str]:
    encoding = encode(graph)
    result = saturate(encoding.egraph, registered_rules() if rules is None else rules)
    assert any(result.matches.values())
    return [str(v) for v in check_egraph(encoding, {"x": values}, rules)]


# --- floats by the size of the terms


def _half(whole: Any, sizes: Any) -> Any:
    return Apply("Split", (whole, sizes), HALVES, "", 2).output(1)


@pytest.mark.parametrize(("shift", "violations"), [(0.0, 0), (100.0, 1)])
def test_outputs_of_several_are_judged_by_what_they_are_computed_from(shift: float, violations: int) -> None:
    """``((x + c) - d)[half] == (x + (c - d))[half]``: of ``x + 1e6`` fewer digits are left."""

    def right(m: Any) -> Any:
        return _half(add(m.x, literal(m.c.value - m.d.value + np.float32(shift))), m.s)

    rule = make_rule(_half(sub(add(x, c), d), s), right, "regroup")

    def build(b: GraphBuilder, x: str) -> tuple[str, ...]:
        total = b.op("Sub", b.op("Add", x, b.constant(np.float32(1e6))), b.constant(np.float32(1e6)))
        return tuple(b.op("Split", total, b.constant([2, 2], "int64"), outputs=2, axis=0))

    values = np.array([0.1, 0.2, 0.3, 0.7], np.float32)
    found = _messages(graph(build, x=(4,)), values, [replace(rule, exactness=Exactness.ROUNDING)])
    assert len(found) == violations


def test_magnitude_of_an_output_is_that_of_its_part() -> None:
    value, size = np.zeros(4, np.float32), np.array([1.0, 2.0, 3.0, 4.0])
    operands = [(value, size), (np.array([2, 2]),) * 2]
    for output, expected in enumerate(([1, 2], [3, 4])):
        found = magnitude_of("Split", HALVES, operands, np.zeros(2, np.float32), output)
        np.testing.assert_array_equal(found, expected)


# --- integers by quanta, and floats with them


def _function_of_bytes(weights: np.ndarray | None) -> Graph:
    b = GraphBuilder()
    zero = b.constant(np.uint8(3))
    y = b.op("DequantizeLinear", b.input("x", "uint8", (4, 13, 5)), b.constant(np.float32(0.1)), zero)
    gate = b.op("Clip", b.op("Add", y, b.constant(np.float32(3))), b.constant(np.float32(0)), b.constant(np.float32(6)))
    y = b.op("Div", b.op("Mul", y, gate), b.constant(np.float32(6)))
    parameters = b.constant(np.float32(0.03)), zero
    y = b.op("QuantizeLinear", y, *parameters)
    if weights is not None:
        y = b.op("MatMul", b.op("DequantizeLinear", y, *parameters), b.constant(weights))
    return b.finish({"y": y})


def test_rules_over_groups_may_move_an_integer_by_a_quantum() -> None:
    """A byte of the table lies at a rounding tie, where ``y / 6`` and ``y * (1 / 6)`` differ."""
    every = np.resize(np.arange(256, dtype=np.uint8), (4, 13, 5))
    assert not _messages(_function_of_bytes(None), every)
    names = ("divide_by_constant_as_multiplication", "look_up_functions_of_columns")
    strict = [replace(r, exactness=Exactness.ROUNDING) for r in registered_rules() if r.name in names]
    assert _messages(_function_of_bytes(None), every, strict)


def test_products_move_with_the_integers_that_they_read() -> None:
    every = np.resize(np.arange(256, dtype=np.uint8), (4, 13, 5))
    weights = np.array([[0.5, -1.5], [0.25, 0.75], [1.25, 0.5], [0.5, 1.0], [0.75, -0.25]], np.float32)
    assert not _messages(_function_of_bytes(weights), every)


def test_what_only_moves_elements_passes_on_how_far_they_may_move() -> None:
    """A code that a rule moves by a quantum is moved behind six views and a conversion, too."""

    def swapped(y: Any) -> Any:
        return transpose(y, (1, 0))

    def view(y: Any) -> Any:
        return Apply("Reshape", (y, d))

    def number(y: Any) -> Any:
        return Apply("Cast", (y,), NO_ATTRIBUTES.updated(to=1))

    def moved(m: Any) -> Any:
        return swapped(Apply("QuantizeLinear", (swapped(add(m.x, literal(np.float32(0.01)))), m.s)))

    lsb = make_rule(Apply("QuantizeLinear", (sub(x, c), s)), moved, "add_a_little_before_rounding")
    past_view = make_rule(view(swapped(x)), lambda m: swapped(Apply("Reshape", (m.x, m.d))), "past_view")
    past_conversion = make_rule(number(swapped(x)), lambda m: swapped(number(m.x)), "past_conversion")
    b = GraphBuilder()
    y = b.op(
        "QuantizeLinear",
        b.op("Sub", b.input("x", "float32", (2, 2)), b.constant(np.float32(0))),
        b.constant(np.float32(1)),
    )
    for _ in range(6):
        y = b.op("Reshape", y, b.constant([2, 2], "int64"))
    built = b.finish({"y": b.op("Cast", y, to=1)})
    values = np.array([[0.5, 1.25], [3.0, 7.75]], np.float32)
    by_a_quantum = replace(lsb, exactness=Exactness.LSB, quanta=1)
    assert not _messages(built, values, [by_a_quantum, past_view, past_conversion])
    assert _messages(built, values, [lsb, past_view, past_conversion])


def test_sum_of_products_moves_by_the_factors() -> None:
    a, b = np.array([[1.0, -2.0]], np.float32), np.array([[3.0], [-4.0]], np.float32)
    found = moved_with("MatMul", NO_ATTRIBUTES, [a, b], [np.full((1, 2), 0.5), None], 0)
    assert found is not None
    assert found.tolist() == [[3.5]]
    assert moved_with("Exp", NO_ATTRIBUTES, [a], [np.ones(a.shape)], 0) is None


# --- integers that ONNX leaves open


def test_infinity_by_an_infinite_scale_is_no_integer() -> None:
    """``inf / inf`` is NaN, of which ONNX Runtime makes the least integer, signed or not."""
    values = np.array([np.inf, 2.0, -np.inf, np.nan, 3e38], np.float32)
    scale, zero = np.float32(np.inf), np.int8(1)
    result = np.array([-128, 1, -128, -128, 1], np.int8)
    open_ = undefined("QuantizeLinear", NO_ATTRIBUTES, [(values, None), (np.asarray(scale), None)], result)
    np.testing.assert_array_equal(open_, [True, False, True, True, False])
    b = GraphBuilder()
    y = b.op("QuantizeLinear", b.input("x", "float32", (5,)), b.constant(scale), b.constant(zero))
    assert not _messages(b.finish({"y": y}), values)


@pytest.mark.parametrize("axis", [0, 1])
def test_scales_lie_along_their_axis(axis: int) -> None:
    values = np.full((2, 2), np.inf, np.float32)
    scales = np.array([1.0, np.inf], np.float32)
    found = undefined(
        "QuantizeLinear", NO_ATTRIBUTES.updated(axis=axis), [(values, None), (scales, None)], np.zeros((2, 2), np.uint8)
    )
    np.testing.assert_array_equal(found, [[False, True]] * 2 if axis else [[False] * 2, [True] * 2])
