"""States of classes inside kernels of one template: what the relaxed problem of `eqsat.bounds.relaxation` is made of."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.relaxed_templates import Mode
from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph, Operation

NONE = -1

KernelId = tuple[int, int]
"""Which kernel: its anchor, the operator that opens the first required stage (`Mode.anchored`, `Mode.known_by_opener`), be it
filled already or not, and the class that it writes if it writes one only (`NONE`: none, or not known)."""

ANY: KernelId = (NONE, NONE)

State = tuple[int, int, KernelId]
"""Stage of a class inside a kernel, how many of the required stages are filled, and the kernel."""

Step = tuple[int, State, int]
"""An operator, the state of its class that it reaches, and how many stages the input that it continues has filled (`NONE` if it
continues none)."""

Carried = Mapping[tuple[int, bool], frozenset[tuple[int, int]]]
"""Number of a mode, and whether it is heavy -> stages and filled stages that a class may have in kernels of that mode."""


@dataclass(frozen=True, slots=True)
class Borders:
    """Where a graph is a part of a larger one, cut at classes that kernels may hold inside (`eqsat.bounds.blocks.block`).

    ``source``: an operation without inputs that stands for everything below, or `NONE`. ``carried``: what its class may be in
    kernels with required operators below. ``target``: the class above which the graph is cut, or `NONE`. ``once``: whether one
    kernel only holds the source, which is then known by it. ``unfinished``: number of a mode, stage and filled stages that the
    target cannot have, as nothing above would fill the others.
    """

    source: int = NONE
    carried: Carried = field(default_factory=dict)
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
    from_anchor: Mapping[tuple[int, int, int], int]
    """Anchor, class and filled stages -> the classes (as bits) that each such kernel has computed from the anchor by then."""

    def inner(self, cls: int, stage: int, filled: int, kernel: KernelId) -> list[State]:
        """States of a class with exactly ``filled`` stages that an operator at ``stage`` can continue."""
        return [s for s in self.states.get(cls, ()) if s[1] == filled and s[0] <= stage and s[2] in (kernel, ANY)]

    def beside(self, cls: int, stage: int, filled: int, kernel: KernelId) -> list[State]:
        """States of a class that an operator at ``stage`` can read where it continues another input with ``filled``."""
        return [s for s in self.states.get(cls, ()) if s[0] <= stage and s[1] <= filled and s[2] in (kernel, ANY)]

    def writes(self, cls: int, state: State) -> bool:
        """Whether a kernel may write a class that is in this state."""
        return state[1] == len(self.mode.required) and state[2][1] in (NONE, cls)


def latest_stage(graph: FusionGraph, mode: Mode, index: int, cls: int, stage: int) -> int:
    """The last stage from which an operator at ``stage`` may read a class: single operators read some stages as later inputs
    only."""
    stages = mode.template.stages
    if not stages[stage].once or index in graph.collapsed or graph.operations[index].is_view:
        return stage
    position = graph.operations[index].inputs.index(cls)
    before = range(max(stage - 1, 0), -1, -1)  # views of what is in memory are in stage 0
    return next((k for k in before if stages[k].from_input <= position), NONE)


def reach_of(
    graph: FusionGraph,
    users: Sequence[Sequence[int]],
    target: Target,
    mode: Mode,
    may_open: Callable[[Mode, int], bool],
    prerequisites: Prerequisites,
    deadline: float,
    borders: Borders = WHOLE,
) -> Reach:
    """All states of one mode. ``users``: those of the graph; ``may_open(mode, index)``: whether an operator may fill the first
    required stage."""
    return _Reaching(graph, users, target, mode, may_open, prerequisites, borders).run(deadline)


class _Reaching:
    def __init__(
        self,
        graph: FusionGraph,
        users: Sequence[Sequence[int]],
        target: Target,
        mode: Mode,
        may_open: Callable[[Mode, int], bool],
        prerequisites: Prerequisites,
        borders: Borders,
    ) -> None:
        self._borders = borders
        self._carried = sorted(borders.carried.get((mode.number, mode.heavy), ()))
        self._graph = graph
        self._prerequisites = prerequisites
        self._users = users
        self._target = target
        self._mode = mode
        self._rank = prerequisites.rank
        # Where kernels are not told apart, and beside anchors that open heavy ones, what does not come from the anchor is shared.
        entry = mode.anchored and mode.template.stages[mode.required[0]].entry
        self._apart_late = mode.detail < 2 or (mode.heavy and entry)
        self._inner = [self._accepted(i, once=False) for i in range(len(graph.operations))]
        self._outer = [self._inner[i] or self._accepted(i, once=True) for i in range(len(graph.operations))]
        self._openers = dict.fromkeys(
            i
            for members in graph.members
            for i in members
            if mode.required
            and (
                (mode.opens(graph.operations[i].labels) and may_open(mode, i))
                or (i == borders.source and self._carried)
            )
        )

    def run(self, deadline: float) -> Reach:
        states: dict[int, dict[State, None]] = {}
        steps: list[Step] = []
        from_anchor: dict[tuple[int, int, int], int] = {}
        every = [i for members in self._graph.members for i in members]
        apart = self._mode.known_by_opener or (self._mode.anchored and self._mode.detail)
        for anchor in self._openers if apart else [NONE]:
            if time.perf_counter() > deadline:
                break
            found, taken = self._around(self._region(anchor) if anchor != NONE else every, anchor, from_anchor)
            for cls, own in found.items():
                states.setdefault(cls, {}).update(own)
            steps.extend(taken)
        return Reach(self._mode, states, tuple(sorted(steps)), from_anchor)

    def _accepted(self, index: int, *, once: bool) -> bool:
        operation = self._graph.operations[index]
        if operation.has_parts:
            return False
        stages = self._mode.template.stages
        return operation.is_view or any(s.once == once and s.accepts & operation.labels for s in stages)

    def _region(self, anchor: int) -> list[int]:
        """Operators that a kernel around ``anchor`` may hold: those behind it, and those that they or it read."""
        graph = self._graph
        sole = self._borders.once and anchor == self._borders.source
        behind: dict[int, None] = {anchor: None}
        stack = [graph.owner[anchor]]
        while stack:
            for user in self._users[stack.pop()]:
                other = self._mode.known_by_opener and not sole and self._mode.opens(graph.operations[user].labels)
                if user not in behind and self._outer[user] and not other:
                    behind[user] = None
                    stack.append(graph.owner[user])
        found = dict(behind)
        work = list(behind)
        while work:
            for c in graph.operations[work.pop()].inputs:
                for i in graph.members[c]:
                    if i not in found and self._inner[i]:
                        found[i] = None
                        work.append(i)
        return sorted(found, reverse=True)

    def _around(
        self, operations: Sequence[int], anchor: int, from_anchor: dict[tuple[int, int, int], int]
    ) -> tuple[dict[int, dict[State, None]], list[Step]]:
        """States of the kernels around ``anchor``, and the steps to them."""
        graph = self._graph
        states: dict[int, dict[State, None]] = {}
        seen: set[Step] = set()
        inside = set(operations)
        waiting = set(operations)
        work = [(self._rank[graph.owner[i]], i) for i in operations]
        heapq.heapify(work)
        while work:
            index = heapq.heappop(work)[1]
            waiting.discard(index)
            cls = graph.owner[index]
            for state, carried in list(self._steps(index, states, anchor, from_anchor)):
                changed = self._passed(index, state, carried, anchor, states, from_anchor)
                seen.add((index, state, carried))
                if state not in states.setdefault(cls, {}) or changed:
                    states[cls][state] = None
                    for user in self._users[cls]:
                        if user in inside and user not in waiting:
                            waiting.add(user)
                            heapq.heappush(work, (self._rank[graph.owner[user]], user))
        leading: dict[tuple[int, State], list[tuple[int, int]]] = {}
        for index, state, carried in seen:
            leading.setdefault((graph.owner[index], state), []).append((index, carried))
        complete = len(self._mode.required)
        top = self._borders.target
        ends = [(c, s) for c, found in states.items() for s in found if s[1] == complete or (c == top and s[1])]
        if anchor == NONE or not self._tells_roots():
            useful = self._useful(leading, states, ends)
            kept = {c: {s: None for s in found if (c, s) in useful} for c, found in states.items()}
            return kept, [step for step in seen if (graph.owner[step[0]], step[1]) in useful]
        each: dict[int, dict[State, None]] = {}
        taken: list[Step] = []
        for root in dict.fromkeys(c for c, _ in ends):
            useful = self._useful(leading, states, [end for end in ends if end[0] == root])
            for c, (stage, filled, _) in sorted(useful):
                each.setdefault(c, {})[stage, filled, (anchor, root)] = None
            for index, state, carried in seen:
                if (graph.owner[index], state) in useful:
                    taken.append((index, (*state[:2], (anchor, root)), carried))
        return each, taken

    def _passed(
        self,
        index: int,
        state: State,
        carried: int,
        anchor: int,
        states: Mapping[int, dict[State, None]],
        from_anchor: dict[tuple[int, int, int], int],
    ) -> bool:
        """Notes what a kernel has computed from its anchor when a step was taken; returns whether that is less than was known."""
        own, filled = self._graph.owner[index], state[1]
        if anchor == NONE or not filled:
            return False
        passed = self._prerequisites.bit(own) if carried > 0 or index == anchor else 0
        if carried > 0:
            below = -1
            for c in self._graph.operations[index].inputs:
                if any(s[1] == carried for s in states.get(c, ())):
                    below &= from_anchor[anchor, c, carried]
            passed |= below
        known = from_anchor.get((anchor, own, filled), -1)
        from_anchor[anchor, own, filled] = known & passed
        return known & passed != known

    def _tells_roots(self) -> bool:
        """Whether kernels of one anchor are told apart by what they write; of large templates they would be too many."""
        mode = self._mode
        return mode.detail > 1 and not (mode.template.several or len(mode.required) > 1)

    def _useful(
        self,
        leading: Mapping[tuple[int, State], Sequence[tuple[int, int]]],
        states: Mapping[int, dict[State, None]],
        ends: Iterable[tuple[int, State]],
    ) -> set[tuple[int, State]]:
        """States that a kernel that ends in one of ``ends`` can contain. ``leading``: class and state -> operators that lead
        there, each with the filled stages that it continues."""
        graph = self._graph
        stack = list(ends)
        useful = set(stack)
        while stack:
            key = stack.pop()
            k = key[1][0]
            for index, carried in leading.get(key, ()):
                for c in graph.operations[index].inputs:
                    latest = latest_stage(graph, self._mode, index, c, k)
                    for s in states.get(c, ()):
                        if s[0] <= latest and s[1] <= carried and (c, s) not in useful:
                            useful.add((c, s))
                            stack.append((c, s))
        return useful

    def _steps(
        self,
        index: int,
        states: Mapping[int, dict[State, None]],
        anchor: int,
        from_anchor: Mapping[tuple[int, int, int], int],
    ) -> Iterator[tuple[State, int]]:
        """States that an operator can reach, each with the count of filled stages of the input that it continues."""
        graph, mode, operation = self._graph, self._mode, self._graph.operations[index]
        if operation.has_parts:
            return
        if index == self._borders.source:
            if anchor in (index, NONE):
                for stage, filled in self._carried:
                    yield (stage, filled, (anchor, NONE)), NONE
                if index == anchor and not mode.opens(operation.labels):
                    return
            elif self._borders.once:
                return
        inner = {s for c in operation.inputs for s in states.get(c, ())}
        if operation.is_view:
            for state in inner:
                yield state, state[1]
            return
        required = mode.required
        for k in self._stages(mode, operation, {0, *(s[0] for s in inner)}):
            stage = mode.template.stages[k]
            if stage.row_fits and "row" in operation.labels and operation.row_bytes > self._target.on_chip_bytes:
                continue
            if (
                mode.anchored
                and k == required[0]
                and not (index == anchor or (anchor == NONE and index in self._openers))
            ):
                continue
            near = {
                c: {s[1] for s in states.get(c, ()) if s[0] <= latest_stage(graph, mode, index, c, k)}
                for c in operation.inputs
            }
            starts = {NONE} if stage.entry else {NONE}.union(*near.values())
            for carried in starts:
                filled = max(carried, 0)
                if mode.known_by_opener:
                    filled = 1 if index == anchor else filled
                elif k in required:
                    before = required.index(k)
                    # Single operators lie on one path: those of earlier stages are among what this one reads.
                    if filled < before and all(mode.template.stages[i].once for i in required[:before]):
                        continue
                    if filled > before and stage.once:
                        continue
                    filled = max(filled, before + 1)
                known = filled or not (mode.anchored and self._apart_late)
                if self._readable(near, carried, anchor, from_anchor):
                    yield (k, filled, (anchor, NONE) if known else ANY), carried

    def _readable(
        self,
        near: Mapping[int, set[int]],
        carried: int,
        anchor: int,
        from_anchor: Mapping[tuple[int, int, int], int],
    ) -> bool:
        """Whether an operator can read all its inputs, from memory or inside the kernel.

        ``near``: for each input how many stages its states inside the kernel have filled.
        """
        if anchor == NONE:
            return True
        if carried < 1:
            own = self._prerequisites.bit(self._graph.owner[anchor])
            return all(
                carried in found or not self._prerequisites.circular(c, anchor, own) for c, found in near.items()
            )
        apart = [c for c, found in near.items() if not any(1 <= f <= carried for f in found)]
        return any(
            not any(self._prerequisites.circular(d, anchor, from_anchor[anchor, c, carried]) for d in apart)
            for c, found in near.items()
            if carried in found
        )

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
