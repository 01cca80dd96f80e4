"""Which values no kernel can read from memory, because they are computed from what it computes itself.

Kernels of several outputs could otherwise hold all that is added to a residual stream, and read there what they lead to.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqsat.cost.target import Target
from eqsat.extract.knuth import knuth
from eqsat.fusion.operation import FusionGraph
from eqsat.fusion.quotient import Merged


class Needs:
    """The classes that every way to compute a class computes too.

    ``rank``: position of each class of the merged graph in an order in which they can be computed.

    ``graph``: the one that was ``merged``; ``usable[i]``: whether its operation ``i`` may be chosen. Nothing is said of merged
    classes in which operations other than views between their parts compute several parts: a program may have one computed
    from what a kernel writes, and another inside that kernel.
    """

    def __init__(self, graph: FusionGraph, usable: Sequence[bool], merged: Merged, target: Target) -> None:
        entries: dict[int, set[int]] = {}
        for index, new in merged.operations.items():
            entries.setdefault(merged.graph.owner[new], set()).add(graph.owner[index])
        self._bit = {cls: 1 << next(iter(found)) for cls, found in entries.items() if len(found) == 1}
        nodes = [i for members in graph.members for i in members if usable[i]]
        children = [tuple(graph.inputs_of(i)) for i in nodes]
        owner = [graph.owner[i] for i in nodes]
        order = knuth(len(graph.members), owner, children, [1.0] * len(nodes)).order
        needed = _needed(graph, order, owner, children)
        self._needed = [-1] * len(merged.graph.members)
        for cls, number in merged.classes.items():
            self._needed[number] &= needed[cls]
        self.rank = [len(order)] * len(merged.graph.members)
        for position, cls in reversed(list(enumerate(order))):
            self.rank[merged.classes[cls]] = position
        self._once = [o.kind.value not in target.recompute for o in merged.graph.operations]

    def bit(self, cls: int) -> int:
        """The class of the merged graph as a set, empty if nothing is said of it."""
        return self._bit.get(cls, 0)

    def circular(self, cls: int, anchor: int, through: int) -> bool:
        """Whether a kernel cannot read ``cls`` from memory, as what it writes is needed for that.

        It holds operation ``anchor``, and computes from it the classes of the set ``through``.

        An anchor that several kernels may compute says nothing: another kernel may compute those classes.
        """
        return anchor >= 0 and self._once[anchor] and bool(self._needed[cls] & through)


def _needed(
    graph: FusionGraph, order: Sequence[int], owner: Sequence[int], children: Sequence[tuple[int, ...]]
) -> list[int]:
    """For each class the set (as bits) of classes that every way to compute it takes, itself too; of leaves none.

    ``order``: the classes that can be computed; ``owner`` and ``children`` are those of the operations.
    """
    ways: dict[int, list[tuple[int, ...]]] = {}
    for cls, below in zip(owner, children, strict=True):
        ways.setdefault(cls, []).append(below)
    needed = [-1 if members else 0 for members in graph.members]
    changed = True
    while changed:
        changed = False
        for cls in order:
            found = -1
            for below in ways[cls]:
                own = 0
                for c in below:
                    own |= needed[c]
                found &= own
            found |= 1 << cls
            changed |= found != needed[cls]
            needed[cls] = found
    return needed
