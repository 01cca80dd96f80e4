"""Types of a node's outputs from the types of its inputs."""

import itertools
from collections.abc import Sequence

import numpy as np

from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import Application, definition_of
from eqsat.ir.types import UNKNOWN, TensorType, Type

VALUE_SIZE_LIMIT = 4096
"""Elements of larger constants are not known to shape inference and rules. Vectors over channels are to be below."""

_symbols = itertools.count()


def fresh_symbol() -> str:
    """A dimension about which nothing is known. Symbols are compared by name, so each call gives a new one."""
    return f"?{next(_symbols)}"


def join(a: Type, b: Type) -> Type:
    """The most precise type that both types imply: extents in which they differ are unknown."""
    if a == b:
        return a
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype is not b.dtype:
        return UNKNOWN
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return TensorType(a.dtype, None)
    return TensorType(a.dtype, tuple(x if x == y else fresh_symbol() for x, y in zip(a.shape, b.shape, strict=True)))


def application_of(graph: Graph, node: Node) -> Application:
    """A node as shape rules and work formulas see it."""
    constants = [graph.constants.get(v) for v in node.inputs]
    values = [c.numpy() if c is not None and c.size <= VALUE_SIZE_LIMIT else None for c in constants]
    types, outputs = graph.operand_types(node), len(node.outputs)
    return Application(node.key, node.attributes, types, values, outputs, opaque=bool(node.opaque))


def infer_types(
    node: Node,
    types: Sequence[Type | None],
    values: Sequence[np.ndarray | None],
    lists: Sequence[np.ndarray | None] = (),
) -> tuple[Type, ...]:
    """Types of ``node``'s outputs; unknown for an operator without a definition.

    ``values[i]``: elements of input ``i`` where known at compile time; ``lists[i]``: where they are extents known by symbols.
    Raises `ShapeError` where the inputs contradict the operator's definition.
    """
    definition = definition_of(node)
    if definition is None:
        return (UNKNOWN,) * len(node.outputs)
    small = [v if v is not None and v.size <= VALUE_SIZE_LIMIT else None for v in values]
    found = definition.infer(Application(node.key, node.attributes, types, small, len(node.outputs), lists))
    return (*found, *((UNKNOWN,) * len(node.outputs)))[: len(node.outputs)]
