"""Masks that are one number below, one on and one above the diagonal: those of causality, for extents that are symbols, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.ir import extents
from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.normal_form import Dim
from eqsat.ir.operator import operators_with, traits_of
from eqsat.ir.types import DType
from eqsat.rewrite import Ref
from eqsat.rules.attention.elements import elements_of
from eqsat.rules.attention.reading import Reader
from eqsat.rules.attention.scores import FLOATS
from eqsat.rules.terms import established
from eqsat.rules.views.counting import is_view
from eqsat.rules.views.movement import cuts
from eqsat.rules.views.triangles import triangle

Sides = tuple[float, float, float]
"""The elements of a value below, on and above the diagonal of its last two axes, which starts at their first elements."""

_DEPTH = 12


def sides_of(reader: Reader, value: Ref, depth: int = _DEPTH) -> Sides | None:
    """The numbers that the elements of a value are by their place, if that is all there is to say."""
    return reader.once(_search_sides, value, depth)


def _search_sides(reader: Reader, value: Ref, depth: int) -> Sides | None:
    if value.low == value.high:
        return value.low, value.low, value.low
    if value.type.shape is None or value.rank < 2:
        return None
    if value.is_constant:
        array = elements_of(reader, value)
        return None if array is None else sides_of_array(array)
    spelled = ((reader, value, op, inputs, depth - 1) for op, inputs in reader.view.spellings(value) if depth)
    return next(established(_of_operator, spelled), None)


def sides_of_array(array: np.ndarray) -> Sides | None:
    """`sides_of` known elements."""
    if array.ndim < 2 or min(array.shape[-2:]) < 2 or not array.size or array.dtype.kind not in "fiub":
        return None
    rows, columns = np.indices(array.shape[-2:], np.int32)
    found: list[float] = []
    for place in (rows > columns, rows == columns, rows < columns):
        elements = array[..., place]
        if not (elements == elements.flat[0]).all():
            return None
        found.append(float(elements.flat[0]))
    below, on, above = found
    return below, on, above


def of_condition(condition: Sides, true: float, false: float) -> Sides:
    """What a choice between two numbers gives."""
    below, on, above = (true if holds else false for holds in condition)
    return below, on, above


def spans(part: Dim, whole: Dim) -> bool:
    """Whether an extent that broadcasts to another is that, and not 1 where the other is more: ``min(1024, n)`` of ``n``."""
    operands = extents.operands(part, "min") if isinstance(part, str) else ()
    return part == whole or (whole in operands and all(x == whole or (isinstance(x, int) and x > 1) for x in operands))


def _of_operator(reader: Reader, value: Ref, op: str, inputs: Sequence[Ref | None], depth: int) -> Sides | None:
    given, traits = [x for x in inputs if x is not None], traits_of(op)
    if not given or (len(given) < len(inputs) and op != "Slice"):
        return None
    counted = _of_order(reader, value, op, given) if traits.orders else None
    if counted is not None:
        return counted
    if op == "Trilu":
        return _cut(reader, value, given[0], depth)
    if traits.converts:
        return _converted(sides_of(reader, given[0], depth), given[0].dtype, value.dtype)
    if op == "Slice":
        return sides_of(reader, given[0], depth) if _starts_at_the_corner(inputs) else None
    if traits.moves:
        stays = op in operators_with(is_view) or traits.extents is not None
        return _among(reader, value, given[0], depth) if stays else None
    plain = traits.truths or traits.affine or traits.sources or (traits.truth and len(given) > 1)
    if traits.operands == len(given) and plain:
        operands = [_among(reader, value, x, depth) for x in given]
        return None if None in operands else _computed(op, operands, [x.dtype for x in given])
    return None


def _among(reader: Reader, value: Ref, operand: Ref, depth: int) -> Sides | None:
    """The numbers of an operand at the places of the value that it is broadcast to."""
    sides = sides_of(reader, operand, depth)
    uniform = sides is None or len(set(sides)) == 1
    return sides if uniform or all(map(spans, operand.shape[-2:], value.shape[-2:])) else None


def _computed(op: str, operands: Sequence[Any], dtypes: Sequence[DType]) -> Sides | None:
    """What an operator without attributes makes of the numbers, place by place."""
    arrays = [np.array(x).astype(dtype.numpy) for x, dtype in zip(operands, dtypes, strict=True)]
    with np.errstate(all="ignore"):
        return _told(evaluate_operator(op, NO_ATTRIBUTES, arrays)[0])


def _told(array: np.ndarray) -> Sides | None:
    below, on, above = array.astype(np.float64).tolist()
    return None if np.isnan((below, on, above)).any() else (below, on, above)


def _converted(sides: Sides | None, source: DType, target: DType) -> Sides | None:
    """Numbers in another element type, where every runtime makes the same of them."""
    if sides is None or not (source is DType.BOOL or target in (*FLOATS, DType.BOOL)):
        return None
    with np.errstate(over="ignore"):
        return _told(np.array(sides).astype(source.numpy).astype(target.numpy))


def _of_order(reader: Reader, value: Ref, op: str, operands: Sequence[Ref]) -> Sides | None:
    """What an order of two values is that count along axes."""
    apart = reader.indices.difference(value, operands)
    found = None if apart is None else triangle(op, apart, value.rank)
    return None if found is None else _of_triangle(*found)


def _of_triangle(upper: bool, diagonal: Dim) -> Sides | None:
    """A triangle from a diagonal on, which is that of the value or next to it."""
    if diagonal == 0:
        return (0.0, 1.0, 1.0) if upper else (1.0, 1.0, 0.0)
    if diagonal == (1 if upper else -1):
        return (0.0, 0.0, 1.0) if upper else (1.0, 0.0, 0.0)
    return None


def _cut(reader: Reader, value: Ref, source: Ref, depth: int) -> Sides | None:
    """What a Trilu leaves."""
    sides = sides_of(reader, source, depth)
    if sides is None:
        return None
    for node, inputs in reader.view.nodes("Trilu"):
        if node.handle != value.handle or inputs[0] is None or inputs[0].handle != source.handle:
            continue
        diagonal = inputs[1] if len(inputs) > 1 else None
        kept = _of_triangle(bool(node.attr("upper", 1)), 0 if diagonal is None else int(diagonal.value.reshape(())))
        if kept is not None:
            below, on, above = (x if keeps else 0.0 for x, keeps in zip(sides, kept, strict=True))
            return below, on, above
    return None


def _starts_at_the_corner(inputs: Sequence[Any]) -> bool:
    """Whether a Slice takes the first elements along the last two axes, one by one."""
    given: Any = (*inputs, None, None)[:5]
    source, starts, _, axes, steps = given
    return all(
        (start == 0 and step == 1) or axis < source.rank - 2 for axis, start, step in cuts(source, starts, axes, steps)
    )
