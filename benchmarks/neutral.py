"""Rules on neutral constants: scales of ones, shifts of zeros, constant operands where transposes move.

What a rule makes of these another rule makes simpler. Each equation holds, but adds e-nodes that are never chosen, or matches
again: under all rules such a rule must not make the e-graph larger than it is without the rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.explained_conditions import GROWTH
from benchmarks.rule_trials import automatic_instance
from eqsat.conditions import number
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, saturate
from eqsat.ir.graph import Graph
from eqsat.rewrite import AnyRule, Rule, registered_rules
from eqsat.samples import Fixed, Instance, Sampler, draw_instance, fixed

INSTANCES = 8
NEUTRAL = {"s": 1, "c": 0}
"""Scale and summand that change nothing: by another rule the scaled value is the value itself."""


def grows(rule: Rule) -> bool:
    """Whether ``rule``, in place of the registered rule of its name, adds e-nodes to an instance with neutral constants."""
    rules = [rule if r.name == rule.name else r for r in registered_rules()]
    others = [r for r in rules if r is not rule]
    graphs = (_neutral(rule, seed).graph for seed in range(INSTANCES))
    return any(_size(graph, rules) > _size(graph, others) for graph in graphs)


def _neutral(rule: Rule, seed: int) -> Instance:
    """An instance with neutral constants."""
    if rule.sample is None:
        stated = {name for condition in rule.conditions for name in condition.fact}
        neutral = tuple(number(name, value) for name, value in NEUTRAL.items() if name in stated)
        others = tuple(c for c in rule.conditions if (rule.name, c.name) not in GROWTH)
        sampler, asked = Sampler(seed), replace(rule, conditions=(*others, *neutral))
        while True:  # not all that is asked for is always drawn
            instance = automatic_instance(asked, sampler)
            if saturate(encode(instance.graph).egraph, [asked], Limits(iterations=1)).matches[rule.name]:
                return instance

    def draw(d: Sampler) -> Mapping[str, Any]:
        assert rule.sample is not None
        drawn = dict(rule.sample(d))
        for name, value in drawn.items():
            if name in NEUTRAL and isinstance(value, Fixed):
                drawn[name] = fixed(np.full_like(value.array, NEUTRAL[name]))
        return drawn

    return draw_instance(replace(rule, sample=draw), Sampler(seed))


def _size(graph: Graph, rules: Sequence[AnyRule]) -> int:
    encoding = encode(graph)
    saturate(encoding.egraph, rules, Limits(time_s=10.0, nodes=1_500))
    return len(encoding.egraph.nodes)
