"""Rules broken on purpose must not get past the harness: one mutant each of some rules (`benchmarks.mutation` makes them all)."""

from __future__ import annotations

from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from benchmarks.explained_mutants import reason_for
from benchmarks.mutants import KINDS, choose
from benchmarks.mutation import INSTANCES, Mutant, mutants_of, outcome_of
from eqsat.rewrite import AnyRule, registered_rules

EVERY = 6


def _number(rule: AnyRule) -> int:
    """By its name, so that no other rule decides about what is tried of it."""
    return crc32(rule.name.encode())


RULES = [rule for rule in registered_rules() if _number(rule) % EVERY == 0]


@pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
def test_mutant_is_caught(rule: AnyRule) -> None:
    mutants = mutants_of(rule)
    if not mutants:
        pytest.skip("the right side has no place for an alteration")
    mutant: Mutant = mutants[_number(rule) // EVERY % len(mutants)]
    outcome = outcome_of(mutant)
    if outcome.verdict == "survived":  # what few instances show, more of them do
        outcome = outcome_of(mutant, 16 * INSTANCES, seed=2)
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
