"""A lower bound over all programs of an e-graph and all kernels of a target, without listing the kernels.

The choice of kernels is relaxed to a DAG extraction. A class can be *written* (in memory), *read* (by a kernel that pays for
its bytes) or be in a *state*: inside a kernel of one template, at one stage, with the required stages up to one filled. An
operator leads from states of its inputs to a state of its class, and a state that fills all required stages leads to
"written". What kernels must pay is shared out among these steps, so that no kernel pays less than its steps:

- the launch at the operator that fills the first required stage that takes one operator only (a kernel has one of them, and
  operators of such stages are computed once), or else where the first value is written;
- bytes written where a class is written, bytes read once for each class and set of kernels (`eqsat.bounds.readers`);
- operations at each operator, instead of the bytes, in kernels around an operator that is bound by its operations.

Every step of an operator also needs *computed*, its class, and *use*, the operator: e-nodes without a kernel around them, with
the leaves that any kernel with the operator reads, and the time of its operations. They change the optimum little and its linear
relaxation much, which would otherwise take a part of each of several states, and a part of what they read.

States forget which other values the kernel holds, but for the operator in the first stage that takes one only. So the optimum
of the relaxation is never above that of the problem.
"""

from collections.abc import Mapping, Sequence

from eqsat.bounds.focus import Focus, bound_by_operations
from eqsat.bounds.named_problem import ChosenGroup, InState, chosen_groups
from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.reaching import Reaching
from eqsat.bounds.readers import ReadBy, Readers
from eqsat.bounds.relaxed_templates import Mode, Pace, computed_from, distinct_templates, mode_of
from eqsat.bounds.states import ANY, NONE, WHOLE, Borders, KernelId, Reach, State, Step, latest_stage
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.extract import Effort, ExtractionProblem
from eqsat.extract.problem import NamedProblem
from eqsat.fusion.graph import FusionGraph

_STEPS_TO_ADD = 12
"""For each e-node of the problem: what adding it takes."""


class Relaxation:
    """``graph``: without operations that no kernel can hold (`eqsat.bounds.views`)."""

    def __init__(
        self,
        graph: FusionGraph,
        prerequisites: Prerequisites,
        target: Target,
        rates: Rates,
        focus: Focus,
        effort: Effort,
        borders: Borders = WHOLE,
    ) -> None:
        self.detail = focus.detail
        self._prerequisites = prerequisites
        self._borders = borders
        self._focus = focus
        self._effort = effort
        self._graph = graph
        self._target = target
        self._rates = rates
        self._problem = NamedProblem()
        both = (False, True) if rates.counts_operations else (False,)
        templates = distinct_templates(target.templates)
        modes = [mode_of(n, t, h, focus.detail) for n, t in enumerate(templates) for h in both]
        self._modes = [m for m in modes if (m.anchored or not m.heavy) and self._possible(m)]
        self._pace = Pace(graph, target, self._modes)

    def build(self, most_nodes: int) -> ExtractionProblem | None:
        """The relaxed problem, ``None`` if it has more than ``most_nodes`` e-nodes or the effort does not suffice."""
        graph, problem = self._graph, self._problem
        users = graph.users()
        reaches: list[Reach] = []
        for mode in self._modes:
            reaching = Reaching(graph, users, self._target, mode, self._may_open, self._prerequisites, self._borders)
            reaches.append(reaching.run(self._effort))
            if sum(len(r.steps) for r in reaches) > most_nodes:
                return None
        self._readers = Readers(graph, users, [r for r in reaches if not r.mode.heavy], self._focus)
        for cls, members in enumerate(graph.members):
            written = problem.key("written", cls)
            if not members:
                problem.add(written, [], 0.0)
            for index in members:
                self._alone(cls, index)
        for reach in reaches:
            known = len(problem.owner)
            self._kernels(reach)
            self._effort.spend(_STEPS_TO_ADD * (len(problem.owner) - known))
            if len(problem.owner) > most_nodes or self._effort.over():
                return None
        return problem.finished(self._roots(reaches))

    def _roots(self, reaches: Sequence[Reach]) -> tuple[int, ...]:
        """The classes to derive, of a graph whose states are ``reaches``."""
        return tuple(self._problem.key("written", c) for c in self._graph.roots)

    def groups(self, choice: Mapping[int, int]) -> list[ChosenGroup]:
        """The kernels of a choice for the relaxed problem; they may compute some classes by several operations."""
        return chosen_groups(self._problem, choice)

    def _may_open(self, mode: Mode, index: int) -> bool:
        """Whether an operator may be the first required one of a kernel: each is either in heavy kernels or in others."""
        if not mode.anchored:
            return True
        heavy = self._focus.heavy.get(index)
        bound = self._bound_by_operations(index, ends=len(mode.required) == 1) if heavy is None else heavy
        return mode.heavy == bound

    def _read(self, cls: int, kernel: ReadBy) -> int:
        """The class, read from memory by a kernel."""
        problem, name = self._problem, ("read", cls, kernel)
        if name not in problem.numbers:
            number = problem.key(*name)
            problem.add(number, [problem.key("written", cls)], self._price_of_read(cls, kernel))
        return problem.key(*name)

    def _price_of_read(self, cls: int, kernel: ReadBy) -> float:
        return self._rates.byte * self._graph.bytes[cls]

    def _bound_by_operations(self, index: int, *, ends: bool = True) -> bool:
        return bound_by_operations(self._graph, index, self._target, self._rates, ends=ends)

    def _implied(self, index: int, heavy: KernelId | None = None) -> list[int]:
        """What every kernel with an operator needs, whatever its template and stage; ``heavy``: which kernel, if it is bound by
        operations, as each of those pays for all of its own."""
        graph, problem = self._graph, self._problem
        operation = graph.operations[index]
        computed = problem.key("computed", graph.owner[index])
        name = ("use", index, heavy if operation.flops or heavy is None else ANY)
        if name not in problem.numbers:
            use = problem.key(*name)
            problem.add(computed, [use], 0.0)
            below = [problem.key("computed", c) for c in operation.inputs if graph.members[c]]
            if heavy is None:
                below += [self._read(c, kernel) for c, kernel in self._readers.always(index)]
            problem.add(use, below, 0.0 if heavy is None else self._pace.least_seconds(operation))
        return [computed, problem.key(*name)]

    def _alone(self, cls: int, index: int) -> None:
        """A kernel of one operator."""
        problem, rates, operation = self._problem, self._rates, self._graph.operations[index]
        written = problem.key("written", cls)
        bound = self._bound_by_operations(index)
        below = self._implied(index, KernelId(index, cls) if bound else None)
        if "projection" in operation.labels:
            problem.add(written, [*below, *(problem.key("written", c) for c in operation.inputs)], 0.0)
        elif operation.is_view:
            problem.add(written, [*below, *(problem.key("written", c) for c in operation.inputs)], rates.view)
        elif bound:
            seconds = operation.flops / self._target.peak(operation.dtype) - self._pace.least_seconds(operation)
            cost = rates.launch + rates.operator + max(0.0, seconds)
            problem.add(written, [*below, *(problem.key("written", c) for c in operation.inputs)], cost)
        else:
            cost = rates.launch + rates.operator + rates.byte * self._graph.bytes[cls]
            kernel = self._readers.alone
            problem.add(written, [*below, *(self._read(c, kernel(c, index)) for c in operation.inputs)], cost)

    def _kernels(self, reach: Reach) -> None:
        """The states of all classes in kernels of one template, and the steps between them."""
        mode = reach.mode
        for step in reach.steps:
            self._add_step(reach, step)
        for cls, found in reach.states.items():
            for state in found:
                if reach.writes(cls, state) and not self._is_alone(reach, cls, state):
                    self._write(mode, cls, self._state(mode, cls, state))
        if mode.template.several and not mode.anchored:
            self._taps(reach)

    def _is_alone(self, reach: Reach, cls: int, state: State) -> bool:
        return reach.is_alone(self._graph, cls, state)

    def _state(self, mode: Mode, cls: int, state: State) -> int:
        return self._problem.named(InState("state", mode.number, mode.heavy, cls, state))

    def _write(self, mode: Mode, cls: int, inside: int) -> None:
        problem, rates = self._problem, self._rates
        cost = 0.0 if mode.heavy else rates.byte * self._graph.bytes[cls]
        if mode.anchored:
            problem.add(problem.key("written", cls), [inside], cost)
            return
        first = problem.key("first", mode.number, cls)
        problem.add(first, [inside], cost + rates.launch)
        problem.add(problem.key("written", cls), [first], 0.0)

    def _add_step(self, reach: Reach, step: Step) -> None:
        """The e-nodes of an operator that reaches a state: one for each input that may be the one it continues."""
        graph, problem, rates, mode = self._graph, self._problem, self._rates, reach.mode
        index, state, carried = step
        operation, own = graph.operations[index], graph.owner[index]
        cost = rates.view if operation.is_view else rates.operator
        if mode.heavy:
            cost += max(0.0, operation.flops / self._pace.rate(mode, operation) - self._pace.least_seconds(operation))
        k = state.stage
        if mode.anchored and not operation.is_view and k == mode.required[0]:
            cost += rates.launch
        target = self._state(mode, own, state)
        kernel = state.kernel
        below = self._implied(index, kernel if mode.heavy else None)
        if carried == NONE:
            problem.add(target, [*below, *(self._outside(mode, c, index, kernel) for c in operation.inputs)], cost)
            return
        for c in operation.inputs:
            latest = latest_stage(graph, mode, index, c, k)
            if reach.inner(c, latest, carried, kernel) and self._same_size(reach, index, k, c, carried):
                others = [self._available(reach, d, step, c) for d in operation.inputs if d != c]
                inside = self._exactly(reach, c, latest, carried, kernel)
                if None not in others:
                    problem.add(target, [*below, inside, *(d for d in others if d is not None)], cost)

    def _same_size(self, reach: Reach, index: int, stage: int, cls: int, carried: int) -> bool:
        """Whether a stage takes an operator that continues ``cls``, by its size, if that is computed from the anchor."""
        graph, mode = self._graph, reach.mode
        held = mode.anchored and carried > 0 and mode.template.stages[stage].same_size
        return not held or graph.operations[index].is_view or graph.elements[cls] == graph.elements[graph.owner[index]]

    def _possible(self, mode: Mode) -> bool:
        """Whether some operator can fill each required stage, in the graph or beyond its borders."""
        operations = self._graph.operations
        if self._borders.carried.get(mode.key):
            return True
        for n, k in enumerate(mode.required):
            accepts = mode.template.stages[k].accepts
            fit = (i for i, o in enumerate(operations) if accepts & o.labels)
            if not (n and self._borders.target != NONE) and not any(n or self._may_open(mode, i) for i in fit):
                return False
        return True

    def _outside(self, mode: Mode, cls: int, index: int, kernel: KernelId) -> int:
        """Class of a value that a kernel with operator ``index`` reads from memory, or of a view there of such values."""
        problem, graph = self._problem, self._graph
        reader = None if mode.heavy else self._reader(mode, cls, index, kernel)
        own = problem.key("written", cls) if reader is None else self._read(cls, reader)
        views = graph.views_of(cls)
        if not views:
            return own
        name = ("seen", cls, reader)
        if name not in problem.numbers:
            number = problem.key(*name)
            problem.add(number, [own], 0.0)
            for view in views:
                inner = [self._outside(mode, c, index, kernel) for c in graph.operations[view].inputs]
                problem.add(number, inner, self._rates.view)
        return problem.key(*name)

    def _reader(self, mode: Mode, cls: int, index: int, kernel: KernelId) -> ReadBy:
        return self._readers.kernel(cls, index, mode, kernel)

    def _exactly(self, reach: Reach, cls: int, k: int, filled: int, kernel: KernelId) -> int:
        """Class of a value inside a kernel, at most at stage ``k``, with exactly so many required stages filled."""
        states = [self._state(reach.mode, cls, s) for s in reach.inner(cls, k, filled, kernel)]
        return self._problem.either(("exactly", reach.mode.number, reach.mode.heavy, cls, k, filled, kernel), states)

    def _available(self, reach: Reach, cls: int, step: Step, continued: int) -> int | None:
        """Class of a value that a step reads beside the one it continues, in memory or inside the kernel at most as far."""
        mode = reach.mode
        index, (stage, _, kernel), filled = step
        k = latest_stage(self._graph, mode, index, cls, stage)
        inner = reach.beside(cls, k, filled, kernel)
        passed = reach.from_anchor.get((kernel.anchor, continued, filled), 0)
        if self._prerequisites.circular(cls, kernel.anchor, passed):
            outside = None
            inner = [s for s in inner if s.filled]
        else:
            outside = self._outside(mode, cls, index, kernel)
        ways = [self._state(mode, cls, s) for s in inner] + ([] if outside is None else [outside])
        name = ("available", mode.number, mode.heavy, cls, k, filled, kernel, outside)
        return self._problem.either(name, ways) if ways else None

    def _taps(self, reach: Reach) -> None:
        """Further values of a kernel whose first value is written: they launch nothing, and read at least nothing."""
        graph, problem, rates, mode = self._graph, self._problem, self._rates, reach.mode
        borders = {self._borders.target, graph.owner[self._borders.source] if self._borders.source != NONE else NONE}
        reached = {c for c, found in reach.states.items() if c in borders or any(reach.writes(c, s) for s in found)}
        leaves = {c for c, members in enumerate(graph.members) if not members}
        beside = computed_from(graph, mode, leaves, self._borders.source) - leaves
        for cls in sorted(reached | beside):
            tap = problem.key("tap", mode.number, cls)
            if cls in reached:
                problem.add(tap, [problem.key("first", mode.number, cls)], 0.0)
                problem.add(problem.key("written", cls), [tap], rates.byte * graph.bytes[cls])
            for index in graph.members[cls]:
                operation = graph.operations[index]
                computed = graph.inputs_of(index)
                if not mode.takes(operation) or not (reached | beside).issuperset(computed):
                    continue
                cost = rates.view if operation.is_view else rates.operator
                below = self._implied(index)
                if beside.issuperset(computed):
                    inner = [problem.key("beside", mode.number, c) for c in computed]
                    problem.add(problem.key("beside", mode.number, cls), [*below, *inner], cost)
                for first in computed:
                    others = [self._held(mode, c, reached, beside) for c in computed if c != first]
                    problem.add(tap, [*below, problem.key("tap", mode.number, first), *others], cost)
                    if beside.isdisjoint(computed):
                        break

    def _held(self, mode: Mode, cls: int, reached: set[int], beside: set[int]) -> int:
        """Class of a value that a kernel with a first value computes, from that or from leaves."""
        name = mode.number, cls
        ways = [
            self._problem.key(kind, *name) for kind, found in (("tap", reached), ("beside", beside)) if cls in found
        ]
        return self._problem.either(("held", *name), ways)
