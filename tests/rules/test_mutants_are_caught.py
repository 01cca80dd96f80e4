"""Rules broken on purpose must not get past the harness: one mutant each of some rules (`benchmarks.mutation` makes them all)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.explained_mutants import reason_for
from benchmarks.mutants import KINDS, choose
from benchmarks.mutation import Mutant, mutants_of, outcome_of
from eqsat.rewrite import AnyRule, registered_rules

EVERY = 6
RULES = registered_rules()[::EVERY]


@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_mutant_is_caught(rule: AnyRule) -> None:
    mutants = mutants_of(rule)
    if not mutants:
        pytest.skip("the right side has no place for an alteration")
    mutant: Mutant = mutants[RULES.index(rule) % len(mutants)]
    outcome = outcome_of(mutant)
    reason = reason_for(outcome.rule, outcome.alteration)
    assert outcome.verdict != "survived" or reason, f"{rule.equation} survives {outcome.alteration}"


def test_a_chosen_subset_has_every_kind_there_is() -> None:
    found = {m.alteration: None for m in mutants_of(next(r for r in RULES if len(mutants_of(r)) > len(KINDS)), 99)}
    chosen = choose(found, len(KINDS), np.random.default_rng(0))
    assert {a.kind for a in chosen} == {a.kind for a in found}


def test_rule_itself_is_not_taken_for_a_mutant() -> None:
    assert outcome_of(_unaltered(mutants_of(RULES[0])[0])).verdict == "unaltered"


def _unaltered(mutant: Mutant) -> Mutant:
    return Mutant(mutant.rule, replace(mutant.alteration, path=(9, 9, 9)))
