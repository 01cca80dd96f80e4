"""Every registered rule on random instances of its own left side: what it merges must be equal."""

from __future__ import annotations

import pytest
from rule_trials import try_rule

import eqsat.rules  # noqa: F401  # registers the shipped rules
from eqsat.rewrite import AnyRule, registered_rules

INSTANCES = 40
RULES = registered_rules()


@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_rule_merges_only_what_is_equal(rule: AnyRule) -> None:
    trial = try_rule(rule, INSTANCES if rule.sample is not None else 2 * INSTANCES)
    assert not trial.failures, f"{rule.equation}\n" + "\n".join(trial.failures[:3])
    assert trial.witnesses >= INSTANCES // 10, f"fired on {trial.fired} of {trial.drawn}, {trial.witnesses} telling"
