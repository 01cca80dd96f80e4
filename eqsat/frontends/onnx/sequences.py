"""Sequences whose elements are known, by which exporters write Split and Concat: what is taken out of them, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eqsat.frontends.onnx.versions.steps import Values
from eqsat.ir.graph import Attributes, Node


class Sequences:
    """The sequences of a graph that is read node by node, by name."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._elements: dict[str, tuple[str, ...]] = {}
        self._pieces: dict[str, _Pieces] = {}

    def read(self, node: Node) -> list[Node] | None:
        """The nodes on tensors that mean what ``node`` does, ``None`` where there are none: it makes a sequence, or takes from
        one what is not known."""
        if node.op == "SequenceConstruct":
            self._elements[node.outputs[0]] = node.inputs
        elif node.op == "SplitToSequence":
            self._split(node)
        elif node.op == "ConcatFromSequence":
            return self._concatenated(node)
        elif node.op == "SequenceAt":
            index = self._values.constant(node.inputs[1])
            return None if index is None or index.size != 1 else self._element(node, int(index.item()))
        return None

    def _split(self, node: Node) -> None:
        value, given = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else ""
        sizes = np.array(1) if not given else self._values.constant(given)
        if sizes is None:
            return
        squeezed = not given and not node.attributes.get("keepdims", 1)
        numbers = int(sizes) if sizes.ndim == 0 else tuple(int(n) for n in sizes)
        self._pieces[node.outputs[0]] = _Pieces(value, node.attributes.get("axis", 0), numbers, squeezed)

    def _element(self, node: Node, index: int) -> list[Node] | None:
        """A node SequenceAt; an index below 0 counts from the end."""
        sequence, output = node.inputs[0], node.outputs[0]
        elements = self._elements.get(sequence, ())
        if -len(elements) <= index < len(elements):
            return [Node("Identity", (elements[index],), (output,))]
        pieces = self._pieces.get(sequence)
        limits = None if pieces is None else pieces.limits(index, self._values)
        if pieces is None or limits is None:
            return None
        inputs = [self._numbers(n) for n in (*limits, pieces.axis)]
        if not pieces.squeezed:
            return [Node("Slice", (pieces.value, *inputs), (output,))]
        piece = self._values.fresh_name(f"{output}_piece")
        return [Node("Slice", (pieces.value, *inputs), (piece,)), Node("Squeeze", (piece, inputs[2]), (output,))]

    def _concatenated(self, node: Node) -> list[Node] | None:
        """A node ConcatFromSequence: along an axis that elements have or, ``new_axis``, one of their own."""
        elements, axis = self._elements.get(node.inputs[0], ()), node.attributes["axis"]
        if not elements:
            return None
        inputs, nodes = elements, []
        if node.attributes.get("new_axis", 0):
            inputs, axes = tuple(self._values.fresh_name(f"{e}_row") for e in elements), self._numbers(axis)
            nodes = [Node("Unsqueeze", (e, axes), (row,)) for e, row in zip(elements, inputs, strict=True)]
        return [*nodes, Node("Concat", inputs, node.outputs, Attributes({"axis": axis}))]

    def _numbers(self, number: int) -> str:
        return self._values.add_constant(np.array([number], np.int64), "number")


@dataclass(frozen=True)
class _Pieces:
    """A value along an axis in pieces of ``sizes`` or, where that is one number, of that size as long as there are elements.

    ``squeezed``: without the axis.
    """

    value: str
    axis: int
    sizes: int | tuple[int, ...]
    squeezed: bool

    def limits(self, index: int, values: Values) -> tuple[int, int] | None:
        """Where a piece starts and ends, ``None`` where there is no such piece or no saying which it is."""
        count = self._count(values)
        if index < 0 or count is not None:
            if count is None or not -count <= index < count:
                return None
            index %= count
        if isinstance(self.sizes, int):
            return index * self.sizes, (index + 1) * self.sizes
        return sum(self.sizes[:index]), sum(self.sizes[: index + 1])

    def _count(self, values: Values) -> int | None:
        if not isinstance(self.sizes, int):
            return len(self.sizes)
        shape = values.type_of(self.value).shape
        extent = shape[self.axis] if shape and -len(shape) <= self.axis < len(shape) else None
        return -(-extent // self.sizes) if isinstance(extent, int) and self.sizes > 0 else None
