"""Topological order with a preference: nodes, kernels and e-classes are all put in order like this."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any


def dependency_order(before: Mapping[int, Collection[int]], key: Callable[[int], Any] = int) -> list[int]:
    """The keys of ``before``, each after those that it maps to; among those that are ready the one of least ``key`` first.

    What is on a cycle, or behind one, is left out.
    """
    users: dict[int, list[int]] = {}
    for item, needed in before.items():
        for other in needed:
            users.setdefault(other, []).append(item)
    missing = {item: len(needed) for item, needed in before.items()}
    ready = [(key(item), item) for item, count in missing.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, item = heapq.heappop(ready)
        order.append(item)
        for user in users.get(item, ()):
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (key(user), user))
    return order
