"""Each side condition of each rule, dropped in turn: the harness must notice, or the condition is on the list to shrink."""

from __future__ import annotations

import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.explained_conditions import UNDETECTED
from benchmarks.rule_trials import SampleError, try_rule, without
from eqsat.rewrite import AnyRule, Condition, registered_rules
from eqsat.rule_check.trials import Trial

INSTANCES = 60
MANY = 10
"""Conditions, each of which an instance rarely misses alone."""

CASES = [
    (rule, condition)
    for rule in registered_rules()
    for condition in rule.conditions
    if not condition.fact and not condition.worthwhile
]
"""Conditions that only ask for constants, or for what varies, are left out: they say where a rule pays, not where it holds."""


def _name(case: tuple[AnyRule, Condition]) -> tuple[str, str]:
    return case[0].name, case[1].name


def drop(rule: AnyRule, condition: Condition) -> Trial:
    few = rule.sample is not None and len(rule.conditions) <= MANY
    instances = INSTANCES if few else 2 * INSTANCES
    try:
        return try_rule(without(rule, condition), instances, seed=7, stop_at_failure=True)
    except SampleError:
        raise
    except Exception as error:  # the right side relied on the condition
        return Trial(failures=[repr(error)])


def _params(listed: bool, every: int) -> list[object]:
    """Of the conditions on the list, or not on it, one in twice ``every`` is tried, as many are thorough, the others slow."""
    chosen = [case for case in CASES if (_name(case) in UNDETECTED) is listed]
    marks = [
        pytest.mark.slow if i % every else pytest.mark.thorough if i % (2 * every) else () for i in range(len(chosen))
    ]
    return [pytest.param(*case, id=":".join(_name(case)), marks=m) for case, m in zip(chosen, marks, strict=True)]


@pytest.mark.parametrize(("rule", "condition"), _params(listed=False, every=3))
def test_dropped_condition_is_noticed(rule: AnyRule, condition: Condition) -> None:
    assert drop(rule, condition).failures, (
        f"{rule.name} looks as sound without the condition {condition.name!r}: "
        "draw a counterexample in its sample, drop the condition, or put it on the list of undetected ones"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "condition"), _params(listed=True, every=1))
def test_listed_condition_is_still_unnoticed(rule: AnyRule, condition: Condition) -> None:
    assert not drop(rule, condition).failures, "the sample now shows why the condition is needed: take it off the list"


def test_list_names_only_what_exists() -> None:
    assert {_name(case) for case in CASES} >= UNDETECTED
