"""What joint extraction returns: e-nodes, kernels, and how far from optimal they can be."""

from dataclasses import dataclass

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.extract import WorkDone
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
    ``cost_before`` (the original program, fused),
    ``cost_two_phase`` (chosen operator by operator, then fused) and ``lower_bound`` are in the unit of the cost model. The bound
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
    cost_two_phase: float
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
        """``(cost - lower_bound) / cost``; 0 when proved optimal within the scope of the bound."""
        return (self.cost - self.lower_bound) / self.cost if self.cost > self.lower_bound else 0.0

    @property
    def selection(self) -> Selection:
        """The chosen e-nodes in the form that lowering takes."""
        return Selection(self.choice, self.cost, self.cost_before, self.lower_bound, self.gap, self.method, self.work)
