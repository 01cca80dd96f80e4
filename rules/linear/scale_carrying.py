"""How a constant scale passes one operator: movement, Clip or PRelu.

The scale varies along one axis at most, and the axis is followed: permuted, regrouped, cut up for the operands of a Concat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, Literal, Ref, Term, Unmet, apply, literal
from eqsat.rules.linear.alignment import FLOATS, largest, limit, reshaped
from eqsat.rules.terms import div, int64s, mul, permutation_of
from eqsat.rules.views.movement import slice_ranges

MOVEMENT = ("Transpose", "Reshape", "Slice", "Pad", "Concat")
"""By operator, not by trait: those of which this module knows how an axis passes them."""
BOUNDED = ("Clip", "PRelu")

Inputs = tuple[Ref | None, ...]


class Node(NamedTuple):
    """An operator that a scale may pass, applied to ``x`` and ``rest``."""

    op: str
    ref: Ref
    x: Ref
    rest: Inputs

    def of(self, value: Term, *rest: Any) -> Apply:
        """The operator on another value."""
        args: Any = (value, *(rest or self.rest))
        return Apply(self.op, args, self.ref.attributes)


def _require(holds: object, reason: str) -> None:
    if not holds:
        raise Unmet(reason)


def _varying_axis(scale: Ref, value: Ref) -> int | None:
    """The axis of ``value`` along which ``scale`` varies, ``None`` for one number. Raises `Unmet` where it is no such scale."""
    _require(scale.dtype in FLOATS and scale.dtype is value.dtype and math.isfinite(largest(scale)), "no finite floats")
    shape, rank = scale.static_shape, value.rank
    _require(len(shape) <= rank and 0 not in shape, "the scale has more axes than the value, or no element")
    axes = [i for i, extent in enumerate(shape, rank - len(shape)) if extent != 1]
    _require(len(axes) <= 1, "the scale varies along several axes")
    _require(all(value.shape[i] == shape[i - rank] for i in axes), "the scale enlarges the value")
    return axes[0] if axes else None


def _along(scale: Ref, rank: int, axis: int | None) -> Term:
    """``scale`` along ``axis`` of a value of ``rank`` axes, a number if there is none."""
    size = math.prod(scale.static_shape)
    return reshaped(scale, () if axis is None else [size if i == axis else 1 for i in range(rank)])


def _moved_scale(node: Node, scale: Ref, *, back: bool) -> Term:
    """``scale`` of the result as one of the operand, or, unless ``back``, the other way round."""
    source, target = (node.ref, node.x) if back else (node.x, node.ref)
    axis = _varying_axis(scale, source)
    if node.op == "Pad":
        _require(_has_border_of_zeros(node), "the border is not zero, or negative")
    if axis is None:
        return _along(scale, target.rank, None)
    if node.op == "Transpose":
        perm = permutation_of(node.ref)
        axis = perm[axis] if back else perm.index(axis)
    elif node.op == "Reshape":
        axis = _regrouped(source, target, axis)
    else:
        _require(node.op != "Slice" or axis not in _sliced_axes(node), "the scale varies along a sliced axis")
        _require(source.shape[axis] == target.shape[axis], "the scale varies along a padded axis")
    return _along(scale, target.rank, axis)


def _regrouped(source: Ref, target: Ref, axis: int) -> int:
    """The axis of ``target`` that holds the same elements as ``axis`` of ``source``."""
    behind = _size(source.shape[axis + 1 :])
    _require(behind is not None, "a trailing extent is unknown")
    for found, extent in enumerate(target.shape):
        if extent == source.shape[axis] and _size(target.shape[found + 1 :]) == behind:
            return found
    raise Unmet("the axis is merged or split")


def _size(extents: tuple[Dim, ...]) -> int | None:
    """The product of the extents, ``None`` if one is unknown."""
    known = [d for d in extents if isinstance(d, int)]
    return math.prod(known) if len(known) == len(extents) else None


def _has_border_of_zeros(node: Node) -> bool:
    pads, value = (*node.rest, None)[:2]
    assert pads is not None
    zero = value is None or value.interval == (0, 0)
    return node.ref.attr("mode", "constant") == "constant" and zero and pads.interval[0] >= 0


def _sliced_axes(node: Node) -> set[int]:
    starts, ends, axes, steps = (*node.rest, None, None)[:4]
    assert starts is not None
    assert ends is not None
    ranges = slice_ranges(node.x, starts, ends, axes, steps)
    return {axis for axis, taken in ranges.items() if len(taken) != node.x.shape[axis]}


# --- one operator --------------------------------------------------------------------------------------------------------


def scaled_operand(node: Node, scale: Ref) -> Term:
    """``op(x, ...) * scale`` as the operator on a scaled ``x``. Raises `Unmet` where the scale does not pass."""
    if node.op == "Concat":
        return Apply("Concat", tuple(_scaled_parts(node, scale)), node.ref.attributes)
    factor = _moved_scale(node, scale, back=True)
    if node.op not in BOUNDED:
        return node.of(mul(node.x, factor))
    _require_positive(node, scale)
    return node.of(mul(node.x, factor), *_bounds(node, scale, mul))


def scaled_result(node: Node, x: Ref, scale: Ref) -> Term:
    """The operator on ``x * scale`` as a scaled one on ``x``. Raises `Unmet` where the scale does not pass."""
    node = node._replace(x=x)
    factor = _moved_scale(node, scale, back=False)
    if node.op not in BOUNDED:
        return mul(node.of(x), factor)
    _require_positive(node, scale)
    return mul(node.of(x, *_bounds(node, scale, div)), factor)


def _require_positive(node: Node, scale: Ref) -> None:
    _require(scale.interval[0] > 0, "the scale is not positive")
    _require(node.op != "Clip" or math.prod(scale.static_shape) == 1, "a bound for each channel")


def _bounds(node: Node, scale: Ref, move: Any) -> Iterator[Term | None]:
    """The bounds of a Clip multiplied or divided by ``scale``; the slope of a PRelu."""
    for bound in node.rest:
        if node.op == "PRelu" or bound is None:
            yield bound
            continue
        factor = max(largest(scale), 1 / scale.interval[0])
        _require(bound.is_constant and largest(bound) * factor < limit(bound), "a bound is unknown or overflows")
        yield move(bound, _along(scale, 0, None))


def _scaled_parts(node: Node, scale: Ref) -> Iterator[Term]:
    parts = [p for p in (node.x, *node.rest) if p is not None]
    axis, joined, rank = _varying_axis(scale, node.ref), _joined_axis(node), node.ref.rank
    factor = _along(scale, rank, axis)
    end = 0
    for part in parts:
        if axis != joined:
            yield mul(part, factor)
            continue
        start, end = end, end + _extent(part, joined)
        yield mul(part, apply("Slice", factor, int64s((start,)), int64s((end,)), int64s((joined,))))


def _joined_axis(node: Node) -> int:
    return int(node.ref.attr("axis")) % node.ref.rank


def scaled_concat(node: Node, factors: Mapping[int, list[tuple[Ref, Ref]]]) -> Term:
    """A Concat of which some operands are scaled as one of operands that are not, times the scales side by side."""
    axis, rank = _joined_axis(node), node.ref.rank
    parts: list[Term] = []
    scales: list[Term] = []
    for part in (node.x, *node.rest):
        assert part is not None
        found = [(x, s) for x, s in factors.get(part.handle, ()) if _is_along(s, x, axis)]
        extent = _extent(part, axis)
        ones = literal(np.ones([extent if i == axis else 1 for i in range(rank)], part.dtype.numpy))
        x, scale = found[0] if found else (part, None)
        parts.append(x)
        scales.append(ones if scale is None else mul(ones, _along(scale, rank, _varying_axis(scale, x))))
    _require(any(not isinstance(s, Literal) for s in scales), "no operand is scaled along the joined axis")
    return mul(Apply("Concat", tuple(parts), node.ref.attributes), apply("Concat", *scales, axis=axis))


def _extent(value: Ref, axis: int) -> int:
    found = value.shape[axis]
    if not isinstance(found, int):
        raise Unmet("an extent is unknown")
    return found


def _is_along(scale: Ref, value: Ref, axis: int) -> bool:
    try:
        return _varying_axis(scale, value) in (None, axis)
    except Unmet:
        return False


__all__ = ["BOUNDED", "MOVEMENT", "Node", "scaled_concat", "scaled_operand", "scaled_result"]
