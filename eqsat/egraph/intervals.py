"""Bounds on the elements of what an e-node computes: exact for constants, by the operator's range otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import traits_of
from eqsat.ir.traits import Traits
from eqsat.ir.types import HALVES, DType
from eqsat.rewrite import PROJECTION

if TYPE_CHECKING:
    from eqsat.egraph.egraph import EGraph
    from eqsat.egraph.element_bounds import ElementBounds

Interval = tuple[float, float]
EVERYTHING: Interval = (-math.inf, math.inf)

_APPROXIMATION = 2e-6
"""By how much kernels miss the values of a rising function with bounds, and more; in half precision they round."""

_BYTES = frozenset((DType.INT8, DType.UINT8))
_FOLLOWED = _BYTES | {DType.INT64, DType.BOOL}
"""Types in which bounds tell something: codes, the extents that shapes are computed from, truth."""

_MOST_ELEMENTS = 2.0**47
"""More do not fit into memory. Sums of extents do not overflow."""

_LARGEST = 2.0**52
"""Sums and products of integers up to here are computed as floats without rounding, and fit into 64 bits."""

DEPTH, _INTEGER_DEPTH = 12, 3
"""How far integers are followed: a Clip below a view or two says all that there is to know."""


def of_nodes(egraph: EGraph, handles: Sequence[int], depth: int, told: ElementBounds) -> Interval:
    """What e-nodes of one class prove together."""
    best = EVERYTHING
    for handle in handles:
        best = meet(best, _of_node(egraph, handle, depth, told))
        if math.isnan(best[0]):
            break
    return best


def meet(one: Interval, other: Interval) -> Interval:
    if any(map(math.isnan, (*one, *other))):
        return (math.nan, math.nan)
    return (max(one[0], other[0]), min(one[1], other[1]))


def of_array(array: np.ndarray) -> Interval:
    if array.size == 0 or array.dtype == object or array.dtype.kind in "cSU":
        return EVERYTHING
    if DType.of(array.dtype) in HALVES:
        return _of_halves(array)
    if array.dtype.kind not in "fiub":
        array = array.astype(np.float32)
    return _outward(array.min().item(), array.max().item())


def _of_halves(array: np.ndarray) -> Interval:
    """The same for half precision, from its sign and magnitude as integers: of those NumPy finds extremes ten times as fast."""
    bits = array.view(np.uint16)
    last, first, positive = bits.max(), bits.min(), array.view(np.int16).max()
    infinite = np.array(math.inf, array.dtype).view(np.uint16)
    sign = np.uint16(1 << 15)
    if positive > np.int16(infinite) or last > infinite | sign:
        return (math.nan, math.nan)
    least, greatest = (last if last >= sign else first), (positive.astype(np.uint16) if positive >= 0 else first)
    low, high = np.array((least, greatest), np.uint16).view(array.dtype).tolist()
    return (float(low), float(high))


def _outward(least: float, greatest: float) -> Interval:
    """Numbers as floats, which hold not every integer beyond 2**53."""
    low, high = float(least), float(greatest)
    return (
        math.nextafter(low, -math.inf) if low > least else low,
        math.nextafter(high, math.inf) if high < greatest else high,
    )


def _of_node(egraph: EGraph, handle: int, depth: int, told: ElementBounds) -> Interval:
    node = egraph.nodes[handle]
    if node.key == "Constant":
        constant = node.attributes["value"]
        assert isinstance(constant, Constant)
        return of_array(constant.numpy())
    if node.opaque is not None:
        return EVERYTHING
    if depth == 0:
        told.cut = True
        return EVERYTHING
    children = [c for c in egraph.canonical_children(handle) if c != 0]
    if node.op == PROJECTION:  # a part of what is cut: the operator itself has bounds only if it moves elements
        return told.of(children[0], depth - 1)
    traits = traits_of(node.key, node.attributes)
    if (traits.operands == 2 and traits.affine and node.key != "Mul") or node.key == "Sqrt":
        found = _of_arithmetic(egraph, node.key, children, depth, told)
        if found is not None:
            return found
    if node.key == "ConstantOfShape":
        filling: Any = node.attributes.get("value")
        return (0.0, 0.0) if filling is None else of_array(filling.numpy())
    if node.key in ("Shape", "Size"):
        return (0.0, _MOST_ELEMENTS)
    if traits.truth:
        return _of_truth(egraph, handle, traits, children, depth, told)
    if node.key == "Range" and len(children) == 3:
        return _of_range(egraph.full_type_of(handle).dtype, *(told.of(x, depth - 1) for x in children))
    if traits.bounds != EVERYTHING and (traits.sources or egraph.full_type_of(handle).dtype.is_float):
        return _of_function(egraph, traits, egraph.full_type_of(handle).dtype, children, depth, told)
    if node.key == "DequantizeLinear":
        return _of_dequantized(egraph, handle, depth, told)
    if node.key == "Mul":
        one, other = (told.of(x, depth - 1) for x in children)
        return _of_product(egraph.full_type_of(handle).dtype, one, other, square=children[0] == children[1])
    if node.key == "MatMul":
        return _of_row(egraph, children, depth, told)
    if node.key == "Where":
        lows, highs = zip(*(told.of(x, depth - 1) for x in children[1:]), strict=True)
        return EVERYTHING if any(map(math.isnan, (*lows, *highs))) else (min(lows), max(highs))
    if node.key == "Cast":
        return _of_cast(egraph, handle, children[0])
    if node.key == "Clip":
        return _of_clipped_bytes(egraph, handle, depth, told)
    if traits.moves or traits.clamps:
        return _of_taken(egraph, traits, egraph.canonical_children(handle), depth, told)
    if traits.affine and traits.rising and traits.homogeneous and egraph.full_type_of(handle).dtype.is_float:
        return _of_one_sign(*told.of(children[0], depth - 1))
    return EVERYTHING


def _of_one_sign(low: float, high: float) -> Interval:
    """Sums and means, which make zero of zeros and never fall."""
    return (0.0 if low >= 0 else -math.inf, 0.0 if high <= 0 else math.inf)


def _of_taken(egraph: EGraph, traits: Traits, children: Sequence[int], depth: int, told: ElementBounds) -> Interval:
    """Bounds of floats, bytes or extents each of which is an element of an operand, or zero."""
    taken = [c for i, c in enumerate(children) if c != 0 and i in traits.sources]
    dtype = egraph.full_type_of(taken[0]).dtype if taken else DType.UNDEFINED
    if not (dtype.is_float or dtype in _FOLLOWED):
        return EVERYTHING
    bounds = [told.of(x, depth - 1) for x in taken] + [(0.0, 0.0)] * traits.or_zero
    return (min(b[0] for b in bounds), max(b[1] for b in bounds))


def _of_truth(
    egraph: EGraph, handle: int, traits: Traits, children: Sequence[int], depth: int, told: ElementBounds
) -> Interval:
    """What is true of all whole numbers within the bounds of the operands, as 0 or 1; of truth values likewise."""
    dtype = egraph.full_type_of(children[0]).dtype
    followed = (traits.orders and dtype.is_integer) or (traits.idempotent and dtype is DType.BOOL)
    if not followed or len(children) != 2:
        return (0.0, 1.0)
    (a, b), (c, d) = (told.of(x, depth - 1) for x in children)
    corners = ((a, d), (b, c)) if traits.orders else ((max(a, 0), max(c, 0)), (min(b, 1), min(d, 1)))
    node = egraph.nodes[handle]
    found = [evaluate_operator(node.key, node.attributes, [np.asarray(x) for x in corner])[0] for corner in corners]
    return (float(min(found)), float(max(found)))


def _of_range(dtype: DType, start: Interval, limit: Interval, step: Interval) -> Interval:
    """Places counted upwards, in whole numbers: sums of others are rounded, and the last may be beyond the limit."""
    whole = dtype.is_integer or all(low == high and low.is_integer() for low, high in (start, step))
    return (start[0], max(start[0], limit[1])) if whole and step[0] > 0 else EVERYTHING


def _of_cast(egraph: EGraph, handle: int, child: int) -> Interval:
    """Integers and truth values in a type that holds numbers as large."""
    source, result = egraph.full_type_of(child).dtype, egraph.full_type_of(handle).dtype
    if result not in (DType.FLOAT, DType.DOUBLE, DType.INT64) or source is DType.UINT64:
        return EVERYTHING
    if source is DType.BOOL:
        return (0.0, 1.0)
    if source is DType.UNDEFINED or source.numpy.kind not in "iu":
        return EVERYTHING
    limits = np.iinfo(source.numpy)
    return (float(result.numpy.type(limits.min)), float(result.numpy.type(limits.max)))


def _of_clipped_bytes(egraph: EGraph, handle: int, depth: int, told: ElementBounds) -> Interval:
    """Bounds of a Clip of 8-bit integers, among which there is no NaN."""
    children = egraph.canonical_children(handle)
    if egraph.full_type_of(children[0]).dtype not in _BYTES:
        return EVERYTHING
    least, greatest = told.of(children[0], depth - 1)
    low, high = ((children[i] if len(children) > i else 0) for i in (1, 2))
    above = told.of(low, depth - 1) if low else (-math.inf, -math.inf)
    below = told.of(high, depth - 1) if high else (math.inf, math.inf)
    return (min(max(least, above[0]), below[0]), min(max(greatest, above[1]), below[1]))


def _of_function(
    egraph: EGraph, traits: Traits, dtype: DType, children: list[int], depth: int, told: ElementBounds
) -> Interval:
    """The range of a function, or what it makes of a smaller interval."""
    low, high = traits.bounds
    if traits.value is None:
        return (low, high)
    least, greatest = told.of(children[0], depth - 1)
    if math.isnan(least) or math.isnan(greatest):
        return (low, high)
    missed = max(_APPROXIMATION, float(ml_dtypes.finfo(dtype.numpy).eps)) if dtype.is_float else _APPROXIMATION
    ends = traits.value(least) - missed, traits.value(greatest) + missed
    return (max(low, ends[0]), min(high, ends[1]))


def _of_dequantized(egraph: EGraph, handle: int, depth: int, told: ElementBounds) -> Interval:
    """Bounds of ``(q - z) * s`` in float32 for 8-bit integers and finite scales, widened by one rounding."""
    children = egraph.canonical_children(handle)
    source = egraph.full_type_of(children[0]).dtype
    if source not in _BYTES or egraph.full_type_of(handle).dtype is not DType.FLOAT:
        return EVERYTHING
    limits = np.iinfo(source.numpy)
    outer = told.cut
    low, high = told.of(children[0], min(depth, _INTEGER_DEPTH) - 1)
    if depth >= _INTEGER_DEPTH:  # no depth tells more
        told.cut = outer
    scales = told.of(children[1], depth - 1)
    zeros = told.of(children[2], depth - 1) if len(children) > 2 and children[2] else (0.0, 0.0)
    ends = max(low, int(limits.min)) - zeros[1], min(high, int(limits.max)) - zeros[0]
    if not all(map(math.isfinite, (*ends, *scales))):
        return EVERYTHING
    corners = [x * s for x in ends for s in scales]
    return _widened(DType.FLOAT, min(corners), max(corners)) or EVERYTHING


def _widened(dtype: DType, low: float, high: float) -> Interval | None:
    """An interval of floats, its finite ends moved outward by one rounding, but not to infinity."""
    limit = float(np.finfo(dtype.numpy).max)
    with np.errstate(over="ignore"):
        least, greatest = dtype.numpy.type(low), dtype.numpy.type(high)
        found = np.nextafter(least, -np.inf, dtype=least.dtype), np.nextafter(greatest, np.inf, dtype=greatest.dtype)
    if any(math.isfinite(end) and not np.isfinite(rounded) for end, rounded in ((low, least), (high, greatest))):
        return None
    return (
        max(float(found[0]), -limit) if math.isfinite(low) else low,
        min(float(found[1]), limit) if math.isfinite(high) else high,
    )


def _of_arithmetic(egraph: EGraph, op: str, children: list[int], depth: int, told: ElementBounds) -> Interval | None:
    """Bounds from those of the operands, widened by one rounding; ``None`` where they say nothing.

    Of two operands one has finite bounds, the second of a difference or quotient: infinities may make NaN of each other."""
    dtype = egraph.full_type_of(children[0]).dtype
    extents = dtype is DType.INT64 and op in ("Add", "Sub")
    if not (extents or dtype in (DType.FLOAT16, DType.FLOAT, DType.DOUBLE)):
        return None
    bounds = [told.of(c, depth - 1) for c in children]
    (a, b), (c, d) = bounds[0], bounds[-1]
    finite = [math.isfinite(low) and math.isfinite(high) for low, high in bounds]
    if not (all(finite) if extents else finite[-1] or op == "Sqrt" or (op == "Add" and finite[0])):
        return None
    if op == "Add":
        corners = [a + c, b + d]
    elif op == "Sub":
        corners = [a - d, b - c]
    elif op == "Div" and (c > 0 or d < 0):
        corners = [a / c, a / d, b / c, b / d]
    elif op == "Sqrt" and a >= 0:
        corners = [math.sqrt(a), math.sqrt(b)]
    else:
        return None
    if extents:
        return (corners[0], corners[1]) if max(map(abs, corners)) <= _LARGEST else None
    return _widened(dtype, min(corners), max(corners))


def _of_row(egraph: EGraph, children: list[int], depth: int, told: ElementBounds) -> Interval:
    """Of one row, as a bias behind weights: as many products of the largest elements as there are terms, and as many roundings.
    Not of matrices: chains of layers known to be finite would have a spelling for each stretch."""
    type = egraph.full_type_of(children[0])
    *others, terms = (type.shape if type.dtype is DType.FLOAT else ()) or (None,)
    bounds = [told.of(c, depth - 1) for c in children] if set(others) <= {1} else [EVERYTHING]
    if not isinstance(terms, int) or not all(math.isfinite(b) for pair in bounds for b in pair):
        return EVERYTHING
    most = terms * (1 + terms * 2.0**-22) * math.prod(max(map(abs, pair)) for pair in bounds)
    return _widened(DType.FLOAT, -most, most) or EVERYTHING


def _of_product(dtype: DType, one: Interval, other: Interval, *, square: bool = False) -> Interval:
    """Bounds of products: of integers only where they do not wrap around; of floats rounded, which never turns an order around.

    Zeros times floats of which only bounds are known tell nothing: those may be infinite or NaN.
    """
    corners = [_product(x, y) for x in one for y in other]
    if any(map(math.isnan, corners)):
        return EVERYTHING
    low, high = min(corners), max(corners)
    if dtype.is_integer:
        limits = ml_dtypes.iinfo(dtype.numpy)
        fits = max(-_LARGEST, int(limits.min)) <= low and high <= min(_LARGEST, int(limits.max))
        return (low, high) if fits else EVERYTHING
    known = all(math.isfinite(x) and x == y for x, y in (one, other))
    if not dtype.is_float or (not known and (0.0, 0.0) in (one, other)):
        return EVERYTHING
    if square:
        low = max(low, 0.0)
    with np.errstate(over="ignore"):
        return (float(dtype.numpy.type(low)), float(dtype.numpy.type(high)))


def _product(x: float, y: float) -> float:
    return 0.0 if x == 0.0 or y == 0.0 else x * y
