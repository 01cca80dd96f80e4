"""Side conditions without which a rule stays right, but fills the e-graph: noticed by the size of it under all rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rule_trials import without

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.explained_conditions import GROWTH
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import AnyRule, Rule, registered_rules
from eqsat.rules.sampling import Fixed, Instance, Sampler, draw_instance, fixed

INSTANCES = 8
NEUTRAL = {"s": 1, "c": 0}
"""Scale and summand that change nothing: by another rule the scaled value is the value itself."""


def _neutral(rule: Rule, seed: int) -> Instance:
    """An instance with neutral constants; products by a transposed operand get a constant one."""

    def draw(d: Sampler) -> Mapping[str, Any]:
        assert rule.sample is not None
        drawn = dict(rule.sample(d))
        for name, value in drawn.items():
            if name in NEUTRAL and isinstance(value, Fixed):
                drawn[name] = fixed(np.full_like(value.array, NEUTRAL[name]))
        turned = {"move_left": "x", "move_right": "y"}.get("_".join(rule.name.split("_")[:2]))
        if turned is not None:
            drawn[turned] = fixed(drawn[turned])
        return drawn

    return draw_instance(replace(rule, sample=draw), Sampler(seed))


def _size(graph: Graph, rules: list[AnyRule]) -> int:
    encoding = encode(graph)
    saturate(encoding.egraph, rules, Limits(time_s=10.0, nodes=1_500))
    return len(encoding.egraph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "condition"), sorted(GROWTH), ids=[":".join(p) for p in sorted(GROWTH)])
def test_dropped_condition_makes_a_larger_egraph(name: str, condition: str) -> None:
    rules = list(registered_rules())
    (rule,) = (r for r in rules if r.name == name)
    assert isinstance(rule, Rule)
    (dropped,) = (c for c in rule.conditions if c.name == condition)
    loose = [without(r, dropped) if r is rule else r for r in rules]
    for seed in range(INSTANCES):
        graph = _neutral(rule, seed).graph
        if _size(graph, loose) > _size(graph, rules):
            return
    pytest.fail(f"{name} adds nothing without the condition {condition!r}: drop the condition")


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
