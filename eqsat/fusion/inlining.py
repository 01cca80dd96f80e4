"""Values that each of their readers computes for itself, where that costs less than a kernel of their own: a mask, say, that all
layers read."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from eqsat.fusion.cones import ConePrices, operands_first
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.merging import Exchanged, kernel_of
from eqsat.fusion.templates import Cone, Matcher

_MOST_OPERATIONS = 96
"""In a kernel with what it computes again."""


def inlined_kernels(
    graph: FusionGraph, kernels: Mapping[int, Cone], matcher: Matcher, prices: ConePrices
) -> dict[int, Cone]:
    """The kernels (root -> cone, inputs first) without those of light operators that cost more than it does to compute their
    value wherever it is read; the sum of the prices never grows.

    A reader that cannot hold it hands its own light operators behind it over to its readers, and so on: the sum of a residual
    stream is computed by all norms that read it, from the outputs of all layers before.
    """
    found = _Inlining(graph, kernels, matcher, prices)
    for root in reversed(list(kernels)):
        found.inline(root)
    return found.kernels


class _Inlining(Exchanged):
    def __init__(self, graph: FusionGraph, kernels: Mapping[int, Cone], matcher: Matcher, prices: ConePrices) -> None:
        super().__init__(kernels)
        self._graph = graph
        self._matcher = matcher
        self._prices = prices

    def inline(self, root: int) -> None:
        """Does without the kernel of a value, if that pays."""
        cone = self.kernels.get(root)
        if cone is None or cone.only_views or cone.also or not self._is_light(cone.operations):
            return
        new = self._without(cone)
        if new is not None:
            old = [self.kernels[root] for root in new]
            self.exchange(old, [made for made in new.values() if made is not None])

    def _without(self, cone: Cone) -> dict[int, Cone | None] | None:
        """What takes the place of each kernel (by its root) that changes without that of ``cone``; ``None`` if that does not
        pay, or cannot be done."""
        graph = self._graph
        new: dict[int, Cone | None] = {cone.root: None}
        saved = cone.price
        waiting = deque([(cone.root, cone.operations)])
        while waiting and saved > 0:
            value, operations = waiting.popleft()
            if value in graph.roots:
                return None
            for reader in sorted(self.readers[value]):
                old = new.get(reader, self.kernels[reader])
                if old is None or value not in old.inputs:
                    return None
                made = None if old.only_views else self._kernel(old.operations | operations, old.outputs)
                if made is None:
                    behind = self._behind(old, value)
                    made = None if behind is None else self._before(old, behind)
                    if behind is None or (made is None and len(behind) < len(old.operations)):
                        return None
                    waiting.append((old.root, behind | operations))
                new[reader] = made
                saved += old.price - (made.price if made is not None else 0.0)
        return new if saved > 1e-12 * cone.price and self._is_complete(new) else None

    def _is_complete(self, new: Mapping[int, Cone | None]) -> bool:
        """Whether all that new kernels read is written, still or by another of them."""
        written = {c for made in new.values() if made is not None for c in made.outputs}
        gone = {c for old in new for c in self.kernels[old].outputs} - written
        return all(gone.isdisjoint(made.cut) for made in new.values() if made is not None)

    def _behind(self, cone: Cone, value: int) -> frozenset[int] | None:
        """The operations of a kernel that need a value that it reads; ``None`` if they cannot be computed again."""
        graph = self._graph
        behind: list[int] = []
        classes = {value}
        for index in operands_first(graph, cone.operations, cone.root):
            if not classes.isdisjoint(graph.operations[index].inputs):
                behind.append(index)
                classes.add(graph.owner[index])
        return frozenset(behind) if not cone.also and self._is_light(behind) else None

    def _before(self, cone: Cone, behind: Collection[int]) -> Cone | None:
        """The kernel of what is left of one without some operations; ``None`` if there is none."""
        graph = self._graph
        rest = cone.operations.difference(behind)
        made = {graph.owner[i] for i in rest}
        read = made.intersection(c for i in behind for c in graph.operations[i].inputs)
        if len(read) != 1 or not read.isdisjoint(self.writer):
            return None
        (root,) = read
        whole = len(operands_first(graph, rest, root)) == len(rest)
        return self._kernel(rest, [root]) if whole else None

    def _is_light(self, operations: Collection[int]) -> bool:
        recomputes = self._matcher.target.recomputes
        return all(recomputes(self._graph.operations[i].kind) for i in operations)

    def _kernel(self, operations: frozenset[int], outputs: Sequence[int]) -> Cone | None:
        small = len(operations) <= _MOST_OPERATIONS
        return kernel_of(self._matcher, self._prices, operations, outputs) if small else None
