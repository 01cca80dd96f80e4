"""Matrix products, of floats, of bytes, and by weights of 2, 4 and 8 bits in blocks."""

from collections.abc import Iterator, Sequence

import numpy as np

from eqsat.calibrate.case import Cases, Kernels, Operand, data, filled, value, weight


def few_bits() -> Iterator[Cases]:
    """Products with weights of 4 and 8 bits in blocks, rows rounded to 8 bits or not, and dequantising them beforehand."""
    f = "float32"
    sizes = [
        *((rows, k, n, 32) for rows in (1, 16, 128) for k, n in ((768, 768), (768, 3072), (3072, 768))),
        *((rows, 2048, 2048, block) for rows in (1, 16, 128) for block in (32, 128)),
    ]
    small = [(rows, k, n, 32) for rows in (1, 2, 16, 128) for k, n in ((64, 64), (64, 256), (256, 512), (512, 1024))]
    for bits, level, zeros, grid in (
        (4, 0, True, sizes),
        (4, 0, False, small),
        (4, 4, False, [*small, *sizes]),
        (4, 4, True, sizes[::2]),
        (8, 4, False, [*small, *sizes][::2]),
    ):
        yield Kernels(
            "com.microsoft::MatMulNBits",
            grid,
            lambda rows, k, n, block, bits=bits, zeros=zeros: [
                data(f, 1, rows, k),
                weight("uint8", n, k // block, block * bits // 8),
                weight(f, n, k // block),
                *([weight("uint8", n, k // block * bits // 8)] if zeros else []),
            ],
            lambda rows, k, n, block, bits=bits, level=level: {
                "K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level,
            },
        )  # fmt: skip
    yield Kernels(
        "DequantizeLinear",
        sizes,
        lambda rows, k, n, block: [value("int4", np.arange(k * n).reshape(k, n) % 16 - 8), weight(f, k // block, n)],
        lambda rows, k, n, block: {"axis": 0, "block_size": block},
    )


_GEMM = [
    (m, k, n)
    for m in (1, 16, 64, 128, 512)
    for k, n in ((64, 64), (256, 256), (256, 1024), (768, 768), (768, 2304), (768, 3072), (3072, 768), (1024, 4096))
    if not (m == 512 and k * n > 3e6)
] + [
    (128, 768, 30522),
    (1, 768, 30522),
    (197, 768, 3072),
    (32, 512, 512),
    (1, 2048, 1000),
    (2048, 32, 32),
    (1024, 64, 256),
]
_SMALL_GEMM = [s for s in _GEMM if s[0] in (1, 128, 512) and s[1] * s[2] >= 256 * 256 and s[2] < 30000]
_FEW_ROWS = [(16, 256, 256), (16, 256, 1024), (16, 768, 768), (64, 256, 256)]
_LAYERS = [(1, 64, 64), *_SMALL_GEMM, *(s for s in _GEMM if 1 < s[0] < 128)]
"""With a bias, down to one row of a small network."""

_ROWS = [*(s for s in _SMALL_GEMM if s[0] > 1), *((m, 64, 64) for m in (16, 64, 128, 512))]

_HEADS = [(36, 128, 768, 64), (12, 128, 768, 64), (36, 384, 768, 64), (12, 384, 768, 64), (8, 64, 256, 32)]
"""Heads, rows, inner extent and columns of each head."""

_COLUMNS = [(128, 768), (128, 2304), (128, 3072), (384, 768), (384, 3072), (3072, 768), (64, 256), (197, 768)]
"""Rows and columns that are scaled and shifted each by itself."""

_BATCHED = [
    (12, 128, 64, 128),
    (12, 128, 128, 64),
    (12, 197, 64, 197),
    (12, 197, 197, 64),
    (8, 1024, 8, 1024),
    (16, 1024, 1024, 4),
    (16, 256, 8, 77),
    (96, 384, 64, 384),
    (96, 384, 384, 64),
    (16, 64, 64, 64),
    (8, 32, 64, 32),
    (12, 1, 64, 128),
    (12, 512, 64, 512),
]
"""(batch, m, k, n)"""

_WINDOWS = [
    (196, 16, 16, 64), (196, 16, 64, 16), (196, 16, 32, 16), (192, 49, 49, 32), (192, 49, 32, 49), (256, 64, 16, 64),
    (256, 64, 64, 16), (1024, 8, 8, 8), (64, 4, 4, 4), (512, 16, 32, 16),
]  # fmt: skip
"""As in attention between the places of small windows: each product takes time to begin."""

INTEGERS = (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))


def scale(dtype: str) -> list[Operand]:
    """Scale and zero point."""
    return [value("float32", 0.02), value(dtype, 128 if dtype == "uint8" else 0)]


def channel_scales(dtype: str, channels: int) -> list[Operand]:
    return [filled("float32", 0.02, channels), filled(dtype, 0, channels)]


def _integer_products(a: str, b: str) -> Iterator[Cases]:
    slow = a == "int8"
    sizes = [s for s in (*_SMALL_GEMM, *_FEW_ROWS) if not slow or s[0] * s[1] * s[2] <= 128 * 768 * 768]
    batches = [s for s in _BATCHED if s[0] <= (16 if slow else 96) and s[1] * s[2] * s[3] < 2e6]
    heads = _HEADS if (a, b) == ("uint8", "int8") else []
    zero_a = scale(a)[1]

    yield Kernels("MatMulInteger", sizes, lambda m, k, n: [data(a, m, k), weight(b, k, n), zero_a, scale(b)[1]])
    yield Kernels(
        "MatMulInteger", batches, lambda g, m, k, n: [data(a, 1, g, m, k), data(b, 1, g, k, n), zero_a, scale(b)[1]]
    )
    yield Kernels(
        "QLinearMatMul", sizes, lambda m, k, n: [data(a, m, k), *scale(a), weight(b, k, n), *scale(b), *scale(a)]
    )
    yield Kernels(
        "QLinearMatMul",
        sizes[::3],
        lambda m, k, n: [data(a, m, k), *scale(a), weight(b, k, n), *channel_scales(b, n), *scale(a)],
    )
    yield Kernels(
        "QLinearMatMul",
        batches,
        lambda g, m, k, n: [data(a, 1, g, m, k), *scale(a), data(b, 1, g, k, n), *scale(b), *scale(a)],
    )
    yield Kernels(
        "QLinearMatMul",
        heads,
        lambda g, m, k, n: [data(a, m, k), *scale(a), weight(b, 1, g, k, n), *scale(b), *scale(a)],
    )
    yield Kernels(
        "com.microsoft::QLinearConv",
        [(g, m, n, k) for g, m, k, n in heads if g * n == k],
        lambda g, m, n, k: [
            data(a, 1, g, m, n), *scale(a), weight(b, k, n, g, 1), *channel_scales(b, k), *scale(a),
        ],
        lambda g, m, n, k: {"channels_last": 1, "kernel_shape": [g, 1]},
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::QLinearConv",
        _COLUMNS if a == "uint8" else [],
        lambda m, c: [
            data(a, 1, m, c), *scale(a), weight(b, c, 1, 1), *channel_scales(b, c), *scale(a), filled("int32", 5, c),
        ],
        lambda m, c: {"channels_last": 1, "group": c, "kernel_shape": [1]},
    )  # fmt: skip
    yield from _fused_integer_products(a, b, sizes, batches)


def _fused_integer_products(
    a: str, b: str, sizes: Sequence[tuple[int, int, int]], batches: Sequence[tuple[int, int, int, int]]
) -> Iterator[Cases]:
    yield Kernels(
        "com.microsoft::MatMulIntegerToFloat",
        sizes,
        lambda m, k, n: [data(a, m, k), weight(b, k, n), *scale(a)[:1], *scale(b)[:1], scale(a)[1], scale(b)[1]],
    )
    yield Kernels(
        "com.microsoft::MatMulIntegerToFloat",
        sizes[::3],
        lambda m, k, n: [
            data(a, m, k), weight(b, k, n), *scale(a)[:1], channel_scales(b, n)[0], scale(a)[1],
            channel_scales(b, n)[1], filled("float32", 0.1, n),
        ],
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::MatMulIntegerToFloat",
        batches,
        lambda g, m, k, n: [
            data(a, 1, g, m, k), data(b, 1, g, k, n), *scale(a)[:1], *scale(b)[:1], scale(a)[1], scale(b)[1],
        ],
    )  # fmt: skip
    for grid, by_channel in ((sizes, False), (sizes[::3], True)):
        yield Kernels(
            "com.microsoft::QGemm",
            grid,
            lambda m, k, n, by_channel=by_channel: [
                data(a, m, k), *scale(a), weight(b, k, n), *(channel_scales(b, n) if by_channel else scale(b)),
                filled("int32", 5, n), *scale(a),
            ],
        )  # fmt: skip


_EXPERTS = [
    (rows, width, inner, experts)
    for width, inner, experts in ((64, 128, 4), (256, 512, 4), (256, 192, 16), (512, 768, 8), (512, 256, 64))
    for rows in (1, 2, 8, 32, 128, 256, 1024)
]


def _experts() -> Iterator[Cases]:
    """Rows by the weights of gate and gated, and what is gated by those of the result, each row by those of an expert."""
    f = "float32"
    yield Kernels(
        "com.microsoft::MoE",
        _EXPERTS,
        lambda rows, width, inner, experts: [
            data(f, rows, width), data(f, rows, experts), weight(f, experts, 2 * inner, width), None,
            weight(f, experts, width, inner),
        ],
        {"k": 1, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0},
    )  # fmt: skip


def _float_products() -> Iterator[Cases]:
    f = "float32"
    yield Kernels("MatMul", _GEMM, lambda m, k, n: [data(f, m, k), weight(f, k, n)])
    yield Kernels("MatMul", [*_BATCHED, *_WINDOWS], lambda g, m, k, n: [data(f, 1, g, m, k), data(f, 1, g, k, n)])
    for trans in (0, 1):
        yield Kernels(
            "Gemm",
            _LAYERS,
            lambda m, k, n, t=trans: [data(f, m, k), weight(f, *((n, k) if t else (k, n))), weight(f, n)],
            {"transB": trans} if trans else {},
        )
        yield Kernels(
            "com.microsoft::FusedMatMul",
            [*_BATCHED, *_WINDOWS],
            lambda g, m, k, n, t=trans: [data(f, 1, g, m, k), data(f, 1, g, *((n, k) if t else (k, n)))],
            {"alpha": 0.125, "transA": 0, "transB": trans},
        )
        yield Kernels(
            "com.microsoft::FusedMatMul",
            [*_BATCHED[:4], *_BATCHED[9:11], *_WINDOWS[::4]],
            lambda g, m, k, n, t=trans: [data(f, 1, g, k, m), data(f, 1, g, *((n, k) if t else (k, n)))],
            {"transA": 1, "transB": trans},
        )
    yield Kernels("Gemm", _ROWS, lambda m, k, n: [data(f, k, m), weight(f, k, n), weight(f, n)], {"transA": 1})
    yield Kernels("com.microsoft::FusedMatMul", _ROWS, lambda m, k, n: [data(f, k, m), weight(f, k, n)], {"transA": 1})
    yield Kernels(
        "com.microsoft::FusedGemm",
        _LAYERS,
        lambda m, k, n: [data(f, m, k), weight(f, k, n), weight(f, n)],
        {"activation": "Relu", "transB": 0},
    )


PRODUCTS: tuple[Cases, ...] = (
    *_float_products(),
    *few_bits(),
    *_experts(),
    *(kernels for a, b in INTEGERS for kernels in _integer_products(a, b)),
    Kernels(
        "com.microsoft::DynamicQuantizeMatMul",
        _SMALL_GEMM[::2],
        lambda m, k, n: [data("float32", m, k), weight("int8", k, n), value("float32", [0.02]), value("int8", [0])],
    ),
)
