"""Cones of every e-class by cut enumeration, as in technology mapping with priority cuts.

A cone of an e-node is the e-node with, for each input, either a cut there or a cone of the input's class. Each class keeps
its ``limit`` best cones by price plus area flow (the price of the inputs, each shared by its users); of cones that read the
same classes in the same state only the cheapest. Source: Mishchenko, Cho, Chatterjee and Brayton, Combinational and
sequential mapping with priority cuts, 2007.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.extract import Effort
from eqsat.extract.knuth import knuth
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.templates import Cone, Matcher
from eqsat.fusion.work import group_work
from eqsat.ir.order import operands_before

_LARGEST_CONE = 96
_MOST_PASSES = 12


class ConePrices:
    """Prices of cones under one cost model, each distinct piece of work priced once."""

    def __init__(self, graph: FusionGraph, model: CostModel, target: Target) -> None:
        self._graph = graph
        self._model = model
        self._target = target
        self._known: dict[tuple[int, frozenset[int], frozenset[int], tuple[int, ...]], float] = {}

    def __call__(
        self, root: int, operations: frozenset[int], inputs: frozenset[int], also: tuple[int, ...] = ()
    ) -> float:
        """Price of the kernel that computes ``root``, and ``also`` further classes, from ``inputs``."""
        key = (root, operations, inputs, also)
        price = self._known.get(key)
        if price is None:
            price = self._known[key] = self._price(root, operations, inputs, also)
        return price

    def _price(self, root: int, operations: frozenset[int], inputs: frozenset[int], also: tuple[int, ...]) -> float:
        graph, target = self._graph, self._target
        for index in operations:
            operation = graph.operations[index]
            if operation.name in target.unsupported or "unwritable" in operation.labels:
                return float("inf")
            if "projection" in operation.labels:
                return 0.0
        return self._model.kernel_cost(group_work(graph, operations, inputs, root, also), target)


def cone_of(matcher: Matcher, prices: ConePrices, operations: frozenset[int], root: int) -> Cone | None:
    """A given group of operations as a cone, ``None`` if it is no kernel of the target."""
    graph = matcher.graph
    by_class = {graph.owner[i]: i for i in operations}
    inside = frozenset(by_class)
    read = frozenset(c for i in operations for c in graph.operations[i].inputs) - inside
    if 1 + sum(not graph.scalar[c] for c in read) > matcher.target.argument_limit and len(inside) > 1:
        return None
    partial: dict[int, Cone] = {}
    for index in operands_first(graph, operations, root):
        operation = graph.operations[index]
        absorbed = [partial[c] for c in operation.inputs if c in by_class]
        cls = graph.owner[index]
        joins = matcher.can_join(index)
        if len(operations) > 1 and not joins:
            return None
        stages, occupants, template, row = matcher.extend(index, absorbed) if joins else ((), (), "", 0)
        views = operation.is_view and all(c.only_views for c in absorbed)
        empty: frozenset[int] = frozenset()
        partial[cls] = Cone(cls, empty, empty, empty, empty, stages, occupants, template, views, row)
    last = partial[root]
    single = graph.operations[by_class[root]].name if len(operations) == 1 else ""
    views_only = last.only_views and "projection" not in graph.operations[by_class[root]].labels
    template = "view" if views_only else last.template or single
    if not template:
        return None
    cut = frozenset(c for c in read if graph.members[c])
    price = prices(root, operations, read)
    return Cone(
        root, operations, inside, read, cut, last.stages, last.occupants, template, last.only_views,
        last.row_elements, price, price,
    )  # fmt: skip


def operands_first(graph: FusionGraph, operations: Iterable[int], root: int) -> list[int]:
    """The operations of a cone in an order in which they can run."""
    by_class = {graph.owner[i]: i for i in operations}
    return operands_before(
        (by_class[root],), lambda i: [by_class[c] for c in graph.operations[i].inputs if c in by_class]
    )


class ConePool:
    """Cones by class. ``truncated``: whether a cone that the target allows may have been left out."""

    def __init__(
        self,
        graph: FusionGraph,
        target: Target,
        prices: ConePrices,
        *,
        limit: int,
        effort: Effort,
        total_limit: int = 200_000,
    ) -> None:
        self.graph = graph
        self.cones: dict[int, list[Cone]] = {}
        self.truncated = False
        self._target = target
        self._prices = prices
        self._matcher = Matcher(graph, target)
        self._limit = limit
        self._effort = effort
        self._left = total_limit
        self._joins = [self._matcher.can_join(i) for i in range(len(graph.operations))]
        self._users = [{graph.owner[i] for i in users} for users in graph.users()]
        self._share: list[float] = [0.0] * len(graph.members)
        self._run()

    def kernels(self) -> Iterator[Cone]:
        """The cones that are kernels of the target, class by class."""
        for cones in self.cones.values():
            for cone in cones:
                if cone.template:
                    yield cone

    def _run(self) -> None:
        order = self._order()
        computable = set(order)
        stale = set(order)
        for _ in range(_MOST_PASSES):
            for cls in order:
                if cls not in stale:
                    continue
                stale.discard(cls)
                found = self._cones_of(cls)
                old = self.cones.get(cls, ())
                self.cones[cls] = found
                best = min((c.flow for c in found if c.template), default=float("inf"))
                self._share[cls] = best / max(1, len(self._users[cls]))
                if len(old) != len(found) or any(a.operations != b.operations for a, b in zip(old, found, strict=True)):
                    stale |= self._users[cls] & computable
            if not stale:
                return
        self.truncated = True

    def _order(self) -> list[int]:
        """Classes that can be computed, inputs first along a cheapest derivation."""
        graph = self.graph
        nodes, owner, children = graph.nodes([True] * len(graph.operations))
        cost = [1.0 + len(graph.inputs_of(i)) * 1e-3 if i >= 0 else 0.0 for i in nodes]
        tree = knuth(len(graph.members), owner, children, cost)
        return [c for c in tree.order if graph.members[c]]

    def _cones_of(self, cls: int) -> list[Cone]:
        """The best cones of a class."""
        best: dict[tuple[object, ...], Cone] = {}
        for index in self.graph.members[cls]:
            for cone in self._cones_at(index):
                key = (cone.inputs, cone.stages, cone.occupants, cone.template == "")
                known = best.get(key)
                if known is None or cone.flow < known.flow:
                    best[key] = cone
        cones = sorted(best.values(), key=lambda c: (c.flow, len(c.operations), sorted(c.operations)))
        if len(cones) <= self._limit and self._left >= len(cones):
            self._left -= len(cones)
            return cones
        self.truncated = True
        return self._pruned(cones)

    def _pruned(self, cones: list[Cone]) -> list[Cone]:
        """The cheapest kernel for each operator at the root, the best of each state, then the best of the rest."""
        limit = self._limit if self._left > 0 else 2
        states: set[tuple[object, ...]] = set()
        first: list[Cone] = []
        rest: list[Cone] = []
        for cone in cones:
            state = (cone.stages, bool(cone.template), *(o for o in cone.occupants))
            if state not in states and len(first) < limit:
                states.add(state)
                first.append(cone)
            else:
                rest.append(cone)
        kept = [*first, *rest[: max(0, limit - len(first))]]
        if not any(len(c.inside) == 1 for c in kept):
            kept.extend(c for c in cones if len(c.inside) == 1)
        self._left -= len(kept)
        return kept

    def _cones_at(self, index: int) -> Iterator[Cone]:
        """Cones rooted at an e-node."""
        graph = self.graph
        cls = graph.owner[index]
        inputs = graph.operations[index].inputs
        if cls in inputs:
            return
        choices: list[Sequence[Cone | None]] = []
        for c in inputs:
            offered: list[Cone | None] = [None]
            if self._joins[index]:
                offered += [
                    k for k in self.cones.get(c, ()) if cls not in k.inside and cls not in k.inputs and k.stages
                ]
            choices.append(offered)
        size = 1
        for options in choices:
            size *= len(options)
        budget = 64 * self._limit
        if size > budget:
            self.truncated = True
            width = len(choices)
            while size > budget and width:
                longest = max(range(len(choices)), key=lambda i: len(choices[i]))
                size = size // len(choices[longest])
                choices[longest] = choices[longest][: max(1, (2 * len(choices[longest])) // 3)]
                size *= len(choices[longest])
                width = len(choices) if len(choices[longest]) > 1 else 0
        if self._effort.over():
            self.truncated = True
            choices = [options[:1] for options in choices]
        for picked in islice(product(*choices), budget):
            self._effort.spend(15)
            cone = self._merge(index, cls, inputs, picked)
            if cone is not None:
                yield cone

    def _merge(self, index: int, cls: int, inputs: Iterable[int], picked: Sequence[Cone | None]) -> Cone | None:
        graph = self.graph
        absorbed = [c for c in picked if c is not None]
        operations = frozenset((index,)).union(*(c.operations for c in absorbed))
        inside = frozenset((cls,)).union(*(c.inside for c in absorbed))
        if len(operations) != len(inside):
            return None  # two e-nodes of one class
        cut = [c for c, cone in zip(inputs, picked, strict=True) if cone is None]
        read = frozenset(cut).union(*(c.inputs for c in absorbed))
        if not read.isdisjoint(inside):
            return None  # the value is at hand, or will be
        if len(inside) > _LARGEST_CONE:
            self.truncated = True
            return None
        arguments = 1 + sum(not graph.scalar[c] for c in read)
        stages, occupants, template, row = (
            self._matcher.extend(index, absorbed) if self._joins[index] else ((), (), "", 0)
        )
        only_views = graph.operations[index].is_view and all(c.only_views for c in absorbed)
        if not absorbed:
            template = template or graph.operations[index].name
        elif only_views:
            template = "view"
        elif all(s < 0 for s in stages) or arguments > self._target.argument_limit:
            return None
        if only_views and not absorbed and graph.operations[index].labels.isdisjoint(("projection",)):
            template = "view"
        price = self._prices(cls, operations, read)
        cuts = frozenset(c for c in read if graph.members[c])
        flow = price + math.fsum(self._share[c] for c in cuts)
        if price == float("inf") and not absorbed and not stages:
            return None
        return Cone(cls, operations, inside, read, cuts, stages, occupants, template, only_views, row, price, flow)
