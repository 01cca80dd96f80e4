"""All rules at once: they saturate on every left side, grow little, and what they merge together is still equal."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.rule_trials import instance_of
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.egraph.soundness import check_egraph
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import AnyRule, registered_rules
from eqsat.samples import Sampler

RULES = registered_rules()
LIMITS = Limits(time_s=20.0, nodes=5_000)


def check(rule: AnyRule, *seeds: int) -> None:
    for seed in seeds:
        instance = instance_of(rule, Sampler(50_000 + seed))
        encoding = encode(instance.graph)
        result = saturate(encoding.egraph, RULES, LIMITS)
        assert result.stop_reason is StopReason.SATURATED, f"{result.matches}\n{instance.graph}"
        violations = check_egraph(encoding, instance.feeds)
        assert not violations, "\n".join(map(str, violations)) + f"\n{instance.graph}"


@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_left_side_under_all_rules(rule: AnyRule) -> None:
    check(rule, 0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_more_left_sides_under_all_rules(rule: AnyRule) -> None:
    check(rule, 1, 2)


def _chain(length: int) -> Graph:
    """A chain of blocks in which every family has something to do."""
    b = GraphBuilder()
    x = b.input("x", "float32", (8, 8))
    for i in range(length):
        h = b.op("Transpose", b.op("MatMul", x, b.input(f"w{i}", "float32", (8, 8))), perm=(1, 0))
        h = b.op("Div", b.op("Mul", h, b.constant(1.0 + i / 7, "float32")), b.constant(3.0, "float32"))
        h = b.op("Reshape", b.op("Flatten", b.op("Relu", h)), b.constant([8, -1], "int64"))
        parts = b.op("Split", b.op("Transpose", h, perm=(1, 0)), outputs=2, axis=1, num_outputs=2)
        x = b.op("Add", b.op("Concat", *parts, axis=1), b.op("Neg", x))
    return b.finish({"y": x})


def test_growth_is_linear() -> None:
    sizes, iterations = [], []
    for length in (2, 8, 32):
        encoding = encode(_chain(length))
        result = saturate(encoding.egraph, RULES)
        assert result.stop_reason is StopReason.SATURATED
        sizes.append(len(encoding.egraph.nodes) / length)
        iterations.append(result.iterations)
    assert max(sizes) <= 1.2 * min(sizes)
    assert iterations[2] <= iterations[1] + 1


def test_factors_that_undo_each_other_end() -> None:
    """A value that is a multiple of its own multiple must not give weights a new factor for ever."""
    b = GraphBuilder()
    x, z = (b.op(f, b.input(n, "float32", (2, 35))) for f, n in (("Erf", "x"), ("Tanh", "z")))
    product = b.op("Mul", b.op("Mul", x, b.constant(0.03, "float32")), b.op("Div", z, b.constant(0.03, "float32")))
    weights = np.random.default_rng(0).normal(size=(35, 3)).astype(np.float32)
    encoding = encode(b.finish({"y": b.op("MatMul", product, b.constant(weights))}))
    assert saturate(encoding.egraph, RULES, LIMITS).stop_reason is StopReason.SATURATED


@pytest.mark.parametrize("own", [True, False])
def test_parts_that_are_negatives_of_one_another_end(own: bool) -> None:
    """Values with the same parts are the same: else there would be new multiples of them for ever."""
    b = GraphBuilder()
    x = b.input("x", "float32", (7, 2))
    parts = b.op("Split", b.op("Sub", x, x) if own else b.op("Neg", x), b.constant([1, 1], "int64"), outputs=2, axis=1)
    encoding = encode(b.finish({f"y{i}": b.op("Neg", part) for i, part in enumerate(parts)}))
    assert saturate(encoding.egraph, RULES, LIMITS).stop_reason is StopReason.SATURATED


def test_views_of_values_of_unknown_rank_stay_views() -> None:
    """Two shapes that are not known are not the same one."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("a", "b", 4))
    graph = b.finish({"y": b.op("Unsqueeze", b.op("Squeeze", x), b.constant([1], "int64"))})
    encoding = encode(graph)
    saturate(encoding.egraph, RULES, LIMITS)
    assert not check_egraph(encoding, {"x": np.ones((3, 2, 4), np.float32)})
