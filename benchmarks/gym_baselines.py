"""The two extractors of the extraction-gym that results are compared with, written anew from their descriptions.

`faster_greedy_dag` is bottom-up with a set of costs per e-class. `cycle_banning_ilp` is the integer programme of the gym's
"faster-ilp-cbc": one binary per e-node and e-class, a row per edge, solved again with each cycle it chose forbidden until
its optimum has none. It runs on HiGHS where the gym runs on CBC. Nothing here uses eqsat's own extractors.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from eqsat.extract import ExtractionError, ExtractionProblem
from eqsat.extract.problem import evaluate_choice

_CYCLES_PER_ROUND = 1000
_OPTIMAL = 0

Row = tuple[dict[int, float], float, float]
"""Coefficients by variable, lower and upper limit."""


@dataclass(frozen=True)
class Baseline:
    """``cost`` is infinite if nothing was found; ``finished``: it ran to its end within the limit."""

    cost: float
    finished: bool
    cpu_s: float
    choice: dict[int, int]


def faster_greedy_dag(problem: ExtractionProblem, limit_s: float) -> Baseline:
    """Each e-class keeps what its best e-node so far needs; an e-node costs the union of what its children need."""
    started, deadline = time.process_time(), time.perf_counter() + limit_s
    below: list[dict[int, float]] = [{} for _ in range(problem.class_count)]
    total = [float("inf")] * problem.class_count
    choice: dict[int, int] = {}
    parents: list[list[int]] = [[] for _ in range(problem.class_count)]
    members: list[list[int]] = [[] for _ in range(problem.class_count)]
    children = [tuple(sorted(set(found))) for found in problem.node_children]
    for node, owner in enumerate(problem.node_class):
        members[owner].append(node)
        for child in children[node]:
            parents[child].append(node)
    waiting = deque(node for found in members for node in found if not children[node])
    is_waiting = set(waiting)
    while waiting and time.perf_counter() < deadline:
        node = waiting.popleft()
        is_waiting.remove(node)
        owner, needs = problem.node_class[node], children[node]
        if any(child not in choice for child in needs) or any(owner in below[child] for child in needs):
            continue
        if len(needs) == 1 and problem.node_cost[node] + total[needs[0]] > total[owner]:
            continue
        union: dict[int, float] = {}
        for child in sorted(needs, key=lambda c: -len(below[c])):
            union.update(below[child])
        union[owner] = problem.node_cost[node]
        cost = sum(union.values())
        if cost < total[owner]:
            below[owner], total[owner], choice[owner] = union, cost, node
            fresh = [parent for parent in parents[owner] if parent not in is_waiting]
            is_waiting.update(fresh)
            waiting.extend(dict.fromkeys(fresh))
    try:
        needed, cost = evaluate_choice(problem, choice)
    except ExtractionError:
        needed, cost = {}, float("inf")
    return Baseline(cost, not waiting, time.process_time() - started, needed)


def cycle_banning_ilp(problem: ExtractionProblem, greedy: Baseline, limit_s: float) -> Baseline:
    """The gym's integer programme; at the limit the better of the solver's acyclic choice and ``greedy``, as there."""
    started, deadline = time.process_time(), time.perf_counter() + limit_s
    model = _Programme(problem, greedy.cost)
    best = greedy
    while True:
        left = deadline - time.perf_counter()
        found, proved = model.solve(left) if left > 0 else (None, False)
        if found is None:
            return Baseline(best.cost, False, time.process_time() - started, best.choice)
        cycles = model.cycles(found)
        if not cycles:
            needed, cost = evaluate_choice(problem, found)
            if cost < best.cost:
                best = Baseline(cost, proved, 0.0, needed)
            return Baseline(best.cost, proved, time.process_time() - started, best.choice)
        if not proved:
            return Baseline(best.cost, False, time.process_time() - started, best.choice)
        model.forbid(cycles)


class _Programme:
    """Variables: each e-class that the roots can reach, then the e-nodes kept, then one for each edge of a forbidden cycle."""

    def __init__(self, problem: ExtractionProblem, known_cost: float) -> None:
        self._roots = dict.fromkeys(problem.roots)
        least = sum(
            min((c for c, o in zip(problem.node_cost, problem.node_class, strict=True) if o == root), default=0.0)
            for root in self._roots
        )
        children = [frozenset(found) for found in problem.node_children]
        every: dict[int, list[int]] = {}
        for node, owner in enumerate(problem.node_class):
            too_dear = owner not in self._roots and problem.node_cost[node] > known_cost - least + 1e-5
            loops = owner in children[node] or (
                len(self._roots) == 1 and not self._roots.keys().isdisjoint(children[node])
            )
            if not too_dear and not loops and problem.node_cost[node] < float("inf"):
                every.setdefault(owner, []).append(node)
        reached = dict.fromkeys(self._roots)
        stack = list(reached)
        while stack:
            for node in every.get(stack.pop(), ()):
                stack.extend(c for c in children[node] if c not in reached)
                reached.update(dict.fromkeys(children[node]))
        self._members = {cls: self._undominated(problem, children, every.get(cls, [])) for cls in reached}
        self._children = children
        self._class = {cls: n for n, cls in enumerate(self._members)}
        nodes = [node for found in self._members.values() for node in found]
        self._node = {node: len(self._class) + n for n, node in enumerate(nodes)}
        self._cost = [0.0] * len(self._class) + [problem.node_cost[node] for node in nodes]
        self._rows: list[Row] = []
        for cls, found in self._members.items():
            active = self._class[cls]
            self._rows.append(({active: -1.0, **{self._node[n]: 1.0 for n in found}}, 0.0, 0.0))
            common = frozenset.intersection(*(children[n] for n in found)) if found else frozenset()
            for child in common:
                self._rows.append(({active: 1.0, self._class[child]: -1.0}, -np.inf, 0.0))
            for node in found:
                for child in children[node] - common:
                    self._rows.append(({self._node[node]: 1.0, self._class[child]: -1.0}, -np.inf, 0.0))

    @staticmethod
    def _undominated(problem: ExtractionProblem, children: list[frozenset[int]], found: list[int]) -> list[int]:
        """Without the e-nodes that are dearer than one of the e-class that needs no more."""
        kept: list[int] = []
        for node in sorted(found, key=lambda n: (problem.node_cost[n], len(children[n]), n)):
            if not any(children[other] <= children[node] for other in kept):
                kept.append(node)
        return kept

    def solve(self, limit_s: float) -> tuple[dict[int, int] | None, bool]:
        """The solver's choice, perhaps cyclic, and whether it is proved optimal; None if it found none in time."""
        entries = [(row, var, value) for row, (terms, _, _) in enumerate(self._rows) for var, value in terms.items()]
        rows, columns, values = zip(*entries, strict=True)
        matrix = csr_matrix((values, (rows, columns)), shape=(len(self._rows), len(self._cost)))
        lower = np.zeros(len(self._cost))
        lower[[self._class[root] for root in self._roots]] = 1.0
        limits = (np.array([row[n] for row in self._rows]) for n in (1, 2))
        outcome = milp(
            np.array(self._cost),
            integrality=np.ones(len(self._cost)),
            bounds=Bounds(lower, np.ones(len(self._cost))),  # pyright: ignore[reportArgumentType]
            constraints=LinearConstraint(matrix, *limits),  # pyright: ignore[reportArgumentType]
            options={"time_limit": limit_s},
        )
        if outcome.x is None:
            return None, False
        choice = {
            cls: max(found, key=lambda n: outcome.x[self._node[n]])
            for cls, found in self._members.items()
            if found and outcome.x[self._class[cls]] > 0.5
        }
        return choice, outcome.status == _OPTIMAL

    def cycles(self, choice: dict[int, int]) -> list[list[int]]:
        """Cycles of a choice, as the e-classes on them in order: those that one depth-first search closes."""
        found: list[list[int]] = []
        done: set[int] = set()
        for root in self._roots:
            path: list[int] = []
            place: dict[int, int] = {}
            stack: list[tuple[int, bool]] = [(root, False)]
            while stack and len(found) < _CYCLES_PER_ROUND:
                cls, leaves = stack.pop()
                if leaves:
                    path.pop()
                    del place[cls]
                    done.add(cls)
                elif cls in place:
                    found.append(path[place[cls] :])
                elif cls not in done:
                    place[cls] = len(path)
                    path.append(cls)
                    stack.append((cls, True))
                    stack.extend((child, False) for child in sorted(self._children[choice[cls]], reverse=True))
        return found

    def forbid(self, cycles: list[list[int]]) -> None:
        """For each cycle: not all of its edges at once. The e-nodes that make one edge share a variable."""
        for cycle in cycles:
            edges: list[int] = []
            for cls, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
                makers = [self._node[n] for n in self._members[cls] if following in self._children[n]]
                if len(makers) == 1:
                    edges.append(makers[0])
                    continue
                edge = len(self._cost)
                self._cost.append(0.0)
                self._rows.extend(({maker: 1.0, edge: -1.0}, -np.inf, 0.0) for maker in makers)
                edges.append(edge)
            self._rows.append((dict.fromkeys(edges, 1.0), -np.inf, len(edges) - 1.0))
