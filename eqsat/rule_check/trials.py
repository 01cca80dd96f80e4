"""Running one rule on random instances of its own left side, and saying what happened."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from eqsat.egraph.encode import Encoding, encode
from eqsat.egraph.enode import UnsoundError
from eqsat.egraph.saturate import Limits, StopReason, saturate
from eqsat.egraph.soundness import check_egraph, evaluate_classes
from eqsat.errors import FailedRuleError, RuleError
from eqsat.exactness import Exactness
from eqsat.rewrite import AnyRule
from eqsat.rule_check.variants import enlarged, narrowed, with_specials
from eqsat.samples import Instance

LIMITS = Limits(time_s=20.0, nodes=3_000, iterations=60)


@dataclass
class Trial:
    """What a rule did on a number of random instances."""

    drawn: int = 0
    fired: int = 0
    witnesses: int = 0  # instances on which it fired and the value of the left side is not the same everywhere
    failures: list[str] = field(default_factory=list[str])
    reasons: Counter[str] = field(default_factory=Counter[str])  # why it did not fire, where it did not

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
        yield from self._wrong(rule, instance, encoding, given)

    def _wrong(self, rule: AnyRule, instance: Instance, encoding: Encoding, given: int) -> Iterator[str]:
        """What is wrong with an e-graph to which the rule added something, beside the first ``given`` e-nodes."""
        for feeds in self._feeds(rule, instance):
            yield from map(str, check_egraph(encoding, feeds, [rule]))

    def _feeds(self, rule: AnyRule, instance: Instance) -> Iterator[Mapping[str, np.ndarray]]:
        """What to evaluate an instance on: infinities and NaN everywhere only for a rule that promises equality for them."""
        yield instance.feeds
        yield from narrowed(instance)
        if rule.exactness is Exactness.EXACT:
            yield from with_specials(instance, np.random.default_rng(self.drawn))


def _is_witness(encoding: Encoding, instance: Instance) -> bool:
    """Whether the root's value could tell a wrong right side: not all its elements are equal, or it is a constant."""
    egraph = encoding.egraph
    root = egraph.find(encoding.handles[instance.root])
    value = evaluate_classes(egraph, instance.feeds).get(root)
    if value is None:
        return False
    return egraph.is_constant(root) or np.unique(np.asarray(value).astype(object).ravel().astype(str)).size > 1
