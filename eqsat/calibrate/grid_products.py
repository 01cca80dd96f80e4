"""Matrix products, convolutions and attention: the kernels that take most of the time."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeAlias

from eqsat.calibrate.case import Cases, Kernels, Operand, data, filled, value, weight
from eqsat.calibrate.grid_few_bits import few_bits

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
_LAYERS = [(1, 64, 64), *_SMALL_GEMM]
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

ConvSize: TypeAlias = tuple[int, int, int, int, int, int, int]
"""Batch, channels, side of the image, filters, side of the kernel, stride, groups."""


def _conv(channels: int, size: int, filters: int, kernel: int, stride: int = 1, group: int = 1) -> ConvSize:
    return (1, channels, size, filters, kernel, stride, group)


_CONV = [
    *(
        _conv(c, s, f, 1)
        for c, s, f in (
            (64, 56, 64), (64, 56, 256), (256, 56, 64), (256, 56, 128), (512, 28, 128), (128, 28, 512),
            (1024, 14, 256), (256, 14, 1024), (2048, 7, 512), (512, 7, 2048), (16, 112, 64), (24, 56, 144), (96, 14, 576),
            (960, 7, 160), (336, 21, 336), (192, 17, 192), (32, 32, 32), (672, 11, 672), (42, 83, 42),
        )
    ),
    *(
        _conv(c, s, f, 3)
        for c, s, f in (
            (3, 64, 32), (64, 56, 64), (128, 28, 128), (256, 14, 256), (512, 7, 512), (32, 147, 64), (16, 55, 64),
            (32, 32, 32), (64, 16, 64), (128, 8, 128), (96, 35, 96), (256, 13, 256),
        )
    ),
    *(_conv(c, s, f, 3, 2) for c, s, f in ((3, 224, 32), (128, 56, 128), (256, 28, 256), (512, 14, 512), (64, 64, 64))),
    *(_conv(c, s, f, 1, 2) for c, s, f in ((256, 56, 512), (512, 28, 1024), (1024, 14, 2048))),
    *(_conv(c, s, f, 7, 2) for c, s, f in ((3, 224, 64), (3, 112, 32))),
    *(_conv(c, s, c, 3, 1, c) for c, s in ((32, 112), (144, 56), (192, 28), (384, 14), (576, 14), (960, 7))),
    *(_conv(c, s, c, 3, 2, c) for c, s in ((96, 112), (144, 56), (192, 28), (576, 14))),
    *(_conv(c, s, c, 5, 1, c) for c, s in ((120, 28), (672, 14), (960, 7), (336, 21), (168, 42), (672, 11), (42, 83))),
    *(_conv(c, s, c, 7, 1, c) for c, s in ((168, 42), (336, 21), (84, 83))),
    *(_conv(c, s, c, 3, 1, 32) for c, s in ((128, 56), (256, 28), (512, 14), (1024, 7))),
    *(_conv(c, s, c, 3, 2, 32) for c, s in ((256, 56), (512, 28), (1024, 14))),
    *(_conv(c, s, f, 5) for c, s, f in ((48, 35, 64), (32, 28, 64))),
]  # fmt: skip


def _conv_attributes(
    n: int, c: int, size: int, f: int, kernel: int, stride: int, group: int, **more: object
) -> dict[str, object]:
    pad = kernel // 2
    return {
        "kernel_shape": [kernel, kernel],
        "strides": [stride, stride],
        "pads": [pad] * 4,
        "dilations": [1, 1],
        "group": group,
        **more,
    }


def _image(dtype: str, n: int, c: int, size: int) -> Operand:
    return data(dtype, n, c, size, size)


_QUANTIZED_CONV = [s for s in _CONV if s[1] * s[3] >= 4096 or s[6] > 1]
_INTEGERS = (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))


def _scale(dtype: str) -> list[Operand]:
    """Scale and zero point."""
    return [value("float32", 0.02), value(dtype, 128 if dtype == "uint8" else 0)]


def _channel_scales(dtype: str, channels: int) -> list[Operand]:
    return [filled("float32", 0.02, channels), filled(dtype, 0, channels)]


def _integer_products(a: str, b: str) -> Iterator[Cases]:
    slow = a == "int8"
    sizes = [s for s in _SMALL_GEMM if not slow or s[0] * s[1] * s[2] <= 128 * 768 * 768]
    batches = [s for s in _BATCHED if s[0] <= (16 if slow else 96) and s[1] * s[2] * s[3] < 2e6]
    heads = _HEADS if (a, b) == ("uint8", "int8") else []
    zero_a = _scale(a)[1]

    yield Kernels("MatMulInteger", sizes, lambda m, k, n: [data(a, m, k), weight(b, k, n), zero_a, _scale(b)[1]])
    yield Kernels(
        "MatMulInteger", batches, lambda g, m, k, n: [data(a, 1, g, m, k), data(b, 1, g, k, n), zero_a, _scale(b)[1]]
    )
    yield Kernels(
        "QLinearMatMul", sizes, lambda m, k, n: [data(a, m, k), *_scale(a), weight(b, k, n), *_scale(b), *_scale(a)]
    )
    yield Kernels(
        "QLinearMatMul",
        sizes[::3],
        lambda m, k, n: [data(a, m, k), *_scale(a), weight(b, k, n), *_channel_scales(b, n), *_scale(a)],
    )
    yield Kernels(
        "QLinearMatMul",
        batches,
        lambda g, m, k, n: [data(a, 1, g, m, k), *_scale(a), data(b, 1, g, k, n), *_scale(b), *_scale(a)],
    )
    yield Kernels(
        "QLinearMatMul",
        heads,
        lambda g, m, k, n: [data(a, m, k), *_scale(a), weight(b, 1, g, k, n), *_scale(b), *_scale(a)],
    )
    yield Kernels(
        "com.microsoft::QLinearConv",
        [(g, m, n, k) for g, m, k, n in heads if g * n == k],
        lambda g, m, n, k: [
            data(a, 1, g, m, n), *_scale(a), weight(b, k, n, g, 1), *_channel_scales(b, k), *_scale(a),
        ],
        lambda g, m, n, k: {"channels_last": 1, "kernel_shape": [g, 1]},
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::QLinearConv",
        _COLUMNS if a == "uint8" else [],
        lambda m, c: [
            data(a, 1, m, c), *_scale(a), weight(b, c, 1, 1), *_channel_scales(b, c), *_scale(a), filled("int32", 5, c),
        ],
        lambda m, c: {"channels_last": 1, "group": c, "kernel_shape": [1]},
    )  # fmt: skip
    yield from _fused_integer_products(a, b, sizes, batches)
    yield from _integer_convolutions(a, b, [s for s in _QUANTIZED_CONV if not slow or s[1] * s[3] * s[2] ** 2 < 1.5e7])


def _fused_integer_products(
    a: str, b: str, sizes: Sequence[tuple[int, int, int]], batches: Sequence[tuple[int, int, int, int]]
) -> Iterator[Cases]:
    yield Kernels(
        "com.microsoft::MatMulIntegerToFloat",
        sizes,
        lambda m, k, n: [data(a, m, k), weight(b, k, n), *_scale(a)[:1], *_scale(b)[:1], _scale(a)[1], _scale(b)[1]],
    )
    yield Kernels(
        "com.microsoft::MatMulIntegerToFloat",
        sizes[::3],
        lambda m, k, n: [
            data(a, m, k), weight(b, k, n), *_scale(a)[:1], _channel_scales(b, n)[0], _scale(a)[1],
            _channel_scales(b, n)[1], filled("float32", 0.1, n),
        ],
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::MatMulIntegerToFloat",
        batches,
        lambda g, m, k, n: [
            data(a, 1, g, m, k), data(b, 1, g, k, n), *_scale(a)[:1], *_scale(b)[:1], _scale(a)[1], _scale(b)[1],
        ],
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::QGemm",
        sizes,
        lambda m, k, n: [
            data(a, m, k), *_scale(a), weight(b, k, n), *_scale(b), filled("int32", 5, n), *_scale(a),
        ],
    )  # fmt: skip
    yield Kernels(
        "com.microsoft::QGemm",
        sizes[::3],
        lambda m, k, n: [
            data(a, m, k), *_scale(a), weight(b, k, n), *_channel_scales(b, n), filled("int32", 5, n), *_scale(a),
        ],
    )  # fmt: skip


def _integer_convolutions(a: str, b: str, convs: Sequence[ConvSize]) -> Iterator[Cases]:
    yield Kernels(
        "QLinearConv",
        convs,
        lambda batch, c, size, f, kernel, stride, group: [
            _image(a, batch, c, size), *_scale(a), weight(b, f, c // group, kernel, kernel), *_channel_scales(b, f),
            *_scale(a), filled("int32", 5, f),
        ],
        _conv_attributes,
    )  # fmt: skip
    yield Kernels(
        "ConvInteger",
        convs[::4],
        lambda batch, c, size, f, kernel, stride, group: [
            _image(a, batch, c, size), weight(b, f, c // group, kernel, kernel), _scale(a)[1], value(b, 0),
        ],
        _conv_attributes,
    )  # fmt: skip


def _float_products() -> Iterator[Cases]:
    f = "float32"
    yield Kernels("MatMul", _GEMM, lambda m, k, n: [data(f, m, k), weight(f, k, n)])
    yield Kernels("MatMul", _BATCHED, lambda g, m, k, n: [data(f, 1, g, m, k), data(f, 1, g, k, n)])
    for trans in (0, 1):
        yield Kernels(
            "Gemm",
            _LAYERS,
            lambda m, k, n, t=trans: [data(f, m, k), weight(f, *((n, k) if t else (k, n))), weight(f, n)],
            {"transB": trans} if trans else {},
        )
        yield Kernels(
            "com.microsoft::FusedMatMul",
            _BATCHED,
            lambda g, m, k, n, t=trans: [data(f, 1, g, m, k), data(f, 1, g, *((n, k) if t else (k, n)))],
            {"alpha": 0.125, "transA": 0, "transB": trans},
        )
    yield Kernels("Gemm", _ROWS, lambda m, k, n: [data(f, k, m), weight(f, k, n), weight(f, n)], {"transA": 1})
    yield Kernels("com.microsoft::FusedMatMul", _ROWS, lambda m, k, n: [data(f, k, m), weight(f, k, n)], {"transA": 1})
    yield Kernels(
        "com.microsoft::FusedGemm",
        _LAYERS,
        lambda m, k, n: [data(f, m, k), weight(f, k, n), weight(f, n)],
        {"activation": "Relu", "transB": 0},
    )
    for key, more in (("Conv", {}), ("com.microsoft::FusedConv", {"activation": "Relu"})):
        yield Kernels(
            key,
            _CONV,
            lambda batch, c, size, o, kernel, stride, group: [
                _image(f, batch, c, size), weight(f, o, c // group, kernel, kernel), weight(f, o),
            ],
            partial(_conv_attributes, **more),
        )  # fmt: skip
    yield Kernels(
        "ConvTranspose",
        [(1, 64, 14, 64, 2, 2, 1), (1, 128, 14, 64, 2, 2, 1), (1, 32, 28, 32, 2, 2, 1)],
        lambda batch, c, size, o, kernel, stride, group: [_image(f, batch, c, size), weight(f, c, o, kernel, kernel)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    )


PRODUCTS: tuple[Cases, ...] = (
    *_float_products(),
    *few_bits(),
    *(kernels for a, b in _INTEGERS for kernels in _integer_products(a, b)),
    Kernels(
        "com.microsoft::DynamicQuantizeMatMul",
        _SMALL_GEMM[::2],
        lambda m, k, n: [data("float32", m, k), weight("int8", k, n), value("float32", [0.02]), value("int8", [0])],
    ),
)
