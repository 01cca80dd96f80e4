"""What joint extraction returns, how far from optimal it can be, and choices of e-nodes as choices of operations."""

from collections.abc import Mapping
from dataclasses import dataclass

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.egraph.enode import INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.extract import WorkDone, gap_of
from eqsat.fusion.covering import Covering
from eqsat.fusion.graph import FusionGraph
from eqsat.ir.order import operands_before
from eqsat.joint.snapshot_graph import SnapshotGraph
from eqsat.lower.selection import Selection


@dataclass(frozen=True, slots=True)
class Group:
    """A kernel: its template, the class representative it computes, the handles of its e-nodes, further classes it writes."""

    template: str
    root: int
    handles: frozenset[int]
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class JointSelection:
    """E-nodes and kernels of one program.

    ``choice``: class representative -> handle of the chosen e-node, inputs of the program included. ``groups``: the kernels,
    views and projections too; ``kernels``: how many launch, ``kernels_before`` of the original program, fused. ``cost``,
    ``cost_before`` (the original program, fused) and ``lower_bound`` are in the unit of the cost model. The bound
    holds for all programs in the e-graph and all kernels of the target when ``bound_scope`` is ``"e-graph"``
    (`eqsat.bounds.relaxation`, or all cones enumerated), and for those built from the ``cones`` enumerated, with one output
    each, when it is ``"pool"``: for cost models of other forms, and where the target forms groups by its own algorithm. It is 0
    when the scope is ``"none"``: the effort was not enough for a bound.
    ``method``: the stage that found the program; ``work``: what the choice took.
    """

    choice: dict[int, int]
    groups: tuple[Group, ...]
    kernels: int
    kernels_before: int
    cost: float
    cost_before: float
    lower_bound: float
    bound_scope: str
    method: str
    cones: int
    work: WorkDone
    seconds: float
    target: Target
    model: CostModel

    @property
    def gap(self) -> float:
        """How far the cost may be above that of the cheapest program, within the scope of the bound."""
        return gap_of(self.cost, self.lower_bound)

    @property
    def selection(self) -> Selection:
        """The chosen e-nodes in the form that lowering takes."""
        return Selection(self.choice, self.cost, self.cost_before, self.lower_bound, self.method, self.work)


# --- choices of e-nodes and of operations ----------------------------------------------------------------------------


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
            if item.node.key == INPUT and cls not in snapshot.constants:
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
    roots = [c for c in graph.roots if graph.members[c]]
    return {c: choice[c] for c in operands_before(roots[::-1], lambda c: graph.inputs_of(choice[c]))}
