"""Rules that users register: wrong ones are refused with a counterexample, right ones accepted, each within two seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat import Exactness, Match, RuleError, ops
from eqsat.conditions import constant, every_element
from eqsat.rewrite import Condition, registered_rules, unregister

x, y, z, c, w, b = eqsat.variables("x y z c w b")


def ones_of(m: Match) -> Any:
    return eqsat.literal(np.ones(m.root.static_shape, m.root.dtype.numpy))


Case = tuple[str, Any, Callable[[Match], Any], dict[str, Any]]

WRONG: list[Case] = [
    ("difference_commutes", ops.Sub(x, y), lambda m: ops.Sub(m.y, m.x), {}),
    ("product_commutes", ops.MatMul(x, y), lambda m: ops.MatMul(m.y, m.x), {"exactness": Exactness.ROUNDING}),
    ("product_of_squares_commutes", ops.MatMul(x, x), lambda m: ops.Mul(m.x, m.x), {}),
    ("quotient_with_itself", ops.Div(x, x), ones_of, {}),
    ("product_with_zero", ops.Mul(x, c), lambda m: m.c, {"where": [every_element("c", 0)]}),
    ("transposes_vanish", ops.Transpose(ops.Transpose(x)), lambda m: m.x, {}),
    (
        "permutations_composed_backwards",
        ops.Transpose(ops.Transpose(x).named("p")).named("q"),
        lambda m: ops.Transpose(m.x, perm=tuple(m.q.attr("perm")[i] for i in m.p.attr("perm"))),
        {},
    ),
    (
        "transposed_product_not_exchanged",
        ops.Transpose(ops.MatMul(x, y)).named("t"),
        lambda m: ops.MatMul(ops.Transpose(m.x, perm=(1, 0)), ops.Transpose(m.y, perm=(1, 0))),
        {"attributes": {"t": {"perm": [(1, 0)]}}, "exactness": Exactness.ROUNDING},
    ),
    ("sum_reassociates_exactly", ops.Add(ops.Add(x, y), z), lambda m: ops.Add(m.x, ops.Add(m.y, m.z)), {}),
    ("root_of_a_square", ops.Sqrt(ops.Mul(x, x)), lambda m: m.x, {"exactness": Exactness.ROUNDING}),
    ("relu_is_identity", ops.Relu(x), lambda m: m.x, {}),
    ("broadcast_lost", ops.Add(x, c), lambda m: m.x, {"where": [every_element("c", 0)]}),
    ("extrema_exchanged", ops.Max(x, y), lambda m: ops.Min(m.x, m.y), {}),
    (
        "concat_reversed",
        ops.Concat(x, y).named("n"),
        lambda m: ops.Concat(m.y, m.x, axis=m.n.attr("axis")),
        {},
    ),
    (
        "scale_before_convolution",
        ops.Mul(ops.Conv(x, w), c),
        lambda m: ops.Conv(m.x, ops.Mul(m.w, m.c)),
        {"exactness": Exactness.ROUNDING, "where": [constant("w", "c")]},
    ),
]

RIGHT: list[Case] = [
    ("negated_difference", ops.Neg(ops.Sub(x, y)), lambda m: ops.Sub(m.y, m.x), {}),
    ("double_negation", ops.Neg(ops.Neg(x)), lambda m: m.x, {}),
    (
        "factor_out",
        ops.Add(ops.Mul(x, y), ops.Mul(x, z)),
        lambda m: ops.Mul(m.x, ops.Add(m.y, m.z)),
        {
            "exactness": Exactness.ROUNDING,
            "where": [eqsat.Condition("integers", lambda m: m.x.dtype.is_integer and not m.x.is_constant)],
        },
    ),
    (
        "transposes_composed",
        ops.Transpose(ops.Transpose(x).named("p")).named("q"),
        lambda m: ops.Transpose(m.x, perm=tuple(m.p.attr("perm")[i] for i in m.q.attr("perm"))),
        {},
    ),
    (
        "transposed_product",
        ops.Transpose(ops.MatMul(x, y)).named("t"),
        lambda m: ops.MatMul(ops.Transpose(m.y, perm=(1, 0)), ops.Transpose(m.x, perm=(1, 0))),
        {
            "exactness": Exactness.ROUNDING,
            "attributes": {"t": {"perm": [(1, 0)]}},
            "where": [eqsat.Condition("matrices", lambda m: m.x.rank == 2 and m.y.rank == 2)],
        },
    ),
    ("relu_twice", ops.Relu(ops.Relu(x)), lambda m: ops.Relu(m.x), {}),
    (
        "bias_into_gemm",
        ops.Add(ops.MatMul(x, w), b),
        lambda m: ops.Gemm(m.x, m.w, m.b),
        {
            "exactness": Exactness.ROUNDING,
            "where": [eqsat.Condition("a row", lambda m: m.x.rank == m.w.rank == 2 and m.b.shape == m.w.shape[1:])],
        },
    ),
    (
        "divide_by_constant",
        ops.Div(x, c),
        lambda m: ops.Mul(m.x, eqsat.literal((1 / m.c.value).astype(m.c.dtype.numpy))),
        {
            "where": [
                eqsat.Condition("power of two", lambda m: bool(np.all(np.isin(np.abs(m.c.value), [0.5, 1, 2])))),
                eqsat.Condition("float", lambda m: m.c.dtype.is_float),
            ]
        },
    ),
]


def register(case: Case) -> Any:
    name, pattern, build, options = case

    def right_side(m: Match) -> Any:
        """``left == right``."""
        return build(m)

    right_side.__name__ = name
    return eqsat.rule(pattern, **options)(right_side)


@pytest.mark.parametrize("case", WRONG, ids=[c[0] for c in WRONG])
def test_wrong_rule_is_refused_with_a_counterexample(case: Case) -> None:
    start = time.process_time()
    with pytest.raises(RuleError) as caught:
        register(case)
    assert time.process_time() - start < 2.5
    assert "does not hold for" in str(caught.value) or "does not saturate" in str(caught.value), caught.value
    assert case[0] not in {r.name for r in registered_rules()}


@pytest.mark.parametrize("case", RIGHT, ids=[c[0] for c in RIGHT])
def test_right_rule_is_accepted(case: Case) -> None:
    start = time.process_time()
    try:
        made = register(case)
        assert time.process_time() - start < 2.5
        assert made in registered_rules()
    finally:
        unregister(case[0])


def test_counterexample_names_shapes_types_and_values() -> None:
    with pytest.raises(RuleError, match=r"\(.*: \w+\[.*Sub\(.*expected .* elements differ"):
        register(WRONG[0])


def test_reassociation_is_told_its_class() -> None:
    with pytest.raises(RuleError, match=r"agree up to rounding: state exactness=Exactness\.ROUNDING"):
        register(next(case for case in WRONG if case[0] == "sum_reassociates_exactly"))


def test_rule_that_never_fires_is_refused_with_the_usual_reason() -> None:
    never = eqsat.Condition("the moon is full", lambda m: False)
    with pytest.raises(RuleError, match=r"fired on 0 of .* the moon is full; give sample="):
        register(("never", ops.Relu(x), lambda m: m.x, {"where": [never]}))


def test_own_sample_is_used() -> None:
    def draw(d: Any) -> dict[str, Any]:
        return {"x": d.positive(d.shape())}

    with pytest.raises(RuleError, match="expected"):
        register(("sampled_wrong", ops.Relu(x), lambda m: ops.Neg(m.x), {"sample": draw}))


@pytest.fixture
def unchecked() -> Iterator[str]:
    register(("unchecked_relu", ops.Abs(ops.Relu(x)), lambda m: ops.Relu(m.x), {"check": False}))
    yield "unchecked_relu"
    unregister("unchecked_relu")


def test_unchecked_rule_is_marked_in_the_report(unchecked: str) -> None:
    builder = eqsat.GraphBuilder()
    graph = builder.finish({"y": builder.op("Abs", builder.op("Relu", builder.input("x", "float32", (2, 3))))})
    report = eqsat.optimize(graph, verify=False, only_rules=[unchecked], form="flat").report
    assert report.operators_after == {"Relu": 1}
    assert report.unverified_rules == [unchecked]
    assert "unverified rule unchecked_relu" in str(report)


def test_group_rule_is_checked_on_the_graphs_of_shipped_samples() -> None:
    def merge(view: eqsat.GroupView) -> Iterator[Any]:
        """``concat(a, b) == concat(b, a)``."""
        for ref, inputs in view.nodes("Concat"):
            present = [i for i in inputs if i is not None]
            if len(present) == 2:
                yield ref, eqsat.apply("Concat", *reversed(present), axis=ref.attr("axis"))

    merge.__name__ = "concat_of_two_reversed"
    with pytest.raises(RuleError, match="concat_of_two_reversed"):
        eqsat.group_rule()(merge)

    def nest_first_two_parts(view: eqsat.GroupView) -> Iterator[Any]:
        """``concat(a, b, c, ...) == concat(concat(a, b), c, ...)``."""
        for ref, inputs in view.nodes("Concat"):
            axis = ref.attr("axis")
            parts = [i for i in inputs if i is not None]
            if len(parts) > 2:
                yield ref, ops.Concat(ops.Concat(*parts[:2], axis=axis), *parts[2:], axis=axis)

    try:
        made = eqsat.group_rule()(nest_first_two_parts)
        assert made in registered_rules()
    finally:
        unregister("nest_first_two_parts")


def test_group_rule_over_matches_is_checked_with_its_conditions() -> None:
    def differences(view: eqsat.GroupView) -> Iterator[Match]:
        for ref, (a, b) in view.nodes("Sub"):
            yield Match({"a": a, "b": b}, ref)

    def exchange_operands_of_difference(m: Match) -> Any:
        """``a - b == b - a`` of a value and itself."""
        return ops.Sub(m.b, m.a)

    with pytest.raises(RuleError, match="exchange_operands_of_difference"):
        eqsat.group_rule(find=differences)(exchange_operands_of_difference)
    same = Condition("one value", lambda m: m.a.handle == m.b.handle)
    with pytest.raises(RuleError, match="mostly because of: one value"):
        eqsat.group_rule(find=differences, where=[same])(exchange_operands_of_difference)
