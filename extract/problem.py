"""The extraction problem as flat lists, and the evaluation of a choice on it; problems in the making, whose classes have names,
and what an extraction returns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eqsat.errors import EqsatError
from eqsat.extract.effort import WorkDone


class ExtractionError(EqsatError):
    """The extraction problem is malformed, or no acyclic choice of finite cost derives its roots: ``eclass`` is one of them."""

    def __init__(self, message: str, eclass: int | None = None) -> None:
        super().__init__(message)
        self.eclass = eclass


@dataclass(frozen=True)
class ExtractionProblem:
    """An e-graph with costs: classes and nodes are numbered from 0.

    ``node_class[n]`` is the e-class of e-node ``n``, ``node_children[n]`` its child e-classes (duplicates allowed) and
    ``node_cost[n]`` its cost in any unit: finite and >= 0, or ``inf`` for an e-node that must never be chosen.
    ``roots`` are the e-classes to derive.
    """

    class_count: int
    node_class: Sequence[int]
    node_children: Sequence[tuple[int, ...]]
    node_cost: Sequence[float]
    roots: tuple[int, ...]

    @property
    def node_count(self) -> int:
        """The number of e-nodes."""
        return len(self.node_class)

    def check(self) -> None:
        """Raise :class:`ExtractionError` on lists of unequal length, class numbers out of range or bad costs."""
        count = len(self.node_class)
        if len(self.node_children) != count or len(self.node_cost) != count:
            raise ExtractionError(
                f"extraction problem: lists of unequal length: node_class {count}, node_children "
                f"{len(self.node_children)}, node_cost {len(self.node_cost)}; give one entry per e-node"
            )
        limit = self.class_count
        for node, (owner, children, cost) in enumerate(
            zip(self.node_class, self.node_children, self.node_cost, strict=True)
        ):
            if not 0 <= owner < limit:
                raise ExtractionError(
                    f"e-node {node}: e-class {owner} is not in 0..{limit - 1}; renumber the e-classes"
                )
            for child in children:
                if not 0 <= child < limit:
                    raise ExtractionError(
                        f"e-node {node}: child e-class {child} is not in 0..{limit - 1}; renumber the e-classes"
                    )
            if not cost >= 0:
                raise ExtractionError(f"e-node {node}: cost {cost} is not >= 0; use inf for 'never choose'")
        for root in self.roots:
            if not 0 <= root < limit:
                raise ExtractionError(f"root e-class {root} is not in 0..{limit - 1}; renumber the e-classes")


def evaluate_choice(problem: ExtractionProblem, choice: Mapping[int, int]) -> tuple[dict[int, int], float]:
    """Return the part of ``choice`` that the roots need, children before parents, and its DAG cost.

    Raises :class:`ExtractionError` if the choice lacks a needed e-class, names an e-node of another e-class or has a
    cycle. An e-node of infinite cost is allowed and makes the cost infinite.
    """
    needed: dict[int, int] = {}
    open_classes: set[int] = set()
    for root in problem.roots:
        stack = [root]
        while stack:
            current = stack[-1]
            if current in needed:
                stack.pop()
                continue
            node = choice.get(current)
            if node is None:
                raise ExtractionError(f"choice: e-class {current} is needed but has no e-node; choose one for it")
            if current in open_classes:
                stack.pop()
                open_classes.discard(current)
                needed[current] = node
                continue
            if not 0 <= node < problem.node_count or problem.node_class[node] != current:
                raise ExtractionError(
                    f"choice: e-node {node} is not in e-class {current}; choose one of its own e-nodes"
                )
            open_classes.add(current)
            for child in problem.node_children[node]:
                if child in open_classes:
                    raise ExtractionError(
                        f"choice: e-class {child} depends on itself through e-node {node}; choose without cycles"
                    )
                if child not in needed:
                    stack.append(child)
    return needed, math.fsum(problem.node_cost[node] for node in needed.values())


@dataclass
class NamedProblem:
    """An extraction problem in the making, its classes named by keys."""

    numbers: dict[tuple[Any, ...], int] = field(default_factory=dict[tuple[Any, ...], int])
    owner: list[int] = field(default_factory=list[int])
    children: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    cost: list[float] = field(default_factory=list[float])

    def key(self, *key: object) -> int:
        """The number of a class: what it is, and of what."""
        return self.named(key)

    def named(self, name: tuple[Any, ...]) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def add(self, owner: int, children: Sequence[int], cost: float) -> None:
        self.owner.append(owner)
        self.children.append(tuple(dict.fromkeys(children)))
        self.cost.append(cost)

    def either(self, name: tuple[Any, ...], ways: Sequence[int]) -> int:
        """The class ``name`` that any of some classes gives for nothing; if there is one only, that."""
        if len(ways) == 1:
            return ways[0]
        if name not in self.numbers:
            number = self.key(*name)
            for way in ways:
                self.add(number, [way], 0.0)
        return self.numbers[name]

    def finished(self, roots: Sequence[int]) -> ExtractionProblem:
        return ExtractionProblem(len(self.numbers), self.owner, self.children, self.cost, tuple(roots))


@dataclass(frozen=True)
class ExtractionResult:
    """A choice of e-nodes with its cost and what is proved about it.

    ``choice`` maps exactly the e-classes reachable from the roots to their e-node, children before parents. ``cost`` is
    the DAG cost in the problem's unit (each chosen e-node paid once), ``lower_bound`` a proven bound on the optimum,
    ``method`` the stage that found the choice, ``work`` what it took.
    """

    choice: dict[int, int]
    cost: float
    lower_bound: float
    method: str
    work: WorkDone
    seconds: float

    @property
    def gap(self) -> float:
        """How far the cost may be above the optimum."""
        return gap_of(self.cost, self.lower_bound)

    @property
    def optimal(self) -> bool:
        """Whether it is proved not to be."""
        return self.cost <= self.lower_bound


def gap_of(cost: float, bound: float) -> float:
    """How far a cost may be above the least, whose bound is given, as a part of itself; 0 where it is proved least."""
    return (cost - bound) / cost if cost > bound else 0.0
