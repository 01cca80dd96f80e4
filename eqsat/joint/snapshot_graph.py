"""From a saturated e-graph to the `FusionGraph`."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from eqsat.cost.target import Target
from eqsat.egraph.encode import Encoding
from eqsat.egraph.enode import INPUT, TupleType
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot, SnapshotNode
from eqsat.fusion.graph import FusionGraph, Operation, operation_of, part_of, projection
from eqsat.fusion.program_graph import on_target
from eqsat.ir.operator import traits_of
from eqsat.ir.order import reached
from eqsat.ir.types import TensorType
from eqsat.lower.selection import Writable, application_of_enode, input_types
from eqsat.rewrite import PROJECTION


@dataclass
class SnapshotGraph:
    """An e-graph as a `FusionGraph`; the source of an operation is its handle. ``classes``: representative -> class;
    ``by_handle``: handle -> operation. Where outputs of a Split are slices, ``splits``: operation -> handle of its Split, and
    ``slices``: handles of projection and Split -> operation."""

    graph: FusionGraph
    classes: dict[int, int]
    by_handle: dict[int, int]
    splits: dict[int, int] = field(default_factory=dict[int, int])
    slices: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def inputs(self, snapshot: Snapshot) -> frozenset[int]:
        """Classes of the inputs of the program."""
        found = map(snapshot.egraph.find, snapshot.egraph.inputs())
        return frozenset(self.classes[cls] for cls in found if cls in self.classes)


def graph_of_snapshot(
    encoding: Encoding, snapshot: Snapshot, target: Target, writable: Writable = lambda op, types: True
) -> SnapshotGraph:
    """The operations of the part of an e-graph that the outputs can reach. Constant classes are leaves.

    Operators that a rule made and that are not ``writable`` have no kernel. The graph is shared by all cost models, and by
    all targets that see the same operations: it must not be changed.
    """
    key = (graph_of_snapshot, encoding.graph.outputs, target.slices, target.free_operators, writable)
    if key not in snapshot.derived:
        snapshot.derived[key] = _operations_of(encoding, snapshot, target, writable)
    return snapshot.derived[key]


def _operations_of(encoding: Encoding, snapshot: Snapshot, target: Target, writable: Writable) -> SnapshotGraph:
    egraph = snapshot.egraph
    roots = [egraph.find(encoding.handles[v]) for v in encoding.graph.outputs]

    def operands(cls: int) -> Iterator[int]:
        members = snapshot.classes[cls] if cls not in snapshot.constants else ()
        return (c for item in members for c in item.children)

    found = sorted(reached(roots, operands))
    fusion = FusionGraph()
    classes: dict[int, int] = {}
    for cls in found:
        full = egraph.full_type_of(cls)
        types = full.items if isinstance(full, TupleType) else (full,)
        scalar = cls in snapshot.constants and types[0].size == 1
        classes[cls] = fusion.add_class(types, scalar=scalar)
    made = _Operations(snapshot, target, writable, SnapshotGraph(fusion, classes, {}))
    for cls in found:
        if cls not in snapshot.constants:
            for item in snapshot.classes[cls]:
                made.add(cls, item)
    for cls in found:  # a class that holds an input of the program needs no operation
        if any(item.node.key == INPUT for item in snapshot.classes[cls]):
            fusion.members[classes[cls]] = []
    fusion.roots = tuple(dict.fromkeys(classes[c] for c in roots))
    return made.found


class _Operations:
    """Adds e-nodes to ``found``."""

    def __init__(self, snapshot: Snapshot, target: Target, writable: Writable, found: SnapshotGraph) -> None:
        self.found = found
        self._snapshot = snapshot
        self._target = target
        self._writable = writable
        self._known: dict[object, tuple[Operation, bool]] = {}
        self._constants = {found.classes[c] for c in snapshot.known_at_load() if c in found.classes}

    def add(self, cls: int, item: SnapshotNode) -> None:
        """The operation of an e-node of a class, none for an input, slices for a projection of Splits."""
        if item.node.key == INPUT:
            return
        found = self.found
        own, inputs = found.classes[cls], [found.classes[c] for c in item.children]
        projects = item.node.op == PROJECTION
        if projects and self._add_slices(own, item):
            return
        if projects:
            operation = projection(inputs[0], item.handle)
        else:
            operation, writable = self._without_inputs(item.handle)
            operation = replace(operation, inputs=tuple(dict.fromkeys(inputs)), source=item.handle)
            operation = on_target(operation, self._target, self._constants)
            if item.node.rule and not writable:
                operation = replace(operation, labels=frozenset(("unwritable", "multiple")))
        if own not in inputs:
            found.by_handle[item.handle] = found.graph.add(own, operation)

    def _without_inputs(self, handle: int) -> tuple[Operation, bool]:
        """What an e-node does, and whether a rule may make it: the same for all of one operator, attributes and types, and equal
        axes where it reduces."""
        egraph = self._snapshot.egraph
        node, types = egraph.nodes[handle], input_types(egraph, handle)
        second = node.children[1] if len(node.children) > 1 and node.opaque is None else ABSENT_INPUT
        reduces = second != ABSENT_INPUT and traits_of(node.key).reduces
        same = (
            node.key,
            bool(node.rule),
            None if node.opaque is None else handle,
            node.attribute_number,
            egraph.full_type_of(handle),
            egraph.find(second) if reduces else None,
            *types,
        )
        if same not in self._known:
            writable = not node.rule or self._writable(node.key, types)
            self._known[same] = operation_of(*application_of_enode(egraph, handle), (), handle), writable
        return self._known[same]

    def _add_slices(self, own: int, item: SnapshotNode) -> bool:
        """An output of Splits as slices of their data, where the target has those; whether it has."""
        found = self.found
        parts = _splits(self._snapshot, item.children[0]) if self._target.slices else ()
        for split, data in parts:
            if found.classes[data] != own:
                index = found.graph.add(own, part_of(found.classes[data], item.handle))
                found.splits[index] = split
                found.slices[item.handle, split] = found.by_handle[item.handle] = index
        return bool(parts)


def _splits(snapshot: Snapshot, cls: int) -> list[tuple[int, int]]:
    """Handles of the Splits in a class of tuples, each with the class of its data; empty if another operator is there too."""
    egraph = snapshot.egraph
    full = egraph.full_type_of(cls)
    items = full.items if isinstance(full, TupleType) else ()
    found: list[tuple[int, int]] = []
    for item in snapshot.classes[cls]:
        node = item.node
        if node.key != "Split" or node.opaque is not None:
            return []
        axis = node.attributes.get("axis", 0)
        if not all(isinstance(t, TensorType) and t.shape and isinstance(t.shape[axis], int) for t in items):
            return []
        found.append((item.handle, item.children[0]))
    return found
