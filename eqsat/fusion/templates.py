"""Whether a cone of operators fits a template: the state of a cone, extended by one operator at its root.

A template is a sequence of stages. Every operator of a cone is put into the earliest stage that accepts it, not before those
of the operators it reads inside the cone; so the state of a cone is the stage of its root and who occupies the stages that
take one operator only. Extending a state needs the states of the absorbed cones alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph

DEAD = -1

Occupants = tuple[int, ...]
"""For each stage of a template the operation that is its only or its first one, -1 for none."""


@dataclass(slots=True)
class Cone:
    """Operators that compute class ``root`` from ``inputs`` in one kernel.

    ``operations`` are indices of operations and ``inside`` their classes (root included). ``inputs`` are all classes read,
    ``cut`` those of them that are no leaves. ``stages[t]`` is the stage of the root in template ``t``, `DEAD` when the cone is
    no part of a kernel of that template. ``template`` names the template of the cone as a kernel, ``""`` if it is none yet.
    ``price`` is in the unit of the cost model, ``flow`` adds a share of the price of its inputs. ``also``: further classes that
    the kernel writes (`eqsat.fusion.merging`).
    """

    root: int
    operations: frozenset[int]
    inside: frozenset[int]
    inputs: frozenset[int]
    cut: frozenset[int]
    stages: tuple[int, ...] = ()
    occupants: tuple[Occupants, ...] = ()
    template: str = ""
    only_views: bool = False
    row_elements: int = 0
    price: float = float("inf")
    flow: float = float("inf")
    also: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """All classes that the kernel writes."""
        return (self.root, *self.also)


class Matcher:
    """The templates of a target over the operations of one graph."""

    def __init__(self, graph: FusionGraph, target: Target) -> None:
        self.target = target
        self.graph = graph
        self._templates = target.templates
        self._on_chip = target.on_chip_bytes
        self._accepts: dict[frozenset[str], tuple[tuple[int, ...], ...]] = {}
        self._required = [tuple(i for i, stage in enumerate(t.stages) if stage.required) for t in target.templates]
        self._none = tuple((-1,) * len(t.stages) for t in target.templates)

    def _stages(self, labels: frozenset[str]) -> tuple[tuple[int, ...], ...]:
        found = self._accepts.get(labels)
        if found is None:
            found = self._accepts[labels] = tuple(
                tuple(i for i, stage in enumerate(t.stages) if stage.accepts & labels) for t in self._templates
            )
        return found

    def can_join(self, index: int) -> bool:
        """Whether any kernel of several operators can hold the operation."""
        operation = self.graph.operations[index]
        if operation.has_parts:
            return False
        return operation.is_view or any(self._stages(operation.labels))

    def complete(self, t: int, cone: Cone) -> bool:
        """Whether a cone is a kernel of template ``t``."""
        return cone.stages[t] != DEAD and all(cone.occupants[t][i] >= 0 for i in self._required[t])

    def extend(self, index: int, absorbed: Sequence[Cone]) -> tuple[tuple[int, ...], tuple[Occupants, ...], str, int]:
        """State, occupants, template ("" if no complete kernel) and row length of the cone rooted at an operation."""
        operation = self.graph.operations[index]
        row = operation.row_elements if "row" in operation.labels else 0
        for cone in absorbed:
            if cone.row_elements:
                if row and row != cone.row_elements:
                    row = -1
                    break
                row = cone.row_elements
        stages: list[int] = []
        occupants: list[Occupants] = []
        name = ""
        accepted = self._stages(operation.labels)
        for t, template in enumerate(self._templates):
            stage, occupied = self._position(t, index, absorbed, accepted[t], row)
            stages.append(stage)
            occupants.append(occupied)
            if stage != DEAD and not name and all(occupied[i] >= 0 for i in self._required[t]):
                name = template.name
        return tuple(stages), tuple(occupants), name, max(row, 0)

    def _position(
        self, t: int, index: int, absorbed: Sequence[Cone], accepted: tuple[int, ...], row: int
    ) -> tuple[int, Occupants]:
        none = self._none[t]
        start = 0
        occupied = none
        template = self._templates[t]
        for cone in absorbed:
            stage = cone.stages[t]
            if stage == DEAD:
                return DEAD, none
            start = max(start, stage)
            other = cone.occupants[t]
            if occupied == none:
                occupied = other
            elif other != none and other != occupied:
                joined = self._joined(t, occupied, other)
                if joined is None:
                    return DEAD, none
                occupied = joined
        operation = self.graph.operations[index]
        if operation.is_view:
            return start, occupied
        for k in accepted:
            if k < start:
                continue
            stage = template.stages[k]
            if stage.once and (occupied[k] >= 0 or self._reads_too_early(t, index, absorbed)):
                continue
            if stage.entry and not all(cone.only_views for cone in absorbed):
                continue
            if stage.same_size and not self._same_size(t, index, absorbed):
                continue
            if stage.row_fits and "row" in operation.labels and (row < 0 or operation.row_bytes > self._on_chip):
                continue
            if occupied[k] < 0:
                occupied = (*occupied[:k], index, *occupied[k + 1 :])
            return k, occupied
        return DEAD, none

    def _reads_too_early(self, t: int, index: int, absorbed: Sequence[Cone]) -> bool:
        """Whether the operation reads a value of a stage with a least input as an earlier one."""
        inputs = self.graph.operations[index].inputs  # distinct ones: at most as far behind as among all
        stages = self._templates[t].stages
        return any(inputs.index(cone.root) < stages[cone.stages[t]].from_input for cone in absorbed)

    def _joined(self, t: int, left: Occupants, right: Occupants) -> Occupants | None:
        """Occupants of two cones that meet, ``None`` if they cannot: the single operators must lie on one path."""
        stages = self._templates[t].stages
        ones = [{(i, o) for i, o in enumerate(side) if o >= 0 and stages[i].once} for side in (left, right)]
        if not (ones[0] <= ones[1] or ones[1] <= ones[0]):
            return None
        return tuple(max(a, b) if min(a, b) < 0 else min(a, b) for a, b in zip(left, right, strict=True))

    def _same_size(self, t: int, index: int, absorbed: Sequence[Cone]) -> bool:
        """Whether what the operation reads from a cone with an occupied single stage has the size of its own value."""
        graph = self.graph
        size = graph.elements[graph.owner[index]]
        template = self._templates[t]
        for cone in absorbed:
            held = any(o >= 0 and template.stages[i].once for i, o in enumerate(cone.occupants[t]))
            if held and graph.elements[cone.root] != size:
                return False
        return True
