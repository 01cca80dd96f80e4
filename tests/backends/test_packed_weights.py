"""Language models with weights of few bits: products by them stand side by side, take biases, and stay what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.operators.matmul_nbits import MATMUL_NBITS

WIDTH, BLOCK = 96, 32


class _Packed:
    """Products by random packed weights in a graph that is being built."""

    def __init__(self, b: GraphBuilder, *, dtype: str = "float32", **how: Any) -> None:
        self.b, self.dtype = b, dtype
        self.how = {"bits": 4, "level": 4, "zeros": False, **how}
        self.rng = np.random.default_rng(5)

    def product(self, x: str, columns: int, **how: Any) -> str:
        how = {**self.how, **how}
        count, bits = WIDTH // BLOCK, how["bits"]
        sizes = {"w": (columns, count, BLOCK * bits // 8), "z": (columns, -(-count * bits // 8))}
        weight, zeros = (self.rng.integers(0, 256, s).astype(np.uint8) for s in sizes.values())
        scales = self.rng.uniform(0.01, 0.02, (columns, count)).astype(self.dtype)
        parts = [weight, scales, *([zeros] if how["zeros"] else [])]
        return self.b.op(
            "MatMulNBits", x, *map(self.b.constant, parts), domain="com.microsoft", K=WIDTH, N=columns, bits=bits,
            block_size=BLOCK, accuracy_level=how["level"],
        )  # fmt: skip

    def bias(self, x: str, columns: int) -> str:
        return self.b.op("Add", x, self.b.constant(self.rng.normal(size=columns).astype(self.dtype)))


def _layer(rows: Any = 3, *, biased: bool = False, dtype: str = "float32", **how: Any) -> Graph:
    """Three products of one value, at times with biases behind, and a gate beside another two."""
    b = GraphBuilder()
    x = b.input("x", dtype, (2, rows, WIDTH))
    packed = _Packed(b, dtype=dtype, **how)
    parts = [packed.product(x, n) for n in (64, 32, 32)]
    if biased:
        parts = [packed.bias(part, n) for part, n in zip(parts, (64, 32, 32), strict=True)]
    gate, up = (packed.product(x, 48) for _ in range(2))
    gated = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up)
    names = ("q", "k", "v")
    return load_onnx(to_model(b.finish({**dict(zip(names, parts, strict=True)), "y": gated})))


def _counts(graph: Graph) -> dict[str, int]:
    keys = [n.op for n in graph.nodes]
    return {key: keys.count(key) for key in ("MatMulNBits", "Split", "Add")}


def _runs(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As people run it: weights packed for the kernel, whose rows are rounded to 8 bits at level 4."""
    return Session(to_model(graph).SerializeToString(), "all", prepack=True).run(feeds)


def _feeds(dtype: str = "float32", rows: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(6).normal(size=(2, rows, WIDTH)).astype(dtype)}


@pytest.mark.parametrize("form", ["onnxruntime", "flat"])
@pytest.mark.parametrize("rows", [3, "rows"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 4])
def test_products_of_one_value_are_one_product(level: int, bits: int, zeros: bool, rows: Any, form: str) -> None:
    graph = _layer(rows, level=level, bits=bits, zeros=zeros)
    result = eqsat.optimize(graph, form=form, cost="kernels")
    assert _counts(result.program.graph)["MatMulNBits"] == 1
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    found, expected = _runs(result.program.graph, _feeds()), _runs(graph, _feeds())
    for name in "qkv":
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("cost", ["kernels", "measured"])
def test_biases_behind_products_enter_the_wide_one(cost: str) -> None:
    graph = _layer(biased=True, zeros=True)
    result = eqsat.optimize(graph, cost=cost)
    assert _counts(result.program.graph)["Add"] == 0
    found, expected = _runs(result.program.graph, _feeds()), _runs(graph, _feeds())
    for name in "qkv":
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "factor", [np.float32(0.22), np.linspace(0.5, 2, 40, dtype=np.float32)], ids=["one", "for each column"]
)
@pytest.mark.parametrize("level", [0, 4])
def test_factors_behind_products_enter_the_scales_of_the_weights(level: int, factor: np.ndarray) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, WIDTH))
    product = _Packed(b, level=level, zeros=True).bias(_Packed(b, level=level, zeros=True).product(x, 40), 40)
    graph = load_onnx(to_model(b.finish({"y": b.op("Mul", product, b.constant(factor))})))
    result = eqsat.optimize(graph, cost="kernels")
    assert dict(result.report.operators_after) == {"com.microsoft::MatMulNBits": 1}
    found, expected = _runs(result.program.graph, _feeds()), _runs(graph, _feeds())
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("other", [{"level": 0}, {"bits": 8}, {"zeros": True}])
def test_products_of_different_precision_stay_apart(other: dict[str, Any]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, WIDTH))
    packed = _Packed(b)
    graph = b.finish({"p": packed.product(x, 8), "q": packed.product(x, 8, **other)})
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels")
    assert _counts(result.program.graph) == {"MatMulNBits": 2, "Split": 0, "Add": 0}


def test_half_precision_is_verified_with_the_weights_packed() -> None:
    graph = _layer(dtype="float16")
    result = eqsat.optimize(graph, cost="kernels")
    assert _counts(result.program.graph)["MatMulNBits"] == 1
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_what_a_runtime_does_not_read_is_spelled_out() -> None:
    graph = _layer(zeros=True)
    keys = {n.key for n in load_onnx(to_model(graph, form="tensorrt")).nodes}
    assert MATMUL_NBITS not in keys
    assert {"DequantizeLinear", "MatMul"} <= keys
    assert MATMUL_NBITS in {n.key for n in load_onnx(to_model(graph, form="openvino")).nodes}
