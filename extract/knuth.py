"""Knuth's generalisation of Dijkstra's algorithm: tree-optimal costs, feasibility and an acyclic choice at once."""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

# Unfolded sharing doubles a tree cost per level; past this value costs are no longer compared, only derivability is.
TREE_COST_CAP = 1e300


class KnuthResult(NamedTuple):
    """``cost[c]`` is the tree cost (inf if underivable), ``choice[c]`` the e-node (-1), ``order`` children first."""

    cost: list[float]
    choice: list[int]
    order: list[int]


def knuth(
    class_count: int,
    node_class: Sequence[int],
    node_children: Sequence[tuple[int, ...]],
    node_cost: Sequence[float],
) -> KnuthResult:
    """Return the cheapest tree of every e-class; a child listed twice is paid twice. Nodes of cost inf are ignored.

    Source: Knuth 1977, "A generalization of Dijkstra's algorithm". Ties go to the lower e-node number.
    """
    infinite = float("inf")
    cost = [infinite] * class_count
    choice = [-1] * class_count
    order: list[int] = []
    waiting = [0] * len(node_class)
    total = list(node_cost)
    users: list[list[int]] = [[] for _ in range(class_count)]
    heap: list[tuple[float, int]] = []
    for node, children in enumerate(node_children):
        if total[node] == infinite:
            continue
        waiting[node] = len(children)
        if not children:
            heap.append((total[node], node))
        for child in children:
            users[child].append(node)
    heapq.heapify(heap)
    while heap:
        value, node = heapq.heappop(heap)
        owner = node_class[node]
        if choice[owner] >= 0:
            continue
        cost[owner] = value
        choice[owner] = node
        order.append(owner)
        for user in users[owner]:
            waiting[user] -= 1
            total[user] = min(total[user] + value, TREE_COST_CAP)
            if not waiting[user] and choice[node_class[user]] < 0:
                heapq.heappush(heap, (total[user], user))
    return KnuthResult(cost, choice, order)
