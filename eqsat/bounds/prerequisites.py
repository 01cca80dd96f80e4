"""Which values no kernel can read from memory, because they are computed from what it computes itself.

Kernels of several outputs could otherwise hold all that is added to a residual stream, and read there what they lead to.
"""

from collections.abc import Iterable, Sequence

from eqsat.bounds.views import Merged
from eqsat.cost.target import Target
from eqsat.extract import ExtractionProblem
from eqsat.extract.core import Core
from eqsat.extract.required import required_by, required_classes
from eqsat.fusion.graph import FusionGraph


class Prerequisites:
    """The classes that every way to compute a class computes too.

    ``rank``: position of each class of the merged graph in an order in which they can be computed.

    ``graph``: the one that was ``merged``; ``usable[i]``: whether its operation ``i`` may be chosen. Nothing is said of merged
    classes in which operations other than views between their parts compute several parts: a program may have one computed
    from what a kernel writes, and another inside that kernel.
    """

    def __init__(self, graph: FusionGraph, usable: Sequence[bool], merged: Merged, target: Target) -> None:
        core, _, owner = core_of(graph, usable)
        number: dict[int, int] = {owner[core.parts[members[0]]]: c for c, members in enumerate(core.nodes)}
        required = required_classes(core) or [1 << c for c in range(len(core.nodes))]
        entries: dict[int, set[int]] = {}
        for index, new in merged.operations.items():
            if graph.owner[index] in number:
                entries.setdefault(merged.graph.owner[new], set()).add(graph.owner[index])
        self._bit = {cls: 1 << number[next(iter(found))] for cls, found in entries.items() if len(found) == 1}
        self._needed = [-1] * len(merged.graph.members)
        self.rank = [len(number)] * len(merged.graph.members)
        for cls, position in number.items():
            new = merged.classes[cls]
            self._needed[new] &= required[position]
            self.rank[new] = min(self.rank[new], position)
        self._once = [not target.recomputes(o.kind) for o in merged.graph.operations]

    def bit(self, cls: int) -> int:
        """The class of the merged graph as a set, empty if nothing is said of it."""
        return self._bit.get(cls, 0)

    def needed(self, cls: int) -> int:
        """The classes that every way to compute a class of the merged graph computes, as a set; all if there is none."""
        return self._needed[cls]

    def needed_by(self, inputs: Iterable[int]) -> set[int]:
        """The classes that every way to compute all of ``inputs`` computes."""
        needed = required_by(self._needed, inputs)
        return {cls for cls, bit in self._bit.items() if bit & needed}

    def once(self, index: int) -> bool:
        """Whether one kernel only may compute an operation of the merged graph."""
        return self._once[index]

    def circular(self, cls: int, anchor: int, from_anchor: int) -> bool:
        """Whether a kernel cannot read ``cls`` from memory, as what it writes is needed for that.

        It holds operation ``anchor``, and computes from it the classes of the set ``from_anchor``.

        An anchor that several kernels may compute says nothing: another kernel may compute those classes.
        """
        return anchor >= 0 and self._once[anchor] and bool(self._needed[cls] & from_anchor)


def core_of(graph: FusionGraph, usable: Sequence[bool]) -> tuple[Core, list[int], list[int]]:
    """The choice of operations as an extraction problem, the part of it that a program can have, and the operations and classes
    of its nodes (by `Core.parts`), as in `FusionGraph.nodes`. Classes of the core come in an order of computation."""
    operations, owner, children = graph.nodes(usable)
    problem = ExtractionProblem(len(graph.members), owner, children, [1.0] * len(owner), graph.roots)
    return Core.from_problem(problem), operations, owner
