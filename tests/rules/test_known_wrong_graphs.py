"""Small graphs on which widely used optimizers were seen to compute something else."""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

rng = np.random.default_rng(7)


def array(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def statistics(b: GraphBuilder, channels: int) -> list[str]:
    return [b.constant(v) for v in (array(channels), array(channels), array(channels), np.abs(array(channels)) + 0.1)]


@pytest.mark.parametrize("value", [0.0, -1.0, None])
def test_zero_border_before_max_pool_wins_over_negative_elements(value: float | None) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 6, 6))
    fill = [] if value is None else [b.constant(np.float32(value))]
    padded = b.op("Pad", x, b.constant([0, 0, 1, 1, 0, 0, 1, 1], "int64"), *fill)
    result = optimized(b.finish({"y": b.op("MaxPool", padded, kernel_shape=(3, 3), strides=(2, 2))}))
    assert counts(result) == {"Pad": 1, "MaxPool": 1}


def test_batch_normalization_of_transposed_product_scales_rows() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 4))
    product = b.op("Transpose", b.op("MatMul", x, b.constant(array(4, 4))), perm=(1, 0))
    optimized(b.finish({"y": b.op("BatchNormalization", product, *statistics(b, 4))}))


def test_vector_behind_convolution_lies_along_the_width() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 8, 8))
    y = b.op("Conv", x, b.constant(array(8, 3, 3, 3)), pads=(1, 1, 1, 1))
    assert counts(optimized(b.finish({"y": b.op("Mul", y, b.constant(array(8)))}))) == {"Conv": 1, "Mul": 1}


def test_requantisation_keeps_both_roundings() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (64,))
    for scale, zero in ((0.5, 3), (0.3, -7)):
        parameters = b.constant(np.float32(scale)), b.constant(np.int8(zero))
        x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, *parameters), *parameters)
    result = optimized(b.finish({"y": x}))
    assert counts(result) == {"QuantizeLinear": 2, "DequantizeLinear": 2}


def test_product_with_one_column_is_widened_by_its_bias() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    narrow = b.op("Add", b.op("MatMul", x, b.constant(array(3, 1))), b.constant(array(4)))
    wide = b.op("Add", b.op("MatMul", x, b.constant(array(3, 4))), b.constant(array(1)))
    graph = b.finish({"narrow": narrow, "wide": wide})
    assert str(graph.type_of("narrow")) == "float32[2, 4]"
    optimized(graph)


@pytest.mark.parametrize("biases", [((2, 1), (2, 1)), ((1, 4), (2, 5)), ((1,), (5,)), ((), (2, 5))])
def test_biases_of_any_shape_behind_two_products(biases: tuple[tuple[int, ...], ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    outputs = {}
    for i, (columns, shape) in enumerate(zip((4, 5), biases, strict=True)):
        bias = b.constant(array(*shape))
        outputs[f"y{i}"] = b.op("Add", b.op("MatMul", x, b.constant(array(3, columns))), bias)
    optimized(b.finish(outputs))


@pytest.mark.parametrize("left", [(3,), (2, 3), (2, 2, 3)])
def test_products_with_vectors(left: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", left)
    weights = [array(3), array(3), array(3, 2)]
    optimized(b.finish({f"y{i}": b.op("MatMul", x, b.constant(w)) for i, w in enumerate(weights)}))


def test_product_of_vector_by_expanded_matrix_keeps_its_axes() -> None:
    b = GraphBuilder()
    x, w = b.input("x", "float32", (3,)), b.input("w", "float32", (3, 5))
    one = b.op("MatMul", x, b.op("Unsqueeze", w, b.constant([0], "int64")))
    two = b.op("MatMul", x, b.op("Expand", w, b.constant([2, 3, 5], "int64")))
    optimized(b.finish({"one": one, "two": two}))


def test_weight_shared_by_two_convolutions_is_scaled_for_one() -> None:
    b = GraphBuilder()
    x, z = b.input("x", "float32", (1, 3, 5, 5)), b.input("z", "float32", (1, 3, 5, 5))
    w = b.constant(array(4, 3, 3, 3))
    normalised = b.op("BatchNormalization", b.op("Conv", x, w), *statistics(b, 4))
    result = optimized(b.finish({"y": normalised, "plain": b.op("Conv", z, w)}))
    assert counts(result) == {"Conv": 2}


def test_convolution_that_is_an_output_keeps_its_value() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 5, 5))
    y = b.op("Conv", x, b.constant(array(4, 3, 3, 3)), b.constant(array(4)))
    optimized(b.finish({"conv": y, "y": b.op("BatchNormalization", y, *statistics(b, 4))}))


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4, 3, 3), (1, 1, 3, 3)])
def test_scale_that_is_computed_stays_outside(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x, s = b.input("x", "float32", (1, 3, 5, 5)), b.input("s", "float32", shape)
    y = b.op("Mul", b.op("Conv", x, b.constant(array(4, 3, 3, 3))), b.op("Sigmoid", s))
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1, "Sigmoid": 1, "Mul": 1}


def test_scale_with_spatial_extent_stays_outside() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 5, 5))
    y = b.op("Mul", b.op("Conv", x, b.constant(array(4, 3, 3, 3))), b.constant(array(4, 3, 3)))
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1, "Mul": 1}


def test_negative_scale_behind_relu_stays_behind() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3, 5, 5))
    y = b.op("Relu", b.op("Conv", x, b.constant(array(4, 3, 3, 3))))
    y = b.op("Mul", y, b.constant(-np.abs(array(4, 1, 1)) - 0.1))
    optimized(b.finish({"y": b.op("Conv", y, b.constant(array(2, 4, 1, 1)))}))
