"""A lower bound over all programs of an e-graph, block by block (`eqsat.fusion.blocks`), each looked at closely."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import extract
from eqsat.fusion.blockrelaxation import BlockRelaxation, is_slow
from eqsat.fusion.blocks import Block, block_of, equal_blocks, toll_of
from eqsat.fusion.detours import without_detours
from eqsat.fusion.gluing import Gluing, Placed, placed
from eqsat.fusion.hints import Hints, hints_of
from eqsat.fusion.matching import Cone
from eqsat.fusion.operation import FusionGraph
from eqsat.fusion.problem import ChosenGroup, in_graph
from eqsat.fusion.quotient import Merged, merge_views, usable_operations
from eqsat.fusion.rates import Rates, rates_of
from eqsat.fusion.separators import acyclic_operations, separated
from eqsat.fusion.states import NONE, Carried

_MOST_NODES = 64_000
"""Most e-nodes of the relaxed problem of a block."""

_LEAST_BYTES = 0.9
"""Part of the price of a good program that is for bytes, where a bound on those is worth its time."""

_LEAST_SHARE = 0.4
"""Part of the time left that a block may take, however small it is and however many are equal to it."""

_SLACK = 5e-4
"""Of the cost of a good program: so far below may the bound stay, in equal parts for all blocks, as it is reached sooner."""

_FAST_SHARE = 0.5
"""Part of the time for a block that its choices without slow operators may take."""


class Blockwise(NamedTuple):
    """A lower bound, and the kernels of the choices that it is the cost of, without the views between equal classes.

    ``operations``: those of the kernels, of some classes perhaps several, and all that is shared by blocks.
    """

    bound: float
    operations: frozenset[int]
    groups: list[ChosenGroup]


def blockwise_bound(
    graph: FusionGraph,
    target: Target,
    model: CostModel,
    *,
    time_limit_s: float,
    kernels: Collection[Cone] = (),
    usable: Sequence[bool] | None = None,
    coarse: bool = True,
) -> Blockwise | None:
    """A lower bound on the cost of every program and its kernels, ``None`` if the cost model or target has none, if there are
    no blocks, if time is up, or if the operations of ``kernels`` take too long for a bound on bytes to be of use.

    ``kernels``: those of a good program, which tell what is read by several kernels. ``usable[i]``: whether a program may have
    operation ``i``. ``coarse``: whether signed and unsigned integers are taken to be the same, and detours are left out
    (`eqsat.fusion.detours`): the problem is much smaller, and the bound nearly as good, but the groups may be no program.
    """
    started = time.perf_counter()
    rates = rates_of(model, target)
    if rates is None or rates.view:
        return None
    if not _bound_by_bytes(graph, rates, kernels):
        return None
    try:
        possible = usable_operations(graph, target)
        if usable is not None:
            possible = [a and b for a, b in zip(possible, usable, strict=True)]
        usable = acyclic_operations(graph, possible)
    except EqsatError:  # nothing derives a root
        return None
    merged = merge_views(graph, usable, recentered=target if coarse else None)
    if coarse and not rates.operator:
        without_detours(merged.graph, target)
    parts = separated(merged.graph, target, _repeated(graph, usable, merged))
    if parts is None:
        return None
    shared = _read_by_several(merged, kernels)
    known = hints_of(graph, target, rates, merged, kernels).heavy
    blocks = [block_of(parts, position, target) for position in range(len(parts.separators) + 1)]
    keys = equal_blocks(blocks, shared)
    count = Counter(key for key, _ in keys)
    weight = {key: count[key] ** 0.5 * len(b.graph.operations) for b, (key, _) in zip(blocks, keys, strict=True)}
    solved: dict[object, tuple[_Found, list[Placed]]] = {}
    total, toll = 0.0, 0.0
    slack = _SLACK * sum(kernel.price for kernel in kernels) / len(blocks)
    carried: Carried = {}
    gluing = Gluing(merged.graph, target)
    for block, (key, order) in zip(blocks, keys, strict=True):
        total -= toll
        whole = key, block.borders.target == NONE, toll, tuple(sorted(carried.items()))
        if whole not in solved:
            left = started + time_limit_s - time.perf_counter()
            share = max(_LEAST_SHARE, weight[key] / max(1, sum(weight.values())))
            block = replace(block, borders=replace(block.borders, carried=carried), toll=toll)
            near = frozenset(n for c, n in block.classes.items() if c in shared)
            heavy = {new: known[old] for old, new in block.operations.items() if old in known}
            hints = Hints(heavy, near, few=True)
            found = _solved(block, target, rates, hints, left * share, slack)
            if found is None:
                return None
            solved[whole] = found, placed(block, order, found.groups)
            weight[key] = 0
        found, chosen = solved[whole]
        total += found.bound
        toll, carried = found.toll, found.carried
        gluing.add(block, order, chosen)
    groups = gluing.groups()
    used = {index for cls in parts.shared for index in merged.graph.members[cls]}
    used.update(index for group in groups for index in group.operations)
    return Blockwise(
        total,
        frozenset(i for i, new in merged.operations.items() if new in used),
        [in_graph(group, merged) for group in groups],
    )


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
    return frozenset(c for c, several in reads.items() if several > 1 and not merged.graph.scalar[c])


class _Found(NamedTuple):
    """The bound of a block, the toll of its target, how kernels hold that, and the groups of the best choice found."""

    bound: float
    toll: float
    carried: Carried
    groups: list[ChosenGroup]


def _solved(
    block: Block, target: Target, rates: Rates, hints: Hints, time_limit_s: float, slack: float
) -> _Found | None:
    """What is found of a block in time, ``None`` if there is no bound.

    Choices without slow operators are looked at first: the best of them is a limit for all others.
    """
    deadline = time.perf_counter() + time_limit_s
    relaxation = BlockRelaxation(block, target, rates, hints, deadline)
    whole = relaxation.build(_MOST_NODES)
    if whole is None:
        return None
    limit = float("inf")
    groups: list[ChosenGroup] = []
    try:
        fast = _without_slow(block, target, rates)
        if fast is not None:
            first = BlockRelaxation(fast, target, rates, hints, deadline)
            part = first.build(_MOST_NODES)
            if part is not None:
                found = extract(part, time_limit_s=_FAST_SHARE * max(0.0, deadline - time.perf_counter()), slack=slack)
                limit, groups = found.cost, first.groups(found.choice)
    except EqsatError:  # there is no way without
        pass
    left = deadline - time.perf_counter()
    if left <= 0:
        return None
    try:
        found = extract(whole, time_limit_s=left, cutoff=limit, slack=slack)
    except EqsatError:
        return None
    if not groups or found.cost < limit - slack:
        groups = relaxation.groups(found.choice)
    toll = toll_of(block, target, rates) if block.borders.target != NONE else 0.0
    return _Found(min(found.lower_bound, limit), toll, relaxation.reached, groups)


def _without_slow(block: Block, target: Target, rates: Rates) -> Block | None:
    """A block without operators whose operations take longer than their bytes, where there is another way to compute their
    class; ``None`` if it has none."""
    graph = block.graph
    members = [[i for i in found if not is_slow(graph, i, target, rates)] or found for found in graph.members]
    if members == graph.members:
        return None
    return replace(block, graph=replace(graph, members=members))
