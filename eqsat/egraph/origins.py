"""How the values of e-classes came about: what they were summed up from, what moved or overflowed, what is open."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from eqsat.egraph.difference import is_float, unit_of
from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import CONSTANT, INPUT, LEAVES
from eqsat.egraph.magnitude import Operand, magnitude_of, moved_with
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.egraph.undefined import Marked, overflowed, undefined
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import traits_of
from eqsat.ir.types import is_array
from eqsat.rewrite import PROJECTION

Value = Any  # an array, or a tuple of arrays for an operator with several outputs


class Origins:
    """What is known of values by the e-nodes that computed them.

    ``values``: of each e-class, by representative; ``source``: the e-node that the value was computed by. Both may still grow.
    """

    def __init__(self, egraph: EGraph, values: Mapping[int, Value], source: Mapping[int, int]) -> None:
        self._egraph, self._values, self._source = egraph, values, source
        self._magnitudes: dict[tuple[int, int], np.ndarray] = {}
        self._steps: dict[tuple[int, int], np.ndarray | None] = {}
        self._overflows: dict[tuple[int, int], np.ndarray | None] = {}
        self._open: dict[tuple[int, int], np.ndarray | None] = {}

    def step(self, cls: int, levels: int) -> np.ndarray | None:
        """By how much floats of a class move with integers some levels down, each by a quantum; ``None`` if there are none."""
        key = (cls, levels)
        if key not in self._steps:
            found = self._steps[key] = None
            for handle, output in (m for h in self._egraph.members(cls) for m in self._makers(h)):
                node, children = self._egraph.nodes[handle], self._egraph.canonical_children(handle)
                operands = [v if is_array(v) else None for v in map(self._values.get, children)]
                steps = [self.step(c, levels - 1) if levels and c in self._values else None for c in children]
                step = moved_with(node.key, node.attributes, operands, steps, output)
                found = step if found is None else found if step is None else np.fmax(found, step)
            self._steps[key] = found
        return self._steps[key]

    def magnitude(self, cls: int, levels: int) -> np.ndarray:
        """How large the terms were from which the floats of a class were computed, over some levels of operators.

        The terms further down are the same in every spelling: their rounding is part of the values compared.
        """
        key = (cls, levels)
        found = self._magnitudes.get(key)
        if found is None:
            value = self._values[cls]
            found = np.abs(value.astype(np.float64))
            self._magnitudes[key] = found
            for handle in self._egraph.members(cls) if levels else ():
                for maker, output in self._makers(handle):
                    size = magnitude_of(*self._operands(maker, levels - 1), value, output)
                    found = np.fmax(found, size * self._coarseness(maker, value))
            self._magnitudes[key] = found
        return found

    def _coarseness(self, handle: int, value: np.ndarray) -> float:
        """How many roundings of ``value`` one is of what it was converted from, where that was computed in half precision."""
        child = next(iter(self._egraph.canonical_children(handle)), ABSENT_INPUT)
        if child not in self._source or not traits_of(self._egraph.nodes[handle].key).converts:
            return 1.0
        maker = self._egraph.nodes[self._source[child]]
        computed = maker.op not in LEAVES and not traits_of(maker.key, maker.attributes).moves
        narrow = self._values[child]
        if not (computed and is_array(narrow) and is_float(narrow) and is_float(value)):
            return 1.0
        return max(unit_of(narrow.dtype) / unit_of(value.dtype), 1.0)

    def overflow(self, handle: int, levels: int, value: np.ndarray) -> np.ndarray:
        """Which elements of ``value``, that an e-node computes, overflowed on the way, over some levels of operators."""
        found = self._overflow_of(handle, levels, value)
        return np.zeros(value.shape, np.bool_) if found is None else found

    def _overflow_of(self, handle: int, levels: int, value: np.ndarray) -> np.ndarray | None:
        """As above, or ``None``. Constants are no excuse: a rule that folds them has to see that they stay finite."""
        key = (handle, levels)
        if key not in self._overflows:
            egraph, node = self._egraph, self._egraph.nodes[handle]
            plain = node.outputs == 1 and node.op not in (PROJECTION, INPUT) and not egraph.is_constant(handle)
            operands: list[Marked | None] = []
            for child in egraph.canonical_children(handle) if plain else ():
                array = None if child == ABSENT_INPUT else self._values.get(child)
                marked = None
                if levels and is_array(array) and is_float(array):
                    marked = self._overflow_of(self._source[child], levels - 1, array)
                operands.append((array, marked) if is_array(array) else None)
            self._overflows[key] = overflowed(node.key, node.attributes, operands, value) if plain else None
        return self._overflows[key]

    def undefined_at(self, handle: int, levels: int) -> np.ndarray | None:
        """Which elements of what an e-node computes ONNX leaves open, over some levels of operators; ``None`` if none."""
        key = (handle, levels)
        if key not in self._open:
            egraph, node = self._egraph, self._egraph.nodes[handle]
            value = self._values.get(egraph.find(handle))
            found: np.ndarray | None = None
            if node.op not in (PROJECTION, INPUT, CONSTANT) and node.outputs == 1 and is_array(value):
                operands: list[Marked | None] = []
                for child in egraph.canonical_children(handle):
                    array = None if child == ABSENT_INPUT else self._values.get(child)
                    marked = (
                        self.undefined_at(self._source[child], levels - 1) if levels and array is not None else None
                    )
                    operands.append((array, marked) if is_array(array) else None)
                found = undefined(node.key, node.attributes, operands, value)
            self._open[key] = found
        return self._open[key]

    def _makers(self, handle: int) -> list[tuple[int, int]]:
        """The e-node that computes a value and which output it is; of a projection, the operators of several outputs."""
        node = self._egraph.nodes[handle]
        if node.op != PROJECTION:
            return [(handle, 0)]
        whole = self._egraph.canonical_children(handle)[0]
        return [(member, node.attribute_number) for member in self._egraph.members(whole)]

    def _operands(self, handle: int, levels: int) -> tuple[str, Attributes, list[Operand | None]]:
        node = self._egraph.nodes[handle]
        operands: list[Operand | None] = []
        if node.op not in (INPUT, CONSTANT):
            for child in self._egraph.canonical_children(handle):
                array = None if child == ABSENT_INPUT else self._values.get(child)
                if not is_array(array):
                    operands.append(None)
                elif is_float(array):
                    operands.append((array, self.magnitude(child, levels)))
                else:
                    operands.append((array, array))
        return node.key, node.attributes, operands
