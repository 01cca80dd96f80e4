"""Group normalisation in the forms that exporters give it becomes one operator.

ONNX had no GroupNormalization for long: groups become channels by a Reshape, are normalised as such by InstanceNormalization or
by a normalisation of the last axis, and a second Reshape goes back; scale and bias per channel follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Ref, Term, apply, literal, rule, variables
from eqsat.rules.linear.alignment import elements_along, lined_up, reshaped, reshaped_term
from eqsat.rules.terms import add, constant, every_element, finite, int64s, mul
from eqsat.samples import SYMBOLIC, Sampler, fixed

ROUNDING = Exactness.ROUNDING
SOURCE = "ONNX GroupNormalization; Wu and He 2018"
x, s, b, w, there, back = variables("x s b w there back")


def _groups(m: Match) -> tuple[int, int]:
    """(groups, channels) where the first Reshape joins neighbouring channels of each image and the second undoes it."""
    m.require(m.x.dtype is DType.FLOAT, "no float32")
    shape, grouped = m.x.shape, m.grouped.shape
    m.require(len(shape) >= 3 and len(grouped) >= 3, "no channels, or no axis to normalise")
    m.require(grouped[0] == shape[0], "the Reshape moves elements between images")
    channels, groups = shape[1], grouped[1]
    if not isinstance(channels, int) or not isinstance(groups, int) or groups < 1:
        m.require(False, "the number of channels or groups is unknown")
    m.require(channels % groups == 0, "the groups cut through channels")
    m.require(m.root.type == m.x.type, "the second Reshape does not undo the first")
    return groups, channels  # type: ignore[return-value]


def _per_channel(value: Ref, groups: int, channels: int) -> Term:
    """A vector with an element for each group, repeated for the channels of the group."""
    if groups == channels:
        return value
    repeated = apply("Expand", reshaped(value, (groups, 1)), int64s((groups, channels // groups)))
    return reshaped_term(repeated, (channels,))


def _images(d: Sampler) -> tuple[np.ndarray, int]:
    """Images and the number of groups that their channels are to form."""
    n, height, width = d.extents(3)
    groups, each = d.choose(((2, 3), (3, 2), (2, 1), (1, 4)))
    return d.floats((n, groups * each, height, width)) + np.float32(d.choose((0, 3))), groups


def _reshapes(d: Sampler, x: np.ndarray, groups: int) -> dict[str, Any]:
    n, channels, height, width = x.shape
    rest = channels * height * width // groups
    if d.chance(0.1) and n * channels % groups == 0:  # images in one row: groups may hold parts of two
        grouped = [1, n * groups, rest]
    else:
        grouped = [0 if d.chance() else n, groups, rest if d.chance() else -1]
    shape = list(x.shape) if d.chance(0.9) else [n, height, channels, width]
    return {"there": fixed(grouped, "int64"), "back": fixed(shape, "int64"), SYMBOLIC: [n] if d.chance(0.3) else []}


def _instance(d: Sampler) -> dict[str, Any]:
    x, groups = _images(d)
    drawn = _reshapes(d, x, groups)
    count = int(drawn["there"].array[1])
    parts = {"s": d.either(d.floats((count,))), "b": d.either(d.floats((count,)))}
    return {"x": x, **drawn, **parts, "norm": {"epsilon": d.choose((1e-5, 0.5))}}


@rule(
    apply(
        "Reshape", apply("InstanceNormalization", apply("Reshape", x, there).named("grouped"), s, b).named("norm"), back
    ),
    exactness=ROUNDING,
    source=SOURCE,
    sample=_instance,
)
def recognise_group_normalization(m: Match) -> Term:
    """``Reshape(InstanceNormalization(Reshape(x, [N, G, -1]), s, b), [N, C, ...]) == GroupNormalization(x, s', b')``.

    ``s'`` and ``b'`` repeat ``s`` and ``b`` for the channels of each group.
    """
    groups, channels = _groups(m)
    scale, bias = _per_channel(m.s, groups, channels), _per_channel(m.b, groups, channels)
    return apply("GroupNormalization", m.x, scale, bias, num_groups=groups, epsilon=m.norm.attr("epsilon", 1e-5))


def _layer(d: Sampler) -> dict[str, Any]:
    x, groups = _images(d)
    drawn = _reshapes(d, x, groups)
    rest = x.size // (x.shape[0] * groups)
    scale = np.ones(rest, np.float32) if d.chance(0.85) else d.floats((rest,))
    if drawn["there"].array[0] == 1:
        drawn["there"] = fixed([x.shape[0], groups, rest], "int64")
    attributes = {"axis": -1 if d.chance(0.9) else 2, "epsilon": d.choose((1e-5, 0.5))}
    return {"x": x, **drawn, "s": fixed(scale), "norm": attributes}


@rule(
    apply("Reshape", apply("LayerNormalization", apply("Reshape", x, there).named("grouped"), s).named("norm"), back),
    where=[constant("s"), every_element("s", 1)],
    exactness=ROUNDING,
    source=SOURCE,
    sample=_layer,
)
def recognise_group_normalization_of_rows(m: Match) -> Term:
    """``Reshape(LayerNormalization(Reshape(x, [N, G, M]), 1), [N, C, ...]) == GroupNormalization(x, 1, 0)``."""
    groups, channels = _groups(m)
    m.require(m.grouped.rank == 3 and m.norm.attr("axis", -1) in (-1, 2), "more or other axes are normalised")
    ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    attributes = {"num_groups": groups, "epsilon": m.norm.attr("epsilon", 1e-5)}
    return apply("GroupNormalization", m.x, literal(ones), literal(zeros), **attributes)


def _normalised(d: Sampler) -> dict[str, Any]:
    x, groups = _images(d)
    channels = x.shape[1]
    shapes = ((channels, 1, 1), (channels, 1, 1), (1, channels, 1, 1), (), (1,), x.shape[3:], (2, *x.shape))
    value = d.scale(d.choose(shapes))
    attributes = {"num_groups": groups, "epsilon": d.choose((1e-5, 0.5))}
    scale = d.floats((channels,))
    if d.chance(0.2):  # of images all alike nothing remains, whatever the scale
        x, scale, value = np.zeros_like(x), scale * np.float32(1e30), np.float32(1e30)
    shift = d.floats((channels,))
    if d.chance(0.2):  # the shift alone overflows, the sum does not
        scale, shift, value = np.full_like(scale, 3e19), np.full_like(shift, 4e19), np.float32(1e19)
    parts = {"s": d.either(scale, 0.9), "b": d.either(shift, 0.9)}
    return {"x": x, **parts, "w": d.either(np.asarray(value), 0.9), "norm": attributes}


def _of_channels(m: Match) -> Term:
    """The factor or summand ``w`` as a number, or a vector with an element for each channel."""
    m.require(m.root.handle != m.norm.handle, "the result is the value itself")
    m.require(m.w.dtype is m.s.dtype, "scale and factor of different types")
    elements_along(m.w, m.x, 1)
    return lined_up(m.w)


@rule(
    mul(apply("GroupNormalization", x, s, b).named("norm"), w),
    where=[constant("s", "b", "w"), finite("s", "w"), finite("b", "w")],
    exactness=ROUNDING,
    source=SOURCE,
    sample=_normalised,
)
def scale_group_normalization(m: Match) -> Term:
    """``GroupNormalization(x, s, b) * w == GroupNormalization(x, s * w, b * w)`` for ``w`` along the channels."""
    factor = _of_channels(m)
    return apply("GroupNormalization", m.x, mul(m.s, factor), mul(m.b, factor), **dict(m.norm.attributes))


@rule(
    add(apply("GroupNormalization", x, s, b).named("norm"), w),
    where=[constant("b", "w")],
    exactness=ROUNDING,
    source=SOURCE,
    sample=_normalised,
)
def shift_group_normalization(m: Match) -> Term:
    """``GroupNormalization(x, s, b) + w == GroupNormalization(x, s, b + w)`` for ``w`` along the channels."""
    return apply("GroupNormalization", m.x, m.s, add(m.b, _of_channels(m)), **dict(m.norm.attributes))
