"""The classes that every derivation of a class contains, as bitsets."""

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort

_MAX_SWEEPS = 50
_MAX_BITS = 4_000_000_000
_BITS_IN_A_STEP = 20_000


def required_classes(core: Core, effort: Effort | None = None) -> list[int] | None:
    """Return for each class the bitset of the classes in all its derivations, itself included.

    None where ``effort`` ends, and if the bitsets could take more than about 0.5 GB.

    The greatest solution of ``R(c) = {c} + intersection over nodes of the union of R(child)``, component by component,
    children first. A component that does not settle gets the trivial answer, which is always sound.
    """
    effort = effort or Effort()
    if len(core.nodes) ** 2 > _MAX_BITS:
        return None
    required = [0] * len(core.nodes)
    everything = -1  # all bits set: not yet known to be derivable without what is being computed
    start = 0
    while start < len(core.nodes):
        if effort.over():
            return None
        stop = start + 1
        while stop < len(core.nodes) and core.group[stop] == core.group[start]:
            stop += 1
        for current in range(start, stop):
            required[current] = everything
        for _ in range(_MAX_SWEEPS if stop - start > 1 else 1):
            changed = False
            effort.spend(1 + (stop - start) * (1 + len(core.nodes) // _BITS_IN_A_STEP))
            for current in range(start, stop):
                common = everything
                for node in core.nodes[current]:
                    union = 0
                    for child in core.children[node]:
                        union |= required[child]
                    common &= union
                    if not common:
                        break
                common |= 1 << current
                if common != required[current]:
                    required[current] = common
                    changed = True
            if not changed or stop - start == 1:
                break
            if effort.over():
                return None
        else:
            for current in range(start, stop):
                required[current] = 1 << current
        start = stop
    return required


def has_large_requirements(core: Core) -> bool:
    """Tell whether the bitsets of all classes and nodes could take more than about 0.5 GB."""
    return len(core.nodes) * (len(core.nodes) + len(core.owner)) > _MAX_BITS


def requirements_of_nodes(core: Core, required: list[int]) -> list[int]:
    """Return for each node the bitset of classes below it in every derivation."""
    below = [0] * len(core.owner)
    for node, children in enumerate(core.children):
        for child in children:
            below[node] |= required[child]
    return below
