"""A byte scaled, shifted and quantised again, for each column, as a depthwise convolution, for ONNX Runtime.

That is a bias behind a quantised product: dequantise, add, quantise are three kernels that each write what the next reads. The
kernel of QLinearConv with channels last computes ``(q - zero) * weight + bias`` in integers and requantises, for each channel:
one pass over the bytes. A bias is no whole number of steps; but the weight is free, and among those of 8 bits one is looked for
with which all 256 results of the column are what they were in float32.
"""

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from eqsat.conditions import constant, worthwhile
from eqsat.equations import Equations
from eqsat.exactness import Exactness
from eqsat.ir.operators.quantization import requantize
from eqsat.ir.types import DType
from eqsat.rewrite import Ref, Term
from eqsat.rules.onnxruntime.parameters import dequantized, functions, quantized, single_parameters
from eqsat.rules.quantised.byte_tables import dequantised_bytes, every_byte, quantised
from eqsat.rules.terms import reshape

_WEIGHTS = (*range(127, 15, -1), *range(255, 127, -1))
"""Weights tried in this order. By them the bias is rounded to ``1 / weight`` of a step of the bytes; the kernel for signed
weights without a zero point takes half the time of the one for unsigned weights."""

_TRIALS = np.array([(weight, beside) for weight in _WEIGHTS for beside in (0, 1, -1)])
_TOGETHER = 64
"""Columns, or trials of fewer columns, that are computed with at a time: their 256 sums stay in the cache of the processor."""

_EXACT_FLOATS = 1 << 24
_COARSE = 15


@dataclass(frozen=True)
class _Kernels:
    """Of each column the weight (int8, or uint8 where it takes larger ones), its scale (float32) and the bias in units of the
    product of both scales (int32)."""

    weights: np.ndarray
    scales: np.ndarray
    biases: np.ndarray

    @property
    def stack(self) -> np.ndarray:
        """A kernel of one element for each column."""
        return self.weights.reshape(-1, 1, 1)

    @property
    def points(self) -> np.ndarray:
        """Zero points of the weights."""
        return np.zeros_like(self.weights)


@lru_cache(1 << 14)
def _of_columns(sa: Any, za: Any, sy: Any, zy: Any, elements: bytes) -> _Kernels | None:
    """Those of a convolution with the results of dequantising bytes, adding a bias and quantising; ``None`` if a column has
    none."""
    sa, za, sy, zy, bias = map(np.asarray, (sa, za, sy, zy, np.frombuffer(elements, np.float32)))
    if not np.isfinite((float(sa), float(sy), *bias)).all():
        return None
    every = every_byte(DType.UINT8).reshape(-1, 1)
    wanted = quantised(dequantised_bytes(DType.UINT8, sa, za) + bias, sy, zy)
    steps = every.astype(np.int64) - int(za)
    exact = bias.astype(np.float64) / float(sa)
    unit = float(sa) / float(sy)
    found = _Kernels(np.zeros(bias.size, np.uint8), np.ones(bias.size, np.float32), np.zeros(bias.size, np.int32))
    if not (np.abs(exact).max() + 256) * max(_WEIGHTS) < _EXACT_FLOATS:
        return None
    tried = 0
    while (left := np.flatnonzero(found.weights == 0)).size and tried < len(_TRIALS):
        trials = _TRIALS[tried : tried + max(1, _TOGETHER // left.size)]  # for few columns many at once
        tried += len(trials)
        columns = np.tile(left, len(trials))
        weight, beside = np.repeat(trials, left.size, axis=0).T
        rounded = np.rint(exact[columns] * weight).astype(np.int64) + beside
        for some in (slice(None, None, _COARSE), slice(None)):  # few bytes show of most trials that they are none
            total = (steps[some] * weight + rounded).astype(np.int32)
            scales = (_multiplier(total, wanted[some, columns], int(zy)) / unit).astype(np.float32)
            fits = (scales >= np.finfo(np.float32).smallest_normal) & np.isfinite(scales)
            columns, weight, rounded, scales = columns[fits], weight[fits], rounded[fits], scales[fits]
        fits = (requantize(total[:, fits], sa, scales, sy, zy) == wanted[:, columns]).all(axis=0)
        done, place = np.unique(columns[fits], return_index=True)  # of each column the first that fits
        found.weights[done] = weight[fits][place]
        found.scales[done] = scales[fits][place]
        found.biases[done] = rounded[fits][place]
    return found if found.weights.all() else None


def _multiplier(total: np.ndarray, wanted: np.ndarray, zero: int) -> np.ndarray:
    """The factor of each column by which ``total``, rounded, is nearest to ``wanted`` (256, columns) without its zero point: in
    the middle of those that put every sum within half a quantum, NaN if there are none; a result at the end of its range may lie
    beyond."""
    info = np.iinfo(wanted.dtype)
    quanta = wanted.astype(np.float64) - zero
    with np.errstate(divide="ignore", invalid="ignore"):  # the sum 0 allows all factors, or none
        one = np.where(wanted == info.min, -np.inf, quanta - 0.5) / total
        other = np.where(wanted == info.max, np.inf, quanta + 0.5) / total
        least, most = np.minimum(one, other).max(axis=0), np.maximum(one, other).min(axis=0)
        return np.where(least <= most, (least + most) / 2, np.nan)


@lru_cache(1 << 10)
def _kernels(sa: Any, za: Any, sy: Any, zy: Any, elements: bytes) -> _Kernels | None:
    """Those of all columns side by side, with signed weights where all fit."""
    columns = np.frombuffer(elements, np.float32)
    found: list[_Kernels] = []
    for start in range(0, columns.size, _TOGETHER):
        some = _of_columns(sa, za, sy, zy, columns[start : start + _TOGETHER].tobytes())
        if some is None:  # most biases without kernels show that in the first columns
            return None
        found.append(some)
    weights, scales, biases = (np.concatenate([getattr(k, f.name) for k in found]) for f in fields(_Kernels))
    fits = int(weights.max(initial=0)) <= np.iinfo(np.int8).max
    return _Kernels(weights.astype(np.int8) if fits else weights, scales, biases)


def kernels_of(c: Ref, *parameters: Ref) -> _Kernels | None:
    """Those for a bias ``c`` for each column and the parameters ``sa``, ``za``, ``sy``, ``zy``."""
    numbers: list[Any] = [p.value.reshape(())[()] for p in parameters]
    return _kernels(*numbers, c.value.astype(np.float32).tobytes())


def image(x: Ref) -> Term:
    """``x`` with three axes, of which the last one stays."""
    return x if x.rank == 3 else reshape(x, (1, math.prod(x.static_shape[:-1]), x.static_shape[-1]))


def in_place(term: Term, x: Ref) -> Term:
    """What was computed from `image` in the shape of ``x``."""
    return term if x.rank == 3 else reshape(term, x.static_shape)


equation = Equations(__name__, domain="com.microsoft", functions=functions)
FOUND = "kernels_of(c, sa, za, sy, zy)"
equation(
    "convolve_biased_columns",
    quantized(f"{dequantized('a')} + c").replace(" *z", " z")
    + f""" == in_place(com.microsoft.QLinearConv(
        image(a), scalar(sa), scalar(za), number({FOUND}.stack), number({FOUND}.scales), number({FOUND}.points), scalar(sy),
        scalar(zy), number({FOUND}.biases), channels_last=1, group=a.shape[-1], kernel_shape=(1,)), a)""",
    *single_parameters("a"),
    constant("c"),
    "unsigned bytes: a.dtype is uint8 and root.dtype is uint8",
    worthwhile("known extents, none 0: a.type.size"),
    "a bias for each column, and no others: c.shape[-1:] == a.shape[-1:] == (c.type.size,)",
    "the bias enlarges nothing: root.shape == a.shape",
    f"weights with the same results: {FOUND}",
    exactness=Exactness.LSB,
    quanta=1,
    source="a function of a byte has 256 values",
    drawn=(
        """a: uint8[*ANY, A, K]; sa = d.positive([]) / 8; za = d.integers([], "uint8", 20, 120)
           sy = d.positive([]) / 8; zy = d.integers([], "uint8", 20, 120)
           c: float32[K] | float32[1, K] | float32[1, 1, 1, 1, K] | float32[A, K] | float32[()]""",
        "c = d.floats([K]) * 1e6",
        'zy = d.integers([], "int8", 20, 120)',
        'a: int8[A, K]; za = d.integers([], "int8", 20, 120); zy = d.integers([], "int8", 20, 120)',
        "sa = d.positive([K]); za = d.integers([K], 'uint8'); da.axis = -1",
    ),
)
