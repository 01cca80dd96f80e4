"""Quantisation: cancelling pairs, and clamps that it makes superfluous. ``D(Q(x)) == x`` is no equality and appears nowhere."""

from typing import Any

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations
from eqsat.ir.types import DType
from eqsat.rules.quantised.scales import (
    functions,
    integer_range,
    one_scale,
    positive_scale,
    shorthands,
)
from eqsat.samples import Sampler, fixed
from eqsat.samples.quantised import parameters


def _pair(d: Sampler) -> dict[str, Any]:
    """Mostly the same parameters twice, at times with one difference."""
    same = ("",) * 6
    kind = d.choose((*same, "scale", "zero", "axis", "types", "coarse", "precise", "huge", "tiny"))
    shape = (3, 3) if kind == "axis" else d.shape()
    of_16_bits = "int16" if kind in ("coarse", "precise") else None
    first = parameters(d, shape, per_axis=1.0 if kind == "axis" else 0.25, dtype=of_16_bits)
    numbers = {"huge": 3e36, "tiny": 1e-43}
    if kind in numbers:
        first |= {"scale": np.full_like(first["scale"], numbers[kind])}
    if kind == "coarse":
        with np.errstate(over="ignore"):
            first |= {"scale": first["scale"].astype(DType.FLOAT16.numpy)}
    second = dict(first)
    if kind == "scale":
        second["scale"] = first["scale"] * np.float32(d.choose((1.25, 1 + 1e-6, 1.0001, 1.0015, 0.9985, 1.003)))
    if kind == "zero":
        second["zero"] = first["zero"] + first["zero"].dtype.type(1)
    if kind == "axis" and "block_size" not in first["attributes"]:
        second["attributes"] = first["attributes"] | {"axis": 1 - first["attributes"]["axis"] % 2}
    if kind == "precise":
        second["attributes"] = first["attributes"] | {"precision": int(DType.FLOAT16)}
    found: dict[str, Any] = {
        "q": d.integers(shape, first["dtype"]),
        "n": first["attributes"],
        "n2": second["attributes"],
    }
    found |= {"s": fixed(first["scale"]), "s2": fixed(second["scale"])}
    return found | ({} if kind == "types" else {"z": fixed(first["zero"]), "z2": fixed(second["zero"])})


def _nudged(d: Sampler) -> dict[str, Any]:
    found = _pair(d)
    shape = found["q"].shape
    enlarges = d.chance(0.5) and found["s"].array.size == found["s2"].array.size == 1
    part = 0.1 if enlarges else d.choose((0.1, 0.3, 0.39, 0.5, 0.7, 2.0))
    size = part * min(float(np.abs(found["s"].array).min()), 1e35)
    nudge = d.rng.uniform(-size, size, d.broadcast_with(shape) if enlarges else d.broadcast_of(shape))
    with np.errstate(over="ignore"):
        nudge = nudge.astype(found["s"].array.dtype)
    return found | {"c": d.either(nudge, 0.9)}


equation = Equations(__name__, functions=functions, shorthands=shorthands)
_SAME = ("one integer type: root.dtype is q.dtype", "the same zero points: same_zero_point(z, z2)")
_THERE_AND_BACK = (
    "floats that hold the integers: holds_integers(n.dtype, q.dtype) and n.dtype is s.dtype",
    "no blocks, no other precision: unblocked(n.attributes, n2.attributes)",
    "the same axis: per_tensor(s, z) or same_axis(n, n2)",
    "no dequantised value overflows: s.high * width(q.dtype) < limit(n)",
)
equation(
    "cancel_quantize_of_dequantize",
    "QuantizeLinear(D(q), s2, *z2, **n2) == q",
    *_SAME,
    positive_scale,
    *_THERE_AND_BACK,
    "no integer becomes another one: same_integers(s, s2, width(q.dtype))",
    source="rounding (q - z) * s / s2: what the scales differ by and half an ulp, twice, stay below half a quantum",
    sample=_pair,
)
equation(
    "drop_small_addend_before_quantize",
    "QuantizeLinear(D(q) + c, s2, *z2, **n2) == q",
    constant("c"),
    *_SAME,
    "c enlarges nothing: root.shape == q.shape",
    *_THERE_AND_BACK,
    "no integer becomes another one: same_integers(s, s2, width(q.dtype), largest(c))",
    source="what is added is less than half a quantum, as an epsilon added to a quantised variance",
    sample=_nudged,
)

# --- types that are stated


equation(
    "leave_out_stated_type_of_scale",
    "D(q) == DequantizeLinear(q, s, *z, output_dtype=None, **n)",
    worthwhile("a type is stated: n.attr('output_dtype', 0)"),
    "it is that of the scale: n.dtype is s.dtype",
    source="ONNX DequantizeLinear: output_dtype",
    drawn="q: int8[*ANY, A]; s = d.positive([]); z: int8[()]; n.output_dtype = 1 | 10 | 16",
)

# --- clamps that saturation makes superfluous


def _near_ends(d: Sampler) -> dict[str, Any]:
    """Elements around the ends of the range, and bounds at those or a little within or beyond; at times quotients in float16,
    in which the ends are others."""
    integers = d.choose(("int8", "uint8", "int16", "int16", "int16"))
    carrier = d.choose(("",) * 4 + ("precision", "scale", "both", "both", "widened"))
    halves = ("both", "widened"), ("both", "widened", "scale")
    of_x, of_s = (np.dtype("float16" if carrier in kinds else "float32") for kinds in halves)
    s = np.asarray(d.rng.uniform(0.005, 0.02) * d.choose((1,) * 5 + (-1,)), of_s)
    first, last = integer_range(DType.of(integers))
    z = min(max(d.choose((first, 77, -77, 1005)), first), last)
    ends = [(end - z) * float(s) for end in (first, last)]
    bounds: dict[str, Any] = {}
    for name, end, outward in zip(("low", "high"), ends, (-np.inf, np.inf), strict=True):
        bound = np.full(d.choose(((), (), (1,))), end, of_x)
        if (float(bound.reshape(())) - end) * outward < 0:
            bound = np.nextafter(bound, of_x.type(outward))
        if d.chance(0.8):
            bounds[name] = fixed((bound * of_x.type(d.choose((1,) * 6 + (0.9, 1.1)))).astype(of_x))
    shape = d.shape()
    x = (d.rng.choice(ends, shape) * d.rng.choice((0.5, 0.99, 1, 1.01, 3), shape)).astype(of_x)
    stated = {"precision": DType.FLOAT16, "widened": DType.FLOAT}.get(carrier)
    attributes = {} if stated is None else {"precision": int(stated)}
    if d.chance(0.1):  # several scales
        s, z, attributes = s * d.positive(shape[:1]).astype(of_s), np.full(shape[:1], z), attributes | {"axis": 0}
    return {"x": x, "s": fixed(s), "z": fixed(z, integers), **bounds, "n": attributes}


equation(
    "drop_relu_before_quantize",
    "Q(Relu(x)) == Q(x)",
    positive_scale,
    one_scale,
    "negative numbers saturate at 0: root.dtype.is_integer and zero_of(z, root.dtype) == integer_range(root.dtype)[0]",
    source="saturation at the zero point",
)
equation(
    "drop_clip_before_quantize",
    "Q(Clip(x, *low, *high)) == Q(x)",
    positive_scale,
    one_scale,
    """one precision, which holds the ends: one_precision(n.attributes, x, s)
       and holds_integers(quotient_type(n.attributes, s), root.dtype)""",
    "no lower bound within the range: low is None or low.high <= reach(root.dtype, s, z)[0]",
    "no upper bound within the range: high is None or high.low >= reach(root.dtype, s, z)[1]",
    source="saturation, and rounding is monotone and leaves the ends as they are",
    sample=_near_ends,
)
