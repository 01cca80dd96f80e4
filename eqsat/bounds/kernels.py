"""From the groups of operations that the relaxed problem chose to kernels of a program."""

from collections.abc import Mapping, Sequence

from eqsat.bounds.named_problem import ChosenGroup
from eqsat.cost.target import Target
from eqsat.extract.knuth import knuth
from eqsat.fusion.cones import ConePrices, operands_first
from eqsat.fusion.covering import Covering
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.merging import are_covering, kernel_of
from eqsat.fusion.templates import Cone, Matcher
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.order import reached

_UNGROUPED = 1_000.0
"""Cost of an operation that is in no group, where one in a group costs 1."""


def covering_of(
    graph: FusionGraph, choice: Mapping[int, int], groups: Sequence[ChosenGroup], target: Target, prices: ConePrices
) -> Covering | None:
    """The program ``choice`` (class -> operation) in these kernels, views between them, and operations of no group as kernels
    of their own; ``None`` if one is no kernel of the target or they are no covering. It has no bound but 0."""
    kernels = _ReadOff(graph.restricted(choice), choice, target, prices).run(groups)
    if kernels is None or not are_covering(graph, kernels, target):
        return None
    return Covering(kernels, 0.0, "relaxation")


def spanned(graph: FusionGraph, operations: frozenset[int], groups: Sequence[ChosenGroup]) -> dict[int, int] | None:
    """A program of ``operations`` and views (class -> operation), preferring those of ``groups`` and what is computed from
    little; ``None`` if they are not enough."""
    grouped = frozenset[int]().union(*(group.operations for group in groups))
    usable = [i in operations or o.is_view for i, o in enumerate(graph.operations)]
    nodes, owner, children = graph.nodes(usable)
    cost = [0.0 if i < 0 else 1.0 if i in grouped else _UNGROUPED for i in nodes]
    tree = knuth(len(graph.members), owner, children, cost)
    if any(tree.choice[root] < 0 for root in graph.roots):
        return None
    return {c: nodes[n] for c, n in enumerate(tree.choice) if n >= 0 and nodes[n] >= 0}


def with_written_signs(graph: FusionGraph, choice: Mapping[int, int], groups: Sequence[ChosenGroup]) -> dict[int, int]:
    """The program ``choice`` with integers recentered from those that groups write, where both are computed alike from one
    value: groups of a problem in which the two are one class hold either."""
    written = frozenset[int]().union(*(group.outputs for group in groups))
    result = dict(choice)
    for cls, index in choice.items():
        operation = graph.operations[index]
        for other in graph.members[cls] if cls not in written else ():
            twin = graph.operations[other].inputs[0]
            if graph.operations[other].name == RECENTER and twin in written and twin in choice:
                made = graph.operations[choice[twin]]
                if made.name == operation.name and made.inputs[0] == operation.inputs[0] != twin:
                    result[cls] = other
    return result


class _ReadOff:
    def __init__(self, graph: FusionGraph, choice: Mapping[int, int], target: Target, prices: ConePrices) -> None:
        self._graph = graph
        self._choice = choice
        self._prices = prices
        self._matcher = Matcher(graph, target)

    def run(self, groups: Sequence[ChosenGroup]) -> dict[int, Cone] | None:
        graph = self._graph
        members = [self._members(group) for group in groups]
        writer = {
            cls: number
            for number, (group, operations) in enumerate(zip(groups, members, strict=True))
            for cls in (graph.owner[i] for i in operations)
            if cls in group.outputs and not graph.operations[self._choice[cls]].is_view
        }
        needed = self._needed(members, writer)
        kernels: dict[int, Cone] = {}
        outputs: dict[int, list[int]] = {}
        for cls in needed:
            if cls in writer:
                outputs.setdefault(writer[cls], []).append(cls)
        made = [(members[number], found) for number, found in outputs.items()]
        made += [(frozenset((self._choice[c],)), [c]) for c in needed if c not in writer]
        for operations, found in made:
            cone = self._kernel(operations, found)
            if cone is None or cone.price == float("inf"):
                return None
            kernels[cone.root] = cone
        return kernels

    def _members(self, group: ChosenGroup) -> frozenset[int]:
        """The chosen operations of a group, and the views and recenterings between them."""
        graph = self._graph
        inside = {c: i for c, i in self._choice.items() if i in group.operations and not graph.operations[i].is_view}
        found = set(inside.values())
        for index in inside.values():
            for cls in graph.operations[index].inputs:
                views: list[int] = []
                while cls not in inside and self._is_between(cls):
                    views.append(self._choice[cls])
                    cls = graph.operations[self._choice[cls]].inputs[0]
                if cls in inside:
                    found.update(views)
                else:
                    found.update(self._from_leaves(cls)[1])
        return frozenset(found)

    def _from_leaves(self, cls: int) -> tuple[float, frozenset[int]]:
        """Least bytes to read for a class that is a view of leaves, and the views of those that are read instead."""
        graph = self._graph
        index = self._choice.get(cls)
        if index is None or not graph.operations[index].is_plain_view or not graph.members[cls]:
            return graph.bytes[cls], frozenset()
        inputs = graph.operations[index].inputs
        below = [self._from_leaves(c) for c in inputs]
        read = sum(size for size, _ in below)
        computed = any(graph.members[c] and not views for c, (_, views) in zip(inputs, below, strict=True))
        if computed or read >= graph.bytes[cls]:
            return graph.bytes[cls], frozenset()
        return read, frozenset((index,)).union(*(views for _, views in below))

    def _is_between(self, cls: int) -> bool:
        index = self._choice.get(cls)
        if index is None:
            return False
        operation = self._graph.operations[index]
        return (operation.is_plain_view and len(operation.inputs) == 1) or operation.name == RECENTER

    def _needed(self, members: Sequence[frozenset[int]], writer: dict[int, int]) -> list[int]:
        """Classes that must be in memory, leaves aside. Where no group writes one, ``writer`` gets one that computes it: others,
        which compute it by other operations, read it."""
        graph = self._graph
        holder = {graph.owner[i]: number for number, operations in enumerate(members) for i in operations}

        def read_for(cls: int) -> list[int]:
            if cls not in writer and cls in holder and not graph.operations[self._choice[cls]].is_view:
                writer[cls] = holder[cls]
            operations = [self._choice[cls]]
            if cls in writer:
                operations = operands_first(graph, members[writer[cls]], cls)
            inside = {graph.owner[i] for i in operations}
            return [c for i in operations for c in graph.inputs_of(i) if c not in inside]

        return sorted(reached((c for c in graph.roots if graph.members[c]), read_for))

    def _kernel(self, operations: frozenset[int], outputs: list[int]) -> Cone | None:
        """The kernel that writes some classes, from what these need of ``operations``."""
        graph = self._graph
        parts = {c: operands_first(graph, operations, c) for c in outputs}
        held = frozenset(i for part in parts.values() for i in part)
        outputs = sorted(outputs, key=lambda c: len(parts[c]))  # others are computed from the first
        return kernel_of(self._matcher, self._prices, held, outputs)
