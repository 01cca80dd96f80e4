"""What merges rest on: a proof names every rule that made the match of a group rule, a folding or an output true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from small_graphs import graph, make_rule

import eqsat
from eqsat.egraph.encode import Encoding, encode
from eqsat.egraph.explain import Explainer
from eqsat.egraph.saturate import saturate
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.rewrite import AnyRule, GroupRule, GroupView, Merge, apply, variables
from eqsat.rules.terms import mul, sub

x = variables("x")[0]
EXP_AS_SQUARE = make_rule(apply("Exp", x), lambda m: mul(m.x, m.x), "exp_as_square")
"""Not true, which does not matter here: nothing is computed."""


def group(build: Any, name: str = "group") -> GroupRule:
    return GroupRule(name, build, exactness=Exactness.EXACT, family="test")


def _rules(encoding: Encoding, rules: list[AnyRule], value: str, op: str) -> frozenset[str]:
    """The rules that prove the e-node of a value equal to the oldest ``op`` in its class."""
    egraph = encoding.egraph
    saturate(egraph, rules)
    handle = encoding.handles[value]
    found = next(m for m in egraph.members(handle) if egraph.nodes[m].op == op)
    return Explainer(egraph).rules_between(handle, found)


def test_group_rule_rests_on_the_rule_that_made_what_it_read() -> None:
    def negated_squares(view: GroupView) -> Iterator[Merge]:
        squares = {node.handle: inputs for node, inputs in view.nodes("Mul")}
        for node, (value,) in view.nodes("Neg"):
            if value is not None and value.handle in squares:
                a, b = squares[value.handle]
                assert a is not None
                assert b is not None
                yield node, sub(a, b)

    encoding = encode(graph(lambda b, x: b.op("Neg", b.op("Exp", x)), x=(2,)))
    assert _rules(encoding, [EXP_AS_SQUARE, group(negated_squares)], "y0", "Sub") == {"exp_as_square", "group"}


def test_group_rule_does_not_rest_on_spellings_of_what_its_term_reads() -> None:
    def negations(view: GroupView) -> Iterator[Merge]:
        list(view.nodes("Mul"))
        for node, (value,) in view.nodes("Neg"):
            assert value is not None
            yield node, sub(value, value)

    encoding = encode(graph(lambda b, x: b.op("Neg", b.op("Exp", x)), x=(2,)))
    assert _rules(encoding, [EXP_AS_SQUARE, group(negations)], "y0", "Sub") == {"group"}


def test_group_rule_does_not_rest_on_spellings_that_it_never_saw() -> None:
    def through_exp(view: GroupView) -> Iterator[Merge]:
        exps = {node.handle: inputs[0] for node, inputs in view.nodes("Exp")}
        for node, (value,) in view.nodes("Neg"):
            found = None if value is None else exps.get(value.handle)
            if found is not None:
                yield node, apply("Cos", found)

    encoding = encode(graph(lambda b, x: b.op("Neg", b.op("Exp", x)), x=(2,)))
    assert _rules(encoding, [EXP_AS_SQUARE, group(through_exp)], "y0", "Cos") == {"group"}


def test_group_rule_rests_on_what_makes_a_reader_one_of_the_value() -> None:
    """The reader is found from below: it reads the square because that equals the exponential."""

    def of_squares(view: GroupView) -> Iterator[Merge]:
        for square, (value, _) in view.nodes("Mul"):
            for op, reader, _ in view.users(square):
                if op == "Neg" and value is not None:
                    yield reader, apply("Cos", value)

    encoding = encode(graph(lambda b, x: b.op("Neg", b.op("Exp", x)), x=(2,)))
    assert _rules(encoding, [EXP_AS_SQUARE, group(of_squares)], "y0", "Cos") == {"exp_as_square", "group"}


def test_group_rule_rests_on_what_joins_two_e_nodes_that_it_read() -> None:
    """``-(e + v) == s + v`` where ``s`` exists as the square of what ``e`` is the square of by a rule."""

    def regrouped(view: GroupView) -> Iterator[Merge]:
        squares = {node.handle: node for node, _ in view.nodes("Mul")}
        sums = {node.handle: inputs for node, inputs in view.nodes("Add")}
        for node, (value,) in view.nodes("Neg"):
            first, second = (None, None) if value is None else sums.get(value.handle, (None, None))
            if first is not None and second is not None and first.handle in squares:
                yield node, mul(squares[first.handle], second)

    encoding = encode(graph(lambda b, x, v: b.op("Neg", b.op("Add", b.op("Exp", x), v)), x=(2,), v=(2,)))
    assert _rules(encoding, [EXP_AS_SQUARE, group(regrouped)], "y0", "Mul") == {"exp_as_square", "group"}


def test_folding_rests_on_the_folding_of_its_operands() -> None:
    b = GraphBuilder()
    value = b.op("Neg", b.op("Sin", b.constant(np.arange(3, dtype=np.float32))))
    encoding = encode(b.finish({"y0": value}))
    found = _rules(encoding, [], "y0", "Constant")
    assert found == {"fold_constants", "fold_constants_with_rounding"}


def _optimized(build: Any, *shape: int | str, **options: Any) -> eqsat.Result:
    b = GraphBuilder()
    made = build(b, b.input("x", "float32", shape))
    return eqsat.optimize(b.finish({"y": made}), form="flat", **options)


ANGLES = np.linspace(0, 3, 64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize("movement", [("Neg",), ("Transpose",), ("Unsqueeze", [0])])
def test_constant_folded_again_keeps_the_class_of_the_first_folding(movement: tuple[Any, ...]) -> None:
    def build(b: GraphBuilder, x: str) -> str:
        op, *others = movement
        folded = b.op(op, b.op("Cos", b.constant(ANGLES)), *(b.constant(np.asarray(o)) for o in others))
        return b.op("Mul", x, folded)

    result = _optimized(build, 8, 8)
    assert result.report.operators_after == {"Mul": 1}
    assert result.report.exactness == "rounding"
    assert _optimized(build, 8, 8, numerics="exact").report.exactness == "exact"


def test_output_that_is_folded_has_the_class_of_the_folding() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        wide = b.op("Expand", b.constant([0.1], "float32"), b.constant([4, 8], "int64"))
        return b.op("MatMul", wide, b.constant(np.linspace(0.1, 1, 8, dtype=np.float32).reshape(8, 1)))

    report = _optimized(build, 4, 8).report
    assert report.operators_after == {}
    assert report.exactness == "rounding"
    assert report.rules["fold_constants_with_rounding"]["uses"] == 1


def test_parts_of_an_operator_count_what_made_them_parts() -> None:
    """Pow becomes a product before two of them become parts of one: ONNX Runtime's Pow is no product bit by bit."""

    def build(b: GraphBuilder, x: str) -> str:
        bounds = [b.constant([n], "int64") for n in (0, 129, 258, 1)]
        squares = [
            b.op("Pow", b.op("Slice", x, bounds[i], bounds[i + 1], bounds[3]), b.constant(2.0, "float32"))
            for i in range(2)
        ]
        return b.op("Add", *squares)

    report = _optimized(build, "n", 258, "t").report
    assert report.operators_after == {"Mul": 1, "Split": 1, "Add": 1}
    assert report.exactness == "rounding"
    assert report.rules["square_instead_of_raising"]["uses"]


def test_constants_that_are_spelled_by_each_other_are_computed() -> None:
    """DQ(Q(table)) is the table and Q(DQ(bytes)) the bytes: neither may be computed from the other."""
    table = np.random.default_rng(0).integers(-128, 128, (512, 64), np.int8)

    def build(b: GraphBuilder, x: str) -> str:
        scale, zero = b.constant(0.02, "float32"), b.constant(0, "int8")
        whole = b.op("DequantizeLinear", b.constant(table), scale, zero)
        taken = b.op("Gather", whole, b.constant(np.arange(16).reshape(1, 16)))
        quantized = b.op("QuantizeLinear", taken, scale, zero)
        return b.op("Add", x, b.op("DequantizeLinear", quantized, scale, zero))

    assert _optimized(build, 2, 16, 64).report.operators_after == {"Add": 1}


def test_long_chain_of_large_constants_is_computed() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        value = b.constant(np.ones((80, 80), np.float32))
        for step in range(1500):
            value = b.op("Max" if step % 2 else "Min", value, b.constant(np.full((80, 80), step, np.float32)))
        return b.op("Mul", x, value)

    assert _optimized(build, 80, 80, only_rules=(), verify=False).report.operators_after == {"Mul": 1}


def test_scatter_of_constants_is_folded_exactly_unless_it_sums() -> None:
    def build(reduction: str) -> Any:
        def made(b: GraphBuilder, x: str) -> str:
            data, updates = b.constant(np.zeros((4, 8), np.float32)), b.constant(np.ones((4, 1), np.float32))
            indices = b.constant(np.arange(4).reshape(4, 1))
            return b.op("Mul", x, b.op("ScatterElements", data, indices, updates, axis=1, reduction=reduction))

        return made

    assert _optimized(build("none"), 4, 8, numerics="exact").report.operators_after == {"Mul": 1}
    assert _optimized(build("add"), 4, 8, numerics="exact").report.operators_after == {"ScatterElements": 1, "Mul": 1}
    assert _optimized(build("add"), 4, 8).report.exactness == "rounding"


def test_merge_that_an_extent_of_one_would_break_is_not_done() -> None:
    """``x[n, 2] * c[6, 1] - 2`` has six rows when n is 1."""

    def build(b: GraphBuilder, x: str) -> str:
        opposite = b.op("Mul", x, b.constant(-np.ones((6, 1), np.float32)))
        return b.op("Sub", opposite, b.constant(2.0, "float32"))

    assert _optimized(build, "n", 2).report.operators_after == {"Mul": 1, "Sub": 1}
    assert "Mul" not in _optimized(build, 6, 2).report.operators_after


def test_names_of_broadcast_extents_do_not_depend_on_the_order() -> None:
    nested = graph(lambda b, x, y, z: add_all(b, x, y, z), x=("n", 2), y=("m", 2), z=("k", 2))
    turned = graph(lambda b, x, y, z: add_all(b, z, y, x), x=("n", 2), y=("m", 2), z=("k", 2))
    assert str(nested.type_of("y0")) == str(turned.type_of("y0")) == "float32[broadcast(k, m, n), 2]"


def add_all(b: GraphBuilder, *values: str) -> str:
    first, *others = values
    for value in others:
        first = b.op("Add", first, value)
    return first
