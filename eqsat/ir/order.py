"""Topological order with a preference: nodes, kernels and e-classes are all put in order like this."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any


def dependency_order(before: Mapping[int, Collection[int]], key: Callable[[int], Any] = int) -> list[int]:
    """The keys of ``before``, each after those that it maps to; among those that are ready the one of least ``key`` first.

    What is on a cycle, or behind one, is left out.
    """
    import networkx as nx  # takes a fifth of a second

    graph = nx.DiGraph((other, item) for item, needed in before.items() for other in needed)
    graph.add_nodes_from(before)
    order: list[int] = []
    with suppress(nx.NetworkXUnfeasible):  # raised behind the last that can be ordered
        for item in nx.lexicographical_topological_sort(graph, lambda item: (key(item), item)):
            order.append(item)
    return order
