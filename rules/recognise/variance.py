"""Variances taken in one pass, as the mean of squares less the square of the mean: recognised, never introduced.

The two forms are equal over the reals. The one with one pass loses digits where the mean is large and may come out negative,
which is why exporters clamp it at zero. The clamped one becomes no value of its own here, but all of the normalisation at once:
were it equal to the variance, the variance without its clamp could be chosen in its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.recognise.norms import epsilon_of, normalised_extents, trailing_axis
from eqsat.rules.terms import add, constant, div, mul, same_type, sub
from eqsat.samples import Sampler, fixed

SOURCE = "definition of the variance; Flax takes it in one pass"
x, eps = variables("x eps")
(axes,) = variables("axes?")

_MEAN = apply("ReduceMean", x, axes).named("mean")
_SQUARES = apply("ReduceMean", mul(x, x), axes).named("square")


def _drawn(d: Sampler) -> dict[str, Any]:
    x = d.floats(d.shape(1, 4, ones=0.05), d.choose(("float32", "float32", "float32", "float16")))
    x = (x + d.choose((0, 0, 1))).astype(x.dtype)
    kept: dict[str, Any] = {"keepdims": 1} if d.chance() else {}
    if d.chance(0.1):
        return {"x": x, "square": kept | {"noop_with_empty_axes": 1}, "mean": kept | {"noop_with_empty_axes": 1}}
    first = d.integer(max(x.ndim - 2, 0), x.ndim - 1)
    chosen = list(range(first, x.ndim)) if d.chance(0.8) else [d.integer(0, x.ndim - 1)]
    return {
        "x": x,
        "axes": fixed([a - x.ndim if d.chance() else a for a in chosen], "int64"),
        "square": kept,
        "mean": kept,
    }


def _variance(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    dropped = {"keepdims": 0}
    if d.chance(0.4):
        found |= {"square": dropped, "mean": dropped if d.chance(0.8) else {}}
    return found


@rule(
    sub(_SQUARES, mul(_MEAN, _MEAN)),
    where=[constant("axes")],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_variance,
)
def take_variance_in_two_passes(m: Match) -> Term:
    """``ReduceMean(x * x) - ReduceMean(x) * ReduceMean(x) == ReduceMean((x - ReduceMean(x)) * (x - ReduceMean(x)))``."""
    kept = _kept_axes(m)
    centred = sub(m.x, m.mean if kept else apply("ReduceMean", m.x, m.axes, keepdims=1))
    return apply("ReduceMean", mul(centred, centred), m.axes, **dict(m.square.attributes))


def _kept_axes(m: Match) -> int:
    """Whether the two means keep the reduced axes. Raises `Unmet` where they are not both means, and of one shape."""
    m.require(m.x.dtype is DType.FLOAT, "no float32")
    m.require(not any(n.attr("noop_with_empty_axes", 0) for n in (m.square, m.mean)), "nothing is reduced")
    kept: int = m.square.attr("keepdims", 1)
    m.require(kept == m.mean.attr("keepdims", 1), "one drops the reduced axes")
    return kept


def _clamped(d: Sampler) -> dict[str, Any]:
    found = _drawn(d)
    extent = d.choose(((), (1,), (1,) * found["x"].ndim, (1,) * (found["x"].ndim + 1)))
    return found | {"eps": fixed(np.full(extent, d.choose((1e-2, 0.5, 0.1, -0.5)), found["x"].dtype))}


@rule(
    div(sub(x, _MEAN), apply("Sqrt", add(apply("Relu", sub(_SQUARES, mul(_MEAN, _MEAN))), eps))),
    where=[constant("axes", "eps"), same_type("x")],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_clamped,
)
def recognise_layer_normalization_in_one_pass(m: Match) -> Term:
    """``(x - mean) / Sqrt(Relu(ReduceMean(x * x) - mean * mean) + eps) == LayerNormalization(x, 1)`` over the last axes."""
    _kept_axes(m)
    axis, epsilon = trailing_axis(m), epsilon_of(m)
    ones = literal(np.ones(normalised_extents(m, m.x, axis), m.x.dtype.numpy))
    return apply("LayerNormalization", m.x, ones, axis=axis, epsilon=epsilon)
