"""Classes that one e-node of another class reads are folded into it."""

import heapq

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort

_STEPS_BETWEEN_LOOKS = 1024


def fold(core: Core, effort: Effort) -> None:
    """Contract classes with one node where that loses nothing, and inline classes with one user; in place, as far as ``effort``
    allows.

    A root with one node is paid into ``base`` and its children become roots. A class with one node joins its users if
    it costs nothing or all its users are in one class (only one of them is chosen). A class with several nodes and one
    user node replaces that user by one node per combination. Paths, and so cycles, keep their image; a node that comes
    to use its own class is deleted.
    """
    nodes, owner, children, cost, parts = core.nodes, core.owner, core.children, core.cost, core.parts
    users = list(map(set[int], core.users()))
    queue = list(range(len(nodes)))[::-1]
    queued = bytearray(b"\x01") * len(nodes)

    def push(target: int) -> None:
        if not queued[target]:
            queued[target] = 1
            queue.append(target)

    def detach(node: int) -> None:
        for child in children[node]:
            users[child].discard(node)
            push(child)
        nodes[owner[node]].remove(node)
        push(owner[node])

    later: list[int] = []  # heap of -class: inlining from the top moves each node once
    steps = 0
    while queue or later:
        steps += 1
        if not steps % _STEPS_BETWEEN_LOOKS:
            effort.spend(4 * _STEPS_BETWEEN_LOOKS)
            if effort.over():
                return
        if queue:
            current = queue.pop()
            queued[current] = 0
            inline = False
        else:
            current = -heapq.heappop(later)
            inline = True
        members = nodes[current]
        if not members:
            for user in sorted(users[current]):  # underivable by now
                detach(user)
            continue
        own_users = users[current]
        if len(members) == 1:
            node = members[0]
            below = children[node]
            if current in core.roots:
                core.base += cost[node]
                core.fixed.append(parts[node])
                cost[node] = 0.0
                core.roots.discard(current)
                core.roots.update(below)
                for child in below:
                    push(child)
                if not core.cyclic[current]:
                    below = ()
                if not own_users:
                    detach(node)
                    continue
            small = len(below) <= 1 or len(own_users) <= 1 or (len(below) - 1) * len(own_users) <= len(below) + 2
            if not ((cost[node] == 0.0 and small) or len({owner[u] for u in own_users}) == 1):
                continue
            for user in sorted(own_users):
                merged = set(children[user])
                merged.discard(current)
                merged.update(below)
                if owner[user] in merged:
                    users[current].discard(user)
                    detach(user)
                    continue
                for child in below:
                    users[child].add(user)
                children[user] = tuple(sorted(merged))
                cost[user] += cost[node]
                parts[user] = (parts[user], parts[node])
                push(owner[user])
            own_users.clear()
            for child in children[node]:
                users[child].discard(node)
                push(child)
            members.clear()
        elif len(own_users) == 1 and current not in core.roots:
            if not inline:
                heapq.heappush(later, -current)
                continue
            (user,) = own_users
            target = owner[user]
            rest = tuple(child for child in children[user] if child != current)
            if len(rest) * (len(members) - 1) > 2 * len(members) + 16 or target == current:
                continue
            for node in list(members):
                merged = set(rest)
                merged.update(children[node])
                for child in children[node]:
                    users[child].discard(node)
                    push(child)
                if target in merged:
                    continue
                fresh = len(owner)
                owner.append(target)
                children.append(tuple(sorted(merged)))
                cost.append(cost[user] + cost[node])
                parts.append((parts[user], parts[node]))
                nodes[target].append(fresh)
                for child in merged:
                    users[child].add(fresh)
            own_users.clear()
            members.clear()
            detach(user)
