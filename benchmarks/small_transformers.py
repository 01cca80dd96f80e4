"""Small BERT, GPT-2, LLaMA, ViT, Swin and Stable Diffusion U-Net: see `benchmarks.small_models`."""

from __future__ import annotations

import numpy as np

from benchmarks.small_models import Net, family
from eqsat.samples import Instance, fixed

B, S, H, D = 2, 3, 2, 4
W = H * D


@family("bert", quantised=("qdq", "lowered"))
def bert(n: Net) -> Instance:
    """Post-norm encoder layers under a mask of integers."""
    x = n.layer_norm(n.op("Add", n.input(B, S, W), n.weight(1, S, W)), W)
    given = n.drawing.value(n.d.rng.integers(0, 2, (B, S)))
    kept = n.op("Cast", n.op("Unsqueeze", given, n.ints(1, 2)), to=1)
    mask = n.op("Mul", n.op("Sub", n.number(1), kept), n.number(-10000))
    for _ in range(2):
        x = n.layer_norm(n.op("Add", n.attention(x, x, (B, H, D, W), mask), x), W)
        hidden = n.gelu(n.linear(x, W, 10))
        x = n.layer_norm(n.op("Add", n.linear(hidden, 10, W), x), W)
    return n.finish(n.op("Tanh", n.linear(n.op("Gather", x, n.drawing.value(fixed(0, "int64")), axis=1), W, W)))


@family("gpt2")
def gpt2(n: Net) -> Instance:
    """Pre-norm decoder layer: projections as one Gemm of rows, a causal choice, caches as outputs, Gelu of tanh."""
    x = n.input(B, S, W)
    normal = n.layer_norm(x, W)
    packed = n.op("Gemm", n.shaped(normal, -1, W), n.weight(W, 3 * W), n.weight(3 * W))
    parts = n.op("Split", n.shaped(packed, B, S, 3 * W), n.ints(W, W, W), outputs=3, axis=2)
    q, k, v = (n.moved(n.shaped(p, B, S, H, D), 0, 2, 1, 3) for p in parts)
    scores = n.op("Div", n.op("MatMul", q, n.moved(k, 0, 1, 3, 2)), n.number(D**0.5))
    causal = n.drawing.value(fixed(np.tril(np.ones((1, 1, S, S), np.bool_))))
    scores = n.op("Where", causal, scores, n.number(float(np.finfo(np.float32).min)))
    y = n.moved(n.op("MatMul", n.op("Softmax", scores, axis=-1), v), 0, 2, 1, 3)
    x = n.op("Add", x, n.shaped(n.op("Gemm", n.shaped(y, -1, W), n.weight(W, W), n.weight(W)), B, S, W))
    h = n.op("Gemm", n.shaped(n.layer_norm(x, W), -1, W), n.weight(W, 10), n.weight(10))
    cubic = n.op("Add", h, n.op("Mul", n.op("Pow", h, n.number(3)), n.number(0.044715)))
    gate = n.op("Add", n.op("Tanh", n.op("Mul", cubic, n.number((2 / np.pi) ** 0.5))), n.number(1))
    h = n.op("Mul", n.op("Mul", h, n.number(0.5)), gate)
    x = n.op("Add", x, n.shaped(n.op("Gemm", h, n.weight(10, W), n.weight(W)), B, S, W))
    return n.finish(n.op("MatMul", n.layer_norm(x, W), n.weight(W, 5)), k, v)


@family("llama")
def llama(n: Net) -> Instance:
    """RMS norms, rotated queries and keys, keys shared by the heads, gated feed-forward."""

    def norm(x: str) -> str:
        mean = n.op("ReduceMean", n.op("Pow", x, n.number(2)), n.ints(-1))
        root = n.op("Sqrt", n.op("Add", mean, n.number(1e-6)))
        return n.op("Mul", n.weight(W, mean=1), n.op("Mul", x, n.op("Reciprocal", root)))

    def half(x: str, start: int, end: int) -> str:
        return n.op("Slice", x, n.ints(start), n.ints(end), n.ints(3))

    angles = np.tile(np.outer(np.arange(S), 10_000.0 ** -np.arange(0, 1, 2 / D)), 2)[None, None]
    cos, sin = (n.drawing.value(fixed(f(angles), "float32")) for f in (np.cos, np.sin))

    def rotated(x: str) -> str:
        turned = n.op("Concat", n.op("Neg", half(x, D // 2, D)), half(x, 0, D // 2), axis=-1)
        return n.op("Add", n.op("Mul", x, cos), n.op("Mul", turned, sin))

    x = n.input(B, S, W)
    normal = norm(x)
    shapes = ((W, H), (D, 1), (D, 1))
    q, k, v = (
        n.moved(n.shaped(n.linear(normal, W, width, bias=False), B, S, heads, D), 0, 2, 1, 3) for width, heads in shapes
    )
    q, k = rotated(q), rotated(k)
    repeat = n.ints(B, 1, H, S, D)
    shared = (n.shaped(n.op("Expand", n.op("Unsqueeze", t, n.ints(2)), repeat), B, H, S, D) for t in (k, v))
    keys, values = shared
    scores = n.op("Mul", n.op("MatMul", q, n.moved(keys, 0, 1, 3, 2)), n.number(D**-0.5))
    scores = n.op("Add", scores, n.drawing.value(fixed(np.triu(np.full((1, 1, S, S), -1e9), 1), "float32")))
    y = n.shaped(n.moved(n.op("MatMul", n.op("Softmax", scores, axis=-1), values), 0, 2, 1, 3), B, S, W)
    x = n.op("Add", x, n.linear(y, W, W, bias=False))
    normal = norm(x)
    gate, up = n.silu(n.linear(normal, W, 10, bias=False)), n.linear(normal, W, 10, bias=False)
    x = n.op("Add", x, n.linear(n.op("Mul", gate, up), 10, W, bias=False))
    return n.finish(n.linear(norm(x), W, 5, bias=False), k, v)


@family("vit")
def vit(n: Net) -> Instance:
    """Patches by a convolution, a class token, a pre-norm encoder layer."""
    patches = n.op("Conv", n.input(B, 3, 4, 4), n.weight(W, 3, 2, 2), n.weight(W), kernel_shape=(2, 2), strides=(2, 2))
    x = n.moved(n.shaped(patches, B, W, 4), 0, 2, 1)
    token = n.op("Expand", n.weight(1, 1, W), n.ints(B, 1, W))
    x = n.op("Add", n.op("Concat", token, x, axis=1), n.weight(1, 5, W))
    normal = n.layer_norm(x, W)
    x = n.op("Add", x, n.attention(normal, normal, (B, H, D, W)))
    x = n.op("Add", x, n.linear(n.gelu(n.linear(n.layer_norm(x, W), W, 10)), 10, W))
    first = n.op("Gather", n.layer_norm(x, W), n.drawing.value(fixed(0, "int64")), axis=1)
    return n.finish(n.op("Gemm", first, n.weight(5, W), n.weight(5), transB=1))


@family("swin", quantised=("qdq",))
def swin(n: Net) -> Instance:
    """Attention within windows of an image, then within windows that are shifted, whose masks are added window by window."""
    side, pixels = 2, 4  # of an image: windows, and pixels of a window, along each axis
    windows = side * side
    x = n.input(B, pixels, pixels, W)

    def rolled(y: str, by: int) -> str:
        for axis in (1, 2):
            parts = [n.op("Slice", y, n.ints(a), n.ints(b), n.ints(axis)) for a, b in ((by, pixels), (0, by))]
            y = n.op("Concat", *parts, axis=axis)
        return y

    for shift in (0, 1):
        y = n.layer_norm(x, W)
        y = rolled(y, shift) if shift else y
        y = n.shaped(n.moved(n.shaped(y, B, side, 2, side, 2, W), 0, 1, 3, 2, 4, 5), B * windows, 4, W)
        packed = n.moved(n.shaped(n.linear(y, W, 3 * W), B * windows, 4, 3, H, D), 2, 0, 3, 1, 4)
        q, k, v = (n.op("Gather", packed, n.drawing.value(fixed(i, "int64")), axis=0) for i in range(3))
        q = n.op("Mul", q, n.number(D**-0.5))
        scores = n.op("MatMul", n.rounded(q), n.rounded(n.moved(k, 0, 1, 3, 2)))
        scores = n.op("Add", n.rounded(scores), n.weight(1, H, 4, 4))
        if shift:
            region = (
                np.add.outer([0, 0, 1, 2], [0, 0, 3, 6]).reshape(side, 2, side, 2).swapaxes(1, 2).reshape(windows, 4)
            )
            mask = np.where(region[:, :, None] == region[:, None], 0.0, -100.0)[None, :, None]
            scores = n.op("Add", n.shaped(scores, B, windows, H, 4, 4), n.drawing.value(fixed(mask, "float32")))
            scores = n.shaped(scores, B * windows, H, 4, 4)
        y = n.op("MatMul", n.rounded(n.op("Softmax", scores, axis=-1), 2**-7), n.rounded(v))
        y = n.linear(n.shaped(n.moved(y, 0, 2, 1, 3), B * windows, 4, W), W, W)
        y = n.shaped(n.moved(n.shaped(y, B, side, side, 2, 2, W), 0, 1, 3, 2, 4, 5), B, pixels, pixels, W)
        x = n.op("Add", x, rolled(y, pixels - shift) if shift else y)
        x = n.op("Add", x, n.linear(n.gelu(n.linear(n.layer_norm(x, W), W, 10)), 10, W))
    return n.finish(x)


def _group_norm(n: Net, x: str, channels: int, pixels: int) -> str:
    """Two groups, normalised as instances."""
    groups = n.shaped(x, 0, 2, -1)
    ones, zeros = (n.drawing.value(fixed([v, v], "float32")) for v in (1, 0))
    y = n.shaped(n.op("InstanceNormalization", groups, ones, zeros), B, channels, pixels, pixels)
    return n.op("Add", n.op("Mul", y, n.weight(channels, 1, 1, mean=1)), n.weight(channels, 1, 1))


@family("sd_unet")
def sd_unet(n: Net) -> Instance:
    """Residual block with the embedding of the time, transformer block with self- and cross-attention and GEGLU, twice."""
    x, time, text = n.input(B, W, 2, 2), n.input(B, 6), n.input(B, S, 6)
    pixels = 2
    embedded = n.linear(n.silu(n.linear(time, 6, 6)), 6, 6)
    for _ in range(2):
        h = n.conv(n.silu(_group_norm(n, x, W, pixels)), W, W, 3, bias=True)
        shift = n.op("Gemm", n.silu(embedded), n.weight(W, 6), n.weight(W), transB=1)
        h = n.op("Add", h, n.op("Unsqueeze", n.op("Unsqueeze", shift, n.ints(2)), n.ints(3)))
        x = n.op("Add", x, n.conv(n.silu(_group_norm(n, h, W, pixels)), W, W, 3, bias=True))
        rows = n.shaped(n.moved(n.conv(_group_norm(n, x, W, pixels), W, W, bias=True), 0, 2, 3, 1), B, pixels**2, W)
        normal = n.layer_norm(rows, W)
        rows = n.op("Add", n.attention(normal, normal, (B, H, D, W)), rows)
        rows = n.op("Add", n.attention(n.layer_norm(rows, W), text, (B, H, D, 6)), rows)
        both = n.op("Split", n.linear(n.layer_norm(rows, W), W, 20), n.ints(10, 10), outputs=2, axis=-1)
        rows = n.op("Add", n.linear(n.op("Mul", both[0], n.gelu(both[1])), 10, W), rows)
        back = n.moved(n.shaped(rows, B, pixels, pixels, W), 0, 3, 1, 2)
        x = n.op("Add", n.conv(back, W, W, bias=True), x)
    return n.finish(x)
