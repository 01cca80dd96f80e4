"""The bound of `eqsat.bounds.relaxation` block by block, for graphs that are too large for one close look.

A graph is cut at separators (`separators`). The operations of each kernel, what it reads and what it writes fall into blocks:
 the operations that compute a separator into the block below, what it is read and written for into the block above.
Below, it must be computed inside some kernel; above, an operation without inputs, the *source*, computes it.

What the program pays below is at least the optimum there. What it pays above is compared with a problem in which each kernel that
holds the source pays a *toll*, but for those built around an anchor below (*anchored*), which pay nothing. Let n kernels hold the
separator. All but the first of them to be executed are of no use below but to compute it, and each of these pays there as much as
any kernel must at least: that is the toll. If the first is anchored, the tolls are paid below. If it is not, the program pays
below at least the optimum with the separator computed like that, which is by some *surplus* above the optimum. So the program
costs at least the sum of the optima of the blocks, less what the surplus is short of the toll, for each separator.

Where an anchored kernel is always the first, as its anchor is computed once, it may be charged for the source, too: if that is
what the surplus is short of the toll, or more, it is the charge that the sum is less by.

Where no two kernels may hold the operators of a separator, n is 1: there is no toll, and the kernel that holds the source reads
nothing computed from it. Else the first kernel reads no such thing: one that does is not the only one to hold the source.

Bytes fall apart like that. Kernels that cross a separator are taken to be bound by bytes, which is never more than their price,
or by operations (`slow_kernels`) where these are either anchored or never the first: such kernels pay no toll.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.bounds.blocks.prerequisites import BlockPrerequisites, NoPrerequisites
from eqsat.bounds.blocks.separators import Separated
from eqsat.bounds.blocks.shared_reads import least_read
from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.relaxed_templates import Mode, distinct_templates, mode_of, unfinished
from eqsat.bounds.states import NONE, Borders
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.extract.core import Core
from eqsat.extract.decompose import equal_parts
from eqsat.extract.knuth import knuth
from eqsat.fusion.alike import Descriptions, operations_in
from eqsat.fusion.graph import FusionGraph, Operation

_TOLL_STEPS = 1_000_000
"""Seconds for the least cost of a part of a kernel that computes a separator."""


@dataclass(frozen=True)
class Block:
    """The part of a graph between two separators, ``borders.source`` and ``borders.target``, and the toll of the source.

    ``classes``, ``operations``: those of the whole graph -> their numbers here. ``repeated``: classes that two kernels may
    compute, each for itself, whatever the operator. ``shared``: what kernels that this block charges pay for reading classes
    that other blocks read, too (`shared_reads`). ``prerequisites``: what kernels cannot read here. ``peak``: most operations
    a second of any operator of the whole graph.
    """

    graph: FusionGraph
    borders: Borders
    toll: float
    classes: Mapping[int, int]
    operations: Mapping[int, int]
    repeated: frozenset[int]
    shared: Mapping[int, float]
    prerequisites: Prerequisites
    peak: float


def block_of(
    parts: Separated,
    position: int,
    target: Target,
    shared: Mapping[int, float],
    prerequisites: Prerequisites | None = None,
) -> Block:
    """Block number ``position``, from the leaves up, the last one up to the roots, with nothing carried into it and no toll.
    ``shared``: `eqsat.bounds.blocks.shared_reads.prices_of_shared`; ``prerequisites``: those of the graph, if known."""
    whole = parts.graph
    separators = parts.separators
    below = separators[position - 1] if position else NONE
    top = separators[position] if position < len(separators) else NONE
    starts = [top] if top != NONE else whole.roots
    classes = {cls: number for number, cls in enumerate(parts.below(starts, below))}
    graph = FusionGraph()
    operations: dict[int, int] = {}
    for cls, number in classes.items():
        graph.add_class_of(whole, cls)
        if cls in parts.shared:
            graph.bytes[number] = 0.0
    source = NONE
    for cls, number in classes.items():
        if cls == below:
            source = graph.add(number, _source(whole, whole.members[cls]))
        elif cls not in parts.shared:
            for index in whole.members[cls]:
                operation = whole.operations[index]
                inputs = tuple(classes[c] for c in operation.inputs)
                operations[index] = graph.add(number, replace(operation, inputs=inputs))
    graph.roots = tuple(classes[c] for c in starts)
    seen: Prerequisites = NoPrerequisites(len(classes))
    if prerequisites is not None:
        known = _opened_once(whole, target)
        seen = BlockPrerequisites(
            prerequisites, graph, source if known else NONE, parts.before_shared, classes, operations
        )
    once = position > 0 and not light_members(whole, whole.members[below], target, below in parts.repeated)
    optional = {label for t in target.templates for s in t.stages if not s.required for label in s.accepts}
    once = once and optional.isdisjoint(
        graph.operations[source].labels
    )  # else a kernel above may hold it before its anchor
    lost = _unfinished(parts, target, top) if top != NONE else frozenset[tuple[int, int, int]]()
    return Block(
        graph,
        Borders(source, target=classes[top] if top != NONE else NONE, once=once, unfinished=lost),
        0.0,
        classes,
        operations,
        frozenset(number for cls, number in classes.items() if cls in parts.repeated),
        {number: shared[cls] for cls, number in classes.items() if cls in shared},
        seen,
        max((target.peak(o.dtype) for o in whole.operations), default=1.0),
    )


def _unfinished(parts: Separated, target: Target, cls: int) -> frozenset[tuple[int, int, int]]:
    """The number of a mode, the stage and the filled stages that no kernel holds a separator with."""
    found = ((m.number, unfinished(parts.graph, parts.users, m, cls)) for m in _modes(target))
    return frozenset((number, *state) for number, states in found for state in states)


def _modes(target: Target) -> list[Mode]:
    return [mode_of(n, t, False, 2) for n, t in enumerate(distinct_templates(target.templates))]


def _opened_once(graph: FusionGraph, target: Target) -> bool:
    """Whether all operators that kernels are built around are computed by one kernel each."""
    modes = [mode for mode in _modes(target) if mode.required]
    again = (o.labels for o in graph.operations if target.recomputes(o.kind))
    return not any(mode.opens(labels) for labels in again for mode in modes)


def _source(graph: FusionGraph, members: Sequence[int]) -> Operation:
    """An operation that goes wherever one of ``members`` does."""
    labels = frozenset[str]().union(*(graph.operations[i].labels for i in members))
    return Operation("Source", labels, graph.operations[members[0]].kind, (), 0.0, "default", NONE)


def light_members(graph: FusionGraph, members: Sequence[int], target: Target, repeated: bool) -> list[int]:
    """Those of the operations of a class that several kernels may compute, each for itself."""
    return [i for i in members if repeated or target.recomputes(graph.operations[i].kind)]


def toll_of(block: Block, target: Target, rates: Rates) -> float:
    """Least bytes, as a price, that a kernel reads for computing the target of a block where another one does, too."""
    top, carried = block.borders.target, block.borders.carried
    light = light_members(block.graph, block.graph.members[top], target, top in block.repeated)
    if not light:
        return 0.0
    least = _least_read(block, target, rates, light, block.toll)
    templates = [
        t for n, t in enumerate(distinct_templates(target.templates)) if (n, False) in carried and t.is_anchored
    ]
    if block.toll and templates:  # those around an anchor below the source pay nothing for that
        accepts = frozenset[str]().union(*(t.accepts() for t in templates))
        least = min(least, _least_read(block, target, rates, light, 0.0, accepts))
    return least if least < float("inf") else 0.0


def _least_read(
    block: Block, target: Target, rates: Rates, light: Sequence[int], toll: float, accepts: frozenset[str] | None = None
) -> float:
    """Least bytes that a kernel reads for computing the target by one of ``light``, infinite if none can. ``accepts``: labels of
    the operators that it may hold, if given."""
    graph, borders, top = block.graph, block.borders, block.borders.target
    costs = {c: rates.byte * size for c, size in enumerate(graph.bytes)}
    costs[top] = float("inf")
    if borders.source != NONE:
        below = graph.owner[borders.source]
        costs[below] = min(costs[below], toll)
    held: list[int] = []
    for index, operation in enumerate(graph.operations):
        own = graph.owner[index]
        ends = own not in block.repeated and _ends_with(operation, target)
        fits = accepts is None or operation.fits(accepts)
        if index != borders.source and fits and not ends and (own != top or index in light):
            held.append(index)
    return least_read(graph, top, costs, held, _TOLL_STEPS)


def _ends_with(operation: Operation, target: Target) -> bool:
    """Whether an operation is computed once, by a kernel that writes one value: if that one holds a separator inside, no other
    kernel can compute it, as nothing between the two is in memory."""
    several = (s for t in target.templates if t.several for s in t.stages)
    return not (target.recomputes(operation.kind) or any(s.accepts & operation.labels for s in several))


def computed_from_source(block: Block) -> frozenset[int]:
    """The classes that cannot be computed without the source."""
    graph = block.graph
    operations, owner, children = graph.nodes([True] * len(graph.operations))
    cost = [float("inf") if i == block.borders.source else 0.0 for i in operations]
    choice = knuth(len(graph.members), owner, children, cost).choice
    return frozenset(c for c, n in enumerate(choice) if n < 0)


def equal_blocks(blocks: Sequence[Block], shared: frozenset[int]) -> list[tuple[object, list[int]]]:
    """A key for each block, and its operations in some order: blocks of equal keys are the same if operations at the same
    place in these orders are taken to be the same. ``shared``: classes of the whole graph that are told from others."""
    descriptions = Descriptions()
    described = [_described(block, shared, descriptions) for block in blocks]
    found: list[tuple[object, list[int]]] = []
    for block, core, (key, places) in zip(blocks, described, equal_parts(described), strict=True):
        order = operations_in(core, places)
        prerequisites = (
            block.prerequisites.described(block.graph, order)
            if isinstance(block.prerequisites, BlockPrerequisites)
            else ()
        )
        found.append(((key, prerequisites), order))
    return found


def _described(block: Block, shared: frozenset[int], descriptions: Descriptions) -> Core:
    apart = {number for cls, number in block.classes.items() if cls in shared}
    return descriptions.of(block.graph, lambda c: (c in apart, c in block.repeated, block.shared.get(c)))
