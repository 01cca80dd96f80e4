"""Read-only view of a saturated e-graph: distinct e-nodes by class, after all merges."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import ENode, TupleType
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.at_load import foldable

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A distinct e-node: its oldest handle and its children as class representatives (absent inputs left out)."""

    handle: int
    children: tuple[int, ...]
    node: ENode


@dataclass(frozen=True)
class Snapshot:
    """E-nodes by e-class; a class is named by its representative handle.

    ``constants``: classes whose value is known at compile time. ``size`` counts distinct e-nodes. ``derived``: what others
    computed from the snapshot and may need again, by what it depends on besides.
    """

    egraph: EGraph
    classes: Mapping[int, tuple[SnapshotNode, ...]]
    constants: frozenset[int]
    derived: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], compare=False, repr=False)

    @property
    def size(self) -> int:
        return sum(len(nodes) for nodes in self.classes.values())

    def to_networkx(self) -> nx.MultiDiGraph[Any]:
        """The e-graph as a bipartite `networkx.MultiDiGraph`: of classes and of the e-nodes between them.

        Edges lead from a class to its e-nodes, and from an e-node to the classes it reads (``position``).
        Classes are ``("class", representative)``, with ``bipartite`` 0, ``type`` and ``constant``. E-nodes are
        ``("node", handle)``, with ``bipartite`` 1, ``op``, ``attributes`` and ``rule``, the one that made it, empty for the
        original program. All have ``label``.
        """
        import networkx as nx

        network: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
        for cls, items in self.classes.items():
            type = str(self.egraph.full_type_of(cls))
            constant = cls in self.constants
            network.add_node(("class", cls), bipartite=0, label=type, type=type, constant=constant)
            for item in items:
                node, key = item.node, ("node", item.handle)
                attributes = dict(node.attributes)
                network.add_node(key, bipartite=1, label=node.key, op=node.key, attributes=attributes, rule=node.rule)
                network.add_edge(("class", cls), key)
                for position, child in enumerate(item.children):
                    network.add_edge(key, ("class", child), position=position)
        return network

    def known_at_load(self, kept: frozenset[str] = frozenset()) -> frozenset[int]:
        """Classes that some e-node computes from constants only, directly or through others, by operators that are not ``kept``
        (`eqsat.ir.at_load`)."""
        key = (Snapshot.known_at_load, kept)
        if key not in self.derived:
            self.derived[key] = self._known_at_load(kept)
        return self.derived[key]

    def _known_at_load(self, kept: frozenset[str]) -> frozenset[int]:
        egraph = self.egraph
        readers: dict[int, list[int]] = {}
        for cls, nodes in self.classes.items():
            for child in {c for item in nodes for c in item.children}:
                readers.setdefault(child, []).append(cls)
        found = set(self.constants)
        queue = [r for c in found for r in readers.get(c, ())]
        while queue:
            cls = queue.pop()
            if cls in found or isinstance(egraph.full_type_of(cls), TupleType):
                continue
            for item in self.classes[cls]:
                known = item.children and found.issuperset(item.children) and item.node.key not in kept
                if known and foldable(egraph.definition(item.handle)):
                    found.add(cls)
                    queue.extend(readers.get(cls, ()))
                    break
        return frozenset(found)


def take_snapshot(egraph: EGraph) -> Snapshot:
    """The e-graph as it is now."""
    classes: dict[int, tuple[SnapshotNode, ...]] = {}
    for cls in egraph.classes():
        seen: set[tuple[object, ...]] = set()
        distinct: list[SnapshotNode] = []
        for handle in egraph.members(cls):
            node = egraph.nodes[handle]
            children = egraph.canonical_children(handle)
            signature = (node.op, node.domain, node.attribute_number, node.outputs, children)
            if signature not in seen:
                seen.add(signature)
                kept = tuple(c for c in children if c != ABSENT_INPUT)
                distinct.append(SnapshotNode(handle, kept, node))
        classes[cls] = tuple(distinct)
    constants = frozenset(map(egraph.find, egraph.known.constants))
    return Snapshot(egraph, _extents_read_early(egraph, classes, constants), constants)


_EARLY = 2
"""Operators between the inputs and a value that is computed before others."""


def _extents_read_early(
    egraph: EGraph, classes: dict[int, tuple[SnapshotNode, ...]], constants: frozenset[int]
) -> dict[int, tuple[SnapshotNode, ...]]:
    """Lists of extents without the spellings of the program that read them of values in the middle, where others read them of
    inputs, or of what is computed first. A list that all layers read would else make one circle of them. The oldest spelling
    stays, so that the original program is there."""
    lists = {cls for cls in classes if cls not in constants and egraph.list_of(cls) is not None}
    early = {*constants, *map(egraph.find, egraph.inputs())}
    for _ in range(_EARLY if lists else 0):
        early |= {
            cls for cls, items in classes.items() if any(i.children and early.issuperset(i.children) for i in items)
        }
    known = set(constants)

    def reads_early(item: SnapshotNode) -> bool:
        return (early if item.node.op in ("Shape", "Size") else known).issuperset(item.children)

    waiting = sorted(lists)
    while found := [cls for cls in waiting if any(map(reads_early, classes[cls]))]:
        known.update(found)
        waiting = [cls for cls in waiting if cls not in known]
    chosen = {
        cls: (classes[cls][0], *(item for item in classes[cls][1:] if item.node.rule or reads_early(item)))
        for cls in lists & known
    }
    return {cls: chosen.get(cls, items) for cls, items in classes.items()}
