"""Landmark cuts: sets of nodes of which every derivation contains one, their bound, and the reduced costs they leave.

Choosing e-nodes of least total cost is optimal delete-free planning (e-class = fact, e-node = action), and this is its
LM-cut heuristic. Source: Helmert and Domshlak 2009, "Landmarks, critical paths and abstractions".
"""

import heapq
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from eqsat.extract.core import Core


class ExitSet(NamedTuple):
    """If class ``needed`` is chosen, so is one of ``nodes``: those of ``classes`` that require none of ``classes``."""

    needed: int
    classes: tuple[int, ...]
    nodes: tuple[int, ...]


class Landmarks(NamedTuple):
    """``bound`` on the total weight; a choice that uses node ``n`` weighs at least ``bound + reduced[n]``.

    ``critical`` is another bound: the heaviest path that some target cannot avoid. It is weaker but never cut short.
    """

    bound: float
    critical: float
    reduced: list[float]
    cuts: list[ExitSet]


class CriticalValues:
    """The weight of the heaviest path of the lightest derivation of each class, kept up while weights decrease."""

    def __init__(self, core: Core, weight: Sequence[float]) -> None:
        self.core = core
        self.weight = list(weight)
        self.value = [float("inf")] * len(core.nodes)
        self.users: list[list[int]] = [[] for _ in core.nodes]
        waiting = [0] * len(core.owner)
        heap: list[tuple[float, int]] = []
        for members in core.nodes:
            for node in members:
                children = core.children[node]
                waiting[node] = len(children)
                for child in children:
                    self.users[child].append(node)
                if not children:
                    heap.append((self.weight[node], node))
        heapq.heapify(heap)
        done = bytearray(len(core.nodes))
        while heap:
            reached, node = heapq.heappop(heap)
            owner = core.owner[node]
            if done[owner]:
                continue
            done[owner] = 1
            self.value[owner] = reached
            for user in self.users[owner]:
                waiting[user] -= 1
                if not waiting[user] and not done[core.owner[user]]:
                    heapq.heappush(heap, (reached + self.weight[user], user))

    def decrease(self, nodes: Iterable[int], amount: float) -> None:
        """Take ``amount`` off the weights of ``nodes`` and update the values above them."""
        value, weight, users = self.value, self.weight, self.users
        owners, all_children = self.core.owner, self.core.children
        for node in nodes:
            weight[node] = max(0.0, weight[node] - amount)
        heap: list[tuple[float, int]] = []
        offered: Iterable[int] = nodes
        while True:
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
            while heap:
                reached, owner = heapq.heappop(heap)
                if reached <= value[owner]:
                    offered = users[owner]
                    break
            else:
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
    exits = tuple(n for c in classes for n in core.nodes[c] if not below[n] & mask)
    return ExitSet(needed, tuple(classes), exits)


def landmark_bound(
    core: Core,
    below: Sequence[int],
    weight: Sequence[float],
    targets: Sequence[int],
    enough: float = float("inf"),
    deadline: float = float("inf"),
) -> Landmarks:
    """Return disjoint-cost landmark cuts for ``targets``, until they are worth ``enough``, none is left, or time is up."""
    values = CriticalValues(core, weight)
    bound = 0.0
    critical = max([values.value[t] for t in targets], default=0.0)
    zero = 1e-12 * critical
    cuts: list[ExitSet] = []
    ordered = sorted(targets)
    while ordered and bound < enough:
        target = max(ordered, key=values.value.__getitem__)
        if values.value[target] <= zero or time.perf_counter() > deadline:
            break
        cut = exit_set(core, below, values, target, zero)
        amount = min([values.weight[n] for n in cut.nodes], default=0.0)
        if amount <= zero:
            break
        bound += amount
        cuts.append(cut)
        values.decrease(cut.nodes, amount)
    return Landmarks(bound, critical, values.weight, cuts)
