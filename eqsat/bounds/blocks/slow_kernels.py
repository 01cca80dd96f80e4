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
    found = {index}
    stack = [index]
    while stack:
        for user in users[graph.owner[stack.pop()]]:
            if user not in found and _fits(graph, user, accepts):
                found.add(user)
                stack.append(user)
    return _with_operands(graph, found, accepts)


def before(graph: FusionGraph, index: int, target: Target) -> set[int]:
    """Operations that kernels that ``index`` opens may compute for it, and more; itself, too."""
    accepts = frozenset[str]()
    for template in target.templates:
        first = next((k for k, s in enumerate(template.stages) if s.required), -1)
        stage = template.stages[first]
        if template.is_anchored and stage.accepts & graph.operations[index].labels and not stage.entry:
            accepts = accepts.union(*(s.accepts for s in template.stages[:first]))
    return _with_operands(graph, {index}, accepts)


def behind_in_single(graph: FusionGraph, users: Sequence[Sequence[int]], index: int, target: Target) -> set[int]:
    """Classes that kernels of one value that ``index`` opens may compute from it, and more; its own class, too, if there are any.

    Where a graph is cut at one of these, such kernels count as if they could write several values, each for nothing.
    """
    accepts = frozenset[str]()
    for template in target.templates:
        required = [k for k, s in enumerate(template.stages) if s.required]
        alone = len(required) == 1 and template.is_anchored and not template.several
        if alone and template.stages[required[0]].accepts & graph.operations[index].labels:
            accepts = accepts.union(*(s.accepts for s in template.stages[required[0] :]))
    if not accepts:
        return set()
    found = {graph.owner[index]}
    stack = list(found)
    while stack:
        for user in users[stack.pop()]:
            if graph.owner[user] not in found and _fits(graph, user, accepts):
                found.add(graph.owner[user])
                stack.append(graph.owner[user])
    return found


def held_across(
    graph: FusionGraph, users: Sequence[Sequence[int]], index: int, target: Target, needed: Collection[int] | None
) -> set[int]:
    """Classes at which a graph cannot be cut as long as the kernels that ``index`` opens are bound by operations. ``needed``:
    classes that it cannot be computed without; ``None`` if nothing is known, not even what leads where."""
    found = {graph.owner[i] for i in around(graph, users, index, target)}
    if needed is None:
        return found
    found.difference_update(needed, _behind(graph, users, index))
    return found.union(graph.owner[i] for i in before(graph, index, target) if i != index)


def _behind(graph: FusionGraph, users: Sequence[Sequence[int]], index: int) -> set[int]:
    """The classes that may be computed from an operation."""
    found = {graph.owner[index]}
    stack = [graph.owner[index]]
    while stack:
        for user in users[stack.pop()]:
            own = graph.owner[user]
            if own not in found:
                found.add(own)
                stack.append(own)
    return found


def _fits(graph: FusionGraph, index: int, accepts: frozenset[str]) -> bool:
    return graph.operations[index].is_view or bool(accepts & graph.operations[index].labels)


def _with_operands(graph: FusionGraph, operations: Collection[int], accepts: frozenset[str]) -> set[int]:
    """Operations and those that compute what they read, and so on, as far as ``accepts`` says."""
    found = set(operations)
    stack = list(found)
    while stack:
        for i in (i for c in graph.operations[stack.pop()].inputs for i in graph.members[c]):
            if i not in found and _fits(graph, i, accepts):
                found.add(i)
                stack.append(i)
    return found
