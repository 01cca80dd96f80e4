"""Classes that one e-node of another class reads are folded into it."""

import heapq

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort
from eqsat.extract.rewriting import Rewriting

_STEPS_BETWEEN_LOOKS = 1024


def fold(core: Core, effort: Effort) -> None:
    """Contract classes with one node where that loses nothing, and inline classes with one user; in place, as far as ``effort``
    allows.

    A root with one node is paid into ``base`` and its children become roots. A class with one node joins its users if
    it costs nothing or all its users are in one class (only one of them is chosen). A class with several nodes and one
    user node replaces that user by one node per combination. Paths, and so cycles, keep their image; a node that comes
    to use its own class is deleted.
    """
    _Folding(core).run(effort)


class _Folding(Rewriting):
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
