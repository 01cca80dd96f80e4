"""A Pad in front of a window operator becomes part of the operator's own padding, and what is cut off behind it none of it.

window(Pad(x, value), pads) == window(x, pads + pad)     of spatial axes, where the operator's own border holds that value
Slice(Conv(x, pads)) == Conv(x, pads - cut)              where every place is looked at, as of causal convolutions
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eqsat.conditions import condition, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.extents import at_least, subtract
from eqsat.ir.graph import Attributes
from eqsat.ir.operators.windows import covers_data
from eqsat.ir.types import DType
from eqsat.rewrite import Hint, Match, Ref, Unmet
from eqsat.rules.algebra.clamps import least
from eqsat.rules.terms import int64s
from eqsat.rules.views.movement import cuts


def borders(pads: Ref, axes: Ref | None, rank: int) -> list[int]:
    """How much a Pad adds to each axis, all beginnings first."""
    chosen = range(rank) if axes is None else [int(a) % rank for a in axes.value.reshape(-1)]
    both = [0] * (2 * rank)
    for i, pad in enumerate(map(int, pads.value.reshape(-1))):
        both[chosen[i % len(chosen)] + (rank if i >= len(chosen) else 0)] = pad
    return both


def added_axes(before: Ref, view: Ref) -> tuple[int, ...] | None:
    """The axes of extent 1 that a view adds, if it does nothing else."""
    left, added = list(before.shape), list[int]()
    for axis, extent in enumerate(view.shape):
        if left and left[0] == extent:
            left.pop(0)
        else:
            added.append(axis)
    return tuple(added) if added and not left and all(view.shape[axis] == 1 for axis in added) else None


def seen(border: Sequence[int], added: Sequence[int]) -> list[int]:
    """A border with nothing at axes that a view adds."""
    sides = [list(border[: len(border) // 2]), list(border[len(border) // 2 :])]
    for side in sides:
        for axis in added:
            side.insert(axis, 0)
    return [*sides[0], *sides[1]]


def cut_off(whole: Ref, part: Ref, starts: Ref, axes: Ref | None, steps: Ref | None) -> list[int]:
    """How much a Slice leaves out of each axis, less than 0, all beginnings first. Raises `Unmet` where that is not known."""
    border = [0] * (2 * whole.rank)
    for axis, start, step in cuts(whole, starts, axes, steps):
        rest = subtract(subtract(whole.shape[axis], part.shape[axis]), start)
        if step != 1 or start < 0 or not isinstance(rest, int):
            raise Unmet("what is cut off is known")
        border[axis], border[axis + whole.rank] = -start, -rest
    return border


def spatial(border: Sequence[int]) -> tuple[int, ...]:
    """The part of it that is about spatial axes."""
    rank = len(border) // 2
    return (*border[2:rank], *border[rank + 2 :])


def padded(node: Ref, border: Sequence[int], **changes: Any) -> Attributes:
    """The attributes of a window operator with a border added to its own."""
    extra = spatial(border)
    stated = node.attr("auto_pad", "NOTSET") != "VALID" and tuple(node.attr("pads", ()))
    total = tuple(a + b for a, b in zip(stated or (0,) * len(extra), extra, strict=True))
    return node.attributes.updated(pads=total, auto_pad=None, **changes)


def fill(value: Ref | None) -> float:
    """The number that fills the border: NaN where it is not known."""
    if value is None:
        return 0.0
    low, high = value.interval
    return low if low == high else np.nan


@condition("the border is zero", Hint("value", value=0.0))
def of_zeros(m: Match) -> bool:
    return fill(m.value) == 0


@condition("no element is less than the border", Hint("value", value=-np.inf))
def below_all(m: Match) -> bool:
    return fill(m.value) == least(m.x.dtype) or m.x.low >= fill(m.value)


@condition(
    "the border is the zero point",
    Hint("x", dtypes=frozenset((DType.INT8, DType.UINT8))),
    Hint("value", value=3),
    Hint("zero", value=3),
)
def of_zero_points(m: Match) -> bool:
    return fill(m.value) == fill(m.zero)


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="definition of the operator's padding",
    functions=named(at_least, covers_data, int64s),
)
PAD = "(p := Pad(x, pads, *value, *axes, mode='constant'))"
BORDER = "borders(pads, axes, p.rank)"
ADDED = (
    "no pad is negative: min(borders(pads, axes, p.rank)) >= 0",
    "spatial axes alone are padded: sum(spatial(borders(pads, axes, p.rank))) == sum(borders(pads, axes, p.rank))",
    "explicit padding of the window: n.attr('auto_pad', 'NOTSET') in ('NOTSET', 'VALID', '')",
)

equation("move_pad_into_conv", f"Conv({PAD}, w, *b, **n) == Conv(x, w, b, **padded(n, {BORDER}))", *ADDED, of_zeros)
AXES = "added_axes(p, view)"
equation(
    "move_pad_into_conv_of_view",
    f"""Conv(Reshape({PAD}, s, **view), w, *b, **n)
        == Conv(Unsqueeze(x, int64s({AXES})), w, b, **padded(n, seen({BORDER}, {AXES})))""",
    f"axes of extent 1 are added, and nothing else: {AXES} is not None",
    *(text.replace(BORDER, f"seen({BORDER}, {AXES})") for text in ADDED),
    of_zeros,
    drawn=(
        """P = d.integer(0, 2); K = d.integer(1, 3); x: [A, C, N]; pads = [0, 0, P, 0, 0, 1]; axes: None
           s = [A, C, 1, -1]; w: [2, C, 1, K]""",
        "s = [A, C, -1, 1]; w: [2, C, K, 1]",
        "s = [A, 1, C, -1]; w: [2, 1, 1, K]",
        "s = [A, -1, 1, C]; w: [2, N + P + 1, 1, K]",
        "pads = [0, 1, P, 0, 0, 1]; s = [A, C + 1, 1, -1]; w: [2, C + 1, 1, K]",
        "pads = [0, 0, P + 2, 0, 0, -1]",
    ),
)
CUT = "cut_off(n, root, s, a, t)"
equation(
    "leave_out_border_that_is_cut_off",
    f"Slice(Conv(x, w, *b, **n), s, e, *a, *t) == Conv(x, w, b, **padded(n, {CUT}))",
    "a window at every place: set(n.attr('strides', ())) <= {1}",
    worthwhile("kernels for a place at least: all(at_least(d, 1) for d in root.shape[2:])"),
    f"spatial axes alone are cut: sum(spatial({CUT})) == sum({CUT}) < 0",
    f"no more is cut off than there is border: min(padded(n, {CUT})['pads']) >= 0 >= max({CUT})",
    "explicit padding of the window: n.attr('auto_pad', 'NOTSET') in ('NOTSET', 'VALID', '')",
    drawn=(
        """P = d.integer(1, 3); Q = d.integer(0, 3); x: [A, C, N + K]; w: [2, C, K]; n.pads = (P, Q); n.strides = None | (2,)
           n.auto_pad = None; n.dilations = None; s = [d.integer(0, P)] | [P + 1] | [1]
           e = [N + P + 1 + d.integer(0, Q)] | [N + P]; a = [2] | [1]; t = [1] | [2]""",
        'n.auto_pad = "SAME_UPPER"; n.strides = None',
        "x: [A, C, N + K, 1]; w: [2, C, K, 1]; n.pads = (P, 0, Q, 0); n.strides = None | (2, 2)",
    ),
)
equation(
    "move_pad_into_integer_conv",
    f"ConvInteger({PAD}, w, *zero, *wzero, **n) == ConvInteger(x, w, zero, wzero, **padded(n, {BORDER}))",
    *ADDED,
    of_zero_points,
    exactness=Exactness.EXACT,
)
equation(
    "move_pad_into_average_pool",
    f"AveragePool({PAD}, ceil_mode=0, **n) == AveragePool(x, **padded(n, {BORDER}, count_include_pad=1))",
    *ADDED,
    "the window's own border is counted: n.attr('count_include_pad', 0) == 1 or not any(n.attr('pads', ()))",
    of_zeros,
    f"every window covers data: covers_data(padded(n, {BORDER}))",
)
equation(
    "move_pad_into_max_pool",
    f"MaxPool({PAD}, ceil_mode=0, **n) == MaxPool(x, **padded(n, {BORDER}))",
    *ADDED,
    below_all,
    f"every window covers data: covers_data(padded(n, {BORDER}))",
    exactness=Exactness.EXACT,
    source="the border of MaxPool never wins",
)
