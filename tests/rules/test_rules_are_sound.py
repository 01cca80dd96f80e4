"""Every registered rule on random instances of its own left side: what it merges must be equal."""

from __future__ import annotations

import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.rule_trials import try_rule
from eqsat.rewrite import AnyRule, registered_rules

INSTANCES = 40
FEW, ENOUGH = 5, 14
"""Witnesses: of 508 wrong rules that `benchmarks.mutation` makes and that are caught, 507 are so by the thirteenth instance on
which they fire, and one by the 58th."""

RULES = registered_rules()


def check(rule: AnyRule, enough: int | None) -> None:
    trial = try_rule(rule, INSTANCES if rule.sample is not None else 2 * INSTANCES, enough=enough)
    assert not trial.failures, f"{rule.equation}\n" + "\n".join(trial.failures[:3])
    assert trial.witnesses >= INSTANCES // 10, f"fired on {trial.fired} of {trial.drawn}, {trial.witnesses} telling"


@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_rule_merges_only_what_is_equal(rule: AnyRule) -> None:
    check(rule, FEW)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_rule_merges_only_what_is_equal_on_more_instances(rule: AnyRule) -> None:
    check(rule, ENOUGH)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_rule_merges_only_what_is_equal_on_all_instances(rule: AnyRule) -> None:
    check(rule, None)
