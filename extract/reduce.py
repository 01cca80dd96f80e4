"""Reductions that keep an optimal choice: what they leave is the core where a real choice remains."""

from eqsat.extract.components import strong_components
from eqsat.extract.core import Core, Parts
from eqsat.extract.effort import Effort
from eqsat.extract.fold import fold
from eqsat.extract.required import required_by, required_classes

_MAX_ROUNDS = 20
_MAX_COMPARED = 200
_SEARCH_BUDGET = 400


def reduce_core(core: Core, effort: Effort) -> Core:
    """Apply the reductions to a fixpoint, the round limit or as far as ``effort`` allows, and return the smaller core.

    ``base + optimum(result) == base + optimum(core)``, and a choice of the result expands to one of the original.
    """
    effort.spend(2 * sum(core.size()))
    fold(core, effort)
    core = core.compacted()
    if merge_equal_classes(core):
        core = core.compacted()
    for _ in range(_MAX_ROUNDS):
        if effort.over():
            break
        before = core.size()
        effort.spend(5 * sum(before))
        required = required_classes(core, effort)
        if required is None:
            break
        drop_cyclic_nodes(core, required)
        drop_implied_children(core, required)
        drop_dominated_nodes(core, required)
        add_mandatory_roots(core, required)
        fold(core, effort)
        if core.size() == before:
            break  # nothing was contracted, inlined or deleted: there is nothing to renumber
        core = core.compacted()
        if merge_equal_classes(core):
            core = core.compacted()
    return core


def drop_cyclic_nodes(core: Core, required: list[int]) -> None:
    """Delete the nodes that no acyclic derivation of the roots can use.

    A node is useless if its class is required by a child, and also if what it requires separates its class from the
    roots: every path from a root to the class would pass below the node itself.
    """
    users: list[list[int]] = [[] for _ in core.nodes]
    for node, children in enumerate(core.children):
        for child in children:
            if core.cyclic[child]:
                users[child].append(node)
    start = 0  # of the component: classes below it require none in it, so a bitset without them does
    for current, members in enumerate(core.nodes):
        if core.group[current] != core.group[start]:
            start = current
        if not core.cyclic[current]:
            continue
        kept: list[int] = []
        path = None  # to a root, of one node: it often passes the next one as well
        for node in members:
            inside = [c for c in core.children[node] if c >= start and core.group[c] == core.group[start]]
            below = 0
            for child in inside:
                below |= required[child] >> start
            itself = below >> current - start & 1
            if inside and not itself and (path is None or path & below):
                path = _path_to_root(core, users, current, start, below)
            if inside and (itself or path is None):
                for child in core.children[node]:
                    if core.cyclic[child]:
                        users[child].remove(node)
                continue
            kept.append(node)
        core.nodes[current] = kept


def _path_to_root(core: Core, users: list[list[int]], current: int, start: int, blocked: int) -> int | None:
    """The bitset of the classes of a path from ``current`` to a root, or to where it is not known whether it leads to one, past
    the bitset ``blocked``; ``None`` if there is none. Bit 0 of both is the class ``start``, the first of the component."""
    group = core.group[current]
    stack = [current]
    came_from = {current: current}
    steps = 0
    while stack:
        reached = stack.pop()
        if reached in core.roots:
            return _path(came_from, reached, start)
        for user in users[reached]:
            steps += 1
            parent = core.owner[user]
            if core.group[parent] != group or steps > _SEARCH_BUDGET:
                return _path(came_from, reached, start)  # outside the component nothing is blocked
            if parent not in came_from and not blocked >> parent - start & 1:
                came_from[parent] = reached
                stack.append(parent)
    return None


def _path(came_from: dict[int, int], end: int, start: int) -> int:
    classes = 0
    while came_from[end] != end:
        classes |= 1 << end - start
        end = came_from[end]
    return classes


def drop_dominated_nodes(core: Core, required: list[int]) -> None:
    """Delete each node whose class has a no dearer node needing only classes that the dominated node requires anyway."""
    for current, members in enumerate(core.nodes):
        if len(members) < 2:
            continue
        ranked = sorted(members, key=lambda n: (core.cost[n], len(core.children[n]), n))
        direct: list[int] = []
        kept: list[int] = []
        for node in ranked:
            mask = 0
            for child in core.children[node]:
                mask |= 1 << child
            missing = ~required_by(required, core.children[node])
            if any(not other & missing for other in direct[:_MAX_COMPARED]):
                continue
            direct.append(mask)
            kept.append(node)
        core.nodes[current] = kept


def drop_implied_children(core: Core, required: list[int]) -> None:
    """Drop from each node the children that another of its children requires: they are derived anyway."""
    children = core.children
    for members in core.nodes:
        for node in members:
            own = children[node]
            if len(own) < 2:
                continue
            kept = list(own)
            for child in own:  # a class may require one that requires it: one of the two stays
                if any(other != child and required[other] >> child & 1 for other in kept):
                    kept.remove(child)
            if len(kept) < len(own):
                children[node] = tuple(kept)


def merge_equal_classes(core: Core) -> bool:
    """Make one class of those that follow from one another at no cost, by nodes of one child; tell whether there were any.

    Whatever derives one of them derives the others, along nodes that become part of every node of the class. The core must
    be compacted afterwards.
    """
    free: list[list[int]] = [[] for _ in core.nodes]
    for members in core.nodes:
        for node in members:
            if core.cost[node] == 0.0 and len(core.children[node]) == 1:
                free[core.owner[node]].append(node)
    equal = [c for c in strong_components([[core.children[n][0] for n in nodes] for nodes in free]) if len(c) > 1]
    if not equal:
        return False
    first = list(range(len(core.nodes)))
    for component in equal:
        for current in component:
            first[current] = min(component)
    for component in equal:
        merged: list[int] = []
        for current in component:
            nodes = [n for n in core.nodes[current] if all(first[k] != first[current] for k in core.children[n])]
            if nodes:
                path = _paths_to(core, free, current, set(component))
                for node in nodes:
                    core.parts[node] = (core.parts[node], path)
                merged.extend(nodes)
            core.nodes[current] = []
        core.nodes[min(component)] = merged
    for current, members in enumerate(core.nodes):
        for node in members:
            core.owner[node] = current
            core.children[node] = tuple(sorted({first[k] for k in core.children[node]}))
    core.roots = {first[root] for root in core.roots}
    return True


def _paths_to(core: Core, free: list[list[int]], target: int, component: set[int]) -> Parts:
    """Parts of nodes of ``free`` along which every other class of ``component`` leads to ``target``."""
    users: dict[int, list[int]] = {}
    for current in component:
        for node in free[current]:
            users.setdefault(core.children[node][0], []).append(node)
    reached = [target]
    seen = {target}
    found: Parts = ()
    for current in reached:
        for node in users.get(current, ()):
            if core.owner[node] in component and core.owner[node] not in seen:
                seen.add(core.owner[node])
                reached.append(core.owner[node])
                found = (found, core.parts[node])
    return found


def add_mandatory_roots(core: Core, required: list[int]) -> None:
    """Make roots of the classes that the roots require, and drop the edges to those that no cycle can pass."""
    mandatory = required_by(required, core.roots)
    free: set[int] = set()
    for current in range(len(core.nodes)):
        if mandatory >> current & 1:
            core.roots.add(current)
            if not core.cyclic[current]:
                free.add(current)
    for members in core.nodes:
        for node in members:
            children = core.children[node]
            if any(child in free for child in children):
                core.children[node] = tuple(child for child in children if child not in free)
