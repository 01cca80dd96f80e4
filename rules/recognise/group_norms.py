"""Group normalisation in the forms that exporters give it becomes one operator.

ONNX had no GroupNormalization for long: groups become channels by a Reshape, are normalised as such by InstanceNormalization or
by a normalisation of the last axis, and a second Reshape goes back; scale and bias per channel follow.

Positions of which nobody knows how many there are, as in a voice of any length, cannot have a gain each: their norm is one of the
channels, which are counted.
"""

import math
from typing import Any

import numpy as np

from eqsat.conditions import another_value, constant, finite, kernels, number, same_type, single_or_half, worthwhile
from eqsat.equations import Equations, named
from eqsat.exactness import Exactness
from eqsat.ir.types import Dim, DType
from eqsat.rewrite import Ref, Term, apply
from eqsat.rules.linear.alignment import lined_up, ordinary_summands, reshaped
from eqsat.rules.recognise.norms import EPSILON, UNDERFLOW, full, known, outlives_underflow, reduces_last
from eqsat.rules.terms import int64s, reshape
from eqsat.samples import SYMBOLIC, Sampler, fixed


def cuts_into(groups: Dim, channels: Dim) -> bool:
    """Whether so many channels are known to fall into so many groups of whole ones."""
    return isinstance(groups, int) and isinstance(channels, int) and groups > 0 and channels % groups == 0


def repeated(value: Ref, groups: int, channels: int) -> Term:
    """A vector with an element for each group, repeated for the channels of the group."""
    if groups == channels:
        return value
    each = apply("Expand", reshaped(value, (groups, 1)), int64s((groups, channels // groups)))
    return reshape(each, (channels,))


def lies_along_channels(w: Ref, x: Ref) -> bool:
    """Whether a value beside ``x`` is one number, or one for each channel."""
    shape = (1,) * (x.rank - w.rank) + tuple(w.shape)
    return w.rank <= x.rank and shape[1] in (1, x.shape[1]) and all(d == 1 for d in (shape[0], *shape[2:]))


def _images(d: Sampler) -> dict[str, Any]:
    """Images, normalised in groups of channels between two views, or as such, and a value beside them."""
    n, *positions = d.extents(d.choose((3, 3, 3, 2, 1)))
    groups, each = d.choose(((2, 3), (3, 2), (2, 1), (1, 12), (1, 12)))
    channels = groups * each
    shape = (n, channels, *positions)
    rest = math.prod(shape) // (n * groups)
    # as it should be; images in one row, where groups may hold parts of two; groups of parts of channels
    grouped = d.choose(((n, groups, rest),) * 7 + ((1, n * groups, rest),) * 2 + ((n, groups * rest, 1),))
    there = grouped if grouped[0] != n or d.chance() else (0, groups, -1) if grouped[1] == groups else grouped
    back = (
        (d.choose((0, n)) if grouped[0] == n else n, *shape[1:])
        if d.chance(0.9)
        else (n, *positions[:1], channels, *positions[1:])
    )
    found: dict[str, Any] = {"t": fixed(there, "int64"), "u": fixed(back, "int64")}
    found |= {SYMBOLIC: [n]} if d.chance(0.3) else {}
    ones = np.ones(grouped[2], np.float32)
    found |= {"one": fixed(ones if d.chance(0.85) else d.floats(ones.shape))}
    epsilon = {"epsilon": d.choose((1e-5, 0.5))}
    found |= {
        "i": epsilon,
        "l": {"axis": d.choose((-1, -1, -1, 2, 1)), **epsilon},
        "n": {"num_groups": groups, **epsilon},
    }
    found |= {name: d.either(d.floats((grouped[1],))) for name in "gh"}
    column = (channels, *(1,) * len(positions))
    x, scale, shift = d.floats(shape) + np.float32(d.choose((0, 3))), d.floats((channels,)), d.floats((channels,))
    value = d.scale(d.choose((column, column, (1, *column), (), (1,), shape[3:], (2, *shape))))
    if d.chance(0.2):  # of images all alike nothing remains, whatever the scale
        x, scale, value = np.zeros_like(x), scale * np.float32(1e30), np.float32(1e30)
    elif d.chance(0.2):  # the shift alone overflows, the sum does not
        scale, shift, value = np.full_like(scale, 3e19), np.full_like(shift, 4e19), np.float32(1e19)
    found |= {name: d.either(np.asarray(v), 0.9) for name, v in (("s", scale), ("b", shift), ("w", value))}
    return found | {"x": x}


equation = Equations(
    __name__,
    exactness=Exactness.ROUNDING,
    source="ONNX GroupNormalization; Wu and He 2018",
    sample=_images,
    functions=named(full, lined_up),
)
GROUPED = (
    same_type("x"),
    single_or_half("x"),
    "channels and positions: x.rank >= 3",
    "each image by itself: y.shape[0] == x.shape[0]",
    "groups of whole channels: cuts_into(y.shape[1], x.shape[1])",
)
equation(
    "recognise_group_normalization",
    """Reshape(InstanceNormalization(Reshape(x, t, **y), g, h, epsilon=e, **i), u, **z)
       == GroupNormalization(x, repeated(g, y.shape[1], x.shape[1]), repeated(h, y.shape[1], x.shape[1]),
                             num_groups=y.shape[1], epsilon=e)""",
    *GROUPED,
)


equation(
    "recognise_group_normalization_of_rows",
    """Reshape(LayerNormalization(Reshape(x, t, **y), one, axis=a, epsilon=e, **l), u, **z)
       == GroupNormalization(x, full(x.shape[1], 1, x), full(x.shape[1], 0, x), num_groups=y.shape[1], epsilon=e)""",
    number("one", 1),
    *GROUPED,
    "rows of one axis: y.rank == 3 and a % 3 == 2",
)


# --- of single channels


def _channels(d: Sampler) -> dict[str, Any]:
    """Means over the positions, mostly, of which some are not counted."""
    fault = d.choose(("", "", "", "", "axes", "noop", "epsilon", "range", "dropped"))
    dtype = "float16" if fault == "range" else "float32"
    shape = d.extents(d.choose((3, 3, 4)))
    shape = (
        (3, 1, 3, 5) if fault == "dropped" else shape
    )  # where a mean without the positions has another place beside them
    x = (d.floats(shape) * (1e-5 if fault == "range" else 1) + d.choose((0, 0, 3))).astype(dtype)
    epsilon = np.full(d.choose(((), (1,), (1,) * (x.ndim + 1))), d.choose((1e-2, 0.5)))
    if fault in ("epsilon", "range"):
        epsilon = (
            d.positive((shape[1], *(1,) * (x.ndim - 2))) if fault == "epsilon" else np.float32(d.choose((1e-6, 0)))
        )
    found = {
        "x": x,
        "eps": fixed(epsilon.astype(dtype)),
        SYMBOLIC: [d.choose(shape[3:] if fault == "dropped" else shape[2:]) if d.chance(0.9) else shape[1]],
    }
    if fault == "noop":
        return found | {d.choose(("r", "q")): {"noop_with_empty_axes": 1}}
    axes = d.choose(([-1], [1], [0, 1, 2])) if fault == "axes" else range(2, x.ndim)
    found |= {name: fixed([a - x.ndim if a > 0 and d.chance() else a for a in axes], "int64") for name in "ac"}
    return found | ({name: {"keepdims": 0} for name in d.choose(("r", "q", "rq"))} if fault == "dropped" else {})


DISTANCES = "(x - ReduceMean(x, *a, keepdims=1, **r))"
equation(
    "recognise_instance_normalization",
    f"""{DISTANCES} / Sqrt(ReduceMean({DISTANCES} * {DISTANCES}, *c, keepdims=1, **q) + eps)
       == InstanceNormalization(x, full(x.shape[1], 1, x), full(x.shape[1], 0, x), epsilon=eps.low)""",
    constant("a", "c"),
    *EPSILON,
    UNDERFLOW,
    single_or_half("x"),
    "the means are taken over the positions: reduces_last(r, a, x) == reduces_last(q, c, x) == x.rank - 2 > 0",
    "channels are counted: known(x.shape[1:2])",
    worthwhile("positions are not: not known(x.shape[2:])"),
    sample=_channels,
    source="ONNX InstanceNormalization; Ulyanov, Vedaldi and Lempitsky 2016",
    functions=named(full, known, lined_up, outlives_underflow, reduces_last),
)


def _single_groups(d: Sampler) -> dict[str, Any]:
    """Images of a group for each channel, mostly."""
    n, channels, *positions = d.extents(d.choose((3, 3, 4)))
    parts = {name: d.either(d.floats((channels,))) for name in "sb"}
    groups = channels if d.chance(0.8) else 1
    found: dict[str, Any] = {"x": d.floats((n, channels, *positions)) + np.float32(d.choose((0, 3))), **parts}
    return found | {
        "n": {"num_groups": groups, "epsilon": d.choose((1e-5, 0.5))},
        SYMBOLIC: d.subset((n, *positions), 0.2),
    }


equation(
    "normalise_single_channels",
    "GroupNormalization(x, s, b, num_groups=g, epsilon=e, **n) == InstanceNormalization(x, s, b, epsilon=e)",
    kernels("x", DType.FLOAT),
    "a group for each channel: x.shape[1] == g",
    sample=_single_groups,
)

# --- scale and shift

ALONG = (another_value("n"), "w lies along the channels: lies_along_channels(w, x)")
equation(
    "scale_group_normalization",
    "GroupNormalization(x, s, b, **n) * w == GroupNormalization(x, s * lined_up(w), b * lined_up(w), **n)",
    constant("s", "b", "w"),
    finite("s", "w"),
    finite("b", "w"),
    *ALONG,
)
equation(
    "shift_group_normalization",
    "GroupNormalization(x, s, b, **n) + w == GroupNormalization(x, s, b + lined_up(w), **n)",
    constant("b", "w"),
    ordinary_summands("w"),
    *ALONG,
)
