"""Ways through graphs of any kind: nodes, kernels and e-classes are all found and put in order like this."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Hashable)


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


def reached(starts: Iterable[_T], beyond: Callable[[_T], Iterable[_T]]) -> set[_T]:
    """``starts`` and all that is ``beyond`` one of them, or beyond that, and so on."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        fresh = [item for item in beyond(waiting.pop()) if item not in found]
        found.update(fresh)
        waiting += fresh
    return found


def operands_before(starts: Iterable[_T], operands: Callable[[_T], Iterable[_T]]) -> list[_T]:
    """``starts`` and what they are computed from, each after its ``operands`` and near them: depth first, without recursion."""
    done: dict[_T, None] = {}
    waiting = [(item, False) for item in starts][::-1]
    while waiting:
        item, ready = waiting.pop()
        if ready:
            done[item] = None
        elif item not in done:
            waiting.append((item, True))
            waiting += [(operand, False) for operand in operands(item) if operand not in done][::-1]
    return list(done)
