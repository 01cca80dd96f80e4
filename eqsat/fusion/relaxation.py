"""A lower bound over all programs of an e-graph and all kernels of a target, without listing the kernels.

The choice of kernels is relaxed to a DAG extraction. A class can be *written* (in memory), *read* (by a kernel that pays for
its bytes) or be in a *state*: inside a kernel of one template, at one stage, with the required stages up to one filled. An
operator leads from states of its inputs to a state of its class, and a state that fills all required stages leads to
"written". What kernels must pay is shared out among these steps, so that no kernel pays less than its steps:

- the launch at the operator that fills the first required stage that takes one operator only (a kernel has one of them, and
  operators of such stages are computed once), or else where the first value is written;
- bytes written where a class is written, bytes read once for each class, however many kernels read it;
- operations at each operator, instead of the bytes, in kernels around an operator that is bound by its operations.

Every step of an operator also needs *computed*, its class, and *use*, the operator: e-nodes without a kernel around them, with
the leaves that any kernel with the operator reads, and the time of its operations. They change the optimum little and its linear
relaxation much, which would otherwise take a part of each of several states, and a part of what they read.

States forget which other values the kernel holds, so the optimum of the relaxation is never above that of the problem.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.errors import EqsatError
from eqsat.extract import ExtractionProblem, extract
from eqsat.fusion.modes import Mode, distinct_templates, mode_of
from eqsat.fusion.operation import FusionGraph, Operation
from eqsat.fusion.rates import Rates, rates_of
from eqsat.ir.operator import Kind

_MOST_NODES = 400_000
_LOADING_S = 1.5e-5
"""Seconds for each e-node that an extraction takes whatever its limit."""


def relaxed_bound(graph: FusionGraph, target: Target, model: CostModel, *, time_limit_s: float) -> float | None:
    """A lower bound on the cost of every program and its kernels, ``None`` if the cost model or target has none."""
    rates = rates_of(model, target)
    if rates is None or target.fusion != "cones" or target.free_kinds != {"view"}:
        return None
    started = time.perf_counter()
    built = _Relaxation(graph, target, rates, started + time_limit_s / 2).build()
    if built is None:
        return None
    left = started + time_limit_s - time.perf_counter() - _LOADING_S * built.node_count
    if left <= 0:
        return None
    try:
        return extract(built, time_limit_s=left).lower_bound
    except EqsatError:
        return None


@dataclass
class _Problem:
    """An extraction problem in the making, its classes named by keys."""

    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    owner: list[int] = field(default_factory=list)
    children: list[tuple[int, ...]] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)

    def key(self, *key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def add(self, owner: int, children: Sequence[int], cost: float) -> None:
        self.owner.append(owner)
        self.children.append(tuple(dict.fromkeys(children)))
        self.cost.append(cost)


State = tuple[int, int]
"""Stage of a class inside a kernel, and how many of the required stages are filled."""


class _Relaxation:
    def __init__(self, graph: FusionGraph, target: Target, rates: Rates, deadline: float = float("inf")) -> None:
        self._deadline = deadline
        self._graph = graph
        self._target = target
        self._rates = rates
        self._problem = _Problem()
        self._usable = [
            o.name not in target.unsupported and "unwritable" not in o.labels and graph.owner[i] not in o.inputs
            for i, o in enumerate(graph.operations)
        ]
        self._leave_out_twins()
        heavy = (False, True) if rates.counts_operations else (False,)
        modes = [mode_of(n, t, h) for n, t in enumerate(distinct_templates(target.templates)) for h in heavy]
        self._peak = max((target.peak(o.dtype) for o in graph.operations), default=1.0)
        anchors = [target.peak(o.dtype) for o in graph.operations if o.kind is Kind.ANCHOR]
        self._anchor_peak = max(anchors, default=self._peak)
        self._modes = [m for m in modes if (m.anchored or not m.heavy) and self._possible(m)]
        self._around = {m.number: m.anchored and self._around_anchors(m) for m in self._modes}
        self._users: dict[int, list[int]] = {}
        for members in graph.members:
            for i in members:
                for c in graph.operations[i].inputs:
                    self._users.setdefault(c, []).append(i)

    def build(self) -> ExtractionProblem | None:
        """The relaxed problem, ``None`` if it is too large or time is up."""
        graph, problem = self._graph, self._problem
        for cls, members in enumerate(graph.members):
            written = problem.key("written", cls)
            problem.add(problem.key("read", cls), [written], self._rates.byte * graph.bytes[cls])
            if not members:
                problem.add(written, [], 0.0)
            for index in members:
                if self._usable[index]:
                    self._alone(cls, index)
        for mode in self._modes:
            self._kernels(mode)
            if len(problem.owner) > _MOST_NODES or time.perf_counter() > self._deadline:
                return None
        roots = tuple(problem.key("written", c) for c in graph.roots)
        return ExtractionProblem(len(problem.numbers), problem.owner, problem.children, problem.cost, roots)

    def _bound_by_operations(self, index: int) -> bool:
        graph, operation = self._graph, self._graph.operations[index]
        moved = sum(graph.bytes[c] for c in operation.inputs) + graph.bytes[graph.owner[index]]
        peak = self._target.peak(operation.dtype)
        return self._rates.counts_operations and operation.flops / peak > moved * self._rates.byte

    def _leave_out_twins(self) -> None:
        """Of operators that differ in the order of their inputs only, one is enough."""
        seen: set[tuple[object, ...]] = set()
        for i, o in enumerate(self._graph.operations):
            same = (self._graph.owner[i], o.name, o.labels, frozenset(o.inputs), o.flops, o.dtype, o.row_bytes)
            self._usable[i] = self._usable[i] and same not in seen
            if self._usable[i]:
                seen.add(same)

    def _implied(self, index: int, heavy: bool) -> list[int]:
        """What every kernel with an operator needs, whatever its template and stage."""
        graph, problem = self._graph, self._problem
        operation = graph.operations[index]
        computed = problem.key("computed", graph.owner[index])
        name = ("use", index, heavy)
        if name not in problem.numbers:
            use = problem.key(*name)
            problem.add(computed, [use], 0.0)
            below = [problem.key("computed", c) for c in operation.inputs if graph.members[c]]
            if not heavy and not operation.is_view:
                below += [problem.key("read", c) for c in operation.inputs if not graph.members[c]]
            problem.add(use, below, self._least_seconds(operation) if heavy else 0.0)
        return [computed, problem.key(*name)]

    def _least_seconds(self, operation: Operation) -> float:
        """Least time of an operator's operations in any kernel that is bound by them."""
        if not operation.flops:
            return 0.0
        taken = [m for m in self._modes if m.heavy and self._accepted(m, operation)]
        return operation.flops / max([self._target.peak(operation.dtype), *(self._rate(m, operation) for m in taken)])

    def _alone(self, cls: int, index: int) -> None:
        """A kernel of one operator."""
        problem, rates, operation = self._problem, self._rates, self._graph.operations[index]
        written = problem.key("written", cls)
        bound = self._bound_by_operations(index)
        below = self._implied(index, bound)
        if "projection" in operation.labels:
            problem.add(written, [*below, *(problem.key("written", c) for c in operation.inputs)], 0.0)
        elif operation.is_view:
            problem.add(written, [*below, *(problem.key("written", c) for c in operation.inputs)], rates.view)
        elif bound:
            seconds = operation.flops / self._target.peak(operation.dtype) - self._least_seconds(operation)
            cost = rates.launch + rates.operator + max(0.0, seconds)
            problem.add(written, [*below, *(problem.key("written", c) for c in operation.inputs)], cost)
        else:
            cost = rates.launch + rates.operator + rates.byte * self._graph.bytes[cls]
            problem.add(written, [*below, *(problem.key("read", c) for c in operation.inputs)], cost)

    def _kernels(self, mode: Mode) -> None:
        """States of all classes in kernels of one template, and the steps between them."""
        graph = self._graph
        states: dict[int, dict[State, None]] = {}
        seen: set[tuple[int, State, int]] = set()
        work = [i for members in graph.members for i in members if self._usable[i]]
        while work and time.perf_counter() < self._deadline:
            index = work.pop()
            cls = graph.owner[index]
            for state, carried in self._steps(mode, index, states):
                if (index, state, carried) in seen:
                    continue
                seen.add((index, state, carried))
                if state not in states.setdefault(cls, {}):
                    states[cls][state] = None
                    work.extend(i for i in self._users.get(cls, ()) if self._usable[i])
        complete = len(mode.required)
        useful = self._useful(seen, states, complete)
        states = {cls: {s: None for s in found if (cls, s) in useful} for cls, found in states.items()}
        for index, state, carried in sorted(seen):
            if (graph.owner[index], state) in useful:
                self._add_step(mode, index, state, carried, states)
        for cls, found in states.items():
            for state in found:
                if state[1] == complete:
                    self._write(mode, cls, self._state(mode, cls, state))
        if mode.template.several and not mode.anchored:
            self._taps(mode, states)

    def _useful(
        self, steps: Iterable[tuple[int, State, int]], states: dict[int, dict[State, None]], complete: int
    ) -> set[tuple[int, State]]:
        """States that a kernel of which all required stages are filled can contain."""
        graph = self._graph
        leading: dict[tuple[int, State], list[tuple[int, int]]] = {}
        for index, state, carried in steps:
            leading.setdefault((graph.owner[index], state), []).append((index, carried))
        stack = [(cls, s) for cls, found in states.items() for s in found if s[1] == complete]
        useful = set(stack)
        while stack:
            key = stack.pop()
            k = key[1][0]
            for index, carried in leading.get(key, ()):
                for c in graph.operations[index].inputs:
                    for s in states.get(c, ()):
                        if s[0] <= k and s[1] <= carried and (c, s) not in useful:
                            useful.add((c, s))
                            stack.append((c, s))
        return useful

    def _state(self, mode: Mode, cls: int, state: State) -> int:
        return self._problem.key("state", mode.number, mode.heavy, cls, *state)

    def _write(self, mode: Mode, cls: int, inside: int) -> None:
        problem, rates = self._problem, self._rates
        cost = 0.0 if mode.heavy else rates.byte * self._graph.bytes[cls]
        if mode.anchored:
            problem.add(problem.key("written", cls), [inside], cost)
            return
        first = problem.key("first", mode.number, cls)
        problem.add(first, [inside], cost + rates.launch)
        problem.add(problem.key("written", cls), [first], 0.0)

    def _steps(self, mode: Mode, index: int, states: dict[int, dict[State, None]]) -> Iterator[tuple[State, int]]:
        """States that an operator can reach, each with the count of filled stages of the input that it continues (-1: none)."""
        operation = self._graph.operations[index]
        if "multiple" in operation.labels or "projection" in operation.labels:
            return
        inner = {s for c in operation.inputs for s in states.get(c, ())}
        if operation.is_view:
            for state in inner:
                yield state, state[1]
            return
        required = mode.required
        for k in self._stages(mode, operation, {0, *(j for j, _ in inner)}):
            stage = mode.template.stages[k]
            if stage.row_fits and "row" in operation.labels and operation.row_bytes > self._target.on_chip_bytes:
                continue
            if k in required and mode.anchored and k == required[0] and mode.heavy != self._bound_by_operations(index):
                continue
            counts = {-1} if stage.entry else {-1, *(h for j, h in inner if j <= k)}
            for carried in counts:
                filled = max(carried, 0)
                if k in required:
                    before = required.index(k)
                    # Single operators lie on one path: those of earlier stages are among what this one reads.
                    if filled < before and all(mode.template.stages[i].once for i in required[:before]):
                        continue
                    if filled > before and stage.once:
                        continue
                    filled = max(filled, before + 1)
                yield (k, filled), carried

    @staticmethod
    def _stages(mode: Mode, operation: Operation, starts: set[int]) -> list[int]:
        """Stages that may take an operator whose inputs reach one of ``starts``: the first that accepts it, and later ones
        only where that may refuse it."""
        found: set[int] = set()
        for start in starts:
            for k, stage in enumerate(mode.template.stages[start:], start):
                if stage.accepts & operation.labels:
                    found.add(k)
                    if not (stage.once or stage.entry or stage.same_size or stage.row_fits):
                        break
        return sorted(found)

    def _add_step(
        self, mode: Mode, index: int, state: State, carried: int, states: dict[int, dict[State, None]]
    ) -> None:
        """The e-nodes of an operator that reaches a state: one for each input that may be the one it continues."""
        graph, problem, rates = self._graph, self._problem, self._rates
        operation, own = graph.operations[index], graph.owner[index]
        cost = rates.view if operation.is_view else rates.operator
        if mode.heavy:
            cost += max(0.0, operation.flops / self._rate(mode, operation) - self._least_seconds(operation))
        k = state[0]
        required = mode.required
        if mode.anchored and not operation.is_view and k == required[0]:
            cost += rates.launch
        target = self._state(mode, own, state)
        below = self._implied(index, mode.heavy)
        if carried < 0:
            problem.add(target, [*below, *(self._outside(mode, c) for c in operation.inputs)], cost)
            return
        for c in operation.inputs:
            here = [s for s in states.get(c, ()) if s[1] == carried and s[0] <= k]
            if not here:
                continue
            others = [self._available(mode, d, k, carried, states) for d in operation.inputs if d != c]
            problem.add(target, [*below, self._exactly(mode, c, k, carried, states), *others], cost)

    def _rate(self, mode: Mode, operation: Operation) -> float:
        """Most operations a second of an operator inside a kernel: at the rate of the element type of the kernel's anchor."""
        if not self._around[mode.number]:
            return self._peak
        if operation.kind is Kind.ANCHOR and sum(s.once for s in mode.template.stages) == 1:
            return self._target.peak(operation.dtype)
        return self._anchor_peak

    def _possible(self, mode: Mode) -> bool:
        """Whether some operator can fill each required stage."""
        operations = self._graph.operations
        for n, k in enumerate(mode.required):
            accepts = mode.template.stages[k].accepts
            fit = (i for i, o in enumerate(operations) if self._usable[i] and accepts & o.labels)
            if not any(n or not mode.anchored or mode.heavy == self._bound_by_operations(i) for i in fit):
                return False
        return True

    def _around_anchors(self, mode: Mode) -> bool:
        """Whether every operator that can fill the first required stage is an anchor."""
        accepts = mode.template.stages[mode.required[0]].accepts
        return all(o.kind is Kind.ANCHOR for o in self._graph.operations if accepts & o.labels)

    def _outside(self, mode: Mode, cls: int) -> int:
        """Class of a value that a kernel reads from memory, or of a view there of such values."""
        problem, graph = self._problem, self._graph
        own = problem.key("written" if mode.heavy else "read", cls)
        views = [i for i in graph.members[cls] if self._is_plain_view(i)]
        if not views:
            return own
        name = ("seen", mode.heavy, cls)
        if name not in problem.numbers:
            number = problem.key(*name)
            problem.add(number, [own], 0.0)
            for index in views:
                inner = [self._outside(mode, c) for c in graph.operations[index].inputs]
                problem.add(number, inner, self._rates.view)
        return problem.key(*name)

    def _is_plain_view(self, index: int) -> bool:
        operation = self._graph.operations[index]
        return self._usable[index] and operation.is_view and operation.labels.isdisjoint(("projection", "multiple"))

    def _exactly(self, mode: Mode, cls: int, k: int, filled: int, states: dict[int, dict[State, None]]) -> int:
        """Class of a value inside a kernel, at most at stage ``k``, with exactly so many required stages filled."""
        name = ("exactly", mode.number, mode.heavy, cls, k, filled)
        if name not in self._problem.numbers:
            number = self._problem.key(*name)
            for s in states[cls]:
                if s[0] <= k and s[1] == filled:
                    self._problem.add(number, [self._state(mode, cls, s)], 0.0)
        return self._problem.key(*name)

    def _available(self, mode: Mode, cls: int, k: int, filled: int, states: dict[int, dict[State, None]]) -> int:
        """Class of a value in memory or inside a kernel, there at most at stage ``k`` with at most ``filled`` stages filled."""
        inner = [s for s in states.get(cls, ()) if s[0] <= k and s[1] <= filled]
        if not inner:
            return self._outside(mode, cls)
        name = ("available", mode.number, mode.heavy, cls, k, filled)
        if name not in self._problem.numbers:
            number = self._problem.key(*name)
            self._problem.add(number, [self._outside(mode, cls)], 0.0)
            for s in inner:
                self._problem.add(number, [self._state(mode, cls, s)], 0.0)
        return self._problem.key(*name)

    def _taps(self, mode: Mode, states: dict[int, dict[State, None]]) -> None:
        """Further values of a kernel whose first value is written: they launch nothing."""
        graph, problem, rates = self._graph, self._problem, self._rates
        complete = len(mode.required)
        reached = {c for c, found in states.items() if any(h == complete for _, h in found)}
        for cls in sorted(reached):
            tap = problem.key("tap", mode.number, cls)
            problem.add(tap, [problem.key("first", mode.number, cls)], 0.0)
            problem.add(problem.key("written", cls), [tap], rates.byte * graph.bytes[cls])
            for index in graph.members[cls]:
                operation = graph.operations[index]
                if not self._usable[index] or not self._accepted(mode, operation):
                    continue
                computed = graph.inputs_of(index)
                if not computed or not reached.issuperset(computed):
                    continue
                leaves = [problem.key("read", c) for c in operation.inputs if not graph.members[c]]
                cost = rates.view if operation.is_view else rates.operator
                problem.add(tap, [*(problem.key("tap", mode.number, c) for c in computed), *leaves], cost)

    @staticmethod
    def _accepted(mode: Mode, operation: Operation) -> bool:
        return operation.is_view or any(s.accepts & operation.labels for s in mode.template.stages)
