"""What the tests of rules share beside the harness itself (`eqsat.rule_check`)."""

from __future__ import annotations

from dataclasses import replace

from eqsat.rewrite import AnyRule, Condition
from eqsat.rule_check.trials import SampleError, Trial, try_rule


def without(rule: AnyRule, dropped: Condition) -> AnyRule:
    """The rule without one of its conditions."""
    return replace(rule, conditions=tuple(c for c in rule.conditions if c is not dropped))


__all__ = ["SampleError", "Trial", "try_rule", "without"]
