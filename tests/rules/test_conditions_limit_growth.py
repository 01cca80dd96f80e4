"""Side conditions without which a rule stays right, but fills the e-graph: noticed by the size of it under all rules."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.explained_conditions import GROWTH
from benchmarks.neutral import grows
from benchmarks.rule_trials import without
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import Rule, registered_rules


@pytest.mark.slow
@pytest.mark.parametrize(("name", "condition"), sorted(GROWTH), ids=[":".join(p) for p in sorted(GROWTH)])
def test_dropped_condition_makes_a_larger_egraph(name: str, condition: str) -> None:
    (rule,) = (r for r in registered_rules() if r.name == name)
    assert isinstance(rule, Rule)
    (dropped,) = (c for c in rule.conditions if c.name == condition)
    loose = without(rule, dropped)
    assert isinstance(loose, Rule)
    assert grows(loose), f"{name} adds nothing without the condition {condition!r}: drop the condition"
    assert not grows(rule), f"{name} adds to what the other rules find, though the constants are neutral"


def _product(kind: str) -> Graph:
    """``x * (y * c)``"""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    integers = kind == "scale of integers"
    y = b.op("Cast", b.input("y", "int8", (3, 4)), to=1) if integers else b.input("y", "float32", (3, 4))
    number = b.constant(np.float32(1 - 2**-20 if kind == "about 1" else 0.3))
    return b.finish([b.op("Erf", b.op("Mul", x, b.op("Mul", y, number)))])


@pytest.mark.parametrize(("kind", "moves"), [("a number", True), ("about 1", False), ("scale of integers", False)])
def test_numbers_leave_products_where_others_may_absorb_them(kind: str, moves: bool) -> None:
    encoding = encode(_product(kind))
    saturate(encoding.egraph, list(registered_rules()), Limits(time_s=10.0, nodes=1_500))
    assert any(node.rule == "move_number_out_of_product" for node in encoding.egraph.nodes) == moves


def _ends(graph: Graph, first: str = "") -> Counter[str]:
    """How often rules changed something until nothing was left to say; a rule called ``first`` applies before the others."""
    rules = sorted(registered_rules(), key=lambda rule: rule.name != first)
    result = saturate(encode(graph).egraph, rules, Limits(time_s=60.0, nodes=5_000))
    assert result.stop_reason is StopReason.SATURATED
    return Counter(result.matches)


@pytest.mark.parametrize(("op", "scale"), [("Min", 3e36), ("Max", 3e36), ("Min", 0.5)])
def test_extremes_of_what_overflows_end(op: str, scale: float) -> None:
    """``y == Min(D(c), y)`` where ``D(c)`` is infinite, and ``c`` bounds the integers all the same."""
    b = GraphBuilder()
    parameters = b.constant(np.float32(scale)), b.constant(np.uint8(0 if op == "Min" else 255))
    bound = b.constant(np.array([127, 126, 124], np.uint8))
    values = [b.op("DequantizeLinear", v, *parameters) for v in (bound, b.input("x", "uint8", (4, 3)))]
    graph, moves = b.finish({"y": b.op(op, *values)}), f"move_dequantize_behind_{op.lower()}"
    bounded = {"Min": "remove_min_above_range", "Max": "remove_max_below_range"}[op]
    assert bool(_ends(graph, first=bounded)[moves]) is (scale < 1)
    assert 0 < _ends(graph)[moves] <= 2, (
        "once for either order of the operands, before the value is known to be one of them"
    )


@pytest.mark.parametrize("kind", ["Pad", "Where", "Concat", "TopK", "ReduceMax"])
def test_extremes_of_one_value_end(kind: str) -> None:
    """``v == Max(v, v)`` is dequantised from signed and from unsigned bytes, and these from several that are not known to be
    equal."""
    b = GraphBuilder()
    parameters = b.constant(np.float32(0.05)), b.constant(np.int8(3))
    x, y = (b.op("DequantizeLinear", b.input(n, "int8", (3, 4)), *parameters) for n in "xy")
    made = {
        "Pad": lambda: b.op("Pad", x, b.constant([0, 1, 0, 1], "int64")),
        "Where": lambda: b.op("Where", b.input("first", "bool", (4,)), x, y),
        "Concat": lambda: b.op("Concat", x, y, axis=1),
        "TopK": lambda: b.op("TopK", x, b.constant([2], "int64"), outputs=2)[0],
        "ReduceMax": lambda: b.op("ReduceMax", x, b.constant([0], "int64")),
    }
    v = made[kind]()
    assert _ends(b.finish({"v": v, "max": b.op("Max", v, v), "one": b.op("Where", b.input("c", "bool", ()), v, v)}))


def test_products_of_zeros_end() -> None:
    """``(x @ 0) @ w`` is ``x @ 0`` for any ``w``, and for its multiples."""
    b = GraphBuilder()
    draw = np.random.default_rng(5)

    def constant(*shape: int) -> str:
        return b.constant(draw.normal(size=shape).astype(np.float32))

    x = b.op("MatMul", b.input("x", "float32", (5, 1)), b.constant(np.zeros((1, 1), np.float32)))
    x = b.op("Add", b.op("MatMul", b.op("Add", x, constant(1)), constant(1, 3)), constant(3))
    x = b.op("Mul", x, b.constant(np.array([1, 1, 8], np.float32)))
    outputs = {}
    for name, columns in (("a", 4), ("b", 2), ("c", 4)):
        outputs[name] = b.op(
            "Mul", b.op("Add", b.op("MatMul", x, constant(3, columns)), constant(columns)), constant(1)
        )
    assert _ends(b.finish(outputs))


def test_products_of_what_is_scaled_by_zero_end() -> None:
    """``(x * 0) @ w`` is ``x @ 0`` for any ``w``, and for its multiples."""
    b = GraphBuilder()
    draw = np.random.default_rng(5)
    x = b.op("Mul", b.input("x", "float32", (5, 3)), b.constant(np.float32(0)))
    y = b.op("MatMul", x, b.constant(draw.normal(size=(3, 4)).astype(np.float32)))
    y = b.op("Add", y, b.constant(draw.normal(size=4).astype(np.float32)))
    assert _ends(b.finish([b.op("Mul", y, b.constant(np.array([0.999, 1, 1, 0], np.float32)))]))


def test_concatenations_of_what_is_empty_end() -> None:
    """``e == Concat(e, e)`` where ``e`` has no elements."""
    b = GraphBuilder()
    empty = b.op("Concat", *[b.constant(np.zeros(0, np.int64))] * 2, axis=0)
    x = b.input("x", "int64", (3,))
    _ends(b.finish([b.op("Concat", x, b.op("Concat", empty, empty, axis=0), axis=0)]))


def test_concatenations_of_a_value_with_itself_end() -> None:
    """Twenty of them in a row have a million parts."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    for _ in range(20):
        x = b.op("Concat", x, x, axis=0)
    assert _ends(b.finish([x]))


def test_halves_that_add_up_end() -> None:
    """``h + h`` for ``h = (x @ w) / 2``: a scale that is distributed over the sum made halves of halves."""
    b = GraphBuilder()
    product = b.op("MatMul", b.input("x", "float32", (3, 4)), b.constant(np.ones((4, 1), np.float32)))
    half = b.op("Mul", product, b.constant(np.float32(0.5)))
    assert _ends(b.finish([b.op("Add", half, half)]))
