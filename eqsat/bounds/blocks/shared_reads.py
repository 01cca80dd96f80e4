"""What a kernel pays at least for reading a value that several blocks of a graph read, such as a mask.

A kernel may hold operators of several blocks and reads such a value once, so that only one block may count that. Of a kernel
built around an operator it is the block with that. Any other kernel holds what separates its blocks, and where that is computed
once, nothing in it is computed from that by other kernels: a block counts what is read for operators of which that cannot be,
as their kernels reach into blocks above only, where their operators are such that they may hold the separator below. A kernel
may also compute the value inside, from smaller ones.
"""

from collections.abc import Collection

from eqsat.bounds.blocks.separators import Separated
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import Effort, ExtractionProblem, extract

_MOST_STEPS = 500_000
"""Seconds for the least that a kernel reads for one value."""


def prices_of_shared(parts: Separated, target: Target, rates: Rates) -> dict[int, float]:
    """Shared class -> least price of the bytes that a kernel reads for having it, by itself or by what it is computed from. No
    two of these classes are computed from a common one inside kernels, so that a kernel that reads several pays for each."""
    accepts = frozenset[str]().union(*(s.accepts for t in target.templates for s in t.stages))
    found: dict[int, float] = {}
    seen: set[int] = set()
    for cls in sorted(parts.shared, key=lambda c: (-parts.graph.bytes[c], c)):
        inside = _inside(parts, cls, accepts)
        if seen.isdisjoint(inside):
            price = _least(parts, cls, inside, accepts, rates)
            if price > 0:
                found[cls] = price
                seen |= inside
    return found


def _inside(parts: Separated, cls: int, accepts: frozenset[str]) -> set[int]:
    """The classes that a kernel may read instead of computing ``cls``, or what that is computed from; itself, too."""
    graph = parts.graph
    found = {cls}
    stack = [cls]
    while stack:
        for index in graph.members[stack.pop()]:
            operation = graph.operations[index]
            if operation.is_view or accepts & operation.labels:
                new = set(operation.inputs) - found
                found |= new
                stack += new
    return found


def _least(parts: Separated, cls: int, inside: Collection[int], accepts: frozenset[str], rates: Rates) -> float:
    graph = parts.graph
    number = {c: n for n, c in enumerate(sorted(inside))}
    owner = list(range(len(number)))
    children: list[tuple[int, ...]] = [() for _ in owner]
    cost = [rates.byte * graph.bytes[c] for c in number]
    for c, n in number.items():
        for index in graph.members[c]:
            operation = graph.operations[index]
            if operation.is_view or accepts & operation.labels:
                owner.append(n)
                children.append(tuple(number[i] for i in operation.inputs))
                cost.append(0.0)
    problem = ExtractionProblem(len(number), owner, children, cost, (number[cls],))
    try:
        return extract(problem, effort=Effort(_MOST_STEPS)).lower_bound
    except EqsatError:
        return 0.0
