"""How large the terms are from which a float result is computed: what its rounding error is relative to.

The magnitude of ``a - b`` is ``|a| + |b|``, however small the difference; that of a matrix product is the product of the
absolute values. Computed in float64, operator by operator, from the operands and their magnitudes.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from eqsat.egraph.difference import in_double, is_float
from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import Kind, operator, traits_of

_AMPLIFICATION = 1e3
"""How much a reduction is taken to magnify a relative error at most: masks of -1e38 under a softmax are no error at all."""

_CODES = ("int8", "uint8", "int16", "uint16")
"""Types of integers, of quantised values, that a rule of class LSB may move by a quantum."""

Operand = tuple[np.ndarray, np.ndarray]
"""An operand's value and its magnitude."""


def magnitude_of(
    op: str, attributes: Attributes, operands: Sequence[Operand | None], result: np.ndarray, output: int = 0
) -> np.ndarray:
    """Magnitude of ``result``, output number ``output`` of the operator, in its shape, as float64; never less than its absolute
    value."""
    own = np.abs(in_double(result))
    with np.errstate(all="ignore"):
        estimate = _estimate(op, attributes, operands, own, output)
    if estimate is None or estimate.shape != own.shape:
        return own
    return np.fmax(own, estimate)


def _estimate(
    op: str, attributes: Attributes, operands: Sequence[Operand | None], own: np.ndarray, output: int
) -> np.ndarray | None:
    sizes = [None if o is None else np.abs(in_double(o[1])) if is_float(o[0]) else o[0] for o in operands]
    floats = [s for s, o in zip(sizes, operands, strict=True) if s is not None and o is not None and is_float(o[0])]
    if not floats:
        return None
    if op == "Div" and operands[1] is not None:
        divisor = np.abs(in_double(operands[1][0]))
        return floats[0] / divisor * np.fmax(floats[1] / divisor, 1.0)
    definition = operator(op)
    if definition is None:
        return None
    if definition.traits.converts:
        return sizes[0]
    if _is_sum_of_products(op):
        return _of_sizes(op, attributes, sizes, output)
    if definition.kind is Kind.ELEMENTWISE:
        # Of an unknown function: its relative change is taken to be that of exp, at worst.
        return reduce(
            np.fmax, (np.broadcast_to(s, own.shape) * np.fmax(own, 1.0) for s in floats if _fits(s, own)), own
        )
    # Of a reduction: relative changes of its operands may reach any element, amplified as exp amplifies them.
    largest = max((float(np.max(s, initial=0.0, where=np.isfinite(s))) for s in floats), default=1.0)
    top = float(np.max(own, initial=0.0, where=np.isfinite(own)))
    return np.full(own.shape, top * min(max(largest, 1.0), _AMPLIFICATION))


def moved_with(
    op: str,
    attributes: Attributes,
    operands: Sequence[np.ndarray | None],
    steps: Sequence[np.ndarray | None],
    output: int,
) -> np.ndarray | None:
    """By how much a dequantised integer moves with a quantum, a code converted to floats (by one), and a sum of products at most
    when each element of an operand moves by its step; ``None`` of other operators, and where nothing moves."""
    if op == "DequantizeLinear" and operands[0] is not None:
        scale = np.asarray(operands[1], np.float64)
        return np.full(operands[0].shape, scale.reshape(())) if scale.size == 1 else None
    if traits_of(op).converts and operands[0] is not None and operands[0].dtype in _CODES:
        return np.ones(operands[0].shape)
    if all(step is None for step in steps) or not _is_sum_of_products(op):
        return None
    sizes = [None if o is None else np.abs(in_double(o)) if is_float(o) else o for o in operands]
    moved = [size if step is None or size is None else size + step for size, step in zip(sizes, steps, strict=True)]
    ends = [_of_sizes(op, attributes, each, output) for each in (sizes, moved)]
    return None if ends[0] is None or ends[1] is None else np.abs(ends[1] - ends[0])


def _is_sum_of_products(op: str) -> bool:
    """Whether the operator has, of magnitudes, the magnitude of its result."""
    definition = operator(op)
    if definition is None or op == "Div":
        return False
    return bool(definition.traits.affine) or op == "Abs" or definition.kind in (Kind.VIEW, Kind.INJECTIVE)


def _of_sizes(op: str, attributes: Attributes, sizes: Sequence[np.ndarray | None], output: int) -> np.ndarray | None:
    """The operator with a plus in the place of each minus, or ``None`` where it is not defined on float64."""
    if op == "Sub":
        op = "Add"
    if op == "Gemm":
        attributes = attributes.updated(
            alpha=abs(_number(attributes.get("alpha", 1.0))), beta=abs(_number(attributes.get("beta", 1.0)))
        )
    try:
        return np.asarray(evaluate_operator(op, attributes, sizes, output + 1)[output], np.float64)
    except (EqsatError, TypeError, ValueError, IndexError):
        return None


def _fits(array: np.ndarray, result: np.ndarray) -> bool:
    shape = (1,) * (result.ndim - array.ndim) + array.shape
    return len(shape) == result.ndim and all(a in (1, b) for a, b in zip(shape, result.shape, strict=True))


def _number(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)
