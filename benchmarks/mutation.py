"""Mutation score of the rules: how many rules broken on purpose the soundness harness notices.

    python -m benchmarks.mutation [--rules a,b] [--mutants 8] [--instances 40] [--seed 0] [--processes 1]

Each mutant is a shipped rule with one alteration of what it builds (`benchmarks.mutants`), drawn from those that its right
sides have a place for, or with one of its conditions dropped. It runs as the tests run every rule: alone, on random instances
of its left side, every e-node evaluated.

- *caught*: an instance shows a wrong value or type or an operator without a kernel (*by value*), the right side is refused
  where it is built (*refused*: operators reject their operands, or its type is not that of the left side, or wherever it is
  built not provably so for all values of the symbols), or the rule no longer saturates alone. Conditions that limit the
  growth of the e-graph are caught *by size*: under all rules and on neutral constants the rule adds e-nodes that it must not
  add (`benchmarks.neutral`).
- *survived*: nothing of this on any instance.
  Most survivors build the same value in another spelling: `benchmarks.explained_mutants` and
  `benchmarks.explained_conditions` say why each survives.
- *not counted*: alterations that build the same term, and those that on no instance build another one.

Conditions that only ask for constants, or are marked as worthwhile, say where a rule pays, not where it holds, and are not
dropped.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pool

import numpy as np

import eqsat.rules  # noqa: F401  # registers the shipped rules
from benchmarks.explained_conditions import GROWTH, reason_for_condition
from benchmarks.explained_mutants import reason_for
from benchmarks.mutants import KINDS, Mutant, Recorder, choose
from benchmarks.neutral import grows
from benchmarks.rule_trials import try_rule, without
from eqsat.egraph.apply import EXTENT_MAY_DIFFER
from eqsat.rewrite import AnyRule, Rule, registered_rules
from eqsat.rule_check.trials import Trial

MUTANTS = 8
INSTANCES = 40
"""Of a sample; without one twice as many, as in ``tests/rules/test_rules_are_sound.py``."""

CONDITION = "condition"

_RECORDED = 12
"""Instances from which the places for alterations are taken."""


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant. ``verdict``: caught, refused, grown, survived or unaltered."""

    rule: str
    kind: str
    alteration: str
    verdict: str

    @property
    def key(self) -> tuple[str, str]:
        return self.rule, self.alteration


def mutants_of(rule: AnyRule, count: int = MUTANTS, seed: int = 0) -> list[Mutant]:
    """``count`` alterations of a rule, drawn from all that its right sides have a place for."""
    recorder = Recorder(rule)
    try_rule(recorder.recording(), _RECORDED, seed=seed)
    rng = np.random.default_rng([seed, zlib.crc32(rule.name.encode())])
    return [Mutant(rule, alteration) for alteration in choose(recorder.found, count, rng)]


def outcome_of(mutant: Mutant, instances: int = INSTANCES, seed: int = 0) -> Outcome:
    """Runs a mutant as the tests run the rule."""
    verdict = _verdict(mutant.broken(), instances if mutant.rule.sample is not None else 2 * instances, seed)
    if not mutant.altered:
        verdict = "unaltered"
    return Outcome(mutant.rule.name, mutant.alteration.kind, str(mutant.alteration), verdict)


def without_conditions(rule: AnyRule) -> list[Outcome]:
    """Drops each condition of a rule in turn, on the instances on which the tests do so."""
    outcomes = []
    for dropped in rule.conditions:
        if not dropped.fact and not dropped.worthwhile:
            broken = without(rule, dropped)
            verdict = _verdict(broken, 60 if rule.sample is not None else 120, 7)
            if (
                verdict == "survived"
                and (rule.name, dropped.name) in GROWTH
                and isinstance(broken, Rule)
                and grows(broken)
            ):
                verdict = "grown"
            outcomes.append(Outcome(rule.name, CONDITION, dropped.name, verdict))
    return outcomes


def _verdict(rule: AnyRule, instances: int, seed: int) -> str:
    try:
        trial = try_rule(rule, instances, seed, stop_at_failure=True)
    except Exception as error:  # the harness itself stops: an operator of the right side cannot be evaluated
        trial = Trial(failures=[f"is not well-formed: {error}"])
    if not trial.failures:
        return "refused" if EXTENT_MAY_DIFFER in trial.reasons and not trial.fired else "survived"
    return "refused" if any(t in trial.failures[0] for t in ("not well-formed", "right side has type")) else "caught"


def _all_of(arguments: tuple[str, int, int, int]) -> list[Outcome]:
    name, count, instances, seed = arguments
    rule = next(r for r in registered_rules() if r.name == name)
    outcomes = [outcome_of(mutant, instances, seed) for mutant in mutants_of(rule, count, seed)]
    return outcomes + without_conditions(rule)


def table(outcomes: Iterable[Outcome]) -> str:
    """Mutants and score by kind of alteration, in lines."""
    counts: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        counts.setdefault(outcome.kind, Counter())[outcome.verdict] += 1
    lines = [f"{'kind':<16}{'mutants':>8}{'refused':>9}{'by value':>9}{'by size':>8}{'survived':>9}{'score':>8}"]
    altered = Counter[str]()
    for kind in KINDS:
        altered.update(counts.get(kind, {}))
    rows = [(kind, counts[kind]) for kind in (*KINDS, CONDITION) if kind in counts]
    for name, found in [*rows, ("all alterations", altered), ("all", sum(counts.values(), Counter[str]()))]:
        caught = found["caught"] + found["refused"] + found["grown"]
        total = caught + found["survived"]
        score = f"{100 * caught / total:.1f} %" if total else "-"
        counted = f"{found['refused']:>9}{found['caught']:>9}{found['grown']:>8}{found['survived']:>9}"
        lines.append(f"{name:<16}{total:>8}{counted}{score:>8}")
    return "\n".join(lines)


def _explanation(outcome: Outcome) -> str:
    explain = reason_for_condition if outcome.kind == CONDITION else reason_for
    reason = explain(outcome.rule, outcome.alteration)
    return f" ({reason})" if reason else ""


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", default="", help="names, separated by commas; all by default")
    parser.add_argument("--mutants", type=int, default=MUTANTS, help="alterations of each rule")
    parser.add_argument("--instances", type=int, default=INSTANCES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(None if arguments is None else list(arguments))
    start = time.perf_counter()
    names = options.rules.split(",") if options.rules else [r.name for r in registered_rules()]
    work = [(name, options.mutants, options.instances, options.seed) for name in names]
    outcomes: list[Outcome] = []
    with Pool(options.processes) as pool:
        for found in pool.imap(_all_of, work):
            outcomes += found
            for outcome in found:
                if outcome.verdict == "survived":
                    print(f"survived: {outcome.rule}: {outcome.alteration}{_explanation(outcome)}", flush=True)
    print(f"{len(names)} rules, {sum(o.verdict == 'unaltered' for o in outcomes)} alterations not counted")
    print(table(outcomes))
    altered = [o for o in outcomes if o.verdict != "unaltered"]
    counted = [o for o in altered if o.verdict != "survived" or not _explanation(o)]
    caught = sum(o.verdict != "survived" for o in counted)
    print(f"{len(altered) - len(counted)} survivors are explained; without them {caught} of {len(counted)}")
    print(f"{time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
