"""Operators that rules have never heard of get the rules that follow from their traits: nothing in `rules/` names them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.rule_trials import try_rule, without
from eqsat.ir import operator as operators
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application, Kind, define
from eqsat.ir.operators.elementwise import define_elementwise, function, infer_broadcast
from eqsat.ir.traits import Product, ProductAxes, Traits
from eqsat.ir.types import TensorType, Type
from eqsat.rewrite import AnyRule, registered_rules, unregister


@contextmanager
def rules_of_new_operators() -> Iterator[None]:
    """Operators that are defined inside, and the rules stated for them, are taken back."""
    known, stated = set(operators.defined_operators()), set(registered_rules())
    try:
        yield
    finally:
        for rule in set(registered_rules()) - stated:
            unregister(rule.name)
        for key in set(operators.defined_operators()) - known:
            operators.undefine(key)


def new_rules(key: str) -> dict[str, AnyRule]:
    """The rules whose names end in that of an operator, without it."""
    ending = "_" + key.lower().replace("::", "_")
    return {r.name.replace(ending, "_it"): r for r in registered_rules() if ending in r.name}


# --- a linear operator


def _infer(app: Application) -> tuple[Type, ...]:
    x, w, b = app.shape(0), app.shape(1), app.shape(2) if app.has(2) else None
    if not x or w is None or len(w) != 2 or x[-1] != w[1] or (b is not None and b != w[:1]):
        raise app.fail("no rows for the matrix, or no bias for its columns")
    return (TensorType(app.tensor(0).dtype, (*x[:-1], w[0])),)


def _dense(attributes: Attributes, inputs: Sequence[Any]) -> tuple[np.ndarray]:
    result = inputs[0] @ inputs[1].T
    return ((result + inputs[2] if len(inputs) > 2 else result).astype(inputs[0].dtype),)


def define_dense(key: str, *, outer: int) -> None:
    """``x @ w' + b``: the channels that are put out lie along axis ``outer`` of the weights."""
    axes = ProductAxes(data=-1, inner=1 - outer, outer=outer, result=-1)
    product = Product(bias=2, axes=lambda attributes: axes)
    traits = Traits(product=product, affine=(0, 1, 2), vectors=(2,))
    define(key, infer=_infer, evaluate=_dense, kind=Kind.ANCHOR, traits=traits)


LINEAR = {
    "fold_scale_into_it",
    "fold_scale_into_following_it",
    "move_shift_behind_it",
    "add_constant_to_bias_of_it",
    "merge_its_of_one_input",
    "reorder_weights_of_it",
}


def test_new_linear_operator_folds_scales_and_shifts() -> None:
    with rules_of_new_operators():
        define_dense("test::Dense", outer=0)
        found = new_rules("test::Dense")
        assert found.keys() == LINEAR
        for name, rule in found.items():
            trial = try_rule(rule, 60)
            assert not trial.failures, f"{name}: {trial.failures[0]}"
            assert trial.witnesses >= 6, f"{name}: fired on {trial.fired} of {trial.drawn}"


@pytest.mark.parametrize("name", ["fold_scale_into_it", "fold_scale_into_following_it"])
def test_rules_of_a_linear_operator_with_wrong_axes_are_refuted(name: str) -> None:
    with rules_of_new_operators():
        define_dense("test::Turned", outer=1)
        assert try_rule(new_rules("test::Turned")[name], 60, stop_at_failure=True).failures


def test_conditions_of_a_new_operator_are_needed_as_those_of_any_other() -> None:
    with rules_of_new_operators():
        define_dense("test::Needing", outer=0)
        rule = new_rules("test::Needing")["fold_scale_into_it"]
        (along,) = (c for c in rule.conditions if c.name.startswith("it lies along"))
        assert try_rule(without(rule, along), 60, stop_at_failure=True).failures


# --- a function of single elements

RISING = {"move_scale_behind_it", "move_scale_before_it"}


def test_scales_pass_a_new_homogeneous_function() -> None:
    with rules_of_new_operators():
        bent = lambda attributes, x: np.where(x < 0, x / 8, x).astype(x.dtype)  # noqa: E731
        define_elementwise("test::Bent", bent, traits=function(homogeneous=True, rising=True, continuous=True))
        found = new_rules("test::Bent")
        assert found.keys() == RISING
        for name, rule in found.items():
            trial = try_rule(rule, 60)
            assert not trial.failures, f"{name}: {trial.failures[0]}"
            assert trial.witnesses >= 6


@pytest.mark.parametrize("name", sorted(RISING))
def test_scales_do_not_pass_what_is_called_homogeneous_and_is_not(name: str) -> None:
    with rules_of_new_operators():
        root = lambda attributes, x: np.cbrt(x).astype(x.dtype)  # noqa: E731
        define_elementwise("test::Root", root, traits=function(homogeneous=True, rising=True, continuous=True))
        assert try_rule(new_rules("test::Root")[name], 60, stop_at_failure=True).failures


def test_a_new_operator_loses_its_neutral_operand() -> None:
    with rules_of_new_operators():
        with_twice = lambda attributes, x, y: (x + 2 * y).astype(x.dtype)  # noqa: E731
        define_elementwise("test::Twice", with_twice, infer=infer_broadcast, traits=Traits(operands=2, neutral=0))
        trial = try_rule(new_rules("test::Twice")["remove_neutral_operand_of_it"], 60)
        assert not trial.failures, trial.failures[0]
        assert trial.witnesses >= 6


def test_an_operator_without_traits_gets_no_rules() -> None:
    with rules_of_new_operators():
        define("test::Plain", infer=_infer, evaluate=_dense, kind=Kind.ANCHOR)
        assert not new_rules("test::Plain")
