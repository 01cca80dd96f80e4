"""A lower bound over all programs of an e-graph, block by block (`eqsat.bounds.blocks.block`), each looked at closely."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import NamedTuple

from eqsat.bounds.blocks.block import Block, block_of, equal_blocks
from eqsat.bounds.blocks.gluing import Gluing
from eqsat.bounds.blocks.search import BlockSearch, Shares
from eqsat.bounds.blocks.separators import acyclic_operations, separated
from eqsat.bounds.blocks.shared_reads import prices_of_shared
from eqsat.bounds.blocks.slow_kernels import behind_in_single, held_across
from eqsat.bounds.focus import Focus, focus_of
from eqsat.bounds.named_problem import ChosenGroup, in_graph
from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.states import NONE, Carried
from eqsat.bounds.views import Merged, merge_views, usable_operations
from eqsat.cost.model import CostModel, Rates, rates_of
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import Effort
from eqsat.fusion.alike import Placed, placed
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.templates import Cone
from eqsat.ir.operator import Kind

_STEPS_TO_CUT = 200
"""For each operation: what the way to the blocks takes."""

_LEAST_BYTES = 0.9
"""Part of the price of a good program that is for bytes, where a bound on those is worth its time."""

_MOST_IN_ONE = 0.5
"""Part of the operations in one block up to which those of a graph whose operations count are worth their time."""


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
    effort: Effort,
    kernels: Collection[Cone] = (),
    usable: Sequence[bool] | None = None,
    coarse: bool = True,
    slack: float = 0.0,
) -> Blockwise | None:
    """A lower bound on the cost of every program and its kernels, ``None`` if the cost model or target has none, if there are
    no blocks, if the effort does not suffice, or if the operations of ``kernels`` take too long for a bound on bytes to be of
    use: then, unless ``coarse``, the graph may be cut only where kernels bound by operations count as what they are.

    ``kernels``: those of a good program, which tell what is read by several kernels. ``usable[i]``: whether a program may have
    operation ``i``. ``coarse``: whether spellings of a value are one value (`eqsat.bounds.views`): the problem is much smaller,
    and the bound nearly as good, but the groups may be no program.
    ``slack``: so far may the bound stay below the best, as a part of the price of ``kernels``, in equal parts for all blocks.
    """
    effort.spend(_STEPS_TO_CUT * len(graph.operations))
    rates = rates_of(model, target)
    if rates is None or rates.view:
        return None
    by_bytes = _bound_by_bytes(graph, rates, kernels)
    if coarse and not by_bytes:
        return None
    try:
        possible = usable_operations(graph, target)
        usable = acyclic_operations(graph, [a and b for a, b in zip(possible, usable or possible, strict=True)])
        merged = merge_views(graph, usable, coarse=target if coarse else None)
        prerequisites = None if by_bytes else Prerequisites(graph, usable, merged, target)
    except EqsatError:  # nothing derives a root
        return None
    known = _with_alike(merged.graph, focus_of(graph, target, rates, merged, kernels).heavy)
    repeated = _repeated(graph, merged)
    parts = separated(merged.graph, target, repeated, _of_slow_kernels(merged.graph, target, known, prerequisites))
    parts = separated(merged.graph, target, repeated) if parts is None and by_bytes else parts
    if parts is None:
        return None
    prices = prices_of_shared(parts, target, rates)
    shared = _read_by_several(merged, kernels).union(prices)
    blocks = [block_of(parts, position, target, prices, prerequisites) for position in range(len(parts.separators) + 1)]
    if not by_bytes and max(len(block.operations) for block in blocks) > _MOST_IN_ONE * len(merged.graph.operations):
        return None
    least = slack * math.fsum(kernel.price for kernel in kernels) / len(blocks)
    chain = _Chain(target, rates, blocks, shared, known, least, exact=not by_bytes)
    if not chain.search(Shares(effort)):
        return None
    groups = chain.groups(merged.graph)
    used = {index for cls in parts.shared for index in merged.graph.members[cls]}
    used.update(index for group in groups for index in group.operations)
    return Blockwise(
        chain.bound(), _spelled_out(graph, usable, merged, used), [in_graph(group, merged) for group in groups]
    )


@dataclass
class _Chain:
    """The blocks of a graph from the leaves up, and what is looked for in them: equal ones are looked at once.

    ``shared``: classes that several kernels read; ``known``: which anchors are bound by operations. ``least``: how far the bound
    of a block may stay below the best; ``exact``: whether that of its parts may not.
    """

    target: Target
    rates: Rates
    blocks: Sequence[Block]
    shared: frozenset[int]
    known: Mapping[int, bool]
    least: float
    exact: bool

    def __post_init__(self) -> None:
        self._keys = equal_blocks(self.blocks, self.shared)
        self._found: list[BlockSearch] = []

    def search(self, shares: Shares) -> bool:
        """Looks at all blocks; whether each has a bound then."""
        count = Counter(key for key, _ in self._keys)
        self._shares = shares
        searches: dict[object, BlockSearch] = {}
        toll = 0.0
        carried: Carried = {}
        for block, (key, _) in zip(self.blocks, self._keys, strict=True):
            whole = key, block.borders.target == NONE, toll, tuple(sorted(carried.items()))
            search = searches.get(whole)
            if search is None:
                search = self._search_of(block, toll, carried, count[key] ** 0.5)
                if not search.build(shares):
                    return False
                searches[whole] = search
            self._found.append(search)
            toll, carried = search.toll, search.carried
        for look in (BlockSearch.look_fast, BlockSearch.look, BlockSearch.look_for_surplus):
            for search in searches.values():
                look(search, shares)
        return all(search.bound is not None for search in self._found)

    def _search_of(self, block: Block, toll: float, carried: Carried, weight: float) -> BlockSearch:
        block = replace(block, borders=replace(block.borders, carried=carried), toll=toll)
        near = frozenset(n for c, n in block.classes.items() if c in self.shared)
        heavy = {new: self.known[old] for old, new in block.operations.items() if old in self.known}
        focus = Focus(heavy, near, shared_only=not self.exact)
        return BlockSearch(block, self.target, self.rates, focus, self.least, self.exact, weight)

    def groups(self, graph: FusionGraph) -> list[ChosenGroup]:
        """The kernels of the blocks, glued together."""
        gluing = Gluing(graph, self.target)
        chosen: dict[BlockSearch, list[Placed]] = {}
        for search, block, (_, order) in zip(self._found, self.blocks, self._keys, strict=True):
            if search not in chosen:
                chosen[search] = placed(block.graph, order, search.groups)
            gluing.add(block, order, chosen[search])
        return gluing.groups()

    def bound(self) -> float:
        """The bound of all blocks: the better one of two where anchored kernels may be charged for what is lost else."""
        total = _sum(self._found)
        if self.exact and all(search.charges for search in self._found[1:]):
            total = max(total, _charged(self._found, self._shares))
        return total


def _sum(found: Sequence[BlockSearch]) -> float:
    """The bound of all blocks from those of each (`eqsat.bounds.blocks.block`)."""
    lost = math.fsum(max(above.charge, below.lost) for below, above in pairwise(found))
    return math.fsum(search.bound or 0.0 for search in found) - lost


def _charged(found: Sequence[BlockSearch], shares: Shares) -> float:
    """The bound of all blocks where anchored kernels are charged for what is lost else."""
    lost: dict[BlockSearch, list[float]] = {}
    for below, above in pairwise(found):
        lost.setdefault(above, []).append(below.lost)
    for search, each in lost.items():
        if charge := median_low(each):
            search.look_charged(charge, shares)
    return _sum(found)


def _bound_by_bytes(graph: FusionGraph, rates: Rates, kernels: Collection[Cone]) -> bool:
    """Whether the prices of kernels are those of their launches and bytes, for the most part."""
    least = math.fsum(
        rates.launch
        + rates.operator * len(k.operations)
        + rates.byte * sum(graph.bytes[c] for c in (*k.inputs, *k.outputs))
        for k in kernels
        if not k.only_views
    )
    return least >= _LEAST_BYTES * math.fsum(k.price for k in kernels)


def _with_alike(graph: FusionGraph, known: Mapping[int, bool]) -> dict[int, bool]:
    """What is known of anchors, and of those that are the same in another spelling: of a value, type and count of operations."""

    def kind_of(index: int) -> tuple[object, ...]:
        operation = graph.operations[index]
        return operation.inputs[:1], operation.flops, operation.dtype

    alike: dict[tuple[object, ...], set[bool]] = {}
    for index, bound in known.items():
        alike.setdefault(kind_of(index), set()).add(bound)
    found = dict(known)
    for index, operation in enumerate(graph.operations):
        bounds = alike.get(kind_of(index), set())
        if operation.kind is Kind.ANCHOR and len(bounds) == 1:
            found.setdefault(index, *bounds)
    return found


def _of_slow_kernels(
    graph: FusionGraph, target: Target, known: Mapping[int, bool], prerequisites: Prerequisites | None
) -> frozenset[int]:
    """Classes at which kernels that are bound by operations, as far as ``known``, must not be cut, or would be bound badly."""
    users = graph.users()
    found: set[int] = set()
    for index in (i for i, bound in known.items() if bound):
        needed = None if prerequisites is None else prerequisites.needed_by(graph.operations[index].inputs)
        found |= held_across(graph, users, index, target, needed)
        if prerequisites is not None:
            found |= behind_in_single(graph, users, index, target)
    return frozenset(found)


def _repeated(graph: FusionGraph, merged: Merged) -> frozenset[int]:
    """Classes that became one of several with operators of their own, of which a program may choose one each."""
    count = Counter(
        merged.classes[cls]
        for cls, members in enumerate(graph.members)
        if any(i in merged.operations and not graph.operations[i].is_view for i in members)
    )
    return frozenset(cls for cls, several in count.items() if several > 1)


def _spelled_out(graph: FusionGraph, usable: Sequence[bool], merged: Merged, used: Collection[int]) -> frozenset[int]:
    """The operations that are ``used`` in the merged graph, and those between classes that became one there. Of a class that
    they read and none of them computes, as signs of integers were taken to be one, all are added."""
    held = {c for i in used for c in (merged.graph.owner[i], *merged.graph.operations[i].inputs)}
    found = {i for i, new in merged.operations.items() if new in used}
    found.update(
        i
        for i, own in enumerate(graph.owner)
        if usable[i] and i not in merged.operations and merged.classes[own] in held
    )
    stack = list(found)
    computed = {graph.owner[i] for i in found}
    while stack:
        for cls in graph.inputs_of(stack.pop()):
            if cls not in computed and not graph.views_of(cls):
                computed.add(cls)
                more = [i for i in graph.members[cls] if usable[i]]
                found.update(more)
                stack += more
    return frozenset(found)


def _read_by_several(merged: Merged, kernels: Iterable[Cone]) -> frozenset[int]:
    reads = Counter(
        c for kernel in kernels if not kernel.only_views for c in {merged.classes[c] for c in kernel.inputs}
    )
    return frozenset(c for c, several in reads.items() if several > 1 and not merged.graph.scalar[c])
