"""What a runtime does once, when it loads a program: it computes operators that read constants only, and fuses others."""

from collections.abc import Collection

from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Kind, Operator, definition_of
from eqsat.ir.types import DType

_ROWS = 3
"""Axes of what is added where ONNX Runtime makes one operator of sum and norm."""


def foldable(definition: Operator | None) -> bool:
    """Whether a runtime can compute the operator when it loads a program that gives it constants."""
    return definition is not None and definition.deterministic and definition.kind is not Kind.OPAQUE


def computed_at_load(graph: Graph, kept: Collection[str]) -> frozenset[int]:
    """Indices of the nodes that read constants only, directly or through one another. ``kept``: operators that the runtime
    does not compute then."""
    known = set(graph.constants)
    found: set[int] = set()
    for index, node in enumerate(graph.nodes):
        inputs = [v for v in node.inputs if v]
        if inputs and known.issuperset(inputs) and node.key not in kept and foldable(definition_of(node)):
            found.add(index)
            if len(node.outputs) == 1:  # as in the e-graph, where outputs of one of several are read by way of a tuple
                known.update(node.outputs)
    return frozenset(found)


def normalised_sums(graph: Graph) -> frozenset[str]:
    """Sums of which ONNX Runtime makes one operator with the LayerNormalization that alone reads them: of two values of the same
    three axes."""
    reads = graph.reads()
    normed = {n.inputs[0] for n in graph.nodes if n.key == "LayerNormalization" and reads[n.inputs[0]] == 1}
    return frozenset(
        n.outputs[0] for n in graph.nodes if n.key == "Add" and n.outputs[0] in normed and _adds_rows(graph, n)
    )


def _adds_rows(graph: Graph, node: Node) -> bool:
    a, b = map(graph.type_of, node.inputs)
    return a == b and a.rank == _ROWS and a.dtype is DType.FLOAT
