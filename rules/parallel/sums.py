"""Convolutions of one input that are added are one convolution: networks are trained in branches and run without.

    Conv(x, w) + Conv(x, v) == Conv(x, w + v)            v in the middle of w, if its kernel is smaller
    Conv(x, w) + x * s + t == Conv(x, w + s, t)          s in the middle, from each channel to itself; likewise the difference

No kernel is enlarged: that would make a large constant of a small one. Half precision is left alone: a branch may leave its range
where the sum does not.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.linear.alignment import largest, lies_along, limit, reshaped, spread
from eqsat.rules.parallel.convolutions import enlarged, explicit, window
from eqsat.rules.terms import add, mul, sub, total
from eqsat.samples import Sampler, fixed


def covers(p: Ref, w: Ref, q: Ref, v: Ref) -> bool:
    """Whether the windows of ``p`` hold those of ``q`` in their middle; of two that are equal one does."""
    one, other = window(p, w), window(q, v)
    if one == other:
        return w.handle <= v.handle
    (kernel, strides, dilations, pads), (inner, *rest) = one, other
    sides = zip((*kernel, *kernel), (*inner, *inner), pads, rest[2], strict=True)
    middle = all(k >= i and k - i == 2 * (pad - own) for k, i, pad, own in sides)
    return middle and rest[:2] == [strides, dilations] and all(d == 1 for d in dilations)


def stay_finite(*values: Ref | None) -> bool:
    """Whether the sum of the values, absent ones aside, is finite."""
    found = [v for v in values if v is not None]
    return not found or sum(map(largest, found)) < limit(found[0])


def summed(w: Ref, v: Ref) -> Term:
    """Weights ``w`` to whose middle ``v`` of a smaller kernel is added."""
    return add(w, enlarged(v, v.static_shape[2:], w.static_shape[2:]))


def sees_middle(p: Ref, x: Ref, w: Ref) -> bool:
    """Whether each element of the result is that of the input in the middle of its window, if no other weight is there."""
    kernel, strides, dilations, pads = window(p, w)
    sides = zip((*kernel, *kernel), (*dilations, *dilations), pads, strict=True)
    centred = all(k % 2 and 2 * pad == d * (k - 1) for k, d, pad in sides)
    return centred and all(s == 1 for s in strides) and w.shape[0] == x.shape[1]


def shifted(b: Ref | None, t: Ref, channels: int, sign: int) -> Term | None:
    """A bias, if there is one, plus or minus a constant along the channels."""
    vector = spread(t, channels)
    return total(b, vector) if sign > 0 else sub(literal(0, t.dtype) if b is None else b, vector)


def with_itself(w: Ref, s: Ref | None = None, sign: int = 1) -> Term:
    """Weights that take each channel to itself as well, times ``s`` if that is given, or less that."""
    channels, inside, *kernel = w.static_shape
    ones = (1,) * len(kernel)
    same = np.eye(inside, dtype=w.dtype.numpy)[np.arange(channels) % inside].reshape(channels, inside, *ones) * sign
    added: Term = literal(same)
    if s is not None:
        added = mul(added, reshaped(s, (math.prod(s.static_shape), 1, *ones)))
    return add(w, enlarged(added, ones, kernel))


def _at_times_huge(d: Sampler, shape: tuple[int, ...]) -> np.ndarray:
    """Floats whose sums may overflow."""
    found = d.floats(shape)
    return np.copysign(np.float32(3e38), found) if d.chance(0.25) else found


def _branch(d: Sampler, channels: tuple[int, int, int], rank: int, stride: int, common: int) -> tuple[Any, Any, Any]:
    """Attributes, weights and bias of a convolution that keeps the extents but for its stride. ``channels``: outside, inside a
    group, groups. ``common``: what the extents of the kernel mostly are."""
    outside, inside, groups = channels
    kernel = [common if d.chance(0.7) else d.choose((1, 2, 3)) for _ in range(rank)]
    dilation = 2 if d.chance(0.2) and max(kernel) < 4 else 1
    totals = [dilation * (k - 1) for k in kernel]
    begins = [n // 2 if d.chance(0.9) else d.integer(0, n) for n in totals]
    pads = (*begins, *(n - begin for n, begin in zip(totals, begins, strict=True)))
    own = {"auto_pad": "SAME_UPPER"} if d.chance(0.1) else {"pads": pads, "dilations": (dilation,) * rank}
    weights = _at_times_huge(d, (outside, inside, *kernel))
    bias = d.choose((None, fixed(d.floats((outside,)))))
    return {"group": groups, "strides": (stride,) * rank, **own}, d.either(weights, 0.95), bias


def _input(d: Sampler, rank: int) -> tuple[np.ndarray, int]:
    """A value, at times of zeros, and its channels."""
    channels = d.choose((2, 3, 4))
    x = d.floats((d.integer(1, 2), channels, *(d.integer(6, 8) for _ in range(rank))))
    return x * np.float32(d.chance(0.7)), channels


def _added(d: Sampler) -> dict[str, Any]:
    """Two convolutions of one input, mostly in as many groups."""
    rank, stride, common = d.choose((1, 2)), d.choose((1, 1, 2)), d.choose((1, 3, 3, 5))
    x, channels = _input(d, rank)
    groups, outside = d.choose((1, 1, channels)), channels * d.integer(1, 2)
    p, w, b = _branch(d, (outside, channels // groups, groups), rank, stride, common)
    if d.chance(0.4):
        groups, outside = d.choose(((channels + 1 - groups, outside), (1, 1), (1, 1)))
    q, v, c = _branch(d, (outside, channels // groups, groups), rank, stride, common)
    if d.chance(0.15):  # one element beside several, through windows that look alike
        x, kernel = x.reshape(-1)[: channels * 3].reshape(1, channels, 3), (channels, channels, 3)
        w, v = (fixed(d.floats(kernel)) for _ in "wv")
        p, q, b, c = {"auto_pad": "SAME_UPPER"}, {}, None, None
    return {"x": x, "w": w, "b": b, "p": p, "v": v, "c": c, "q": q}


def _scaled(d: Sampler) -> dict[str, Any]:
    """A convolution, mostly of each channel by itself, and a scale and a shift for its input."""
    rank = d.choose((1, 2))
    x, channels = _input(d, rank)
    groups, outside = d.choose((1, channels, channels)), channels
    if d.chance(0.1):
        groups, outside = 1, 1
    p, w, b = _branch(d, (outside, channels // groups, groups), rank, 1, d.choose((1, 3)))
    along = (channels, *(1,) * rank)
    s, t = (_at_times_huge(d, along if d.chance(0.8) else d.broadcast_of(x.shape)) for _ in "st")
    return {"x": x, "w": w, "b": b, "p": p, "s": fixed(s), "t": d.either(t, 0.95)}


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="linearity of the convolution; Ding et al. 2021",
    functions=named(explicit, total, lies_along),
)
SINGLE = kernels("x", DType.FLOAT, DType.DOUBLE)
CENTRED = "the element is in the middle of its window: sees_middle(p, x, w)"

equation(
    "add_convolutions_of_one_input",
    "Conv(x, w, *b, **p) + Conv(x, v, *c, **q) == Conv(x, summed(w, v), total(b, c), **p)",
    constant("w", "v", "b", "c"),
    varies("x"),
    SINGLE,
    worthwhile("the sum is another value: root.handle not in (p.handle, q.handle)"),
    "explicit padding: explicit(p, q)",
    "as many groups: p.attr('group', 1) == q.attr('group', 1)",
    "as many channels: w.shape[0] == v.shape[0]",
    "one window is in the middle of the other: covers(p, w, q, v)",
    "w + v and b + c finite: stay_finite(w, v) and stay_finite(b, c)",
    sample=_added,
)
equation(
    "add_input_to_convolution",
    "Conv(x, w, *b, **p) + x == Conv(x, with_itself(w), b, **p)",
    constant("w"),
    varies("x"),
    SINGLE,
    worthwhile("the sum is another value: root.handle not in (p.handle, x.handle)"),
    CENTRED,
    worthwhile("each channel by itself, which is merged with no other convolution: w.shape[1] == 1"),
    sample=_scaled,
)
for name, sign in (("add_scaled_input_to", 1), ("subtract_scaled_input_from", -1)):
    equation(
        f"{name}_convolution",
        f"""Conv(x, w, *b, **p) {"+" if sign > 0 else "-"} (x * s + t)
            == Conv(x, with_itself(w, s, {sign}), shifted(b, t, w.shape[0], {sign}), **p)""",
        constant("w", "s", "t", "b"),
        varies("x"),
        SINGLE,
        worthwhile("the sum is another value: root.handle != p.handle"),
        CENTRED,
        "s lies along the channels: lies_along(s, x, 1)",
        "t lies along the channels: lies_along(t, x, 1)",
        "w + s and b + t finite: stay_finite(w, s) and stay_finite(b, t)",
        sample=_scaled,
    )
