"""Which values the kernels around operators bound by operations may hold, as graphs are cut into blocks.

Where a graph is cut, bytes fall apart, and so do operations: each operator of such a *slow* kernel is paid for in its own block,
and bytes in none. But a slow kernel reads for nothing, so that a block below must not be left to compute a separator for one with
its anchor above. If it holds the separator, then

- its anchor is below: then all that leads from it to the separator is inside, and the kernel is one of both blocks;
- or the anchor needs the separator, and something on the way is read from memory: then another kernel is the first to compute the
  separator, and for the block below this one is of no use. It is charged for its operations above, and for nothing below;
- or all of the way is inside (`before`), or neither needs the other: the graph may not be cut there.
"""

from collections.abc import Collection, Sequence

from eqsat.bounds.focus import bound_by_operations
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph
from eqsat.ir.operator import Kind
from eqsat.ir.order import reached


def is_slow(graph: FusionGraph, index: int, target: Target, rates: Rates) -> bool:
    """Whether kernels are built around an operator that takes longer than the bytes that it reads and writes."""
    return graph.operations[index].kind is Kind.ANCHOR and bound_by_operations(graph, index, target, rates)


def around(graph: FusionGraph, users: Sequence[Sequence[int]], index: int, target: Target) -> set[int]:
    """Operations that kernels built around ``index``, in a stage that they require, may hold, and more."""
    labels = graph.operations[index].labels
    accepts = frozenset[str]()
    for template in target.templates:
        for own in (s for s in template.stages if s.required and s.accepts & labels):
            others = (s for s in template.stages if s is not own or not s.once)
            accepts = accepts.union(*(s.accepts for s in others))
    return _with_operands(graph, _with_users(graph, users, index, accepts), accepts)


def before(graph: FusionGraph, index: int, target: Target) -> set[int]:
    """Operations that kernels that ``index`` opens may compute for it, and more; itself, too."""
    accepts = frozenset[str]()
    for template in (t for t in target.templates if t.is_anchored):
        first = template.required[0]
        stage = template.stages[first]
        if stage.accepts & graph.operations[index].labels and not stage.entry:
            accepts |= template.accepts(slice(first))
    return _with_operands(graph, {index}, accepts)


def behind_in_single(graph: FusionGraph, users: Sequence[Sequence[int]], index: int, target: Target) -> set[int]:
    """Classes that kernels of one value that ``index`` opens may compute from it, and more; its own class, too, if there are any.

    Where a graph is cut at one of these, such kernels count as if they could write several values, each for nothing.
    """
    accepts = frozenset[str]()
    for template in target.templates:
        required = template.required
        alone = len(required) == 1 and template.is_anchored and not template.several
        if alone and template.stages[required[0]].accepts & graph.operations[index].labels:
            accepts |= template.accepts(slice(required[0], None))
    return {graph.owner[i] for i in _with_users(graph, users, index, accepts)} if accepts else set()


def held_across(
    graph: FusionGraph, users: Sequence[Sequence[int]], index: int, target: Target, needed: Collection[int] | None
) -> set[int]:
    """Classes at which a graph cannot be cut as long as the kernels that ``index`` opens are bound by operations. ``needed``:
    classes that it cannot be computed without; ``None`` if nothing is known, not even what leads where."""
    found = {graph.owner[i] for i in around(graph, users, index, target)}
    if needed is None:
        return found
    behind = reached((graph.owner[index],), lambda c: (graph.owner[i] for i in users[c]))
    found.difference_update(needed, behind)
    return found.union(graph.owner[i] for i in before(graph, index, target) if i != index)


def _with_users(graph: FusionGraph, users: Sequence[Sequence[int]], index: int, accepts: frozenset[str]) -> set[int]:
    """An operation and those that read what it computes, and so on, as far as they are views or ``accepts`` says."""
    return reached((index,), lambda i: (u for u in users[graph.owner[i]] if graph.operations[u].fits(accepts)))


def _with_operands(graph: FusionGraph, operations: Collection[int], accepts: frozenset[str]) -> set[int]:
    """Operations and those that compute what they read, and so on, as far as they are views or ``accepts`` says."""
    return reached(operations, lambda i: (o for o in graph.operands(i) if graph.operations[o].fits(accepts)))
