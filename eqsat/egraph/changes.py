"""What is new in the e-graph since a rule over groups last looked at it."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph


@dataclass(slots=True)
class Shown:
    """What of an e-graph was shown, from ``time`` on: all e-nodes of ``operators``, and the e-nodes (``spelled``) and the users
    (``read``) of e-classes."""

    time: int
    operators: set[str] = field(default_factory=set[str])
    spelled: set[int] = field(default_factory=set[int])
    read: set[int] = field(default_factory=set[int])

    def add(self, other: Shown) -> None:
        self.operators |= other.operators
        self.spelled |= other.spelled
        self.read |= other.read


class Changes:
    """When e-nodes of each operator, and each e-class, last changed as a rule sees them. Kept up to date by an `EGraph`.

    An e-node changes when its class, or that of an input, has another representative, another type, or becomes constant; a
    class when it gains e-nodes or users. What follows from values further away (bounds on elements) is not followed.
    """

    def __init__(self, egraph: EGraph) -> None:
        self._egraph: EGraph = weakref.proxy(egraph)
        self._time = 1
        self.touched: list[int] = []  # handles of e-nodes, each time that they changed after they were made
        self._operators: dict[str, int] = {}
        self._classes: dict[int, int] = {}
        self.lessons: dict[int, int] = {}
        """By class, how often its type was refined, and whether it turned out to be constant."""
        self.constants: list[int] = []
        """Classes as they turned out to be constant, one after the other."""

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
        self.constants.append(cls)
        self._touch(cls)
        self.lessons[cls] = self.lessons.get(cls, 0) + 1
        self._classes[cls] = self._time

    def _touch(self, cls: int) -> None:
        nodes, operators, now = self._egraph.nodes, self._operators, self._time
        handles = (*self._egraph.members(cls), *self._egraph.users_of(cls))
        self.touched += handles
        for handle in handles:
            operators[nodes[handle].key] = now

    def since(self, shown: Shown) -> bool:
        """Whether something that was shown is no longer as it was."""
        find, changed, time = self._egraph.find, self._classes, shown.time
        return any(self._operators.get(op, 0) > time for op in shown.operators) or any(
            changed.get(find(cls), 0) > time for cls in itertools.chain(shown.spelled, shown.read)
        )
