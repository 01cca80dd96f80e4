"""Quantisation: cancelling pairs, and selecting operators on the integers.

``Q`` is QuantizeLinear, ``DQ`` DequantizeLinear. ``DQ(Q(x)) == x`` is no equality and appears nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Apply, Condition, Match, Ref, Term, apply, literal, present, rule, variables
from eqsat.rules.linear.alignment import largest
from eqsat.rules.linear.padding import narrow_border
from eqsat.rules.terms import add, condition, constant
from eqsat.samples import Sampler, fixed
from eqsat.samples.quantised import parameters, ties, values

x, q, c, s, z, s2, z2, low, high = variables("x q c s z? s2 z2? low? high?")

BYTES = frozenset((DType.INT8, DType.UINT8))
"""Integer types on which kernels for movement, Clip and MaxPool exist."""

_CARRIED_BITS = {DType.FLOAT: 16, DType.DOUBLE: 16, DType.FLOAT16: 8}


def dequantize(value: Term) -> Apply:
    """Pattern: DequantizeLinear by the scale ``s`` and the zero point ``z``."""
    return apply("DequantizeLinear", value, s, z).named("dq")


def quantize(value: Term) -> Apply:
    """Pattern: QuantizeLinear by the scale ``s`` and the zero point ``z``."""
    return apply("QuantizeLinear", value, s, z).named("quantized")


def like(node: Ref, op: str, value: Term, scale: Term, zero: Term | None, **changes: Any) -> Apply:
    """``op`` with the attributes of ``node`` on another value; beside a single scale an axis says nothing, and is left out."""
    if isinstance(scale, Ref) and scale.shape in ((), (1,)) and unblocked(node.attributes):
        changes["axis"] = None
    return Apply(op, present(value, scale, zero), node.attributes.updated(**changes) if changes else node.attributes)


def integer_range(dtype: DType) -> tuple[int, int]:
    """Least and greatest element of an integer type."""
    info = ml_dtypes.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def same_value(a: Ref, b: Ref) -> bool:
    """Whether two constants hold the same numbers; one number may be a scalar or a vector of one."""
    if a.handle == b.handle:
        return True
    if not (a.is_constant and b.is_constant) or a.dtype is not b.dtype:
        return False
    u, v = a.value, b.value
    return bool(np.array_equal(u, v)) or (u.size == v.size == 1 and bool(u.reshape(()) == v.reshape(())))


def same_integers(s: Ref, s2: Ref, integers: int, shift: float | None = None) -> bool:
    """Whether that many multiples of ``s``, moved by at most ``shift``, lie nearest the same multiples of ``s2``.

    By 0.4 quanta in float32: of a 16-bit integer the roundings on the way make less than the rest.
    """
    if shift is None and same_value(s, s2):
        return True
    if not (s.is_constant and s2.is_constant) or not s.dtype is s2.dtype is DType.FLOAT or not positive(s2):
        return False
    u, v = s.value.reshape(-1), s2.value.reshape(-1)
    return u.size == v.size and bool((integers * np.abs(u - v) + (shift or 0.0) <= 0.4 * v).all())


def same_zero_point(a: Ref | None, b: Ref | None) -> bool:
    """Whether two zero points are the same numbers; an absent one is zero."""
    if a is not None and b is not None:
        return same_value(a, b)
    given = a if a is not None else b
    return given is None or (given.is_constant and not given.value.any())


def per_tensor(*values: Ref | None) -> bool:
    """Whether each scale or zero point is a single number."""
    return all(v is None or math.prod(v.static_shape) == 1 for v in values)


def unblocked(*attributes: Mapping[str, Any]) -> bool:
    """Whether no node scales in blocks or divides in another precision than its input's."""
    return not any(a.get("block_size", 0) or a.get("precision", 0) for a in attributes)


def positive(scale: Ref) -> bool:
    """Whether a constant scale is a positive normal number everywhere."""
    if scale.dtype not in _CARRIED_BITS:
        return False
    least, greatest = scale.interval
    info = np.finfo(scale.dtype.numpy)
    return scale.is_constant and least >= float(info.smallest_normal) and greatest <= float(info.max)


positive_scale = Condition("scale constant, positive and normal", lambda m: positive(m.s))


@condition("one scale for the whole tensor")
def whole_tensor(m: Match) -> bool:
    return per_tensor(m.s, m.z)


def zero_of(m: Match, dtype: DType) -> int:
    """The zero point as a number. Raises `Unmet` if it is not known at compile time."""
    m.require(m.z is None or m.z.dtype is dtype, "the zero point has another type")
    return 0 if m.z is None else int(m.z.value.reshape(()))


def _pair_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    first = parameters(d, shape)
    if d.chance(0.1):  # negative scales beyond which dequantised values overflow
        scale = np.full_like(first["scale"], -3e36)
        first = {**first, "s": fixed(scale), "scale": scale}
    second = first if d.chance(0.8) else parameters(d, shape)
    if second is first and d.chance(0.2):
        factor = np.float32(d.choose((1.25, 1 + 1e-6, 1.0001, 1.0015, 0.9985, 1.003)))
        second = {**first, "s": fixed(first["scale"] * factor)}
    found = {"q": d.integers(shape, first["dtype"]), **values(first), "dq": first["attributes"]}
    found |= {name + "2": value for name, value in values(second).items()}
    return found | {"quantized": second["attributes"]}


def _quantize_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, per_axis=0.1)
    return {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]}


def _clip_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, per_axis=0.1)
    info = np.iinfo(drawn["dtype"])
    scale, zero = (drawn[name].reshape(-1)[0] for name in ("scale", "zero"))
    found = {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]}
    if d.chance(0.8):
        found["low"] = fixed((int(info.min) - int(zero) + d.choose((0, 0, -3, 3))) * scale, "float32")
    if d.chance(0.8):
        found["high"] = fixed((int(info.max) - int(zero) + d.choose((0, 0, -3, 3))) * scale, "float32")
    return found


def _dequantize_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, per_axis=0.1)
    return {"q": d.integers(shape, drawn["dtype"]), **values(drawn), "dq": drawn["attributes"]}


def _pool(d: Sampler) -> dict[str, Any]:
    pads = tuple(d.integer(0, 1) for _ in range(4))
    if d.chance(0.1):
        pads = (3, *pads[1:])  # the first windows cover nothing but border
    return {"kernel_shape": (3, 2), "pads": pads, "strides": (d.integer(1, 2), 1)} | (
        {"ceil_mode": 1} if d.chance(0.2) else {}
    )


def _pooled_sample(d: Sampler) -> dict[str, Any]:
    shape = (*d.extents(2), d.integer(4, 6), d.integer(4, 6))
    drawn = parameters(d, shape, dtype=d.choose(("int8", "uint8")))
    found = {"q": d.integers(shape, drawn["dtype"]), **values(drawn), "dq": drawn["attributes"]}
    return found | {"window": _pool(d)}


def _pool_quantize_sample(d: Sampler) -> dict[str, Any]:
    from eqsat.ir.graph import Attributes
    from eqsat.ir.interpret import evaluate_operator

    shape = (*d.extents(2), d.integer(4, 6), d.integer(4, 6))
    window = _pool(d)
    pooled = evaluate_operator("MaxPool", Attributes(window), (np.zeros(shape, np.float32),))[0].shape
    drawn = parameters(d, pooled, dtype=d.choose(("int8", "uint8")))
    found = {"x": ties(d, shape, drawn), **values(drawn), "quantized": drawn["attributes"]}
    return found | {"window": window}


def _require_way_back(m: Match, shift: float | None = None) -> None:
    """Raises `Unmet` unless the dequantised integers, moved by at most ``shift``, are quantised to themselves.

    Not where ``(q - z) * s`` overflows, nor in bfloat16, whose 8 bits of significand merge neighbours.
    """
    m.require(m.root.dtype is m.q.dtype, "another integer type")
    m.require(m.q.dtype.is_integer and m.q.dtype is not DType.INT32, "no quantised type")
    carrier = m.dq.dtype
    m.require(carrier is m.s.dtype and carrier is m.s2.dtype, "mixed float types")
    m.require(m.q.dtype.bits <= _CARRIED_BITS[carrier], "the float type does not hold the integers")
    m.require(unblocked(m.dq.attributes, m.quantized.attributes), "blocks or another precision")
    least, greatest = integer_range(m.q.dtype)
    m.require(same_zero_point(m.z, m.z2), "other zero points")
    m.require(same_integers(m.s, m.s2, greatest - least, shift), "another scale, or too much is added")
    if not per_tensor(m.s, m.z):
        axes = [n.attr("axis", 1) % m.q.rank for n in (m.dq, m.quantized)]
        m.require(axes[0] == axes[1], "another axis")
    bound = float(np.finfo(carrier.numpy).max)
    m.require(m.s.interval[1] * (greatest - least) < bound, "a dequantised value may overflow")


@rule(
    apply("QuantizeLinear", dequantize(q), s2, z2).named("quantized"),
    where=[positive_scale],
    exactness=Exactness.EXACT,
    source="rounding (q - z) * s / s2: what the scales differ by and half an ulp, twice, stay below half a quantum",
    sample=_pair_sample,
)
def cancel_quantize_of_dequantize(m: Match) -> Term:
    """``Q(DQ(q, s, z), s, z) == q``, also for a second scale so close that no integer becomes another one."""
    _require_way_back(m)
    return m.q


def _nudged_sample(d: Sampler) -> dict[str, Any]:
    found = _pair_sample(d)
    shape = found["q"].shape
    size = np.abs(found["s"].array).min() * d.choose((0.1, 0.3, 0.39, 0.5, 0.7, 2.0))
    enlarges = d.chance(0.2) and found["s"].array.size == found["s2"].array.size == 1
    nudge = d.rng.uniform(-size, size, d.broadcast_with(shape) if enlarges else d.broadcast_of(shape))
    return found | {"c": d.either(nudge.astype(np.float32), 0.9)}


@rule(
    apply("QuantizeLinear", add(dequantize(q), c), s2, z2).named("quantized"),
    where=[constant("c")],
    exactness=Exactness.EXACT,
    source="what is added is less than half a quantum, as an epsilon added to a quantised variance",
    sample=_nudged_sample,
)
def drop_small_addend_before_quantize(m: Match) -> Term:
    """``Q(DQ(q, s, z) + c, s, z) == q`` for constants ``c`` below half a quantum, and such scales as above."""
    m.require(m.root.shape == m.q.shape, "the constant enlarges the value")
    _require_way_back(m, largest(m.c))
    return m.q


@rule(
    quantize(apply("Relu", x)),
    where=[positive_scale, whole_tensor],
    exactness=Exactness.EXACT,
    source="saturation at the zero point",
    sample=_quantize_sample,
)
def drop_relu_before_quantize(m: Match) -> Term:
    """``Q(Relu(x), s, z) == Q(x, s, z)`` if ``z`` is the least integer."""
    m.require(zero_of(m, m.root.dtype) == integer_range(m.root.dtype)[0], "negative numbers do not saturate at 0")
    return like(m.quantized, "QuantizeLinear", m.x, m.s, m.z)


@rule(
    quantize(apply("Clip", x, low, high)),
    where=[positive_scale, whole_tensor],
    exactness=Exactness.EXACT,
    source="saturation",
    sample=_clip_sample,
)
def drop_clip_before_quantize(m: Match) -> Term:
    """``Q(Clip(x, low, high), s, z) == Q(x, s, z)`` if the bounds are on or outside the range that ``Q`` saturates to."""
    least, greatest = integer_range(m.root.dtype)
    zero, scale = zero_of(m, m.root.dtype), float(m.s.value.reshape(()))
    if m.low is not None:
        m.require(float(m.low.value) <= (least - zero) * scale, "the lower bound is inside the range")
    if m.high is not None:
        m.require(float(m.high.value) >= (greatest - zero) * scale, "the upper bound is inside the range")
    return like(m.quantized, "QuantizeLinear", m.x, m.s, m.z)


@rule(
    apply("Relu", dequantize(q)),
    where=[positive_scale, whole_tensor],
    exactness=Exactness.EXACT,
    source="monotone dequantisation maps the zero point to 0",
    sample=_dequantize_sample,
)
def move_relu_before_dequantize(m: Match) -> Term:
    """``Relu(DQ(q, s, z)) == DQ(Clip(q, z), s, z)`` for a positive scale."""
    m.require(m.q.dtype in BYTES, "no 8-bit type")
    clipped = apply("Clip", m.q, literal(zero_of(m, m.q.dtype), m.q.dtype))
    return like(m.dq, "DequantizeLinear", clipped, m.s, m.z)


@rule(
    quantize(apply("Relu", x)),
    where=[positive_scale, whole_tensor],
    exactness=Exactness.EXACT,
    source="monotone quantisation maps 0 to the zero point",
    sample=_quantize_sample,
)
def move_relu_behind_quantize(m: Match) -> Term:
    """``Q(Relu(x), s, z) == Clip(Q(x, s, z), z)`` for a positive scale."""
    m.require(m.root.dtype in BYTES, "no 8-bit type")
    zero = literal(zero_of(m, m.root.dtype), m.root.dtype)
    return apply("Clip", like(m.quantized, "QuantizeLinear", m.x, m.s, m.z), zero)


def _along_channels(m: Match, node: Ref) -> bool:
    """Whether each window lies within one scale."""
    return per_tensor(m.s, m.z) or node.attr("axis", 1) % node.rank in (0, 1)


@rule(
    apply("MaxPool", dequantize(q)).named("window"),
    where=[positive_scale, narrow_border],
    exactness=Exactness.EXACT,
    source="monotone dequantisation",
    sample=_pooled_sample,
)
def move_max_pool_before_dequantize(m: Match) -> Term:
    """``MaxPool(DQ(q, s, z)) == DQ(MaxPool(q), s, z)`` for positive scales that no window mixes."""
    m.require(m.q.dtype in BYTES and unblocked(m.dq.attributes), "no 8-bit type, or blocks")
    m.require(_along_channels(m, m.dq), "scales vary within a window")
    pooled = Apply("MaxPool", (m.q,), m.window.attributes)
    return like(m.dq, "DequantizeLinear", pooled, m.s, m.z)


@rule(
    quantize(apply("MaxPool", x).named("window")),
    where=[positive_scale, narrow_border],
    exactness=Exactness.EXACT,
    source="monotone quantisation",
    sample=_pool_quantize_sample,
)
def move_max_pool_behind_quantize(m: Match) -> Term:
    """``Q(MaxPool(x), s, z) == MaxPool(Q(x, s, z))`` for positive scales that no window mixes."""
    m.require(m.root.dtype in BYTES and unblocked(m.quantized.attributes), "no 8-bit type, or blocks")
    m.require(_along_channels(m, m.quantized), "scales vary within a window")
    quantized = like(m.quantized, "QuantizeLinear", m.x, m.s, m.z)
    return Apply("MaxPool", (quantized,), m.window.attributes)
