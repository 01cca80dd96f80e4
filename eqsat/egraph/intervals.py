"""Bounds on the elements of values: exact for constants, by the operator's range otherwise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.types import TensorType

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)

_RANGES: dict[str, Interval] = {
    "Relu": (0.0, math.inf),
    "Exp": (0.0, math.inf),
    "Sqrt": (0.0, math.inf),
    "Abs": (0.0, math.inf),
    "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
}
_KEEPING = frozenset(
    (
        "Transpose",
        "Reshape",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Slice",
        "Gather",
        "Expand",
        "Tile",
        "Identity",
        "Concat",
        "Max",
        "Min",
    )
)
_DEPTH = 12


def bound_elements(egraph: EGraph, cls: int, depth: int = _DEPTH) -> Interval:
    """The tightest interval that some spelling of the class proves. NaN elements give (nan, nan)."""
    value = egraph.value_of(cls)
    if value is not None:
        return _of_array(value)
    best = EVERYTHING
    for handle in egraph.members(cls):
        low, high = _of_node(egraph, handle, depth)
        if math.isnan(low) or math.isnan(high):
            return (math.nan, math.nan)
        best = (max(best[0], low), min(best[1], high))
    return best


def _of_array(array: np.ndarray) -> Interval:
    if array.size == 0 or array.dtype == object or array.dtype.kind in "cSU":
        return EVERYTHING
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float32)
    return (float(array.min()), float(array.max()))


def _of_node(egraph: EGraph, handle: int, depth: int) -> Interval:
    node = egraph.nodes[handle]
    if node.op == "Constant" and not node.domain:
        constant = node.attributes["value"]
        assert isinstance(constant, Constant)
        return _of_array(constant.numpy())
    if node.opaque is not None or depth == 0:
        return EVERYTHING
    if node.op in _RANGES:
        return _RANGES[node.op]
    children = [c for c in egraph.canonical_children(handle) if c != 0]
    if node.op == "Mul" and len(children) == 2:
        (a, b), (c, d) = (_child(egraph, x, depth) for x in children)
        corners = [_product(x, y) for x in (a, b) for y in (c, d)]
        return (min(corners), max(corners)) if not any(map(math.isnan, corners)) else EVERYTHING
    if node.op in _KEEPING and children:
        taken = children if node.op in ("Concat", "Max", "Min") else children[:1]
        type = egraph.full_type_of(taken[0])
        if isinstance(type, TensorType) and type.dtype.is_float:
            bounds = [_child(egraph, x, depth) for x in taken]
            return (min(b[0] for b in bounds), max(b[1] for b in bounds))
    return EVERYTHING


def _child(egraph: EGraph, cls: int, depth: int) -> Interval:
    return bound_elements(egraph, cls, depth - 1)


def _product(x: float, y: float) -> float:
    return 0.0 if x == 0.0 or y == 0.0 else x * y
