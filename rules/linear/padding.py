"""A Pad in front of a window operator becomes part of the operator's own padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.rewrite import Apply, Condition, Match, Ref, Term, Unmet, apply, present, rule, variables
from eqsat.rules.terms import condition
from eqsat.samples import Sampler, fixed

x, pads, value, axes, w, b, zero, wzero = variables("x pads value? axes? w b? zero? wzero?")

SOURCE = "definition of the operator's padding"

PAD = apply("Pad", x, pads, value, axes).named("pad")


def covers_data(attributes: Mapping[str, Any]) -> bool:
    """Whether every window of a pool covers an element of its input: no dilation, and pads less than the kernel."""
    kernel = attributes["kernel_shape"]
    plain = all(d == 1 for d in attributes.get("dilations", ()))
    return plain and all(p < k for p, k in zip(attributes.get("pads", ()), (*kernel, *kernel), strict=False))


narrow_border = Condition("every window covers data", lambda m: covers_data(m.window.attributes))


@condition("constant padding")
def constant_mode(m: Match) -> bool:
    return m.pad.attr("mode", "constant") == "constant"


@condition("explicit padding of the window")
def explicit(m: Match) -> bool:
    return m.window.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID", "")


@condition("no window beyond the padded input")
def floor_mode(m: Match) -> bool:
    return m.window.attr("ceil_mode", 0) == 0


def _pad_value(m: Match) -> Any:
    """The number that fills the border. Raises `Unmet` if it is not known."""
    return np.zeros((), m.x.dtype.numpy) if m.value is None else m.value.value.reshape(())


def _border(m: Match) -> tuple[int, ...]:
    """Padding of the spatial axes, all beginnings first. Raises `Unmet` for another axis or a negative pad."""
    rank = m.pad.rank
    chosen = range(rank) if m.axes is None else [int(a) % rank for a in m.axes.value.reshape(-1)]
    given = [int(p) for p in m.pads.value.reshape(-1)]
    if min(given, default=0) < 0:
        raise Unmet("a pad is negative")
    both = [0] * (2 * rank)
    for i, axis in enumerate(chosen):
        both[axis], both[axis + rank] = given[i], given[i + len(chosen)]
    if any(both[axis] for axis in (0, 1, rank, rank + 1)):
        raise Unmet("the batch or the channels are padded")
    return (*both[2:rank], *both[rank + 2 :])


def _own_pads(m: Match, border: tuple[int, ...]) -> tuple[int, ...]:
    """The window's own pads; zero where there are none and where ``auto_pad`` is VALID."""
    if m.window.attr("auto_pad", "NOTSET") == "VALID":
        return (0,) * len(border)
    return tuple(m.window.attr("pads", ())) or (0,) * len(border)


def _padded(m: Match, **changes: Any) -> Any:
    """The window's attributes with the border of the Pad added to its own."""
    border = _border(m)
    total = tuple(a + b for a, b in zip(_own_pads(m, border), border, strict=True))
    return m.window.attributes.updated(pads=total, auto_pad=None, **changes)


def _pad_sample(d: Sampler, value: Any, dtype: str = "float32") -> dict[str, Any]:
    """A Pad, mostly of spatial axes, in front of something with a kernel of 3."""
    rank = d.choose((3, 4))
    shape = (*d.extents(2), *(d.integer(4, 6) for _ in range(rank - 2)))
    spatial = [int(d.integer(0, 2)) for _ in range(2 * rank - 4)]
    both = [0, 0, *spatial[: rank - 2], 0, 0, *spatial[rank - 2 :]]
    if d.chance(0.15):
        both[d.integer(0, 2 * rank - 1)] += d.choose((1, -1))
    array = d.floats(shape) if dtype == "float32" else d.integers(shape, dtype)
    if d.chance(0.2):
        array = np.abs(array)
    found: dict[str, Any] = {"x": array, "pads": fixed(both, "int64"), "pad": {}}
    if d.chance(0.3):
        order = d.rng.permutation(rank)
        found["axes"] = fixed(order, "int64")
        found["pads"] = fixed([both[a] for a in order] + [both[a + rank] for a in order], "int64")
    if value is not None:
        found["value"] = fixed(np.asarray(value, dtype))
    if d.chance(0.15):
        found["pad"] = {"mode": "edge" if min(both) < 0 else d.choose(("edge", "reflect"))}
    return found


def _window_sample(d: Sampler, rank: int, *, dilated: bool = True) -> dict[str, Any]:
    attributes: dict[str, Any] = {"kernel_shape": (3,) * (rank - 2)}
    if d.chance(0.4):
        attributes["pads"] = tuple(d.integer(0, 1) for _ in range(2 * rank - 4))
    elif d.chance(0.4):
        attributes["auto_pad"] = d.choose(("VALID", "SAME_UPPER"))
    if d.chance(0.3):
        attributes["strides"] = (2,) * (rank - 2)
    if dilated and d.chance(0.2):
        attributes["dilations"] = (2,) * (rank - 2)
        attributes.pop("auto_pad", None)
        attributes["pads"] = (1,) * (2 * rank - 4)
    return attributes


def _conv_sample(d: Sampler) -> dict[str, Any]:
    found = _pad_sample(d, d.choose((None, 0.0, -0.0, 0.0, 1.5)))
    shape = found["x"].shape
    channels = _padded_extent(found, 1)
    found["w"] = d.either(d.floats((3, channels, *(3,) * (len(shape) - 2))))
    found["window"] = _window_sample(d, len(shape))
    return found | ({"b": d.floats((3,))} if d.chance() else {})


def _padded_extent(drawn: dict[str, Any], axis: int) -> int:
    rank = drawn["x"].ndim
    order = list(drawn["axes"].array) if "axes" in drawn else list(range(rank))
    i = order.index(axis)
    return drawn["x"].shape[axis] + int(drawn["pads"].array[i] + drawn["pads"].array[i + rank])


def _integer_conv_sample(d: Sampler) -> dict[str, Any]:
    dtype = d.choose(("int8", "uint8"))
    point = d.choose((None, 0, 3, 7))
    found = _pad_sample(d, d.choose((None, point, point, 3)), dtype)
    shape = found["x"].shape
    found["w"] = d.integers((3, _padded_extent(found, 1), *(3,) * (len(shape) - 2)), "int8")
    found["window"] = _window_sample(d, len(shape))
    if point is not None:
        found["zero"] = fixed(np.asarray(point, dtype))
        if d.chance(0.3):
            found["wzero"] = fixed(np.asarray(-2, "int8"))
    return found


def _with_ceil_mode(d: Sampler, drawn: dict[str, Any]) -> dict[str, Any]:
    """At times with windows that may begin behind the input; where the border is a Pad, they count."""
    if d.chance(0.25):
        window = drawn["window"]
        window |= {"ceil_mode": 1, "strides": (2,) * len(window["kernel_shape"])}
    return drawn


def _average_sample(d: Sampler) -> dict[str, Any]:
    found = _pad_sample(d, d.choose((None, 0.0, 0.0, 0.0, -1.0)))
    found["window"] = _window_sample(d, found["x"].ndim, dilated=False)
    if d.chance():
        found["window"]["count_include_pad"] = 1
    return _with_ceil_mode(d, found)


def _max_sample(d: Sampler) -> dict[str, Any]:
    found = _pad_sample(d, d.choose((*(-np.inf,) * 5, 0.0, None, -3.0)))
    found["window"] = _window_sample(d, found["x"].ndim)
    if d.chance():
        found["x"] = fixed(found["x"])
    return _with_ceil_mode(d, found)


@rule(
    apply("Conv", PAD, w, b).named("window"),
    where=[constant_mode, explicit],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_conv_sample,
)
def move_pad_into_conv(m: Match) -> Term:
    """``Conv(Pad(x, 0), w, b) == Conv(x, w, b, pads + pad)`` for a Pad of spatial axes."""
    m.require(_pad_value(m) == 0, "the border is not zero")
    args = (m.x, m.w) if m.b is None else (m.x, m.w, m.b)
    return Apply("Conv", args, _padded(m))


@rule(
    apply("ConvInteger", PAD, w, zero, wzero).named("window"),
    where=[constant_mode, explicit],
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_integer_conv_sample,
)
def move_pad_into_integer_conv(m: Match) -> Term:
    """``ConvInteger(Pad(x, zero), w, zero) == ConvInteger(x, w, zero, pads + pad)``: the border is the zero point."""
    point = 0 if m.zero is None else _single(m.zero)
    m.require(_pad_value(m) == point, "the border is not the zero point")
    return Apply("ConvInteger", present(m.x, m.w, m.zero, m.wzero), _padded(m))


def _single(point: Ref) -> Any:
    if point.value.size != 1:
        raise Unmet("the zero point is not one number")
    return point.value.reshape(())


@condition("the window's own border is counted")
def counts_border(m: Match) -> bool:
    return m.window.attr("count_include_pad", 0) == 1 or not any(m.window.attr("pads", ()))


@rule(
    apply("AveragePool", PAD).named("window"),
    where=[constant_mode, explicit, floor_mode, counts_border],
    exactness=Exactness.ROUNDING,
    source=SOURCE,
    sample=_average_sample,
)
def move_pad_into_average_pool(m: Match) -> Term:
    """``AveragePool(Pad(x, 0)) == AveragePool(x, pads + pad, count_include_pad=1)`` if the pool ignores no own border."""
    m.require(_pad_value(m) == 0, "the border is not zero")
    attributes = _padded(m, count_include_pad=1)
    m.require(covers_data(attributes), "a window may cover nothing but border")
    return Apply("AveragePool", (m.x,), attributes)


@rule(
    apply("MaxPool", PAD).named("window"),
    where=[constant_mode, explicit, floor_mode],
    exactness=Exactness.EXACT,
    source="the border of MaxPool never wins",
    sample=_max_sample,
)
def move_pad_into_max_pool(m: Match) -> Term:
    """``MaxPool(Pad(x, v)) == MaxPool(x, pads + pad)`` if ``v`` is the least number or no element of ``x`` is less.

    Every window covers an element of ``x``: a border as wide as the kernel is refused.
    """
    fill = float(_pad_value(m))
    least = -np.inf if m.x.dtype.is_float else float(np.iinfo(m.x.dtype.numpy).min)
    m.require(fill == least or m.x.interval[0] >= fill, "an element may be less than the border")
    attributes = _padded(m)
    m.require(covers_data(attributes), "a window may cover nothing but border")
    return Apply("MaxPool", (m.x,), attributes)
