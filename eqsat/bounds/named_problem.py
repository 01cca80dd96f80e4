"""What a choice for the relaxed problem says of kernels."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from eqsat.bounds.states import State
from eqsat.bounds.views import Merged
from eqsat.extract.problem import NamedProblem


class InState(NamedTuple):
    """Name of a class in a state inside kernels of a mode."""

    kind: str
    mode: int
    heavy: bool
    cls: int
    state: State


class ChosenGroup(NamedTuple):
    """Operations that a choice for the relaxed problem puts into one kernel, and the classes that this writes."""

    operations: frozenset[int]
    outputs: frozenset[int]


def in_graph(group: ChosenGroup, merged: Merged) -> ChosenGroup:
    """A group of the merged graph in the numbers of the graph that was merged."""
    operations = frozenset(i for i, new in merged.operations.items() if new in group.operations)
    return ChosenGroup(operations, frozenset(c for c, new in merged.classes.items() if new in group.outputs))


_BETWEEN = frozenset(("written", "computed", "read", "seen", "held"))
"""Names of classes at the border of kernels."""


def chosen_groups(
    problem: NamedProblem, choice: Mapping[int, int], ends: Collection[str] = ("written",)
) -> list[ChosenGroup]:
    """The groups of a choice (class -> e-node), in the numbers of the graph that the problem was made from.

    ``ends``: names of what groups are chosen for."""
    names = {number: key for key, number in problem.numbers.items()}
    operations: dict[tuple[Any, ...], set[int]] = {}
    outputs: dict[tuple[Any, ...], set[int]] = {}
    for start in choice:
        if names[start][0] not in ends or not problem.children[choice[start]]:
            continue
        kernel = names[start]
        held: set[int] = set()
        seen = {start}
        stack = [start]
        while stack:
            for child in problem.children[choice[stack.pop()]]:
                name = names[child]
                if name[0] == "use":
                    held.add(name[1])
                elif name[0] not in _BETWEEN and child not in seen:
                    seen.add(child)
                    stack.append(child)
                    kernel = _kernel(name, kernel)
        operations.setdefault(kernel, set()).update(held)
        outputs.setdefault(kernel, set()).add(names[start][1])
    return [ChosenGroup(frozenset(held), frozenset(outputs[kernel])) for kernel, held in operations.items()]


def _kernel(name: tuple[Any, ...], known: tuple[Any, ...]) -> tuple[Any, ...]:
    """The kernel that a class of the relaxed problem is part of: by its first value, or by its anchor."""
    if name[0] == "first":
        return name
    if isinstance(name, InState) and known[0] != "first" and name.state.kernel.anchor >= 0:
        return (name.mode, name.heavy, name.state.kernel)
    return known


class Relaxed(NamedTuple):
    """A lower bound, the kernels of a choice of about that cost, without the views between equal classes, and the detail of the
    problem."""

    bound: float
    groups: list[ChosenGroup]
    detail: int

    @property
    def operations(self) -> frozenset[int]:
        """The operations that the choice computes, of some classes perhaps several."""
        return frozenset[int]().union(*(group.operations for group in self.groups))
