"""Spellings of normalisations, activations, convolutions and quantisation; see `benchmarks.spellings`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.respelling import Values, Writer, spelling
from eqsat.ir.graph import Node
from eqsat.ir.types import DType


def _array(w: Writer, value: str) -> np.ndarray:
    array = w.array(value)
    assert array is not None
    return array


# --- layer norm ----------------------------------------------------------------------------------------------------------


@spelling("LayerNormalization")
def spelled_norm(w: Writer, n: Node) -> Values:
    """``(x - mean) / sqrt(mean((x - mean)^2) + eps) * g + b`` in its associations."""
    x, g, b = n.inputs
    rank = len(w.shape(x))
    epsilon = w.like(x, float(n.attributes.get("epsilon", 1e-5)))  # type: ignore[arg-type]
    mean = _mean(w, x, rank)
    d = w.op("Sub", x, mean)
    again = w.op("Sub", x, mean) if w.chance(0.3) else d
    square = w.choose((lambda: w.op("Mul", again, again), lambda: w.op("Pow", again, w.like(x, 2))))()
    v = w.commuted("Add", _mean(w, square, rank), epsilon)
    kind = w.choose(("quotient", "reciprocal", "power", "gain first", "mean last"))
    if kind == "quotient":
        return w.commuted("Add", w.commuted("Mul", w.op("Div", d, w.op("Sqrt", v)), g), b)
    inverse = w.op("Pow", v, w.like(x, -0.5)) if kind == "power" else w.op("Reciprocal", w.op("Sqrt", v))
    if kind == "gain first":
        return w.commuted("Add", w.commuted("Mul", d, w.commuted("Mul", inverse, g)), b)
    if kind == "mean last":
        gain = w.commuted("Mul", inverse, g)
        return w.commuted("Add", w.commuted("Mul", x, gain), w.op("Sub", b, w.commuted("Mul", mean, gain)))
    return w.commuted("Add", w.commuted("Mul", w.commuted("Mul", d, inverse), g), b)


def _mean(w: Writer, x: str, rank: int) -> str:
    return str(w.op("ReduceMean", x, w.integers(w.choose((-1, rank - 1)))))


@spelling("ReduceMean")
def sum_over_count(w: Writer, n: Node) -> Values:
    """``ReduceMean(x) == ReduceSum(x) / n`` or ``* (1 / n)``."""
    x, axes = n.inputs
    count = math.prod(w.shape(x)[a] for a in _array(w, axes))
    total = w.op("ReduceSum", *n.inputs, **dict(n.attributes))
    if w.chance():
        return w.op("Div", total, w.like(x, count))
    return w.commuted("Mul", total, w.like(x, 1 / count))


@spelling("ReduceMean", "ReduceSum", "ReduceMax")
def dropped_axis(w: Writer, n: Node) -> Values:
    """A reduction that drops its axis, which is put back."""
    if not n.attributes.get("keepdims", 1):
        return None
    return w.op("Unsqueeze", w.op(n.op, *n.inputs, keepdims=0), n.inputs[1])


# --- activations ---------------------------------------------------------------------------------------------------------


@spelling("Gelu")
def spelled_gelu(w: Writer, n: Node) -> Values:
    """``0.5 x (1 + g)`` in its associations, with ``g`` of erf or of tanh."""
    x = n.inputs[0]
    g = w.op("Tanh", _cubic(w, x)) if n.attributes.get("approximate") == "tanh" else w.op("Erf", _over_root(w, x))
    one, half = w.commuted("Add", g, w.like(x, 1)), w.like(x, 0.5)
    kind = w.choose(("product", "value", "gate", "expanded"))
    if kind == "product":
        return w.commuted("Mul", w.commuted("Mul", x, one), half)
    if kind == "value":
        return w.commuted("Mul", w.commuted("Mul", x, half), one)
    if kind == "gate":
        return w.commuted("Mul", x, w.commuted("Mul", one, half))
    part = w.commuted("Mul", x, half)
    return w.commuted("Add", part, w.commuted("Mul", part, g))


def _over_root(w: Writer, x: str) -> str:
    if w.chance():
        return str(w.op("Div", x, w.like(x, math.sqrt(2))))
    return str(w.commuted("Mul", x, w.like(x, math.sqrt(0.5))))


def _cubic(w: Writer, x: str) -> str:
    """``sqrt(2/pi) (x + 0.044715 x^3)``."""
    root, a = w.like(x, math.sqrt(2 / math.pi)), w.like(x, 0.044715)
    kind = w.choose(("power", "product", "factored", "distributed"))
    if kind == "factored":
        inner = w.commuted("Add", w.commuted("Mul", w.commuted("Mul", x, x), a), w.like(x, 1))
        return str(w.commuted("Mul", w.commuted("Mul", x, root), inner))
    cube = w.op("Pow", x, w.like(x, 3)) if kind == "power" else w.commuted("Mul", x, w.commuted("Mul", x, x))
    if kind == "distributed":
        return str(w.commuted("Add", w.op("Mul", x, root), w.op("Mul", cube, w.like(x, 0.044715 * 0.7978845608))))
    return str(w.commuted("Mul", w.commuted("Add", x, w.commuted("Mul", cube, a)), root))


@spelling("Sigmoid")
def spelled_sigmoid(w: Writer, n: Node) -> Values:
    """``Sigmoid(x) == 1 / (1 + Exp(-x))``."""
    x = n.inputs[0]
    return w.op("Reciprocal", w.commuted("Add", w.op("Exp", w.op("Neg", x)), w.like(x, 1)))


@spelling("Sigmoid")
def sigmoid_by_tanh(w: Writer, n: Node) -> Values:
    """``Sigmoid(x) == (1 + Tanh(x / 2)) / 2``."""
    x = n.inputs[0]
    tanh = w.op("Tanh", w.op("Mul", x, w.like(x, 0.5)))
    return w.commuted("Mul", w.commuted("Add", tanh, w.like(x, 1)), w.like(x, 0.5))


# --- convolutions --------------------------------------------------------------------------------------------------------


@spelling("BatchNormalization")
def spelled_batch_norm(w: Writer, n: Node) -> Values:
    """Batch normalisation at inference: one scale and shift, or the steps of its definition."""
    x = n.inputs[0]
    shape = (-1, *[1] * (len(w.shape(x)) - 2))
    scale, shift, mean, variance = (_array(w, i).reshape(shape) for i in n.inputs[1:])
    spread = np.sqrt(variance + np.float32(n.attributes.get("epsilon", 1e-5))).astype(variance.dtype)
    kind = w.choose(("scale", "steps", "kept"))
    if kind == "kept":
        return w.op("BatchNormalization", *n.inputs, **dict(n.attributes))
    if kind == "scale":
        factor = scale / spread
        scaled = w.commuted("Mul", x, w.constant(factor))
        return w.commuted("Add", scaled, w.constant(shift - mean * factor))
    centred = w.op("Div", w.op("Sub", x, w.constant(mean)), w.constant(spread))
    return w.commuted("Add", w.commuted("Mul", centred, w.constant(scale)), w.constant(shift))


@spelling("Conv")
def added_bias(w: Writer, n: Node) -> Values:
    """``Conv(x, c, b) == Conv(x, c) + b``."""
    if len(n.inputs) < 3 or not n.inputs[2]:
        return None
    bias = _array(w, n.inputs[2]).reshape(-1, *[1] * (len(w.shape(n.inputs[0])) - 2))
    return w.commuted("Add", w.op("Conv", *n.inputs[:2], **dict(n.attributes)), w.constant(bias))


@spelling("Conv")
def separate_padding(w: Writer, n: Node) -> Values:
    """``Conv(x, pads) == Conv(Pad(x))``."""
    pads: Any = n.attributes.get("pads")
    if pads is None or not any(pads):
        return None
    half = len(pads) // 2
    borders = w.integers(0, 0, *pads[:half], 0, 0, *pads[half:])
    attributes = {k: v for k, v in n.attributes.items() if k != "pads"}
    return w.op("Conv", w.op("Pad", n.inputs[0], borders), *n.inputs[1:], **attributes)


@spelling("Conv")
def scaled_convolution(w: Writer, n: Node) -> Values:
    """``Conv(x, c) == Conv(x, c / 2) * 2`` without a bias."""
    if any(n.inputs[2:]):
        return None
    x, weights = n.inputs[:2]
    halved = w.op("Conv", x, w.constant(_array(w, weights) / 2), **dict(n.attributes))
    return w.op("Mul", halved, w.like(halved, 2))


# --- quantisation --------------------------------------------------------------------------------------------------------


@spelling("QuantizeLinear")
def spelled_quantize(w: Writer, n: Node) -> Values:
    """``Cast(Clip(Round(x / s) + z))``, as compilers lower it."""
    x, s, z = n.inputs
    zero, scale = _array(w, z), _array(w, s)
    if zero.ndim:
        return None
    limits = np.iinfo(zero.dtype)
    divided = w.op("Div", x, s) if w.chance() else w.commuted("Mul", x, w.constant(1 / scale))
    low = w.constant(scale.dtype.type(limits.min - int(zero)))
    high = w.constant(scale.dtype.type(limits.max - int(zero)))
    kind = w.choose(("clip", "clip first", "bounds"))
    if kind == "clip first":
        rounded = w.op("Round", w.op("Clip", divided, low, high))
    else:
        rounded = w.op("Round", divided)
        rounded = w.op("Clip", rounded, low, high) if kind == "clip" else w.op("Max", w.op("Min", rounded, high), low)
    if int(zero):
        rounded = w.commuted("Add", rounded, w.constant(scale.dtype.type(zero)))
    return w.op("Cast", rounded, to=3 if zero.dtype == np.int8 else 2)


@spelling("DequantizeLinear")
def spelled_dequantize(w: Writer, n: Node) -> Values:
    """``(Cast(q) - z) * s``."""
    q, s, z = n.inputs
    zero = _array(w, z)
    if zero.ndim:
        return None
    value = w.op("Cast", q, to=int(DType.of(w.dtype(s))))
    if int(zero):
        value = w.op("Sub", value, w.constant(w.dtype(s).type(zero)))
    return w.commuted("Mul", value, s)
