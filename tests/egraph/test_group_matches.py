"""Group rules whose left side is found by a function: what is found, which conditions hold, what is said of those that do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from eqsat.conditions import condition
from eqsat.egraph.encode import encode
from eqsat.egraph.group_view import EGraphView
from eqsat.egraph.saturate import saturate
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import GroupRule, GroupView, Match, Term, Unmet, apply, group_rule, literal, unregister
from eqsat.rules.terms import sub


def _negations(view: GroupView) -> Iterator[Match]:
    for node, (x,) in view.nodes("Neg"):
        if x is not None:
            yield Match({"x": x, "axes": x.rank}, node)


@condition("a matrix")
def _matrix(m: Match) -> bool:
    return m.axes == 2


def _rule() -> GroupRule:
    @group_rule(find=_negations, where=[_matrix], exactness=Exactness.EXACT, source="test")
    def subtract_matrix_from_zero(m: Match) -> Term:
        """``-x == 0 - x`` for a matrix."""
        return sub(literal(np.float32(0)), m.x)

    unregister(subtract_matrix_from_zero.name)
    return subtract_matrix_from_zero


def _graph() -> Graph:
    b = GraphBuilder()
    vector, matrix = b.input("v", "float32", (3,)), b.input("m", "float32", (2, 3))
    return b.finish([b.op("Neg", vector), b.op("Neg", matrix)])


def test_right_side_is_made_of_matches_whose_conditions_hold() -> None:
    view = EGraphView(encode(_graph()).egraph)
    missed: Counter[str] = Counter()
    merges = list(_rule().merges(view, lambda reason: missed.update([str(reason)])))
    assert [root.rank for root, _ in merges] == [2]
    assert missed == {"a matrix": 1}


def test_dropped_condition_lets_all_matches_through() -> None:
    view = EGraphView(encode(_graph()).egraph)
    assert len(list(replace(_rule(), conditions=()).merges(view))) == 2


def test_match_about_which_too_little_is_known_does_not_hide_the_others() -> None:
    def build(m: Match) -> Term:
        if m.x.rank == 1:
            raise Unmet("a vector")
        return apply("Abs", m.x)

    rule = replace(_rule(), conditions=(), build=build)
    assert [root.rank for root, _ in rule.merges(EGraphView(encode(_graph()).egraph))] == [2]


def test_report_counts_the_conditions_that_failed() -> None:
    found = saturate(encode(_graph()).egraph, [_rule()])
    assert found.matches["subtract_matrix_from_zero"] == 1
    assert found.reasons["subtract_matrix_from_zero", "a matrix"] >= 1
