"""Small programs that ONNX Runtime has fused operators for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import TensorType

RNG = np.random.default_rng(7)


def _floats(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def dequantized(b: GraphBuilder, value: str, scale: float | np.ndarray, zero: Any, **attributes: Any) -> str:
    return b.op("DequantizeLinear", value, b.constant(np.float32(scale)), b.constant(zero), **attributes)


def quantized(b: GraphBuilder, value: str, scale: float, zero: Any) -> str:
    return b.op("QuantizeLinear", value, b.constant(np.float32(scale)), b.constant(zero))


def integer_layer(dtype: Any = np.uint8, *, requantised: bool = True) -> Graph:
    """``Q(DQ(x) @ DQ(w) + bias)`` on [2, 5, 16], with a scale for each column, and a bias of whole units of the sums."""
    b = GraphBuilder()
    x = dequantized(b, b.input("x", np.dtype(dtype).name, (2, 5, 16)), 0.02, dtype(3))
    w = b.constant(RNG.integers(-127, 128, (16, 8)).astype(np.int8))
    scales = RNG.uniform(0.01, 0.02, 8).astype(np.float32)
    weight = dequantized(b, w, scales, np.zeros(8, np.int8), axis=1)
    bias = RNG.integers(-3000, 3000, 8) * np.float32(0.02) * scales
    y = b.op("Add", b.op("MatMul", x, weight), b.constant(bias.astype(np.float32)))
    return b.finish({"y": quantized(b, y, 0.05, np.uint8(120)) if requantised else b.op("Tanh", y)})


def biased_columns() -> Graph:
    """``Q(DQ(x) + bias)`` on [2, 5, 48] with a bias for each column."""
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (2, 5, 48)), 0.02, np.uint8(120))
    return b.finish({"y": quantized(b, b.op("Add", x, b.constant(_floats(48))), 0.0201, np.uint8(130))})


def masked_bytes(far: float, step: float | None) -> Graph:
    """``Q(DQ(x) + mask)``, or its softmax without a step: ``x`` is [2, 3, 4, 6], the mask 0 or ``far`` for each of 6 columns."""
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (2, 3, 4, 6)), 0.02, np.uint8(120))
    chosen = (b.input("kept", "bool", (1, 1, 6)), b.constant(np.float32(0)), b.constant(np.float32(far)))
    total = b.op("Add", x, b.op("Where", *chosen))
    return b.finish({"y": b.op("Softmax", total) if step is None else quantized(b, total, step, np.uint8(130))})


def quantised_block() -> Graph:
    """A residual sum, a gate and a pool on images, all in uint8."""
    b = GraphBuilder()
    x, z = (b.input(n, "uint8", (1, 4, 6, 6)) for n in "xz")
    total = quantized(
        b, b.op("Add", dequantized(b, x, 0.02, np.uint8(3)), dequantized(b, z, 0.03, np.uint8(9))), 0.04, np.uint8(7)
    )
    gate = quantized(b, b.op("Sigmoid", dequantized(b, total, 0.04, np.uint8(7))), 1 / 256, np.uint8(0))
    product = b.op("Mul", dequantized(b, total, 0.04, np.uint8(7)), dequantized(b, gate, 1 / 256, np.uint8(0)))
    gated = quantized(b, product, 0.04, np.uint8(5))
    joined = b.op("Concat", dequantized(b, gated, 0.04, np.uint8(5)), dequantized(b, x, 0.02, np.uint8(3)), axis=1)
    both = dequantized(b, quantized(b, joined, 0.05, np.uint8(5)), 0.05, np.uint8(5))
    return b.finish({"y": quantized(b, b.op("GlobalAveragePool", both), 0.03, np.uint8(5))})


def float_block() -> Graph:
    """Attention of one head, an activation with bias, a residual norm."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 6, 16))
    scores = b.op("Mul", b.op("MatMul", x, b.op("Transpose", x, perm=(0, 2, 1))), b.constant(np.float32(0.25)))
    mixed = b.op("MatMul", b.op("Softmax", scores, axis=-1), x)
    hidden = b.op("Add", b.op("MatMul", mixed, b.constant(_floats(16, 32))), b.constant(_floats(32)))
    active = b.op("Gelu", hidden, approximate="none")
    back = b.op("Add", b.op("MatMul", active, b.constant(_floats(32, 16))), b.constant(_floats(16)))
    total = b.op("Add", back, x)
    normed = b.op("LayerNormalization", total, b.constant(_floats(16)), b.constant(_floats(16)), axis=-1, epsilon=1e-5)
    gated = b.op("Mul", normed, b.op("Sigmoid", b.op("Mul", normed, b.constant(np.float32(1.702)))))
    return b.finish({"y": b.op("Add", gated, total)})


def scores() -> Graph:
    """A scaled product with a transposed operand."""
    b = GraphBuilder()
    x, z = (b.input(n, "float32", (2, 6, 16)) for n in "xz")
    product = b.op("MatMul", x, b.op("Transpose", z, perm=(0, 2, 1)))
    return b.finish({"y": b.op("Tanh", b.op("Mul", product, b.constant(np.float32(0.25))))})


def convolutions() -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 8, 8))
    first = b.op("Relu", b.op("Conv", x, b.constant(_floats(4, 4, 3, 3)), pads=(1, 1, 1, 1)))
    second = b.op("Conv", first, b.constant(_floats(4, 1, 3, 3)), b.constant(_floats(4)), group=4, pads=(1, 1, 1, 1))
    summed = b.op("Clip", b.op("Add", second, x), b.constant(np.float32(0)), b.constant(np.float32(6)))
    flat = b.op("Reshape", summed, b.constant([1, 256]))
    return b.finish({"y": b.op("Tanh", b.op("Gemm", flat, b.constant(_floats(256, 3)), b.constant(_floats(3))))})


def attention() -> Graph:
    b = GraphBuilder()
    heads = []
    for name, length in zip("qkv", (5, 7, 7), strict=True):
        value = b.op("Add", b.input(name, "float32", (2, length, 12)), b.constant(_floats(12)))
        split = b.op("Reshape", value, b.constant([2, length, 3, 4]))
        heads.append(b.op("Transpose", split, perm=(0, 2, 1, 3)))
    found = b.op("Attention", *heads, b.constant(_floats(1, 1, 5, 7)), scale=0.5)
    return b.finish({"y": b.op("Reshape", b.op("Transpose", found, perm=(0, 2, 1, 3)), b.constant([2, 5, 12]))})


def shared_heads() -> Graph:
    """Attention of four heads over two groups of keys and values behind a cache, causal."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 6, 32))
    q, k, v = (b.op("MatMul", x, b.constant(_floats(32, n * 8))) for n in (4, 2, 2))
    past = [b.input(n, "float32", (1, 2, 3, 8)) for n in ("keys", "values")]
    y, keys, values = b.op("Attention", q, k, v, None, *past, outputs=3, is_causal=1, q_num_heads=4, kv_num_heads=2)
    return b.finish({"y": y, "all_keys": keys, "all_values": values})


def four_bits() -> Graph:
    """A product with a weight of 4 bits, too large to be dequantised ahead."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 5, 256))
    weight = b.constant(RNG.integers(-8, 8, (256, 128)).astype(ml_dtypes.int4))
    scales = b.constant(RNG.uniform(0.01, 0.02, (8, 128)).astype(np.float32))
    found = b.op("MatMul", x, b.op("DequantizeLinear", weight, scales, axis=0, block_size=32))
    return b.finish({"y": b.op("Tanh", found)})


PROGRAMS = {
    "integer layer": (integer_layer(), {"QGemm": 1}),
    "integer layer in float": (integer_layer(requantised=False), {"MatMulIntegerToFloat": 1, "Tanh": 1}),
    "biased columns": (biased_columns(), {"QLinearConv": 1}),
    "masked bytes": (masked_bytes(-np.inf, 0.021), {"Where": 1, "QLinearAdd": 1}),
    "masked bytes in float": (masked_bytes(-np.inf, None), {"Where": 1, "MatMulIntegerToFloat": 1, "Softmax": 1}),
    "quantised block": (
        quantised_block(),
        {"QLinearAdd": 1, "QLinearSigmoid": 1, "QLinearMul": 1, "QLinearConcat": 1, "QLinearGlobalAveragePool": 1},
    ),
    "float block": (
        float_block(),
        {
            "Attention": 1,
            "MatMul": 2,
            "Gelu": 1,
            "SkipLayerNormalization": 1,
            "QuickGelu": 1,
            "Add": 2,
        },
    ),
    "scores": (scores(), {"FusedMatMul": 1, "Tanh": 1}),
    "convolutions": (convolutions(), {"Conv": 2, "Relu": 1, "Add": 1, "Clip": 1, "FusedGemm": 1}),
    "attention": (attention(), {"MultiHeadAttention": 1}),
    "four bits": (four_bits(), {"MatMulNBits": 1, "Tanh": 1}),
}
"""A program and the operators, views aside, that ONNX Runtime runs it with."""


def random_inputs(graph: Graph) -> dict[str, np.ndarray]:
    """Inputs of a program of this module."""
    rng = np.random.default_rng(1)
    feeds: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        found = graph.type_of(name)
        assert isinstance(found, TensorType)
        shape = tuple(d for d in found.shape or () if isinstance(d, int))
        whole = found.dtype.is_integer
        drawn = rng.integers(0, 256, shape) if whole else rng.normal(size=shape)
        feeds[name] = drawn.astype(found.dtype.numpy)
    return feeds
