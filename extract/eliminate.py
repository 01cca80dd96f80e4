"""Classes that cost nothing, replaced by what derives them: what is left is a smaller problem with a tighter relaxation."""

from eqsat.extract.core import Core, Parts
from eqsat.extract.effort import Effort
from eqsat.extract.rewriting import Rewriting

_SLACK = 30
_MOST_PRODUCTS = 200


def eliminate_free_classes(core: Core, effort: Effort) -> bool:
    """Replace classes of which all nodes are free, in place, as far as ``effort`` allows; tell whether there were any.

    Each node that uses such a class becomes one node for each way to derive the class; dominated ones are dropped. That two
    users may now derive it in two ways changes nothing: one of the two derivations would do for both without a cycle, and at
    no greater cost. A class is replaced while that adds at most `_SLACK` nodes. The core must be compacted afterwards.
    """
    return _Elimination(core).run(effort)


class _Elimination(Rewriting):
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
