"""Where a graph falls into blocks: classes that every program computes, and through which alone all data flows.

A *separator* is such a class, not written by all programs, but computed by all, inside one kernel or several. What is behind it
reads nothing else of what is before it, but for leaves and *shared* classes of light operators (masks, say), which bounds take
to be there; what they count for reading them is in `eqsat.bounds.blocks.shared_reads`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from eqsat.bounds.prerequisites import core_of
from eqsat.cost.target import Target
from eqsat.extract.reduce import drop_cyclic_nodes
from eqsat.extract.required import required_by, required_classes
from eqsat.fusion.graph import FusionGraph
from eqsat.ir.operator import Kind
from eqsat.ir.order import reached

_LEAST_HEAVY, _LEAST_READ, _LEAST_LIGHT = 3, 20, 60
"""Operations between two separators: each that kernels may compute more than once costs the bound a little."""


@dataclass(frozen=True)
class Separated:
    """A graph and its separators, each computed from the one before. ``shared``: classes, leaves too, on both sides of a
    separator. ``repeated``: classes that several kernels may compute, each for itself, whatever the operators."""

    graph: FusionGraph
    separators: tuple[int, ...]
    shared: frozenset[int]
    repeated: frozenset[int]
    inputs: Sequence[Sequence[int]]
    """For each class those that its operations read."""

    @cached_property
    def users(self) -> Sequence[Sequence[int]]:
        """Those of the graph."""
        return self.graph.users()

    @cached_property
    def before_shared(self) -> frozenset[int]:
        """The shared classes and all that they may be computed from."""
        return frozenset(_below(self.inputs, self.shared, set()))

    def below(self, starts: Sequence[int], stop: int) -> list[int]:
        """The classes that ``starts`` are computed from, they too, ``stop`` too but nothing below it; in ascending order."""
        return sorted(_below(self.inputs, starts, {stop, *self.shared}))


def separated(
    graph: FusionGraph, target: Target, repeated: frozenset[int] = frozenset(), undivided: frozenset[int] = frozenset()
) -> Separated | None:
    """The separators of a graph, ``None`` if it has none, all of them outside of ``undivided``.

    First those of heavy operators, which are computed once, unless they are ``repeated``, then others far from these: first
    what anchors read, as that is written by most programs, while a kernel of one block and one of the other may each hold
    another value to good purpose, and the bound is of both.
    """
    members = graph.members
    required = [c for c in _required(graph) if c not in undivided]
    recomputed = {c for c in required if any(target.recomputes(graph.operations[i].kind) for i in members[c])}
    heavy = [c for c in required if c not in repeated | recomputed]
    light = [c for c in required if len(members[c]) == 1 and c not in heavy]
    anchors = {
        c for found in members for i in found if graph.operations[i].kind is Kind.ANCHOR for c in graph.inputs_of(i)
    }
    read = [c for c in light if c in anchors]
    chosen: dict[int, tuple[set[int], int]] = {}
    shared: set[int] = set()
    inputs = _inputs(graph)
    for candidates, distance in ((heavy, _LEAST_HEAVY), (read, _LEAST_READ), (light, _LEAST_LIGHT)):
        for cls in candidates:
            own = [graph.operations[i] for i in members[cls]]
            if cls in graph.roots or any(o.is_view or o.has_parts for o in own):
                continue
            before = _below(inputs, inputs[cls], set())
            size = sum(len(members[c]) for c in before)
            apart = all(
                abs(size - others) >= distance and (number in before or cls in other)
                for number, (other, others) in chosen.items()
            )
            if cls in before or size < distance or not apart:
                continue
            both = before & _below(inputs, graph.roots, {cls})
            if both.isdisjoint(chosen) and all(_may_be_shared(graph, target, i) for c in both for i in members[c]):
                chosen[cls] = before, size
                shared |= both
    separators = sorted((c for c in chosen if c not in shared), key=lambda c: chosen[c][1])
    return Separated(graph, tuple(separators), frozenset(shared), repeated, inputs) if separators else None


def acyclic_operations(graph: FusionGraph, usable: Sequence[bool]) -> list[bool]:
    """Whether each operation is usable in programs that have no cycles, as far as is easily seen."""
    core, operations, _ = core_of(graph, usable)
    required = required_classes(core)
    if required is None:
        return list(usable)
    drop_cyclic_nodes(core, required)
    kept: set[int] = {operations[core.parts[n]] for members in core.nodes for n in members}
    return [i in kept for i in range(len(usable))]


def _required(graph: FusionGraph) -> list[int]:
    """The computed classes that every program needs, operands first."""
    core, operations, _ = core_of(graph, [True] * len(graph.operations))
    required = required_classes(core)
    if required is None:
        return []
    needed = required_by(required, core.roots)
    number: list[int] = [operations[core.parts[members[0]]] for members in core.nodes]
    return [graph.owner[i] for n, i in enumerate(number) if needed >> n & 1 and i >= 0]


def _inputs(graph: FusionGraph) -> list[list[int]]:
    """For each class those that its operations read, each once."""
    return [list(dict.fromkeys(c for i in members for c in graph.operations[i].inputs)) for members in graph.members]


def _below(inputs: Sequence[Sequence[int]], starts: Iterable[int], stops: set[int]) -> set[int]:
    """``starts`` and the classes that they are computed from, what only ``stops`` are computed from left out. ``inputs``: for
    each class those that it is computed from."""
    return reached(starts, lambda c: inputs[c] if c not in stops else ())


def _may_be_shared(graph: FusionGraph, target: Target, index: int) -> bool:
    """Whether a kernel that computes the operation and others from it remains one if it reads the value instead.

    So it is for light operators: no kernel needs them. In a last stage, what is computed from them is in that stage too.
    """
    operation = graph.operations[index]
    needed = (s for t in target.templates for s in t.stages if s.once or (s.required and s is not t.stages[-1]))
    return not operation.has_parts and not any(s.accepts & operation.labels for s in needed)
