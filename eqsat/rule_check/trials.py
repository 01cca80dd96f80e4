"""Running one rule on random instances of its own left side, and saying what happened."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.backends.onnxruntime_kernels import may_run
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.encode import Encoding, encode
from eqsat.egraph.enode import UnsoundError
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.egraph.soundness import check_egraph, evaluate_classes
from eqsat.errors import FailedRuleError, RuleError
from eqsat.exactness import Exactness
from eqsat.ir.schema_operator import takes_types
from eqsat.ir.types import DType, TensorType, Type
from eqsat.rewrite import AnyRule, Condition, Match, Rule
from eqsat.rule_check.automatic import automatic_instance
from eqsat.rule_check.variants import enlarged, narrowed, with_specials
from eqsat.samples import Instance, Sampler, draw_instance

LIMITS = Limits(time_s=20.0, nodes=3_000, iterations=60)
PATIENCE = 12

_DEPENDS_ON_DEVICE = frozenset((DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE))
"""Types with kernels on some devices only: one that lacks them says nothing about a rule."""


class SampleError(Exception):
    """The sample of a rule draws something that is no instance of its left side."""


@dataclass
class Trial:
    """What a rule did on a number of random instances. ``kernels``: whether what it adds must have some to run."""

    drawn: int = 0
    fired: int = 0
    witnesses: int = 0  # instances on which it fired and the value of the left side is not the same everywhere
    failures: list[str] = field(default_factory=list[str])
    reasons: Counter[str] = field(default_factory=Counter[str])  # why it did not fire, where it did not
    kernels: bool = False

    def run(self, rule: AnyRule, instance: Instance) -> list[str]:
        """Saturates one instance with the rule alone and evaluates every e-node; returns what was wrong.

        The same on what `eqsat.rule_check.variants` makes of it.
        """
        self.drawn += 1
        failures = list(self._run(rule, instance, telling=True))
        larger = None if failures else enlarged(instance)
        if larger is None:
            return failures
        return [f"with constants as large as symbols: {text}" for text in self._run(rule, larger, telling=False)]

    def _run(self, rule: AnyRule, instance: Instance, *, telling: bool) -> Iterator[str]:
        encoding = encode(instance.graph)
        given = len(encoding.egraph.nodes)
        try:
            result = saturate(encoding.egraph, [rule], LIMITS, literals=True)
        except FailedRuleError as failed:
            if not isinstance(failed.__cause__, RuleError | UnsoundError):
                raise failed.__cause__ or failed from None
            self.fired += 1
            yield str(failed)
            return
        if result.stop_reason is not StopReason.SATURATED:
            yield f"the rule alone does not saturate: {result.stop_reason.value}"
        if not result.matches[rule.name]:
            self.reasons.update(reason for _, reason in result.reasons if telling)
            return
        if telling:
            self.fired += 1
            self.witnesses += _is_witness(encoding, instance)
        for feeds in self._feeds(rule, instance):
            yield from map(str, check_egraph(encoding, feeds, [rule]))
        if self.kernels:
            yield from missing_kernels(encoding.egraph, given)

    def _feeds(self, rule: AnyRule, instance: Instance) -> Iterator[Mapping[str, np.ndarray]]:
        """What to evaluate an instance on: infinities and NaN everywhere only for a rule that promises equality for them."""
        yield instance.feeds
        yield from narrowed(instance)
        if rule.exactness is Exactness.EXACT:
            yield from with_specials(instance, np.random.default_rng(self.drawn))


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
    trial = Trial(kernels=True)
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


def _is_witness(encoding: Encoding, instance: Instance) -> bool:
    """Whether the root's value could tell a wrong right side: not all its elements are equal, or it is a constant."""
    egraph = encoding.egraph
    root = egraph.find(encoding.handles[instance.root])
    value = evaluate_classes(egraph, instance.feeds).get(root)
    if value is None:
        return False
    return egraph.is_constant(root) or np.unique(np.asarray(value).astype(object).ravel().astype(str)).size > 1


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
