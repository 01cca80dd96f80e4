"""Rules that gain nothing in a part of a model are left out of the whole.

Deep models repeat themselves, and most rules that apply to a layer lead to nothing that its best program holds: in every layer
again. So a part in which each kind of node is once (`eqsat.ir.parts`) is optimised first, with all rules. Those stay that the
best program of that part rests on, and those that found something there but had a condition that does not hold: in another
layer it may.

What is left out makes no program wrong. At worst the whole misses what only the numbers of a single layer would have made
cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from eqsat.egraph.saturate import StopReason
from eqsat.extraction import Extraction
from eqsat.growth import Growth, Progress, RuleScope, grow
from eqsat.ir.graph import Graph
from eqsat.ir.parts import part_of_every_kind
from eqsat.options import Options

_SHARE = 0.5
"""Of the nodes of a model, at most, a part for which this pays."""


@dataclass(frozen=True)
class Rehearsal:
    """``left_out``: rules that the whole does without, of which those ``in_vain`` applied to one of the ``operators`` that were
    optimised first. ``work``: what that took, counted."""

    left_out: tuple[str, ...] = ()
    in_vain: tuple[str, ...] = ()
    operators: int = 0
    work: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What the report says: nothing where the whole is as if it had all rules."""
        return {"operators": self.operators, "left_out": list(self.in_vain)} if self.in_vain else {}


def rehearse(
    graph: Graph, options: Options, scope: RuleScope, notify: Progress, cheapest: Callable[[Growth], Extraction]
) -> Rehearsal:
    """What a part of ``graph`` says about rules: none to leave out where the graph hardly repeats itself."""
    part = part_of_every_kind(graph)
    if len(part.nodes) > _SHARE * len(graph.nodes):
        return Rehearsal()
    notify("rehearse", f"{len(part.nodes)} of {len(graph.nodes)} operators")
    growth = grow(part, replace(options, keep=()), scope, lambda stage, detail: None)
    if growth.saturation.stop_reason is not StopReason.SATURATED:
        return Rehearsal()
    extraction = cheapest(growth)
    program, matches = extraction.program, growth.saturation.matches
    used = {name for kernel in program.kernels for name in kernel.rules}.union(program.constant_rules)
    unmet = {name for name, _ in growth.saturation.reasons if not matches[name]}
    kept = used | unmet | {rule.name for rule in growth.rules if rule.structure or rule.family == "user"}
    left_out = tuple(rule.name for rule in growth.rules if rule.name not in kept)
    work = {**growth.saturation.work, "steps": extraction.work.steps}
    return Rehearsal(left_out, tuple(name for name in left_out if matches[name]), len(part.nodes), work)
