"""Greedy DAG extraction with explicit cost sets, the usual baseline of e-graph libraries."""

import math
from collections import deque

from eqsat.extract.effort import Effort
from eqsat.extract.problem import ExtractionProblem


def greedy_dag(problem: ExtractionProblem, effort: Effort) -> dict[int, int]:
    """Return the choice of the "faster greedy DAG" extractor of the extraction-gym: bottom-up, one cost set per class.

    Each e-class keeps the set of e-classes (with the cost of their e-node) below its best e-node so far; an e-node is
    priced by the union of its children's sets. A worklist revisits the parents of every improved e-class. Quadratic in
    time and memory where sharing is deep. Where ``effort`` ends, the e-classes keep what they have.
    """
    infinite = float("inf")
    below: list[dict[int, float] | None] = [None] * problem.class_count
    total = [infinite] * problem.class_count
    choice: dict[int, int] = {}
    users: list[list[int]] = [[] for _ in range(problem.class_count)]
    distinct = [tuple(dict.fromkeys(children)) for children in problem.node_children]
    for node, children in enumerate(distinct):
        for child in children:
            users[child].append(node)
    queue = deque(node for node, children in enumerate(distinct) if not children)
    queued = set(queue)
    while queue and not effort.over():
        effort.spend(1)
        node = queue.popleft()
        queued.discard(node)
        owner = problem.node_class[node]
        price = problem.node_cost[node]
        if price == infinite:
            continue
        sets = [below[child] for child in distinct[node]]
        found = [s for s in sets if s is not None]
        if len(found) < len(sets) or any(owner in s for s in found):
            continue
        if len(found) == 1 and price + total[distinct[node][0]] >= total[owner]:
            continue
        largest = max(found, key=len, default=dict[int, int]())
        merged = dict(largest)
        for members in found:
            if members is not largest:
                merged.update(members)
        merged[owner] = price
        effort.spend(2 + len(merged) // 16)
        value = math.fsum(merged.values())
        if value < total[owner]:
            total[owner] = value
            below[owner] = merged
            choice[owner] = node
            for user in users[owner]:
                if user not in queued:
                    queued.add(user)
                    queue.append(user)
    return choice
