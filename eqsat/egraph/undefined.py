"""Where a float became an integer that ONNX leaves open: behind such an element no two programs have to agree.

Quantising NaN (``inf / inf``, too), or casting NaN and what is beyond the range of the integers, gives what the implementation
likes: ONNX Runtime's QuantizeLinear makes the least integer of NaN, its Cast zero, numpy what the processor does.
"""

from collections.abc import Sequence

import numpy as np

from eqsat.egraph.overflow import Marked
from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operators.quantization import in_steps

_CONVERSIONS = ("QuantizeLinear", "com.microsoft::QuantizeLinear", "Cast")


def undefined(
    op: str, attributes: Attributes, operands: Sequence[Marked | None], result: np.ndarray
) -> np.ndarray | None:
    """Which elements of ``result`` ONNX leaves open, or were computed from elements that it does; ``None`` if none."""
    found = np.zeros(result.shape, np.bool_)
    if op in _CONVERSIONS and result.dtype.kind in "iu" and operands[0] is not None:
        found |= _unconvertible(op, attributes, [None if o is None else o[0] for o in operands], result)
    if any(o is not None and o[1] is not None for o in operands):
        for end in (0, -1):  # what changes with the marked elements has a part in them
            moved = [None if o is None else _moved(*o, end) for o in operands]
            try:
                other = np.asarray(evaluate_operator(op, attributes, moved, 1)[0])
            except (EqsatError, TypeError, ValueError):
                continue
            if other.shape == result.shape:
                found |= (other != result) & ~((other != other) & (result != result))
    return found if found.any() else None


def _unconvertible(
    op: str, attributes: Attributes, operands: Sequence[np.ndarray | None], result: np.ndarray
) -> np.ndarray:
    x = operands[0]
    assert x is not None
    if x.dtype.kind not in "fV":
        return np.zeros(result.shape, np.bool_)
    wide = x.astype(np.float64)
    if op == "Cast":
        limits = np.iinfo(result.dtype)
        inside = (np.trunc(wide) >= float(limits.min)) & (np.trunc(wide) <= float(limits.max))
        return np.broadcast_to(~inside, result.shape)
    scale = operands[1]
    with np.errstate(all="ignore"):
        return np.isnan(wide if scale is None else in_steps(attributes, x, scale))


def _moved(array: np.ndarray, marked: np.ndarray | None, end: int) -> np.ndarray:
    """The array with the least (``end`` 0) or greatest number of its type in place of marked elements."""
    if marked is None:
        return array
    if array.dtype.kind == "b":
        return np.where(marked, bool(end), array)
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        return np.where(marked, array.dtype.type(limits.max if end else limits.min), array)
    return np.where(marked, array.dtype.type(1e4 if end else -1e4), array)
