"""States of classes inside kernels of one template: what the relaxed problem of `eqsat.bounds.relaxation` is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from eqsat.bounds.relaxed_templates import Mode, ModeKey
from eqsat.fusion.graph import FusionGraph

NONE = -1


class KernelId(NamedTuple):
    """Which kernel: its anchor, the operator that opens the first required stage (`Mode.anchored`, `Mode.known_by_opener`), be it
    filled already or not, and the class that it writes if it writes one only (`NONE`: none, or not known)."""

    anchor: int
    output: int


ANY = KernelId(NONE, NONE)


class State(NamedTuple):
    """Stage of a class inside a kernel, how many of the required stages are filled, and the kernel."""

    stage: int
    filled: int
    kernel: KernelId


class Step(NamedTuple):
    """An operator, the state of its class that it reaches, and how many stages the input that it continues has filled (`NONE` if
    it continues none)."""

    operation: int
    state: State
    continued: int


class Position(NamedTuple):
    """Stage and filled stages of a class in some kernel."""

    stage: int
    filled: int


Carried = Mapping[ModeKey, frozenset[Position]]
"""What a class may be in kernels of a mode."""

FromAnchor = dict[tuple[int, int, int], int]
"""Anchor, class and filled stages -> the classes (as bits) that each such kernel has computed from the anchor by then."""


@dataclass(frozen=True, slots=True)
class Borders:
    """Where a graph is a part of a larger one, cut at classes that kernels may hold inside (`eqsat.bounds.blocks.block`).

    ``source``: an operation without inputs that stands for everything below, or `NONE`. ``carried``: what its class may be in
    kernels with required operators below. ``target``: the class above which the graph is cut, or `NONE`. ``once``: whether one
    kernel only holds the source, which is then known by it. ``unfinished``: number of a mode, stage and filled stages that the
    target cannot have, as nothing above would fill the others.
    """

    source: int = NONE
    carried: Carried = field(default_factory=dict[ModeKey, frozenset[Position]])
    target: int = NONE
    once: bool = False
    unfinished: frozenset[tuple[int, int, int]] = frozenset()


WHOLE = Borders()


@dataclass(frozen=True, slots=True)
class Reach:
    """The states that a kernel of a mode with all required stages filled can contain, and the steps that lead to them."""

    mode: Mode
    states: Mapping[int, dict[State, None]]
    steps: tuple[Step, ...]
    from_anchor: FromAnchor

    def inner(self, cls: int, stage: int, filled: int, kernel: KernelId) -> list[State]:
        """States of a class with exactly ``filled`` stages that an operator at ``stage`` can continue."""
        return [
            s for s in self.states.get(cls, ()) if s.filled == filled and s.stage <= stage and s.kernel in (kernel, ANY)
        ]

    def beside(self, cls: int, stage: int, filled: int, kernel: KernelId) -> list[State]:
        """States of a class that an operator at ``stage`` can read where it continues another input with ``filled``."""
        return [
            s for s in self.states.get(cls, ()) if s.stage <= stage and s.filled <= filled and s.kernel in (kernel, ANY)
        ]

    def is_alone(self, graph: FusionGraph, cls: int, state: State) -> bool:
        """Whether the kernel up to a state is the operator that opens it, which could not write further values nor read views
        of what is in memory."""
        template, anchor = self.mode.template, state.kernel.anchor
        if template.several or anchor == NONE or graph.owner[anchor] != cls:
            return False
        if any(graph.views_of(c) for c in graph.operations[anchor].inputs):
            return False
        first = template.stages[self.mode.required[0]]
        return first.entry and state.stage == self.mode.required[0]

    def writes(self, cls: int, state: State) -> bool:
        """Whether a kernel may write a class that is in this state."""
        return state.filled == len(self.mode.required) and state.kernel.output in (NONE, cls)


def latest_stage(graph: FusionGraph, mode: Mode, index: int, cls: int, stage: int) -> int:
    """The last stage from which an operator at ``stage`` may read a class: single operators read some stages as later inputs
    only."""
    stages = mode.template.stages
    if not stages[stage].once or index in graph.collapsed or graph.operations[index].is_view:
        return stage
    position = graph.operations[index].inputs.index(cls)
    before = range(max(stage - 1, 0), -1, -1)  # views of what is in memory are in stage 0
    return next((k for k in before if stages[k].from_input <= position), NONE)
