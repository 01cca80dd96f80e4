"""What TVM's tests of CombineParallelDense, -Conv2D, -BatchMatmul (Relay, v0.19) and -Matmul (Relax) assert, on our graphs.

Weights are constants unless a test says otherwise, so that concatenating them costs nothing. The optimised graphs have as many
operators as TVM's or fewer: two products are as short as one product and a cut, so of two branches alone it is asserted that
the merged form is offered, and that nothing longer is chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

RNG = np.random.default_rng(2)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def dense(b: GraphBuilder, x: str, units: int, inner: int) -> str:
    return b.op("Gemm", x, b.constant(array(units, inner)), transB=1)


def finish(b: GraphBuilder, outputs: list[str]) -> dict[str, int]:
    return counts(optimized(b.finish({f"y{i}": y for i, y in enumerate(outputs)})))


def merged(b: GraphBuilder, outputs: list[str], most: int, rule: str = "merge_matmuls_of_one_input") -> bool:
    """Whether the merged form is offered and at most ``most`` operators are chosen."""
    result = optimized(b.finish({f"y{i}": y for i, y in enumerate(outputs)}))
    return rule in result.report.rules and sum(counts(result).values()) <= most


# --- dense ---------------------------------------------------------------------------------------------------------------


def test_combine_parallel_dense() -> None:
    """The third has another number of columns: TVM's batch leaves it out, one wider product takes it in."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    assert finish(b, [dense(b, x, n, 4) for n in (5, 5, 6, 5)]) == {"MatMul": 1, "Split": 1}


def test_combine_parallel_dense_of_computed_weights() -> None:
    """With weights that are inputs, concatenating them costs one operator, as TVM's stack does."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    outputs = [b.op("Gemm", x, b.input(f"w{i}", "float32", (n, 4)), transB=1) for i, n in enumerate((5, 5, 6, 5))]
    assert sum(finish(b, outputs).values()) <= 3


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_combine_parallel_dense_biasadd(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    assert merged(b, [b.op("Add", dense(b, x, 5, 4), b.constant(array(*shape))) for _ in range(2)], 2)


def test_combine_parallel_dense_biasadd_scale_reshape() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    outputs = []
    for scale in (0.5, 0.25):
        y = b.op("Add", dense(b, x, 5, 4), b.constant(array(5)))
        y = b.op("Mul", y, b.constant([scale], "float32"))
        outputs.append(b.op("Reshape", y, b.constant([1, 1, 15], "int64")))
    assert finish(b, outputs) == {"Gemm": 1, "Split": 1}


def test_combine_parallel_dense_flat() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    assert finish(b, [dense(b, x, n, 4) for n in (5, 10, 15)]) == {"MatMul": 1, "Split": 1}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((), ()),
        ((1,), (1,)),
        ((5,), (1,)),
        ((1,), (10,)),
        ((3, 1), (3, 1)),
        ((3, 5), (3, 10)),
        ((3, 1), (3, 10)),
        ((3, 5), (3, 1)),
    ],
)
def test_combine_parallel_dense_flat_biasadd(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    outputs = [
        b.op("Add", dense(b, x, 5, 4), b.constant(array(*first))),
        b.op("Add", dense(b, x, 10, 4), b.constant(array(*second))),
    ]
    assert merged(b, outputs, 2)


@pytest.mark.parametrize(
    ("first", "second"), [((9, 3, 5), (9, 3, 10)), ((9, 3, 5), (9, 3, 1)), ((9, 3, 1), (9, 3, 10))]
)
def test_combine_parallel_dense_flat_biasadd_of_more_axes(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """The sum has more axes than the product: two products with their sums, or TVM's form."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    outputs = [
        b.op("Add", dense(b, x, 5, 4), b.constant(array(*first))),
        b.op("Add", dense(b, x, 10, 4), b.constant(array(*second))),
    ]
    assert merged(b, outputs, 4)


def test_combine_parallel_dense_flat_biasadd_scale_reshape() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    outputs = []
    for units, scale in ((5, 0.5), (10, 0.25)):
        y = b.op("Add", dense(b, x, units, 4), b.constant(array(units)))
        y = b.op("Mul", y, b.constant([scale], "float32"))
        outputs.append(b.op("Reshape", y, b.constant([1, 1, 3 * units], "int64")))
    assert finish(b, outputs) == {"Gemm": 1, "Split": 1}


def test_combine_parallel_dense_expand_dims() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 32))
    outputs = [b.op("Unsqueeze", dense(b, x, n, 32), b.constant([2], "int64")) for n in (16, 8)]
    assert merged(b, outputs, 2)


# --- conv2d --------------------------------------------------------------------------------------------------------------


def conv(b: GraphBuilder, x: str, out: int, inner: int, kernel: int = 1) -> str:
    return b.op("Conv", x, b.constant(array(out, inner, kernel, kernel)))


@pytest.mark.parametrize("channels", [(4, 4, 4, 4), (4, 8, 4, 7)])
def test_combine_parallel_conv2d(channels: tuple[int, ...]) -> None:
    """The third has another kernel, and a pool reads the same input."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 6, 6))
    outputs = [conv(b, x, n, 4, 3 if i == 2 else 1) for i, n in enumerate(channels)]
    outputs.append(b.op("MaxPool", x, kernel_shape=(1, 1)))
    found = finish(b, outputs)
    assert found["Conv"] == 2
    assert found["Split"] == 1
    assert sum(found.values()) <= 4


def test_combine_parallel_conv2d_scale_relu() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 6, 6))
    outputs = [b.op("Relu", b.op("Mul", conv(b, x, n, 4), b.constant(array(n, 1, 1)))) for n in (4, 8)]
    outputs[1] = b.op("Add", outputs[1], b.constant(array(8, 1, 1)))
    assert finish(b, outputs) == {"Conv": 1, "Relu": 1, "Split": 1, "Add": 1}


def test_combine_parallel_conv2d_scale() -> None:
    """TVM does not combine two scales of one element; as constants they fold. Where launches are all that counts the convolutions
    are one; for ONNX Runtime two are as many kernels, without a Split that takes the image out of their layout."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 6, 6))
    outputs = [b.op("Mul", conv(b, x, n, 4), b.constant(array(1))) for n in (4, 8)]
    assert merged(b, outputs, 2, "merge_convs_of_one_input")
    graph = b.finish({f"y{i}": y for i, y in enumerate(outputs)})
    assert counts(optimized(graph, target="launch-count")) == {"Conv": 1, "Split": 1}


def test_combine_parallel_conv2d_scale_computed() -> None:
    """With scales that are inputs, the merged convolution is offered, and the scales stay."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 6, 6))
    outputs = [b.op("Mul", conv(b, x, n, 4), b.input(f"s{n}", "float32", (1,))) for n in (4, 8)]
    assert merged(b, outputs, 4, "merge_convs_of_one_input")


def test_combine_parallel_conv2d_multiple_blocks() -> None:
    """Four blocks of two equal branches, joined: each block is one convolution at most."""
    b = GraphBuilder()
    y, w = b.input("x", "float32", (1, 4, 6, 6)), b.constant(array(2, 4, 1, 1))
    for _ in range(4):
        y = b.op("Concat", b.op("Conv", y, w), b.op("Conv", y, w), axis=1)
    found = finish(b, [y])
    assert found["Conv"] == 4
    assert "Split" not in found


def test_combine_parallel_conv2d_multiple_blocks_of_two_weights() -> None:
    """As above with two weights, so that no branch is a copy: what is cut and joined again is not cut."""
    b = GraphBuilder()
    y = b.input("x", "float32", (1, 4, 6, 6))
    for _ in range(4):
        y = b.op("Concat", conv(b, y, 2, 4), conv(b, y, 2, 4), axis=1)
    assert finish(b, [y]) == {"Conv": 4}


# --- batch_matmul --------------------------------------------------------------------------------------------------------


def batched(b: GraphBuilder) -> list[str]:
    x = b.input("x", "float32", (2, 3, 4))
    return [b.op("MatMul", x, b.constant(array(2, 4, 5))) for _ in range(3)]


def test_combine_parallel_batch_matmul() -> None:
    b = GraphBuilder()
    assert finish(b, batched(b)) == {"MatMul": 1, "Split": 1}


def test_combine_parallel_batch_matmul_biasadd() -> None:
    b = GraphBuilder()
    outputs = [b.op("Add", y, b.constant(array(5))) for y in batched(b)]
    assert finish(b, outputs) == {"MatMul": 1, "Split": 1, "Add": 1}


# --- Relax: matmul -------------------------------------------------------------------------------------------------------


def parallel(
    lhs: tuple[int, ...] = (6, 4), bias: Any = (0, 0, 0), activation: Any = ("", "", "")
) -> tuple[GraphBuilder, list[str]]:
    """One input times three constant matrices, some biased and some activated."""
    b = GraphBuilder()
    x = b.input("x", "float32", lhs)
    outputs = []
    for biased, function in zip(bias, activation, strict=True):
        y = b.op("MatMul", x, b.constant(array(4, 5)))
        y = b.op("Add", y, b.constant(array(5))) if biased else y
        outputs.append(b.op(function, y) if function else y)
    return b, outputs


def products(found: dict[str, int]) -> int:
    return found.get("MatMul", 0) + found.get("Gemm", 0)


@pytest.mark.parametrize("lhs", [(6, 4), (2, 6, 4)])
def test_simple(lhs: tuple[int, ...]) -> None:
    """Joined along the axis of the cut, nothing is cut; along another one, one cut and one joint remain."""
    b, outputs = parallel(lhs)
    found = counts(optimized(b.finish({"y": b.op("Concat", *outputs, axis=1)})))
    assert found == ({"MatMul": 1} if len(lhs) == 2 else {"MatMul": 1, "Split": 1, "Concat": 1})


@pytest.mark.parametrize("bias", [(1, 1, 1), (1, 0, 1)])
def test_bias(bias: tuple[int, ...]) -> None:
    b, outputs = parallel((2, 6, 4), bias)
    found = finish(b, outputs)
    assert products(found) == 1
    assert sum(found.values()) <= (3 if all(bias) else 4)


@pytest.mark.parametrize(
    ("activation", "most"),
    [(("Relu", "Relu", "Relu"), 3), (("Gelu", "Relu", "Relu"), 5), (("Relu", "", ""), 3)],
)
def test_activation(activation: tuple[str, ...], most: int) -> None:
    b, outputs = parallel((2, 6, 4), activation=activation)
    found = finish(b, outputs)
    assert products(found) == 1
    assert sum(found.values()) <= most


@pytest.mark.parametrize(
    ("bias", "activation", "most"),
    [
        ((1, 1, 1), ("Relu", "Relu", "Relu"), 4),
        ((1, 1, 1), ("Relu", "", "Relu"), 5),
        ((1, 0, 1), ("Relu", "", "Relu"), 6),
    ],
)
def test_bias_activation(bias: tuple[int, ...], activation: tuple[str, ...], most: int) -> None:
    b, outputs = parallel((2, 6, 4), bias, activation)
    found = finish(b, outputs)
    assert products(found) == 1
    assert sum(found.values()) <= most


def test_rhs_batched() -> None:
    """Weights of equal batches join; the plain matrix and the one of four axes stay by themselves."""
    b = GraphBuilder()
    x = b.input("x", "float32", (6, 4))
    assert merged(b, [b.op("MatMul", x, b.constant(array(*s, 4, 5))) for s in ((2,), (), (2,), (3, 4))], 4)


def test_rhs_batched_incompatible() -> None:
    """TVM gives up where one batch differs; the three that agree join here."""
    b = GraphBuilder()
    x = b.input("x", "float32", (6, 4))
    found = finish(b, [b.op("MatMul", x, b.constant(array(n, 4, 5))) for n in (2, 3, 2, 2)])
    assert products(found) <= 2


def test_multiple_combine() -> None:
    b = GraphBuilder()
    x1, x2 = (b.input(n, "float32", (2, 6, 4)) for n in ("x1", "x2"))
    outputs = [b.op("MatMul", x1, b.constant(array(4, 5))) for _ in range(3)]
    outputs += [b.op("Add", b.op("MatMul", x2, b.constant(array(4, 5))), b.constant(array(5))) for _ in range(2)]
    assert finish(b, outputs) == {"MatMul": 2, "Add": 1, "Split": 2}


def of_widths(*widths: int | str) -> int:
    """Products left of one input by weights of these widths, which are inputs."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 6, 4))
    weights = [b.input(f"w{i}", "float32", (4, n)) for i, n in enumerate(widths)]
    return products(finish(b, [b.op("MatMul", x, w) for w in weights]))


def test_combine_matmul_of_static_and_dynamic_shapes() -> None:
    """A weight of unknown width: right, merged or not."""
    assert of_widths(5, "M") <= 2


def test_combine_matmul_of_dynamic_and_static_shapes() -> None:
    assert of_widths("M", 5) <= 2


def test_limit_one_dynamic_shape_in_combined_matmul() -> None:
    """Two weights of unknown width beside three constants: the constants join."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 6, 4))
    weights = [b.input(n, "float32", (4, n.upper())) for n in ("m", "n")]
    weights += [b.constant(array(4, 5)) for _ in range(3)]
    assert products(finish(b, [b.op("MatMul", x, w) for w in weights])) == 3
