"""What a runtime computes once, when it loads a program: operators that read constants only."""

from collections.abc import Collection

from eqsat.ir.graph import Graph
from eqsat.ir.operator import Kind, Operator, definition_of


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
