"""Elements in which two programs need not agree: where a float left the range of its type on the way, a re-association is no
longer bound to give the same value; where one became an integer that ONNX leaves open, nothing behind it is.

``(x * 2) / 2`` is infinite for the largest ``x``, ``x * (2 / 2)`` is not, and both are the same over the reals. An element has
overflowed if it is not finite although the same operator on the same operands in float64 gives a number. A pole (``1 / 0``)
is infinite there as well, and an infinity that was given stays one: neither is an overflow.

Quantising NaN (``inf / inf``, too), or casting NaN and what is beyond the range of the integers, gives what the implementation
likes: ONNX Runtime's QuantizeLinear makes the least integer of NaN, its Cast zero, numpy what the processor does.
"""

from collections.abc import Sequence

import numpy as np

from eqsat.egraph.difference import in_double, is_float
from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operators.quantization import in_steps

Marked = tuple[np.ndarray, np.ndarray | None]
"""An operand and, where elements of it come from an overflow, which ones."""


def overflowed(
    op: str, attributes: Attributes, operands: Sequence[Marked | None], result: np.ndarray
) -> np.ndarray | None:
    """Which elements of ``result`` overflowed, or were computed from elements that had; ``None`` if none did."""
    if not is_float(result):
        return None
    found = np.zeros(result.shape, np.bool_)
    if not np.isfinite(in_double(result)).all():
        exact = _evaluate(op, attributes, [None if o is None else _widened(o[0]) for o in operands], result.shape)
        if exact is not None:
            found |= np.isfinite(exact) & ~np.isfinite(in_double(result))
    if any(o is not None and o[1] is not None and is_float(o[0]) for o in operands):
        # NaN in place of a marked element shows which elements of the result it has a part in.
        spoilt = _evaluate(op, attributes, [None if o is None else _spoilt(*o) for o in operands], result.shape)
        if spoilt is not None:
            found |= np.isnan(spoilt)
    return found if found.any() else None


def _evaluate(
    op: str, attributes: Attributes, operands: Sequence[np.ndarray | None], shape: tuple[int, ...]
) -> np.ndarray | None:
    """The operator's one result as float64, or ``None`` where it has none of this shape on such operands."""
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(evaluate_operator(op, attributes, operands, 1)[0])
    except (EqsatError, TypeError, ValueError):
        return None
    return in_double(found) if found.shape == shape and is_float(found) else None


def _widened(array: np.ndarray) -> np.ndarray:
    return in_double(array) if is_float(array) else array


def _spoilt(array: np.ndarray, marked: np.ndarray | None) -> np.ndarray:
    return array if marked is None or not is_float(array) else np.where(marked, array.dtype.type(np.nan), array)


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
