"""A lower bound over all programs of an e-graph, block by block (`eqsat.fusion.blocks`), each looked at closely."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import extract
from eqsat.fusion.blocks import Block, block_of, computed_from_source, equal_blocks, toll_of
from eqsat.fusion.hints import Hints
from eqsat.fusion.matching import Cone
from eqsat.fusion.modes import Mode, holds_kernels_around
from eqsat.fusion.needs import Needs
from eqsat.fusion.operation import FusionGraph
from eqsat.fusion.quotient import Merged, merge_views, usable_operations
from eqsat.fusion.rates import Rates, rates_of
from eqsat.fusion.readers import EVERY, ReadBy
from eqsat.fusion.relaxation import Relaxation
from eqsat.fusion.separators import acyclic_operations, separated
from eqsat.fusion.states import ANY, NONE, KernelId, Reach, Step

_MOST_NODES = 64_000
"""Most e-nodes of the relaxed problem of a block."""

_LEAST_BYTES = 0.9
"""Part of the price of a good program that is for bytes, where a bound on those is worth its time."""

_LEAST_SHARE = 0.4
"""Part of the time left that a block may take, however small it is and however many are equal to it."""

_FRAGMENT = ReadBy(ANY, NONE, -2)
"""The part of a kernel below a separator that holds no required operator there."""


class Blockwise(NamedTuple):
    """A lower bound, and the operations of the graph in a choice of about that cost, without the views between equal classes."""

    bound: float
    operations: frozenset[int]


def blockwise_bound(
    graph: FusionGraph, target: Target, model: CostModel, *, time_limit_s: float, kernels: Collection[Cone] = ()
) -> Blockwise | None:
    """A lower bound on the cost of every program and its kernels, ``None`` if the cost model or target has none, if there are
    no blocks, if time is up, or if the operations of ``kernels`` take too long for a bound on bytes to be of use.

    ``kernels``: those of a good program, which tell what is read by several kernels.
    """
    started = time.perf_counter()
    rates = rates_of(model, target)
    if rates is None or rates.view or target.fusion != "cones" or target.free_kinds != {"view"}:
        return None
    if not _bound_by_bytes(graph, rates, kernels):
        return None
    try:
        usable = acyclic_operations(graph, usable_operations(graph, target))
    except EqsatError:  # nothing derives a root
        return None
    merged = merge_views(graph, usable)
    parts = separated(merged.graph, target, _repeated(graph, usable, merged))
    if parts is None:
        return None
    shared = _read_by_several(merged, kernels)
    blocks = [block_of(parts, position, target) for position in range(len(parts.separators) + 1)]
    keys = equal_blocks(blocks, shared)
    count = Counter(key for key, _ in keys)
    weight = {key: count[key] ** 0.5 * len(b.graph.operations) for b, (key, _) in zip(blocks, keys, strict=True)}
    solved: dict[object, tuple[float, float, Mapping[int, frozenset[tuple[int, int]]], list[int]]] = {}
    total, toll = 0.0, 0.0
    carried: Mapping[int, frozenset[tuple[int, int]]] = {}
    used: set[int] = set()
    for block, (key, order) in zip(blocks, keys, strict=True):
        total -= toll
        whole = key, block.borders.target == NONE, toll, tuple(sorted(carried.items()))
        if whole not in solved:
            left = started + time_limit_s - time.perf_counter()
            share = max(_LEAST_SHARE, weight[key] / max(1, sum(weight.values())))
            block = replace(block, borders=replace(block.borders, carried=carried), toll=toll)
            hints = Hints(shared=frozenset(n for c, n in block.classes.items() if c in shared), few=True)
            found = _solved(BlockRelaxation(block, target, rates, hints, started + time_limit_s), left * share)
            if found is None:
                return None
            bound, reached, chosen = found
            above = toll_of(block, target, rates) if block.borders.target != NONE else 0.0
            solved[whole] = bound, above, reached, [k for k, i in enumerate(order) if i in chosen]
            weight[key] = 0
        bound, toll, carried, places = solved[whole]
        total += bound
        original = {new: old for old, new in block.operations.items()}
        used.update(original[order[k]] for k in places if order[k] in original)
    return Blockwise(total, frozenset(i for i, new in merged.operations.items() if new in used))


def _bound_by_bytes(graph: FusionGraph, rates: Rates, kernels: Collection[Cone]) -> bool:
    """Whether the prices of kernels are those of their launches and bytes, for the most part."""
    least = sum(
        rates.launch
        + rates.operator * len(k.operations)
        + rates.byte * sum(graph.bytes[c] for c in (*k.inputs, *k.outputs))
        for k in kernels
        if not k.only_views
    )
    return least >= _LEAST_BYTES * sum(k.price for k in kernels)


def _repeated(graph: FusionGraph, usable: Sequence[bool], merged: Merged) -> frozenset[int]:
    """Classes that became one of several with operators of their own, of which a program may choose one each."""
    count = Counter(
        merged.classes[cls]
        for cls, members in enumerate(graph.members)
        if any(usable[i] and not graph.operations[i].is_view for i in members)
    )
    return frozenset(cls for cls, several in count.items() if several > 1)


def _read_by_several(merged: Merged, kernels: Iterable[Cone]) -> frozenset[int]:
    reads = Counter(
        c for kernel in kernels if not kernel.only_views for c in {merged.classes[c] for c in kernel.inputs}
    )
    return frozenset(c for c, several in reads.items() if several > 1)


def _solved(
    relaxation: BlockRelaxation, time_limit_s: float
) -> tuple[float, Mapping[int, frozenset[tuple[int, int]]], set[int]] | None:
    started = time.perf_counter()
    built = relaxation.build(_MOST_NODES)
    left = started + time_limit_s - time.perf_counter()
    if built is None or left <= 0:
        return None
    try:
        found = extract(built, time_limit_s=left)
    except EqsatError:
        return None
    return found.lower_bound, relaxation.reached, relaxation.used(found.choice)


class _NoNeeds(Needs):
    """Says nothing of what kernels cannot read: parts of kernels on the other side of a separator may have computed it."""

    def __init__(self, graph: FusionGraph) -> None:
        self.rank = [0] * len(graph.members)

    def bit(self, cls: int) -> int:
        return 0

    def circular(self, cls: int, anchor: int, through: int) -> bool:
        return False


class BlockRelaxation(Relaxation):
    """The relaxed problem of a block. No kernel is bound by operations."""

    def __init__(self, block: Block, target: Target, rates: Rates, hints: Hints, deadline: float) -> None:
        hints = replace(hints, heavy=dict.fromkeys(range(len(block.graph.operations)), False))
        super().__init__(block.graph, _NoNeeds(block.graph), target, rates, hints, deadline, block.borders)
        self._toll = block.toll
        self._closed = computed_from_source(block) if block.borders.once else frozenset[int]()
        self.reached: dict[int, frozenset[tuple[int, int]]] = {}
        """Number of a mode -> stages and filled stages of the target, once built."""

    def used(self, choice: Mapping[int, int]) -> set[int]:
        """The operations that a choice for the relaxed problem computes, of some classes perhaps several."""
        return {key[1] for key, number in self._problem.numbers.items() if key[0] == "use" and number in choice}

    def _may_open(self, mode: Mode, index: int) -> bool:
        operation = self._graph.operations[index]
        fits = operation.row_bytes <= self._target.on_chip_bytes
        others = (t for t in self._target.templates if t is not mode.template)
        if mode.anchored and fits and any(holds_kernels_around(t, mode.template, operation.labels) for t in others):
            return False
        return super()._may_open(mode, index)

    def _alone(self, cls: int, index: int) -> None:
        problem, rates, graph = self._problem, self._rates, self._graph
        if index == self._borders.source:
            problem.add(problem.key("written", cls), self._implied(index), self._toll + rates.byte * graph.bytes[cls])
        elif cls == self._borders.target:
            kernel = self._readers.alone
            below = [self._read(c, kernel(c, index)) for c in graph.operations[index].inputs]
            problem.add(problem.key("made", cls), [*self._implied(index), *below], rates.operator)
        else:
            super()._alone(cls, index)

    def _add_step(self, reach: Reach, step: Step) -> None:
        index, state, _ = step
        if index == self._borders.source:
            inside = self._state(reach.mode, self._graph.owner[index], state)
            self._problem.add(inside, self._implied(index), self._toll)
        else:
            super()._add_step(reach, step)

    def _outside(self, mode: Mode, cls: int, index: int, kernel: KernelId) -> int:
        if kernel[0] == self._borders.source and cls in self._closed:  # the kernel would wait for itself
            return self._problem.key("never")
        return super()._outside(mode, cls, index, kernel)

    def _taps(self, reach: Reach) -> None:
        super()._taps(reach)
        if self._borders.source != NONE:
            cls, problem = self._graph.owner[self._borders.source], self._problem
            for state in reach.states.get(cls, ()):
                problem.add(problem.key("tap", reach.mode.number, cls), [self._state(reach.mode, cls, state)], 0.0)

    def _roots(self, reaches: Sequence[Reach]) -> tuple[int, ...]:
        top, problem = self._borders.target, self._problem
        if top == NONE:
            return super()._roots(reaches)
        made = problem.key("made", top)
        for reach in reaches:
            found = reach.states.get(top, {})
            for state in found:
                problem.add(made, [self._state(reach.mode, top, state)], 0.0)
            pairs = {(stage, filled) for stage, filled, _ in found if filled}
            tap = ("tap", reach.mode.number, top)
            if tap in problem.numbers:
                problem.add(made, [problem.key(*tap)], 0.0)
                pairs.add((len(reach.mode.template.stages) - 1, len(reach.mode.required)))
            if pairs and reach.mode.required:
                self.reached[reach.mode.number] = frozenset(pairs)
        problem.add(made, [self._fragment(top)], 0.0)
        return (made,)

    def _fragment(self, cls: int) -> int:
        """Class of a value inside a kernel whose required operators are beyond the target."""
        problem, graph = self._problem, self._graph
        stages = [s for t in self._target.templates for s in t.stages if not s.required]
        stack = [cls]
        number = problem.key("fragment", cls)
        seen = {cls}
        while stack:
            own = stack.pop()
            for index in graph.members[own]:
                operation = graph.operations[index]
                fits = operation.is_view or any(s.accepts & operation.labels for s in stages)
                if not fits or operation.has_parts:
                    continue
                below: list[int] = []
                for c in operation.inputs:
                    inside = problem.key("fragment", c)
                    below.append(inside)
                    if c not in seen:
                        seen.add(c)
                        stack.append(c)
                        problem.add(inside, [self._read_by_fragment(c)], 0.0)
                cost = self._toll if index == self._borders.source else 0.0
                problem.add(problem.key("fragment", own), [*self._implied(index), *below], cost)
        return number

    def _read_by_fragment(self, cls: int) -> int:
        """The class as a fragment reads it; where leaves are told apart, its operations may have paid for them already."""
        if not self._readers.told_apart(cls):
            return self._read(cls, EVERY)
        return self._read(cls, _FRAGMENT) if self._graph.members[cls] else self._problem.key("written", cls)
