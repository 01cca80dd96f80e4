"""What a group rule did at a place: it has no left side to compare with, but it says which nodes it looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.group_view import view_of
from eqsat.rewrite import Condition, GroupRule, GroupView, Ref, Unmet
from eqsat.why.nearest import Miss
from eqsat.why.places import Places

T = TypeVar("T")


class _Recorder:
    """A view of the e-graph that remembers which e-nodes were handed out."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        self.classes: set[int] = set()
        self.operators: dict[str, int] = {}
        self.misses: dict[int, str] = {}

    def nodes(self, op: str) -> Iterator[tuple[Ref, tuple[Ref | None, ...]]]:
        self.operators.setdefault(op, 0)
        for ref, inputs in self._view.nodes(op):
            self.operators[op] += 1
            self.classes.add(ref.handle)
            yield ref, inputs

    def spellings(self, ref: Ref) -> Iterator[tuple[str, tuple[Ref | None, ...]]]:
        return self._view.spellings(ref)

    def users(self, ref: Ref) -> Iterator[tuple[str, Ref, tuple[Ref | None, ...]]]:
        return self._view.users(ref)

    def notes(self, subject: Hashable) -> dict[Any, Any]:
        return self._view.notes(subject)

    def shared(self, find: Callable[[GroupView], T]) -> T:
        return find(self)

    def meets(self, conditions: Sequence[Condition], **names: Any) -> bool:
        return self._view.meets(conditions, **names)

    def missed(self, structure: str, ref: Ref, reason: Unmet) -> None:
        self.misses[ref.handle] = str(reason)


def group_at(rule: GroupRule, egraph: EGraph, places: Places, handle: int) -> Miss:
    """Whether a group rule offers a merge for the e-class of ``handle`` in the saturated e-graph; if not, what is known."""
    cls = egraph.find(handle)
    recorder = _Recorder(view_of(egraph))
    place = places.describe(cls)
    offered = 0
    missed: Counter[str] = Counter()
    for ref, _ in rule.merges(recorder, lambda reason: missed.update([str(reason)])):
        offered += 1
        if egraph.find(ref.handle) == cls:
            return Miss(rule.name, place, "holds", 1, 1, "")
    if (told := recorder.misses.get(cls)) is not None:
        return Miss(rule.name, place, "condition", 1, 1, told)
    stopped = "".join(f"; {count} x {reason}" for reason, count in missed.items())
    looked = ", ".join(f"{count} {op}" for op, count in recorder.operators.items()) or "no operator"
    if cls not in recorder.classes:
        reason = f"{place} ({places.operators(cls)}) is none of the nodes it looks at ({looked}){stopped}"
        return Miss(rule.name, place, "pattern", 0, 1, reason)
    reason = f"it looked at the node (among {looked}) and offered {offered} merges, none of them here{stopped}"
    return Miss(rule.name, place, "condition", 1, 1, reason)
