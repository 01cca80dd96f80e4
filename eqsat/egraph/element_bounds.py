"""Bounds on the elements of e-classes: what their e-nodes prove together, kept while the e-graph grows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from eqsat.egraph.intervals import DEPTH, Interval, meet, of_array, of_nodes

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph

_Known = tuple[float, Interval]
"""How deep bounds were looked for, without end where more depth tells nothing, and the bounds."""


class ElementBounds:
    """``cut``: whether what is being found was not followed to its end, so that more depth may tell more."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._known: dict[int, _Known] = {}
        self.cut = False

    def of(self, cls: int, depth: int = DEPTH) -> Interval:
        """The tightest interval that some spelling of the class proves. NaN elements give (nan, nan)."""
        egraph = self._egraph
        cls = egraph.find(cls)
        known = self._known.get(cls)
        if known is not None and known[0] >= depth:
            self.cut |= known[0] < math.inf
            return known[1]
        value = egraph.value_of(cls)
        outer, self.cut = self.cut, False
        found = of_array(value) if value is not None else of_nodes(egraph, egraph.members(cls), depth, self)
        self._known[cls] = depth if self.cut else math.inf, found
        self.cut |= outer
        return found

    def merged(self, keep: int, lose: int, gained: Sequence[int]) -> None:
        """Two classes became one: both bounds hold. Where they are tighter, so may be what was made of them.

        ``gained``: the e-nodes of the one lost. A new e-node is a new class, which nothing reads yet.
        """
        own, other = self._known.get(keep), self._known.pop(lose, None)
        if own is not None and other is not None:
            depth, together = min(own[0], other[0]), meet(own[1], other[1])
        elif own is not None:
            depth, together = own[0], self._tightened(own, gained)
        elif other is not None:
            before = set(self._egraph.members(keep)).difference(gained)
            self._known[keep] = other  # where its e-nodes read the class itself
            depth, together = other[0], self._tightened(other, sorted(before))
        else:
            return
        self._known[keep] = depth, together
        if any(known is not None and known[1] != together for known in (own, other)):
            self._spread(keep)

    def _tightened(self, known: _Known, handles: Sequence[int]) -> Interval:
        """Bounds of a class, and what these e-nodes of it prove, too."""
        depth, bounds = known
        return meet(bounds, of_nodes(self._egraph, handles, int(min(depth, DEPTH)), self))

    def _spread(self, cls: int) -> None:
        """The bounds of a class have become tighter: those that were made of them likewise, as far as that tells anything."""
        egraph, waiting, told = self._egraph, [cls], {cls}
        while waiting:
            for user in egraph.users_of(waiting.pop()):
                of = egraph.find(user)
                known = self._known.get(of)
                if known is None:
                    continue
                tighter = self._tightened(known, (user,))
                if tighter == known[1]:
                    continue
                self._known[of] = known[0], tighter
                if of not in told:  # once: around a circle bounds may become tighter for ever
                    told.add(of)
                    waiting.append(of)
