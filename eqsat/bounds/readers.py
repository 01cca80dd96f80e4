"""Which reads of a value from memory are reads of different kernels, so that each of them is paid for."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from networkx.utils import UnionFind

from eqsat.bounds.focus import Focus
from eqsat.bounds.relaxed_templates import Mode
from eqsat.bounds.states import ANY, NONE, KernelId, Reach
from eqsat.fusion.graph import FusionGraph
from eqsat.ir.order import reached


class ReadBy(NamedTuple):
    """A set of kernels; two reads of a class by one kernel are in one set.

    ``kernel``: those with this anchor, which write this class if one is given. Otherwise (`ANY`) kernels of template ``mode``
    with operators of ``group``, or an operator alone, which is then ``group``, and ``mode`` is `NONE`; or all kernels.
    """

    kernel: KernelId
    mode: int = NONE
    group: int = NONE


EVERY = ReadBy(ANY)


class Readers:
    """The kernels that read the classes of a graph.

    ``users``: those of the graph. ``reaches``: all templates, in the modes in which bytes count. The readers of leaves are told
    apart if ``focus`` says so, those of all other classes always, if there is to be so much detail; reads that are not told apart
    count once.

    The operators that read a class are in groups: no kernel without an anchor that reads it from memory holds operators of two
    groups. Operators are in one such kernel only if paths inside it lead from both to a value that it writes, or, where it may
    write several values, from one value to both.
    """

    def __init__(
        self, graph: FusionGraph, users: Sequence[Sequence[int]], reaches: Sequence[Reach], focus: Focus
    ) -> None:
        self._graph = graph
        self._users = users
        self._focus = focus
        self._paths = [_Paths(graph, r) for r in reaches if not (r.mode.anchored or r.mode.known_by_opener)]
        self._groups: dict[int, dict[int, int]] = {}
        openers: set[int] = set()
        joining: set[int] = set()
        for reach in reaches:
            for index, (_, _, kernel), _ in reach.steps:
                (openers if index == kernel.anchor else joining).add(index)
        self._only_openers = openers - joining

    def kernel(self, cls: int, index: int, mode: Mode, kernel: KernelId) -> ReadBy:
        """The kernels of a mode that read ``cls`` for operator ``index``. Those of one anchor are told apart where ``cls`` is
        computed only."""
        if not self.told_apart(cls):
            return EVERY
        if kernel.anchor == NONE:
            return ReadBy(ANY, mode.number, self._group(cls, index))
        return ReadBy(kernel if self._graph.members[cls] else KernelId(kernel.anchor, NONE))

    def alone(self, cls: int, index: int) -> ReadBy:
        """The kernel of ``index`` alone, as it reads ``cls``: told from those it opens only where ``cls`` is computed."""
        if not self.told_apart(cls):
            return EVERY
        leaf = not self._graph.members[cls]
        return ReadBy(KernelId(index, NONE)) if leaf and index in self._only_openers else ReadBy(ANY, NONE, index)

    def always(self, index: int) -> list[tuple[int, ReadBy]]:
        """Leaves that every kernel with an operator reads, and as which kernels."""
        found: list[tuple[int, ReadBy]] = []
        for cls in self._graph.operations[index].inputs:
            if self._graph.members[cls] or self._graph.operations[index].is_view:
                continue
            if not self.told_apart(cls):
                found.append((cls, EVERY))
            elif index in self._only_openers:
                found.append((cls, ReadBy(KernelId(index, NONE))))
        return found

    def told_apart(self, cls: int) -> bool:
        """Whether each kernel that reads a class pays for it."""
        return self._focus.detail > 1 and (
            cls in self._focus.shared or (bool(self._graph.members[cls]) and not self._focus.shared_only)
        )

    def _group(self, cls: int, index: int) -> int:
        groups = self._groups.get(cls)
        if groups is None:
            groups = self._groups[cls] = self._partition(cls)
        return groups[index]

    def _partition(self, cls: int) -> dict[int, int]:
        graph = self._graph

        def behind(index: int) -> Sequence[int]:
            return self._users[graph.owner[index]] if graph.operations[index].is_view else ()

        readers = reached(self._users[cls], behind)  # of the class or a view of it, and the views
        groups = UnionFind(readers)
        for index in readers:  # a view is read by what reads its value
            if graph.operations[index].is_view:
                groups.union(index, *self._users[graph.owner[index]])
        if graph.bytes[cls] or cls in self._focus.shared:  # shared by blocks, these have no bytes but a price
            for paths in self._paths:
                for together in paths.together(cls, readers):
                    groups.union(*together)
        return {i: min(together) for together in groups.to_sets() for i in together}


class _Paths:
    """Paths inside kernels of one mode without an anchor."""

    def __init__(self, graph: FusionGraph, reach: Reach) -> None:
        self._graph = graph
        self._several = reach.mode.template.several
        self._steps = {index for index, _, _ in reach.steps}
        self._up: dict[int, set[int]] = {}
        self._down: dict[int, set[int]] = {}
        for index, (stage, _, _), carried in reach.steps:
            for c in graph.operations[index].inputs:
                if reach.beside(c, stage, carried, ANY):
                    self._up.setdefault(c, set()).add(graph.owner[index])
                    self._down.setdefault(graph.owner[index], set()).add(c)

    def together(self, cls: int, readers: Collection[int]) -> list[list[int]]:
        """Sets of readers of ``cls`` that may be in one kernel that reads it from memory."""
        at: dict[tuple[bool, int], list[int]] = {}
        for index in readers:
            if index in self._steps:
                own = self._graph.owner[index]
                for ways in (self._up, self._down) if self._several else (self._up,):
                    for c in reached((own,), lambda c, ways=ways: ways.get(c, set[int]()) - {cls}):
                        at.setdefault((ways is self._up, c), []).append(index)
        return [found for found in at.values() if len(found) > 1]
