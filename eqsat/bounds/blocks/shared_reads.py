"""What a kernel pays at least for reading a value that several blocks of a graph read, such as a mask.

A kernel may hold operators of several blocks and reads such a value once, so that only one block may count that. Of a kernel
built around an operator it is the block with that. Any other kernel holds what separates its blocks, and where that is computed
once, nothing in it is computed from that by other kernels: a block counts what is read for operators of which that cannot be,
as their kernels reach into blocks above only, where their operators are such that they may hold the separator below. A kernel
may also compute the value inside, from smaller ones.
"""

from collections.abc import Mapping, Sequence

from eqsat.bounds.blocks.separators import Separated
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import Effort, ExtractionProblem, extract
from eqsat.fusion.graph import FusionGraph
from eqsat.ir.order import reached

_MOST_STEPS = 500_000
"""Seconds for the least that a kernel reads for one value."""


def prices_of_shared(parts: Separated, target: Target, rates: Rates) -> dict[int, float]:
    """Shared class -> least price of the bytes that a kernel reads for having it, by itself or by what it is computed from. No
    two of these classes are computed from a common one inside kernels, so that a kernel that reads several pays for each."""
    accepts = frozenset[str]().union(*(t.accepts() for t in target.templates))
    graph = parts.graph
    inner = [[i for i in members if graph.operations[i].fits(accepts)] for members in graph.members]
    found: dict[int, float] = {}
    seen: set[int] = set()
    for cls in sorted(parts.shared, key=lambda c: (-graph.bytes[c], c)):
        # What a kernel may read instead of computing the class, or what that is computed from; itself, too.
        inside = reached((cls,), lambda c: (below for i in inner[c] for below in graph.operations[i].inputs))
        if seen.isdisjoint(inside):
            costs = {c: rates.byte * graph.bytes[c] for c in sorted(inside)}
            price = least_read(graph, cls, costs, [i for c in costs for i in inner[c]], _MOST_STEPS)
            if price > 0:
                found[cls] = price
                seen |= inside
    return found


def least_read(
    graph: FusionGraph, cls: int, costs: Mapping[int, float], operations: Sequence[int], most_steps: int
) -> float:
    """Least that a kernel pays for having a class, which it reads, or computes by ``operations``; infinite if it cannot.
    ``costs``: what it pays for reading each of all classes in question."""
    number = {c: n for n, c in enumerate(costs)}
    owner = [*number.values(), *(number[graph.owner[i]] for i in operations)]
    children = [*(() for _ in number), *(tuple(number[c] for c in graph.operations[i].inputs) for i in operations)]
    prices = [*costs.values(), *(0.0 for _ in operations)]
    problem = ExtractionProblem(len(number), owner, children, prices, (number[cls],))
    try:
        return extract(problem, effort=Effort(most_steps)).lower_bound
    except EqsatError:
        return float("inf")
