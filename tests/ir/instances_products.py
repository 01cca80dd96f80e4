"""Random applications of operators: matrix products and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from eqsat.samples import Sampler
from eqsat.samples.einsum import draw_equation
from tests.ir.operator_drawing import (
    Rng,
    broadcasting,
    extents,
    instance,
    numbers,
    pick,
    scales,
    window,
)


@instance("MatMul")
def _matmul(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 5, 3))
    left, right = ((*s, ...) for s in broadcasting(rng, 2))
    a, b = (*left[:-1][-2:], m, k), (*right[:-1][-2:], k, n)
    a = (k,) if rng.random() < 0.15 else a
    b = (k,) if rng.random() < 0.15 else b
    dtype = pick(rng, np.float32, np.float64, np.int32, np.int64)
    return [numbers(rng, s, dtype, special=False) for s in (a, b)], {}


@instance("Einsum")
def _einsum(rng: Rng, op: str) -> tuple[Any, ...]:
    equation, shapes = draw_equation(Sampler(int(rng.integers(1 << 32))), int(rng.integers(1, 4)), alone=0.2)
    dtype = pick(rng, np.float32, np.float64, np.int32, np.int64)
    return [numbers(rng, s, dtype, special=False) for s in shapes], {"equation": equation}


@instance("Gemm")
def _gemm(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 5, 3))
    attributes: dict[str, Any] = {t: 1 for t in ("transA", "transB") if rng.random() < 0.5}
    attributes |= {s: float(rng.uniform(0.1, 2)) for s in ("alpha", "beta") if rng.random() < 0.5}
    a, b = ((k, m) if "transA" in attributes else (m, k)), ((n, k) if "transB" in attributes else (k, n))
    c = pick(rng, None, (), (1,), (n,), (1, n), (m, 1), (m, n))
    dtype = pick(rng, np.float32, np.float64)
    inputs: list[Any] = [numbers(rng, s, dtype, special=False) for s in (a, b)]
    return [*inputs, *([] if c is None else [numbers(rng, c, dtype, special=False)])], attributes


@instance("MatMulInteger")
def _matmul_integer(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 9, 3))
    left, right = pick(rng, np.uint8, np.int8), pick(rng, np.uint8, np.int8)
    a, b = (*extents(rng, 0, 1), m, k), (k, n)
    zeros: list[Any] = [None, None]
    if rng.random() < 0.7:
        zeros[0] = numbers(rng, (), left)
    if rng.random() < 0.7:
        zeros[1] = numbers(rng, pick(rng, (), (n,)), right)
    return [numbers(rng, a, left), numbers(rng, b, right), *zeros], {}


@instance("QLinearMatMul")
def _qlinear_matmul(rng: Rng, op: str) -> tuple[Any, ...]:
    m, k, n = (int(d) for d in rng.integers(1, 9, 3))
    left, right = pick(rng, (np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8))
    a, b = numbers(rng, (m, k), left), numbers(rng, (k, n), right)
    columns = pick(rng, (), (n,))
    b_zero = numbers(rng, columns, right)
    return [
        a,
        scales(rng),
        numbers(rng, (), left),
        b,
        scales(rng, *columns),
        b_zero,
        np.asarray(scales(rng) * 40, np.float32),
        numbers(rng, (), left),
    ], {}


@instance("Conv")
def _conv(rng: Rng, op: str) -> tuple[Any, ...]:
    rank = pick(rng, 1, 2, 2, 3)
    kernel = tuple(int(d) for d in rng.integers(1, 4, rank))
    attributes, spatial = window(rng, rank, kernel)
    group = pick(rng, 1, 1, 2, 3)
    each, out = int(rng.integers(1, 4)), group * int(rng.integers(1, 4))
    if group > 1 or rng.random() < 0.3:
        attributes["group"] = group
    if rng.random() < 0.5:
        attributes["kernel_shape"] = list(kernel)
    x = numbers(rng, (int(rng.integers(1, 3)), each * group, *spatial), special=False)
    w = numbers(rng, (out, each, *kernel), special=False)
    return [x, w, *([numbers(rng, (out,), special=False)] if rng.random() < 0.5 else [])], attributes


@instance("ConvInteger")
def _conv_integer(rng: Rng, op: str) -> tuple[Any, ...]:
    kernel = tuple(int(d) for d in rng.integers(1, 4, 2))
    attributes, spatial = window(rng, 2, kernel, dilate=False)
    each, out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    zeros = [numbers(rng, (), np.uint8)] if rng.random() < 0.7 else []
    return [
        numbers(rng, (1, each, *spatial), np.uint8),
        numbers(rng, (out, each, *kernel), np.uint8),
        *zeros,
    ], attributes


@instance("QLinearConv")
def _qlinear_conv(rng: Rng, op: str) -> tuple[Any, ...]:
    kernel = tuple(int(d) for d in rng.integers(1, 4, 2))
    attributes, spatial = window(rng, 2, kernel)
    each, out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    x, w = numbers(rng, (1, each, *spatial), np.uint8), numbers(rng, (out, each, *kernel), np.int8)
    channels = pick(rng, (), (out,))
    w_zero = np.zeros(channels, np.int8)
    bias = [rng.integers(-500, 500, out).astype(np.int32)] if rng.random() < 0.5 else []
    zeros = numbers(rng, (), np.uint8), numbers(rng, (), np.uint8)
    return [
        x,
        scales(rng),
        zeros[0],
        w,
        scales(rng, *channels),
        w_zero,
        np.asarray(scales(rng) * 40, np.float32),
        zeros[1],
        *bias,
    ], attributes


@instance("ConvTranspose")
def _conv_transpose(rng: Rng, op: str) -> tuple[Any, ...]:
    rank = pick(rng, 1, 2, 2, 3)
    kernel = tuple(int(d) for d in rng.integers(1, 4, rank))
    group = pick(rng, 1, 1, 2)
    each, out = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    strides = [int(d) for d in rng.integers(1, 4, rank)]
    attributes: dict[str, Any] = {"strides": strides, "group": group}
    if rng.random() < 0.4:
        attributes["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
    dilations = attributes.get("dilations", [1] * rank)
    if rng.random() < 0.4 and not attributes.get("dilations"):
        attributes["output_padding"] = [int(rng.integers(0, s)) for s in strides]
    if rng.random() < 0.25 and all(k >= s for k, s in zip(kernel, strides, strict=True)):
        attributes["auto_pad"] = pick(rng, "SAME_UPPER", "SAME_LOWER", "VALID")
    elif rng.random() < 0.6:
        limits = [(k - 1) * d // 2 for k, d in zip(kernel, dilations, strict=True)]
        attributes["pads"] = [int(rng.integers(0, limit + 1)) for limit in limits * 2]
    x = numbers(rng, (int(rng.integers(1, 3)), each * group, *rng.integers(2, 5, rank)), special=False)
    w = numbers(rng, (each * group, out, *kernel), special=False)
    return [x, w, *([numbers(rng, (out * group,), special=False)] if rng.random() < 0.5 else [])], attributes


@instance("Attention")
def _attention(rng: Rng, op: str) -> tuple[Any, ...]:
    batch, groups, queries, keys, size, width = (int(d) for d in rng.integers(1, 6, 6))
    heads = groups * int(rng.integers(1, 4))
    dtype = np.float32  # ONNX Runtime takes roots of the scale in float32 whatever the data is
    flat = rng.random() < 0.5

    def operand(heads: int, length: int, size: int) -> np.ndarray:
        return numbers(
            rng, (batch, length, heads * size) if flat else (batch, heads, length, size), dtype, special=False
        )

    inputs: list[Any] = [operand(heads, queries, size), operand(groups, keys, size), operand(groups, keys, width)]
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": groups} if flat else {}
    past = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
    everything = keys + past
    causal = rng.random() < 0.3 and queries <= everything
    if rng.random() < 0.6:
        shape = (queries, everything)
        shape = pick(rng, shape, (1, 1, *shape), (batch, 1, *shape), (heads, *shape), (batch, heads, *shape))
        inputs.append(numbers(rng, shape, pick(rng, dtype, np.bool_), special=False))
    if past:
        cache = [(batch, groups, past, size), (batch, groups, past, width)]
        inputs = [*inputs, *[None] * (4 - len(inputs)), *(numbers(rng, s, dtype, special=False) for s in cache)]
    attributes |= {"scale": float(np.float32(rng.uniform(0.1, 1)))} if rng.random() < 0.7 else {}
    attributes |= {"softcap": float(np.float32(rng.uniform(1, 3)))} if rng.random() < 0.3 else {}
    attributes |= {"is_causal": 1} if causal else {}
    return inputs, attributes, 3 if past else 1
