"""From the groups of operations that the relaxed problem chose to kernels of a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eqsat.cost.target import Target
from eqsat.extract.knuth import knuth
from eqsat.fusion.cones import ConePrices, cone_of, operands_first
from eqsat.fusion.covering import Covering, repeated
from eqsat.fusion.matching import Cone, Matcher
from eqsat.fusion.merging import several_outputs
from eqsat.fusion.operation import FusionGraph
from eqsat.fusion.problem import ChosenGroup


def covering_of(
    graph: FusionGraph,
    choice: Mapping[int, int],
    groups: Iterable[ChosenGroup],
    target: Target,
    prices: ConePrices,
) -> Covering | None:
    """The program ``choice`` (class -> operation) in these kernels, views between them; ``None`` if one is no kernel of the
    target or they are no covering. It has no bound but 0."""
    kernels = _ReadOff(graph.restricted(choice), choice, target, prices).run(groups)
    if kernels is None or repeated(graph, kernels.values(), target) or _circular(kernels):
        return None
    return Covering(kernels, sum(cone.price for cone in kernels.values()), 0.0, "relaxation")


def spanned(graph: FusionGraph, operations: frozenset[int]) -> dict[int, int] | None:
    """A program of ``operations`` and views (class -> operation), preferring what is computed from little; ``None`` if they are
    not enough."""
    nodes = [i for members in graph.members for i in members if i in operations or graph.operations[i].is_view]
    owner = [graph.owner[i] for i in nodes]
    children = [tuple(graph.inputs_of(i)) for i in nodes]
    leaves = [c for c, members in enumerate(graph.members) if not members]
    owner, children = owner + leaves, children + [()] * len(leaves)
    tree = knuth(len(graph.members), owner, children, [float(i < len(nodes)) for i in range(len(owner))])
    if any(tree.choice[root] < 0 for root in graph.roots):
        return None
    return {c: nodes[n] for c, n in enumerate(tree.choice) if 0 <= n < len(nodes)}


class _ReadOff:
    def __init__(self, graph: FusionGraph, choice: Mapping[int, int], target: Target, prices: ConePrices) -> None:
        self._graph = graph
        self._choice = choice
        self._target = target
        self._prices = prices
        self._matcher = Matcher(graph, target)

    def run(self, groups: Iterable[ChosenGroup]) -> dict[int, Cone] | None:
        graph = self._graph
        members = [self._members(group) for group in groups]
        writer = {
            cls: number
            for number, (group, operations) in enumerate(zip(groups, members, strict=True))
            for cls in (graph.owner[i] for i in operations)
            if cls in group.outputs and not graph.operations[self._choice[cls]].is_view
        }
        needed = self._needed(members, writer)
        if needed is None:
            return None
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
        """The chosen operations of a group, and the views between them."""
        graph = self._graph
        inside = {c: i for c, i in self._choice.items() if i in group.operations and not graph.operations[i].is_view}
        found = set(inside.values())
        for index in inside.values():
            for cls in graph.operations[index].inputs:
                views: list[int] = []
                while cls not in inside and self._is_view(cls):
                    views.append(self._choice[cls])
                    cls = graph.operations[self._choice[cls]].inputs[0]
                if cls in inside:
                    found.update(views)
        return frozenset(found)

    def _is_view(self, cls: int) -> bool:
        index = self._choice.get(cls)
        if index is None:
            return False
        operation = self._graph.operations[index]
        return operation.is_view and not operation.has_parts and len(operation.inputs) == 1

    def _needed(self, members: list[frozenset[int]], writer: Mapping[int, int]) -> list[int] | None:
        """Classes that must be in memory, leaves aside; ``None`` if one is neither written nor a view."""
        graph = self._graph
        stack = [c for c in graph.roots if graph.members[c]]
        needed: dict[int, None] = {}
        while stack:
            cls = stack.pop()
            if cls in needed:
                continue
            if cls in writer:
                operations = operands_first(graph, members[writer[cls]], cls)
            elif graph.operations[self._choice[cls]].is_view:
                operations = [self._choice[cls]]
            else:
                return None
            needed[cls] = None
            inside = {graph.owner[i] for i in operations}
            stack.extend(c for i in operations for c in graph.inputs_of(i) if c not in inside)
        return list(needed)

    def _kernel(self, operations: frozenset[int], outputs: list[int]) -> Cone | None:
        """The kernel that writes some classes, from what these need of ``operations``."""
        graph = self._graph
        held = frozenset(i for c in outputs for i in operands_first(graph, operations, c))
        if len(outputs) == 1:
            return cone_of(graph, self._target, self._matcher, self._prices, held, outputs[0])
        return several_outputs(graph, self._target, self._matcher, self._prices, held, outputs)


def _circular(kernels: Mapping[int, Cone]) -> bool:
    """Whether kernels need each other in a circle."""
    waiting = list(kernels.values())
    ready: set[int] = set()
    while waiting:
        left = [cone for cone in waiting if not cone.cut <= ready]
        if len(left) == len(waiting):
            return True
        ready.update(c for cone in waiting if cone.cut <= ready for c in cone.outputs)
        waiting = left
    return False
