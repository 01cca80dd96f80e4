"""Convolutions, of images and of sequences."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TypeAlias

from eqsat.calibrate.case import Cases, Kernels, Operand, data, filled, value, weight
from eqsat.calibrate.grid_products import INTEGERS, channel_scales, scale

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
    n: int, c: int, size: int, f: int, kernel: int, stride: int, group: int, axes: int = 2, **more: object
) -> dict[str, object]:
    pad = kernel // 2
    return {
        "kernel_shape": [kernel] * axes,
        "strides": [stride] * axes,
        "pads": [pad] * (2 * axes),
        "dilations": [1] * axes,
        "group": group,
        **more,
    }


def _strip(along: int, extent: int, other: int) -> list[int]:
    """An extent for each of two axes."""
    return [extent, other] if along == 0 else [other, extent]


def _image(dtype: str, n: int, c: int, size: int) -> Operand:
    return data(dtype, n, c, size, size)


def _line_attributes(
    c: int, places: int, f: int, kernel: int, stride: int, group: int, **more: object
) -> dict[str, object]:
    return _conv_attributes(1, c, places, f, kernel, stride, group, axes=1, **more)


_FEW_FILTERS = [
    _conv(c, s, f, 3) for c, s, f in ((64, 32, 3), (64, 64, 3), (32, 112, 1), (128, 28, 4), (64, 32, 8), (16, 56, 1))
]
_VOLUMES = [
    *(_conv(c, s, f, 3) for c, s, f in (
        (1, 32, 8), (8, 32, 8), (16, 32, 8), (16, 32, 16), (16, 16, 16), (32, 16, 16), (32, 16, 32), (64, 8, 64), (128, 4, 64),
    )),
    *(_conv(c, s, f, 1) for c, s, f in ((16, 32, 8), (32, 16, 32), (64, 8, 128), (128, 4, 256))),
    *(_conv(c, s, f, 3, 2) for c, s, f in ((8, 32, 16), (32, 16, 64))),
    *(_conv(c, s, c, 3, 1, c) for c, s in ((16, 16), (64, 8), (108, 12), (32, 24), (432, 6))),
    _conv(64, 16, 64, 3, 2, 64),
    _conv(8, 16, 8, 5),
]  # fmt: skip
"""With a third axis, as long as the others."""

_PATCHES = [
    (3, 32, 64, 8), (3, 224, 768, 16), (3, 224, 192, 16), (3, 224, 96, 4), (3, 64, 128, 4), (64, 56, 128, 2), (96, 56, 192, 2),
    (384, 14, 768, 2), (64, 56, 64, 8), (1, 28, 16, 4),
]  # fmt: skip
"""Channels, side of the image, filters, side of the kernel, which is the stride."""

_STRIPS = [
    *((c, s, f, k, 1) for c, s, f, k in (
        (192, 17, 192, 7), (128, 17, 160, 7), (64, 71, 64, 7), (384, 8, 384, 3), (448, 8, 512, 3), (64, 56, 64, 3),
        (32, 28, 32, 5), (16, 64, 16, 9),
    )),
    *((c, s, c, k, c) for c, s, k in ((128, 28, 11), (64, 56, 7), (256, 14, 11), (32, 56, 21))),
]  # fmt: skip
"""Channels, side of the image, filters, length of the kernel, groups."""

_SEQUENCES = [
    (256, 128, 256, 9, 1, 256), (384, 256, 384, 9, 1, 384), (512, 1024, 512, 31, 1, 512), (128, 512, 128, 3, 1, 128),
    (1536, 197, 1536, 5, 1, 1536), (64, 64, 64, 3, 1, 64), (256, 2048, 256, 5, 2, 256), (80, 3000, 384, 3, 1, 1),
    (384, 3000, 384, 3, 2, 1), (512, 799, 512, 3, 2, 1), (1, 16000, 512, 10, 5, 1), (64, 128, 64, 3, 1, 1),
    (256, 128, 256, 1, 1, 1), (64, 512, 128, 5, 1, 1), (257, 128, 64, 1, 1, 1), (512, 49, 512, 19, 1, 32),
    (64, 256, 64, 3, 1, 8), (768, 128, 768, 127, 1, 16), (1, 11217, 72, 256, 64, 1), (1, 2996, 36, 256, 16, 1),
    (2048, 4, 2048, 3, 1, 2048), (1536, 64, 1536, 3, 1, 1536), (256, 100, 256, 31, 1, 256), (24, 1024, 24, 3, 1, 24),
]  # fmt: skip
"""Channels, places, filters, length of the kernel, stride, groups."""

_QUANTIZED = [s for s in _CONV if s[1] * s[3] >= 4096 or s[6] > 1]
_OF_PICTURES = [
    *(_conv(c, s, f, 7, 2) for c, s, f in ((3, 224, 64), (3, 112, 32), (1, 96, 64))),
    *(_conv(c, s, f, 3, 2) for c, s, f in ((3, 224, 32), (3, 64, 16))),
    *(_conv(c, s, f, 3) for c, s, f in ((3, 64, 32), (16, 56, 16))),
    *(_conv(c, s, f, 1, 2) for c, s, f in ((1024, 6, 2048), (256, 24, 512))),
]
"""With few channels, and few places."""

_SMALL = [
    *(_conv(c, s, f, 1) for c, s, f in (
        (576, 1, 1024), (576, 1, 144), (64, 1, 16), (96, 8, 24), (240, 8, 40), (16, 32, 72), (576, 4, 96),
    )),
    _conv(64, 8, 64, 3),
    _conv(240, 8, 240, 5, 1, 240),
]  # fmt: skip
"""As at the end of a small network, and around what weighs its channels."""

_SMALL_BY_CHANNEL = [
    *(_conv(c, s, c, 3, 1, c) for c, s in ((32, 32), (96, 16), (192, 8), (384, 4), (960, 2))),
    *(_conv(c, s, c, 3, 2, c) for c, s in ((96, 32), (144, 16), (192, 8), (576, 4))),
    *(_conv(c, s, c, 5, 2, c) for c, s in ((72, 16), (240, 8), (672, 4))),
]
"""Windows of bytes for each channel in networks for small images: ConvInteger takes ten times as long as QLinearConv."""

_SEQUENCES_OF_BYTES = [
    *((c, p, f, 1, 1, 1) for c, p, f in (
        (64, 21, 12), (8, 21, 8), (24, 400, 48), (64, 128, 128), (256, 128, 256), (384, 600, 384),
    )),
    *((c, p, f, 3, s, 1) for c, p, f, s in ((16, 64, 16, 1), (64, 128, 64, 1), (80, 300, 128, 1), (256, 200, 256, 2))),
    *((c, p, c, k, 1, c) for c, p, k in (
        (8, 21, 17), (12, 21, 11), (8, 21, 29), (32, 200, 5), (64, 100, 9), (128, 512, 3), (256, 128, 9), (256, 100, 31),
    )),
]  # fmt: skip
"""Channels, places, filters, length of the kernel, stride, groups."""

_OF_SMALL_IMAGES = [
    *(
        _conv(c, s, f, 1)
        for c, s, f in (
            (64, 15, 16), (16, 15, 64), (128, 15, 16), (128, 7, 32), (32, 7, 128), (256, 7, 32), (48, 3, 192), (384, 3, 48),
            (64, 3, 256), (512, 3, 64), (512, 3, 1000), (24, 16, 144), (96, 16, 24), (32, 8, 192), (64, 4, 384), (160, 2, 960),
            (576, 1, 144), (64, 1, 16),
        )
    ),
    *(
        _conv(c, s, f, 3)
        for c, s, f in (
            (16, 15, 64), (16, 15, 128), (32, 7, 128), (32, 7, 256), (48, 3, 192), (64, 3, 256), (64, 3, 512), (256, 4, 256),
            (512, 2, 512), (64, 28, 32),
        )
    ),
    *(_conv(c, s, f, 5) for c, s, f in ((16, 14, 32), (24, 28, 64), (32, 7, 128))),
    *(_conv(c, s, f, 1, 2) for c, s, f in ((64, 16, 128), (128, 8, 256), (256, 4, 512), (64, 56, 128), (256, 14, 512))),
    *(_conv(c, s, f, 3, 2) for c, s, f in ((16, 32, 32), (64, 8, 128), (128, 4, 256), (64, 16, 256), (256, 4, 512))),
    *(_conv(c, s, f, 7, 2) for c, s, f in ((3, 64, 64), (3, 32, 32))),
    *(_conv(c, s, c, 1, 1, g) for c, s, g in ((128, 16, 4), (256, 28, 4), (512, 14, 4))),
    *(_conv(c, s, c, 3, 1, g) for c, s, g in ((64, 16, 16), (128, 16, 8), (256, 8, 8), (256, 28, 16))),
    *(_conv(c, s, c, 3, 2, g) for c, s, g in ((64, 16, 16), (128, 16, 8), (256, 28, 16))),
    *(_conv(c, s, c, 3, 1, c) for c, s in ((32, 32), (96, 16), (192, 8), (384, 4), (960, 2))),
    *(_conv(c, s, c, 3, 2, c) for c, s in ((96, 32), (144, 16))),
    *(_conv(c, s, c, 5, 1, c) for c, s in ((72, 8), (240, 8), (576, 4))),
    *(_conv(c, s, c, 5, 2, c) for c, s in ((72, 56), (96, 32), (240, 28), (240, 16), (672, 14))),
    *(_conv(c, s, c, 7, 1, c) for c, s in ((96, 56), (192, 28), (384, 14), (768, 7))),
]  # fmt: skip
"""As far into a network for small images, and large windows for each channel."""

_BESIDE_BLOCKS = [
    *(_conv(c, s, c, 1) for c, s in ((18, 32), (54, 28), (90, 14))),
    *(_conv(c, s, c, 3) for c, s in ((18, 32), (30, 28), (90, 14))),
    *(_conv(c, s, c, 3, 1, c) for c, s in ((18, 32), (42, 42), (90, 14))),
]
"""Of channels that ONNX Runtime makes no blocks of."""

_LINES = [
    (64, 128, 64, 3, 1), (80, 3000, 384, 3, 1), (64, 512, 128, 5, 1), (256, 128, 256, 9, 256), (128, 512, 128, 3, 128),
    (512, 1024, 512, 31, 512), (2048, 4, 2048, 3, 2048), (1536, 64, 1536, 3, 1536), (256, 100, 256, 31, 256),
    (24, 1024, 24, 3, 24),
]  # fmt: skip
"""Channels, width of an image with one line, filters, length of the kernel, groups."""


def _integer_convolutions(a: str, b: str) -> Iterator[Cases]:
    slow = a == "int8"
    convs = [s for s in _QUANTIZED if not slow or s[1] * s[3] * s[2] ** 2 < 1.5e7]
    yield Kernels(
        "QLinearConv",
        [*convs, *([] if slow else [*_OF_PICTURES, *_SMALL, *_SMALL_BY_CHANNEL])],
        lambda batch, c, size, f, kernel, stride, group: [
            _image(a, batch, c, size), *scale(a), weight(b, f, c // group, kernel, kernel), *channel_scales(b, f),
            *scale(a), filled("int32", 5, f),
        ],
        _conv_attributes,
    )  # fmt: skip
    yield Kernels(
        "ConvInteger",
        [*convs[::4], *([] if slow else [*_SMALL, *_SMALL_BY_CHANNEL])],
        lambda batch, c, size, f, kernel, stride, group: [
            _image(a, batch, c, size), weight(b, f, c // group, kernel, kernel), scale(a)[1], value(b, 0),
        ],
        _conv_attributes,
    )  # fmt: skip
    lines = [] if slow else _SEQUENCES_OF_BYTES
    yield Kernels(
        "QLinearConv",
        lines,
        lambda c, places, f, kernel, stride, group: [
            data(a, 1, c, places), *scale(a), weight(b, f, c // group, kernel), *channel_scales(b, f), *scale(a),
            filled("int32", 5, f),
        ],
        _line_attributes,
    )  # fmt: skip
    yield Kernels(
        "ConvInteger",
        lines,
        lambda c, places, f, kernel, stride, group: [
            data(a, 1, c, places), weight(b, f, c // group, kernel), scale(a)[1], value(b, 0),
        ],
        _line_attributes,
    )  # fmt: skip


def _along_one_axis(key: str, more: Mapping[str, object]) -> Iterator[Cases]:
    f = "float32"
    yield Kernels(
        key,
        _LINES,
        lambda c, width, o, kernel, group: [data(f, 1, c, 1, width), weight(f, o, c // group, 1, kernel), weight(f, o)],
        lambda c, width, o, kernel, group: {
            "kernel_shape": [1, kernel], "strides": [1, 1], "pads": [0, kernel // 2] * 2, "dilations": [1, 1],
            "group": group, **more,
        },
    )  # fmt: skip
    yield Kernels(
        key,
        _SEQUENCES,
        lambda c, places, o, kernel, stride, group: [
            data(f, 1, c, places), weight(f, o, c // group, kernel), weight(f, o),
        ],
        partial(_line_attributes, **more),
    )  # fmt: skip


def _float_convolutions() -> Iterator[Cases]:
    f = "float32"
    yield Kernels(
        "Conv",
        _VOLUMES,
        lambda batch, c, size, o, kernel, stride, group: [
            data(f, batch, c, size, size, size), weight(f, o, c // group, kernel, kernel, kernel), weight(f, o),
        ],
        partial(_conv_attributes, axes=3),
    )  # fmt: skip
    for key, more in (("Conv", {}), ("com.microsoft::FusedConv", {"activation": "Relu"})):
        yield Kernels(
            key,
            [*_CONV, *_FEW_FILTERS, *_OF_SMALL_IMAGES, *_BESIDE_BLOCKS],
            lambda batch, c, size, o, kernel, stride, group: [
                _image(f, batch, c, size), weight(f, o, c // group, kernel, kernel), weight(f, o),
            ],
            partial(_conv_attributes, **more),
        )  # fmt: skip
        yield Kernels(
            key,
            _PATCHES,
            lambda c, size, o, kernel: [data(f, 1, c, size, size), weight(f, o, c, kernel, kernel), weight(f, o)],
            lambda c, size, o, kernel, more=more: {
                "kernel_shape": [kernel] * 2, "strides": [kernel] * 2, "pads": [0] * 4, "dilations": [1, 1], "group": 1, **more,
            },
        )  # fmt: skip
        for along in (0, 1):
            yield Kernels(
                key,
                _STRIPS,
                lambda c, size, o, kernel, group, along=along: [
                    data(f, 1, c, size, size), weight(f, o, c // group, *_strip(along, kernel, 1)), weight(f, o),
                ],
                lambda c, size, o, kernel, group, along=along, more=more: {
                    "kernel_shape": _strip(along, kernel, 1), "strides": [1, 1], "pads": _strip(along, kernel // 2, 0) * 2,
                    "dilations": [1, 1], "group": group, **more,
                },
            )  # fmt: skip
        yield from _along_one_axis(key, more)
    yield Kernels(
        "ConvTranspose",
        [(1, 64, 14, 64, 2, 2, 1), (1, 128, 14, 64, 2, 2, 1), (1, 32, 28, 32, 2, 2, 1)],
        lambda batch, c, size, o, kernel, stride, group: [_image(f, batch, c, size), weight(f, c, o, kernel, kernel)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    )


CONVOLUTIONS: tuple[Cases, ...] = (
    *_float_convolutions(),
    *(kernels for a, b in INTEGERS for kernels in _integer_convolutions(a, b)),
)
