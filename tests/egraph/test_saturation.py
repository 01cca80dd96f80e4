"""Saturation: limits and stop reasons, congruence, determinism, what must never be merged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_graphs import feeds, graph, make_rule

import eqsat.rules  # noqa: F401  # registers the shipped rules
from eqsat.egraph.encode import encode
from eqsat.egraph.engine import engine_for
from eqsat.egraph.enode import UnsoundError
from eqsat.egraph.explain import Explainer
from eqsat.egraph.patterns import compile_pattern
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.egraph.soundness import check_egraph, evaluate_classes
from eqsat.errors import RuleError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import DType
from eqsat.pipeline import optimize
from eqsat.rewrite import WIDEST, Rule, apply, find_rule, literal, registered_rules, variables
from eqsat.rules.terms import add, mul

x, y = variables("x y")
GROW = make_rule(apply("Relu", x), lambda m: apply("Relu", apply("Identity", m.x)), "grow")
COMMUTE = make_rule(add(x, y), lambda m: add(m.y, m.x), "commute")


def _relu(b: Any, x: str) -> Any:
    return b.op("Relu", x)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(nodes=50), StopReason.NODE_LIMIT),
        (Limits(iterations=5), StopReason.ITERATION_LIMIT),
        (Limits(time_s=0.0), StopReason.TIME_LIMIT),
        (Limits(memory_bytes=-1), StopReason.MEMORY_LIMIT),
    ],
)
def test_limit_is_the_stop_reason(limits: Limits, reason: StopReason) -> None:
    encoding = encode(graph(_relu, x=(2,)))
    assert saturate(encoding.egraph, [GROW], limits).stop_reason is reason
    assert not check_egraph(encoding, {"x": np.ones(2, np.float32)}, [GROW])  # the e-graph stays usable


def test_nothing_to_do_is_saturation() -> None:
    result = saturate(encode(graph(_relu, x=(2,))).egraph, [])
    assert result.stop_reason is StopReason.SATURATED


def test_progress_reports_iterations() -> None:
    seen: list[tuple[int, int]] = []
    saturate(encode(graph(_relu, x=(2,))).egraph, [GROW], Limits(iterations=3), lambda i, n: seen.append((i, n)))
    assert [i for i, _ in seen] == sorted({i for i, _ in seen})
    assert [n for _, n in seen] == sorted(n for _, n in seen)


def test_engine_that_served_before_finds_the_same() -> None:
    rules = [COMMUTE, find_rule("remove_identity"), find_rule("compose_transposes")]
    queries = [query for rule in rules for query in compile_pattern(rule)]
    graphs = [
        graph(lambda b, x: b.op("Identity", b.op("Identity", x)), x=(2,)),
        graph(lambda b, x, y: b.op("Add", b.op("Identity", x), y), x=(2,), y=(2,)),
        graph(lambda b, x: b.op("Transpose", b.op("Transpose", x, perm=(1, 0)), perm=(1, 0)), x=(2, 3)),
    ]
    for made in [*graphs, *graphs]:
        fresh, served = encode(made), encode(made)
        with engine_for(queries):  # the one that waits is taken
            expected = saturate(fresh.egraph, rules)
        found = saturate(served.egraph, rules)
        assert found.matches == expected.matches
        assert served.egraph.nodes == fresh.egraph.nodes
        assert sum(found.matches.values())


def test_an_engine_that_failed_serves_nobody() -> None:
    with engine_for([]) as first:
        pass
    with pytest.raises(ZeroDivisionError), engine_for([]) as second:
        raise ZeroDivisionError
    with engine_for([]) as third:
        pass
    assert first is second
    assert third is not second


def test_what_did_not_hold_is_tried_again_once_a_value_is_constant() -> None:
    """Pads that are the difference of two extents, which a rule over groups finds to be equal after `remove_pad` was tried."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 4))
    rows = [b.op("Shape", v, start=0, end=1) for v in (x, b.op("Neg", x))]
    pads = b.op("Concat", b.op("Sub", *rows), b.constant([0, 0, 0], "int64"), axis=0)
    y = b.op("Relu", b.op("Pad", x, pads))
    encoding = encode(b.finish({"y": y}))
    found = saturate(encoding.egraph, [find_rule(name) for name in ("remove_pad", "read_extents_from_inputs")])
    assert found.stop_reason is StopReason.SATURATED
    assert found.matches == {"remove_pad": 1, "read_extents_from_inputs": 1}


def test_users_of_equal_values_are_equal() -> None:
    def build(b: Any, x: str, y: str) -> Any:
        return b.op("Exp", b.op("Relu", b.op("Add", x, y))), b.op("Exp", b.op("Relu", b.op("Add", y, x)))

    encoding = encode(graph(build, x=(2,), y=(2,)))
    find, handles = encoding.egraph.find, encoding.handles
    assert find(handles["y0"]) != find(handles["y1"])
    saturate(encoding.egraph, [COMMUTE])
    assert find(handles["y0"]) == find(handles["y1"])


@pytest.mark.parametrize("inputs", [WIDEST, WIDEST + 1])
def test_operators_of_any_number_of_inputs_are_congruent(inputs: int) -> None:
    def build(b: Any, x: str, y: str) -> Any:
        ends = b.op("Add", x, y), b.op("Add", y, b.op("Identity", x))
        return tuple(b.op("Exp", b.op("Concat", *[x] * (inputs - 1), end, axis=0)) for end in ends)

    encoding = encode(graph(build, x=(2,), y=(2,)))
    find, handles = encoding.egraph.find, encoding.handles
    assert find(handles["y0"]) != find(handles["y1"])
    saturate(encoding.egraph, [find_rule("remove_identity")])
    assert find(handles["y0"]) == find(handles["y1"])


def test_explanation_names_the_rules_of_the_proof() -> None:
    def build(b: Any, x: str, y: str) -> Any:
        return b.op("Relu", b.op("Add", x, b.op("Identity", y))), b.op("Relu", b.op("Add", y, x)), b.op("Relu", x)

    encoding = encode(graph(build, x=(2,), y=(2,)))
    saturate(encoding.egraph, [COMMUTE, find_rule("remove_identity"), GROW], Limits(iterations=4))
    explainer = Explainer(encoding.egraph)
    first, second = encoding.handles["y0"], encoding.handles["y1"]
    assert explainer.rules_between(first, second) == {"remove_identity"}  # addition commutes by definition
    assert explainer.rules_between(first, first) == frozenset()


def test_proofs_may_rest_on_any_number_of_others() -> None:
    def build(b: Any, x: str) -> Any:
        first, second = x, b.op("Identity", x)
        for _ in range(2000):
            first, second = b.op("Sin", first), b.op("Sin", second)
        return first, second

    encoding = encode(graph(build, x=(2,)))
    saturate(encoding.egraph, [find_rule("remove_identity")])
    explainer = Explainer(encoding.egraph)
    assert explainer.rules_between(encoding.handles["y0"], encoding.handles["y1"]) == {"remove_identity"}


def test_proofs_in_a_class_of_many_equal_nodes_take_steps_in_proportion() -> None:
    def build(b: Any, x: str) -> Any:
        for _ in range(1000):
            x = b.op("Identity", x)
        return x

    encoding = encode(graph(build, x=(2,)))
    saturate(encoding.egraph, [find_rule("remove_identity")])
    explainer = Explainer(encoding.egraph)
    compared: list[tuple[int, int]] = []
    pairs = explainer._pairs

    def counted(left: int, right: int, before: int) -> Any:
        compared.append((left, right))
        return pairs(left, right, before)

    explainer._pairs = counted
    assert explainer.rules_for(encoding.handles["y0"]) == {"remove_identity"}
    assert len(compared) < 2000


def test_union_of_different_types_is_an_error() -> None:
    encoding = encode(graph(lambda b, x: b.op("Relu", x), x=(2, 3)))
    egraph = encoding.egraph
    other = egraph.add_input("other", graph(_relu, x=(3, 2)).type_of("x"))
    with pytest.raises(UnsoundError, match="from a test: joined"):
        egraph.union(encoding.handles["y0"], other, "from a test")


def test_right_side_of_another_type_is_an_error() -> None:
    turn = make_rule(apply("Relu", x), lambda m: apply("Transpose", m.x), "turn")
    with pytest.raises(RuleError, match="'turn': the right side has type"):
        saturate(encode(graph(_relu, x=(2, 3))).egraph, [turn])


def test_malformed_right_side_is_an_error() -> None:
    bad = make_rule(apply("Relu", x), lambda m: apply("MatMul", m.x, m.x), "bad")
    with pytest.raises(RuleError, match="'bad' builds a term that is not well-formed"):
        saturate(encode(graph(_relu, x=(2, 3))).egraph, [bad])


def test_rule_with_an_unmet_condition_does_not_fire() -> None:
    from eqsat.rewrite import Condition

    never = make_rule(apply("Relu", x), lambda m: m.x, "never", (Condition("never", lambda m: False),))
    result = saturate(encode(graph(_relu, x=(2,))).egraph, [never])
    assert result.matches == {"never": 0}


# --- what is never merged ------------------------------------------------------------------------------------------------


def _twice(op: str, domain: str = "", opaque: str = "") -> Graph:
    made = graph(lambda b, x: (b.op("Relu", x), b.op("Relu", b.op("Identity", x))), x=(2,))
    nodes = [replace(n, op=op, domain=domain, opaque=opaque) if n.op == "Relu" else n for n in made.nodes]
    return made.with_nodes(nodes)


@pytest.mark.parametrize(
    ("op", "domain", "opaque"),
    [("Custom", "com.example", ""), ("Relu", "", "has a body"), ("RandomUniformLike", "", ""), ("Dropout", "", "")],
)
def test_unknown_and_random_nodes_stay_apart(op: str, domain: str, opaque: str) -> None:
    encoding = encode(_twice(op, domain, opaque))
    saturate(encoding.egraph, [find_rule("remove_identity")])
    assert encoding.egraph.find(encoding.handles["y0"]) != encoding.egraph.find(encoding.handles["y1"])


def test_known_nodes_are_merged() -> None:
    encoding = encode(_twice("Relu"))
    saturate(encoding.egraph, [find_rule("remove_identity")])
    assert encoding.egraph.find(encoding.handles["y0"]) == encoding.egraph.find(encoding.handles["y1"])


def test_dropout_at_inference_is_nothing() -> None:
    encoding = encode(_twice("Dropout"))
    saturate(encoding.egraph, registered_rules())
    assert {encoding.egraph.find(encoding.handles[v]) for v in ("x", "y0", "y1")} == {encoding.egraph.find(1)}


# --- several outputs -----------------------------------------------------------------------------------------------------


def _halves(b: Any, x: str) -> Any:
    left, right = b.op("Split", x, outputs=2, axis=0, num_outputs=2)
    return b.op("Relu", left), b.op("Relu", right)


def test_pattern_takes_the_output_it_asks_for() -> None:
    second = apply("Split", x, outputs=2).named("n").output(1)
    name_it = make_rule(apply("Relu", second), lambda m: apply("Abs", apply("Relu", m.x)), "second")
    with pytest.raises(RuleError, match=r"float32\[4\], the left side float32\[2\]"):
        saturate(encode(graph(_halves, x=(4,))).egraph, [name_it])


def test_outputs_have_their_own_types_and_values() -> None:
    original = graph(_halves, x=(3, 2))
    encoding = encode(original)
    saturate(encoding.egraph, [])
    arrays = feeds(original)
    values = evaluate_classes(encoding.egraph, arrays)
    for name, part in (("y0", arrays["x"][:2]), ("y1", arrays["x"][2:])):
        cls = encoding.egraph.find(encoding.handles[name])
        assert np.array_equal(values[cls], np.maximum(part, 0))
        assert str(encoding.egraph.type_of(cls)) == f"float32[{len(part)}, 2]"
    assert not check_egraph(encoding, arrays)


def test_small_constants_fold_and_large_ones_wait() -> None:
    def build(b: Any, x: str) -> Any:
        small = b.op("Add", b.constant([1.0, 2.0], "float32"), b.constant(1.0, "float32"))
        large = b.op("Add", b.constant(np.ones((64, 65), np.float32)), b.constant(1.0, "float32"))
        return b.op("Add", x, small), large

    encoding = encode(graph(build, x=(2,)))
    egraph = encoding.egraph
    saturate(egraph, [])
    folded = next(h for h, n in enumerate(egraph.nodes) if n.op == "Add" and egraph.value_of(h) is not None)
    assert egraph.value_of(folded).tolist() == [2.0, 3.0]  # type: ignore[union-attr]
    assert egraph.is_constant(encoding.handles["y1"])
    assert egraph.value_of(encoding.handles["y1"]) is None


# --- determinism ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [(100, 60), (-100, -60)])
def test_what_overflows_or_vanishes_gets_no_more_spellings(numbers: tuple[int, int]) -> None:
    """``Exp(100) * Exp(60)`` is infinite, and so is the exponential of each sum with one more 60."""
    exp = make_rule(mul(apply("Exp", x), apply("Exp", y)), lambda m: apply("Exp", add(m.x, m.y)), "exp")

    def build(b: Any, x: str) -> str:
        large, other = (b.op("Exp", b.constant(np.float32(number))) for number in numbers)
        return b.op("Add", b.op("Mul", large, other), b.op("Mul", b.op("Exp", x), other))

    result = saturate(encode(graph(build, x=(3,))).egraph, [exp], Limits(iterations=20), literals=True)
    assert (result.stop_reason, result.matches["exp"]) == (StopReason.SATURATED, 2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_spellings_of_literals_are_no_matches(dtype: str) -> None:
    """Each product of zeros and a scale is zero: matched with one another they are as many squared."""

    def build(b: Any, x: str) -> Any:
        zeros = b.op("Cast", b.constant(np.zeros(2, np.float32)), to=int(DType.of(dtype)))
        products = [b.op("Mul", zeros, b.constant([k, 1.0], dtype)) for k in range(2, 32)]
        return tuple(b.op("Add", b.op("Cast", x, to=int(DType.of(dtype))), product) for product in products)

    rule = make_rule(mul(mul(x, y), x), lambda m: mul(mul(m.x, m.x), m.y), "regroup")
    assert saturate(encode(graph(build, x=(2,))).egraph, [rule]).work["offered"] == 0


def _block(b: Any, x: str, w: str) -> Any:
    h = b.op("Transpose", b.op("MatMul", x, w), perm=(1, 0))
    h = b.op("Div", b.op("Mul", h, b.constant(3.0, "float32")), b.constant(2.0, "float32"))
    parts = b.op("Split", b.op("Transpose", h, perm=(1, 0)), outputs=2, axis=1, num_outputs=2)
    return b.op("Concat", *parts, axis=1), b.op("Reshape", b.op("Flatten", h), b.constant([-1], "int64"))


def test_two_runs_give_the_same_text() -> None:
    texts = {
        str(optimize(graph(_block, x=(4, 3), w=(3, 4)), verify=False, form="flat").program.graph) for _ in range(2)
    }
    assert len(texts) == 1


def test_order_of_rules_does_not_change_what_is_equal() -> None:
    counts = set()
    for rules in (registered_rules(), registered_rules()[::-1]):
        encoding = encode(graph(_block, x=(4, 3), w=(3, 4)))
        assert saturate(encoding.egraph, rules).stop_reason is StopReason.SATURATED
        counts.add(len({encoding.egraph.find(encoding.handles[v]) for v in encoding.handles if v}))
    assert len(counts) == 1


def test_wrong_rule_shows_in_the_evaluation() -> None:
    wrong: Rule = make_rule(apply("Relu", x), lambda m: add(m.x, literal(1.0, m.x.dtype)), "wrong")
    original = graph(_relu, x=(3,))
    encoding = encode(original)
    saturate(encoding.egraph, [wrong])
    (violation,) = check_egraph(encoding, feeds(original), [wrong])
    assert violation.rules == ("wrong",)
    assert violation.enode.startswith("Add(")


def test_of_ways_between_the_same_ends_one_is_taken() -> None:
    def turned(b: Any, x: str) -> Any:
        for perm in ((1, 2, 3, 0), (0, 2, 1, 3), (3, 1, 2, 0), (2, 3, 0, 1), (1, 0, 3, 2)):
            x = b.op("Transpose", x, perm=perm)
        return x

    rule = find_rule("compose_transposes")
    assert isinstance(rule, Rule)
    assert rule.ends == ("x",)
    seen: list[tuple[set[tuple[int, ...]], int]] = []
    for each in (rule, replace(rule, ends=())):
        encoding = encode(graph(turned, x=(2, 3, 4, 5)))
        work = saturate(encoding.egraph, [each]).work
        egraph, x = encoding.egraph, encoding.handles[encoding.graph.inputs[0]]
        of_x = {n.attributes["perm"] for n in egraph.nodes if n.op == "Transpose" and n.children[0] == x}
        seen.append((of_x, work["built"]))
    (one, few), (every, many) = seen
    assert one == every
    assert len(one) > 3
    assert few < many
