"""How large the terms are from which a float result is computed: what its rounding error is relative to.

The magnitude of ``a - b`` is ``|a| + |b|``, however small the difference; that of a matrix product is the product of the
absolute values. Computed in float64, operator by operator, from the operands and their magnitudes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Kind, operator

_AMPLIFICATION = 1e3
"""How much a reduction is taken to magnify a relative error at most: masks of -1e38 under a softmax are no error at all."""

Operand = tuple[np.ndarray, np.ndarray]
"""An operand's value and its magnitude."""


def magnitude_of(op: str, attributes: Attributes, operands: Sequence[Operand | None], result: np.ndarray) -> np.ndarray:
    """Magnitude of ``result``, in its shape, as float64; never less than its absolute value."""
    own = np.abs(_double(result))
    with np.errstate(all="ignore"):
        estimate = _estimate(op, attributes, operands, own)
    if estimate is None or estimate.shape != own.shape:
        return own
    return np.fmax(own, estimate)


def _estimate(
    op: str, attributes: Attributes, operands: Sequence[Operand | None], own: np.ndarray
) -> np.ndarray | None:
    sizes = [None if o is None else np.abs(_double(o[1])) if _is_float(o[0]) else o[0] for o in operands]
    floats = [s for s, o in zip(sizes, operands, strict=True) if s is not None and o is not None and _is_float(o[0])]
    if not floats:
        return None
    if op == "Sub":
        return floats[0] + floats[1]
    if op == "Div" and operands[1] is not None:
        divisor = np.abs(_double(operands[1][0]))
        return floats[0] / divisor * np.fmax(floats[1] / divisor, 1.0)
    if op == "Gemm":
        attributes = attributes.updated(
            alpha=abs(_number(attributes.get("alpha", 1.0))), beta=abs(_number(attributes.get("beta", 1.0)))
        )
    definition = operator(op)
    if definition is None:
        return None
    if definition.traits.converts:
        return sizes[0]
    # A sum of products has, of magnitudes, the magnitude of its result.
    if definition.traits.affine or op == "Abs" or definition.kind in (Kind.VIEW, Kind.INJECTIVE):
        try:
            return np.asarray(evaluate_operator(op, attributes, sizes, 1)[0], np.float64)
        except (EqsatError, TypeError, ValueError):
            return None  # not defined on float64: the result itself must do
    if definition.kind is Kind.ELEMENTWISE:
        # Of an unknown function: its relative change is taken to be that of exp, at worst.
        return reduce(
            np.fmax, (np.broadcast_to(s, own.shape) * np.fmax(own, 1.0) for s in floats if _fits(s, own)), own
        )
    # Of a reduction: relative changes of its operands may reach any element, amplified as exp amplifies them.
    largest = max((float(np.max(s, initial=0.0, where=np.isfinite(s))) for s in floats), default=1.0)
    top = float(np.max(own, initial=0.0, where=np.isfinite(own)))
    return np.full(own.shape, top * min(max(largest, 1.0), _AMPLIFICATION))


def _fits(array: np.ndarray, result: np.ndarray) -> bool:
    shape = (1,) * (result.ndim - array.ndim) + array.shape
    return len(shape) == result.ndim and all(a in (1, b) for a, b in zip(shape, result.shape, strict=True))


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind in "fV"


def _double(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
