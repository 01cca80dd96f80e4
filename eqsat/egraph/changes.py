"""What is new in the e-graph since a rule over groups last looked at it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph


class Changes:
    """When e-nodes of each operator, and each e-class, last changed as a rule sees them. Kept up to date by an `EGraph`.

    An e-node changes when its class, or that of an input, has another representative, another type, or becomes constant; a
    class when it gains e-nodes or users. What follows from values further away (bounds on elements) is not followed.
    """

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._time = 1
        self.touched: list[int] = []  # handles of e-nodes, each time that they changed after they were made
        self._operators: dict[str, int] = {}
        self._classes: dict[int, int] = {}
        self.lessons: dict[int, int] = {}
        """By class, how often its type was refined, and whether it turned out to be constant."""

    def tick(self) -> int:
        """The time now; what changes from here on is later."""
        self._time += 1
        return self._time - 1

    def inserted(self, handle: int) -> None:
        node = self._egraph.nodes[handle]
        self._operators[node.key] = self._time
        for child in (handle, *node.children):
            self._classes[self._egraph.find(child)] = self._time

    def merging(self, keep: int, lose: int, *, refined: bool) -> None:
        """Two classes are about to become one."""
        self._touch(lose)
        if refined:
            self._touch(keep)
            self.lessons[keep] = self.lessons.get(keep, 0) + 1
        self._classes[keep] = self._time

    def learnt(self, cls: int) -> None:
        """A class turned out to be constant."""
        self._touch(cls)
        self.lessons[cls] = self.lessons.get(cls, 0) + 1
        self._classes[cls] = self._time

    def _touch(self, cls: int) -> None:
        nodes, operators, now = self._egraph.nodes, self._operators, self._time
        handles = (*self._egraph.members(cls), *self._egraph.users_of(cls))
        self.touched += handles
        for handle in handles:
            operators[nodes[handle].key] = now

    def since(self, time: int, operators: Iterable[str], classes: Iterable[int]) -> bool:
        """Whether e-nodes of one of the operators, or one of the classes, changed after ``time``."""
        find, changed = self._egraph.find, self._classes
        return any(self._operators.get(op, 0) > time for op in operators) or any(
            changed.get(find(cls), 0) > time for cls in classes
        )
