"""Convolutions of one input that are added are one convolution: networks are trained in branches and run without.

    Conv(x, w) + Conv(x, v) == Conv(x, w + v)            v in the middle of w, if its kernel is smaller
    Conv(x, w) + x * s + t == Conv(x, w + s, t)          s in the middle, from each channel to itself; likewise the difference

No kernel is enlarged: that would make a large constant of a small one. Half precision is left alone: a branch may leave its range
where the sum does not.
"""

import math

import numpy as np

from eqsat.conditions import constant, kernels, varies, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term, literal
from eqsat.rules.linear.alignment import largest, lies_along, limit, reshaped, spread
from eqsat.rules.parallel.convolutions import enlarged, explicit, window
from eqsat.rules.terms import add, mul, sub, total


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


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="linearity of the convolution; Ding et al. 2021",
    functions=named(explicit, total, lies_along),
)
SINGLE = kernels("x", DType.FLOAT, DType.DOUBLE)
CENTRED = "the element is in the middle of its window: sees_middle(p, x, w)"

SCALED = (
    """x: [N, C, A + 3, B + 3]; w: [C, 1, 3, 3]; p.group = C; b: [C]; p.pads = (1, 1, 1, 1); p.strides = None; p.dilations = None
       s: [C, 1, 1] | [1, C, 1, 1] | []; t: [C, 1, 1] | [1, C, 1, 1] | [] | [B + 3]; p.auto_pad = None""",
    "w: [C, C, 3, 3]; p.group = 1",
    "s: [B + 3] | [A + 3, 1]",
    "x: [N, C, A + 3]; w: [C, 1, 3]; p.pads = (1, 1); s: [C, 1]; t: [C, 1]",
    "p.pads = (2, 0, 1, 1) | (0, 2, 2, 0)",
    "w: [1, C, 3, 3]; b: [1]; p.group = 1",
    """x = d.floats([N, C, A + 3, B + 3]) * 0; w = d.floats([C, 1, 3, 3]) * 0 + 3e38; s = fixed(3e38, "float32")
       t: float32[C, 1, 1]""",
    "b = d.floats([C]) * 0 + 3e38; t = fixed(3e38 | -3e38, 'float32'); x: float32[N, C, A + 3, B + 3]; s: float32[()]",
)
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
    drawn=(
        """x: [N, C, A + 4, B + 4]; w: [M, C, 3, 3]; b: [M]; p.pads = (1, 1, 1, 1); p.strides = (S, S); p.dilations = (1, 1)
           S = 1 | 2; v: [M, C, 1, 1]; c: [M]; q.pads = (0, 0, 0, 0); q.strides = (S, S); q.dilations = (1, 1)
           p.auto_pad = None; q.auto_pad = None""",
        "v: [M, C, 1, 3] | [M, C, 3, 3]; q.pads = (0, 1, 0, 1) | (1, 1, 1, 1)",
        "v: [M, C, 2, 2]; q.pads = (1, 0, 0, 1)",
        "w: [C, 1, 3, 3]; b: [C]; p.group = C; v: [C, 1 | C, 1, 1]; c: [C]; q.group = C | 1",
        "v: [1, C, 1, 1]; c: [1]; b: None",
        "p.dilations = (2, 2); p.pads = (2, 2, 2, 2)",
        """x: [1, C, 3]; w: [C, C, 3]; v: [C, C, 3]; b: None; c: None; p.auto_pad = "SAME_UPPER"; p.pads = None; q.pads = None
           p.strides = None; q.strides = None; p.dilations = None; q.dilations = None""",
        "w = d.floats([M, C, 3, 3]) * 0 + 3e38; v = d.floats([M, C, 1, 1]) * 0 + 3e38; x = d.floats([N, C, A + 4, B + 4]) * 0",
    ),
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
    drawn=SCALED,
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
        drawn=SCALED,
    )
