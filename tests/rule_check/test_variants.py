"""What the check of a rule makes of its samples: holes that a sample leaves are found all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.rule_trials import try_rule
from eqsat.egraph import apply as applying
from eqsat.egraph.undefined import undefined
from eqsat.exactness import Exactness
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.rewrite import Rule, apply, find_rule, literal, registered_rules, variables
from eqsat.rule_check.trials import Trial
from eqsat.rule_check.variants import enlarged, narrowed, with_specials
from eqsat.rules.terms import sub
from eqsat.samples import SYMBOLIC, Drawing, Instance, Sampler, fixed

x, c = variables("x c")


def _product(symbolic: tuple[int, ...], constant: np.ndarray) -> Instance:
    drawing = Drawing()
    value = drawing.value(np.arange(12, dtype=np.float32).reshape(6, 2), symbolic)
    return drawing.finish(drawing.op("Mul", value, drawing.value(fixed(constant))))


def test_constant_becomes_as_large_as_the_symbol_beside_it() -> None:
    grown = enlarged(_product((6,), np.full((1,), 3, np.float32)))
    assert grown is not None
    assert str(grown.graph.constants["c_1"].type) == "float32[6, 1]"
    assert enlarged(_product((), np.full((1,), 3, np.float32))) is None


def test_symbols_become_one_where_the_graph_means_something_then() -> None:
    feeds = list(narrowed(_product((6,), np.full((1,), 3, np.float32))))
    assert [f["x0"].shape for f in feeds] == [(1, 2)]
    drawing = Drawing()
    value = drawing.value(np.ones((6, 2), np.float32), (6,))
    shape = drawing.value(fixed(np.array([4, 3])))
    assert not list(narrowed(drawing.finish(drawing.op("Reshape", value, shape))))


def test_specials_are_nan_then_infinities() -> None:
    first, second = with_specials(_product((), np.ones(1, np.float32)), np.random.default_rng(3))
    assert np.isnan(first["x0"]).any()
    assert np.isinf(second["x0"]).any()
    assert not np.isnan(second["x0"]).any()


def _subtracted(d: Sampler) -> dict[str, Any]:
    shape = d.extents(2, ones=0)
    return {"x": d.floats(shape), "y": d.floats(shape), "c": fixed(np.float32(-1)), SYMBOLIC: d.subset(range(2, 8))}


def test_broadcast_that_only_an_extent_of_one_shows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its condition the rule compares nothing; that it holds for all extents is for the e-graph to see."""
    shipped = find_rule("subtract_instead_of_adding_opposite")
    assert isinstance(shipped, Rule)
    kept = tuple(c for c in shipped.conditions if "enlarges nothing" not in c.name)
    rule = replace(shipped, sample=_subtracted, conditions=kept)
    assert not try_rule(rule, 40).failures
    monkeypatch.setattr(applying, "may_differ", lambda a, b: False)
    assert any("the class has type" in failure for failure in try_rule(rule, 40).failures)


def test_exact_rule_that_is_wrong_for_nan_alone_is_caught() -> None:
    def zeros(m: Any) -> Any:
        return literal(np.zeros(m.root.static_shape, np.float32))

    def rule(exactness: Exactness) -> Rule:
        return Rule("zero", sub(x, x), zeros, exactness=exactness, sample=lambda d: {"x": d.floats((3, 4))})

    assert try_rule(rule(Exactness.EXACT), 10).failures
    assert not [f for f in try_rule(rule(Exactness.ROUNDING), 10).failures if "kernel" not in f]


def test_nan_that_is_quantised_is_no_counterexample_but_its_neighbours_are() -> None:
    assert not try_rule(next(r for r in registered_rules() if r.name == "move_max_behind_quantize"), 20).failures

    def lost(m: Any) -> Any:
        return apply("QuantizeLinear", m.x, m.s, m.z)

    _, s, z, y = variables("x s z y")
    pattern = apply("QuantizeLinear", apply("Max", x, y), s, z)

    def draw(d: Sampler) -> dict[str, Any]:
        shape = d.extents(2, ones=0)
        return {"x": d.floats(shape), "y": d.floats(shape), "s": fixed(np.float32(0.1)), "z": fixed(np.int8(0))}

    wrong = Rule("lost", pattern, lost, exactness=Exactness.EXACT, family="test", sample=draw)
    assert Trial().run(wrong, _drawn(wrong))


def _drawn(rule: Rule) -> Instance:
    from eqsat.samples import draw_instance

    return draw_instance(rule, Sampler(1))


def test_conversions_that_onnx_leaves_open() -> None:
    value = np.array([1.0, np.nan, np.inf, 3e9, -1.5], np.float32)
    scale = np.float32(1)
    quantised = undefined(
        "QuantizeLinear", NO_ATTRIBUTES, [(value, None), (np.asarray(scale), None)], np.zeros(5, np.uint8)
    )
    assert quantised is not None
    assert quantised.tolist() == [False, True, False, False, False]  # beyond the range it saturates
    cast = undefined("Cast", Attributes({"to": 2}), [(value, None)], np.zeros(5, np.uint8))
    assert cast is not None
    assert cast.tolist() == [False, True, True, True, True]
    assert undefined("Cast", Attributes({"to": 9}), [(value, None)], np.zeros(5, np.bool_)) is None


def test_elements_that_depend_on_an_open_one_are_open() -> None:
    marked = np.array([True, False])
    data = np.array([3, 4], np.uint8)
    bound = np.array([5, 5], np.uint8)
    found = undefined("Max", NO_ATTRIBUTES, [(data, marked), (bound, None)], np.maximum(data, bound))
    assert found is not None
    assert found.tolist() == [True, False]
    assert undefined("Max", NO_ATTRIBUTES, [(data, None), (bound, None)], np.maximum(data, bound)) is None
