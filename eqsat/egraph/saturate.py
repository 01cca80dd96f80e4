"""Running rules to saturation, within limits, and saying why it stopped."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from eqsat.egraph.apply import RuleApplier
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.engine import Pending, engine_for
from eqsat.egraph.patterns import compile_pattern
from eqsat.errors import OptionError
from eqsat.rewrite import AnyRule, GroupRule, Rule

try:
    import resource
except ImportError:  # Windows
    resource = None


class StopReason(Enum):
    """Why saturation ended. Only ``SATURATED`` means that every consequence of the rules is in the e-graph."""

    SATURATED = "saturated"
    TIME_LIMIT = "time_limit"
    NODE_LIMIT = "node_limit"
    MEMORY_LIMIT = "memory_limit"
    ITERATION_LIMIT = "iteration_limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop. Reaching one is a result, not an error: the e-graph stays usable.

    ``memory_bytes`` bounds the growth of the resident set since the start, ``None`` for no bound.
    """

    time_s: float = 30.0
    nodes: int = 200_000
    iterations: int = 1_000
    memory_bytes: int | None = None


@dataclass
class Saturation:
    """What happened: the reason for stopping, iterations run, and by rule the number of matches that changed something.

    ``reasons``: (rule, why it did not apply) -> at how many matches. ``work``: what was done, counted.
    """

    stop_reason: StopReason
    iterations: int
    seconds: float
    matches: dict[str, int] = field(default_factory=dict[str, int])
    reasons: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    work: dict[str, int] = field(default_factory=dict[str, int])


def saturate(
    egraph: EGraph,
    rules: Sequence[AnyRule],
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    literals: bool = False,
) -> Saturation:
    """Applies ``rules`` to ``egraph`` until nothing new follows or a limit is reached.

    Each iteration matches all rules on the same e-graph, then applies the matches in a fixed order. Group rules run when the
    others have nothing left to say. ``progress`` gets (iteration, e-nodes). ``literals``: patterns give further spellings to
    literals, too: no program needs them, but they say more of the rules.
    """
    limits = limits or Limits()
    start = time.perf_counter()
    deadline = start + limits.time_s
    base_memory = _resident_bytes() if limits.memory_bytes is not None else 0
    local = [r for r in rules if isinstance(r, Rule)]
    groups = [r for r in rules if isinstance(r, GroupRule)]
    applier = RuleApplier(egraph, literals=literals)
    matches = {r.name: 0 for r in rules}
    iteration = 0

    def done(reason: StopReason) -> Saturation:
        work = {"enodes": len(egraph.nodes), "rounds": iteration, **applier.work}
        seconds = time.perf_counter() - start
        return Saturation(reason, iteration, seconds, matches, applier.reasons, work)

    def exceeded() -> StopReason | None:
        if time.perf_counter() > deadline:
            return StopReason.TIME_LIMIT
        if len(egraph.nodes) > limits.nodes:
            return StopReason.NODE_LIMIT
        if limits.memory_bytes is not None and _resident_bytes() - base_memory > limits.memory_bytes:
            return StopReason.MEMORY_LIMIT
        return StopReason.ITERATION_LIMIT if iteration >= limits.iterations else None

    queries = [(rule, query) for rule in local for query in compile_pattern(rule)]
    with engine_for([query for _, query in queries]) as engine:
        while True:
            egraph.known.propagate()
            pending, egraph.pending = egraph.pending, Pending()
            applier.leave_out(pending)
            merges, found = engine.step(pending)
            iteration += 1
            for handle, smaller in sorted(merges.items()):
                egraph.merge(handle, smaller, "congruence")
            changed = bool(egraph.pending) or egraph.known.propagate()
            for key, rows in sorted(found.items()):
                rule, query = queries[key]
                for row in rows:
                    if applier.apply(rule, query, row):
                        matches[rule.name] += 1
                        changed = True
                reason = exceeded()
                if reason is not None:
                    return done(reason)
            for rule in applier.apply_again():
                matches[rule.name] += 1
                changed = True
            if progress is not None:
                progress(iteration, len(egraph.nodes))
            if not changed and groups:
                changed = applier.apply_groups(groups, matches)
            if not changed and not egraph.pending:
                return done(StopReason.SATURATED)
            reason = exceeded()
            if reason is not None:
                return done(reason)


def _resident_bytes() -> int:
    """Resident set of this process; its peak where the current one is not to be had. Raises `OptionError` where neither is."""
    if resource is None:
        raise OptionError(
            "a limit on memory: this platform does not say how much a process has; limit the e-nodes instead"
        )
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
