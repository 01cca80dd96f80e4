"""Transposes that move axes of extent 1 along with another axis, as ONNX Runtime runs them fast.

Its kernel runs through the memory in order where one axis moves, and looks every element up where more do; it does not see that
axes of extent 1 move nothing (as of 1.32: 3 x 3 x 64 x 196 floats whose last two axes change places take 38 us, and 581 us if an
axis of extent 1 in front becomes the second). So they are squeezed out before, and come back behind. A Reshape would not do:
ONNX Runtime takes it for the Transpose that it is, and makes one of both.
"""

import math
from collections.abc import Sequence

from eqsat.backends.written import Written, dtype_of
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.types import TensorType

_LEAST = 1024
"""Elements from which on looking them up takes longer than two views."""


def leave_unit_axes(written: Written) -> None:
    """Transposes of one axis where all others that move have extent 1, between views without those."""
    graph = written.old
    for node in graph.nodes:
        shape = _extents(graph, node.inputs[0]) if node.key == "Transpose" and not node.opaque else ()
        perm: tuple[int, ...] = tuple(node.attributes.get("perm", ()))
        if not _is_slow(shape, perm):
            written.nodes.append(node)
            continue
        dtype = dtype_of(graph, node.inputs[0])
        kept = [axis for axis, extent in enumerate(shape) if extent > 1]
        order = [kept.index(axis) for axis in perm if axis in kept]
        squeezed = TensorType(dtype, tuple(shape[axis] for axis in kept))
        moved = TensorType(dtype, tuple(shape[kept[i]] for i in order))
        units = [tuple(i for i, axis in enumerate(axes) if axis not in kept) for axes in (range(len(shape)), perm)]
        value = written.value("Squeeze", node.inputs[0], units[0], type=squeezed)
        value = written.value("Transpose", value, type=moved, attributes=Attributes({"perm": tuple(order)}))
        written.put(node, Node("Unsqueeze", (), ()), value, written.number(units[1], node.outputs[0]))


def _is_slow(shape: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether one axis moves, and the last one with it, where axes of extent 1 are left out, and more where they are not."""
    if len(shape) != len(perm) or math.prod(shape) < _LEAST or _moves_one(perm):
        return False
    long = [axis for axis in perm if shape[axis] > 1]
    return long[-1] != max(long) and _moves_one(long)


def _moves_one(perm: Sequence[int]) -> bool:
    left = ([p for p in perm if p != axis] for axis in perm)
    return any(rest == sorted(rest) for rest in left)


def _extents(graph: Graph, value: str) -> tuple[int, ...]:
    type = graph.type_of(value)
    shape = type.shape if isinstance(type, TensorType) and type.shape else ()
    known = tuple(d for d in shape if isinstance(d, int))
    return known if len(known) == len(shape) else ()
