"""A program improved window by window: neighbouring kernels, chosen anew between what others write for them and what they write.

A window is a stretch of kernels in an order in which they can run. What it reads from others and what others read of it stays as
it is, and so do the others; between, it is a small problem of its own, with all spellings that compute the one from the other.
Equal windows, as of equal layers, get equal kernels, which are looked for once. What a border between two windows keeps apart
meets when the windows are moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from eqsat.extract import Effort
from eqsat.extract.decompose import canonical
from eqsat.extract.knuth import knuth
from eqsat.fusion.alike import Descriptions, Placed, operations_in, placed
from eqsat.fusion.cones import ConePrices
from eqsat.fusion.covering import Covering
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.merging import are_covering, kernel_of
from eqsat.fusion.templates import Cone, Matcher
from eqsat.ir.order import operands_before, reached
from eqsat.joint.result import needed

_NEAR = 2
"""A border between windows is where no fewer values are alive at so many kernels before and behind it."""

_STEPS_TO_SEE = 60
"""For each operation of a window: what it takes to find it, and to tell it from others."""


@dataclass(frozen=True)
class Window:
    """A part of a graph, numbered anew. ``operations``: those of the whole graph by their numbers here; ``choice``: what the
    program computes here."""

    graph: FusionGraph
    operations: Sequence[int]
    choice: Mapping[int, int]


Solve = Callable[[Window], Covering | None]
"""The best kernels for a window, ``None`` if none were found."""


@dataclass
class Windows:
    """Moves windows over the kernels of a program: ``choice`` (class -> operation) in the kernels of ``plan``.

    ``inputs``: leaves that are no constants. ``fixed``: whether the program stays as it is, and only its kernels change.
    """

    graph: FusionGraph
    prices: ConePrices
    matcher: Matcher
    inputs: frozenset[int]
    solve: Solve
    effort: Effort
    fixed: bool = False
    _descriptions: Descriptions = field(default_factory=Descriptions)
    _known: dict[object, list[Placed]] = field(default_factory=dict[object, list[Placed]])

    def improved(
        self, choice: Mapping[int, int], plan: Covering, start: int, length: int
    ) -> tuple[dict[int, int], Covering]:
        """The program and its kernels after a look at windows of ``length`` kernels, or a few more, the first of ``start``."""
        program = _Program(self.graph, choice, plan.kernels)
        order = _depth_first(plan.kernels, self.graph.roots)
        for roots in _windows(plan.kernels, order, start, length):
            window = None
            if not self.effort.over():
                window = self._window(program, [program.kernels[root] for root in roots])
            if window is None:
                continue
            self.effort.spend(_STEPS_TO_SEE * len(window.operations))
            found = self._kernels(window)
            before = math.fsum(program.kernels[r].price for r in roots)
            if found and math.fsum(k.price for k in found) < before * (1 - 1e-12):
                program.exchange(roots, found)
        kernels = program.read()
        if not are_covering(self.graph, kernels, self.matcher.target):
            return dict(choice), plan
        return needed(self.graph, program.choice), replace(plan, kernels=kernels, lower_bound=0.0)

    def _kernels(self, window: Window) -> list[Cone]:
        """The kernels for a window, those of an equal one if there was one before; none if none were found."""
        core = self._descriptions.of(window.graph)
        key, places = canonical(core)
        order = operations_in(core, places)
        if key not in self._known:
            plan = self.solve(window)
            cones = plan.kernels.values() if plan is not None else ()
            self._known[key] = placed(window.graph, order, [(cone.operations, cone.outputs) for cone in cones])
        whole = [window.operations[i] for i in order]
        found = [
            kernel_of(
                self.matcher,
                self.prices,
                frozenset(whole[k] for k in kernel.operations),
                [self.graph.owner[whole[k]] for k in kernel.outputs],
            )
            for kernel in self._known[key]
        ]
        return [cone for cone in found if cone is not None] if all(found) else []

    def _window(self, program: _Program, kernels: Sequence[Cone]) -> Window | None:
        """The problem of some kernels; ``None`` if nobody reads what they write."""
        graph = self.graph
        inner = frozenset[int]().union(*(k.inside for k in kernels))
        written = {c for k in kernels for c in k.outputs}
        read = {c for k in kernels for c in k.inputs} - written
        roots = sorted(c for c in written if program.is_read_beside(c, kernels))
        members = self._members(program, kernels, inner, frozenset(read), roots)
        if members is None:
            return None
        classes = sorted(members)
        number = {cls: n for n, cls in enumerate(classes)}
        part = FusionGraph()
        for cls in classes:
            part.add_class_of(graph, cls)
        operations: list[int] = []
        choice: dict[int, int] = {}
        for cls in classes:
            for index in members[cls]:
                operation = graph.operations[index]
                new = part.add(number[cls], replace(operation, inputs=tuple(number[c] for c in operation.inputs)))
                operations.append(index)
                if index in graph.collapsed:
                    part.collapsed.add(new)
                if program.choice.get(cls) == index and cls in inner:
                    choice[number[cls]] = new
        part.roots = tuple(number[c] for c in roots)
        return Window(part, operations, needed(part, choice))

    def _members(
        self,
        program: _Program,
        kernels: Sequence[Cone],
        inner: frozenset[int],
        read: frozenset[int],
        roots: Sequence[int],
    ) -> dict[int, list[int]] | None:
        """The classes between ``read`` and ``roots`` with their operations: what can be computed from ``read`` and constants, and
        not from what others compute. Of what others compute, too, the operation stays."""
        graph = self.graph

        def members_of(cls: int) -> list[int]:
            if cls in read:
                return []
            if self.fixed or program.computes_beside(cls, kernels):
                return [program.choice[cls]] if cls in inner else []
            return graph.members[cls]

        def inputs_of(members: Sequence[int]) -> Iterator[int]:
            return (c for i in members for c in graph.operations[i].inputs)

        below = {c: members_of(c) for c in reached(roots, lambda c: inputs_of(members_of(c)))}
        leaves = [c for c in below if c in read or not (graph.members[c] or c in self.inputs)]
        nodes = [(i, c) for c, found in below.items() for i in found]
        number = {cls: n for n, cls in enumerate(below)}
        owner = [number[c] for _, c in nodes] + [number[c] for c in leaves]
        children = [tuple(number[c] for c in graph.operations[i].inputs) for i, _ in nodes] + [()] * len(leaves)
        tree = knuth(len(below), owner, children, [1.0] * len(owner))
        derived = {c for c in below if tree.choice[number[c]] >= 0}
        if not roots or not derived.issuperset(roots):
            return None
        possible = {
            c: [i for i in members if derived.issuperset(graph.operations[i].inputs)] for c, members in below.items()
        }
        return {c: possible[c] for c in reached(roots, lambda c: inputs_of(possible[c]))}


class _Program:
    """A program in the making: ``choice`` (class -> operation) and ``kernels`` (by the first class that each writes)."""

    def __init__(self, graph: FusionGraph, choice: Mapping[int, int], kernels: Mapping[int, Cone]) -> None:
        self.choice = dict(choice)
        self.kernels = dict(kernels)
        self._owner = graph.owner
        self._roots = frozenset(graph.roots)
        self._readers: Counter[int] = Counter()
        self._computed: Counter[int] = Counter()
        self._count(kernels.values(), 1)

    def is_read_beside(self, cls: int, kernels: Iterable[Cone]) -> bool:
        """Whether kernels other than these read a class, or it is to be written anyway."""
        return cls in self._roots or self._readers[cls] > sum(cls in k.cut for k in kernels)

    def computes_beside(self, cls: int, kernels: Iterable[Cone]) -> bool:
        """Whether kernels other than these compute a class."""
        return self._computed[cls] > sum(cls in k.inside for k in kernels)

    def exchange(self, old: Sequence[int], new: Sequence[Cone]) -> None:
        """Kernels in place of others."""
        self._count([self.kernels.pop(root) for root in old], -1)
        self._count(new, 1)
        self.kernels.update((cone.root, cone) for cone in new)
        self.choice.update((self._owner[i], i) for cone in new for i in cone.operations)

    def _count(self, kernels: Iterable[Cone], by: int) -> None:
        for cone in kernels:
            for c in cone.cut:
                self._readers[c] += by
            for c in cone.inside:
                self._computed[c] += by

    def read(self) -> dict[int, Cone]:
        """The kernels that something needs."""
        return {root: self.kernels[root] for root in _depth_first(self.kernels, sorted(self._roots))}


def _depth_first(kernels: Mapping[int, Cone], roots: Iterable[int]) -> list[int]:
    """The kernels that ``roots`` need in an order in which they can run, each near what it reads."""
    writer = {c: root for root, cone in kernels.items() for c in cone.outputs}
    first = [writer[c] for c in roots if c in writer]
    return operands_before(first[::-1], lambda root: [writer[c] for c in sorted(kernels[root].cut)])


def _windows(kernels: Mapping[int, Cone], order: Sequence[int], start: int, length: int) -> Iterator[Sequence[int]]:
    """Stretches of ``order`` of ``length`` kernels, or a few more, between borders that few values cross."""
    place = {c: k for k, root in enumerate(order) for c in kernels[root].outputs}
    last = dict(place)
    for k, root in enumerate(order):
        for c in kernels[root].cut:
            last[c] = k
    change = [0] * (len(order) + 1)
    for c, k in place.items():
        change[k + 1] += 1
        change[last[c] + 1] -= 1
    alive = [0]
    for by in change[1:]:
        alive.append(alive[-1] + by)
    borders = [0]
    launched, enough = 0, start
    for k, root in enumerate(order):
        if k and launched >= enough and alive[k] <= min(alive[max(1, k - _NEAR) : min(len(order), k + _NEAR + 1)]):
            borders.append(k)
            launched, enough = 0, length
        launched += not kernels[root].only_views
    yield from (order[a:b] for a, b in pairwise([*borders, len(order)]))
