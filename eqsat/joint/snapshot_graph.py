"""From a saturated e-graph to the `FusionGraph`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from eqsat.cost.target import Target
from eqsat.egraph.egraph import INPUT, EGraph, TupleType
from eqsat.egraph.encode import Encoding
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.fusion.graph import FusionGraph, Operation, operation_of, part_of, projection
from eqsat.fusion.program_graph import has_one_element, on_target
from eqsat.ir.operator import Application
from eqsat.ir.types import TensorType
from eqsat.lower.selection import Writable, input_types
from eqsat.rewrite import PROJECTION


@dataclass
class SnapshotGraph:
    """An e-graph as a `FusionGraph`; the source of an operation is its handle. ``classes``: representative -> class;
    ``by_handle``: handle -> operation. Where outputs of a Split are slices, ``splits``: operation -> handle of its Split, and
    ``slices``: handles of projection and Split -> operation."""

    graph: FusionGraph
    classes: dict[int, int]
    by_handle: dict[int, int]
    splits: dict[int, int] = field(default_factory=dict)
    slices: dict[tuple[int, int], int] = field(default_factory=dict)


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
    reached: dict[int, None] = {}
    stack = list(reversed(roots))
    while stack:
        cls = stack.pop()
        if cls in reached:
            continue
        reached[cls] = None
        if cls not in snapshot.constants:
            stack.extend(c for item in snapshot.classes[cls] for c in item.children if c not in reached)
    fusion = FusionGraph()
    classes: dict[int, int] = {}
    for cls in sorted(reached):
        full = egraph.full_type_of(cls)
        types = full.items if isinstance(full, TupleType) else (full,)
        scalar = cls in snapshot.constants and has_one_element(types[0])
        classes[cls] = fusion.add_class(types, scalar=scalar)
    constants = {classes[c] for c in snapshot.known_at_load() if c in reached}
    by_handle: dict[int, int] = {}
    splits: dict[int, int] = {}
    slices: dict[tuple[int, int], int] = {}
    for cls in sorted(reached):
        if cls in snapshot.constants:
            continue
        for item in snapshot.classes[cls]:
            if item.node.op == INPUT and not item.node.domain:
                continue
            inputs = [classes[c] for c in item.children]
            if item.node.op == PROJECTION:
                parts = _splits(snapshot, item.children[0]) if target.slices else ()
                for split, data in parts:
                    if classes[data] != classes[cls]:
                        index = fusion.add(classes[cls], part_of(classes[data], item.handle))
                        splits[index] = split
                        slices[item.handle, split] = by_handle[item.handle] = index
                if parts:
                    continue
                operation = projection(inputs[0], item.handle)
            else:
                operation = on_target(_enode(egraph, item.handle, inputs), target, constants)
            made = item.node.rule and item.node.op != PROJECTION
            if made and not writable(item.node.key, input_types(egraph, item.handle)):
                operation = replace(operation, labels=frozenset(("unwritable", "multiple")))
            if classes[cls] not in inputs:
                by_handle[item.handle] = fusion.add(classes[cls], operation)
    for cls in reached:  # a class that holds an input of the program needs no operation
        if any(item.node.op == INPUT and not item.node.domain for item in snapshot.classes[cls]):
            fusion.members[classes[cls]] = []
    fusion.roots = tuple(dict.fromkeys(classes[c] for c in roots))
    return SnapshotGraph(fusion, classes, by_handle, splits, slices)


def _splits(snapshot: Snapshot, cls: int) -> list[tuple[int, int]]:
    """Handles of the Splits in a class of tuples, each with the class of its data; empty if another operator is there too."""
    egraph = snapshot.egraph
    full = egraph.full_type_of(cls)
    items = full.items if isinstance(full, TupleType) else ()
    found = []
    for item in snapshot.classes[cls]:
        node = item.node
        if node.op != "Split" or node.domain or node.opaque is not None:
            return []
        axis = node.attributes.get("axis", 0)
        if not all(isinstance(t, TensorType) and t.shape and isinstance(t.shape[axis], int) for t in items):
            return []
        found.append((item.handle, item.children[0]))
    return found


def _enode(egraph: EGraph, handle: int, inputs: list[int]) -> Operation:
    node = egraph.nodes[handle]
    types = input_types(egraph, handle)
    values = [None if c == ABSENT_INPUT else egraph.value_of(c) for c in node.children]
    own = egraph.full_type_of(handle)
    outputs = own.items if isinstance(own, TupleType) else (own,)
    app = Application(node.key, node.attributes, types, values, node.outputs)
    name, domain = (node.op, "opaque") if node.opaque is not None else (node.op, node.domain)
    return operation_of(name, domain, app, outputs, inputs, handle)
