"""Kernels of a graph from those that were chosen for its blocks, which may reach over separators."""

from collections.abc import Sequence

from eqsat.bounds.blocks.block import Block
from eqsat.bounds.named_problem import ChosenGroup
from eqsat.cost.target import Target
from eqsat.fusion.alike import Placed
from eqsat.fusion.graph import FusionGraph


class Gluing:
    """The groups of the whole graph, put together from the leaves up. The group of one block that computes its target does so
    for those of the next block that hold the source: each is one kernel with it."""

    def __init__(self, graph: FusionGraph, target: Target) -> None:
        self._graph = graph
        self._target = target
        self._groups: list[ChosenGroup] = []
        self._below = ChosenGroup(frozenset(), frozenset())

    def add(self, block: Block, order: Sequence[int], groups: Sequence[Placed]) -> None:
        """The next block, with groups that were chosen for it or an equal one."""
        operations = {new: old for old, new in block.operations.items()}
        classes = {new: old for old, new in block.classes.items()}
        source, target = block.borders.source, block.borders.target
        below, self._below = self._below, ChosenGroup(frozenset(), frozenset())
        for group in groups:
            held = {order[k] for k in group.operations}
            written = {block.graph.owner[order[k]] for k in group.outputs}
            glued = ChosenGroup(
                frozenset(operations[i] for i in held if i != source),
                frozenset(classes[c] for c in written if c != target),
            )
            if source in held:
                glued = ChosenGroup(glued.operations | below.operations, glued.outputs | below.outputs)
                below = below._replace(outputs=frozenset())
            if target in written:
                self._below = glued
            else:
                self._groups.append(glued)

    def groups(self) -> list[ChosenGroup]:
        """All groups. Those that hold an operator which is computed once are one kernel with several outputs."""
        found: list[ChosenGroup] = []
        holder: dict[int, int] = {}
        recomputes = self._target.recomputes
        for group in self._groups:
            once = sorted(i for i in group.operations if not recomputes(self._graph.operations[i].kind))
            number = next((holder[i] for i in once if i in holder), len(found))
            if number == len(found):
                found.append(group)
            else:
                other = found[number]
                found[number] = ChosenGroup(other.operations | group.operations, other.outputs | group.outputs)
            holder.update((i, number) for i in once)
        return found
