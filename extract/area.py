"""Heuristic extraction: area flow for a first choice, then exact-area local search with reference counts.

Source: the two steps of technology mapping in ABC (Cong and Ding 1994; Mishchenko, Chatterjee and Brayton 2007), with
e-classes in the place of cuts. Linear in the e-graph per pass.
"""

from eqsat.extract.core import Core
from eqsat.extract.effort import Effort

_FLOW_PASSES = 4
_AREA_PASSES = 8


def area_flow(core: Core, references: list[float]) -> list[int]:
    """Return an acyclic choice for every class: a class pays ``1 / references`` of each child's flow.

    Only nodes whose children are numbered below their class are considered, which no cycle can satisfy.
    """
    choice = [-1] * len(core.nodes)
    share = [0.0] * len(core.nodes)
    for current, members in enumerate(core.nodes):
        best = float("inf")
        for node in members:
            children = core.children[node]
            if children and children[-1] >= current:
                continue
            flow = core.cost[node]
            for child in children:
                flow += share[child]
            if flow < best:
                best = flow
                choice[current] = node
        share[current] = min(best / references[current], 1e300)
    return choice


def initial_references(core: Core) -> list[float]:
    """Return for each class the number of classes that can use it, at least 1."""
    return [float(max(1, len({core.owner[node] for node in users}))) for users in core.users()]


class AreaSearch:
    """Local search over acyclic choices. ``choice`` covers all classes, ``uses`` counts the needed users."""

    def __init__(self, core: Core, choice: list[int]) -> None:
        self.core = core
        self.choice = list(choice)
        self.uses = [0] * len(core.nodes)
        self.total = 0.0
        self._walked = 0
        for root in sorted(core.roots):
            self.total += self._use(root, 1)

    def _use(self, start: int, by: int) -> float:
        """Add one use of ``start`` (1) or remove it (-1), and return the cost of what becomes needed, or no longer is."""
        uses, choice, core = self.uses, self.choice, self.core
        changes_at = max(by, 0)
        cost = 0.0
        stack = [start]
        while stack:
            current = stack.pop()
            self._walked += 1
            uses[current] += by
            if uses[current] == changes_at:
                node = choice[current]
                cost += core.cost[node]
                stack.extend(core.children[node])
        return cost

    def _reaches(self, node: int, target: int, clear: set[int]) -> bool:
        """Tell whether ``target`` is below the children of ``node`` under the current choice; ``clear`` are classes that it is
        not below."""
        core = self.core
        group = core.group
        label = group[target]
        if not core.cyclic[target]:
            return False
        stack = [child for child in core.children[node] if group[child] == label and child not in clear]
        seen = set(stack)
        while stack:
            current = stack.pop()
            if current == target:
                return True
            for child in core.children[self.choice[current]]:
                if group[child] == label and child not in seen and child not in clear:
                    seen.add(child)
                    stack.append(child)
        clear |= seen
        return False

    def improve_class(self, current: int, epsilon: float) -> float:
        """Move a needed class to the node of least marginal cost; return the change of the total (<= 0)."""
        core, choice = self.core, self.choice
        old = choice[current]
        freed = core.cost[old]
        for child in core.children[old]:
            freed += self._use(child, -1)
        best, best_cost = old, freed - epsilon
        clear: set[int] = set()
        for node in core.nodes[current]:
            if node == old or core.cost[node] >= best_cost or self._reaches(node, current, clear):
                continue
            added = core.cost[node]
            for child in core.children[node]:
                added += self._use(child, 1)
            for child in core.children[node]:
                self._use(child, -1)
            if added < best_cost:
                best, best_cost = node, added
        added = core.cost[best]
        choice[current] = best
        for child in core.children[best]:
            added += self._use(child, 1)
        self.total += added - freed
        return added - freed

    def refresh_unused(self) -> None:
        """Give each class that is not needed its cheapest node in view of what is paid already."""
        core, choice, uses = self.core, self.choice, self.uses
        extra = [0.0] * len(core.nodes)
        for current, members in enumerate(core.nodes):
            if uses[current]:
                continue
            best = float("inf")
            chosen = -1
            clear: set[int] = set()
            for node in members:
                price = core.cost[node]
                for child in core.children[node]:
                    price += extra[child]
                if price < best and not self._reaches(node, current, clear):
                    best = price
                    chosen = node
            if chosen >= 0:
                choice[current] = chosen
            extra[current] = min(best, 1e300)

    def run(self, effort: Effort) -> list[int]:
        """Alternate sweeps over the needed classes until none helps, the pass limit is reached, or ``effort`` ends; return the
        choice that they led to."""
        core = self.core
        choosable = [c for c, members in enumerate(core.nodes) if len(members) > 1]
        epsilon = 1e-12 * max(self.total, 1e-300)
        for turn in range(_AREA_PASSES):
            if effort.over():
                break
            self.refresh_unused()
            effort.spend(len(core.owner))
            change = 0.0
            for current in choosable if turn % 2 else reversed(choosable):
                if self.uses[current]:
                    walked = self._walked
                    change += self.improve_class(current, epsilon)
                    effort.spend(2 + (self._walked - walked) // 2)
                    if effort.over():
                        return self.choice
            if change >= -epsilon:
                break
        return self.choice


def area_choice(core: Core, effort: Effort) -> tuple[list[int], float]:
    """Return the best choice found for all classes of ``core`` and its DAG cost (without ``base``)."""
    references = initial_references(core)
    best: list[int] = []
    best_cost = float("inf")
    for turn in range(_FLOW_PASSES):
        if turn and effort.over():
            break
        choice = area_flow(core, references)
        effort.spend(2 * len(core.owner))
        cost = core.choice_cost(choice)
        if cost < best_cost:
            best, best_cost = choice, cost
        uses = [0] * len(core.nodes)
        for current in core.needed(choice):
            for child in core.children[choice[current]]:
                uses[child] += 1
        references = [max(1.0, (r + 2.0 * u) / 3.0) for r, u in zip(references, uses, strict=True)]
    best = AreaSearch(core, best).run(effort)
    return best, core.choice_cost(best)
