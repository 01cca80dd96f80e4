"""Running one rule on random instances of its own left side, and saying what happened."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.egraph.egraph import UnsoundError
from eqsat.egraph.encode import Encoding, encode
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.egraph.soundness import check_egraph, evaluate_classes
from eqsat.errors import RuleError
from eqsat.rewrite import AnyRule, Condition
from eqsat.rules.sampling import Instance, Sampler, draw_instance

LIMITS = Limits(time_s=20.0, nodes=3_000, iterations=60)


class SampleError(Exception):
    """The sample of a rule draws something that is no instance of its left side."""


@dataclass
class Trial:
    """What a rule did on a number of random instances."""

    drawn: int = 0
    fired: int = 0
    witnesses: int = 0  # instances on which it fired and the value of the left side is not the same everywhere
    failures: list[str] = field(default_factory=list)


def try_rule(rule: AnyRule, instances: int, seed: int = 0, *, stop_at_failure: bool = False) -> Trial:
    """Runs ``rule`` alone on random instances of its left side and evaluates every e-node."""
    trial = Trial()
    for number in range(instances):
        try:
            instance = draw_instance(rule, Sampler(1000 * seed + number))
        except Exception as error:
            raise SampleError(f"{rule.name}: seed {1000 * seed + number}: {error}") from error
        trial.drawn += 1
        trial.failures += [f"instance {number}: {text}\n{instance.graph}" for text in _run(rule, instance, trial)]
        if stop_at_failure and trial.failures:
            break
    return trial


def _run(rule: AnyRule, instance: Instance, trial: Trial) -> Iterator[str]:
    encoding = encode(instance.graph)
    try:
        result = saturate(encoding.egraph, [rule], LIMITS)
    except (RuleError, UnsoundError) as error:
        trial.fired += 1
        yield str(error)
        return
    if result.stop_reason is not StopReason.SATURATED:
        yield f"the rule alone does not saturate: {result.stop_reason.value}"
    if not result.matches[rule.name]:
        return
    trial.fired += 1
    trial.witnesses += _is_witness(encoding, instance)
    yield from map(str, check_egraph(encoding, instance.feeds, [rule]))


def _is_witness(encoding: Encoding, instance: Instance) -> bool:
    """Whether the root's value could tell a wrong right side: not all its elements are equal, or it is a constant."""
    egraph = encoding.egraph
    root = egraph.find(encoding.handles[instance.root])
    value = evaluate_classes(egraph, instance.feeds).get(root)
    if value is None:
        return False
    return egraph.is_constant(root) or np.unique(np.asarray(value).astype(object).ravel().astype(str)).size > 1


def without(rule: AnyRule, dropped: Condition) -> AnyRule:
    """The rule without one of its conditions."""
    return replace(rule, conditions=tuple(c for c in rule.conditions if c is not dropped))
