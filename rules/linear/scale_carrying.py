"""How a constant scale passes one operator: movement, Clip or PRelu.

The scale varies along one axis at most, and the axis is followed: permuted, regrouped, cut up for the operands of a Concat.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from eqsat.conditions import worthwhile
from eqsat.equations import named, stated
from eqsat.ir.types import Dim
from eqsat.rewrite import Apply, GroupView, Literal, Ref, Term, Unmet, apply, literal
from eqsat.rules.linear.alignment import FLOATS, largest, lies_along, limit, reshaped
from eqsat.rules.terms import div, int64s, mul, permutation_of
from eqsat.rules.views.movement import runs_forward, taken

MOVEMENT = ("Transpose", "Reshape", "Slice", "Pad", "Concat")
"""By operator, not by trait: those of which this module knows how an axis passes them."""
BOUNDED = ("Clip", "PRelu")


class Node(NamedTuple):
    """An operator that a scale may pass, applied to ``x`` and ``rest``."""

    op: str
    ref: Ref
    x: Ref
    rest: tuple[Ref | None, ...]

    def of(self, value: Term, *rest: Any) -> Apply:
        """The operator on another value."""
        args: Any = (value, *(rest or self.rest))
        return Apply(self.op, args, self.ref.attributes)

    @property
    def operands(self) -> tuple[Ref, ...]:
        """The values that a scale of the result would have to enter."""
        rest = self.rest if self.op == "Concat" else ()
        return (self.x, *(r for r in rest if r is not None))

    @property
    def joined(self) -> int:
        """The axis of a Concat."""
        return int(self.ref.attr("axis")) % self.ref.rank


# --- what has to hold ----------------------------------------------------------------------------------------------------


def is_vector(scale: Ref, value: Ref) -> bool:
    """Whether a scale varies along one axis of a value at most, and does not enlarge it."""
    return any(lies_along(scale, value, axis) for axis in range(max(value.rank, 1))) and 0 not in scale.static_shape


def _varying(scale: Ref, rank: int) -> int | None:
    """The axis along which a vector varies, of a value of ``rank`` axes; ``None`` for one number."""
    return next((i for i, d in enumerate(scale.static_shape, rank - scale.rank) if d != 1), None)


def carried(node: Node, axis: int, back: bool) -> int | None:
    """The axis of the operand that is ``axis`` of the result, or, unless ``back``, the other way round; ``None`` if none is."""
    source, target = (node.ref, node.x) if back else (node.x, node.ref)
    if node.op == "Transpose":
        perm = permutation_of(node.ref)
        return perm[axis] if back else perm.index(axis)
    if node.op == "Reshape":
        behind = _size(source.shape[axis + 1 :])
        found = (
            i for i, d in enumerate(target.shape) if d == source.shape[axis] and _size(target.shape[i + 1 :]) == behind
        )
        return None if behind is None else next(found, None)
    cut = node.op == "Slice" and axis in _sliced_axes(node)
    return axis if not cut and source.shape[axis] == target.shape[axis] else None


def keeps(node: Node, scale: Ref, back: bool) -> bool:
    """Whether the axis along which the scale varies is one behind the operator, or before it, too."""
    axis = _varying(scale, (node.ref if back else node.x).rank)
    return node.op == "Concat" or axis is None or carried(node, axis, back) is not None


def _size(extents: Sequence[Dim]) -> int | None:
    """The product of the extents, ``None`` if one is unknown."""
    known = [d for d in extents if isinstance(d, int)]
    return math.prod(known) if len(known) == len(extents) else None


def has_border_of_zeros(node: Node) -> bool:
    """Whether a Pad adds zeros, and takes nothing away."""
    pads, value = (*node.rest, None)[:2]
    zero = value is None or value.interval == (0, 0)
    return node.ref.attr("mode", "constant") == "constant" and zero and pads is not None and pads.low >= 0


def _sliced_axes(node: Node) -> set[int]:
    """The axes that a Slice cuts: all of them, for all that is known, unless it runs forward through known extents."""
    bounds: Any = (node.x, *node.rest, None, None)[:5]
    x, starts, _, axes, steps = bounds
    if not runs_forward(x, starts, axes, steps):
        return set(range(x.rank))
    return {axis for axis, found in taken(*bounds).items() if len(found) != x.shape[axis]}


def bounds_stay_finite(node: Node, scale: Ref) -> bool:
    """Whether the bounds of a Clip are constants that may be multiplied and divided by the scale."""
    factor = max(largest(scale), 1 / scale.low)
    return all(b is None or (b.is_constant and largest(b) * factor < limit(b)) for b in node.rest)


FUNCTIONS = named(is_vector, keeps, has_border_of_zeros, bounds_stay_finite, largest) | {"FLOATS": FLOATS}
SCALES = stated(
    "scale value",
    worthwhile("scale and value are of one float type: scale.dtype in FLOATS and scale.dtype is value.dtype"),
    "the scale lies along one axis: is_vector(scale, value)",
    functions=FUNCTIONS,
)
MOVES = stated(
    "node scale back",
    "the scale is finite: largest(scale) < inf",
    "the operator keeps the axis: keeps(node, scale, back)",
    "a border is of zeros: node.op != 'Pad' or has_border_of_zeros(node)",
    functions=FUNCTIONS,
)
BOUNDS = stated(
    "node scale back",
    "the scale is positive: scale.low > 0",
    "a Clip takes one number: node.op != 'Clip' or scale.type.size == 1",
    worthwhile("the bounds of a Clip stay finite: node.op != 'Clip' or bounds_stay_finite(node, scale)"),
    functions=FUNCTIONS,
)


def passes(view: GroupView, node: Node, scale: Ref, *, back: bool) -> bool:
    """Whether a scale of the result is one of the operand, too, or, unless ``back``, the other way round."""
    own = BOUNDS if node.op in BOUNDED else MOVES
    return view.meets(SCALES, scale=scale, value=node.ref if back else node.x) and view.meets(
        own, node=node, scale=scale, back=back
    )


# --- one operator --------------------------------------------------------------------------------------------------------


def _along(scale: Ref, rank: int, axis: int | None) -> Term:
    """``scale`` along ``axis`` of a value of ``rank`` axes, a number if there is none."""
    size = math.prod(scale.static_shape)
    return reshaped(scale, () if axis is None else [size if i == axis else 1 for i in range(rank)])


def _moved_scale(node: Node, scale: Ref, *, back: bool) -> Term:
    """``scale`` of the result as one of the operand, or, unless ``back``, the other way round."""
    source, target = (node.ref, node.x) if back else (node.x, node.ref)
    axis = _varying(scale, source.rank)
    return _along(scale, target.rank, None if axis is None else carried(node, axis, back))


def scaled_operand(node: Node, scale: Ref) -> Term:
    """``op(x, ...) * scale`` as the operator on a scaled ``x``."""
    if node.op == "Concat":
        return Apply("Concat", tuple(_scaled_parts(node, scale)), node.ref.attributes)
    return node.of(mul(node.x, _moved_scale(node, scale, back=True)), *_bounds(node, scale, mul))


def scaled_result(node: Node, scale: Ref) -> Term:
    """The operator on ``x * scale`` as a scaled one on ``x``."""
    return mul(node.of(node.x, *_bounds(node, scale, div)), _moved_scale(node, scale, back=False))


def _bounds(node: Node, scale: Ref, move: Any) -> Iterator[Term | None]:
    """The further operands: bounds of a Clip are multiplied or divided by ``scale``."""
    for bound in node.rest:
        yield move(bound, _along(scale, 0, None)) if node.op == "Clip" and bound is not None else bound


def _extent(part: Ref, axis: int) -> int:
    """The extent of a part along the joined axis. Raises `Unmet` where that is not known."""
    extent = part.shape[axis]
    if not isinstance(extent, int):
        raise Unmet(f"an extent is unknown: {extent!r}")
    return extent


def _scaled_parts(node: Node, scale: Ref) -> Iterator[Term]:
    axis, rank, end = _varying(scale, node.ref.rank), node.ref.rank, 0
    factor = _along(scale, rank, axis)
    for part in node.operands:
        if axis is None or axis != node.joined:
            yield mul(part, factor)
            continue
        start, end = end, end + _extent(part, axis)
        yield mul(part, apply("Slice", factor, int64s((start,)), int64s((end,)), int64s((axis,))))


def scaled_concat(view: GroupView, node: Node, factors: Mapping[int, list[tuple[Ref, Ref]]]) -> Term | None:
    """A Concat of which some operands are scaled as one of operands that are not, times the scales side by side; ``None`` where
    none is scaled along the joined axis.
    """
    axis, rank = node.joined, node.ref.rank
    parts: list[Term] = []
    scales: list[Term] = []
    for part in node.operands:
        extent = _extent(part, axis)
        ones = literal(np.ones([extent if i == axis else 1 for i in range(rank)], part.dtype.numpy))
        found = (
            (x, s)
            for x, s in factors.get(part.handle, ())
            if view.meets(SCALES, scale=s, value=x) and _varying(s, rank) in (None, axis)
        )
        x, scale = next(found, (part, None))
        parts.append(x)
        scales.append(ones if scale is None else mul(ones, _along(scale, rank, _varying(scale, rank))))
    if all(isinstance(s, Literal) for s in scales):
        return None
    return mul(Apply("Concat", tuple(parts), node.ref.attributes), apply("Concat", *scales, axis=axis))
