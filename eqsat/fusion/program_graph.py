"""From a program's graph, or from a saturated e-graph, to the `FusionGraph`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from eqsat.cost.target import Target
from eqsat.egraph.egraph import INPUT, EGraph, TupleType
from eqsat.egraph.encode import Encoding
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.snapshot import Snapshot
from eqsat.fusion.graph import FusionGraph, Operation, operation_of, part_of, projection
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Application, Kind
from eqsat.ir.types import TensorType, Type
from eqsat.lower.selection import Writable, input_types
from eqsat.rewrite import PROJECTION

_SMALL = 4096
"""Constants of at most so many elements are shown to shape rules and work formulas."""


@dataclass
class ProgramGraph:
    """A program as a `FusionGraph` with one operation for each class; the source of an operation is its node's index, a
    projection's is -1. ``classes``: value -> class."""

    graph: FusionGraph
    classes: dict[str, int]

    @cached_property
    def operations(self) -> dict[int, int]:
        """Index of a node -> its operation."""
        return {operation.source: i for i, operation in enumerate(self.graph.operations) if operation.source >= 0}


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


def graph_of_program(graph: Graph, target: Target) -> ProgramGraph:
    """The operations of a program."""
    fusion = FusionGraph()
    classes: dict[str, int] = {}
    constants: set[int] = set()
    for name in (*graph.inputs, *graph.constants):
        if name not in classes:
            if name in graph.constants:
                constants.add(len(fusion.members))
            classes[name] = fusion.add_class([graph.type_of(name)], scalar=_is_scalar_constant(graph, name))
    for index, node in enumerate(graph.nodes):
        outputs = [graph.type_of(v) if v else graph.type_of("") for v in node.outputs]
        app = application_of(graph, node)
        inputs = [classes[v] for v in node.inputs if v]
        domain = "opaque" if node.opaque else node.domain
        operation = _on_target(operation_of(node.op, domain, app, outputs, inputs, index), target, constants)
        cls = fusion.add_class(outputs)
        if constants.issuperset(inputs) and inputs and operation.is_view and len(node.outputs) == 1:
            constants.add(cls)
        fusion.add(cls, operation)
        if len(node.outputs) == 1:
            classes[node.outputs[0]] = cls
            continue
        for value in node.outputs:
            if value:
                classes[value] = fusion.add_class([graph.type_of(value)])
                fusion.add(classes[value], projection(cls, -1))
    fusion.roots = tuple(dict.fromkeys(classes[v] for v in graph.outputs))
    return ProgramGraph(fusion, classes)


def application_of(graph: Graph, node: Node) -> Application:
    """A node as shape rules and work formulas see it."""
    types = [graph.type_of(v) if v else None for v in node.inputs]
    values = [_small_value(graph, v) for v in node.inputs]
    return Application(node.key, node.attributes, types, values, len(node.outputs))


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
        scalar = cls in snapshot.constants and _one_element(types[0])
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
                operation = _on_target(_enode(egraph, item.handle, inputs), target, constants)
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


def _on_target(operation: Operation, target: Target, constants: set[int]) -> Operation:
    """Operators that the target does in place, and those that read constants only, launch nothing: they are views.

    What depends on constants only is computed when the program is loaded. Operators with no input stay as they are. No kernel
    reads the constant operands of a view (such as a shape): they are part of its code.
    """
    if operation.is_view:
        others = (c for c in operation.inputs[1:] if c not in constants)
        operation = replace(operation, inputs=(*operation.inputs[:1], *others))
    prepared = operation.inputs and constants.issuperset(operation.inputs) and operation.kind is not Kind.OPAQUE
    if operation.name not in target.free_operators and not prepared:
        return operation
    labels = frozenset(("view", operation.name)) | (operation.labels & {"multiple"})
    return Operation(operation.name, labels, Kind.VIEW, operation.inputs, 0.0, operation.dtype, operation.source)


def _one_element(type: Type) -> bool:
    return isinstance(type, TensorType) and type.size == 1


def _is_scalar_constant(graph: Graph, name: str) -> bool:
    return name in graph.constants and _one_element(graph.type_of(name))


def _small_value(graph: Graph, value: str) -> np.ndarray | None:
    constant = graph.constants.get(value) if value else None
    if constant is None or not isinstance(constant.type, TensorType) or (constant.type.size or _SMALL + 1) > _SMALL:
        return None
    return constant.numpy()
