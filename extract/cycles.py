"""Separation: exit cuts that a relaxed or a cyclic choice violates."""

import math
from collections.abc import Sequence

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort
from eqsat.extract.knuth import knuth
from eqsat.extract.landmarks import landmark_bound
from eqsat.extract.model import Model, Relaxation

_MOST = 60
_TOLERANCE = 1e-5
_THRESHOLDS = (1e-7, 0.05, 0.15, 0.3, 0.5, 0.8)
_FRONTIER_THRESHOLDS = (1e-7, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)


def landmark_cuts(model: Model, relaxed: Relaxation, enough: float, effort: Effort) -> tuple[float, list[float], int]:
    """Add landmark cuts over the reduced costs; return the raised bound, the reduced costs left and how many cuts.

    They extend the dual solution, so the next relaxation is at least the returned bound.
    """
    core = model.core
    found = landmark_bound(core, model.below, relaxed.reduced, core.roots, effort, enough - relaxed.bound)
    for cut in found.cuts:
        model.add_exit_cut(cut.needed, cut.nodes)
    return relaxed.bound + found.bound, found.reduced, len(found.cuts)


def unfounded_cuts(model: Model, values: Sequence[float], effort: Effort) -> int:
    """Add the exit cuts most violated by ``values`` that thresholds find; return how many.

    For each threshold, the classes that the nodes above it cannot derive are the unfounded ones; from such a class the
    set grows over those nodes towards an unfounded child, so that only nodes below the threshold leave it.
    """
    core = model.core
    amount = model.amounts(values)
    found: dict[tuple[int, tuple[int, ...]], float] = {}
    for threshold in _THRESHOLDS:
        effort.spend(2 * len(core.owner))
        derived = _derivable(core, amount, threshold)
        for needed in range(len(core.nodes)):
            if derived[needed] or values[needed] < max(threshold, _TOLERANCE):
                continue
            classes = [needed]
            mask = 1 << needed
            for current in classes:
                for node in core.nodes[current]:
                    if amount[node] >= threshold and not model.below[node] & mask:
                        child = min((k for k in core.children[node] if not derived[k]), key=lambda k: (values[k], k))
                        classes.append(child)
                        mask |= 1 << child
            effort.spend(4 * len(classes))
            exits = tuple(n for c in classes for n in core.nodes[c] if not model.below[n] & mask)
            violation = values[needed] - math.fsum(amount[n] for n in exits)
            if violation > _TOLERANCE:
                found[needed, exits] = violation
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:_MOST]
    for (needed, exits), _ in ranked:
        model.add_exit_cut(needed, exits)
    return len(ranked)


def frontier_cuts(model: Model, values: Sequence[float], effort: Effort) -> int:
    """Add landmark cuts of the roots that ``values`` violates; return how many.

    What the nodes above a threshold derive lacks a root. Then one of the nodes is chosen that derive another class from it;
    those without which the root can still not be derived are left out, of large values first.
    """
    core = model.core
    amount, users = model.amounts(values), core.users()
    found: set[tuple[int, tuple[int, ...]]] = set()
    for threshold in _FRONTIER_THRESHOLDS:
        derived = _derivable(core, amount, threshold)
        for root in sorted(core.roots):
            if derived[root] or effort.over():
                continue
            effort.spend(3 * len(core.owner))
            cut = _least_frontier(core, users, bytearray(derived), root, amount, effort)
            if math.fsum(amount[n] for n in cut) < 1.0 - _TOLERANCE:
                found.add((root, tuple(cut)))
    for root, cut in sorted(found):
        model.add_exit_cut(root, cut)
    return len(found)


def _least_frontier(
    core: Core, users: Sequence[Sequence[int]], derived: bytearray, root: int, amount: Sequence[float], effort: Effort
) -> list[int]:
    """The nodes of which a derivation of ``root`` has one, if ``derived`` are all classes that need none of them."""
    missing = [sum(not derived[c] for c in children) for children in core.children]
    frontier = {node for node, owner in enumerate(core.owner) if not missing[node] and not derived[owner]}
    for node in sorted(frontier, key=lambda n: (-amount[n], n)):
        gained = [core.owner[node]] if not derived[core.owner[node]] else []
        told = 0
        for current in gained:
            derived[current] = 1
            if derived[root]:
                break
            told += 1
            for user in users[current]:
                missing[user] -= 1
                if not missing[user] and user not in frontier and not derived[core.owner[user]]:
                    derived[core.owner[user]] = 1
                    gained.append(core.owner[user])
        effort.spend(len(gained))
        if derived[root]:
            for position, current in enumerate(gained):
                derived[current] = 0
                for user in users[current] if position < told else ():
                    missing[user] += 1
        else:
            frontier.discard(node)
    return sorted(frontier)


def _derivable(core: Core, amount: Sequence[float], threshold: float) -> bytearray:
    """Tell for each class whether the nodes of at least a ``threshold`` alone derive it."""
    cost = [0.0 if a >= threshold else float("inf") for a in amount]
    choice = knuth(len(core.nodes), core.owner, core.children, cost).choice
    return bytearray(node >= 0 for node in choice)


def integral_cuts(model: Model, choice: dict[int, int]) -> set[int]:
    """Add exit cuts for the cycles of an integral ``choice``; return the components they lie in.

    The needed classes that cannot be ordered children first are unfounded; each cycle found among them by following the
    choice gives its cuts, and so does the whole set of its component.
    """
    core = model.core
    pending = {c: len(core.children[n]) for c, n in choice.items()}
    users: dict[int, list[int]] = {}
    for current, node in choice.items():
        for child in core.children[node]:
            users.setdefault(child, []).append(current)
    ready = [c for c, count in pending.items() if not count]
    for current in ready:
        for user in users.get(current, ()):
            pending[user] -= 1
            if not pending[user]:
                ready.append(user)
    unfounded = {c for c, count in pending.items() if count}
    concerned: set[int] = set()
    visited: set[int] = set()
    for start in sorted(unfounded):
        path: list[int] = []
        current = start
        while current not in visited:
            visited.add(current)
            path.append(current)
            current = next(k for k in core.children[choice[current]] if k in unfounded)
        if current in path:
            cycle = path[path.index(current) :]
            concerned.add(core.group[current])
            exits = model.exits(cycle)
            for member in cycle[:8]:
                model.add_exit_cut(member, exits)
    for group in sorted(concerned):
        members = sorted(c for c in unfounded if core.group[c] == group)
        exits = model.exits(members)
        for member in members[-2:]:
            model.add_exit_cut(member, exits)
    return concerned
