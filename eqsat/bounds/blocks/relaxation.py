"""The relaxed problem of a block of a graph (`eqsat.bounds.blocks.block`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from eqsat.bounds.blocks.block import Block, computed_from_source
from eqsat.bounds.blocks.prerequisites import BlockPrerequisites, NoPrerequisites
from eqsat.bounds.blocks.slow_kernels import held_across, is_slow
from eqsat.bounds.focus import Focus
from eqsat.bounds.named_problem import ChosenGroup, chosen_groups
from eqsat.bounds.readers import EVERY, ReadBy
from eqsat.bounds.relaxation import Relaxation
from eqsat.bounds.relaxed_templates import Mode, ModeKey, Pace, computed_from, holds_kernels_around
from eqsat.bounds.states import ANY, NONE, KernelId, Position, Reach, State, Step
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.extract import Effort, ExtractionProblem

_FRAGMENT = ReadBy(ANY, NONE, -2)
"""The part of a kernel below a separator that holds no required operator there."""


class BlockRelaxation(Relaxation):
    """The relaxed problem of a block. Kernels are taken to be bound by operations where they lie within it, or where that is no
    matter beyond (`eqsat.bounds.blocks.slow_kernels`)."""

    def __init__(self, block: Block, target: Target, rates: Rates, focus: Focus, effort: Effort) -> None:
        graph, borders = block.graph, block.borders
        self._fastest = block.peak
        self._closed = computed_from_source(block) if borders.source != NONE else frozenset[int]()
        users = graph.users()
        slow = {i: focus.heavy.get(i, is_slow(graph, i, target, rates)) for members in graph.members for i in members}
        heavy = {i: known and self._may_be_slow(block, users, i, target) for i, known in slow.items()}
        super().__init__(graph, block.prerequisites, target, rates, replace(focus, heavy=heavy), effort, borders)
        self._pace = Pace(graph, target, self._modes, self._fastest)  # parts of kernels lie around anchors elsewhere
        self._toll = block.toll
        self._shared = block.shared
        self._first = {m.number: self._first_anchors(m) for m in self._modes if block.borders.source != NONE}
        self.reached: dict[ModeKey, frozenset[Position]] = {}
        """What kernels carry over the target, once built (`eqsat.bounds.states.Carried`)."""
        self.anchored = NONE
        """The e-node that a kernel needs that holds the source and is built around an anchor below it."""
        self.light: ExtractionProblem | None = None
        """The problem once built, the target computed inside a kernel that is not built around an anchor below it."""

    def _may_be_slow(self, block: Block, users: Sequence[Sequence[int]], index: int, target: Target) -> bool:
        """Whether kernels that an operator opens may be taken to be bound by operations (`eqsat.bounds.blocks.slow_kernels`)."""
        graph, borders = block.graph, block.borders
        source = graph.owner[borders.source] if borders.source != NONE else NONE
        needs_source = not self._closed.isdisjoint(graph.operations[index].inputs)
        needed = None if isinstance(block.prerequisites, NoPrerequisites) else {source} if needs_source else set[int]()
        return held_across(graph, users, index, target, needed).isdisjoint((source, borders.target))

    def build(self, most_nodes: int) -> ExtractionProblem | None:
        problem = super().build(most_nodes)
        name = ("light", self._borders.target)
        if problem is not None and name in self._problem.numbers:
            self.light = replace(problem, roots=(self._problem.key(*name),))
        return problem

    @property
    def charges(self) -> bool:
        """Whether no other kernel is the first to hold the source where one is built around an anchor below it."""
        source, prerequisites = self._borders.source, self._prerequisites
        return source != NONE and isinstance(prerequisites, BlockPrerequisites) and prerequisites.once(source)

    def groups(self, choice: Mapping[int, int]) -> list[ChosenGroup]:
        """The kernels of a choice, or the parts of them here; that with the target computes it for the block above."""
        return chosen_groups(self._problem, choice, ("written", "made"))

    def _may_open(self, mode: Mode, index: int) -> bool:
        if mode.anchored and index == self._borders.source:  # what that opens is carried
            return False
        operation = self._graph.operations[index]
        fits = operation.row_bytes <= self._target.on_chip_bytes
        others = (t for t in self._target.templates if t is not mode.template)
        if mode.anchored and fits and any(holds_kernels_around(t, mode.template, operation.labels) for t in others):
            return False
        several = mode.anchored and sum(s.once for s in mode.template.stages) > 1
        if several and self._fastest > self._target.peak(operation.dtype):  # whose rate may be that of the others
            return not mode.heavy
        return super()._may_open(mode, index)

    def _alone(self, cls: int, index: int) -> None:
        problem, rates, graph = self._problem, self._rates, self._graph
        if index == self._borders.source:
            self.anchored = len(problem.owner)
            problem.add(problem.key("anchored", cls), [], 0.0)
            alone = problem.key("alone", cls)
            problem.add(alone, self._implied(index), self._toll)
            problem.add(problem.key("held", cls), [alone], 0.0)
            problem.add(problem.key("written", cls), [alone], rates.byte * graph.bytes[cls])
        elif cls == self._borders.target:
            if self._opens_slow(index):  # which is among the states
                return
            kernel = self._readers.alone
            below = [self._read(c, self._uncharged(c, kernel(c, index))) for c in graph.operations[index].inputs]
            labels = graph.operations[index].labels
            anchor = any(m.anchored and m.opens(labels) for m in self._modes)
            self._makes(cls, [*self._implied(index), *below], rates.operator, light=not anchor)
        else:
            super()._alone(cls, index)

    def _opens_slow(self, index: int) -> bool:
        """Whether kernels that hold nothing of what an operator is computed from are opened by it and bound by operations."""
        labels = self._graph.operations[index].labels
        stages = (s for t in self._target.templates for s in t.stages if s.accepts & labels)
        slow = (m for m in self._modes if m.heavy and len(m.required) == 1 and m.opens(labels))
        return any(self._may_open(m, index) for m in slow) and all(s.once and s.required for s in stages)

    def _makes(self, cls: int, below: Sequence[int], cost: float, *, light: bool) -> None:
        """A way to compute the target inside a kernel, which is not built around an anchor below it if ``light``."""
        problem = self._problem
        problem.add(problem.key("made", cls), below, cost)
        if light:
            problem.add(problem.key("light", cls), below, cost)

    def _reader(self, mode: Mode, cls: int, index: int, kernel: KernelId) -> ReadBy:
        found = super()._reader(mode, cls, index, kernel)
        return self._uncharged(cls, found) if self._may_reach_beyond(mode, index) else found

    def _uncharged(self, cls: int, reader: ReadBy) -> ReadBy:
        """The reader of a class; of a shared one, if its anchor is not known, any, which pays nothing for that."""
        return EVERY if cls in self._shared and reader.kernel.anchor == NONE else reader

    def _may_reach_beyond(self, mode: Mode, index: int) -> bool:
        """Whether a kernel of a mode, of unknown anchor, may hold an operator and others of a block that pays for it."""
        if mode.anchored:
            return True
        return self._borders.source != NONE and (not self._borders.once or index in self._first[mode.number])

    def _price_of_read(self, cls: int, kernel: ReadBy) -> float:
        """A class that other blocks read, too, is paid for here by kernels that no other block charges
        (`eqsat.bounds.blocks.shared_reads`)."""
        others_charge = kernel in (EVERY, _FRAGMENT) or kernel.kernel.anchor == self._borders.source != NONE
        usual = super()._price_of_read(cls, kernel)
        return usual if others_charge else self._shared.get(cls, usual)

    def _is_alone(self, reach: Reach, cls: int, state: State) -> bool:
        """Never the source, which costs a kernel alone more than one that was built around an anchor."""
        source = self._borders.source
        return (source == NONE or cls != self._graph.owner[source]) and super()._is_alone(reach, cls, state)

    def _add_step(self, reach: Reach, step: Step) -> None:
        index, state, _ = step
        if index == self._borders.source:
            mode, cls, anchor = reach.mode, self._graph.owner[index], state.kernel.anchor
            inside, held = self._state(mode, cls, state), self._problem.key("held", cls)
            below = self._implied(index, state.kernel if mode.heavy else None)
            if mode.anchored and state.filled > 0:  # for the anchor below
                self._problem.add(inside, [*below, self._problem.key("anchored", cls)], 0.0)
                self._problem.add(held, [inside], 0.0)
            elif mode.heavy:  # which is never the first, and reads for nothing below
                self._problem.add(inside, [*below, held], 0.0)
            elif anchor in (NONE, index) or anchor in self._first[mode.number]:
                self._problem.add(inside, below, self._toll)
                self._problem.add(held, [inside], 0.0)
            else:
                self._problem.add(inside, [*below, held], self._toll)
        else:
            super()._add_step(reach, step)

    def _outside(self, mode: Mode, cls: int, index: int, kernel: KernelId) -> int:
        sole = self._borders.once and kernel.anchor == self._borders.source
        if sole and cls in self._closed:  # the kernel would wait for itself
            return self._problem.key("never")
        return super()._outside(mode, cls, index, kernel)

    def _first_anchors(self, mode: Mode) -> frozenset[int]:
        """Operators of which a kernel may hold one and the source, the first of all that hold that: what such a kernel reads is
        not computed from the source."""
        graph, source = self._graph, self._borders.source
        given = {graph.owner[source]}.union(c for c in range(len(graph.members)) if c not in self._closed)
        inside = computed_from(graph, mode, given, source)
        members = ((i, graph.operations[i]) for members in graph.members for i in members)
        return frozenset(i for i, o in members if mode.takes(o) and inside.issuperset(o.inputs))

    def _taps(self, reach: Reach) -> None:
        super()._taps(reach)
        if self._borders.source != NONE:
            cls, problem = self._graph.owner[self._borders.source], self._problem
            for state in reach.states.get(cls, ()):
                problem.add(problem.key("tap", reach.mode.number, cls), [self._state(reach.mode, cls, state)], 0.0)

    def _roots(self, reaches: Sequence[Reach]) -> tuple[int, ...]:
        top, problem = self._borders.target, self._problem
        if top == NONE:
            return super()._roots(reaches)
        for reach in reaches:
            mode = reach.mode
            # What is computed in a heavy kernel beside its anchor is not the target, which needs that.
            found = [
                s
                for s in reach.states.get(top, {})
                if (s.filled or not mode.heavy) and (mode.number, s.stage, s.filled) not in self._borders.unfinished
            ]
            for state in found:
                light = not (mode.anchored and state.filled)
                self._makes(top, [self._state(mode, top, state)], 0.0, light=light)
            pairs = {Position(stage, filled) for stage, filled, _ in found if filled}
            tap = ("tap", mode.number, top)
            if tap in problem.numbers:
                self._makes(top, [problem.key(*tap)], 0.0, light=True)
                pairs.add(Position(len(mode.template.stages) - 1, len(mode.required)))
            if pairs and mode.required:
                self.reached[mode.key] = frozenset(pairs)
        self._makes(top, [self._fragment(top)], 0.0, light=True)
        return (problem.key("made", top),)

    def _fragment(self, cls: int) -> int:
        """Class of a value inside a kernel whose required operators are beyond the target."""
        problem, graph = self._problem, self._graph
        stages = [s for t in self._target.templates for s in t.stages if not s.required]
        stack = [cls]
        number = problem.key("fragment", cls)
        seen = {cls}
        while stack:
            own = stack.pop()
            for index in graph.members[own]:
                operation = graph.operations[index]
                fits = operation.is_view or any(s.accepts & operation.labels for s in stages)
                if not fits or operation.has_parts:
                    continue
                below: list[int] = []
                for c in operation.inputs:
                    inside = problem.key("fragment", c)
                    below.append(inside)
                    if c not in seen:
                        seen.add(c)
                        stack.append(c)
                        problem.add(inside, [self._read_by_fragment(c)], 0.0)
                cost = self._toll if index == self._borders.source else 0.0
                problem.add(problem.key("fragment", own), [*self._implied(index), *below], cost)
                if index == self._borders.source:
                    problem.add(problem.key("held", own), [problem.key("fragment", own)], 0.0)
        return number

    def _read_by_fragment(self, cls: int) -> int:
        """The class as a fragment reads it; where leaves are told apart, its operations may have paid for them already."""
        if not self._readers.told_apart(cls):
            return self._read(cls, EVERY)
        return self._read(cls, _FRAGMENT) if self._graph.members[cls] else self._problem.key("written", cls)
