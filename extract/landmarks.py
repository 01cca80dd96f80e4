"""Landmark cuts: sets of nodes of which every derivation contains one, their bound, and the reduced costs they leave.

Choosing e-nodes of least total cost is optimal delete-free planning (e-class = fact, e-node = action), and this is its
LM-cut heuristic. Source: Helmert and Domshlak 2009, "Landmarks, critical paths and abstractions".
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort


class ExitSet(NamedTuple):
    """If class ``needed`` is chosen, so is one of ``nodes``: those of ``classes`` that require none of ``classes``."""

    needed: int
    classes: tuple[int, ...]
    nodes: tuple[int, ...]


class Landmarks(NamedTuple):
    """``bound`` on the total weight; a choice that uses node ``n`` weighs at least ``bound + reduced[n]``."""

    bound: float
    reduced: list[float]
    cuts: list[ExitSet]


class CriticalValues:
    """The weight of the heaviest path of the lightest derivation of each class, kept up while weights decrease.

    Of the classes that `reach` was asked for and those below them: others cost nothing. Values above that of the last target
    may be too large.
    """

    def __init__(self, core: Core, weight: Sequence[float], effort: Effort) -> None:
        self.core = core
        self.effort = effort
        self.weight = list(weight)
        self.value = [float("inf")] * len(core.nodes)
        self.users: list[list[int]] = [[] for _ in core.nodes]
        self._known = bytearray(len(core.nodes))
        self._changed: list[tuple[float, int]] = []

    def reach(self, targets: Iterable[int]) -> None:
        """Values of ``targets`` and of all that is below them."""
        core, known, value, weight = self.core, self._known, self.value, self.weight
        fresh = [t for t in targets if not known[t]]
        for target in fresh:
            known[target] = 1
        waiting: dict[int, int] = {}
        heap: list[tuple[float, int]] = []
        for current in fresh:
            for node in core.nodes[current]:
                for child in core.children[node]:
                    self.users[child].append(node)
                    if not known[child]:
                        known[child] = 1
                        fresh.append(child)
        inside = set(fresh)
        for current in fresh:
            for node in core.nodes[current]:
                children = core.children[node]
                waiting[node] = sum(c in inside for c in children)
                if not waiting[node]:
                    heap.append((weight[node] + max([value[c] for c in children], default=0.0), node))
        heapq.heapify(heap)
        self.effort.spend(3 * len(waiting))
        done: set[int] = set()
        while heap:
            reached, node = heapq.heappop(heap)
            owner = core.owner[node]
            if owner in done:
                continue
            done.add(owner)
            value[owner] = reached
            for user in self.users[owner]:
                waiting[user] -= 1
                if not waiting[user] and core.owner[user] not in done:
                    others = [value[c] for c in core.children[user]]
                    heapq.heappush(heap, (weight[user] + max(others), user))

    def decrease(self, nodes: Sequence[int], amount: float, target: int) -> None:
        """Take ``amount`` off the weights of ``nodes`` and update the values above them, up to that of ``target``."""
        weight = self.weight
        for node in nodes:
            weight[node] = max(0.0, weight[node] - amount)
        self._offer(nodes, target)

    def settle(self, target: int) -> None:
        """Update the values up to that of ``target``."""
        self._offer((), target)

    def _offer(self, offered: Sequence[int], target: int) -> None:
        """Values above that of ``target`` cannot be part of it: what follows from them waits until a target needs it."""
        value, weight, users, heap = self.value, self.weight, self.users, self._changed
        owners, all_children = self.core.owner, self.core.children
        steps = 0
        while True:
            steps += 1 + len(offered)
            for node in offered:
                owner = owners[node]
                reached = weight[node]
                if reached >= value[owner]:
                    continue
                children = all_children[node]
                if children:
                    reached += max([value[child] for child in children])
                if reached < value[owner]:
                    value[owner] = reached
                    heapq.heappush(heap, (reached, owner))
            while heap and heap[0][0] <= value[target]:
                reached, owner = heapq.heappop(heap)
                if reached <= value[owner]:
                    offered = users[owner]
                    break
            else:
                self.effort.spend(steps)
                return


def exit_set(core: Core, below: Sequence[int], values: CriticalValues, needed: int, zero: float) -> ExitSet:
    """Return the set that grows from ``needed`` over weightless nodes towards their critical child."""
    value, weight = values.value, values.weight
    classes = [needed]
    mask = 1 << needed
    for current in classes:
        for node in core.nodes[current]:
            if weight[node] <= zero and not below[node] & mask:
                child = max(core.children[node], key=lambda k: (value[k], k), default=-1)
                if child >= 0:
                    classes.append(child)
                    mask |= 1 << child
    values.effort.spend(4 * len(classes))
    exits = tuple(n for c in classes for n in core.nodes[c] if not below[n] & mask)
    return ExitSet(needed, tuple(classes), exits)


def landmark_bound(
    core: Core,
    below: Sequence[int],
    weight: Sequence[float],
    targets: Iterable[int],
    effort: Effort,
    enough: float,
) -> Landmarks:
    """Return disjoint-cost landmark cuts for ``targets``, until they are worth ``enough``, none is left, or the effort is spent.

    Lower targets come first: what is below the others need not be kept up meanwhile.
    """
    values = CriticalValues(core, weight, effort)
    bound = 0.0
    zero = 1e-12 * critical_value(core, weight, effort)
    cuts: list[ExitSet] = []
    for target in sorted(targets):
        values.reach((target,))
        values.settle(target)
        while values.value[target] > zero and bound < enough and not effort.over():
            cut = exit_set(core, below, values, target, zero)
            amount = min([values.weight[n] for n in cut.nodes], default=0.0)
            if amount <= zero:
                break
            bound += amount
            cuts.append(cut)
            values.decrease(cut.nodes, amount, target)
    return Landmarks(bound, values.weight, cuts)


def critical_value(core: Core, weight: Sequence[float], effort: Effort) -> float:
    """Weight of the heaviest path that the roots need: a weaker bound, which is never cut short."""
    values = CriticalValues(core, weight, effort)
    values.reach(core.roots)
    return max([values.value[root] for root in core.roots], default=0.0)
