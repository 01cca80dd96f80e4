"""Everything beside products and what moves data: elementwise operators, norms, softmax, reductions, pools, quantisation."""

from collections.abc import Iterator, Sequence

from eqsat.calibrate.case import Cases, Kernels, data, filled, value, weight
from eqsat.ir.operators.onnxruntime_products import POOLS

F = "float32"
ROWS = (
    (1, 512), (128, 64), (128, 768), (128, 3072), (512, 768), (384 * 8, 768), (1024, 256), (12 * 128, 128), (64, 512),
)  # fmt: skip
_TOKENS = ((16, 64), (32, 64), (1, 4096))
"""Rows of language models, for norms that these have."""
_SEQUENCES = ((64, 4096), (64, 336), (512, 128), (7, 96), (128, 1024))
"""Channels and places."""
_MATRICES = (
    (1, 49, 768), (1, 128, 768), (1, 197, 768), (1, 256, 196), (1, 384, 1024), (1, 64, 1024), (1, 64, 4096), (1, 48, 9216),
    (1, 128, 256), (1, 16, 64), (2, 16, 64), (2, 64, 1024), (4, 64, 4096), (8, 128, 768), (4, 49, 384), (16, 16, 64),
)  # fmt: skip
"""Channels of images and tokens of sequences, each over which a mean is taken: of one, and of several."""
_ELEMENTS = ((1, 512), (1, 4096), (32, 512), (128, 320), (128, 768), (1024, 256), (256, 3136), (384 * 8, 768))
"""For what looks at every element by itself: each size about three times the one before it."""
IMAGES = ((64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7), (32, 32), (336, 21), (168, 42), (672, 11))
SCORES = ((12, 128), (12, 197), (96, 384), (16, 64), (16, 256))
_HEADS = ((12, 128, 64), (8, 128, 64), (2, 128, 64), (12, 384, 64))

_SHORT_RUNS = ((32, 8, 3), (32, 8, 16), (64, 32, 32), (64, 8, 128))
_SHORT_ROWS = ((1024, 3), (256, 16), (128, 64))
"""Where an operand repeats ONNX Runtime begins anew for each run of elements, however few these are."""

_UNARY = {
    F: ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "Neg", "Abs", "Reciprocal", "HardSwish", "HardSigmoid", "LeakyRelu",
        "Gelu", "Round", "Floor", "Log", "com.microsoft::QuickGelu", "com.microsoft::FastGelu", "com.microsoft::Gelu",
        "Softplus", "Mish", "Elu", "Selu", "Celu", "Softsign", "Sin", "Cos", "Atan", "Sign", "Ceil"),
    "int8": ("Relu", "Neg", "Abs"),
}  # fmt: skip
_BINARY = {F: ("Add", "Mul", "Sub", "Div", "Pow", "Max", "Min"), "int32": ("Add", "Mul"), "int64": ("Add", "Mul"),
           "int8": ("Max", "Min"), "uint8": ("Max", "Min")}  # fmt: skip
_SCALE8 = {"uint8": 128, "int8": 0}


def _elementwise() -> Iterator[Cases]:
    for dtype, names in _UNARY.items():
        for name in names:
            yield Kernels(name, _ELEMENTS, lambda r, c, t=dtype: [data(t, r, c)])
    yield Kernels("com.microsoft::QuickGelu", _ELEMENTS, lambda r, c: [data(F, r, c)], {"alpha": 1.0})
    yield Kernels("Gelu", _ELEMENTS, lambda r, c: [data(F, r, c)], {"approximate": "tanh"})
    for dtype, names in _BINARY.items():
        for name in names:
            wide = (*ROWS, (32, 512), (256, 3136)) if name in ("Add", "Mul") else _ELEMENTS[::2]
            yield Kernels(name, wide, lambda r, c, t=dtype: [data(t, 1, r, c), data(t, 1, r, c)])
            yield Kernels(name, wide, lambda r, c, t=dtype: [data(t, 1, r, c), weight(t, c)])
            number = 0.7 if name == "Pow" else 3  # 2 and 3 have kernels of their own, and so have products
            yield Kernels(name, wide, lambda r, c, t=dtype, n=number: [data(t, 1, r, c), value(t, n)])
    for name in ("Add", "Mul"):
        yield Kernels(name, IMAGES, lambda c, s: [data(F, 1, c, s, s), data(F, 1, c, s, s)])
        yield Kernels(name, IMAGES, lambda c, s: [data(F, 1, c, s, s), data(F, 1, c, 1, 1)])
        yield Kernels(name, SCORES, lambda h, s: [data(F, 1, h, s, s), data(F, 1, 1, s, s)])
        yield Kernels(name, SCORES, lambda h, s: [data(F, 1, h, s, s), data(F, 1, 1, 1, s)])
        yield Kernels(name, _HEADS, lambda h, s, d: [data(F, 1, h, s, d), data(F, 1, h, 1, d)])
        yield Kernels(name, _HEADS, lambda h, s, d: [data(F, 1, s, h, d), data(F, 1, s, 1, d)])
        yield Kernels(name, _HEADS[:2], lambda h, s, d: [data(F, 1, h, d, s), data(F, 1, h, d, 1)])
    for name in ("Add", "Mul", "Sub", "Div"):
        yield Kernels(name, _SHORT_RUNS, lambda r, n, c: [data(F, 1, r, n, c), data(F, 1, r, 1, c)])
        yield Kernels(name, _SHORT_ROWS, lambda r, c: [data(F, 1, r, c), data(F, 1, r, 1)])
        yield Kernels(name, _SHORT_ROWS[:2], lambda r, c: [data(F, 1, r, c), weight(F, c)])
    yield Kernels("Relu", IMAGES, lambda c, s: [data(F, 1, c, s, s)])
    yield Kernels("PRelu", IMAGES, lambda c, s: [data(F, 1, c, s, s), weight(F, c, 1, 1)])
    for name in ("Max", "Min"):
        yield Kernels(name, IMAGES, lambda c, s: [data(F, 1, c, s, s), data(F, 1, c, s, s)])
    yield Kernels("Clip", (*_ELEMENTS, *ROWS), lambda r, c: [data(F, r, c), value(F, 0.0), value(F, 6.0)])
    yield Kernels("Clip", IMAGES, lambda c, s: [data(F, 1, c, s, s), value(F, 0.0), value(F, 6.0)])
    for dtype in _SCALE8:
        yield Kernels("Clip", _ELEMENTS, lambda r, c, t=dtype: [data(t, r, c), value(t, 3), value(t, 100)])
    for name in ("com.microsoft::BiasGelu", "com.microsoft::FastGelu"):
        yield Kernels(name, ROWS, lambda r, c: [data(F, r, c), weight(F, c)])
    yield Kernels("Where", SCORES, lambda h, s: [data("bool", 1, 1, s, s), data(F, 1, h, s, s), value(F, -1e9)])
    yield Kernels("Where", ((1, 128), (128, 128)), lambda r, c: [data("bool", r, c), value(F, 0.0), value(F, -1e9)])
    yield Kernels("And", ((128, 128), (384, 384), (1, 128)), lambda r, c: [data("bool", r, c), data("bool", r, c)])
    yield Kernels("And", ((128, 128), (384, 384), (16, 128)), lambda r, c: [data("bool", r, c), data("bool", 1, c)])
    for source, code in (("int64", 1), (F, 7), ("int32", 1), (F, 2), ("bool", 1), ("uint8", 7), ("uint8", 6), (F, 9)):
        yield Kernels("Cast", _ELEMENTS[::2], lambda r, c, t=source: [data(t, r, c)], {"to": code})


def _softmax() -> Iterator[Cases]:
    yield Kernels("Softmax", SCORES, lambda h, s: [data(F, 1, h, s, s)], {"axis": -1})
    yield Kernels("Softmax", (*SCORES, (2, 1024)), lambda h, s: [data(F, 1, h, s, s)], {"axis": -2})
    rows = ((1, 1000), (128, 2048), (16384, 77), (33600, 16), (4096, 16), (3136, 4), (4096, 21), (588, 49), (9408, 49))
    yield Kernels("Softmax", rows, lambda r, c: [data(F, r, c)], {"axis": -1})
    channels: Sequence[tuple[int, ...]] = (
        (1, 16, 8400), (1, 16, 2100), (1, 1000, 49), (8, 196, 64), (1, 4, 3136), (1, 16, 4, 8400), (1, 16, 4, 2100),
        (2, 16, 4, 8400), (1, 21, 64, 64), (1, 4, 56, 56), (1, 2, 128, 128), (4, 4, 16, 16),
    )  # fmt: skip
    yield Kernels("Softmax", [(shape,) for shape in channels], lambda shape: [data(F, *shape)], {"axis": 1})


def _rows_reduced() -> Iterator[Cases]:
    yield from _softmax()
    for name, rows, vectors in (
        ("LayerNormalization", ROWS, 2),
        ("RMSNormalization", ROWS + _TOKENS, 1),
        ("com.microsoft::SimplifiedLayerNormalization", ROWS + _TOKENS, 1),
    ):
        yield Kernels(
            name, rows, lambda r, c, n=vectors: [data(F, 1, r, c), *[weight(F, c)] * n], {"axis": -1, "epsilon": 1e-5}
        )
    yield Kernels("LayerNormalization", ROWS, lambda r, c: [data(F, 1, r, c), weight(F, c)], {"axis": -1})
    for name, rows, vectors in (
        ("com.microsoft::SkipLayerNormalization", ROWS, 3),
        ("com.microsoft::SkipLayerNormalization", ROWS, 2),
        ("com.microsoft::SkipSimplifiedLayerNormalization", ROWS + _TOKENS, 1),
    ):
        yield Kernels(
            name, rows, lambda r, c, n=vectors: [*[data(F, 1, r, c)] * 2, *[weight(F, c)] * n], {"epsilon": 1e-5}
        )
    yield Kernels(
        "InstanceNormalization",
        ((2, 32, 1024), (2, 32, 512), (2, 32, 128), (2, 32, 2048), (1, 64, 3136), (1, 32, 32768)),
        lambda n, c, s: [data(F, n, c, s), weight(F, c), weight(F, c)],
    )
    yield Kernels(
        "GroupNormalization",
        ((2, 32, 32, 32), (2, 64, 16, 32), (2, 128, 8, 32), (1, 320, 64, 32)),
        lambda n, c, s, g: [data(F, n, c, s, s), weight(F, c), weight(F, c)],
        lambda n, c, s, g: {"num_groups": g},
    )
    yield Kernels(
        "BatchNormalization", IMAGES, lambda c, s: [data(F, 1, c, s, s), *[filled(F, 0.5, c)] * 4], {"epsilon": 1e-5}
    )
    yield Kernels(
        "com.microsoft::EmbedLayerNormalization",
        ((1, 128, 768), (8, 384, 768), (1, 64, 256)),
        lambda b, s, c: [
            data("int32", b, s, limit=1000), data("int32", b, s, limit=2), weight(F, 1000, c), weight(F, s, c), weight(F, 2, c),
            weight(F, c), weight(F, c),
        ],
        {"epsilon": 1e-5},
        outputs=2,
    )  # fmt: skip
    for name in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceL1", "ReduceLogSumExp"):
        yield Kernels(name, ROWS, lambda r, c: [data(F, r, c), value("int64", [-1])], {"keepdims": 1})
        yield Kernels(name, ROWS[1:5], lambda r, c: [data(F, r, c), value("int64", [0])], {"keepdims": 1})
        yield Kernels(name, IMAGES, lambda c, s: [data(F, 1, c, s, s), value("int64", [2, 3])], {"keepdims": 1})
        yield Kernels(name, _MATRICES, lambda n, r, c: [data(F, n, r, c), value("int64", [1])], {"keepdims": 1})
    for axis in (0, -1):
        for keeps in (0, 1):
            how = {"axis": axis, "keepdims": keeps}
            yield Kernels("ArgMax", ((4096, 64), (16384, 21), (128, 768), (9216, 4)), lambda r, c: [data(F, r, c)], how)
            images = ((64, 64), (21, 128), (19, 64), (2, 96), (150, 32))
            yield Kernels("ArgMax", images, lambda c, s: [data(F, 1, c, s, s)], {"axis": 1, "keepdims": keeps})
    local = {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    images = ((64, 56), (96, 27), (192, 28), (256, 13), (96, 8))
    yield Kernels("LRN", images, lambda c, s: [data(F, 1, c, s, s)], local)
    yield Kernels("DynamicQuantizeLinear", ROWS, lambda r, c: [data(F, r, c)], outputs=3)


def _pools() -> Iterator[Cases]:
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    for name in POOLS:
        for k in (3, 25):
            along = {"kernel_shape": [k], "pads": [k // 2] * 2, "strides": [1]}
            row = {"kernel_shape": [1, k], "pads": [0, k // 2] * 2, "strides": [1, 1]}
            yield Kernels(name, _SEQUENCES, lambda c, places: [data(F, 1, c, places)], along, opset=18)
            yield Kernels(name, _SEQUENCES, lambda c, places: [data(F, 1, c, 1, places)], row, opset=18)
    for stride in (1, 2):
        more = {**window, "strides": [stride, stride]}
        yield Kernels("MaxPool", IMAGES, lambda c, s: [data(F, 1, c, s, s)], more)
        yield Kernels(  # at opset 19 and above a kernel that is slow, but at the highest level not used for blocks of channels
            "AveragePool", IMAGES, lambda c, s: [data(F, 1, c, s, s)], more, opset=18
        )
    yield Kernels("GlobalAveragePool", IMAGES[2:], lambda c, s: [data(F, 1, c, s, s)])
    for dtype, zero in _SCALE8.items():
        scale = [value(F, 0.02), value(dtype, zero)]
        yield Kernels("MaxPool", IMAGES[:3], lambda c, s, t=dtype: [data(t, 1, c, s, s)], {**window, "strides": [2, 2]})
        yield Kernels(
            "com.microsoft::QLinearGlobalAveragePool",
            IMAGES[2:],
            lambda c, s, t=dtype, q=scale: [data(t, 1, c, s, s), *q, *q],
        )
        yield Kernels(
            "com.microsoft::QLinearAveragePool",
            IMAGES[1:],
            lambda c, s, t=dtype, q=scale: [data(t, 1, c, s, s), *q, *q],
            {**window, "strides": [1, 1]},
        )


def _quantised() -> Iterator[Cases]:
    for dtype, zero in _SCALE8.items():
        q = [value(F, 0.02), value(dtype, zero)]
        sizes = (*ROWS, *_ELEMENTS)
        yield Kernels("QuantizeLinear", sizes, lambda r, c, q=q: [data(F, r, c), *q])
        yield Kernels("DequantizeLinear", sizes, lambda r, c, t=dtype, q=q: [data(t, r, c), *q])
        yield Kernels("DequantizeLinear", sizes[::2], lambda r, c, t=dtype: [data(t, r, c), value(F, 0.02)])
        per_axis = [(768, 768, 1), (768, 3072, 1), (768, 768, 0), (64, 576, 0), (512, 4608, 0), (128, 768, 1)]
        yield Kernels(
            "DequantizeLinear",
            per_axis,
            lambda r, c, axis, t=dtype: [
                weight(t, r, c), filled(F, 0.02, (r, c)[axis]), filled(t, 0, (r, c)[axis]),
            ],
            lambda r, c, axis: {"axis": axis},
        )  # fmt: skip
        yield Kernels(
            "QuantizeLinear",
            per_axis,
            lambda r, c, axis, t=dtype: [data(F, r, c), filled(F, 0.02, (r, c)[axis]), filled(t, 0, (r, c)[axis])],
            lambda r, c, axis: {"axis": axis},
        )
        for name in ("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul"):
            yield Kernels(name, _ELEMENTS, lambda r, c, t=dtype, q=q: [data(t, r, c), *q, data(t, r, c), *q, *q])
            yield Kernels(
                name, IMAGES, lambda c, s, t=dtype, q=q: [data(t, 1, c, s, s), *q, data(t, 1, c, s, s), *q, *q]
            )
            yield Kernels(name, ROWS, lambda r, c, t=dtype, q=q: [data(t, r, c), *q, weight(t, c), *q, *q])
        for name in ("com.microsoft::QLinearSigmoid", "com.microsoft::QLinearLeakyRelu"):
            yield Kernels(name, _ELEMENTS[::2], lambda r, c, t=dtype, q=q: [data(t, r, c), *q, *q])
        yield Kernels(
            "com.microsoft::QLinearSoftmax",
            SCORES,
            lambda h, s, t=dtype, q=q: [data(t, 1, h, s, s), *q, *q],
            {"axis": -1, "opset": 13},
        )
        yield Kernels(
            "com.microsoft::QLinearConcat",
            IMAGES[::2],
            lambda c, s, t=dtype, q=q: [*q, data(t, 1, c, s, s), *q, data(t, 1, c, s, s), *q],
            {"axis": 1},
        )
    yield Kernels("DequantizeLinear", ROWS[::2], lambda r, c: [data("int32", r, c), value(F, 0.02), value("int32", 0)])
    for axis, sizes in ((0, [(128, 768)]), (1, [(1, 768), (1, 4096), (128, 256), (128, 768), (128, 3072), (512, 768)])):
        yield Kernels(  # sums of products, scaled by rows or columns
            "DequantizeLinear",
            sizes,
            lambda r, c, axis=axis: [data("int32", r, c), filled(F, 0.02, (r, c)[axis])],
            {"axis": axis},
        )


OTHERS: tuple[Cases, ...] = (
    *_elementwise(),
    *_rows_reduced(),
    *_pools(),
    *_quantised(),
)
