"""What TVM's tests of FoldScaleAxis (Relay, v0.19) assert, on our graphs: scales meet the weights of the products around them.

Weights and scales are constants, so that folding shows as operators that are gone; a bias that TVM adds by an operator of its own
is part of our convolution.
"""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

RNG = np.random.default_rng(1)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.0, shape).astype(np.float32)


def image(b: GraphBuilder, channels: int, spatial: int = 2) -> str:
    return b.input("x", "float32", (2, channels, *(6, 7, 5)[:spatial]))


def conv(b: GraphBuilder, x: str, out: int, inner: int, *, spatial: int = 2, group: int = 1) -> str:
    """A convolution with kernels of 3 and padding of 1."""
    w = b.constant(array(out, inner // group, *[3] * spatial))
    return b.op("Conv", x, w, pads=(1,) * (2 * spatial), group=group)


def scale_relu_shift(b: GraphBuilder, x: str, *channel_shape: int) -> str:
    x = b.op("Relu", b.op("Mul", x, b.constant(positive(*channel_shape))))
    return b.op("Add", x, b.constant(array(*channel_shape)))


def scaled_before(spatial: int) -> dict[str, int]:
    """A scale in front of a convolution over that many axes."""
    b = GraphBuilder()
    x = scale_relu_shift(b, image(b, 4, spatial), 4, *[1] * spatial)
    return counts(optimized(b.finish({"y": conv(b, x, 2, 4, spatial=spatial)})))


def test_fold_fwd_simple() -> None:
    assert scaled_before(2) == {"Relu": 1, "Add": 1, "Conv": 1}


def test_fold_fwd_conv3d() -> None:
    assert scaled_before(3) == {"Relu": 1, "Add": 1, "Conv": 1}


def test_fold_fwd_dual_path() -> None:
    """One scaled value feeds two depthwise convolutions with padding."""
    b = GraphBuilder()
    x = b.op("Mul", b.constant(positive(3, 1, 1)), b.input("x", "float32", (2, 3, 4, 10)))
    x = b.op("Sub", b.op("Relu", x), b.constant(array(3, 1, 1)))
    y = b.op("Add", conv(b, x, 3, 3, group=3), conv(b, x, 3, 3, group=3))
    found = counts(optimized(b.finish({"y": y})))
    assert "Mul" not in found
    assert found["Relu"] == 1
    assert found["Conv"] <= 2


def test_fold_fwd_dual_path_in_nhwc() -> None:
    """With the channels last, as Transposes around the convolutions: the scale passes them, and the Relu."""
    b = GraphBuilder()
    x = b.op("Relu", b.op("Mul", b.constant(positive(3)), b.input("x", "float32", (2, 4, 10, 3))))
    paths = [conv(b, b.op("Transpose", x, perm=(0, 3, 1, 2)), 3, 3, group=3) for _ in range(2)]
    y = b.op("Add", *(b.op("Transpose", path, perm=(0, 2, 3, 1)) for path in paths))
    found = counts(optimized(b.finish({"y": y})))
    assert "Mul" not in found
    assert sum(found.values()) <= 6


@pytest.mark.parametrize("activation", ["LeakyRelu", "Relu"])
@pytest.mark.parametrize("scale", ["positive", "negative", "computed"])
def test_fold_fwd_fail(activation: str, scale: str) -> None:
    """The scaled value is used beside the convolution; with Relu and other scales this is `test_fold_fwd_relu_fail`."""
    b = GraphBuilder()
    x = image(b, 4)
    value = positive(4, 1, 1)
    s = (
        b.input("s", "float32", (4, 1, 1))
        if scale == "computed"
        else b.constant(-value if scale == "negative" else value)
    )
    x = b.op("Mul", x, s)
    found = counts(optimized(b.finish({"y": b.op("Add", conv(b, b.op(activation, x), 4, 4), x)})))
    assert found == {"Mul": 1, activation: 1, "Conv": 1, "Add": 1}


@pytest.mark.parametrize("scale", ["negative", "computed"])
def test_fold_fwd_relu_fail(scale: str) -> None:
    """Also where nothing else uses the scaled value: no negative and no unknown factor passes Relu."""
    b = GraphBuilder()
    x = image(b, 4)
    s = b.input("s", "float32", (4, 1, 1)) if scale == "computed" else b.constant(-positive(4, 1, 1))
    found = counts(optimized(b.finish({"y": conv(b, b.op("Relu", b.op("Mul", x, s)), 4, 4)})))
    assert found == {"Mul": 1, "Relu": 1, "Conv": 1}


def test_fold_fwd_let_fail() -> None:
    """TVM gives up at a let binding; ours is a graph, where the second use alone keeps the product."""
    b = GraphBuilder()
    x = scale_relu_shift(b, image(b, 4), 4, 1, 1)
    found = counts(optimized(b.finish({"y": b.op("Add", conv(b, x, 4, 4), x)})))
    assert found == {"Mul": 1, "Relu": 1, "Add": 2, "Conv": 1}


def test_fold_fwd_negative_scale() -> None:
    b = GraphBuilder()
    x = b.op("Mul", image(b, 4), b.constant(-positive(4, 1, 1)))
    assert counts(optimized(b.finish({"y": conv(b, x, 4, 4)}))) == {"Conv": 1}


@pytest.mark.parametrize(("rows", "inner", "columns"), [(2, 4, 3), (3, 5, 4)])
def test_fold_fwd_dense(rows: int, inner: int, columns: int) -> None:
    b = GraphBuilder()
    x = scale_relu_shift(b, b.input("x", "float32", (rows, inner)), inner)
    found = counts(optimized(b.finish({"y": b.op("Gemm", x, b.constant(array(columns, inner)), transB=1)})))
    assert found == {"Relu": 1, "Gemm": 1}


def scaled_behind(spatial: int) -> dict[str, int]:
    """A scale behind a convolution over that many axes."""
    b = GraphBuilder()
    y = b.op("Add", conv(b, image(b, 4, spatial), 8, 4, spatial=spatial), b.constant(array(8, *[1] * spatial)))
    y = b.op("Mul", b.op("Relu", y), b.constant(positive(8, *[1] * spatial)))
    return counts(optimized(b.finish({"y": y})))


def test_fold_bwd_simple() -> None:
    assert scaled_behind(2) == {"Conv": 1, "Relu": 1}


def test_fold_bwd_conv3d() -> None:
    assert scaled_behind(3) == {"Conv": 1, "Relu": 1}


def test_fold_bwd_dual_path() -> None:
    """Two convolutions of one input, added after their activations, then scaled: at most TVM's five operators.

    Merging the two convolutions and keeping the product is as short as folding the scale into both.
    """
    b = GraphBuilder()
    x = image(b, 4)
    y = b.op("Add", *(b.op("Relu", conv(b, x, 8, 4)) for _ in range(2)))
    found = counts(optimized(b.finish({"y": b.op("Mul", y, b.constant(positive(8, 1, 1)))})))
    assert sum(found.values()) <= 5


def test_fold_bwd_dual_path_of_one_weight() -> None:
    """As TVM spells it, with one weight: both branches are the same value."""
    b = GraphBuilder()
    x, w = image(b, 4), b.constant(array(8, 4, 3, 3))
    y = b.op("Add", *(b.op("Relu", b.op("Conv", x, w, pads=(1, 1, 1, 1))) for _ in range(2)))
    found = counts(optimized(b.finish({"y": b.op("Mul", y, b.constant(positive(8, 1, 1)))})))
    assert "Mul" not in found
    assert sum(found.values()) <= 5


def test_fold_bwd_simple_constant() -> None:
    b = GraphBuilder()
    y = b.op("Add", conv(b, image(b, 3), 16, 3), b.constant(array(16, 1, 1)))
    y = b.op("Mul", b.op("Relu", y), b.constant(np.float32(2)))
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1, "Relu": 1}


def test_fold_bwd_dual_consumer() -> None:
    """A scaled convolution feeds two scaled convolutions, all with one weight and one scale."""
    b = GraphBuilder()
    w, s = b.constant(array(4, 4, 3, 3)), b.constant(positive(4, 1, 1))

    def block(x: str) -> str:
        return b.op("Relu", b.op("Mul", b.op("Conv", x, w, pads=(1, 1, 1, 1)), s))

    y = block(image(b, 4))
    found = counts(optimized(b.finish({"y": b.op("Add", block(y), block(y))}), tolerance=1e-4))
    assert "Mul" not in found
    assert sum(found.values()) <= 7


def test_fold_bwd_fail() -> None:
    """The unscaled value is used, too: the product stays."""
    b = GraphBuilder()
    y1 = conv(b, image(b, 4), 4, 4)
    y2 = b.op("Relu", y1)
    y = b.op("Add", b.op("Mul", y1, b.constant(positive(4, 1, 1))), y2)
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1, "Relu": 1, "Mul": 1, "Add": 1}


def test_fold_bwd_fail_of_two_axes() -> None:
    """One branch has channels where the other has rows: a scale of channels folds into one branch at most."""
    b = GraphBuilder()
    x, w = b.input("x", "float32", (4, 4, 6, 7)), b.constant(array(4, 4, 3, 3))
    y1, y2 = (b.op("Relu", b.op("Conv", x, w, pads=(1, 1, 1, 1))) for _ in range(2))
    y = b.op("Add", y1, b.op("Transpose", y2, perm=(1, 0, 2, 3)))
    found = counts(optimized(b.finish({"y": b.op("Mul", y, b.constant(positive(4, 1, 1)))})))
    assert found == {"Conv": 1, "Relu": 1, "Transpose": 1, "Add": 1, "Mul": 1}


@pytest.mark.parametrize("scale", ["negative", "computed"])
def test_fold_bwd_relu_fail(scale: str) -> None:
    b = GraphBuilder()
    y = b.op("Relu", conv(b, image(b, 4), 4, 4))
    s = b.input("s", "float32", (4, 1, 1)) if scale == "computed" else b.constant(-positive(4, 1, 1))
    assert counts(optimized(b.finish({"y": b.op("Mul", y, s)}))) == {"Conv": 1, "Relu": 1, "Mul": 1}


def test_fold_bwd_negative_scale() -> None:
    b = GraphBuilder()
    y = b.op("Mul", conv(b, image(b, 4), 8, 4), b.constant(-positive(8, 1, 1)))
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1}


@pytest.mark.parametrize(("rows", "inner", "columns"), [(2, 4, 3), (3, 5, 4)])
def test_fold_bwd_dense(rows: int, inner: int, columns: int) -> None:
    b = GraphBuilder()
    y = b.op("Gemm", b.input("x", "float32", (rows, inner)), b.constant(array(columns, inner)), transB=1)
    y = b.op("Mul", b.op("Relu", b.op("Add", y, b.constant(array(columns)))), b.constant(positive(columns)))
    assert counts(optimized(b.finish({"y": y}))) == {"Gemm": 1, "Relu": 1}


def test_fold_bwd_bias_add() -> None:
    b = GraphBuilder()
    w, bias = b.constant(array(4, 4, 3, 3)), b.constant(array(4))
    y = b.op("Relu", b.op("Conv", image(b, 4), w, bias, pads=(1, 1, 1, 1)))
    y = b.op("Mul", y, b.constant(positive(4, 1, 1)))
    assert counts(optimized(b.finish({"y": y}))) == {"Conv": 1, "Relu": 1}
