"""From a program to the `FusionGraph`."""

from dataclasses import dataclass, replace
from functools import cached_property

from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph, Operation, operation_of, projection
from eqsat.ir.graph import Graph
from eqsat.ir.infer import application_of
from eqsat.ir.operator import Kind


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


def graph_of_program(graph: Graph, target: Target) -> ProgramGraph:
    """The operations of a program."""
    fusion = FusionGraph()
    classes: dict[str, int] = {}
    constants: set[int] = set()
    for name in (*graph.inputs, *graph.constants):
        if name not in classes:
            if name in graph.constants:
                constants.add(len(fusion.members))
            type = graph.type_of(name)
            classes[name] = fusion.add_class([type], scalar=name in graph.constants and type.size == 1)
    for index, node in enumerate(graph.nodes):
        outputs = [graph.type_of(v) for v in node.outputs]
        inputs = [classes[v] for v in node.inputs if v]
        operation = operation_of(application_of(graph, node), outputs, inputs, index)
        operation = on_target(operation, target, constants)
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


def on_target(operation: Operation, target: Target, constants: set[int]) -> Operation:
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
