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
from eqsat.samples import Sampler, fixed


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


def _viewed(d: Sampler) -> dict[str, Any]:
    """Rows that are padded, and seen as an image, mostly."""
    length, kernel = d.integer(3, 8), d.integer(1, 3)
    x = d.floats((2, 3, length) if d.chance(0.85) else (1, 3, length))
    pads = [0, 0, -1 if d.chance(0.1) else d.integer(0, 2), 0, 0, d.integer(0, 2)]
    if d.chance(0.1):
        pads[1] = 1
    shape = [x.shape[0], x.shape[1] + pads[1], length + pads[2] + pads[5]]
    image = d.choose(((*shape[:2], 1, shape[2]), (*shape[:2], shape[2], 1)))
    if d.chance(0.1):
        image = (shape[0], 1, *shape[1:])
    across = (1, kernel) if image[2] == 1 else (kernel, 1)
    weights = d.floats((2, image[1], *across))
    value = {} if d.chance() else {"value": fixed(d.choose((0.0, 0.0, 1.0)), "float32")}
    attributes = {
        "p": {"mode": d.choose(("edge", *("constant",) * 6))},
        "n": {"auto_pad": "SAME_UPPER"} if d.chance(0.1) else {},
    }
    return {"x": x, "pads": fixed(pads, "int64"), "s": fixed(image, "int64"), "w": weights, **attributes, **value}


def _cut(d: Sampler) -> dict[str, Any]:
    """A convolution with a border on either side, of which some is cut off; at times more than that, at others channels."""
    channels, length, kernel = d.extents(3)
    before, behind = d.integer(0, 3), d.integer(0, 3)
    stride = 2 if d.chance(0.2) else 1
    x = d.floats((2, channels, length + kernel, 1)[: (rank := d.choose((3, 4)))])
    pads = {3: (before, behind), 4: (before, 0, behind, 0)}[rank]
    w = d.floats((2, channels, kernel, 1)[:rank])
    places = (length + before + behind) // stride + 1
    start = d.integer(0, before + d.chance(0.1))
    end = places - d.integer(0, behind + d.chance(0.1))
    axis = d.choose((2, 2 - rank))
    if d.chance(0.15):
        start, axis = 1, 1
    bounds = {"s": fixed([start], "int64"), "e": fixed([end], "int64"), "a": fixed([axis], "int64")}
    step = {"t": fixed([d.choose((1, 1, 1, 2))], "int64")} if d.chance() else {}
    bias = {"b": d.floats((2,))} if d.chance() else {}
    own = {"pads": pads, "strides": (stride,) * (rank - 2)} | ({"auto_pad": "SAME_UPPER"} if d.chance(0.1) else {})
    return {"x": x, "w": w, **bounds, **step, **bias, "n": own}


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
    sample=_viewed,
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
    sample=_cut,
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
