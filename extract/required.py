"""The classes that every derivation of a class contains, as bitsets."""

from collections.abc import Iterable, Sequence

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort

_MAX_SWEEPS = 50
_MAX_BITS = 4_000_000_000
_BITS_IN_A_STEP = 20_000
_EVERYTHING = -1
"""All bits set: not yet known to be derivable without what is being computed."""


def required_classes(core: Core, effort: Effort | None = None) -> list[int] | None:
    """Return for each class the bitset of the classes in all its derivations, itself included.

    None where ``effort`` ends, and if the bitsets could take more than about 0.5 GB.

    The greatest solution of ``R(c) = {c} + intersection over nodes of the union of R(child)``, component by component,
    children first. A class is looked at again when a child's answer has changed. A component that does not settle gets the
    trivial answer, which is always sound.
    """
    effort = effort or Effort()
    if len(core.nodes) ** 2 > _MAX_BITS:
        return None
    required = [0] * len(core.nodes)
    start = 0
    while start < len(core.nodes):
        if effort.over():
            return None
        stop = start + 1
        while stop < len(core.nodes) and core.group[stop] == core.group[start]:
            stop += 1
        for current in range(start, stop):
            required[current] = _EVERYTHING
        if not _settle(core, required, start, stop, effort):
            if effort.over():
                return None
            for current in range(start, stop):
                required[current] = 1 << current
        start = stop
    return required


def _settle(core: Core, required: list[int], start: int, stop: int, effort: Effort) -> bool:
    """Solve for the classes of a component; tell whether that came to an end within the limits."""
    step = 1 + len(core.nodes) // _BITS_IN_A_STEP
    users: list[list[int]] = [[] for _ in range(start, stop)]
    if stop - start > 1:
        for current in range(start, stop):
            for child in {child for node in core.nodes[current] for child in core.children[node] if child >= start}:
                users[child - start].append(current)
    waiting = bytearray(b"\x01") * (stop - start)
    left = _MAX_SWEEPS * (stop - start)
    while left > 0 and not effort.over():
        count = sum(waiting)
        if not count:
            return True
        left -= count
        effort.spend(1 + count * step)
        for current in range(start, stop):
            if not waiting[current - start]:
                continue
            waiting[current - start] = 0
            found = _required_of(core, required, current)
            if found != required[current]:
                required[current] = found
                for user in users[current - start]:
                    waiting[user - start] = 1
    return not any(waiting)


def _required_of(core: Core, required: list[int], current: int) -> int:
    common = _EVERYTHING
    for node in core.nodes[current]:
        union = 0
        for child in core.children[node]:
            union |= required[child]
        common &= union
        if not common:
            break
    return common | 1 << current


def required_by(required: Sequence[int], classes: Iterable[int]) -> int:
    """Return the bitset of the classes that every derivation of all of ``classes`` contains."""
    found = 0
    for current in classes:
        found |= required[current]
    return found


def has_large_requirements(core: Core) -> bool:
    """Tell whether the bitsets of all classes and nodes could take more than about 0.5 GB."""
    return len(core.nodes) * (len(core.nodes) + len(core.owner)) > _MAX_BITS


def requirements_of_nodes(core: Core, required: list[int]) -> list[int]:
    """Return for each node the bitset of classes below it in every derivation."""
    return [required_by(required, children) for children in core.children]
