"""Constants in half precision that are computed in several steps, rounded once.

A batch norm folded into a convolution computes ``w * (gamma / Sqrt(var + epsilon))``. Were the scale rounded to half precision
first, all weights of a channel would be off by the same part, which a sum does not average out. Where roundings may differ, the
steps are taken in single precision, those of the original, too: so ONNX Runtime takes them. What integers and truth values are
made of is rounded at each step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from eqsat.egraph.egraph import EGraph
from eqsat.egraph.enode import CONSTANT, ENode
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.patterns import ABSENT_INPUT
from eqsat.ir.constants import Constant
from eqsat.ir.infer import VALUE_SIZE_LIMIT
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import is_finite, traits_of
from eqsat.ir.types import HALVES, DType, TensorType

_STEPS = 16
"""How many steps are followed back; what lies before is rounded."""

_FOLDING = (FOLD_EXACT, FOLD_INEXACT)

Compute = Callable[[], np.ndarray]


class Unrounded:
    """Values of constant classes of ``egraph`` before they are rounded to half precision. ``rounded``: the value of a class."""

    def __init__(self, egraph: EGraph, rounded: Callable[[int], Constant]) -> None:
        self._egraph = egraph
        self._rounded = rounded
        self._known: dict[int, Constant] = {}

    @cached_property
    def _folded_from(self) -> dict[int, int]:
        """Literal that nothing but folding one e-node made -> that e-node."""
        makers: dict[int, set[int]] = {}
        nodes = self._egraph.nodes
        for union in self._egraph.unions:
            if union.rule in _FOLDING and nodes[union.right].rule in _FOLDING:
                makers.setdefault(union.right, set()).add(union.left)
        return {literal: handles.pop() for literal, handles in makers.items() if len(handles) == 1}

    def rounded_once(self, cls: int, otherwise: Compute) -> Compute | None:
        """What gives the elements of a class, rounded once, or ``otherwise`` where that is not finite; ``None`` if they are to be
        rounded at each step, or there is one step only."""
        type = self._egraph.type_of(cls)
        if not isinstance(type, TensorType) or type.dtype not in HALVES:
            return None  # before anything is looked up: of most models that is all
        handle = self._maker(cls)
        if not self._is_rounded(handle) or not all(map(self._is_rounded, self._readers(cls))):
            return None
        operands = self._operands(handle, _STEPS)
        if not any(single for _, single in operands):
            return None
        node = self._egraph.nodes[handle]
        return partial(_rounded_once, node, [c for c, _ in operands], type.dtype, otherwise)

    def _maker(self, cls: int) -> int:
        handle = self._egraph.known.computed_by(cls)
        return self._folded_from.get(handle, handle)

    def _readers(self, cls: int) -> list[int]:
        """The e-nodes that read a class and nothing but constants, whether they are folded or computed when the program is
        loaded."""
        children, is_constant = self._egraph.canonical_children, self._egraph.is_constant
        users = set(self._egraph.users_of(cls))
        return [u for u in users if all(c == ABSENT_INPUT or is_constant(c) for c in children(u))]

    def _is_rounded(self, handle: int) -> bool:
        """Whether an e-node rounds to half precision what may as well be rounded later."""
        node = self._egraph.nodes[handle]
        traits = traits_of(node.key, node.attributes)
        smooth = traits.continuous or traits.affine or traits.vectors or traits.moves or traits.converts
        if not smooth or node.outputs != 1 or not self._egraph.known.fold_inexact:
            return False
        return self._egraph.type_of(handle).dtype in HALVES

    def _operands(self, handle: int, steps: int) -> list[tuple[Constant | None, bool]]:
        """What an e-node reads, and whether that is single precision in place of half."""
        children = self._egraph.canonical_children(handle)
        found = [None if c == ABSENT_INPUT else self._value(c, steps) for c in children]
        return [
            (v, v is not None and v.dtype is not self._egraph.type_of(c).dtype)
            for v, c in zip(found, children, strict=True)
        ]

    def _value(self, cls: int, steps: int) -> Constant:
        handle, type = self._maker(cls), self._egraph.type_of(cls)
        node = self._egraph.nodes[handle]
        literal = node.key == CONSTANT
        if literal or not steps or not self._is_rounded(handle) or not isinstance(type, TensorType):
            return self._rounded(cls)
        if cls not in self._known:
            compute = partial(_in_single, node, [c for c, _ in self._operands(handle, steps - 1)])
            small = type.size is not None and type.size <= VALUE_SIZE_LIMIT
            single = replace(type, dtype=DType.FLOAT)
            self._known[cls] = Constant(single, compute()) if small else Constant(single, compute=compute)
        return self._known[cls]


def _rounded_once(node: ENode, operands: Sequence[Constant | None], dtype: DType, otherwise: Compute) -> np.ndarray:
    with np.errstate(over="ignore"):
        found = _in_single(node, operands).astype(dtype.numpy)
    return found if is_finite(found) else otherwise()


def _in_single(node: ENode, operands: Sequence[Constant | None]) -> np.ndarray:
    inputs = [None if c is None else _single(c.numpy()) for c in operands]
    if traits_of(node.key).converts:
        return np.asarray(inputs[0], np.float32)
    return np.ascontiguousarray(evaluate_operator(node.key, node.attributes, inputs)[0], np.float32)


def _single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32) if DType.of(array.dtype) in HALVES else array
