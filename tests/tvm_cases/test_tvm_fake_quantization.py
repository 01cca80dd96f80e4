"""What TVM's tests of FakeQuantizationToInteger (Relay, v0.19) assert, on our graphs: an operator between DQ and Q.

TVM asserts that the pass changes the graph and that values agree, some within one quantum. Here no float operator may be left
where we have an integer one; where we have none, the graph must still be right (`docs/tvm_cases.md` lists which).
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

RNG = np.random.default_rng(4)
Q, DQ = "QuantizeLinear", "DequantizeLinear"
FLOATS = frozenset((Q, DQ))

Build = Callable[[GraphBuilder, str], str]


def pair(b: GraphBuilder, scale: Any, zero: int, dtype: str) -> list[str]:
    scale = np.asarray(scale, np.float32)
    return [b.constant(scale), b.constant(np.full(scale.shape, zero, dtype))]


def dq(b: GraphBuilder, q: str, scale: Any, zero: int = 0, dtype: str = "int8", axis: int = 1) -> str:
    return b.op(DQ, q, *pair(b, scale, zero, dtype), axis=axis)


def weight(b: GraphBuilder, *shape: int, dtype: str = "int8") -> str:
    info = np.iinfo(dtype)
    return b.constant(RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype))


def quantised(graph: Graph, quanta: int = 0, **options: Any) -> dict[str, int]:
    """Operators of the optimised graph, whose integers differ from the original's by ``quanta`` at most."""
    result = eqsat.optimize(graph, verify=False, **options)
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
    inner: tuple[Any, int] = (2.0, 0),
    outer: tuple[Any, int] | None = None,
    quanta: int = 0,
) -> dict[str, int]:
    """``Q(build(DQ(x)))`` with the parameters ``inner`` and ``outer``, equal unless given; optimised."""
    b = GraphBuilder()
    y = build(b, dq(b, b.input("x", dtype, shape), *inner, dtype))
    return quantised(b.finish({"y": b.op(Q, y, *pair(b, *(outer or inner), dtype), axis=1)}), quanta)


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
    return eqsat.optimize(graph, verify=False).report.rules["convolve_integers"]["matches"] > 0


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [0, 4])
def test_fake_quantize_conv(channels: int, dtype: str) -> None:
    """With a scale for each channel this is `test_fake_quantize_conv_per_channel`.

    Offered where a requantised sum can be off by no more than a quantum: at TVM's scale of 2 nearly all sums saturate, and
    the bound does not hold.
    """
    scale = RNG.uniform(0.1, 1.0, channels) if channels else 0.5
    b = GraphBuilder()
    w = dq(b, weight(b, 4, 3, 5, 5), scale, axis=0)
    y = b.op("Conv", dq(b, b.input("x", "int8", (1, 3, 8, 8)), 0.01), w)
    assert offers_integer_convolution(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, dtype))}))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_fake_quantize_transposeconv(dtype: str) -> None:
    """ONNX has no integer transposed convolution: right, and no longer than before."""
    found = product(lambda b, x, w: b.op("ConvTranspose", x, w), (1, 3, 6, 6), (3, 4, 3, 3), dtype)
    assert found["ConvTranspose"] == 1
    assert sum(found.values()) <= 3


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [0, 16])
def test_fake_quantize_dense(channels: int, dtype: str) -> None:
    """With a scale for each column this is `test_fake_quantize_dense_per_channel`."""
    scale = RNG.uniform(0.1, 1.0, channels) if channels else 0.5
    found = product(lambda b, x, w: b.op("Gemm", x, w, transB=1), (8, 12), (16, 12), dtype, scale)
    assert integer(found)


def test_fake_quantize_dense_bias() -> None:
    b = GraphBuilder()
    scale = RNG.uniform(0.1, 1.0, 16).astype(np.float32)
    w = dq(b, weight(b, 16, 12), scale, axis=0)
    bias = b.constant(RNG.integers(-128, 127, 16).astype(np.int32))
    y = b.op("Gemm", dq(b, b.input("x", "int8", (8, 12)), 2.0), w, transB=1)
    y = b.op("Add", y, b.op(DQ, bias, b.constant(2 * scale), axis=0))
    found = quantised(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, "int8"))}), 1, cost=float_products_are_dear())
    assert integer(found)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_fake_quantize_batch_matmul(dtype: str) -> None:
    found = product(lambda b, x, w: b.op("MatMul", x, w), (1, 8, 12), (1, 12, 16), dtype)
    assert integer(found)


@pytest.mark.parametrize("bias", ["none", "constant", "int32", "per channel", "mismatch"])
def test_fake_transpose_quantize_conv(bias: str) -> None:
    """`..._bias_add`, `..._bias_add_per_channel`, `..._bias_add_mismatch`: a bias of several scales."""
    b = GraphBuilder()
    x = b.op("Transpose", dq(b, b.input("x", "int8", (1, 8, 8, 3)), 0.01), perm=(0, 3, 1, 2))
    scale = RNG.uniform(0.45, 0.55, 4).astype(np.float32) if bias == "per channel" else np.float32(0.5)
    y = b.op("Conv", x, dq(b, weight(b, 4, 3, 3, 3), scale, axis=0))
    if bias != "none":
        added = b.constant(RNG.random(4).astype(np.float32))
        if bias != "constant":
            factor = {"int32": 1.0, "per channel": 0.01 * scale, "mismatch": 2.0}[bias]
            integers = b.constant(RNG.integers(-3000, 3000, 4).astype(np.int32))
            added = b.op(DQ, integers, b.constant(np.asarray(factor, np.float32)), axis=0)
        y = b.op("Add", y, b.op("Reshape", added, b.constant([4, 1, 1], "int64")))
    assert offers_integer_convolution(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, "int8"))}))


# --- data movement: nothing but the operator itself is left ------------------------------------------------------------------


def ints(b: GraphBuilder, *values: int) -> str:
    return b.constant(list(values), "int64")


MOVEMENT: dict[str, tuple[Build, set[str]]] = {
    "maxpool": (lambda b, x: b.op("MaxPool", x, kernel_shape=(3, 3)), {"MaxPool"}),
    "reshape": (lambda b, x: b.op("Reshape", x, ints(b, 1, 3, -1)), set()),
    "expand_dims": (lambda b, x: b.op("Unsqueeze", x, ints(b, 1)), set()),
    "squeeze": (lambda b, x: b.op("Squeeze", x, ints(b, 0)), set()),
    "strided_slice": (lambda b, x: b.op("Slice", x, ints(b, 0, 0), ints(b, 1, 4), ints(b, 1, 3)), {"Slice"}),
    "split": (lambda b, x: b.op("Split", x, ints(b, 4, 4), outputs=2, axis=3)[0], {"Split"}),
    "split_unevenly": (lambda b, x: b.op("Split", x, ints(b, 1, 2, 2, 3), outputs=4, axis=3)[1], {"Split"}),
    "batch_flatten": (lambda b, x: b.op("Flatten", x), set()),
    "transpose_reshape": (
        lambda b, x: b.op("Reshape", b.op("Transpose", x, perm=(1, 0, 2, 3)), ints(b, 3, -1)),
        {"Transpose"},
    ),
    "relu": (lambda b, x: b.op("Relu", x), {"Clip"}),
    "pad": (lambda b, x: b.op("Pad", x, ints(b, 0, 0, 0, 0, 0, 0, 1, 0)), {"Pad"}),
    "max": (lambda b, x: b.op("ReduceMax", x), {"ReduceMax"}),
    "min": (lambda b, x: b.op("ReduceMin", x), {"ReduceMin"}),
    "max_axis": (lambda b, x: b.op("ReduceMax", x, ints(b, 1)), {"ReduceMax"}),
    "min_axis": (lambda b, x: b.op("ReduceMin", x, ints(b, 1)), {"ReduceMin"}),
    "depth_to_space": (lambda b, x: b.op("SpaceToDepth", x, blocksize=2), {"SpaceToDepth"}),
    "take": (lambda b, x: b.op("Gather", x, b.constant(RNG.integers(0, 6, 37)), axis=2), {"Gather"}),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", sorted(MOVEMENT))
def test_fake_quantize_moved(name: str, dtype: str) -> None:
    """TVM's `test_fake_quantize_<name>`, `test_fake_quantize_max_min`: the operator runs on the integers."""
    build, left = MOVEMENT[name]
    assert between(build, dtype=dtype, inner=(2.0, 14 if dtype == "int8" else 114)).keys() <= left


# --- one operator of one variable: a table, or what it was ----------------------------------------------------------------


UNARY: dict[str, Build] = {
    "sqrt": lambda b, x: b.op("Sqrt", b.op("Relu", x)),
    "rsqrt": lambda b, x: b.op("Reciprocal", b.op("Sqrt", b.op("Add", b.op("Relu", x), b.constant(np.float32(1))))),
    "exp": lambda b, x: b.op("Exp", x),
    "erf": lambda b, x: b.op("Erf", x),
    "sigmoid": lambda b, x: b.op("Sigmoid", x),
    "tanh": lambda b, x: b.op("Tanh", x),
    "log": lambda b, x: b.op("Log", b.op("Add", b.op("Relu", x), b.constant(np.float32(1)))),
    "abs": lambda b, x: b.op("Abs", x),
    "clip": lambda b, x: b.op("Clip", x, b.constant(np.float32(0)), b.constant(np.float32(6))),
    "leaky_relu": lambda b, x: b.op("LeakyRelu", x, alpha=0.1),
    "mean": lambda b, x: b.op("ReduceMean", x),
    "avgpool": lambda b, x: b.op("AveragePool", x, kernel_shape=(3, 3)),
    "adaptive_avgpool1d": lambda b, x: b.op("GlobalAveragePool", x),
    "image_resize_bilinear": lambda b, x: b.op("Resize", x, None, None, ints(b, 1, 3, 4, 4), mode="linear"),
    "softmax": lambda b, x: b.op("Softmax", x, axis=1),
    "binary_const_add": lambda b, x: b.op("Add", x, b.constant(np.float32(1))),
    "binary_const_subtract": lambda b, x: b.op("Sub", x, b.constant(np.float32(1))),
    "binary_const_multiply": lambda b, x: b.op("Mul", x, b.constant(np.float32(1.5))),
    "binary_const_minimum": lambda b, x: b.op("Min", x, b.constant(np.float32(1))),
    "binary_const_maximum": lambda b, x: b.op("Max", x, b.constant(np.float32(1))),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", sorted(UNARY))
def test_fake_quantize_unary(name: str, dtype: str) -> None:
    """TVM's tests of that name. We have no integer kernel for them: equal within a quantum, and never longer."""
    found = between(UNARY[name], dtype=dtype, inner=(0.05, 3), outer=(0.02, 5), quanta=1)
    assert found.get(Q, 0) <= 1
    assert found.get(DQ, 0) <= 1
    assert sum(found.values()) <= 6


@pytest.mark.parametrize("name", ["clip", "relu"])
def test_fake_quantize_per_channel(name: str) -> None:
    """`test_fake_quantize_clip_per_channel`, `test_fake_quantize_relu_per_channel`."""
    build = UNARY["clip"] if name == "clip" else MOVEMENT["relu"][0]
    found = between(build, dtype="uint8", inner=([1.0, 2.0, 3.0], 114))
    assert sum(found.values()) <= 3


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_fake_quantize_topk(axis: int, largest: int) -> None:
    found = between(
        lambda b, x: b.op("TopK", x, ints(b, 5), outputs=2, axis=axis, largest=largest)[0], (20, 10), quanta=0
    )
    assert sum(found.values()) <= 3


# --- several inputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub", "Min", "Max"])
@pytest.mark.parametrize("channels", [False, True])
def test_fake_quantize_binary(op: str, channels: bool) -> None:
    """With scales for each channel this is `test_fake_quantize_binary_per_channel`."""
    b = GraphBuilder()
    scales = [RNG.uniform(1, 5, 3) for _ in range(2)] if channels else [0.1, 0.2]
    parts = [dq(b, b.input(n, "int8", (1, 3, 4, 5)), s, 2) for n, s in zip("pq", scales, strict=True)]
    outer = 20.0 if op == "Mul" else 0.1
    found = quantised(b.finish({"y": b.op(Q, b.op(op, *parts), *pair(b, outer, 1, "int8"))}), 1)
    assert sum(found.values()) <= 4


def test_fake_quantize_concat() -> None:
    """Four scales joined under a fifth: right, and no longer."""
    b = GraphBuilder()
    parts = [dq(b, b.input(f"x{i}", "int8", (1, 4)), i + 0.5) for i in range(4)]
    found = quantised(b.finish({"y": b.op(Q, b.op("Concat", *parts, axis=1), *pair(b, 3.5, 0, "int8"))}), 1)
    assert sum(found.values()) <= 6


def test_fake_quantize_subtract_different_output_zp() -> None:
    def build(b: GraphBuilder, x: str) -> str:
        return b.op("Transpose", b.op("Sub", x, b.constant(np.float32(0.5))), perm=(0, 3, 1, 2))

    found = between(build, (1, 6, 6, 3), "uint8", (0.1, 0), (0.2, 128), quanta=1)
    assert sum(found.values()) <= 4


def test_fake_quantize_pad_with_float_min() -> None:
    """A border of the least float between two quantisers: it saturates."""
    b = GraphBuilder()
    p = pair(b, 1.0, 0, "uint8")
    y = b.op(DQ, b.op(Q, b.input("x", "float32", (1, 9, 4)), *p), *p)
    y = b.op("Pad", y, ints(b, 0, 0, 0, 0, 1, 0), b.constant(np.float32(-3.40282e38)))
    found = quantised(b.finish({"y": b.op(Q, y, *p)}))
    assert sum(found.values()) <= 4


def test_fq_avg_pool_conv2d() -> None:
    b = GraphBuilder()
    x = b.op("AveragePool", dq(b, b.input("x", "uint8", (1, 4, 8, 8)), 0.64, 2, "uint8"), kernel_shape=(3, 3))
    y = b.op("Conv", x, dq(b, weight(b, 8, 4, 1, 1, dtype="uint8"), 0.5, 10, "uint8", axis=0))
    found = quantised(b.finish({"y": b.op(Q, y, *pair(b, 1.0, 0, "uint8"))}), 1)
    assert sum(found.values()) <= 4


# --- without a quantiser behind (quantisation-aware training) ----------------------------------------------------------------


@pytest.mark.parametrize("behind", ["single", "op_positive_part", "couple", "nothing_to_do"])
def test_fq_qat_positive(behind: str) -> None:
    """`test_fq_qat_positive_single`, `..._couple`, `..._nothing_to_do`, `test_fq_qat_op_positive_part`: an integer product."""
    b = GraphBuilder()
    x = dq(b, b.input("x", "int8", (1, 2, 4)), 2.0)
    if behind == "couple":
        x = b.op("Reshape", x, ints(b, 1, 4, 2))
    inner = 2 if behind == "couple" else 4
    y = b.op("MatMul", x, dq(b, weight(b, 1, inner, 4), 6.0))
    if behind in ("op_positive_part", "nothing_to_do"):
        y = b.op("Add", y, b.constant(np.float32(1)))
    if behind == "nothing_to_do":
        y = b.op(Q, y, *pair(b, 1.0, 0, "int8"))
    elif behind != "single":
        y = b.op("Erf", y)
    assert integer(quantised(b.finish({"y": y}), 1, cost=float_products_are_dear()))


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
