"""What kernels cannot read (`eqsat.bounds.prerequisites`), seen from a block of a graph (`eqsat.bounds.blocks.block`)."""

from collections.abc import Mapping, Sequence, Set

from eqsat.bounds.prerequisites import Prerequisites
from eqsat.fusion.graph import FusionGraph


class NoPrerequisites(Prerequisites):
    """Says nothing."""

    def __init__(self, classes: int) -> None:
        self.rank = [0] * classes

    def bit(self, cls: int) -> int:
        return 0

    def needed(self, cls: int) -> int:
        return 0

    def circular(self, cls: int, anchor: int, from_anchor: int) -> bool:
        return False


class BlockPrerequisites(Prerequisites):
    """What ``whole`` says of the classes of a block, by their numbers there.

    It is true of the parts of kernels, too: none reads what is computed from what another part computes. But all that leads from
    one class of the block to another must be in the block. So nothing is said of ``apart``, what the classes that blocks take
    to be there may be computed from. ``source``: an operation that is computed, in kernels around what is below, from operators
    that one kernel each computes, if known.

    ``classes``, ``operations``: those of the whole graph -> their numbers in ``graph``.
    """

    def __init__(
        self,
        whole: Prerequisites,
        graph: FusionGraph,
        source: int,
        apart: Set[int],
        classes: Mapping[int, int],
        operations: Mapping[int, int],
    ) -> None:
        numbers = {whole.bit(cls): new for cls, new in classes.items() if cls not in apart and whole.bit(cls)}
        every = sum(numbers)
        self._bit = {new: 1 << new for new in numbers.values()}
        self._needed = [0] * len(graph.members)
        self.rank = [0] * len(graph.members)
        for cls, new in classes.items():
            left = whole.needed(cls) & every
            while left:
                lowest = left & -left
                self._needed[new] |= 1 << numbers[lowest]
                left ^= lowest
            self.rank[new] = whole.rank[cls]
        self._once = [False] * len(graph.operations)
        for index, new in operations.items():
            self._once[new] = whole.once(index)
        if source >= 0:
            self._once[source] = True

    def described(self, graph: FusionGraph, order: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """What is said of the classes of operations, as positions in their ``order``: the same for equal blocks of which the
        same is true."""
        place: dict[int, int] = {}
        for position, index in enumerate(order):
            place.setdefault(graph.owner[index], position)
        return tuple(
            tuple(p for c, p in place.items() if self._needed[cls] >> c & 1 and c in self._bit) for cls in place
        )
