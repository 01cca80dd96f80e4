"""Products between quantised values whose weights are floats: ONNX Runtime does not round the weights of what is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import LEVELS, Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

SHAPES: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
    "Conv": (("n", 8, 4, 4), (16, 8, 1, 1)),
    "ConvTranspose": (("n", 8, 4, 4), (8, 16, 2, 2)),
    "Gemm": (("n", 8), (8, 16)),
    "MatMul": (("n", 8), (8, 16)),
    "MatMul of known rows": ((2, 4, 8), (8, 16)),
}


def _graph(name: str, *, stored: bool = True, signed: bool = False) -> Graph:
    """A product between pairs of QuantizeLinear and DequantizeLinear, of ``signed`` bytes without a zero point or unsigned ones;
    weights of 8 bits if they are ``stored`` so."""
    rng = np.random.default_rng(0)
    op = name.split(maxsplit=1)[0]
    shape, form = SHAPES[name]
    b = GraphBuilder()

    def paired(value: Any, scale: float, zero: int) -> Any:
        point = b.constant(np.int8(0) if signed else np.uint8(zero))
        parameters = b.constant(np.float32(scale)), point
        return b.op("DequantizeLinear", b.op("QuantizeLinear", value, *parameters), *parameters[: 1 if signed else 2])

    x = paired(b.input("x", "float32", shape), 0.03, 120)
    bias = b.constant(rng.normal(size=16).astype(np.float32))
    if stored:
        weights = b.constant(rng.integers(-100, 100, form).astype(np.int8))
        weights = b.op("DequantizeLinear", weights, b.constant(np.float32(0.0123)))
    else:
        weights = b.constant(rng.normal(size=form).astype(np.float32))
    found = b.op(op, x, weights) if op == "MatMul" else b.op(op, x, weights, bias)
    return b.finish({"y": paired(b.op("Add", found, bias) if op == "MatMul" else found, 0.05, 128)})


def _results(graph: Graph, level: str) -> np.ndarray:
    declared: Any = graph.type_of("x")
    shape = [3 if d == "n" else d for d in declared.shape]
    feeds = {"x": np.random.default_rng(1).normal(size=shape).astype(declared.dtype.numpy)}
    return np.asarray(Session(to_model(graph).SerializeToString(), level).run(feeds)["y"])


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("signed", [False, True])
def test_products_of_floats_are_right_at_every_level(name: str, form: str, signed: bool) -> None:
    graph = _graph(name, signed=signed)
    program = eqsat.optimize(graph, form=form, numerics="exact").program.graph
    for level in LEVELS:
        np.testing.assert_array_equal(_results(program, level), _results(graph, "disable"), err_msg=level)


def test_who_writes_weights_of_floats_gets_what_the_runtime_makes_of_them() -> None:
    graph = _graph("Conv", stored=False)
    program = eqsat.optimize(graph, numerics="exact", verify=False).program.graph
    scales = [program.constants[n.inputs[1]].size for n in program.nodes if n.op == "DequantizeLinear"]
    assert scales == [1, 1]


def _half() -> Graph:
    """A convolution in half precision, whose bias is 130,000 times the scale of its sums: in half precision that is infinite."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()

    def paired(value: Any, scale: float) -> Any:
        parameters = b.constant(np.float16(scale)), b.constant(np.int8(0))
        return b.op("DequantizeLinear", b.op("QuantizeLinear", value, *parameters), *parameters)

    x = paired(b.input("x", "float16", ("n", 64, 4, 4)), 0.001)
    weights = b.constant(rng.integers(-100, 100, (128, 64, 1, 1)).astype(np.int8))
    weights = b.op("DequantizeLinear", weights, b.constant(np.float16(0.0013)))
    found = b.op("Conv", x, weights, b.constant((0.17 * rng.choice([-1, 1], 128)).astype(np.float16)))
    return b.finish({"y": paired(b.op("Relu", found), 0.002)})


def test_weights_that_two_read_the_product_of_stay_floats_where_one_is_left() -> None:
    """ONNX Runtime rounds the weights of a product that one QuantizeLinear reads: here one of two equal ones."""
    b = GraphBuilder()
    scale, zero = b.constant(np.float32(0.03)), b.constant(np.uint8(120))
    x = b.op("DequantizeLinear", b.op("QuantizeLinear", b.input("x", "float32", (3, 8)), scale, zero), scale, zero)
    y = b.op("Gemm", x, b.constant(np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)))
    graph = b.finish({name: b.op("QuantizeLinear", y, scale, zero) for name in ("y", "z")})
    program = eqsat.optimize(graph, numerics="exact").program.graph
    for level in LEVELS:
        np.testing.assert_array_equal(_results(program, level), _results(graph, "disable"), err_msg=level)


def test_a_bias_in_half_precision_does_not_overflow() -> None:
    graph = _half()
    program = eqsat.optimize(graph, only_rules=(), verify=False).program.graph
    for level in LEVELS:
        found, expected = (_results(g, at).astype(np.float32) for g, at in ((program, level), (graph, "disable")))
        np.testing.assert_allclose(found, expected, atol=0.0021, err_msg=level)
