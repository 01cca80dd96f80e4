"""Constants in half precision that take several steps to compute are rounded once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.interpret import run as interpret


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("filters", [8, 64])
def test_a_batch_norm_enters_a_convolution_with_one_rounding(filters: int, precision: str) -> None:
    rng = np.random.default_rng(0)
    half = np.dtype(precision) if precision == "float16" else np.dtype(ml_dtypes.bfloat16)
    weights = rng.standard_normal((filters, 16, 3, 3)).astype(half)
    gamma, beta, mean = (rng.standard_normal(filters).astype(half) for _ in range(3))
    variance = (rng.random(filters) + 0.5).astype(half)
    b = GraphBuilder()
    x = b.op("Conv", b.input("x", precision, (1, 16, 8, 8)), b.constant(weights))
    y = b.op("BatchNormalization", x, *map(b.constant, (gamma, beta, mean, variance)), epsilon=1e-3)
    result = eqsat.optimize(b.finish({"y": y}), form="flat")
    (node,) = result.program.graph.nodes
    wide = [a.astype(np.float32) for a in (weights, gamma, variance)]
    gain = wide[1] / np.sqrt(wide[2] + np.float32(1e-3))
    expected = (wide[0] * gain.reshape(-1, 1, 1, 1)).astype(half)
    assert np.array_equal(result.program.graph.constants[node.inputs[1]].numpy(), expected)
    assert result.report.verification["verdict"] == "within tolerance"


@pytest.mark.parametrize("numerics", ["exact", "lsb"])
@pytest.mark.parametrize("size", [32, 8192])
def test_integers_are_made_of_what_is_rounded_at_each_step(size: int, numerics: str) -> None:
    """Rounded once a third of them would be others (and are in ONNX Runtime, so that nothing is verified)."""
    b = GraphBuilder()
    numbers = b.constant((np.arange(size) % 500).astype(np.float16))
    third = b.op("Mul", b.op("Mul", numbers, b.constant(0.1, "float16")), b.constant(10 / 3, "float16"))
    z = b.op("Add", b.input("i", "int64", (size,)), b.op("Cast", third, to=7))
    graph = b.finish({"y": b.op("Mul", b.input("x", "float16", (size,)), third), "z": z})
    found = eqsat.optimize(graph, form="flat", numerics=numerics, verify=False).program.graph
    feeds = {"i": np.zeros(size, np.int64), "x": np.ones(size, np.float16)}
    assert np.array_equal(interpret(found, feeds)["z"], interpret(graph, feeds)["z"])


def test_steps_are_rounded_each_where_the_result_has_to_be_equal() -> None:
    b = GraphBuilder()
    numbers = np.linspace(1, 2, 8192).astype(np.float16)
    half = b.op("Mul", b.op("Mul", b.constant(numbers), b.constant(0.1, "float16")), b.constant(0.3, "float16"))
    graph = b.finish({"y": b.op("Mul", b.input("x", "float16", (8192,)), half)})
    steps = numbers * np.float16(0.1) * np.float16(0.3)
    once = (numbers.astype(np.float32) * np.float32(np.float16(0.1)) * np.float32(np.float16(0.3))).astype(np.float16)
    assert not np.array_equal(steps, once)
    for numerics, expected in (("exact", steps), ("lsb", once)):
        (constant,) = eqsat.optimize(graph, form="flat", numerics=numerics).program.graph.constants.values()
        assert np.array_equal(constant.numpy(), expected)


def test_constants_that_an_operator_of_several_outputs_reads_are_rounded_at_each_step() -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    weights = b.op("Mul", b.constant(rng.standard_normal((64, 96)).astype(np.float16)), b.constant(0.3, "float16"))
    first, second = b.op("Split", b.op("Mul", weights, b.constant(0.7, "float16")), outputs=2, axis=1, num_outputs=2)
    x = b.input("x", "float16", (4, 64))
    graph = b.finish({"y": b.op("MatMul", x, first), "z": b.op("MatMul", x, second)})
    assert eqsat.optimize(graph, form="flat").report.verification["verdict"] in ("equal", "within tolerance")
