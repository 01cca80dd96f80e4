"""The templates of a target as the relaxed problem sees them, and how fast operations are at most inside their kernels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqsat.cost.target import Target, Template
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.ir.operator import Kind


class ModeKey(NamedTuple):
    """Number of a mode's template, and whether it is heavy."""

    number: int
    heavy: bool


@dataclass(frozen=True, slots=True)
class Mode:
    """A template, for kernels around operators bound by operations (``heavy``) or for all others."""

    number: int
    template: Template
    heavy: bool
    required: tuple[int, ...]
    anchored: bool
    """Whether the first required stage takes one operator only, which pays the launch."""
    known_by_opener: bool
    """Whether there is one required stage, which takes many operators: then a kernel is known by one of those that open it, such
    that it computes its first value with no other of them behind that one."""

    detail: int

    @property
    def key(self) -> ModeKey:
        """What tells it from other modes."""
        return ModeKey(self.number, self.heavy)

    def opens(self, labels: frozenset[str]) -> bool:
        """Whether an operator with these labels can be the first one in the first required stage."""
        k = self.required[0]
        stages = self.template.stages
        return bool(stages[k].accepts & labels) and not any(s.accepts & labels for s in stages[:k] if not self.anchored)

    def takes(self, operation: Operation) -> bool:
        """Whether some stage takes an operator."""
        return operation.is_view or any(s.accepts & operation.labels for s in self.template.stages)


def mode_of(number: int, template: Template, heavy: bool, detail: int) -> Mode:
    """The mode of a template; ``detail`` as in `eqsat.bounds.focus.Focus`."""
    required, anchored = template.required, template.is_anchored
    return Mode(number, template, heavy, required, anchored, detail > 1 and len(required) == 1 and not anchored, detail)


def _covers(general: Template, special: Template) -> bool:
    """Whether the kernels of a template are all kernels of another with more stages at its end."""
    count = len(special.stages)
    return (
        len(general.stages) > count
        and general.stages[:count] == special.stages
        and not any(s.required for s in general.stages[count:])
        and general.several >= special.several
    )


def distinct_templates(templates: Sequence[Template]) -> list[Template]:
    """The templates without those whose kernels are all kernels of another."""
    return [t for t in templates if not any(_covers(other, t) for other in templates)]


def holds_kernels_around(general: Template, special: Template, labels: frozenset[str]) -> bool:
    """Whether the kernels of ``special`` around an operator with these labels, in its only required stage, are all kernels of
    ``general``, which has two stages, the last one required: before the operator, and from it on."""
    required = special.required
    if len(required) != 1 or len(general.stages) != 2 or general.several < special.several:
        return False
    first, last = general.stages
    before, behind = special.stages[: required[0]], special.stages[required[0] + 1 :]
    plain = not (first.once or first.required or first.entry or last.once or last.entry or last.same_size)
    plain = plain and not first.accepts & labels and not any("row" in s.accepts for s in (*before, *behind))
    return (
        plain
        and last.required
        and bool(last.accepts & labels)
        and all(s.accepts <= first.accepts for s in before)
        and all(s.accepts <= last.accepts for s in behind)
    )


def opened_by_anchors(graph: FusionGraph, mode: Mode) -> bool:
    """Whether every operator that can fill the first required stage is an anchor."""
    accepts = mode.template.stages[mode.required[0]].accepts
    return all(o.kind is Kind.ANCHOR for o in graph.operations if accepts & o.labels)


def unfinished(graph: FusionGraph, users: Sequence[Sequence[int]], mode: Mode, cls: int) -> set[tuple[int, int]]:
    """Stages and filled stages that a class through which all data flows cannot have in a kernel of a mode, as no operator beyond
    fills the next required stage.

    Only where required stages take one operator each: these lie on one path, so that the next one is computed from the class.
    """
    if not all(mode.template.stages[k].once for k in mode.required):
        return set()
    return {
        (first, filled)
        for filled in range(1, len(mode.required))
        for first in range(mode.required[filled - 1], mode.required[filled])
        if not _leads_to(graph, users, mode, cls, first, mode.required[filled])
    }


def _leads_to(graph: FusionGraph, users: Sequence[Sequence[int]], mode: Mode, cls: int, first: int, last: int) -> bool:
    """Whether a kernel that computes a class in stage ``first`` can go on from it to an operator in stage ``last``."""
    earliest = {cls: first}  # the earliest stage that a class can be computed in
    stack = [cls]
    while stack:
        own = stack.pop()
        for index in users[own]:
            operation = graph.operations[index]
            stages = range(earliest[own], last + 1)
            fits = [k for k in stages if operation.is_view or mode.template.stages[k].accepts & operation.labels]
            if fits and not operation.is_view and fits[-1] == last:
                return True
            below = [k for k in fits if k < last]
            above = graph.owner[index]
            if below and below[0] < earliest.get(above, last):
                earliest[above] = below[0]
                stack.append(above)
    return False


def computed_from(graph: FusionGraph, mode: Mode, given: Iterable[int], source: int) -> set[int]:
    """``given`` classes and those that kernels of a mode can compute from them; operation ``source`` stands for more than it
    reads."""
    users = graph.users()
    found = set(given)
    work = [i for members in graph.members for i in members if mode.takes(graph.operations[i])]
    while work:
        index = work.pop()
        cls = graph.owner[index]
        if cls not in found and index != source and found.issuperset(graph.operations[index].inputs):
            found.add(cls)
            work += [i for i in users[cls] if mode.takes(graph.operations[i])]
    return found


class Pace:
    """Rates on a target in kernels of ``modes``, in operations a second. ``fastest``: the rate of any kernel around operators, if
    some of them are not in the graph."""

    def __init__(self, graph: FusionGraph, target: Target, modes: Sequence[Mode], fastest: float | None = None) -> None:
        self._target, self._modes = target, modes
        peak = max((target.peak(o.dtype) for o in graph.operations), default=1.0)
        anchors = [target.peak(o.dtype) for o in graph.operations if o.kind is Kind.ANCHOR]
        self._peak = peak if fastest is None else fastest
        self._anchor_peak = max(anchors, default=peak) if fastest is None else fastest
        self._around = {m.number: m.anchored and opened_by_anchors(graph, m) for m in modes}

    def rate(self, mode: Mode, operation: Operation) -> float:
        """Most operations a second of an operator inside a kernel: at the rate of the element type of the kernel's anchor."""
        if not self._around[mode.number]:
            return self._peak
        if operation.kind is Kind.ANCHOR and sum(s.once for s in mode.template.stages) == 1:
            return self._target.peak(operation.dtype)
        return self._anchor_peak

    def least_seconds(self, operation: Operation) -> float:
        """Least time of an operator's operations in any kernel that is bound by them."""
        if not operation.flops:
            return 0.0
        taken = [m for m in self._modes if m.heavy and m.takes(operation)]
        return operation.flops / max([self._target.peak(operation.dtype), *(self.rate(m, operation) for m in taken)])
