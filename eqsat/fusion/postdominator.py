"""The fusion of TVM: groups along post-dominators, by the patterns of operators.

Follows ``GraphPartitioner`` of Apache TVM (Relax, ``graph_partitioner.cc``) with its patterns of operators
(``tir_op_pattern_kind.cc``): phase 0 fuses elementwise chains and what follows an anchor, phase 1 injective operators.
Every group has one output, its sink.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum

from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.ir.operator import Kind
from eqsat.ir.order import reached


class Pattern(IntEnum):
    """TVM's ``OpPatternKind``, hardest to fuse last."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    OPAQUE = 8


_MOST_NODES = 256


def pattern_of(operation: Operation) -> Pattern:
    """The pattern of an operator. Softmax and norms count as anchors: a reduction whose last loop is elementwise."""
    labels = operation.labels
    if operation.has_parts:
        return Pattern.OPAQUE
    match operation.kind:
        case Kind.ELEMENTWISE:
            return Pattern.ELEMWISE if "elementwise" in labels else Pattern.BROADCAST
        case Kind.VIEW | Kind.INJECTIVE:
            return Pattern.INJECTIVE
        case Kind.REDUCTION:
            return Pattern.REDUCE if "reduction" in labels else Pattern.OUT_ELEMWISE_FUSABLE
        case Kind.ANCHOR:
            return Pattern.OUT_ELEMWISE_FUSABLE
        case Kind.OPAQUE:
            return Pattern.OPAQUE


def post_dominator_groups(graph: FusionGraph, choice: Mapping[int, int]) -> dict[int, frozenset[int]]:
    """Groups of a program (one operation for each class): class of the sink -> operations of its group.

    ``choice`` holds the needed classes, operands first.
    """
    return _Partition(graph, choice).run()


class _Partition:
    def __init__(self, graph: FusionGraph, choice: Mapping[int, int]) -> None:
        self._classes = list(choice)
        self._operations = [choice[c] for c in self._classes]
        number = {c: i for i, c in enumerate(self._classes)}
        count = len(self._classes)
        self._pattern = [pattern_of(graph.operations[i]) for i in self._operations]
        self._users: list[list[int]] = [[] for _ in range(count)]
        for user, index in enumerate(self._operations):
            for c in graph.inputs_of(index):
                self._users[number[c]].append(user)
        self._output = [c in set(graph.roots) for c in self._classes]
        self._parent = list(range(count))
        self._size = [1] * count
        self._group_pattern = list(self._pattern)
        self._anchored = [p is Pattern.OUT_ELEMWISE_FUSABLE for p in self._pattern]
        self._edge = [Pattern.OPAQUE] * count
        self._dominate()

    def run(self) -> dict[int, frozenset[int]]:
        for phase in (0, 1):
            for i in range(len(self._classes)):
                self._fuse(i, phase)
        groups: dict[int, list[int]] = {}
        for i in range(len(self._classes)):
            groups.setdefault(self._find(i), []).append(i)
        return {self._classes[max(g)]: frozenset(self._operations[i] for i in g) for g in groups.values()}

    # ---- the tree

    def _dominate(self) -> None:
        """The post-dominator of each operator, -1 for outputs and what is read for several, and the patterns on the way there."""
        import networkx as nx

        backwards: nx.DiGraph[int] = nx.DiGraph()
        backwards.add_node(-1)  # a program may have no operators
        for i, users in enumerate(self._users):
            backwards.add_edges_from([(-1, i)] if self._output[i] or not users else [(user, i) for user in users])
        self._dominator: dict[int, int] = nx.immediate_dominators(backwards, -1)  # pyright: ignore[reportUnknownMemberType]
        for i in reversed(range(len(self._users))):
            self._edge[i] = max((p for user in self._users[i] for p in self._on_way(user, i)), default=Pattern.OPAQUE)

    def _on_way(self, user: int, i: int) -> Iterator[Pattern]:
        """The patterns from a user of ``i`` to the post-dominator of ``i``."""
        yield self._pattern[user]
        while user not in (self._dominator[i], -1):
            yield self._edge[user]
            user = self._dominator[user]

    # ---- groups

    def _find(self, i: int) -> int:
        while self._parent[i] != i:
            self._parent[i] = self._parent[self._parent[i]]
            i = self._parent[i]
        return i

    def _fuse(self, i: int, phase: int) -> None:
        pattern = self._group_pattern[i]
        sink = self._dominator[i]
        if pattern is Pattern.OPAQUE or sink < 0 or self._find(i) == self._find(sink):
            return
        if self._count(i, sink) > _MOST_NODES:
            return
        if pattern is Pattern.OUT_ELEMWISE_FUSABLE:
            allowed = phase == 0 and self._edge[i] is Pattern.ELEMWISE
            if allowed and self._path(i, sink, lambda kind, _: kind <= Pattern.BROADCAST):
                self._commit(i, sink)
        elif pattern <= Pattern.BROADCAST:
            if self._edge[i] <= Pattern.REDUCE and self._path(i, sink, _fits_elementwise):
                self._commit(i, sink)
        elif (
            pattern is Pattern.INJECTIVE
            and phase == 1
            and self._path(i, sink, lambda kind, _: kind <= Pattern.INJECTIVE)
        ):
            self._commit(i, sink)

    def _between(self, i: int, sink: int) -> set[int]:
        """Nodes on paths from ``i`` (not included) to its post-dominator (included)."""
        return reached(self._users[i], lambda node: self._users[node] if node != sink else ()) | {sink}

    def _path(self, i: int, sink: int, fits: Callable[[Pattern, bool], bool]) -> bool:
        return all(fits(self._group_pattern[self._find(n)], n == sink) for n in self._between(i, sink))

    def _count(self, i: int, sink: int) -> int:
        nodes = (self._between(i, sink) | {i}) - {sink}
        return self._size[self._find(sink)] + sum(self._size[self._find(n)] for n in nodes)

    def _commit(self, i: int, sink: int) -> None:
        target = self._find(sink)
        for node in sorted((self._between(i, sink) | {i}) - {sink}):
            group = self._find(node)
            if group == target:
                continue
            self._parent[group] = target
            self._size[target] += self._size[group]
            if self._anchored[group]:
                self._anchored[target] = True
                self._group_pattern[target] = max(self._group_pattern[target], self._group_pattern[group])


def _fits_elementwise(kind: Pattern, is_sink: bool) -> bool:
    return kind <= (Pattern.OUT_ELEMWISE_FUSABLE if is_sink else Pattern.INJECTIVE)
