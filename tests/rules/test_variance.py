"""Layer normalisations with a variance taken in one pass, as JAX exports them."""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder

rng = np.random.default_rng(9)


def number(b: GraphBuilder, value: float) -> str:
    return b.constant(np.float32(value))


def normalised(b: GraphBuilder, clamp: str, gain: str, *, second: bool = False) -> str:
    """``second``: the mean that is squared is that of another value."""
    x, axis = b.input("x", "float32", (4, 6, 16)), b.constant(np.array([-1]))
    mean, squares = b.op("ReduceMean", x, axis), b.op("ReduceMean", b.op("Mul", x, x), axis)
    other = b.op("ReduceMean", b.op("Abs", x), axis) if second else mean
    variance = b.op("Sub", squares, b.op("Mul", other, other))
    if clamp == "Max":
        variance = b.op("Max", variance, number(b, 0))
    elif clamp:
        variance = b.op(clamp, variance)
    root = b.op("Sqrt", b.op("Add", variance, number(b, 1e-2)))
    centred, factor = b.op("Sub", x, mean), b.constant(rng.normal(size=16).astype(np.float32))
    if gain == "quotient":
        scaled = b.op("Mul", b.op("Div", centred, root), factor)
    else:
        inverse = b.op("Reciprocal", root) if gain == "reciprocal" else b.op("Div", number(b, 1), root)
        scaled = b.op("Mul", centred, b.op("Mul", inverse, factor))
    return b.op("Add", scaled, b.constant(rng.normal(size=16).astype(np.float32)))


@pytest.mark.parametrize("clamp", ["", "Max", "Relu"])
@pytest.mark.parametrize("gain", ["quotient", "reciprocal", "one divided"])
def test_variance_in_one_pass_is_that_of_layer_normalization(clamp: str, gain: str) -> None:
    b = GraphBuilder()
    assert counts(optimized(b.finish({"y": normalised(b, clamp, gain)}))) == {"LayerNormalization": 1}


@pytest.mark.parametrize("clamp", ["", "Relu"])
def test_mean_of_another_value_is_none(clamp: str) -> None:
    b = GraphBuilder()
    assert "LayerNormalization" not in counts(optimized(b.finish({"y": normalised(b, clamp, "quotient", second=True)})))


def test_clamped_variance_does_not_lose_its_clamp() -> None:
    """Without the clamp rounding could make it negative, and its root NaN."""
    b = GraphBuilder()
    x, axis = b.input("x", "float32", (4, 6)), b.constant(np.array([1]))
    mean = b.op("ReduceMean", x, axis)
    variance = b.op("Sub", b.op("ReduceMean", b.op("Mul", x, x), axis), b.op("Mul", mean, mean))
    assert "Relu" in counts(optimized(b.finish({"y": b.op("Relu", variance)})))


@pytest.mark.parametrize("symbolic", [False, True])
def test_flax_drops_the_axes_of_means_and_puts_them_back(symbolic: bool) -> None:
    """As JAX exports it: sums times one over their number, clamped, reshaped and expanded to what they are."""
    b = GraphBuilder()
    x, axis = b.input("x", "float32", ("n" if symbolic else 4, 6, 16)), b.constant(np.array([-1]))
    kept = b.constant(np.array([4, 6, 1]))
    if symbolic:
        first = b.op("Slice", b.op("Shape", x), b.constant(np.array([0])), b.constant(np.array([1])))
        kept = b.op("Concat", first, b.constant(np.array([6, 1])), axis=0)

    def mean(value: str) -> str:
        return b.op("Mul", b.op("ReduceSum", value, axis, keepdims=0), number(b, 1 / 16))

    def spread(value: str) -> str:
        return b.op("Expand", b.op("Reshape", value, kept), kept)

    centre = mean(x)
    variance = b.op("Max", number(b, 0), b.op("Sub", mean(b.op("Mul", x, x)), b.op("Mul", centre, centre)))
    inverse = b.op("Reciprocal", b.op("Sqrt", b.op("Add", spread(variance), number(b, 1e-6))))
    gain, shift = (b.constant(rng.normal(size=16).astype(np.float32)) for _ in range(2))
    y = b.op("Add", b.op("Mul", b.op("Sub", x, spread(centre)), b.op("Mul", inverse, gain)), shift)
    assert counts(optimized(b.finish({"y": y}))) == {"LayerNormalization": 1}
