"""What is known about values at compile time: which e-classes are constant, their elements, bounds on elements.

An e-class is constant when some spelling of it reads constants only. Its elements are computed when somebody asks: small
ones (shapes, scalars) become literal constants in the e-graph, so equal ones are one class; large ones (folded weights) are
computed once, after extraction.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from eqsat.egraph.element_bounds import ElementBounds
from eqsat.egraph.enode import CONSTANT, ENode, Pairs
from eqsat.egraph.undefined import Marked, overflowed, undefined
from eqsat.ir.constants import Constant
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.ir.interpret import FAILURES, evaluate_operator
from eqsat.ir.operator import Operator, is_finite, traits_of
from eqsat.ir.shape_values import shape_value
from eqsat.ir.types import HALVES, TensorType
from eqsat.rewrite import PROJECTION

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph

FOLD_LIMIT_BYTES = 1 << 16
"""A folded constant may be this large whatever it was made from; beyond, it must not be larger than its operands."""

_WIDENING_LIMIT_BYTES = 1 << 13
"""What makes more bytes out of fewer gives up a compact weight when it is folded, so only tiny results fold."""


FOLD_EXACT = "fold_constants"
FOLD_INEXACT = "fold_constants_with_rounding"


class _Partly(NamedTuple):
    """Elements of which ONNX leaves some open: for the runtime to say, unless nothing that is computed of them depends on them.

    ``handle``: the e-node that gives them, by ``premises``.
    """

    elements: np.ndarray
    left_open: np.ndarray
    handle: int
    premises: Pairs


class KnownValues:
    """Analyses over an `EGraph`, kept up to date by its `added` and `merged` calls."""

    def __init__(self, egraph: EGraph, *, fold_inexact: bool) -> None:
        self._egraph: EGraph = weakref.proxy(egraph)  # which has this one: no circle that only the collector ends
        self.fold_inexact = fold_inexact
        self.constants: dict[int, tuple[int, int]] = {}
        self._age = 0
        self._values: dict[int, np.ndarray] = {}
        self._literals: dict[int, int] = {}
        self.converted: set[int] = set()
        """E-classes of small constants that are computed from constants of another element type."""
        self._partly: dict[int, _Partly] = {}
        self.overflown: set[int] = set()
        """E-classes that constants would make, but for an overflow on the way, of which runtimes make what they like."""
        self._bounds = ElementBounds(self._egraph)
        self._queue: list[int] = []

    def computed_by(self, cls: int) -> int:
        """The e-node that gives the elements of a constant class: a literal, or the one that first proved it constant.

        What an e-node reads was constant before it: following these e-nodes never runs in a circle.
        """
        return self.constants[cls][1]

    def small_value(self, cls: int) -> np.ndarray | None:
        return self._values.get(cls)

    def elements(self, cls: int) -> np.ndarray | None:
        """Elements of a constant class, if few or those of a literal, moved at most; else ``None``."""
        if cls in self._values:
            return self._values[cls]
        handle = self.computed_by(cls)
        node = self._egraph.nodes[handle]
        constant = node.attributes.get("value") if node.key == CONSTANT else None
        if isinstance(constant, Constant):
            return constant.numpy()
        children = self._egraph.canonical_children(handle)
        if not traits_of(node.key, node.attributes).moves:
            return None
        operands = [None if c == 0 else self.elements(c) for c in children]
        known = all(o is not None or c == 0 for o, c in zip(operands, children, strict=True))
        return np.asarray(evaluate_operator(node.key, node.attributes, operands)[0]) if known else None

    def added(self, handle: int) -> None:
        """A new e-node: is it a literal, or constant because its inputs are?"""
        egraph = self._egraph
        node = egraph.nodes[handle]
        if node.key == "Constant":
            constant = node.attributes["value"]
            assert isinstance(constant, Constant)
            if constant.size <= VALUE_SIZE_LIMIT:
                self._values[handle] = constant.numpy()
                self._literals[handle] = handle
            self._mark(handle, handle, age=0)
            return
        if node.children or node.key == "ConstantOfShape":
            self._queue.append(handle)

    def merged(self, keep: int, lose: int, gained: Sequence[int], moved: Sequence[int]) -> None:
        """Two classes became one: what was known of either holds for both. ``gained``: the e-nodes of the one lost,
        ``moved``: those that read it."""
        values = self._values
        if lose in values:
            values.setdefault(keep, values.pop(lose))
            self._literals.setdefault(keep, self._literals.pop(lose))
        if lose in self.converted:
            self.converted.add(keep)
        if lose in self._partly:
            self._partly.setdefault(keep, self._partly.pop(lose))
        if lose in self.overflown:
            self._left_out(keep)
        self._bounds.merged(keep, lose, gained)
        kept, lost = self.constants.get(keep), self.constants.pop(lose, None)
        if kept is not None and lost is not None:
            self.constants[keep] = min(kept, lost)
        elif lost is not None:
            self._mark(keep, lost[1], age=lost[0])
        elif kept is not None:
            self._queue.extend(moved)

    def _mark(self, cls: int, handle: int, age: int | None = None) -> None:
        if cls not in self.constants:
            self._partly.pop(cls, None)
            if age is None:
                self._age += 1
                age = self._age
            self.constants[cls] = (age, handle)
            self._egraph.pending.constants.append(cls)
            self._egraph.changes.learnt(cls)
            self._queue.extend(self._egraph.uses(cls))

    def propagate(self) -> bool:
        """Marks what became constant since the last call, and folds small values. Returns whether anything changed."""
        changed = False
        while self._queue:
            changed |= self._visit(self._queue.pop())
        return changed

    def _visit(self, handle: int) -> bool:
        egraph = self._egraph
        cls = egraph.find(handle)
        if cls in self._values:
            self._spelled_by(cls, handle)
            return False
        node = egraph.nodes[handle]
        if node.op == PROJECTION:
            return False  # folded together with the operator it projects
        definition = egraph.definition(handle)
        if definition is None or not definition.deterministic:
            return False
        children = egraph.canonical_children(handle)
        static = self._static(handle) if node.key in ("Shape", "Size") else None
        types = (egraph.type_of(c) if c else None for c in children)
        exact = static is not None or definition.folds_exactly(node.attributes, types)
        if static is None:
            if not all(c == 0 or c in self.constants or c in self._partly or c in self.overflown for c in children):
                return False
            if not self.overflown.isdisjoint(children):
                self._left_out(cls)
                return False
            if (not exact and not self.fold_inexact) or self._is_disputed(definition, node, children):
                return False
        if node.outputs != 1:
            return self._fold_tuple(handle, exact)
        type = egraph.type_of(cls)
        if not isinstance(type, TensorType) or type.bytes is None or not self._may_fold(handle, type.bytes):
            return False
        array = static
        if array is None and type.size is not None and type.size <= VALUE_SIZE_LIMIT:
            try:
                array, left_open = self._computed(handle)
            except FAILURES:
                return False  # for the runtime to compute, or to refuse
            if array is not None and not is_finite(array) and self._overflows(definition, node, children, array):
                self._left_out(cls)
                return False
            if array is not None and left_open is not None:
                self._leave_open(cls, handle, array, left_open)
                return False
        if array is None and not all(c == 0 or c in self.constants for c in children):
            return False
        already = cls in self.constants
        self._mark(cls, handle)
        if array is None:  # it is large, or small and made of large operands: computed after extraction
            return not already
        self._replace(handle, array, type, exact, () if static is not None else self._read(node.children))
        return True

    def _left_out(self, cls: int) -> None:
        if cls not in self.overflown and cls not in self.constants:
            self.overflown.add(cls)
            self._queue.extend(self._egraph.uses(cls))

    def _spelled_by(self, cls: int, handle: int) -> None:
        """Takes in that elements that were known are computed, too: by a rule that says what they were converted from."""
        children, type = self._egraph.canonical_children(handle), self._egraph.type_of(cls)
        constant = bool(children) and all(c in self.constants for c in children if c)
        if constant and isinstance(type, TensorType) and self._converts(children, type, False):
            self.converted.add(cls)

    def _is_disputed(self, definition: Operator, node: ENode, children: Sequence[int]) -> bool:
        """Whether runtimes compute something else than ONNX says: as the operator states, or the quotient that is quantised in
        single precision, where it should be in half. They differ in two of a hundred integers."""
        scale = self._egraph.type_of(children[1]) if definition.traits.quantises and len(children) > 1 else None
        if scale is not None and scale.dtype in HALVES:
            return True
        operands = map(self._operand, children)
        return definition.is_disputed(node.attributes, [None if o is None else o[0] for o in operands])

    def _overflows(self, definition: Operator, node: ENode, children: Sequence[int], array: np.ndarray) -> bool:
        """Whether elements may be infinite where the runtime's are not: sums in one order or another, and half precision that it
        keeps in single."""
        if definition.combines(node.attributes):
            return True
        narrow = array.dtype.itemsize < 4 and not definition.traits.converts
        return narrow and overflowed(node.key, node.attributes, [*map(self._operand, children)], array) is not None

    def _operand(self, cls: int) -> Marked | None:
        """The elements of a class, if they are few, and which of them are left open; ``None`` where they are not known."""
        value = self._values.get(cls)
        if value is not None:
            return value, None
        partly = self._partly.get(cls)
        return None if partly is None else (partly.elements, partly.left_open)

    def _computed(self, handle: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """What an e-node makes of its operands, ``None`` where they are not known, and what of that ONNX leaves open."""
        node, children = self._egraph.nodes[handle], self._egraph.canonical_children(handle)
        operands = [self._operand(c) for c in children]
        if any(o is None and c != 0 for o, c in zip(operands, children, strict=True)):
            return None, None
        found = evaluate_operator(node.key, node.attributes, [None if o is None else o[0] for o in operands])[0]
        array = np.asarray(found)
        return array, undefined(node.key, node.attributes, operands, array)

    def _leave_open(self, cls: int, handle: int, array: np.ndarray, left_open: np.ndarray) -> None:
        if cls not in self._partly and cls not in self.constants:
            self._partly[cls] = _Partly(array, left_open, handle, self._read(self._egraph.nodes[handle].children))
            self._queue.extend(self._egraph.uses(cls))

    def _fold_tuple(self, handle: int, exact: bool) -> bool:
        egraph = self._egraph
        node = egraph.nodes[handle]
        inputs = [self._values.get(c) for c in egraph.canonical_children(handle)]
        if any(v is None and c != 0 for v, c in zip(inputs, node.children, strict=True)):
            return False
        try:
            results = evaluate_operator(node.key, node.attributes, inputs, node.outputs)
        except FAILURES:
            return False
        changed = False
        for projection in [u for u in egraph.uses(handle) if egraph.nodes[u].op == PROJECTION]:
            type = egraph.type_of(projection)
            index = egraph.nodes[projection].attribute_number
            if isinstance(type, TensorType) and index < len(results) and egraph.find(projection) not in self._values:
                self._mark(egraph.find(projection), projection)
                premises = ((egraph.nodes[projection].children[0], handle), *self._read(node.children))
                self._replace(projection, np.asarray(results[index]), type, exact, premises)
                changed = True
        return changed

    def _read(self, children: tuple[int, ...]) -> Pairs:
        """What folding an operator rests on: that each operand is the literal which was read in its place."""
        pairs: list[tuple[int, int]] = []
        for child in (c for c in children if c != 0):
            cls = self._egraph.find(child)
            if cls in self._literals:
                pairs.append((child, self._literals[cls]))
            else:
                partly = self._partly[cls]
                pairs += [*partly.premises, (child, partly.handle)]
        return tuple((a, b) for a, b in pairs if a != b)

    def _replace(self, handle: int, array: np.ndarray, type: TensorType, exact: bool, premises: Pairs) -> None:
        rule = FOLD_EXACT if exact else FOLD_INEXACT
        array = array.astype(type.dtype.numpy, copy=False)
        before = len(self._egraph.nodes)
        literal = self._egraph.add_constant(Constant.of(array), rule)
        if self._converts(self._egraph.canonical_children(handle), type, literal >= before):
            self.converted.add(self._egraph.find(handle))
        self._egraph.union(handle, literal, rule, premises)

    def _converts(self, children: Sequence[int], type: TensorType, is_new: bool) -> bool:
        """Whether what makes a value of this type reads values of another element type, or is a new number made of such."""
        alike = [self._egraph.full_type_of(c).dtype is type.dtype for c in children]
        made = (c in self.converted for c, same in zip(children, alike, strict=True) if same)
        return not all(alike[:1]) or (is_new and any(made))

    def _static(self, handle: int) -> np.ndarray | None:
        """The elements of a Shape or Size that follow from the types alone."""
        node, definition = self._egraph.nodes[handle], self._egraph.definition(handle)
        types = [self._egraph.type_of(node.children[0])]
        found = None if definition is None else shape_value(definition, node.attributes, types, [None])
        return None if found is None or found.dtype == object else found

    def _may_fold(self, handle: int, result_bytes: int) -> bool:
        node = self._egraph.nodes[handle]
        if traits_of(node.key).widens:
            return result_bytes <= _WIDENING_LIMIT_BYTES or self._operand_bytes(handle) >= result_bytes
        return result_bytes <= FOLD_LIMIT_BYTES or result_bytes <= self._operand_bytes(handle)

    def _operand_bytes(self, handle: int) -> int:
        return sum(self._egraph.type_of(c).bytes or 0 for c in set(self._egraph.canonical_children(handle)) - {0})

    def interval(self, cls: int) -> tuple[float, float]:
        """Bounds on the elements of a class: of a constant by its elements, of some operators by their range."""
        return self._bounds.of(cls)
