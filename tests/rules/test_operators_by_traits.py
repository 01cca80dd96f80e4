"""A new operator with traits gets the rules of the theory by itself: none of them knows it by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.rule_trials import try_rule
from eqsat.ir.operator import _REGISTRY, Kind, define, operators_with
from eqsat.ir.operators.elementwise import function, infer_broadcast, infer_same
from eqsat.ir.traits import EVERY, VARIADIC, Traits, moving
from eqsat.rewrite import AnyRule, find_rule, registered_rules, unregister
from eqsat.rule_check.trials import Trial
from eqsat.samples import Drawing, Sampler, fixed


@contextmanager
def defined(
    name: str, traits: Traits, evaluate: Callable[..., Any], infer: Any = infer_same
) -> Iterator[list[AnyRule]]:
    """An operator and the rules that it gets, both forgotten afterwards."""
    before = {r.name for r in registered_rules()}
    define(
        name,
        infer=infer,
        evaluate=lambda attributes, inputs: (evaluate(*inputs),),
        kind=Kind.INJECTIVE if traits.moves else Kind.ELEMENTWISE,
        bit_exact=True,
        traits=traits,
    )
    found = [r for r in registered_rules() if r.name not in before]
    try:
        yield found
    finally:
        del _REGISTRY[name]
        operators_with.cache_clear()
        for rule in found:
            unregister(rule.name)


def rolled(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1)


def test_an_operator_that_moves_elements_gets_the_rules_of_movement() -> None:
    with defined("Roll", moving(permutes=True), rolled) as rules:
        assert {r.name for r in rules} >= {
            "move_quantize_before_roll",
            "move_dequantize_behind_roll",
            "move_recentring_before_roll",
        }
        for rule in rules:
            trial = try_rule(rule, 60)
            assert not trial.failures, trial.failures[0]
            assert trial.witnesses > 10


def test_an_operator_that_takes_the_greater_runs_on_the_integers() -> None:
    greatest = Traits(operands=VARIADIC, sources=EVERY, rising=True, continuous=True)
    with defined("Supremum", greatest, np.maximum, infer_broadcast) as rules:
        assert {r.name for r in rules} >= {"move_dequantize_behind_supremum", "move_supremum_behind_quantize"}
        for rule in rules:
            trial = try_rule(rule, 60)
            assert not trial.failures, trial.failures[0]
            assert trial.witnesses > 5


def test_an_elementwise_operator_of_bytes_is_a_table() -> None:
    def softened(x: np.ndarray) -> np.ndarray:
        return np.asarray(x / (1 + np.abs(x)), x.dtype)

    with defined("Soften", function(continuous=True, rising=True), softened):
        drawing, d = Drawing(), Sampler(0)
        scale, zero = (drawing.value(fixed(np.asarray(v))) for v in (np.float32(0.03), np.uint8(128)))
        y = drawing.op(
            "Soften", drawing.op("DequantizeLinear", drawing.value(d.integers((5, 7), "uint8")), scale, zero)
        )
        instance = drawing.finish(drawing.op("QuantizeLinear", y, drawing.value(fixed(np.float32(0.01))), zero))
        trial = Trial()
        assert not trial.run(find_rule("tabulate_function_of_bytes"), instance)
        assert trial.witnesses == 1


@pytest.mark.parametrize("evaluate", [np.abs, np.square])
def test_rules_by_a_trait_that_is_not_true_are_refuted(evaluate: Callable[..., Any]) -> None:
    with defined("Untrue", moving(), evaluate) as rules:
        assert rules
        told = [rule for rule in rules if "Cast(" not in rule.equation]  # these functions commute with casts
        assert all(try_rule(rule, 60).failures for rule in told)
