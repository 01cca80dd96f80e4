"""Programs of an e-graph as choices of operations of its fusion graph, and back."""

from collections.abc import Mapping

from eqsat.egraph.egraph import INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.fusion.covering import Covering
from eqsat.fusion.graph import FusionGraph
from eqsat.joint.result import Group
from eqsat.joint.snapshot_graph import SnapshotGraph


def original_choice(source: SnapshotGraph, snapshot: Snapshot) -> dict[int, int]:
    """The original program: in every class the oldest e-node that no rule made."""
    first: dict[int, int] = {}
    for cls, members in snapshot.classes.items():
        number = source.classes.get(cls)
        for item in members:
            if not item.node.rule and item.handle in source.by_handle:
                if number is not None:
                    first[number] = source.by_handle[item.handle]
                break
    return needed(source.graph, first)


def choice_of_handles(source: SnapshotGraph, snapshot: Snapshot, choice: Mapping[int, int]) -> dict[int, int]:
    """The operations of a choice of e-nodes, by class representative."""
    egraph = snapshot.egraph
    found: dict[int, int] = {}
    for cls, handle in choice.items():
        index = source.by_handle.get(handle)
        if index in source.splits:
            index = source.slices.get((handle, choice[egraph.canonical_children(handle)[0]]), index)
        if index is not None:
            found[source.classes[cls]] = index
    return needed(source.graph, found)


def handles_of_choice(source: SnapshotGraph, snapshot: Snapshot, choice: Mapping[int, int]) -> dict[int, int]:
    """Class representative -> handle, with the inputs of the program."""
    representatives = {number: cls for cls, number in source.classes.items()}
    handles = {representatives[c]: source.graph.operations[i].source for c, i in choice.items()}
    for index in choice.values():
        split = source.splits.get(index)
        if split is not None:
            handles[snapshot.egraph.find(split)] = split
    for cls in source.classes:
        for item in snapshot.classes[cls]:
            if item.node.op == INPUT and not item.node.domain and cls not in snapshot.constants:
                handles[cls] = item.handle
    return handles


def groups_of(source: SnapshotGraph, plan: Covering) -> tuple[Group, ...]:
    """The kernels of a plan by class representatives and handles."""
    representatives = {number: cls for cls, number in source.classes.items()}
    operations = source.graph.operations
    return tuple(
        Group(
            cone.template,
            representatives[root],
            frozenset(operations[i].source for i in cone.operations),
            tuple(representatives[c] for c in cone.also),
        )
        for root, cone in plan.kernels.items()
    )


def needed(graph: FusionGraph, choice: Mapping[int, int]) -> dict[int, int]:
    """The part of a choice that the roots need, operands first."""
    done: dict[int, int] = {}
    stack = [(c, False) for c in graph.roots]
    while stack:
        cls, ready = stack.pop()
        if cls in done or not graph.members[cls]:
            continue
        if ready:
            done[cls] = choice[cls]
        else:
            stack.append((cls, True))
            stack.extend((c, False) for c in reversed(graph.inputs_of(choice[cls])) if c not in done)
    return done
