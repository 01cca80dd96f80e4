"""Factors of integers: folded into the scale by which they are dequantised (E5), those of integer sums among them."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.alignment import reshaped
from eqsat.rules.quantisation import dequantize, like, q, s, unblocked
from eqsat.rules.quantised_drawing import parameters, values
from eqsat.rules.sampling import Sampler
from eqsat.rules.terms import constant, mul

c = variables("c")[0]


def _scaled_sample(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    drawn = parameters(d, shape, dtype=d.choose(("int8", "uint8", "int32")))
    if drawn["dtype"] == "int32":
        drawn.pop("z", None)
    factor = d.choose((0.125, 3.0, 0.3, 1e-3, -2.0, 1e38))
    extent = d.choose(((), (), (1,), (1,) * (len(shape) + d.integer(0, 1)), d.broadcast_of(shape)))
    found = {
        "q": d.integers(shape, drawn["dtype"], -1000, 1000)
        if drawn["dtype"] == "int32"
        else d.integers(shape, drawn["dtype"])
    }
    return found | {**values(drawn), "dq": drawn["attributes"], "c": d.either(np.full(extent, factor, np.float32), 0.9)}


@rule(
    mul(dequantize(q), c),
    where=[constant("c")],
    exactness=Exactness.ROUNDING,
    source="(q - z) * s * c",
    family="E5",
    sample=_scaled_sample,
)
def fold_factor_into_dequantize(m: Match) -> Term:
    """``DQ(q, s, z) * c == DQ(q, s * c, z)`` for one positive number ``c``."""
    m.require(m.root.shape == m.q.shape and m.c.value.size == 1, "several factors, or one that enlarges the value")
    m.require(m.root.dtype is DType.FLOAT and m.s.dtype is DType.FLOAT, "no float32")
    factor = float(m.c.value.reshape(()))
    info = np.finfo(np.float32)
    least, greatest = (bound * factor for bound in m.s.interval)
    m.require(least >= float(info.smallest_normal) and greatest < float(info.max) / 2**32, "scales out of range")
    m.require(unblocked(m.dq.attributes) and not m.q.is_constant, "blocks, or a known value")
    return like(m.dq, "DequantizeLinear", m.q, mul(m.s, literal(np.float32(factor))), m.z)


def _accumulated(d: Sampler) -> dict[str, Any]:
    shape = d.shape()
    axis = d.integer(0, len(shape) - 1)
    along = tuple(n if i == axis else 1 for i, n in enumerate(shape))[d.integer(0, axis) :]
    scale = d.scale(d.choose(((), (1,), along, along, d.broadcast_with(shape))))
    return {
        "q": d.integers(shape, d.choose(("int32", "int32", "int64"))),
        "s": d.either(scale, 0.9),
        "cast": {"to": int(DType.FLOAT)},
    }


@rule(
    mul(apply("Cast", q).named("cast"), s),
    where=[constant("s")],
    exactness=Exactness.EXACT,
    source="ONNX DequantizeLinear of int32 has no zero point",
    family="E6",
    sample=_accumulated,
)
def dequantize_accumulator(m: Match) -> Term:
    """``Cast(q: int32) * s == DequantizeLinear(q, s)`` for one scale, or one for each slice of an axis."""
    m.require(m.q.dtype is DType.INT32 and m.s.dtype is DType.FLOAT and m.root.dtype is DType.FLOAT, "other types")
    m.require(m.root.shape == m.q.shape, "the scale enlarges the value")
    extents = m.s.static_shape
    axes = [i - len(extents) for i, n in enumerate(extents) if n != 1]
    m.require(len(axes) <= 1, "the scale varies over several axes")
    attributes = {"axis": axes[0] + m.q.rank} if axes else {}
    return apply("DequantizeLinear", m.q, reshaped(m.s, [extents[axis] for axis in axes]), **attributes)
