"""Shipped rules tried one by one: random instances of any rule, and whether what it adds has kernels to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eqsat.backends.onnxruntime_kernels import may_run
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import Encoding
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.schema_operator import takes_types
from eqsat.ir.types import DType, TensorType, Type
from eqsat.rewrite import AnyRule, Condition, Match, Rule
from eqsat.rule_check.automatic import automatic_instances
from eqsat.rule_check.trials import Trial
from eqsat.samples import Instance, Sampler, draw_instance

PATIENCE = 12

_DEPENDS_ON_DEVICE = frozenset((DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE))
"""Types with kernels on some devices only: one that lacks them says nothing about a rule."""


class SampleError(Exception):
    """The sample of a rule draws something that is no instance of its left side."""


class KernelTrial(Trial):
    """A trial of a rule of which what it adds must have kernels to run."""

    def _wrong(self, rule: AnyRule, instance: Instance, encoding: Encoding, given: int) -> Iterator[str]:
        yield from super()._wrong(rule, instance, encoding, given)
        yield from missing_kernels(encoding.egraph, given)


def automatic_instance(rule: Rule, sampler: Sampler) -> Instance:
    """A random instance of the left side of ``rule``. Raises `ValueError` when its operators reject a thousand draws."""
    drawn = automatic_instances(rule, {}, int(sampler.rng.integers(2**40)))
    for _ in range(1000):
        found = next(drawn)
        if found is not None:
            return found
    raise ValueError(f"the operators of {rule.equation!r} take nothing that is drawn: give sample=")


def instance_of(rule: AnyRule, sampler: Sampler) -> Instance:
    """A random instance of the left side of ``rule``: from its sample, else from its form or one of its forms."""
    if rule.sample is not None:
        return draw_instance(rule, sampler)
    if isinstance(rule, Rule):
        return automatic_instance(rule, sampler)
    form = sampler.choose(rule.forms)
    asked = (*form.conditions, *rule.conditions)
    return automatic_instance(replace(form, conditions=asked, exactness=rule.exactness), sampler)


def try_rule(
    rule: AnyRule, instances: int, seed: int = 0, *, stop_at_failure: bool = False, enough: int | None = None
) -> Trial:
    """Runs ``rule`` alone on random instances of its left side and evaluates every e-node, which must have a kernel.

    Where nobody wrote how to draw them, up to `PATIENCE` times as many, until the rule fires on one of four. ``enough``: of how
    many witnesses no more instances are drawn.
    """
    trial = KernelTrial()
    for number in range(instances * (PATIENCE if rule.sample is None else 1)):
        if number >= instances and trial.fired >= instances // 4:
            break
        try:
            instance = instance_of(rule, Sampler(1000 * seed + number))
        except Exception as error:
            raise SampleError(f"{rule.name}: seed {1000 * seed + number}: {error}") from error
        trial.failures += [f"instance {number}: {text}\n{instance.graph}" for text in trial.run(rule, instance)]
        if (stop_at_failure and trial.failures) or trial.witnesses == enough:
            break
    return trial


def _always(_: Match) -> bool:
    return True


def without(rule: AnyRule, dropped: Condition) -> AnyRule:
    """The rule without one of its conditions; half of the instances that are drawn for it do not meet what that asked for."""
    always = replace(dropped, holds=_always, hints=tuple(replace(h, opposite=True) for h in dropped.hints))
    return replace(rule, conditions=tuple(always if c is dropped else c for c in rule.conditions))


def missing_kernels(egraph: EGraph, given: int) -> Iterator[str]:
    """E-nodes, beside the first ``given`` ones, whose operator does not take the types of their operands: an equation without
    a kernel is idle.

    Nothing if that is so of one of the first, too.
    """
    if all(_runs(egraph, handle) for handle in range(given)):
        for handle in range(given, len(egraph.nodes)):
            if not _runs(egraph, handle):
                types = ", ".join(map(str, _operand_types(egraph, handle)))
                yield f"{egraph.nodes[handle].key} has no kernel for ({types})"


def _runs(egraph: EGraph, handle: int) -> bool:
    if egraph.definition(handle) is None:
        return True
    types = _operand_types(egraph, handle)
    if not takes_types(egraph.nodes[handle].key, types):
        return False
    known = [t for t in types if isinstance(t, TensorType)]
    if any(t.dtype in _DEPENDS_ON_DEVICE for t in known):
        return True
    return may_run(egraph.nodes[handle].key, types, computed_ahead=egraph.is_constant(handle))


def _operand_types(egraph: EGraph, handle: int) -> list[Type | None]:
    children = egraph.canonical_children(handle)
    return [None if child == ABSENT_INPUT else egraph.type_of(child) for child in children]
