"""Rules that gain nothing in a part of a model are left out of the whole.

Deep models repeat themselves, and most rules that apply to a layer lead to nothing that its best program holds: in every layer
again. So a part in which each kind of node is once (`eqsat.ir.parts`) is optimised first, with all rules. Of those that applied
there, rules stay that a proof of the part's best program rests on, and those that mostly merged what was there, for without them
others make ever more. Rules stay that found something but had a condition that does not hold: in another layer it may; and
those over groups that found nothing: what they join may be layers apart.

What is left out makes no program wrong. At worst the whole misses what only the numbers of a single layer would have made
cheaper.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from eqsat.egraph.saturate import StopReason
from eqsat.extraction import Extraction
from eqsat.growth import Growth, Progress, RuleScope, grow, silent, timed
from eqsat.ir.graph import Graph
from eqsat.ir.parts import part_of_every_kind
from eqsat.options import Options
from eqsat.rewrite import GroupRule, find_rule

Cheapest = Callable[[Growth], Extraction]

_LEAST, _SHARE = 500, 0.5
"""Smaller models take a second with all rules. Of the nodes of a model, at most, a part for which this pays."""

_MORE = 1.5
"""The whole may have so many times the e-nodes for each operator that the part has with all rules: with more it is not like the
part, or a rule is missing that keeps others in check."""


@dataclass(frozen=True)
class Rehearsal:
    """``left_out``: rules that the whole does without, of which those ``in_vain`` applied to one of the ``operators`` that were
    optimised first. ``enodes``: how many that made. ``work``: what was done, counted."""

    left_out: tuple[str, ...] = ()
    in_vain: tuple[str, ...] = ()
    operators: int = 0
    enodes: int = 0
    work: dict[str, int] = field(default_factory=dict[str, int])

    def to_dict(self) -> dict[str, Any]:
        """What the report says: nothing where the whole is as if it had all rules."""
        return {"operators": self.operators, "left_out": list(self.in_vain)} if self.in_vain else {}


def grow_rehearsed(
    graph: Graph, options: Options, scope: RuleScope, notify: Progress, cheapest: Cheapest
) -> tuple[Growth, Rehearsal]:
    """The saturated e-graph of ``graph``, without the rules that gain nothing in a part of it; ``cheapest`` extracts."""
    seconds: dict[str, float] = {}
    with timed(seconds, "rehearse"):
        rehearsal = _rehearse(graph, options, scope, notify, cheapest)
    if rehearsal.left_out:
        most = int(_MORE * rehearsal.enodes * len(graph.nodes) / rehearsal.operators)
        without = (*options.disabled_rules, *rehearsal.left_out)
        limited = replace(options, disabled_rules=without, node_limit=min(options.node_limit, most))
        growth = grow(graph, limited, scope, notify)
        if growth.saturation.stop_reason is not StopReason.NODE_LIMIT or most >= options.node_limit:
            growth.seconds.update(seconds)
            return replace(growth, in_vain=tuple(map(find_rule, rehearsal.in_vain))), rehearsal
        seconds["rehearse"] += sum(growth.seconds.values())
        rehearsal = Rehearsal(work=rehearsal.work)
    growth = grow(graph, options, scope, notify)
    growth.seconds.update(seconds)
    return growth, rehearsal


def _rehearse(graph: Graph, options: Options, scope: RuleScope, notify: Progress, cheapest: Cheapest) -> Rehearsal:
    """What a part of ``graph`` says about rules: none to leave out where the graph hardly repeats itself."""
    if len(graph.nodes) < _LEAST:
        return Rehearsal()
    part = part_of_every_kind(graph)
    if len(part.nodes) > _SHARE * len(graph.nodes):
        return Rehearsal()
    notify("rehearse", f"{len(part.nodes)} of {len(graph.nodes)} operators")
    options = replace(options, keep=())
    growth = grow(part, options, scope, silent)
    if growth.saturation.stop_reason is not StopReason.SATURATED:
        return Rehearsal()
    best = cheapest(growth)
    left_out = _of_no_use(growth, best)
    in_vain = tuple(name for name in left_out if growth.saturation.matches[name])
    work = {**growth.saturation.work, "steps": best.work.steps}
    return Rehearsal(left_out, in_vain, len(part.nodes), work["enodes"], work)


def _of_no_use(growth: Growth, best: Extraction) -> tuple[str, ...]:
    """Rules that ``best`` does not rest on, and that nothing else speaks for."""
    matches = growth.saturation.matches
    made = Counter(node.rule for node in growth.saturated.encoding.egraph.nodes)
    kept = {name for kernel in best.program.kernels for name in kernel.rules}.union(best.program.constant_rules)
    kept |= {name for name, _ in growth.saturation.reasons if not matches[name]}
    kept |= {name for name, times in matches.items() if made[name] < times}
    kept |= {rule.name for rule in growth.rules if rule.structure or rule.family == "user"}
    kept |= {rule.name for rule in growth.rules if isinstance(rule, GroupRule) and not matches[rule.name]}
    return tuple(rule.name for rule in growth.rules if rule.name not in kept)
