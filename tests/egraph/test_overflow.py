"""What the check of rounding rules leaves out: elements that left the range of floats, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_graphs import make_rule

import eqsat.rules  # noqa: F401  # registers the shipped rules
from eqsat.conditions import constant
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.egraph.soundness import check_egraph
from eqsat.egraph.undefined import overflowed
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.rewrite import Rule, registered_rules, variables
from eqsat.rules.terms import mul

x, c, d = variables("x c d")
HUGE = np.float32(3e38)


def _wrong(rules: list[Any], given: list[Any], *steps: tuple[str, Any]) -> list[str]:
    """Violations after running ``rules`` on a chain of operators with constants."""
    b = GraphBuilder()
    value = b.input("x", "float32", (len(given),))
    for op, number in steps:
        value = b.op(op, value, *(() if number is None else (b.constant(np.float32(number)),)))
    encoding = encode(b.finish({"y": value}))
    assert any(saturate(encoding.egraph, rules).matches.values())
    return [str(v) for v in check_egraph(encoding, {"x": np.asarray(given, np.float32)}, rules)]


def _named(name: str) -> list[Rule]:
    return [r for r in registered_rules() if isinstance(r, Rule) and r.name == name]


def test_scale_may_overflow_before_a_rectifier() -> None:
    """``LeakyRelu(x) * 2`` is finite where ``LeakyRelu(x * 2)`` is not: both are the same over the reals."""
    moved = _named("move_scale_before_leakyrelu")
    assert not _wrong(moved, [-HUGE, 1.0, -2.0], ("LeakyRelu", None), ("Mul", 2.0))


def _rule(right: Any, exactness: Exactness = Exactness.ROUNDING) -> list[Rule]:
    """``(x * c) * d`` as something else."""
    made = make_rule(mul(mul(x, c), d), right, "regroup", (constant("c", "d"),))
    return [replace(made, exactness=exactness)]


def test_other_elements_are_compared() -> None:
    forgetful = _rule(lambda m: mul(m.x, m.c))
    (message,) = _wrong(forgetful, [HUGE, 1.0], ("Mul", 4.0), ("Mul", 0.5))
    assert "1 of 2 elements differ" in message


def test_exact_rules_are_compared_everywhere() -> None:
    exact = _rule(lambda m: mul(m.x, mul(m.c, m.d)), Exactness.EXACT)
    assert _wrong(exact, [HUGE, 1.0], ("Mul", 4.0), ("Mul", 0.25))
    assert not _wrong(_rule(lambda m: mul(m.x, mul(m.c, m.d))), [HUGE, 1.0], ("Mul", 4.0), ("Mul", 0.25))


def test_constants_must_stay_finite() -> None:
    """``(x * c) * d == x * (c * d)`` where ``c * d`` overflows and ``x`` is small: the rule lacks a condition."""
    assert _wrong(_rule(lambda m: mul(m.x, mul(m.c, m.d))), [1e-30, 1e-20], ("Mul", 3e20), ("Mul", 3e20))


@pytest.mark.parametrize(
    ("op", "operands", "marked"),
    [
        ("Mul", ([HUGE, 1.0], [2.0, 2.0]), [True, False]),
        ("Div", ([1.0, 0.0], [0.0, 0.0]), None),  # a pole, and no number at all
        ("Mul", ([np.inf, 1.0], [2.0, 2.0]), None),  # given as infinite
        ("MatMul", ([[HUGE, HUGE], [1.0, 1.0]], [[2.0, 1.0], [0.0, 0.0]]), [[True, False], [False, False]]),
    ],
)
def test_which_elements_overflow(op: str, operands: tuple[Any, Any], marked: Any) -> None:
    arrays = [np.asarray(o, np.float32) for o in operands]
    with np.errstate(all="ignore"):
        result = {"Mul": np.multiply, "Div": np.divide, "MatMul": np.matmul}[op](*arrays)
    found = overflowed(op, NO_ATTRIBUTES, [(a, None) for a in arrays], result)
    assert (found is None) is (marked is None)
    np.testing.assert_array_equal(found, marked) if marked is not None else None


def test_what_is_computed_from_them_is_marked_too() -> None:
    value = np.asarray([[np.inf, 1.0], [2.0, 3.0]], np.float32)
    mark = np.asarray([[True, False], [False, False]])
    result = np.asarray([1.0, 5.0], np.float32)  # whatever it is
    axes = (np.asarray([1], np.int64), None)
    attributes = NO_ATTRIBUTES.updated(keepdims=0)
    found = overflowed("ReduceSum", attributes, [(value, mark), axes], result)
    np.testing.assert_array_equal(found, [True, False])
