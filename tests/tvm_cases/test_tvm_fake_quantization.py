"""What TVM's tests of FakeQuantizationToInteger (Relay, v0.19) assert, on our graphs: an operator between DQ and Q.

TVM asserts that the pass changes the graph and that values agree, some within one quantum. Here no float operator may be left
where the target has an integer one; where it has none, the graph must still be right (`docs/tvm_cases.md` lists which).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import SCALES, counts, feeds_of

import eqsat
from eqsat.cost.model import FormulaModel
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.operators.byte_table import BYTE_TABLE

RNG = np.random.default_rng(4)
Q, DQ = "QuantizeLinear", "DequantizeLinear"
FLOATS = frozenset((Q, DQ))

BYTES = pytest.mark.parametrize("dtype", ["int8", "uint8"])

Build = Callable[[GraphBuilder, str], str]


def pair(b: GraphBuilder, scale: Any, zero: Any, dtype: str) -> list[str]:
    scale = np.asarray(scale, np.float32)
    return [b.constant(scale), b.constant(np.broadcast_to(np.asarray(zero, dtype), scale.shape).copy())]


def dq(b: GraphBuilder, q: str, scale: Any, zero: Any = 0, dtype: str = "int8", axis: int = 1) -> str:
    return b.op(DQ, q, *pair(b, scale, zero, dtype), axis=axis)


def weight(b: GraphBuilder, *shape: int, dtype: str = "int8") -> str:
    info = np.iinfo(dtype)
    return b.constant(RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype))


def quantised(graph: Graph, quanta: int = 0, **options: Any) -> dict[str, int]:
    """Operators of the optimised graph, whose integers differ from the original's by ``quanta`` at most."""
    result = eqsat.optimize(graph, verify=False, **dict[str, Any](form="flat") | options)
    for _, feeds in zip(SCALES, feeds_of(graph), strict=True):
        expected, found = run(graph, feeds), run(result.program.graph, feeds)
        for name, value in expected.items():
            assert value.dtype == found[name].dtype
            assert np.abs(value.astype(np.float64) - found[name].astype(np.float64)).max(initial=0) <= quanta, name
    return counts(result)


def between(
    build: Build,
    shape: tuple[int, ...] = (1, 3, 6, 8),
    dtype: str = "int8",
    inner: tuple[Any, Any] = (2.0, 0),
    outer: tuple[Any, Any] | None = None,
    quanta: int = 0,
    **options: Any,
) -> dict[str, int]:
    """``Q(build(DQ(x)))`` with the parameters ``inner`` and ``outer``, equal unless given; optimised."""
    b = GraphBuilder()
    y = build(b, dq(b, b.input("x", dtype, shape), *inner, dtype))
    return quantised(b.finish({"y": b.op(Q, y, *pair(b, *(outer or inner), dtype), axis=1)}), quanta, **options)


# --- products ------------------------------------------------------------------------------------------------------------


def product(
    build: Callable[[GraphBuilder, str, str], str],
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    dtype: str,
    scale: Any = 0.5,
    axis: int = 0,
) -> dict[str, int]:
    b = GraphBuilder()
    x = dq(b, b.input("x", "int8", shape), 2.0)
    y = build(b, x, dq(b, weight(b, *weights), scale, axis=axis))
    return quantised(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, dtype))}), 1, cost=float_products_are_dear())


def integer(found: dict[str, int]) -> bool:
    """Whether no product of floats is left."""
    return not found.keys() & {"Conv", "Gemm", "MatMul"}


def float_products_are_dear() -> Any:
    return FormulaModel(
        "integers",
        "kernels",
        lambda w, _: 100.0 if set(w.operators) & {"Conv", "Gemm", "MatMul"} else 1.0,
        "products of floats are dear",
    )


def offers_integer_convolution(graph: Graph) -> bool:
    """Whether an integer convolution is among the spellings, and what is chosen agrees within a quantum."""
    quantised(graph, 1)
    return eqsat.optimize(graph, verify=False, form="flat").report.rules.keys() >= {"convolve_integers"}


# --- convolutions: offered -------------------------------------------------------------------------------------------------


def convolution(dtype: str, scale: Any) -> Graph:
    """Where a requantised sum can be off by no more than a quantum: at TVM's scale of 2 nearly all sums saturate, and the
    bound does not hold."""
    b = GraphBuilder()
    w = dq(b, weight(b, 4, 3, 5, 5), scale, axis=0)
    y = b.op("Conv", dq(b, b.input("x", "int8", (1, 3, 8, 8)), 0.01), w)
    return b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, dtype))})


@BYTES
def test_fake_quantize_conv(dtype: str) -> None:
    assert offers_integer_convolution(convolution(dtype, 0.5))


@BYTES
def test_fake_quantize_conv_per_channel(dtype: str) -> None:
    assert offers_integer_convolution(convolution(dtype, RNG.uniform(0.1, 1.0, 4)))


def transposed(bias: Callable[[GraphBuilder], str] | None = None, scale: Any = 0.5) -> Graph:
    b = GraphBuilder()
    x = b.op("Transpose", dq(b, b.input("x", "int8", (1, 8, 8, 3)), 0.01), perm=(0, 3, 1, 2))
    y = b.op("Conv", x, dq(b, weight(b, 4, 3, 3, 3), np.asarray(scale, np.float32), axis=0))
    if bias is not None:
        y = b.op("Add", y, b.op("Reshape", bias(b), ints(b, 4, 1, 1)))
    return b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, "int8"))})


def int32_bias(scale: Any) -> Callable[[GraphBuilder], str]:
    def build(b: GraphBuilder) -> str:
        integers = b.constant(RNG.integers(-3000, 3000, 4).astype(np.int32))
        return b.op(DQ, integers, b.constant(np.asarray(scale, np.float32)), axis=0)

    return build


def test_fake_transpose_quantize_conv() -> None:
    assert offers_integer_convolution(transposed())


def test_fake_transpose_quantize_conv_bias_add() -> None:
    assert offers_integer_convolution(transposed(int32_bias(1.0)))
    assert offers_integer_convolution(transposed(lambda b: b.constant(RNG.random(4).astype(np.float32))))


def test_fake_transpose_quantize_conv_bias_add_per_channel() -> None:
    scale = RNG.uniform(0.45, 0.55, 4).astype(np.float32)
    assert offers_integer_convolution(transposed(int32_bias(0.01 * scale), scale))


def test_fake_transpose_quantize_conv_bias_add_mismatch() -> None:
    """The bias has another scale than the product."""
    assert offers_integer_convolution(transposed(int32_bias(2.0)))


@BYTES
def test_fake_quantize_transposeconv(dtype: str) -> None:
    """ONNX has no integer transposed convolution: right, and no longer than before."""
    found = product(lambda b, x, w: b.op("ConvTranspose", x, w), (1, 3, 6, 6), (3, 4, 3, 3), dtype)
    assert found["ConvTranspose"] == 1
    assert sum(found.values()) <= 3


# --- other products --------------------------------------------------------------------------------------------------------


def dense(dtype: str, scale: Any) -> dict[str, int]:
    return product(lambda b, x, w: b.op("Gemm", x, w, transB=1), (8, 12), (16, 12), dtype, scale)


@BYTES
def test_fake_quantize_dense(dtype: str) -> None:
    assert integer(dense(dtype, 0.5))


@BYTES
def test_fake_quantize_dense_per_channel(dtype: str) -> None:
    assert integer(dense(dtype, RNG.uniform(0.1, 1.0, 16)))


def test_fake_quantize_dense_bias() -> None:
    b = GraphBuilder()
    scale = RNG.uniform(0.1, 1.0, 16).astype(np.float32)
    w = dq(b, weight(b, 16, 12), scale, axis=0)
    bias = b.constant(RNG.integers(-128, 127, 16).astype(np.int32))
    y = b.op("Gemm", dq(b, b.input("x", "int8", (8, 12)), 2.0), w, transB=1)
    y = b.op("Add", y, b.op(DQ, bias, b.constant(2 * scale), axis=0))
    found = quantised(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, "int8"))}), 1, cost=float_products_are_dear())
    assert integer(found)


@BYTES
def test_fake_quantize_batch_matmul(dtype: str) -> None:
    found = product(lambda b, x, w: b.op("MatMul", x, w), (1, 8, 12), (1, 12, 16), dtype)
    assert integer(found)


# --- data movement and what compares: nothing but the operator itself is left, on the integers --------------------------------


def ints(b: GraphBuilder, *values: int) -> str:
    return b.constant(list(values), "int64")


def moved(build: Build, dtype: str, *left: str, shape: tuple[int, ...] = (1, 3, 6, 8)) -> None:
    assert between(build, shape, dtype, inner=(2.0, 14 if dtype == "int8" else 114)).keys() == set(left)


@BYTES
def test_fake_quantize_maxpool(dtype: str) -> None:
    moved(lambda b, x: b.op("MaxPool", x, kernel_shape=(3, 3)), dtype, "MaxPool")


@BYTES
def test_fake_quantize_reshape(dtype: str) -> None:
    moved(lambda b, x: b.op("Reshape", x, ints(b, 1, 3, -1)), dtype)


@BYTES
def test_fake_quantize_expand_dims(dtype: str) -> None:
    moved(lambda b, x: b.op("Unsqueeze", x, ints(b, 1)), dtype)


@BYTES
def test_fake_quantize_squeeze(dtype: str) -> None:
    moved(lambda b, x: b.op("Squeeze", x, ints(b, 0)), dtype)


@BYTES
def test_fake_quantize_strided_slice(dtype: str) -> None:
    moved(lambda b, x: b.op("Slice", x, ints(b, 0, 0), ints(b, 1, 4), ints(b, 1, 3)), dtype, "Slice")


@BYTES
def test_fake_quantize_split(dtype: str) -> None:
    moved(lambda b, x: b.op("Split", x, ints(b, 4, 4), outputs=2, axis=3)[0], dtype, "Split")
    moved(lambda b, x: b.op("Split", x, ints(b, 1, 2, 2, 3), outputs=4, axis=3)[1], dtype, "Split")


@BYTES
def test_fake_quantize_batch_flatten(dtype: str) -> None:
    moved(lambda b, x: b.op("Flatten", x), dtype)


@BYTES
def test_fake_quantize_transpose_reshape(dtype: str) -> None:
    """TVM's batch of one only changes places of extents; more than one moves elements."""

    def build(b: GraphBuilder, x: str) -> str:
        return b.op("Reshape", b.op("Transpose", x, perm=(1, 0, 2, 3)), ints(b, 3, -1))

    moved(build, dtype)
    moved(build, dtype, "Transpose", shape=(2, 3, 6, 8))


@BYTES
def test_fake_quantize_take(dtype: str) -> None:
    moved(lambda b, x: b.op("Gather", x, b.constant(RNG.integers(0, 6, 37)), axis=2), dtype, "Gather")


@BYTES
def test_fake_quantize_depth_to_space(dtype: str) -> None:
    moved(lambda b, x: b.op("DepthToSpace", x, blocksize=2), dtype, "DepthToSpace", shape=(1, 8, 3, 4))
    moved(lambda b, x: b.op("SpaceToDepth", x, blocksize=2), dtype, "SpaceToDepth")


@BYTES
def test_fake_quantize_pad(dtype: str) -> None:
    moved(lambda b, x: b.op("Pad", x, ints(b, 0, 0, 0, 0, 0, 0, 1, 0)), dtype, "Pad")


def test_fake_quantize_pad_with_float_min() -> None:
    """A border of the least float between two quantisers: the least integer."""
    b = GraphBuilder()
    p = pair(b, 1.0, 0, "uint8")
    y = b.op(DQ, b.op(Q, b.input("x", "float32", (1, 9, 4)), *p), *p)
    y = b.op("Pad", y, ints(b, 0, 0, 0, 0, 1, 0), b.constant(np.float32(-3.40282e38)))
    assert quantised(b.finish({"y": b.op(Q, y, *p)})) == {Q: 1, "Pad": 1}


@BYTES
def test_fake_quantize_relu(dtype: str) -> None:
    moved(lambda b, x: b.op("Relu", x), dtype, "Clip")


def test_fake_quantize_relu_per_channel() -> None:
    channels = ([1.0, 2.0, 3.0], [96, 114, 128])
    assert between(lambda b, x: b.op("Relu", x), dtype="uint8", inner=channels) == {"Max": 1}
    assert between(lambda b, x: b.op("Relu", x), dtype="uint8", inner=(channels[0], 114)) == {"Clip": 1}


def clipped(b: GraphBuilder, x: str) -> str:
    return b.op("Clip", x, b.constant(np.float32(0)), b.constant(np.float32(6)))


@BYTES
def test_fake_quantize_clip(dtype: str) -> None:
    moved(clipped, dtype, "Clip")


def test_fake_quantize_clip_per_channel() -> None:
    found = between(clipped, dtype="uint8", inner=([1.0, 2.0, 3.0], [96, 114, 128]))
    assert found == {"Max": 1, "Min": 1}


@BYTES
def test_fake_quantize_max_min(dtype: str) -> None:
    """Behind a DepthToSpace, over all axes and over one; the order of all elements does not depend on their places."""
    for op in ("ReduceMax", "ReduceMin"):
        for axes in ((), (1,)):

            def build(b: GraphBuilder, x: str, op: str = op, axes: tuple[int, ...] = axes) -> str:
                return b.op(op, b.op("DepthToSpace", x, blocksize=2), *([ints(b, *axes)] if axes else []))

            found = between(build, (1, 8, 3, 4), dtype, inner=(2.0, 0))
            assert found.keys() == {op, "DepthToSpace"}


@BYTES
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_fake_quantize_topk(axis: int, largest: int, dtype: str) -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.op("TopK", x, ints(b, 5), outputs=2, axis=axis, largest=largest)[0]

    moved(build, dtype, "TopK", shape=(20, 10))


# --- one operator of one variable: a table where the target has one ---------------------------------------------------------


def tabulated(build: Build, *fused: str) -> None:
    """On an accelerator one table; for ONNX Runtime ``fused`` where it has that, else what it was, and never longer."""
    for dtype in ("int8", "uint8"):
        given: Any = {"dtype": dtype, "inner": (0.05, 3), "outer": (0.02, 5), "quanta": 1}
        assert between(build, **given, target="tensorrt-like") == {BYTE_TABLE: 1}
        plain = between(build, **given)
        assert plain.get(Q, 0) <= 1
        assert plain.get(DQ, 0) <= 1
        assert sum(plain.values()) <= 6
        if fused:
            assert between(build, **given, form="onnxruntime", cost="kernels").keys() == set(fused)


def number(b: GraphBuilder, value: float) -> str:
    return b.constant(np.float32(value))


def at_least_one(b: GraphBuilder, x: str) -> str:
    """Where roots and logarithms have a value."""
    return b.op("Add", b.op("Relu", x), number(b, 1))


def test_sqrt() -> None:
    tabulated(lambda b, x: b.op("Sqrt", b.op("Relu", x)))


def test_rsqrt() -> None:
    tabulated(lambda b, x: b.op("Reciprocal", b.op("Sqrt", at_least_one(b, x))))


def test_exp() -> None:
    tabulated(lambda b, x: b.op("Exp", x))


def test_erf() -> None:
    tabulated(lambda b, x: b.op("Erf", x))


def test_sigmoid() -> None:
    tabulated(lambda b, x: b.op("Sigmoid", x), "com.microsoft::QLinearSigmoid")


def test_tanh() -> None:
    tabulated(lambda b, x: b.op("Tanh", x))


def test_log() -> None:
    tabulated(lambda b, x: b.op("Log", at_least_one(b, x)))


def test_fake_quantize_abs() -> None:
    tabulated(lambda b, x: b.op("Abs", x))


def test_fake_quantize_leaky_relu() -> None:
    tabulated(lambda b, x: b.op("LeakyRelu", x, alpha=0.1), "com.microsoft::QLinearLeakyRelu")


@pytest.mark.parametrize(("op", "value"), [("Add", 1), ("Sub", 1), ("Mul", 1.5), ("Min", 1), ("Max", 1)])
def test_fake_quantize_binary_const(op: str, value: float) -> None:
    tabulated(lambda b, x: b.op(op, x, number(b, value)))


def test_fake_quantize_subtract_different_output_zp() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.op("Transpose", b.op("Sub", x, number(b, 0.5)), perm=(0, 3, 1, 2))

    given: Any = {"shape": (1, 6, 6, 3), "dtype": "uint8", "inner": (0.1, 0), "outer": (0.2, 128), "quanta": 1}
    assert between(build, **given, target="tensorrt-like") == {BYTE_TABLE: 1, "Transpose": 1}
    assert sum(between(build, **given).values()) <= 4


# --- averages and the like: one kernel of ONNX Runtime, or floats --------------------------------------------------------------


def averaged(build: Build, *fused: str, shape: tuple[int, ...] = (1, 3, 6, 8)) -> None:
    """For ONNX Runtime ``fused``; elsewhere right, and no longer than before."""
    for dtype in ("int8", "uint8"):
        given: Any = {"shape": shape, "dtype": dtype, "inner": (0.05, 3), "outer": (0.02, 5), "quanta": 1}
        assert sum(between(build, **given).values()) <= 3
        if fused:
            assert between(build, **given, form="onnxruntime", cost="kernels").keys() == set(fused)


def test_fake_quantize_avgpool() -> None:
    averaged(lambda b, x: b.op("AveragePool", x, kernel_shape=(3, 3)), "com.microsoft::QLinearAveragePool")


def test_fake_quantize_global_avg_pool() -> None:
    averaged(lambda b, x: b.op("GlobalAveragePool", x), "com.microsoft::QLinearGlobalAveragePool")


def test_fake_quantize_adaptive_avgpool1d() -> None:
    """To one element; and to all of them, where nothing but the quantisation is left."""
    averaged(lambda b, x: b.op("GlobalAveragePool", x), "com.microsoft::QLinearGlobalAveragePool", shape=(1, 3, 48))
    tabulated(lambda b, x: x)


def test_fake_quantize_mean() -> None:
    averaged(lambda b, x: b.op("ReduceMean", x))


def test_fake_quantize_image_resize_bilinear() -> None:
    averaged(lambda b, x: b.op("Resize", x, None, None, ints(b, 1, 3, 4, 4), mode="linear"))


def test_fake_quantize_softmax() -> None:
    averaged(lambda b, x: b.op("Softmax", x, axis=1))
    averaged(lambda b, x: b.op("Softmax", x, axis=-1), "com.microsoft::QLinearSoftmax")


# --- several inputs -------------------------------------------------------------------------------------------------------


def binary(op: str, scales: list[Any], **options: Any) -> dict[str, int]:
    b = GraphBuilder()
    parts = [dq(b, b.input(n, "int8", (1, 3, 4, 5)), s, 2) for n, s in zip("pq", scales, strict=True)]
    outer = 20.0 if op == "Mul" else 0.1
    return quantised(b.finish({"y": b.op(Q, b.op(op, *parts), *pair(b, outer, 1, "int8"))}), 1, **options)


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Min", "Max"])
def test_fake_quantize_binary(op: str) -> None:
    """Sums and products are kernels of ONNX Runtime; Min and Max run on integers of one scale where there are tables."""
    assert sum(binary(op, [0.1, 0.2]).values()) <= 4
    if op in ("Add", "Mul"):
        assert binary(op, [0.1, 0.2], form="onnxruntime", cost="kernels") == {f"com.microsoft::QLinear{op}": 1}
    if op in ("Min", "Max"):
        assert binary(op, [0.1, 0.2], target="tensorrt-like") == {BYTE_TABLE: 2, op: 1}


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Min", "Max"])
def test_fake_quantize_binary_per_channel(op: str) -> None:
    """No kernel has a scale for each channel: right, and no longer."""
    assert sum(binary(op, [RNG.uniform(1, 5, 3) for _ in range(2)]).values()) <= 4


def test_fake_quantize_concat() -> None:
    """Four scales joined under a fifth, which is one of them."""

    def graph() -> Graph:
        b = GraphBuilder()
        parts = [dq(b, b.input(f"x{i}", "int8", (1, 4)), i + 0.5) for i in range(4)]
        return b.finish({"y": b.op(Q, b.op("Concat", *parts, axis=1), *pair(b, 3.5, 0, "int8"))})

    assert sum(quantised(graph(), 1).values()) <= 6
    assert quantised(graph(), 1, target="tensorrt-like") == {BYTE_TABLE: 3, "Concat": 1}
    assert quantised(graph(), 1, form="onnxruntime", cost="kernels") == {"com.microsoft::QLinearConcat": 1}


def test_fq_avg_pool_conv2d() -> None:
    """TVM rounds the averages to integers; here the convolution keeps them."""
    b = GraphBuilder()
    x = b.op("AveragePool", dq(b, b.input("x", "uint8", (1, 4, 8, 8)), 0.64, 2, "uint8"), kernel_shape=(3, 3))
    y = b.op("Conv", x, dq(b, weight(b, 8, 4, 1, 1, dtype="uint8"), 0.5, 10, "uint8", axis=0))
    found = quantised(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, "uint8"))}), 1)
    assert sum(found.values()) <= 4


# --- without a quantiser behind (quantisation-aware training) ----------------------------------------------------------------


def before_the_product(b: GraphBuilder, *, reshaped: bool = False) -> str:
    """An int8 product by a dequantised weight."""
    x = dq(b, b.input("x", "int8", (1, 2, 4)), 2.0)
    if reshaped:
        x = b.op("Reshape", x, ints(b, 1, 4, 2))
    return b.op("MatMul", x, dq(b, weight(b, 1, 2 if reshaped else 4, 4), 6.0))


def is_integer_product(b: GraphBuilder, y: str) -> bool:
    return integer(quantised(b.finish({"y": y}), 1, cost=float_products_are_dear()))


def test_fq_qat_positive_single() -> None:
    b = GraphBuilder()
    assert is_integer_product(b, before_the_product(b))


def test_fq_qat_op_positive_part() -> None:
    b = GraphBuilder()
    assert is_integer_product(b, b.op("Erf", b.op("Add", before_the_product(b), number(b, 1))))


def test_fq_qat_positive_couple() -> None:
    b = GraphBuilder()
    assert is_integer_product(b, b.op("Erf", before_the_product(b, reshaped=True)))


def test_fq_qat_positive_nothing_to_do() -> None:
    b = GraphBuilder()
    y = b.op("Add", before_the_product(b), number(b, 1))
    assert is_integer_product(b, b.op(Q, y, *pair(b, 1.0, 0, "int8")))


def test_fq_qat_negative_all() -> None:
    """A sum before the product: nothing becomes an integer product."""
    b = GraphBuilder()
    w = b.op("Add", dq(b, b.input("w", "int8", (1, 2, 4)), 6.0), b.constant(np.float32(1)))
    y = b.op("Erf", b.op("MatMul", dq(b, b.input("x", "int8", (1, 4, 2)), 2.0), w))
    assert quantised(b.finish({"y": y}), 0)["MatMul"] == 1


def test_fq_positive_single_arg_part() -> None:
    b = GraphBuilder()
    y = b.op("Reshape", dq(b, b.input("x", "int8", (1, 2, 4)), 2.0), ints(b, 1, 4, 2))
    assert quantised(b.finish({"y": b.op("Erf", y)})) == {DQ: 1, "Erf": 1}


def test_fq_qat_intermediate_infertype() -> None:
    b = GraphBuilder()
    first, second = pair(b, 17.0, 0, "int8"), pair(b, 10.0, 0, "int8")
    y = b.op(DQ, b.op(Q, b.input("x", "float32", (1, 2, 4)), *first), *first)
    y = b.op(DQ, b.op(Q, b.op("Reshape", y, ints(b, 1, 4, 2)), *second), *second)
    y = b.op("MatMul", y, dq(b, weight(b, 1, 2, 4), 4.0, 9))
    found = quantised(b.finish({"y": b.op("Add", y, b.constant(np.float32(5)))}), 1, cost=float_products_are_dear())
    assert integer(found)
