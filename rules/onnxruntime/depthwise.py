"""A byte scaled, shifted and quantised again, for each column, as a depthwise convolution, for ONNX Runtime.

That is a bias behind a quantised product: dequantise, add, quantise are three kernels that each write what the next reads. The
kernel of QLinearConv with channels last computes ``(q - zero) * weight + bias`` in integers and requantises, for each channel:
one pass over the bytes. A bias is no whole number of steps; but the weight is free, and among those of 8 bits one is looked for
with which all 256 results of the column are what they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.operators.quantization import requantize
from eqsat.ir.types import DType
from eqsat.rewrite import Match, Term, apply, literal, rule, variables
from eqsat.rules.onnxruntime.heads import CONVOLUTION
from eqsat.rules.onnxruntime.quantised import DOMAIN, number
from eqsat.rules.quantised.byte_tables import dequantised_bytes, every_byte, quantised
from eqsat.rules.quantised.pairs import per_tensor, positive, unblocked
from eqsat.rules.terms import int64s
from eqsat.samples import Sampler, fixed

_WEIGHTS = (*range(127, 15, -1), *range(255, 127, -1))
"""Weights tried in this order. By them the bias is rounded to ``1 / weight`` of a step of the bytes; the kernel for signed
weights without a zero point takes half the time of the one for unsigned weights."""

_EXACT_FLOATS = 1 << 24
a, sa, sy, za, zy, bias = variables("a sa sy za zy bias")


def _drawn(d: Sampler) -> dict[str, Any]:
    shape = d.shape(2, 4)
    kind = "uint8" if d.chance(0.9) else "int8"
    step = d.positive(()) / np.float32(8)
    extent = d.choose(((shape[-1],), (shape[-1],), (1, shape[-1]), (), d.broadcast_with(shape)))
    return {
        "a": d.integers(shape, kind),
        "sa": fixed(step),
        "za": fixed(d.integers((), kind, 20, 120)),
        "left": {},
        "bias": d.either(d.floats(extent), 0.95),
        "sy": fixed(step * np.float32(d.choose((0.4, 1.0, 1.3, 3.0)))),
        "zy": fixed(d.integers((), kind, 20, 120)),
        "quantized": {},
    }


@rule(
    apply("QuantizeLinear", apply("Add", apply("DequantizeLinear", a, sa, za).named("left"), bias), sy, zy).named(
        "quantized"
    ),
    exactness=Exactness.LSB,
    quanta=1,
    source="a function of a byte has 256 values",
    sample=_drawn,
    domain=DOMAIN,
)
def convolve_biased_columns(m: Match) -> Term:
    """``Q(DQ(a) + bias) == QLinearConv(a, w, B, channels_last=1)`` with a weight and a bias for each index of the last axis.

    The weights are such that all 256 results of each column are the same in float32; without such weights it does not fire.
    """
    numbers = (m.sa, m.za, m.sy, m.zy)
    m.require(m.a.dtype is DType.UINT8 and m.root.dtype is DType.UINT8, "other integers")
    m.require(unblocked(m.left.attributes, m.quantized.attributes) and per_tensor(*numbers), "no single scales")
    m.require(all(v.is_constant for v in (*numbers, m.bias)) and positive(m.sa) and positive(m.sy), "unknown scales")
    extents = m.a.static_shape
    m.require(len(extents) >= 2 and math.prod(extents) > 0, "a vector, or nothing at all")
    columns = extents[-1]
    m.require(m.bias.static_shape[-1:] == (columns,) and m.bias.value.size == columns, "no bias for each column")
    m.require(m.root.static_shape == extents, "enlarged by the bias")
    found = _kernels(*(v.value for v in (m.sa, m.za, m.sy, m.zy, m.bias)))
    m.require(found is not None, "no weights with the same results")
    assert found is not None
    image = extents if len(extents) == 3 else (1, math.prod(extents[:-1]), columns)
    value: Term = m.a if image == extents else apply("Reshape", m.a, int64s(image))
    convolved = apply(
        CONVOLUTION,
        value,
        number(m.sa, DType.FLOAT),
        number(m.za, DType.UINT8),
        literal(found.weights.reshape(columns, 1, 1)),
        literal(found.scales),
        literal(np.zeros(columns, found.weights.dtype)),
        number(m.sy, DType.FLOAT),
        number(m.zy, DType.UINT8),
        literal(found.biases),
        channels_last=1,
        group=columns,
        kernel_shape=(1,),
    )
    return convolved if image == extents else apply("Reshape", convolved, int64s(extents))


@dataclass(frozen=True)
class _Kernels:
    """Of each column the weight (int8, or uint8 where it takes larger ones), its scale (float32) and the bias in units of the
    product of both scales (int32)."""

    weights: np.ndarray
    scales: np.ndarray
    biases: np.ndarray

    def narrow(self) -> _Kernels:
        """The same with signed weights where all fit."""
        fits = int(self.weights.max()) <= np.iinfo(np.int8).max
        return replace(self, weights=self.weights.astype(np.int8)) if fits else self


def _kernels(sa: np.ndarray, za: np.ndarray, sy: np.ndarray, zy: np.ndarray, bias: np.ndarray) -> _Kernels | None:
    """Those of a convolution with the results of dequantising bytes, adding ``bias`` and quantising; ``None`` if a column has
    none."""
    sa, za, sy, zy, bias = sa.reshape(()), za.reshape(()), sy.reshape(()), zy.reshape(()), bias.reshape(-1)
    every = every_byte(DType.UINT8).reshape(-1, 1)
    wanted = quantised(dequantised_bytes(DType.UINT8, sa, za) + bias, sy, zy)
    steps = every.astype(np.int64) - int(za)
    exact = bias.astype(np.float64) / float(sa)
    unit = float(sa) / float(sy)
    found = _Kernels(np.zeros(bias.size, np.uint8), np.ones(bias.size, np.float32), np.zeros(bias.size, np.int32))
    if not (np.abs(exact).max() + 256) * max(_WEIGHTS) < _EXACT_FLOATS:
        return None
    for weight in _WEIGHTS:
        for beside in (0, 1, -1):
            left = np.flatnonzero(found.weights == 0)
            if not left.size:
                return found.narrow()
            rounded = np.rint(exact[left] * weight).astype(np.int64) + beside
            total = (steps * weight + rounded).astype(np.int32)
            scales = (_multiplier(total, wanted[:, left], int(zy)) / unit).astype(np.float32)
            fits = (requantize(total, sa, scales, sy, zy) == wanted[:, left]).all(axis=0)
            fits &= (scales >= np.finfo(np.float32).smallest_normal) & np.isfinite(scales)
            done = left[fits]
            found.weights[done], found.scales[done], found.biases[done] = weight, scales[fits], rounded[fits]
    return found.narrow() if found.weights.all() else None


def _multiplier(total: np.ndarray, wanted: np.ndarray, zero: int) -> np.ndarray:
    """The factor of each column by which ``total``, rounded, is nearest to ``wanted`` (256, columns) without its zero point: in
    the middle of those that put every sum within half a quantum; a result at the end of its range may lie beyond."""
    info = np.iinfo(wanted.dtype)
    quanta = wanted.astype(np.float64) - zero
    low = np.where(wanted == info.min, -np.inf, quanta - 0.5)
    high = np.where(wanted == info.max, np.inf, quanta + 0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.where(total > 0, low / total, np.where(total < 0, high / total, -np.inf)).max(axis=0)
        most = np.where(total > 0, high / total, np.where(total < 0, low / total, np.inf)).min(axis=0)
    return (least + most) / 2
