"""The core: the part of a problem where a choice is left, in dense lists ordered children first."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from eqsat.extract.components import strong_components
from eqsat.extract.knuth import knuth
from eqsat.extract.problem import ExtractionError, ExtractionProblem

Parts = Any
"""What a core node stands for: an e-node number, or a pair of parts (a binary tree, so that merging is O(1))."""


class Core:
    """A rewritten extraction problem whose nodes may stand for several original e-nodes.

    ``nodes[c]`` are the nodes of class ``c``; ``children[n]`` the sorted distinct child classes. ``group[c]`` numbers
    the strongly connected component and ``cyclic[c]`` tells whether it is non-trivial. Classes are numbered children
    first: by component, and inside a component by Knuth's order, so the nodes with ``max(children) < c`` alone derive
    every class. ``base`` is a cost already decided, with the e-nodes ``fixed``.
    """

    __slots__ = ("base", "children", "cost", "cyclic", "fixed", "group", "nodes", "owner", "parts", "roots")

    def __init__(
        self,
        nodes: list[list[int]],
        owner: list[int],
        children: list[tuple[int, ...]],
        cost: list[float],
        parts: list[Parts],
        roots: Iterable[int],
    ) -> None:
        self.nodes = nodes
        self.owner = owner
        self.children = children
        self.cost = cost
        self.parts = parts
        self.roots = set(roots)
        self.base = 0.0
        self.fixed: list[Parts] = []
        self.group: list[int] = []
        self.cyclic = bytearray()

    @classmethod
    def from_problem(cls, problem: ExtractionProblem) -> "Core":
        """Load a problem. Raises :class:`ExtractionError` if a root cannot be derived at finite cost."""
        nodes: list[list[int]] = [[] for _ in range(problem.class_count)]
        for node, owner in enumerate(problem.node_class):
            nodes[owner].append(node)
        children = [tuple(sorted(set(c))) if len(c) > 1 else tuple(c) for c in problem.node_children]
        core = cls(
            nodes,
            list(problem.node_class),
            children,
            list(problem.node_cost),
            list(range(problem.node_count)),
            problem.roots,
        )
        return core.compacted()

    def compacted(self) -> "Core":
        """Return an equal core without dead, underivable and unreachable nodes, renumbered children first.

        A node is dead when it is in no list of ``nodes``.
        """
        alive_cost = [float("inf")] * len(self.owner)
        for members in self.nodes:
            for node in members:
                alive_cost[node] = self.cost[node]
        tree = knuth(len(self.nodes), self.owner, self.children, alive_cost)
        derivable = tree.choice
        for root in sorted(self.roots):
            if derivable[root] < 0:
                raise ExtractionError(
                    f"root e-class {root}: no acyclic choice of finite cost derives it; "
                    "give it a derivation from leaves or lift an infinite cost",
                    root,
                )
        reached = sorted(self.roots)
        seen = bytearray(len(self.nodes))
        for root in reached:
            seen[root] = 1
        kept: list[list[int]] = [[] for _ in self.nodes]
        successors: list[list[int]] = [[] for _ in self.nodes]
        children = self.children
        for current in reached:
            targets: set[int] = set()
            for node in self.nodes[current]:
                own = children[node]
                if alive_cost[node] == float("inf") or current in own or any(derivable[k] < 0 for k in own):
                    continue
                kept[current].append(node)
                targets.update(own)
            successors[current] = sorted(targets)
            for target in successors[current]:
                if not seen[target]:
                    seen[target] = 1
                    reached.append(target)
        rank = [0] * len(self.nodes)
        for position, current in enumerate(tree.order):
            rank[current] = position
        number = [-1] * len(self.nodes)
        group: list[int] = []
        cyclic = bytearray()
        sequence: list[int] = []
        for label, component in enumerate(strong_components(successors)):
            if not seen[component[0]]:
                continue
            if len(component) > 1:
                component.sort(key=rank.__getitem__)
            for current in component:
                number[current] = len(sequence)
                sequence.append(current)
                group.append(label)
                cyclic.append(len(component) > 1)
        result = self.renumbered(sequence, kept, number, self.parts)
        result.base = self.base
        result.fixed = self.fixed
        result.group = group
        result.cyclic = cyclic
        return result

    def renumbered(
        self, classes: Sequence[int], kept: Sequence[Sequence[int]], number: Sequence[int], parts: Sequence[Parts]
    ) -> "Core":
        """Return the core of some classes in this order, and of those of their nodes that are ``kept``.

        ``number``: the new number of each class; ``parts``: what nodes stand for.
        """
        nodes: list[list[int]] = []
        owner: list[int] = []
        children: list[tuple[int, ...]] = []
        taken: list[int] = []
        for position, current in enumerate(classes):
            nodes.append(list(range(len(owner), len(owner) + len(kept[current]))))
            for node in kept[current]:
                owner.append(position)
                own = self.children[node]
                children.append((number[own[0]],) if len(own) == 1 else tuple(sorted([number[k] for k in own])))
                taken.append(node)
        roots = [position for position, current in enumerate(classes) if current in self.roots]
        return Core(nodes, owner, children, [self.cost[n] for n in taken], [parts[n] for n in taken], roots)

    def copied(self) -> "Core":
        """Return a copy whose lists can be changed."""
        result = Core(
            [list(members) for members in self.nodes],
            list(self.owner),
            list(self.children),
            list(self.cost),
            list(self.parts),
            self.roots,
        )
        result.base = self.base
        result.fixed = list(self.fixed)
        result.group = self.group
        result.cyclic = self.cyclic
        return result

    def size(self) -> tuple[int, int, int, int]:
        """Return the numbers of classes, nodes, edges and roots; reductions stop when they stay the same."""
        count = edges = classes = 0
        for members in self.nodes:
            classes += bool(members)
            for node in members:
                count += 1
                edges += len(self.children[node])
        return classes, count, edges, len(self.roots)

    def users(self) -> list[list[int]]:
        """Return for each class the nodes that use it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for members in self.nodes:
            for node in members:
                for child in self.children[node]:
                    found[child].append(node)
        return found

    def needed(self, choice: Mapping[int, int] | list[int]) -> list[int]:
        """Return the classes that the roots need under an acyclic ``choice``, in discovery order."""
        found = sorted(self.roots)
        seen = set(found)
        for current in found:
            for child in self.children[choice[current]]:
                if child not in seen:
                    seen.add(child)
                    found.append(child)
        return found

    def choice_cost(self, choice: Mapping[int, int] | list[int]) -> float:
        """Return the DAG cost of ``choice``, without ``base``."""
        return math.fsum(self.cost[choice[c]] for c in self.needed(choice))

    def is_acyclic(self, choice: Mapping[int, int] | list[int]) -> bool:
        """Tell whether the needed part of ``choice`` has no cycle."""
        needed = self.needed(choice)
        uses = dict.fromkeys(needed, 0)
        for current in needed:
            for child in self.children[choice[current]]:
                uses[child] += 1
        ready = [c for c in needed if not uses[c]]
        for current in ready:
            for child in self.children[choice[current]]:
                uses[child] -= 1
                if not uses[child]:
                    ready.append(child)
        return len(ready) == len(needed)


def flatten_parts(trees: Iterable[Parts]) -> list[int]:
    """Return the original e-nodes in ``trees``, each once."""
    found: dict[int, None] = {}
    seen: set[int] = set()
    stack = list(trees)
    while stack:
        part = stack.pop()
        if isinstance(part, int):
            found[part] = None
        elif id(part) not in seen:  # shared subtrees of contracted classes are walked once
            seen.add(id(part))
            stack.extend(part)
    return list(found)
