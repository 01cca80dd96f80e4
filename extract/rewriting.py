"""A core that is rewritten in place, class by class."""

from collections import deque
from collections.abc import Iterable

from eqsat.extract.core import Core


class Rewriting:
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
