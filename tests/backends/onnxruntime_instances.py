"""Random uses of the fused operators of ONNX Runtime, as its kernels take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.samples import Sampler, fixed

Instance = tuple[list[Any], dict[str, Any]]
"""Inputs (``None``: absent, ``Fixed``: always a constant) and attributes."""


def _floats(d: Sampler, shape: tuple[int, ...]) -> np.ndarray:
    """Floats of one size: nothing cancels so far that the order of a sum shows."""
    return d.rng.normal(size=shape).astype(np.float32)


def _fused_matmul(d: Sampler) -> Instance:
    rows, inner, columns, batch = d.extents(4)
    flipped = d.integer(0, 1), d.integer(0, 1)
    lead = (batch,) if d.chance() else ()
    left, right = _floats(d, (*lead, rows, inner)), _floats(d, (*lead, inner, columns))
    operands = [m.swapaxes(-1, -2).copy() if f else m for m, f in zip((left, right), flipped, strict=True)]
    return operands, {"transA": flipped[0], "transB": flipped[1], "alpha": d.choose((1.0, -0.5, 0.125))}


def _fused_gemm(d: Sampler) -> Instance:
    rows, inner, columns = d.extents(3)
    found = [_floats(d, (rows, inner)), _floats(d, (columns, inner)), _floats(d, (columns,))]
    name = d.choose(("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid"))
    parameters = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    return found, {"transB": 1, "activation": name} | {f"activation_{p}": 0.25 for p in parameters}


def _fused_conv(d: Sampler) -> Instance:
    batch, filters, size = d.extents(3)
    group = d.integer(1, 2)
    spatial = d.integer(1, 3)
    x = _floats(d, (batch, 2 * group, *(size + 2 for _ in range(spatial))))
    w = _floats(d, (filters * group, 2, *(3 for _ in range(spatial))))
    z = _floats(d, (batch, filters * group, *(size for _ in range(spatial)))) if d.chance() else None
    name = d.choose(("", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSigmoid", "Clip"))
    parameters = {"LeakyRelu": (0.25,), "HardSigmoid": (0.25, 0.5), "Clip": (-0.5, 2.0)}.get(name, ())
    attributes: dict[str, Any] = {"group": group} | ({"activation": name} if name else {})
    bias = _floats(d, (filters * group,)) if d.chance() else None
    return [x, w, bias, z], attributes | ({"activation_params": parameters} if parameters else {})


def _activation(biased: bool, **attributes: Any) -> Callable[[Sampler], Instance]:
    def draw(d: Sampler) -> Instance:
        x = _floats(d, d.shape(2, 3))
        return [x, *([_floats(d, x.shape[-1:])] if biased else [])], attributes

    return draw


def _skip_norm(simplified: bool) -> Callable[[Sampler], Instance]:
    def draw(d: Sampler) -> Instance:
        shape = d.shape(2, 3, ones=0)
        row = shape[-1:]
        beta = [] if simplified else [_floats(d, row) if d.chance() else None]
        bias = _floats(d, row) if d.chance() else None
        common = len(shape) == 3 and d.chance(0.3)
        skip = d.choose(((1, *shape[1:]), shape[1:])) if common else shape
        return [_floats(d, shape), _floats(d, skip), _floats(d, row), *beta, bias], {"epsilon": 1e-5}

    return draw


def _simplified_norm(d: Sampler) -> Instance:
    x, axis = _floats(d, d.shape(2, 4, ones=0)), d.choose((-1, -2))
    return [x, _floats(d, x.shape[axis:])], {"axis": axis, "epsilon": 1e-5}


def _parameters(d: Sampler, dtype: str) -> list[Any]:
    info = np.iinfo(dtype)
    return [d.positive(()) / np.float32(8), d.integers((), dtype, int(info.min) // 2, int(info.max) // 2)]


def _quantised(operands: int, **attributes: Any) -> Callable[[Sampler], Instance]:
    def draw(d: Sampler) -> Instance:
        dtype = d.choose(("int8", "uint8"))
        shape = (*d.extents(2), 4, 5)
        found: list[Any] = []
        for i in range(operands):
            found += [d.integers(shape if i == 0 else d.broadcast_of(shape), dtype), *_parameters(d, dtype)]
        return [*found, *_parameters(d, dtype)], attributes

    return draw


def _concat(d: Sampler) -> Instance:
    dtype = d.choose(("int8", "uint8"))
    shape, axis = d.extents(3), d.integer(0, 2)
    found = _parameters(d, dtype)
    for _ in range(d.integer(2, 4)):
        own = tuple(d.integer(1, 4) if i == axis else e for i, e in enumerate(shape))
        found += [d.integers(own, dtype), *_parameters(d, dtype)]
    return found, {"axis": axis}


def _softmax(d: Sampler) -> Instance:
    dtype = d.choose(("int8", "uint8"))
    zero = d.integers((), dtype, -128, -10) if dtype == "int8" else d.integers((), dtype)
    shape = (*d.extents(2), d.integer(2, 40))
    return [d.integers(shape, dtype), *_parameters(d, dtype), np.float32(1 / d.choose((100, 127, 128))), zero], {
        "axis": d.choose((-1, 2)),
        "opset": 13,
    }


def _channels_last(d: Sampler) -> Instance:
    batch, filters, channels, size = d.extents(4)
    scale = d.positive(d.choose(((), (filters,))))
    kernel = d.integer(1, 3), d.integer(1, 2)
    found = [d.integers((batch, size + 2, size + 3, channels), "uint8"), d.positive(()), d.integers((), "uint8")]
    found += [d.integers((filters, channels, *kernel), "int8"), scale, np.full(scale.shape, d.integer(-2, 2), np.int8)]
    found += [d.positive(()) * np.float32(256), d.integers((), "uint8")]
    bias = [d.integers((filters,), "int32", -2000, 2000)] if d.chance() else []
    return found + bias, {"channels_last": 1, "kernel_shape": kernel, "pads": d.choose(((0, 0, 0, 0), (0, 1, 1, 1)))}


def _depthwise(d: Sampler) -> Instance:
    """Each channel for itself, in one dimension: by weights of either sign, or without one."""
    channels, dtype = d.integer(1, 40), d.choose(("int8", "uint8"))
    found = [
        d.integers((d.integer(1, 2), d.integer(1, 20), channels), "uint8"),
        d.positive(()),
        d.integers((), "uint8"),
    ]
    found += [d.integers((channels, 1, 1), dtype), d.positive((channels,)), np.zeros(channels, dtype)]
    found += [d.positive(()) * np.float32(256), d.integers((), "uint8"), d.integers((channels,), "int32", -2000, 2000)]
    return found, {"channels_last": 1, "group": channels, "kernel_shape": (1,)}


def _convolution(d: Sampler) -> Instance:
    return d.choose((_channels_last, _depthwise))(d)


def _weight(d: Sampler, inner: int, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dtype = d.choose(("int8", "uint8"))
    extent = d.choose(((), (columns,)))
    return d.integers((inner, columns), dtype), d.positive(extent), d.integers(extent, dtype)


def _to_float(d: Sampler) -> Instance:
    inner, columns, *batch = d.extents(d.integer(3, 4))
    w, sw, zw = _weight(d, inner, columns)
    bias = _floats(d, (columns,)) if d.chance() else None
    return [d.integers((*batch, inner), "uint8"), w, d.positive(()), sw, d.integers((), "uint8"), zw, bias], {}


def _dynamic(d: Sampler) -> Instance:
    inner, columns, *batch = d.extents(d.integer(3, 4))
    w, sw, zw = _weight(d, inner, columns)
    return [_floats(d, (*batch, inner)), w, sw, zw, _floats(d, (columns,)) if d.chance() else None], {}


def _qgemm(d: Sampler) -> Instance:
    rows, inner, columns = d.extents(3)
    w, sw, zw = _weight(d, inner, columns)
    swapped = d.integer(0, 1)
    bias = d.integers((columns,), "int32", -2000, 2000) if d.chance(0.7) else None
    found = [d.integers((rows, inner), "uint8"), d.positive(()), d.integers((), "uint8")]
    found += [w.T.copy() if swapped else w, sw, zw, bias]
    return found + ([d.positive(()) * np.float32(1e3), d.integers((), "uint8")] if d.chance(0.7) else []), {
        "transB": swapped
    }


def _attention(d: Sampler) -> Instance:
    batch, queries, keys, heads, size, other = d.extents(6)
    width, out = heads * size, heads * (other if d.chance() else size)
    found = [_floats(d, (batch, queries, width)), _floats(d, (batch, keys, width)), _floats(d, (batch, keys, out))]
    before = d.choose((0, 0, d.integer(1, 3)))
    bias = _floats(d, (2 * width + out,)) if d.chance() and not before else None
    mask = (d.choose((1, batch)), d.choose((1, heads)), queries, before + keys)
    scores = _floats(d, mask) if d.chance() else None
    stored = [_floats(d, (batch, heads, before, n // heads)) for n in (width, out)] if before else []
    if bias is None and not before and d.chance():
        found[1:] = [_floats(d, (batch, heads, keys, n // heads)) for n in (width, out)]
    return [*found, bias, None, scores, *stored], {"num_heads": heads} | ({"scale": 0.25} if d.chance() else {})


def _packed_attention(d: Sampler) -> Instance:
    """Rows and weights of queries, keys and values, with a mask of keys or the number of those that count."""
    batch, length, width, heads, size, other = d.extents(6)
    sizes = [heads * size, heads * size, heads * (other if d.chance(0.3) else size)]
    found: list[Any] = [_floats(d, (batch, length, width)), _floats(d, (width, sum(sizes)))]
    found.append(_floats(d, (sum(sizes),)) if d.chance() else fixed(np.zeros(sum(sizes), np.float32)))
    masks = d.integers((batch,), "int32", 1, length), d.integers((batch, length), "int32", 0, 1)
    found += [d.choose((None, *masks)), None]
    found.append(_floats(d, (batch, heads, length, length)) if d.chance(0.3) else None)
    attributes: dict[str, Any] = {"num_heads": heads, "qkv_hidden_sizes": sizes, "unidirectional": d.integer(0, 1)}
    return found, attributes | ({"scale": 0.25} if d.chance() else {})


def _group_attention(d: Sampler) -> Instance:
    """As many new keys as queries; with a cache one sequence, or one query of each."""
    batch, groups, new, before = d.extents(4)
    cached, causal = d.chance(), d.integer(0, 1)
    batch, new = d.choose(((1, new), (batch, 1))) if cached else (batch, new)
    heads, size = groups * d.integer(1, 3), 8
    found: list[Any] = [_floats(d, (batch, new, n * size)) for n in (heads, groups, groups)]
    found += [_floats(d, (batch, groups, before, size)) for _ in range(2)] if cached else [None, None]
    total = new + (before if cached else 0)
    found += [fixed(np.full(batch, total - 1, np.int32)), fixed(np.int32(total)), None, None, None]
    mask = (d.choose((1, batch)), d.choose((1, heads)), new, total)
    found.append(_floats(d, mask) if d.chance() else None)
    attributes = {"num_heads": heads, "kv_num_heads": groups, "causal": causal, "do_rotary": 0}
    return found, attributes | ({"scale": 0.25} if d.chance() else {})


def _turned_attention(d: Sampler) -> Instance:
    """One query of each sequence, which has a place in longer tables, beside its key and value or together with them."""
    batch, groups, before, half = d.extents(4)
    heads, size = groups * d.integer(1, 3), 16 * half
    rows = [_floats(d, (batch, 1, n * size)) for n in (heads, groups, groups)]
    found: list[Any] = [np.concatenate(rows, axis=2), None, None] if d.chance() else rows
    found += [_floats(d, (batch, groups, before, size)) for _ in range(2)]
    found += [fixed(np.full(batch, before, np.int32)), fixed(np.int32(before + 1))]
    length = before + d.integer(1, 3)
    found += [_floats(d, (length, size // 2)) for _ in range(2)] + [d.integers((batch, 1), "int64", 0, length - 1)]
    found.append(_floats(d, (1, 1, 1, before + 1)) if d.chance() else None)
    attributes = {"num_heads": heads, "kv_num_heads": groups, "do_rotary": 1, "rotary_interleaved": d.integer(0, 1)}
    return found, attributes


def _grouped_attention(d: Sampler) -> Instance:
    return _turned_attention(d) if d.chance() else _group_attention(d)


def _rotary(d: Sampler) -> Instance:
    """Heads apart or in rows, a part of the features at times, else heads whose number only the tables tell; a place for each
    element, or where all sequences begin.
    """
    batch, heads, length, half = d.extents(4)
    part, rows = d.choose((half, d.integer(1, half))), batch * length
    x = _floats(d, d.choose(((batch, heads, length, 2 * half), (batch, length, 2 * half * heads))))
    places = d.choose((d.integers((batch, length), "int64", 0, rows - 1), d.integers((1,), "int64", 0, rows - length)))
    attributes = {"interleaved": d.integer(0, 1)}
    attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * part} if part < half else {}
    return [x, places, _floats(d, (rows, part)), _floats(d, (rows, part))], attributes


def _few_bits(d: Sampler) -> Instance:
    """Weights of 2, 4 or 8 bits: whole blocks or a part of one more, zero points of either kind, a bias."""
    rows, columns, count = d.extents(3)
    bits, block, level = d.choose((2, 4, 4, 8)), d.choose((32, 64, 128)), d.choose((0, 1, 4, 4))
    inner = count * block - d.choose((0, 0, block // 2, 5))
    kind = d.choose(("", "bytes", "bytes", *(("floats",) if bits < 8 else ())))
    flat = d.chance(0.2)
    zeros = {
        "": None,
        "bytes": d.integers((columns, -(-count * bits // 8)), "uint8"),
        "floats": (d.positive((columns, count)) * 2).astype(np.float32),
    }[kind]
    scales = d.positive((columns, count))
    by_block = [None if a is None else fixed(a.reshape(-1) if flat else a) for a in (scales, zeros)]
    weight = fixed(d.integers((columns, count, block * bits // 8), "uint8"))
    bias = fixed(_floats(d, (columns,))) if d.chance() else None
    attributes = {"K": inner, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    return [_floats(d, (2, rows, inner)), weight, *by_block, None, bias], attributes


def _embedding(d: Sampler) -> Instance:
    batch, length, width, rows = d.extents(4)
    ids, segment_ids = (d.integers((batch, length), "int32", 0, n - 1) for n in (rows, 2))
    words, positions, segments = (_floats(d, (n, width)) for n in (rows, length + d.integer(0, 2), 2))
    segmented = (segment_ids, segments) if not d.chance(0.3) else (None, None)
    mask = d.integers((batch, length), "int32", 0, 1) if d.chance() else None
    places = d.integers((batch, length), "int32", 0, length - 1) if d.chance() else None
    vectors = [_floats(d, (width,)) for _ in range(2)]
    return [ids, segmented[0], words, positions, segmented[1], *vectors, mask, places], {"epsilon": 1e-5}


def _experts(d: Sampler) -> Instance:
    """One expert for each row, whose number for it is far above the others or the only finite one."""
    rows, width, inner, experts = d.extents(4)
    kind = d.choose(("relu", "identity", "silu", "swiglu", "swiglu"))
    gated = kind == "swiglu"
    router = np.full((rows, experts), d.choose((-np.inf, -3.0)), np.float32)
    router[np.arange(rows), d.integers((rows,), "int64", 0, experts - 1)] = 1.0
    w1, w2 = (experts, inner * (1 + gated), width), (experts, width, inner)
    found: list[Any] = [_floats(d, d.choose(((rows, width), (1, rows, width)))), router]
    for weights in (w1, w2):
        found += [_floats(d, weights), _floats(d, weights[:2]) if d.chance() else None]
    attributes: dict[str, Any] = {"k": 1, "activation_type": kind, "swiglu_fusion": int(gated)}
    if gated and d.chance():
        attributes |= {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.75}
    return found, attributes


INSTANCES: dict[str, Callable[[Sampler], Instance]] = {
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "Gelu": _activation(False),
    "BiasGelu": _activation(True),
    "FastGelu": _activation(True),
    "QuickGelu": _activation(False, alpha=1.702),
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm(False),
    "SkipSimplifiedLayerNormalization": _skip_norm(True),
    "QLinearAdd": _quantised(2),
    "QLinearMul": _quantised(2),
    "QLinearSigmoid": _quantised(1),
    "QLinearLeakyRelu": _quantised(1, alpha=0.25),
    "QLinearAveragePool": _quantised(1, kernel_shape=(2, 3), pads=(0, 1, 1, 1), strides=(1, 2)),
    "QLinearGlobalAveragePool": _quantised(1),
    "QLinearConcat": _concat,
    "QLinearSoftmax": _softmax,
    "QLinearConv": _convolution,
    "MatMulIntegerToFloat": _to_float,
    "DynamicQuantizeMatMul": _dynamic,
    "QGemm": _qgemm,
    "MultiHeadAttention": _attention,
    "Attention": _packed_attention,
    "GroupQueryAttention": _grouped_attention,
    "RotaryEmbedding": _rotary,
    "MatMulNBits": _few_bits,
    "EmbedLayerNormalization": _embedding,
    "MoE": _experts,
}
"""Fused operator -> how to draw a use of it."""
