"""Equations as text: what they match, what they build, what they ask for, and what is said of those that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import eqsat
import eqsat.rules  # registers the shipped rules
from benchmarks.rule_trials import automatic_instance, try_rule
from eqsat.conditions import asks, constant, finite, same_type, worthwhile
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.equations import Equations, equation, form, group_rule, named
from eqsat.equations.right import Compiled
from eqsat.errors import RuleError
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import (
    GroupRule,
    GroupView,
    Match,
    Rule,
    Term,
    Variable,
    apply,
    literal,
    registered_rules,
    unregister,
)
from eqsat.samples import Sampler


@contextmanager
def only_here() -> Iterator[None]:
    """Rules made inside are forgotten."""
    before = {r.name for r in registered_rules()}
    try:
        yield
    finally:
        for r in registered_rules():
            if r.name not in before:
                unregister(r.name)


def stated(text: str, *where: Any, **options: Any) -> Rule:
    with only_here():
        return equation("tested", text, *where, source="test", **options)


def fires(rule: Rule, graph: Graph) -> bool:
    encoding = encode(graph)
    return bool(saturate(encoding.egraph, [rule]).matches[rule.name])


def graph_of(op: str, *operands: Any, shape: tuple[int, ...] = (2, 3), **attributes: Any) -> Graph:
    """``op`` applied to an input ``x`` and constants."""
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    inputs = [x, *(b.constant(np.asarray(v)) for v in operands)]
    return b.finish({"y": b.op(op, *inputs, **attributes)})


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("x + 0 == x", (same_type("x"),)),
        ("-(x - y) == y - x", ()),
        ("Transpose(Transpose(x, perm=p), perm=q) == Transpose(x, perm=tuple(p[i] for i in q))", ()),
        ("Where(Not(c), x, y) == Where(c, y, x)", ()),
        ("Clip(Relu(x), *a, *b) == Clip(Clip(x, number(0, x.dtype)), a, b)", ()),
        ("Relu((t := Relu(x))) == t", ()),
        ("Identity(x) == (x if x.rank < 9 else Relu(x))", ()),
    ],
)
def test_true_equations_are_sound_on_instances_drawn_from_their_text(text: str, where: tuple[Any, ...]) -> None:
    trial = try_rule(stated(text, *where), 40)
    assert not trial.failures, trial.failures[0]
    assert trial.witnesses >= 4


@pytest.mark.parametrize(
    "text", ["-(x - y) == x - y", "Transpose(Transpose(x, perm=p), perm=q) == Transpose(x, perm=p)", "x + 1 == x"]
)
def test_false_equations_are_not(text: str) -> None:
    assert try_rule(stated(text), 40).failures


def test_condition_on_an_axis_that_a_value_lacks_does_not_hold() -> None:
    """Of a scalar, here: it would end the whole optimisation."""
    trial = try_rule(stated("Relu(Relu(x)) == Relu(x)", "a short last axis: x.shape[-1] in (1, 2, 3, 4)"), 60)
    assert not trial.failures
    assert 4 <= trial.witnesses < trial.drawn


def test_what_a_function_asks_of_its_parameters_is_drawn() -> None:
    @asks(values={"single": True})
    def numbers(*values: Any) -> bool:
        return all(v is None or v.type.size == 1 for v in values)

    rule = stated("Clip(x, *a, *b) == Clip(x, a, b)", "numbers: numbers(a, b)", functions={"numbers": numbers})
    (condition,) = (c for c in rule.conditions if c.name == "numbers")
    assert [(hint.name, hint.single) for hint in condition.hints] == [("a", True), ("b", True)]


def test_number_is_a_constant_of_equal_elements() -> None:
    rule = stated("x + 1 == x + 1 + 0")
    assert fires(rule, graph_of("Add", np.ones((2, 3), np.float32)))
    assert not fires(rule, graph_of("Add", np.float32(2)))
    nearly = stated("x * about(sqrt(1/2)) == x / about(sqrt(2))", exactness=Exactness.ROUNDING)
    assert fires(nearly, graph_of("Mul", np.float32(0.70710678)))
    assert not fires(nearly, graph_of("Mul", np.float32(0.7072)))


def test_attribute_that_is_not_mentioned_has_its_default() -> None:
    for text in ("Softmax(x) == Exp(LogSoftmax(x))", "Softmax(x, axis=-1) == Exp(LogSoftmax(x))"):
        rule = stated(text)
        assert fires(rule, graph_of("Softmax"))
        assert [fires(rule, graph_of("Softmax", axis=a)) for a in (-1, 0)] == [True, False]
    any_other = stated("Softmax(x, **n) == Exp(LogSoftmax(x, **n))")
    assert fires(any_other, graph_of("Softmax", axis=0))


def test_conditions_are_named_by_their_words() -> None:
    rule = stated("Relu(x) == x", "x is not negative: x.low >= 0")
    assert [c.name for c in rule.conditions] == ["x is not negative"]
    assert [c.name for c in stated("Relu(x) == x", "x.low >= 0").conditions] == ["x.low >= 0"]


def test_the_left_side_may_be_what_another_operator_reads() -> None:
    rule = stated("x + 0 == x", same_type("x"), read_by="Sqrt(root)")
    zero = np.zeros((2, 3), np.float32)
    assert not fires(rule, graph_of("Add", zero))
    b = GraphBuilder()
    total = b.op("Add", b.input("x", "float32", (2, 3)), b.constant(zero))
    graph = b.finish({"y": b.op("Sqrt", total)})
    encoding = encode(graph)
    assert saturate(encoding.egraph, [rule]).matches[rule.name]
    find = encoding.egraph.find
    assert find(encoding.handles[total]) == find(encoding.handles["x"])
    assert find(encoding.handles[graph.nodes[-1].outputs[0]]) != find(encoding.handles["x"])


def test_none_is_an_absent_input_or_attribute() -> None:
    bounded = stated("Clip(x, None, *b) == (x if b is None else Min(x, b))")
    upper = np.float32(1)
    assert fires(bounded, graph_of("Clip"))
    assert not fires(bounded, graph_of("Clip", upper))
    b = GraphBuilder()
    graph = b.finish({"y": b.op("Clip", b.input("x", "float32", (2, 3)), None, b.constant(upper))})
    assert fires(bounded, graph)
    assert not try_rule(stated("Softmax(x) == Softmax(x, axis=None)"), 10).failures


def test_conditions_that_only_pay_are_marked_in_words() -> None:
    (pays,) = stated("Relu(x) == x", worthwhile("it varies: not x.is_constant")).conditions
    assert (pays.name, pays.worthwhile) == ("it varies", True)


def test_attributes_are_handed_on_from_what_a_function_gives() -> None:
    rule = stated("Softmax(x, **n) == Softmax(Abs(x), **turned(n))", functions={"turned": lambda n: {"axis": 0}})
    encoding = encode(graph_of("Softmax", axis=1))
    saturate(encoding.egraph, [rule])
    assert {n.attributes.get("axis") for n in encoding.egraph.nodes if n.op == "Softmax"} == {0, 1}


@pytest.mark.parametrize(("where", "refuted"), [((), True), ((finite("w", "s"),), False)])
def test_constants_of_products_are_drawn_so_large_that_they_overflow(where: tuple[Any, ...], refuted: bool) -> None:
    number = "s is a number: s.type.size == 1 and s.rank == 0"
    rule = stated("(x @ w) * s == x @ (w * s)", constant("w", "s"), number, *where, exactness=Exactness.ROUNDING)
    assert bool(try_rule(rule, 120).failures) is refuted


def test_what_has_to_lie_along_an_axis_is_drawn_along_one() -> None:
    along = "s lies along the columns: lies_along(s, p, -1)"
    functions = {"lies_along": lambda s, p, axis: s.type.size == 1 or s.shape == p.shape[axis:]}
    text, where = "(p := x @ w) * s == x @ (w * s)", (constant("w", "s"), finite("w", "s"), "w.rank == 2")
    trial = try_rule(stated(text, *where, along, exactness=Exactness.ROUNDING, functions=functions), 80)
    assert not trial.failures
    assert trial.witnesses >= 8


def test_reverse_spells_the_operator_out() -> None:
    with only_here():
        there = equation("there", "x * Tanh(Softplus(x)) == Mish(x)", source="test", reverse="back")
        back = next(r for r in registered_rules() if r.name == "back")
    assert (there.legalizes, back.legalizes) == ("", "Mish")
    assert back.equation == "Mish(x) == x * Tanh(Softplus(x))"


def test_operators_of_other_domains_run_where_programs_may_use_them() -> None:
    assert stated("Gelu(x) == com.microsoft.Gelu(x)").domain == "com.microsoft"
    assert stated("x * tanh(softplus(x)) == mish(x)").domain == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x + 0", "is no equation; write left == right"),
        ("Relu(x) = x", "cannot be read: invalid syntax at 9"),
        ("Rellu(x) == x", "'Rellu' is no operator; did you mean 'Relu'"),
        ("Relu(x) == y", "'y' does not occur on the left side"),
        ("x == Relu(x)", "the left side is no operator"),
        ("Transpose(x, perm=(1, 0)) == Transpose(x, perm=inverse(p))", "is no operator"),
        ("x[0] == x", "only an operator has outputs"),
        ("Relu(x) == x[0]", "only an operator has outputs"),
        ("about() * x == x", "about takes one number"),
        ("Relu(x, y) == Relu(x)", "Relu is given 2 operands; it takes 1"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message.replace("(", r"\(")):
        stated(text)


def test_condition_that_cannot_be_read() -> None:
    with pytest.raises(RuleError, match="'z' does not occur on the left side"):
        stated("Relu(x) == x", "z.low > 0")


def test_a_fact_that_values_do_not_have_is_named_beside_the_nearest() -> None:
    with pytest.raises(RuleError, match=r"'x\.lwo > 0': a matched value has no 'lwo'; did you mean 'low'"):
        eqsat.equation("relu_of_positive", "Relu(x) == x", "x.lwo > 0")


def test_the_name_of_a_rule_is_one_that_options_can_give() -> None:
    with pytest.raises(RuleError, match="'relu, twice': a name is a word"):
        eqsat.equation("relu, twice", "Relu(Relu(x)) == Relu(x)")


def test_equations_of_users_are_checked_with_their_reverse() -> None:
    with only_here():
        made = eqsat.equation("exponentials", "Exp(x) * Exp(y) == Exp(x + y)", exactness="rounding")
        assert made.exactness is Exactness.ROUNDING
        with pytest.raises(RuleError, match="does not hold for"):
            eqsat.equation("wrong", "Relu(x) == Abs(x)", reverse="wrong_too")
        assert not {"wrong", "wrong_too"} & {r.name for r in registered_rules()}


def test_attributes_asked_of_a_node_twice_are_one_condition() -> None:
    rule = stated("ReduceMax(x, keepdims=1, **m) + ReduceMax(x, keepdims=1, **m) == ReduceMax(x, **m) * 2")
    assert [c.name for c in rule.conditions] == ["keepdims is 1"]


def test_condition_in_words_may_say_that_it_only_limits_growth() -> None:
    rule = stated("Relu(x) == x", "x.low >= 0", worthwhile("at most four axes: x.rank <= 4"))
    assert [(c.name, c.worthwhile) for c in rule.conditions] == [("x.low >= 0", False), ("at most four axes", True)]


def test_rule_may_be_kept_to_programs_with_operators_of_a_domain() -> None:
    assert stated("-(-x) == x", domain="com.microsoft").domain == "com.microsoft"
    assert not stated("-(-x) == x").domain


SHORT = {"N(x)": ("Neg(x)", "negated(x)"), "T(x)": ("Transpose(x, perm=p)", "Transpose(x, perm=p)")}


def test_shorthands_mean_one_term_on_the_left_and_another_on_the_right() -> None:
    def negated(x: Any) -> Any:
        return apply("Mul", x, literal(-1, x.dtype))

    rule = stated("Relu(N(x)) == Relu(N(x))", shorthands=SHORT, functions=named(negated))
    assert rule.pattern == apply("Relu", apply("Neg", Variable("x")).named("node_1")).named("node_0")
    assert rule.equation == "Relu(N(x)) == Relu(N(x))"
    assert not try_rule(rule, 20).failures


def test_attributes_given_to_a_shorthand_are_added_to_what_it_means() -> None:
    shorthands = {"S(x)": ("Softmax(x)", "Softmax(x)")}
    assert not try_rule(stated("S(-(-x), axis=-1) == S(x, axis=-1)", shorthands=shorthands), 20).failures


def test_name_of_a_function_is_not_that_of_a_value() -> None:
    with pytest.raises(RuleError, match="'x' is a function, too"):
        stated("-x == -x", functions={"x": len})


def test_form_is_a_term_that_instances_are_drawn_from() -> None:
    made = form("Relu(N(x))", "x.rank == 2", shorthands=SHORT)
    graph = automatic_instance(made, Sampler(0)).graph
    assert [node.op for node in graph.nodes][-2:] == ["Neg", "Relu"]
    assert made.name not in {r.name for r in registered_rules()}


def _negated(view: GroupView) -> Iterator[Match]:
    for node, (x,) in view.nodes("Neg"):
        yield Match({"x": x, "n": node.type.rank}, node)


def are_axes(n: int) -> bool:
    return n == 2


def _subtracted(m: Match) -> Term:
    """``-x == 0 - x`` for a matrix."""
    return apply("Sub", literal(0, m.root.dtype), m.x)


def _over_groups(*words: str, **options: Any) -> GroupRule:
    common = Equations(__name__, source="test", exactness=Exactness.ROUNDING, sample=lambda d: {})
    with only_here():
        return common.over_groups(find=_negated, where=words, forms=["-x", "Relu(-x)"], **options)(_subtracted)


def test_words_of_a_group_rule_are_about_what_its_finder_binds() -> None:
    rule = _over_groups("a matrix: are_axes(n)", "signed: all(s for s in [x.dtype.is_signed])")
    assert [c.name for c in rule.conditions] == ["a matrix", "signed"]
    assert (rule.source, rule.exactness, rule.sample) == ("test", Exactness.ROUNDING, None)
    trial = try_rule(rule, 60)
    assert not trial.failures
    assert 0 < trial.fired < 60
    assert trial.reasons["a matrix"]


def test_words_of_a_group_rule_call_only_functions_that_there_are() -> None:
    with pytest.raises(RuleError, match="are_axis"):
        _over_groups("a matrix: are_axis(n)")
    with only_here(), pytest.raises(RuleError, match="no operator"):
        group_rule(find=_negated, forms=["x"], source="test")(_subtracted)


def test_words_of_a_group_rule_may_name_a_value_as_a_function_is_named() -> None:
    rule = _over_groups("a matrix: number == 2", functions={"number": literal})
    (holds,) = (c.holds for c in rule.conditions)
    assert holds(Match({"number": 2}, Variable("x")))  # type: ignore[arg-type]


def test_what_shipped_rules_say_in_words_can_be_read() -> None:
    words = [c.holds for r in registered_rules() for c in r.conditions if isinstance(c.holds, Compiled)]
    assert len(words) > 1000
    for holds in words:
        holds.now()


def test_number_of_an_unknown_type_is_no_number() -> None:
    b = GraphBuilder()
    unknown = b.op("Mystery", b.input("x", "float32", (2,)), domain="somewhere")
    assert not fires(stated("-x == x * -1"), b.finish({"y": b.op("Neg", unknown)}))
