"""What a group rule did at a place: it has no left side to compare with, but it says which nodes it looked at."""

from __future__ import annotations

from collections import Counter

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.group_view import view_of
from eqsat.egraph.nearest import Miss
from eqsat.egraph.unfused import Recorder, attempts
from eqsat.rewrite import GroupRule, Unmet
from eqsat.why.places import Places


def group_at(rule: GroupRule, egraph: EGraph, places: Places, handle: int) -> Miss:
    """Whether a group rule offers a merge for the e-class of ``handle`` in the saturated e-graph; if not, what is known: the
    condition that failed, of matches whose value it is or that it has a part in."""
    cls = egraph.find(handle)
    recorder = Recorder(view_of(egraph))
    place = places.describe(cls)
    if rule.find is None:
        return _built_at(rule, egraph, places, cls, recorder)
    near: list[Miss] = []
    stopped = ""
    try:
        for match, _, reason in attempts(rule, recorder):
            root = egraph.find(match.root.handle)
            if root == cls and not reason:
                return Miss(rule.name, place, "holds", 1, 1, "")
            refs = match.refs()
            if reason and (root == cls or any(egraph.find(ref.handle) == cls for ref in refs.values())):
                values = {name: places.facts(ref) for name, ref in refs.items()}
                where = place if root == cls else places.describe(root)
                near.append(Miss(rule.name, where, "condition", 1, 1, f"condition {reason}", values, int(root == cls)))
    except Unmet as reason:
        stopped = f"; it went no further where {reason}"
    if near:
        return max(near, key=lambda miss: miss.rank)
    if (told := recorder.misses.get(cls)) is not None:
        return Miss(rule.name, place, "condition", 1, 1, told)
    looked = _looked(recorder)
    if cls not in recorder.classes:
        reason = f"{place} ({places.operators(cls)}) is none of the nodes it looks at ({looked}){stopped}"
        return Miss(rule.name, place, "pattern", 0, 1, reason)
    reason = f"it looked at the node (among {looked}) and found nothing to judge there{stopped}"
    return Miss(rule.name, place, "condition", 1, 1, reason)


def _built_at(rule: GroupRule, egraph: EGraph, places: Places, cls: int, recorder: Recorder) -> Miss:
    """The same for a rule that is one function, which finds and builds at once."""
    place = places.describe(cls)
    offered = 0
    missed: Counter[str] = Counter()
    for ref, _ in rule.merges(recorder, lambda reason: missed.update([str(reason)])):
        offered += 1
        if egraph.find(ref.handle) == cls:
            return Miss(rule.name, place, "holds", 1, 1, "")
    stopped = "".join(f"; {count} x unmet: {reason}" for reason, count in missed.items())
    if cls not in recorder.classes:
        reason = f"{place} ({places.operators(cls)}) is none of the nodes it looks at ({_looked(recorder)}){stopped}"
        return Miss(rule.name, place, "pattern", 0, 1, reason)
    reason = (
        f"it looked at the node (among {_looked(recorder)}) and offered {offered} merges, none of them here{stopped}"
    )
    return Miss(rule.name, place, "condition", 1, 1, reason)


def _looked(recorder: Recorder) -> str:
    return ", ".join(f"{count} {op}" for op, count in recorder.operators.items()) or "no operator"
