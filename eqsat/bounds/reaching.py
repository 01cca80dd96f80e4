"""Which states classes can be in inside kernels of one template, and the steps that lead to them."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.relaxed_templates import Mode
from eqsat.bounds.states import ANY, NONE, WHOLE, Borders, FromAnchor, KernelId, Reach, State, Step, latest_stage
from eqsat.cost.target import Target
from eqsat.extract import Effort
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.ir.order import reached

_States = dict[int, dict[State, None]]


_STEPS_TO_REACH = 15
"""For each operation and each step between states: what finding them takes."""


class Reaching:
    """All states of one mode. ``users``: those of the graph; ``may_open(mode, index)``: whether an operator may fill the first
    required stage."""

    def __init__(
        self,
        graph: FusionGraph,
        users: Sequence[Sequence[int]],
        target: Target,
        mode: Mode,
        may_open: Callable[[Mode, int], bool],
        prerequisites: Prerequisites,
        borders: Borders = WHOLE,
    ) -> None:
        self.borders = borders
        self.carried = sorted(borders.carried.get(mode.key, ()))
        self.graph = graph
        self.prerequisites = prerequisites
        self.users = users
        self.target = target
        self.mode = mode
        self.rank = prerequisites.rank
        # Where kernels are not told apart, and beside anchors that open heavy ones, what does not come from the anchor is shared.
        entry = mode.anchored and mode.template.stages[mode.required[0]].entry
        self.apart_late = mode.detail < 2 or (mode.heavy and entry)
        self._inner = [self._accepted(i, once=False) for i in range(len(graph.operations))]
        self._outer = [self._inner[i] or self._accepted(i, once=True) for i in range(len(graph.operations))]
        self.openers = dict.fromkeys(
            i
            for members in graph.members
            for i in members
            if mode.required
            and (
                (mode.opens(graph.operations[i].labels) and may_open(mode, i)) or (i == borders.source and self.carried)
            )
        )

    def run(self, effort: Effort) -> Reach:
        """What is found within ``effort``."""
        states: _States = {}
        steps: list[Step] = []
        from_anchor: FromAnchor = {}
        every = [i for members in self.graph.members for i in members]
        apart = self.mode.known_by_opener or (self.mode.anchored and self.mode.detail)
        for anchor in self.openers if apart else [NONE]:
            if effort.over():
                break
            known, around = len(steps), _Around(self, anchor, from_anchor)
            region = self._region(anchor) if anchor != NONE else every
            around.explore(region)
            for cls, own in around.taken(steps).items():
                states.setdefault(cls, {}).update(own)
            effort.spend(_STEPS_TO_REACH * (len(region) + len(steps) - known))
        return Reach(self.mode, states, tuple(sorted(steps)), from_anchor)

    def _accepted(self, index: int, *, once: bool) -> bool:
        operation = self.graph.operations[index]
        if operation.has_parts:
            return False
        stages = self.mode.template.stages
        return operation.is_view or any(s.once == once and s.accepts & operation.labels for s in stages)

    def _region(self, anchor: int) -> list[int]:
        """Operators that a kernel around ``anchor`` may hold: those behind it, and those that they or it read."""
        graph = self.graph
        sole = self.borders.once and anchor == self.borders.source
        apart = self.mode.known_by_opener and not sole

        def users(index: int) -> Iterator[int]:
            for user in self.users[graph.owner[index]]:
                if self._outer[user] and not (apart and self.mode.opens(graph.operations[user].labels)):
                    yield user

        def operands(index: int) -> Iterator[int]:
            return (i for i in graph.operands(index) if self._inner[i])

        return sorted(reached(reached((anchor,), users), operands), reverse=True)


class _Around:
    """The states of kernels around ``anchor``, or of all kernels if that is `NONE`."""

    def __init__(self, general: Reaching, anchor: int, from_anchor: FromAnchor) -> None:
        self._general = general
        self._graph = general.graph
        self._mode = general.mode
        self._borders = general.borders
        self._prerequisites = general.prerequisites
        self._anchor = anchor
        self._from_anchor = from_anchor
        self._states: _States = {}
        self._seen: set[Step] = set()

    def explore(self, operations: Sequence[int]) -> None:
        """Finds all states that ``operations`` lead to, and the steps."""
        graph, rank = self._graph, self._general.rank
        inside = set(operations)
        waiting = set(operations)
        work = [(rank[graph.owner[i]], i) for i in operations]
        heapq.heapify(work)
        while work:
            index = heapq.heappop(work)[1]
            waiting.discard(index)
            cls = graph.owner[index]
            for state, carried in list(self._steps(index)):
                changed = self._passed(index, state, carried)
                self._seen.add(Step(index, state, carried))
                if state in self._states.setdefault(cls, {}) and not changed:
                    continue
                self._states[cls][state] = None
                for user in inside.intersection(self._general.users[cls]) - waiting:
                    waiting.add(user)
                    heapq.heappush(work, (rank[graph.owner[user]], user))

    def taken(self, steps: list[Step]) -> _States:
        """The states that whole kernels contain; what leads to them is added to ``steps``."""
        graph, states, anchor = self._graph, self._states, self._anchor
        leading: dict[tuple[int, State], list[Step]] = {}
        for step in self._seen:
            leading.setdefault((graph.owner[step.operation], step.state), []).append(step)
        complete, top = len(self._mode.required), self._borders.target
        ends = [(c, s) for c, found in states.items() for s in found if s.filled == complete or (c == top and s.filled)]
        if anchor == NONE or not self._tells_roots():
            useful = self._useful(leading, ends)
            steps += [step for key, found in leading.items() if key in useful for step in found]
            return {c: {s: None for s in found if (c, s) in useful} for c, found in states.items()}
        each: _States = {}
        for root in dict.fromkeys(c for c, _ in ends):
            kernel = KernelId(anchor, root)
            useful = sorted(self._useful(leading, [end for end in ends if end[0] == root]))
            for cls, state in useful:
                state = state._replace(kernel=kernel)
                each.setdefault(cls, {})[state] = None
            for key in useful:
                steps += [step._replace(state=key[1]._replace(kernel=kernel)) for step in leading.get(key, ())]
        return each

    def _passed(self, index: int, state: State, carried: int) -> bool:
        """Notes what a kernel has computed from its anchor when a step was taken; returns whether that is less than was known."""
        own, filled, anchor = self._graph.owner[index], state.filled, self._anchor
        if anchor == NONE or not filled:
            return False
        passed = self._prerequisites.bit(own) if carried > 0 or index == anchor else 0
        if carried > 0:
            below = -1
            for c in self._graph.operations[index].inputs:
                if any(s.filled == carried for s in self._states.get(c, ())):
                    below &= self._from_anchor[anchor, c, carried]
            passed |= below
        known = self._from_anchor.get((anchor, own, filled), -1)
        self._from_anchor[anchor, own, filled] = known & passed
        return known & passed != known

    def _tells_roots(self) -> bool:
        """Whether kernels of one anchor are told apart by what they write; of large templates they would be too many."""
        mode = self._mode
        return mode.detail > 1 and not (mode.template.several or len(mode.required) > 1)

    def _useful(
        self, leading: Mapping[tuple[int, State], Sequence[Step]], ends: Iterable[tuple[int, State]]
    ) -> set[tuple[int, State]]:
        """States that a kernel that ends in one of ``ends`` can contain. ``leading``: class and state -> steps there."""
        return reached(ends, lambda end: (below for step in leading.get(end, ()) for below in self._below(step)))

    def _below(self, step: Step) -> Iterator[tuple[int, State]]:
        """The states that a step may read inside the kernel."""
        index = step.operation
        for c in self._graph.operations[index].inputs:
            latest = latest_stage(self._graph, self._mode, index, c, step.state.stage)
            yield from ((c, s) for s in self._states.get(c, ()) if s.stage <= latest and s.filled <= step.continued)

    def _steps(self, index: int) -> Iterator[tuple[State, int]]:
        """States that an operator can reach, each with the count of filled stages of the input that it continues."""
        graph, mode, operation, anchor = self._graph, self._mode, self._graph.operations[index], self._anchor
        if operation.has_parts:
            return
        if index == self._borders.source:
            if anchor in (index, NONE):
                for stage, filled in self._general.carried:
                    yield State(stage, filled, KernelId(anchor, NONE)), NONE
                if index == anchor and not mode.opens(operation.labels):
                    return
            elif self._borders.once:
                return
        inner = {s for c in operation.inputs for s in self._states.get(c, ())}
        if operation.is_view:
            for state in inner:
                yield state, state.filled
            return
        required = mode.required
        for k in self._stages(mode, operation, {0, *(s.stage for s in inner)}):
            stage = mode.template.stages[k]
            if (
                stage.row_fits
                and "row" in operation.labels
                and operation.row_bytes > self._general.target.on_chip_bytes
            ):
                continue
            if (
                mode.anchored
                and k == required[0]
                and not (index == anchor or (anchor == NONE and index in self._general.openers))
            ):
                continue
            near = {
                c: {s.filled for s in self._states.get(c, ()) if s.stage <= latest_stage(graph, mode, index, c, k)}
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
                known = filled or not (mode.anchored and self._general.apart_late)
                if self._readable(near, carried):
                    yield State(k, filled, KernelId(anchor, NONE) if known else ANY), carried

    def _readable(self, near: Mapping[int, set[int]], carried: int) -> bool:
        """Whether an operator can read all its inputs, from memory or inside the kernel.

        ``near``: for each input how many stages its states inside the kernel have filled.
        """
        anchor = self._anchor
        if anchor == NONE:
            return True
        if carried < 1:
            own = self._prerequisites.bit(self._graph.owner[anchor])
            return all(
                carried in found or not self._prerequisites.circular(c, anchor, own) for c, found in near.items()
            )
        apart = [c for c, found in near.items() if not any(1 <= f <= carried for f in found)]
        return any(
            not any(self._prerequisites.circular(d, anchor, self._from_anchor[anchor, c, carried]) for d in apart)
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
