"""The check of one rule before it is registered: random instances, a counterexample or a refusal."""

import time
from collections.abc import Iterator
from dataclasses import replace

from eqsat import rewrite
from eqsat.errors import RuleError
from eqsat.exactness import Exactness
from eqsat.ir.text import node_to_text
from eqsat.rewrite import AnyRule, Rule
from eqsat.rule_check.automatic import automatic_instances
from eqsat.rule_check.drawn import check_texts
from eqsat.rule_check.registration import Choices
from eqsat.rule_check.trials import Trial
from eqsat.samples import Instance, Sampler, draw_instance

TIME_LIMIT_S = 1.8
"""Processor time after which a check that has found no fault has done its work, should instances be slow."""

_PATIENCE = 5
"""So many times as long a check goes on that has seen nothing of the rule yet: one that fires rarely is no worse for it."""

_ENOUGH = 48
"""Instances on which a rule fired and a wrong result would have shown."""

_INSTANCES = 250
"""Instances after which a check ends even if few of them told something."""

_DRAWS = 2_000
_GROUP_SAMPLES = 3


def check_rule(made: AnyRule, choices: Choices | None = None, *, must_fire: bool = True) -> Trial:
    """Tries a rule on random instances until enough of them told something or the time is up.

    Raises `RuleError` with the counterexample, or, if it ``must_fire``, when the rule fires on no instance.
    """
    check_texts(made.drawn if isinstance(made, Rule) else ())
    start = time.process_time()
    trial = Trial()
    rejected = 0
    for instance in _instances(made, choices or {}):
        if instance is None:
            rejected += 1
        else:
            failures = trial.run(made, instance)
            if failures:
                raise RuleError(_counterexample(made, instance, failures[0]))
        limit_s = TIME_LIMIT_S * (1 if trial.witnesses else _PATIENCE)
        if trial.witnesses >= _ENOUGH or trial.drawn >= _INSTANCES or time.process_time() - start > limit_s:
            break
    if must_fire and not (trial.fired and trial.witnesses):
        raise RuleError(_silent(made, trial, rejected))
    return trial


def _instances(made: AnyRule, choices: Choices) -> Iterator[Instance | None]:
    if made.sample is not None:
        for seed in range(_DRAWS):
            try:
                yield draw_instance(made, Sampler(seed))
            except Exception as error:
                raise RuleError(f"rule {made.name!r}: its sample fails on seed {seed}: {error}") from error
    elif isinstance(made, Rule):
        drawn = automatic_instances(made, choices)
        yield from (next(drawn) for _ in range(_DRAWS))
    else:
        import eqsat.rules  # pyright: ignore[reportUnusedImport]  # noqa: F401  # registers the shipped rules, whose instances these are

        others = [r for r in rewrite.registered_rules() if r.sample is not None or (isinstance(r, Rule) and r.drawn)]
        others.sort(key=lambda r: isinstance(r, Rule))
        for seed in range(_GROUP_SAMPLES):
            for other in others:
                if isinstance(other, Rule) and other.sample is None:
                    yield next(automatic_instances(other, {}, seed))
                else:
                    yield draw_instance(other, Sampler(seed))


def _counterexample(made: AnyRule, instance: Instance, failure: str) -> str:
    graph = instance.graph
    large = [name for name, constant in graph.constants.items() if constant.size > 8]  # small ones are written out
    inputs = ", ".join(f"{name}: {graph.type_of(name)}" for name in (*graph.inputs, *large))
    body = "; ".join(node_to_text(node, graph) for node in graph.nodes)
    hint = ""
    if made.exactness is Exactness.EXACT:
        weaker = replace(made, exactness=Exactness.ROUNDING)
        if not Trial().run(weaker, instance):
            hint = "; the two agree up to rounding: state exactness=Exactness.ROUNDING"
    return f"rule {made.name!r} is refused, {made.equation} does not hold for ({inputs}) {body}: {failure}{hint}"


def _silent(made: AnyRule, trial: Trial, rejected: int) -> str:
    usual = trial.reasons.most_common(1)
    why = f", mostly because of: {usual[0][0]}" if usual else ""
    if not trial.drawn:
        why = f"; operators rejected all {rejected} draws"
    elif trial.fired:
        why = ", and where it did the value was the same everywhere"
    return (
        f"rule {made.name!r} is refused: it fired on {trial.fired} of {trial.drawn} random instances{why}; give sample= (or "
        "attributes= of its named nodes), or register it unverified with check=False"
    )
