"""Quantisation by positive scales keeps order: what bounds elements, or adds a border to them, runs on the integers.

As in `eqsat.rules.quantised.movement`, QuantizeLinear moves to the front: behind a dequantisation by the same parameters it is
gone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.interpret import evaluate_operator
from eqsat.rewrite import Apply, Condition, Match, Term, apply, literal, rule, variables
from eqsat.rules.quantised.pairs import (
    BYTES,
    integer_range,
    like,
    per_tensor,
    positive_scale,
    quantize,
    unblocked,
    whole_tensor,
    x,
)
from eqsat.rules.terms import constant
from eqsat.samples import Sampler, fixed
from eqsat.samples.quantised import parameters, ties, values

y, low, high, pads, value = variables("y low? high? pads value?")

SOURCE = "monotone quantisation"


def _finite(*names: str) -> Condition:
    """The values bound to ``names`` are finite constants, or absent."""

    def holds(m: Match) -> bool:
        given = [m[n] for n in names if m[n] is not None]
        return all(b.is_constant and bool(np.isfinite(b.interval).all()) for b in given)

    return Condition(f"{', '.join(names)} finite", holds, names)


def _drawn(d: Sampler, *, per_axis: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of the pattern's variables, and the parameters themselves."""
    shape = d.shape()
    drawn = parameters(d, shape, per_axis=per_axis)
    return {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]}, drawn


def _relu_sample(d: Sampler) -> dict[str, Any]:
    return _drawn(d, per_axis=0.9)[0]


def _clip_sample(d: Sampler) -> dict[str, Any]:
    found, drawn = _drawn(d, per_axis=0.4)
    scale = np.abs(drawn["scale"]).max(initial=0)
    for name, steps in (("low", (-300, -3.5, 0, 2)), ("high", (0, 1.5, 4, 300))):
        if d.chance(0.75):
            found[name] = fixed(np.float32(d.choose(steps) * scale))
    return found


def _pair_sample(d: Sampler) -> dict[str, Any]:
    found, drawn = _drawn(d, per_axis=0.1)
    return found | {"y": ties(d, d.broadcast_of(found["x"].shape), drawn)}


def _pad_sample(d: Sampler) -> dict[str, Any]:
    found, drawn = _drawn(d, per_axis=0.1)
    rank = found["x"].ndim
    along = drawn["attributes"]["axis"] % rank if drawn["attributes"] else None
    border = [0 if i % rank == along else d.integer(0, 2) for i in range(2 * rank)]
    found["pads"] = fixed(border, "int64")
    if d.chance():
        found["value"] = fixed(np.float32(d.choose((0.0, 1.5, -1e38))))
    return found | {"n": {"mode": "edge"} if d.chance(0.2) else {}}


def _quantised(m: Match, number: Any) -> np.ndarray:
    """A number quantised by each scale. Raises `Unmet` if the parameters are not known."""
    scale = m.s.value.reshape(-1)
    zero = None if m.z is None else m.z.value.reshape(-1)
    attributes = m.quantized.attributes.updated(axis=0)
    whole = np.full(scale.shape, np.asarray(number).reshape(()), m.x.dtype.numpy)
    return evaluate_operator("QuantizeLinear", attributes, (whole, scale, zero))[0]


def _before(m: Match, given: Term) -> Term:
    """The value quantised. Raises `Unmet` unless to bytes, for which there are kernels."""
    m.require(m.root.dtype in BYTES and unblocked(m.quantized.attributes), "no 8-bit type, or blocks")
    return like(m.quantized, "QuantizeLinear", given, m.s, m.z)


def _bounded(m: Match, least: Any, greatest: Any) -> Term:
    """The quantised value between two numbers, which are ``None`` if there is no bound."""
    bounds = [None if b is None else _quantised(m, b) for b in (least, greatest)]
    ends = integer_range(m.root.dtype)
    tight = [b is not None and bool((b != end).any()) for b, end in zip(bounds, ends, strict=True)]
    m.require(any(tight), "the bounds are those of the type")
    integers = _before(m, m.x)
    if all(b is None or len(set(b.tolist())) == 1 for b in bounds):
        numbers = [end if b is None else b[0] for b, end in zip(bounds, ends, strict=True)]
        return apply("Clip", integers, *(literal(n, m.root.dtype) for n in numbers))
    behind = m.x.rank - 1 - m.quantized.attr("axis", 1) % m.x.rank
    for op, bound, needed in zip(("Max", "Min"), bounds, tight, strict=True):
        if bound is not None and needed:
            integers = apply(op, integers, literal(bound.reshape(-1, *(1,) * behind)))
    return integers


@rule(
    quantize(apply("Clip", x, low, high)),
    where=[positive_scale, constant("z"), _finite("low", "high")],
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_clip_sample,
)
def move_clip_behind_quantize(m: Match) -> Term:
    """``Q(Clip(x, low, high), s, z) == Clip(Q(x, s, z), Q(low), Q(high))`` for positive scales; Max and Min of several."""
    return _bounded(m, None if m.low is None else m.low.value, None if m.high is None else m.high.value)


@rule(
    quantize(apply("Relu", x)),
    where=[positive_scale, constant("z")],
    exactness=Exactness.EXACT,
    source=SOURCE,
    sample=_relu_sample,
)
def bound_channels_behind_quantize(m: Match) -> Term:
    """``Q(Relu(x), s, z) == Max(Q(x, s, z), z)`` for a positive scale for each index of an axis."""
    m.require(not per_tensor(m.s, m.z), "one scale for the whole tensor: another rule")
    return _bounded(m, 0, None)


def _define(op: str) -> None:
    def moved(m: Match) -> Term:
        return apply(op, _before(m, m.x), _before(m, m.y))

    moved.__name__ = f"move_{op.lower()}_behind_quantize"
    moved.__doc__ = f"""``Q({op}(x, y), s, z) == {op}(Q(x, s, z), Q(y, s, z))`` for one positive scale."""
    where = [positive_scale, whole_tensor]
    rule(
        quantize(apply(op, x, y)),
        where=where,
        exactness=Exactness.EXACT,
        source=SOURCE,
        sample=_pair_sample,
    )(moved)


for _op in ("Max", "Min"):
    _define(_op)


@rule(
    quantize(apply("Pad", x, pads, value).named("n")),
    where=[constant("s", "z"), _finite("value"), whole_tensor],
    exactness=Exactness.EXACT,
    source="each element is quantised by itself",
    sample=_pad_sample,
)
def move_quantize_before_pad(m: Match) -> Term:
    """``Q(Pad(x, p, c), s, z) == Pad(Q(x, s, z), p, Q(c, s, z))``."""
    integers = _before(m, m.x)
    if m.n.attr("mode", "constant") != "constant":
        return Apply("Pad", (integers, m.pads), m.n.attributes)
    border = _quantised(m, 0 if m.value is None else m.value.value)[0]
    return Apply("Pad", (integers, m.pads, literal(border, m.root.dtype)), m.n.attributes)
