"""Topological order with a preference: nodes, kernels and e-classes are all put in order like this."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any


def dependency_order(before: Mapping[int, Collection[int]], key: Callable[[int], Any] = int) -> list[int]:
    """The keys of ``before``, each after those that it maps to; among those that are ready the one of least ``key`` first.

    What is on a cycle, or behind one, is left out.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # it hands out what can be ordered all the same
        sorter.prepare()
    order: list[int] = []
    ready: list[tuple[Any, int]] = []
    while sorter.is_active():
        for item in sorter.get_ready():
            heappush(ready, (key(item), item))
        _, item = heappop(ready)
        order.append(item)
        sorter.done(item)
    return order
