"""The harness itself: rules that are wrong in the usual ways must not get past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.rule_trials import try_rule
from eqsat.exactness import Exactness
from eqsat.rewrite import (
    Apply,
    GroupRule,
    GroupView,
    Match,
    Merge,
    Rule,
    Term,
    apply,
    find_rule,
    literal,
    present,
    variables,
)
from eqsat.rules.algebra import broadcasting
from eqsat.rules.terms import add, matmul, mul, sub, transpose
from eqsat.rules.views import movement, parts
from eqsat.samples import Sampler, fixed

x, y, w, s, z, r = variables("x y w s z r?")
WRONG: list[Rule | GroupRule] = []


def wrong(pattern: Any, sample: Any, exactness: Exactness = Exactness.EXACT, **kept: Any) -> Callable[..., Any]:
    def make(build: Callable[[Match], Term]) -> None:
        name = build.__name__
        WRONG.append(Rule(name, pattern, build, exactness=exactness, family="test", sample=sample, **kept))

    return make


def mutant(name: str) -> Callable[..., Any]:
    """A wrong right side in place of that of a shipped rule, whose conditions and samples stay."""
    of = find_rule(name)

    def make(build: Callable[[Match], Term]) -> None:
        WRONG.append(replace(of, name=build.__name__, build=build))

    return make


def _pair(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    return {"x": d.floats(shape, wild=True), "y": d.floats(shape, wild=True)}


def _square(d: Sampler) -> dict[str, Any]:
    n = d.integer(2, 4)
    return {"x": d.floats((n, n)), "y": d.floats((n, n)), "n": {"perm": (0, 1)}}


def _scaled(d: Sampler) -> dict[str, Any]:
    n = d.integer(2, 4)  # square, so that a scale along the wrong axis has a fitting shape
    return {"x": d.floats((n, n)), "w": fixed(d.floats((n, n))), "s": fixed(d.positive((n,)))}


@wrong(sub(x, y), _pair)
def swapped_operands(m: Match) -> Term:
    return sub(m.y, m.x)


@wrong(sub(x, x), lambda d: {"x": d.floats(d.shape(), infinite=True)})
def difference_with_itself_is_zero(m: Match) -> Term:
    return literal(np.zeros(m.root.static_shape, np.float32))


@wrong(mul(x, s), lambda d: {"x": d.floats(d.shape(), infinite=True), "s": fixed(np.float32(0))})
def product_with_zero_is_zero(m: Match) -> Term:
    return literal(np.zeros(m.root.static_shape, np.float32))


@wrong(matmul(x, y), _square, Exactness.ROUNDING)
def product_commutes(m: Match) -> Term:
    return matmul(m.y, m.x)


@wrong(mul(matmul(x, w), s), _scaled, Exactness.ROUNDING)
def scale_along_rows_instead_of_columns(m: Match) -> Term:
    return matmul(m.x, mul(m.w, apply("Reshape", m.s, literal(np.array([-1, 1], np.int64)))))


@wrong(add(add(x, y), s), lambda d: {**_pair(d), "s": d.floats((), wild=True)})
def reassociation_declared_exact(m: Match) -> Term:
    return add(m.x, add(m.y, m.s))


@wrong(apply("Not", apply("Less", x, y)), lambda d: {"x": d.floats((3, 4), infinite=True), "y": d.floats((3, 4))})
def comparison_negated_despite_nan(m: Match) -> Term:
    return apply("GreaterOrEqual", m.x, m.y)


@wrong(apply("Abs", x), lambda d: {"x": d.floats(d.shape())})
def wrong_sign(m: Match) -> Term:
    return apply("Neg", apply("Abs", m.x))


@wrong(apply("Relu", x), lambda d: {"x": d.floats(d.shape())})
def never_saturates(m: Match) -> Term:
    return apply("Relu", apply("Identity", m.x))


@wrong(apply("Cast", apply("Cast", x).named("p")).named("q"), lambda d: _narrowing(d))
def cast_through_a_narrower_type(m: Match) -> Term:
    return m.x


def _narrowing(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats(d.shape()), "p": {"to": 10}, "q": {"to": 1}}


def _quantised(d: Sampler) -> dict[str, Any]:
    return {"x": d.floats((3, 5)), "s": fixed(np.float32(0.01)), "z": fixed(np.uint8(120))}


@wrong(apply("QuantizeLinear", x, s, z), _quantised, Exactness.LSB, quanta=1)
def a_quantum_off_everywhere(m: Match) -> Term:
    return apply("QuantizeLinear", m.x, m.s, literal(np.uint8(m.z.value + 1)))


@wrong(apply("Div", s, x), lambda d: {"x": d.integers((3, 4), "int32", 1, 9), "s": fixed(np.int32(1))})
def operator_without_a_kernel(m: Match) -> Term:
    return apply("Reciprocal", m.x)


@wrong(apply("Resize", x, r, s), lambda d: {"x": d.floats((1, 1, 2, 3)), "s": fixed([1, 1, 2, 2], "float32")})
def operator_without_a_value(m: Match) -> Term:
    return apply("Resize", m.x, None, apply("Neg", m.s))


@mutant("compose_transposes")
def permutations_composed_the_wrong_way(m: Match) -> Term:
    return transpose(m.x, [m.q[i] for i in m.p])


@mutant("compose_slices")
def inner_step_forgotten(m: Match) -> Term:
    inner = movement.taken(m.x, m.s, m.t, m.a, m.b)
    for axis, outer in movement.taken(m.n, m.u, m.v, m.e, m.f).items():
        start = inner.get(axis, range(1)).start + outer.start
        inner[axis] = range(start, start + len(outer) * outer.step, outer.step)
    return movement.slice_term(m.x, inner)


@mutant("move_left_transpose_into_gemm")
def flag_left_as_it_was(m: Match) -> Term:
    return Apply("Gemm", present(m.x, m.y, m.c), m.g.attributes)


@mutant("compose_clips")
def bounds_intersected(m: Match) -> Term:
    bounds: list[Any] = [m.a, m.b, m.f, m.g]
    m.require(None not in bounds, "a bound is absent")
    return apply("Clip", m.x, apply("Max", bounds[0], bounds[2]), apply("Min", bounds[1], bounds[3]))


@mutant("add_negated_constant")
def constant_not_negated(m: Match) -> Term:
    return add(m.x, m.c)


@mutant("exchange_choices")
def choices_not_exchanged(m: Match) -> Term:
    return apply("Where", m.c, m.x, m.y)


@mutant("normalise_cast_like")
def cast_to_own_type(m: Match) -> Term:
    return m.x


@mutant("fold_extents")
def start_of_shape_forgotten(m: Match) -> Term:
    found = m.x.shape[int(m.s.value[0]) : int(m.t.value[0])]
    m.require(all(isinstance(d, int) for d in found), "an extent is unknown")
    return literal(np.array(found, np.int64))


def _group(of: GroupRule, change: Callable[[Term], Term]) -> GroupRule:
    def build(view: GroupView) -> Iterator[Merge]:
        for ref, term in of.merges(view):
            yield ref, change(term)

    name = f"wrong_{of.name}"
    return GroupRule(name, build, exactness=of.exactness, family="test", sample=of.sample, forms=of.forms)


def _reversed(term: Any) -> Term:
    return apply(term.op, *reversed(term.args), **term.attributes) if getattr(term, "op", "") == "Concat" else term


def _exchanged(term: Any) -> Term:
    return apply(term.op, *reversed(term.args), **term.attributes) if term.op == "Sub" else term


WRONG.append(_group(parts.flatten_concat, _reversed))
WRONG.append(_group(broadcasting.remove_expand_before_elementwise, _exchanged))


@pytest.mark.parametrize("rule", WRONG, ids=[r.name for r in WRONG])
def test_wrong_rule_is_rejected(rule: Rule | GroupRule) -> None:
    trial = try_rule(rule, 40, stop_at_failure=True)
    assert trial.failures, f"fired on {trial.fired} of {trial.drawn} instances and was not caught"


def test_violation_names_class_enode_and_rule() -> None:
    trial = try_rule(next(r for r in WRONG if r.name == "wrong_sign"), 20, stop_at_failure=True)
    assert "joined by wrong_sign" in trial.failures[0]
    assert "Neg(" in trial.failures[0]
