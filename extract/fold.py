"""Cores rewritten in place, class by class: what one e-node of another class reads is folded into it, and what costs nothing is
replaced by what derives it, which leaves a smaller problem with a tighter relaxation."""

import heapq
from collections import deque
from collections.abc import Iterable

from eqsat.extract.core import Core, Parts
from eqsat.extract.effort import Effort

_STEPS_BETWEEN_LOOKS = 1024
_SLACK = 30
_MOST_PRODUCTS = 200


class _Rewriting:
    """``users``: for each class the nodes that use it. ``queue``: the classes to look at, those among them whose nodes or users
    have changed."""

    def __init__(self, core: Core, order: Iterable[int]) -> None:
        self.core = core
        self.users = list(map(set[int], core.users()))
        self.queue = deque(order)
        self.queued = bytearray(b"\x01") * len(core.nodes)

    def push(self, current: int) -> None:
        """A class is to be looked at again."""
        if not self.queued[current]:
            self.queued[current] = 1
            self.queue.append(current)

    def release(self, node: int) -> None:
        """A node uses nothing any more."""
        for child in self.core.children[node]:
            self.users[child].discard(node)
            self.push(child)

    def detach(self, node: int) -> None:
        """Take a node out of its class."""
        self.release(node)
        self.core.nodes[self.core.owner[node]].remove(node)
        self.push(self.core.owner[node])

    def add(self, owner: int, children: frozenset[int], cost: float, parts: object) -> None:
        """A further node of a class."""
        core, number = self.core, len(self.core.owner)
        core.owner.append(owner)
        core.children.append(tuple(sorted(children)))
        core.cost.append(cost)
        core.parts.append(parts)
        core.nodes[owner].append(number)
        for child in children:
            self.users[child].add(number)


def fold(core: Core, effort: Effort) -> None:
    """Contract classes with one node where that loses nothing, and inline classes with one user; in place, as far as ``effort``
    allows.

    A root with one node is paid into ``base`` and its children become roots. A class with one node joins its users if
    it costs nothing or all its users are in one class (only one of them is chosen). A class with several nodes and one
    user node replaces that user by one node per combination. Paths, and so cycles, keep their image; a node that comes
    to use its own class is deleted.
    """
    _Folding(core).run(effort)


class _Folding(_Rewriting):
    def __init__(self, core: Core) -> None:
        super().__init__(core, reversed(range(len(core.nodes))))
        self._later: list[int] = []  # heap of -class: inlining from the top moves each node once

    def run(self, effort: Effort) -> None:
        steps = 0
        while self.queue or self._later:
            steps += 1
            if not steps % _STEPS_BETWEEN_LOOKS:
                effort.spend(4 * _STEPS_BETWEEN_LOOKS)
                if effort.over():
                    return
            if self.queue:
                current = self.queue.pop()
                self.queued[current] = 0
                self._look(current, inline=False)
            else:
                self._look(-heapq.heappop(self._later), inline=True)

    def _look(self, current: int, *, inline: bool) -> None:
        members, users = self.core.nodes[current], self.users[current]
        if not members:
            for user in sorted(users):  # underivable by now
                self.detach(user)
        elif len(members) == 1:
            self._contract(current)
        elif len(users) == 1 and current not in self.core.roots:
            if inline:
                self._inline(current)
            else:
                heapq.heappush(self._later, -current)

    def _contract(self, current: int) -> None:
        """A class with one node joins its users."""
        core, users = self.core, self.users[current]
        owner, children = core.owner, core.children
        (node,) = core.nodes[current]
        below = children[node]
        if current in core.roots:
            core.base += core.cost[node]
            core.fixed.append(core.parts[node])
            core.cost[node] = 0.0
            core.roots.discard(current)
            core.roots.update(below)
            for child in below:
                self.push(child)
            if not core.cyclic[current]:
                below = ()
            if not users:
                self.detach(node)
                return
        small = len(below) <= 1 or len(users) <= 1 or (len(below) - 1) * len(users) <= len(below) + 2
        if not ((core.cost[node] == 0.0 and small) or len({owner[u] for u in users}) == 1):
            return
        for user in sorted(users):
            merged = set(children[user])
            merged.discard(current)
            merged.update(below)
            if owner[user] in merged:
                users.discard(user)
                self.detach(user)
                continue
            for child in below:
                self.users[child].add(user)
            children[user] = tuple(sorted(merged))
            core.cost[user] += core.cost[node]
            core.parts[user] = (core.parts[user], core.parts[node])
            self.push(owner[user])
        users.clear()
        self.release(node)
        core.nodes[current].clear()

    def _inline(self, current: int) -> None:
        """A class with one user takes its place, by a node for each way to derive the class."""
        core, members = self.core, self.core.nodes[current]
        (user,) = self.users[current]
        target = core.owner[user]
        rest = frozenset(core.children[user]) - {current}
        if len(rest) * (len(members) - 1) > 2 * len(members) + 16 or target == current:
            return
        for node in members:
            merged = rest.union(core.children[node])
            self.release(node)
            if target not in merged:
                self.add(target, merged, core.cost[user] + core.cost[node], (core.parts[user], core.parts[node]))
        self.users[current].clear()
        members.clear()
        self.detach(user)


def eliminate_free_classes(core: Core, effort: Effort) -> bool:
    """Replace classes of which all nodes are free, in place, as far as ``effort`` allows; tell whether there were any.

    Each node that uses such a class becomes one node for each way to derive the class; dominated ones are dropped. That two
    users may now derive it in two ways changes nothing: one of the two derivations would do for both without a cycle, and at
    no greater cost. A class is replaced while that adds at most `_SLACK` nodes. The core must be compacted afterwards.
    """
    return _Elimination(core).run(effort)


class _Elimination(_Rewriting):
    def __init__(self, core: Core) -> None:
        super().__init__(core, range(len(core.nodes)))
        self._sets = [frozenset(children) for children in core.children]

    def run(self, effort: Effort) -> bool:
        core = self.core
        changed = False
        while self.queue:
            effort.spend(1)
            if effort.over():
                break
            current = self.queue.popleft()
            self.queued[current] = 0
            members, users = core.nodes[current], self.users[current]
            if not members or not users or current in core.roots or any(core.cost[n] for n in members):
                continue
            products = len(members) * len(users)
            if products <= min(len(members) + len(users) + _SLACK, _MOST_PRODUCTS):
                self._replace(current)
                effort.spend(8 * products)
                changed = True
        return changed

    def _replace(self, current: int) -> None:
        core, sets = self.core, self._sets
        fresh: dict[int, list[tuple[float, frozenset[int], Parts]]] = {}
        for user in sorted(self.users[current]):
            owner = core.owner[user]
            rest = sets[user] - {current}
            for node in core.nodes[current]:
                children = rest | sets[node]
                if owner not in children:
                    parts = (core.parts[user], core.parts[node])
                    fresh.setdefault(owner, []).append((core.cost[user], children, parts))
            self.detach(user)
        for node in list(core.nodes[current]):
            self.detach(node)
        for owner, offered in fresh.items():
            for cost, children, parts in sorted(offered, key=lambda item: (item[0], len(item[1]), sorted(item[1]))):
                self._offer(owner, cost, children, parts)

    def _offer(self, owner: int, cost: float, children: frozenset[int], parts: Parts) -> None:
        """Add a node unless one of its class dominates it; drop those that it dominates."""
        core, sets = self.core, self._sets
        members = core.nodes[owner]
        if any(core.cost[n] <= cost and sets[n] <= children for n in members):
            return
        for node in [n for n in members if core.cost[n] >= cost and sets[n] >= children]:
            self.detach(node)
        sets.append(children)
        self.add(owner, children, cost, parts)
