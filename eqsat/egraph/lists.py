"""What is known of lists of extents that are computed at run time: their elements, by the symbols of the model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from eqsat.ir.shape_values import MOST, shape_value
from eqsat.ir.types import DType, TensorType
from eqsat.rewrite import PROJECTION

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph

_DTYPES = (DType.INT64, DType.INT32, DType.BOOL)


class Lists:
    """Elements of e-classes that hold extents, found when somebody asks. Merged classes are asked anew."""

    def __init__(self, egraph: EGraph) -> None:
        self._egraph: EGraph = weakref.proxy(egraph)
        self._found: dict[int, np.ndarray | None] = {}

    def merged(self, keep: int, lose: int) -> None:
        self._found.pop(keep, None)
        self._found.pop(lose, None)

    def of(self, cls: int) -> np.ndarray | None:
        """The elements of a class that is no small constant, ``None`` where one of them is not known."""
        if cls not in self._found:
            self._found[cls] = None  # a circle tells nothing new
            type = self._egraph.full_type_of(cls)
            if type.dtype in _DTYPES and type.size is not None and type.size <= MOST:
                spelled = (self._of_node(handle) for handle in self._egraph.members(cls))
                self._found[cls] = next((value for value in spelled if value is not None), None)
        return self._found[cls]

    def _of_node(self, handle: int) -> np.ndarray | None:
        node = self._egraph.nodes[handle]
        if node.op != PROJECTION:
            return self._of_output(handle, 0) if node.outputs == 1 else None
        spelled = (self._of_output(member, node.attribute_number) for member in self._egraph.members(node.children[0]))
        return next((value for value in spelled if value is not None), None)

    def _of_output(self, handle: int, output: int) -> np.ndarray | None:
        egraph = self._egraph
        definition = egraph.definition(handle)
        node = egraph.nodes[handle]
        if definition is None:
            return None
        present = [c if c else None for c in egraph.canonical_children(handle)]
        tuples = any(c is not None and not isinstance(egraph.full_type_of(c), TensorType) for c in present)
        if tuples:
            return None
        types = [None if c is None else egraph.type_of(c) for c in present]
        shapes = definition.name in ("Shape", "Size")
        operands = [None if c is None or shapes else egraph.list_of(c) for c in present]
        return shape_value(definition, node.attributes, types, operands, output=output)
