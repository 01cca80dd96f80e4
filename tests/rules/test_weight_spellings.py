"""However the dequantisation of a weight is spelled, the product runs on integers; where it is another function, it does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import DType

Step = tuple[str, float | np.ndarray]
COLUMNS = np.linspace(0.5, 1.5, 8, dtype=np.float32)
SPELLINGS: dict[str, Sequence[Step]] = {
    "factor": [("Mul", 1 / 64)],
    "quotient": [("Div", 64)],
    "factors in a row": [("Mul", 1 / 32), ("Mul", 0.5)],
    "factors in front": [("Mul in front", 1 / 32), ("Mul in front", 0.5)],
    "a summand in front and a quotient": [("Add in front", -3), ("Div", 64)],
    "a quotient and a factor": [("Div", 32), ("Mul", 0.5)],
    "quotients in a row": [("Div", 8), ("Div", 4), ("Div", 2)],
    "zero point and quotient": [("Sub", 3), ("Div", 64)],
    "a summand and quotients": [("Add", -3), ("Div", 32), ("Div", 2)],
    "a number, then the columns": [("Div", 64), ("Mul", COLUMNS)],
    "the columns, then a number": [("Mul", COLUMNS), ("Div", 64)],
    "a zero point, a number, the columns": [("Sub", 3), ("Div", 64), ("Mul", COLUMNS)],
    "a negative scale": [("Div", 64), ("Mul", -1)],
    "the columns twice": [("Div", COLUMNS * 64), ("Mul", COLUMNS[::-1].copy())],
}
OTHERS: dict[str, Sequence[Step]] = {
    "a scale for each row": [("Div", 64), ("Mul", np.linspace(0.5, 1.5, 12, dtype=np.float32)[:, None])],
    "rows and columns": [("Mul", np.linspace(0.5, 1.5, 12, dtype=np.float32)[:, None]), ("Mul", COLUMNS)],
    "half a zero point": [("Sub", 0.5), ("Div", 64)],
}


def product(steps: Sequence[Step], dtype: type = np.int8) -> Graph:
    b = GraphBuilder()
    rng = np.random.default_rng(3)

    def fake(value: str) -> str:
        scale, zero = b.constant(np.float32(1 / 16)), b.constant(np.uint8(128))
        return b.op("DequantizeLinear", b.op("QuantizeLinear", value, scale, zero), scale, zero)

    info = np.iinfo(dtype)
    weight = b.constant(rng.integers(info.min + 1, info.max, (12, 8)).astype(dtype))
    weight = b.op("Cast", weight, to=1)
    for op, number in steps:
        operands = (weight, b.constant(np.asarray(number, np.float32)))
        name, in_front, _ = op.partition(" in front")
        weight = b.op(name, *(operands[::-1] if in_front else operands))
    return b.finish({"y": fake(b.op("MatMul", fake(b.input("x", "float32", (4, 12))), weight))})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_product_runs_on_integers(spelling: str, dtype: type) -> None:
    found = counts(optimized(product(SPELLINGS[spelling], dtype), tolerance=2**-4))
    assert found == {"QuantizeLinear": 1, "QLinearMatMul": 1, "DequantizeLinear": 1}


@pytest.mark.parametrize("spelling", OTHERS)
def test_what_is_no_dequantisation_by_columns_stays_in_float(spelling: str) -> None:
    found = counts(optimized(product(OTHERS[spelling]), tolerance=2**-4))
    assert (found["MatMul"], found.get("QLinearMatMul", 0)) == (1, 0)


def test_weight_that_is_a_multiple_of_its_multiple_ends() -> None:
    b = GraphBuilder()
    third = b.constant(np.float32(1 / 3))
    value = b.op("Cast", b.constant(np.arange(96, dtype=np.int8).reshape(12, 8)), to=1)
    values = [value := b.op(op, value, third) for op in ("Mul", "Div") * 4]
    x = b.input("x", "float32", (4, 12))
    result = optimized(b.finish({f"y{i}": b.op("MatMul", x, v) for i, v in enumerate(values)}))
    assert result.report.stop_reason == "saturated"


# --- weights beside bytes that nobody calls bytes


def _of_four_bits(b: GraphBuilder, integers: np.ndarray, scale: np.ndarray) -> str:
    nibbles = b.constant((integers // 16).astype(DType.INT4.numpy))
    return b.op("DequantizeLinear", nibbles, b.constant(scale.reshape(-1)), axis=0)


def _folded(b: GraphBuilder, integers: np.ndarray, scale: np.ndarray) -> str:
    return b.constant(integers * scale)


def _folded_with_one_scale(b: GraphBuilder, integers: np.ndarray, scale: np.ndarray) -> str:
    return b.constant(integers * scale.reshape(-1)[0])


def _rounded_while_training(b: GraphBuilder, integers: np.ndarray, scale: np.ndarray) -> str:
    """``(n * scale) - least``, as TensorFlow's FakeQuantWithMinMaxVars makes it: off by roundings of the larger of the two."""
    least = np.float32(128) * scale
    return b.constant(((integers + np.float32(128)) * scale - least).astype(np.float32))


def _beside_bytes(weights: Callable[[GraphBuilder, np.ndarray, np.ndarray], str], window: int) -> Graph:
    """A convolution of bytes to bytes, of so many weights that what they are is looked at element by element, or more."""
    b, rng = GraphBuilder(), np.random.default_rng(5)
    scale, zero = b.constant(np.float32(1 / 16)), b.constant(np.uint8(128))
    integers = rng.integers(-127, 128, (16, 24, window, window)).astype(np.float32)
    scales = rng.uniform(0.001, 0.002, (16, 1, 1, 1)).astype(np.float32)
    x = b.input("x", "float32", (1, 24, 8, 8))
    x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero)
    y = b.op("QuantizeLinear", b.op("Conv", x, weights(b, integers, scales)), scale, zero)
    return b.finish({"y": b.op("DequantizeLinear", y, scale, zero)})


@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("weights", [_of_four_bits, _folded, _folded_with_one_scale, _rounded_while_training])
def test_weights_beside_bytes_are_bytes_if_they_may_be(
    weights: Callable[[GraphBuilder, np.ndarray, np.ndarray], str], window: int
) -> None:
    found = counts(optimized(_beside_bytes(weights, window), tolerance=2**-4))
    assert found == {"QuantizeLinear": 1, "QLinearConv": 1, "DequantizeLinear": 1}


def test_weights_that_are_no_multiples_of_a_step_stay_floats() -> None:
    def off_the_grid(b: GraphBuilder, integers: np.ndarray, scale: np.ndarray) -> str:
        weights = integers * scale
        weights[:, 0] *= np.float32(1.001)
        return b.constant(weights)

    assert "Conv" in counts(optimized(_beside_bytes(off_the_grid, 1), tolerance=2**-4))
