"""Which rules prove that a selected program equals the original one.

Every union has a rule, or follows by congruence from unions below. A proof that two e-nodes of one class are equal is a path
of unions and congruences between them; the rules on it are what a user must trust. A congruence may only rest on what was equal
before: ``x == x * 1`` makes ``x`` congruent to anything ``y`` with ``y == y * 1`` once they are equal, which proves nothing. So
`History` replays the unions in their order and says when two e-nodes became equal.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import CONSTANT, ENode, Pairs
from eqsat.egraph.patterns import ABSENT_INPUT, constructor_name, is_commutative


class History:
    """When the e-nodes of an e-graph became equal: congruence closure, one union after the other."""

    def __init__(self, egraph: EGraph) -> None:
        self._nodes = egraph.nodes
        count = len(egraph.nodes)
        self._parent = list(range(count))  # a forest of merges, never shortened: times grow towards the root
        self._time = [0] * count
        self._short = list(range(count))  # the same, shortened
        self._users: dict[int, list[int]] = {}
        self._table: dict[tuple[object, ...], int] = {}
        self._clock = 0
        exchanged: list[tuple[int, int]] = []  # commutative operators whose inputs stand the other way round
        for handle, node in enumerate(egraph.nodes):
            for child in set(node.children):
                self._users.setdefault(child, []).append(handle)
            first = self._table.setdefault(self._signature(handle), handle)
            if first != handle:
                exchanged.append((first, handle))
        for first, handle in exchanged:
            self._merge(first, handle)
        self.times = [self._merge(union.left, union.right) for union in egraph.unions]
        """For each union of the e-graph, when what it said was true: it may have followed from earlier ones."""

    def time(self, left: int, right: int) -> int:
        """When two e-nodes of one class became equal; 0 for one and the same."""
        parent, time = self._parent, self._time
        latest = 0
        while left != right:
            a = time[left] if parent[left] != left else None
            b = time[right] if parent[right] != right else None
            assert a is not None or b is not None, "two e-nodes of different classes"
            if b is None or (a is not None and a < b):
                assert a is not None
                latest, left = a, parent[left]
            else:
                latest, right = b, parent[right]
        return latest

    def _find(self, handle: int) -> int:
        short = self._short
        while short[handle] != handle:
            short[handle] = short[short[handle]]
            handle = short[handle]
        return handle

    def _signature(self, handle: int) -> tuple[object, ...]:
        return _signature(self._nodes[handle], self._find)

    def _merge(self, left: int, right: int) -> int:
        """Merges two classes and what becomes congruent by that; the time of the first merge."""
        first = self._clock + 1
        waiting = deque([(left, right)])
        while waiting:
            a, b = map(self._find, waiting.popleft())
            if a == b:
                continue
            if len(self._users.get(a, ())) > len(self._users.get(b, ())):
                a, b = b, a
            self._clock += 1
            self._parent[a] = self._short[a] = b
            self._time[a] = self._clock
            moved = self._users.pop(a, [])
            self._users.setdefault(b, []).extend(moved)
            for user in moved:
                other = self._table.setdefault(self._signature(user), user)
                if self._find(other) != self._find(user):
                    waiting.append((user, other))
        return first


def _signature(node: ENode, find: Callable[[int], int]) -> tuple[object, ...]:
    """What two e-nodes share that are congruent, their inputs exchanged if that makes no difference."""
    children = list(map(find, node.children))
    if _is_commutative(node):
        children.sort()
    return (node.op, node.domain, node.attribute_number, node.outputs, *children)


def _is_commutative(node: ENode) -> bool:
    return is_commutative(constructor_name(node.op, node.domain, len(node.children), node.outputs))


def _unordered(left: int, right: int) -> tuple[int, int]:
    return (left, right) if left < right else (right, left)


class Explainer:
    """Answers questions about one saturated e-graph."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph = egraph
        self._history: History | None = None
        self._unions: dict[int, list[tuple[int, str, int, Pairs]]] = {}
        self._groups: dict[int, dict[tuple[object, ...], list[int]]] = {}
        self._proved: dict[tuple[int, int], frozenset[str]] = {}

    def rules_between(self, left: int, right: int) -> frozenset[str]:
        """Rules on a shortest proof that the e-nodes ``left`` and ``right`` of one class are equal."""
        if left == right:
            return frozenset()
        wanted = _unordered(left, right)
        waiting = [] if wanted in self._proved else [(wanted, *self._search(*wanted))]
        while waiting:  # no recursion: one proof may rest on thousands of others, each on the next
            key, rules, pairs = waiting[-1]
            unproved = next((p for p in pairs if p not in self._proved), None)
            if unproved is not None:
                waiting.append((unproved, *self._search(*unproved)))
                continue
            self._proved[key] = rules.union(*map(self._proved.__getitem__, pairs))
            waiting.pop()
        return self._proved[wanted]

    def _when(self) -> History:
        if self._history is None:
            self._history = History(self._egraph)
            for union, time in zip(self._egraph.unions, self._history.times, strict=True):
                self._unions.setdefault(union.left, []).append((union.right, union.rule, time, union.premises))
                self._unions.setdefault(union.right, []).append((union.left, union.rule, time, union.premises))
        return self._history

    def _search(self, left: int, right: int) -> tuple[frozenset[str], list[tuple[int, int]]]:
        """The rules on a shortest path between two e-nodes, and the pairs that have to be equal for its steps."""
        history = self._when()
        equal_since = history.time(left, right)
        came: dict[int, tuple[int, str, Pairs]] = {left: (left, "", ())}
        queue = deque([left])
        while queue:
            here = queue.popleft()
            if (step := self._step(here, right, equal_since)) is not None:
                came[right] = (here, *step)
                break
            for there, rule, time, premises in self._unions.get(here, ()):
                if there not in came and time <= equal_since:
                    came[there] = (here, rule, premises)
                    queue.append(there)
            for there in self._congruent(here):
                if there not in came:
                    pairs = self._pairs(here, there, equal_since)
                    if pairs is not None:
                        came[there] = (here, "", pairs)
                        queue.append(there)
        assert right in came, "no proof between two e-nodes of one class"
        rules, needed, here = set[str](), list[tuple[int, int]](), right
        while here != left:
            here, rule, pairs = came[here]
            if rule:
                rules.add(rule)
            needed += (_unordered(a, b) for a, b in pairs if a != b)
        return frozenset(rules), needed

    def _step(self, here: int, there: int, since: int) -> tuple[str, Pairs] | None:
        """The rule and the pairs by which the next step of a path may end it: classes may have thousands of e-nodes."""
        for other, rule, time, premises in self._unions.get(here, ()):
            if other == there and time <= since:
                return rule, premises
        nodes, find = self._egraph.nodes, self._egraph.find
        if _signature(nodes[here], find) != _signature(nodes[there], find):
            return None
        pairs = self._pairs(here, there, since)
        return None if pairs is None else ("", pairs)

    def _pairs(self, left: int, right: int, before: int) -> Pairs | None:
        """The children that make two e-nodes congruent, if all were equal before the given time."""
        history = self._when()
        find = self._egraph.find
        for pairs in self._pairings(left, right):
            if all(find(a) == find(b) and (a == b or history.time(a, b) < before) for a, b in pairs):
                return pairs
        return None

    def _pairings(self, left: int, right: int) -> Iterator[Pairs]:
        nodes = self._egraph.nodes
        a, b = nodes[left].children, nodes[right].children
        yield tuple(zip(a, b, strict=True))
        if _is_commutative(nodes[left]):
            yield tuple(zip(a, b[::-1], strict=True))

    def _congruent(self, handle: int) -> Iterable[int]:
        nodes, find = self._egraph.nodes, self._egraph.find
        groups = self._groups.get(find(handle))
        if groups is None:
            groups = self._groups[find(handle)] = {}
            for member in self._egraph.members(handle):
                groups.setdefault(_signature(nodes[member], find), []).append(member)
        return groups[_signature(nodes[handle], find)]

    def reference_of(self, handle: int) -> int:
        """The e-node that stands for the class: the oldest that the original program contains, or the oldest of all."""
        nodes = self._egraph.nodes
        members = self._egraph.members(handle)
        return next((m for m in members if not nodes[m].rule), members[0])

    def rules_for(self, handle: int) -> frozenset[str]:
        """Rules by which what stands for a class is the value of one of its e-nodes."""
        return self.rules_between(self.reference_of(handle), handle)

    def rules_of(self, chosen: int) -> frozenset[str]:
        """Rules by which the e-node ``chosen``, on what stands for its inputs, gives what stands for its class."""
        node = self._egraph.nodes[chosen]
        literal = node.key == CONSTANT  # one for each content, whoever asked for it first
        rules: set[str] = {node.rule} if node.rule and not literal else set()
        rules |= self.rules_for(chosen)
        for child in node.children:
            if child != ABSENT_INPUT:
                rules |= self.rules_for(child)
        return frozenset(rules)
