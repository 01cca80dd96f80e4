"""Side conditions without which a rule stays right, but fills the e-graph: noticed by the size of it under all rules."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.explained_conditions import GROWTH
from benchmarks.neutral import grows
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import Rule, registered_rules
from eqsat.rule_check.trials import without


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
