"""Weights stored in 8 bits, as ONNX Runtime runs them with its own optimisations: right, and computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import DType
from eqsat.lower.program import Kernel, Program
from eqsat.lower.rounded_products import rounded_products, without_new_pairs

FORMS = ("flat", "onnxruntime", "functions")
Build = Callable[[GraphBuilder, str, str, str], str]


def _weight(b: GraphBuilder, shape: tuple[int, ...] = (64, 64)) -> tuple[str, str]:
    rng = np.random.default_rng(0)
    scale = (0.01 + 0.02 * rng.random(shape[-1])).astype(np.float32)
    return b.constant(rng.integers(-127, 127, shape).astype(np.int8)), b.constant(scale)


def _graph(build: Build, rows: int | str = "n") -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (rows, 64))
    return b.finish({"y": build(b, x, *_weight(b))})


def _spelled(b: GraphBuilder, x: str, w: str, s: str) -> str:
    return b.op("MatMul", x, b.op("Mul", b.op("Cast", w, to=1), s))


def _spelled_with_a_zero_point(b: GraphBuilder, x: str, w: str, s: str) -> str:
    moved = b.op("Add", b.op("Cast", w, to=1), b.constant(np.float32(3)))
    return b.op("MatMul", x, b.op("Mul", moved, s))


def _scaled_twice(b: GraphBuilder, x: str, w: str, s: str) -> str:
    """ONNX Runtime runs DequantizeLinear and Mul as they are: it fuses neither."""
    return b.op("MatMul", x, b.op("Mul", b.op("DequantizeLinear", w, s, axis=1), s))


def _through_a_view(b: GraphBuilder, x: str, w: str, s: str) -> str:
    dequantized = b.op("DequantizeLinear", w, s, axis=1)
    shape = b.constant(np.array([64, 64]))
    return b.op("MatMul", x, b.op("Reshape", b.op("Reshape", dequantized, b.constant(np.array([8, 512]))), shape))


def _pair(b: GraphBuilder, x: str, w: str, s: str) -> str:
    return b.op("MatMul", x, b.op("DequantizeLinear", w, s, axis=1))


def _error(original: Graph, result: eqsat.Graph, level: str) -> float:
    feeds = {"x": np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)}
    expected = Session(to_model(original).SerializeToString()).run(feeds)["y"]
    found = Session(to_model(result).SerializeToString(), level).run(feeds)["y"]
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("build", [_spelled, _spelled_with_a_zero_point, _scaled_twice, _through_a_view])
def test_weights_scaled_by_column_are_right_at_every_level(build: Build, form: str) -> None:
    graph = _graph(build)
    result = eqsat.optimize(graph, form=form)
    for level in ("disable", "basic", "extended", "all"):
        assert _error(graph, result.program.graph, level) < 2e-6, level


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_the_runtime_computes_once_are_not_dequantised_on_every_call(form: str) -> None:
    report = eqsat.optimize(_graph(_spelled), form=form).report
    assert report.operators_after == {"Cast": 1, "MatMul": 1, "Mul": 1}
    assert report.kernels_after == 1
    assert report.cost_after <= report.cost_before


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("build", [_scaled_twice, _through_a_view])
def test_a_pair_that_the_model_does_not_have_is_not_written(build: Build, form: str) -> None:
    result = eqsat.optimize(_graph(build), form=form).program.graph
    assert [n.key for n in result.nodes] == ["MatMul"]
    assert max(c.bytes for c in result.constants.values()) == 4 * 64 * 64


@pytest.mark.parametrize("form", FORMS)
def test_bytes_stay_bytes_where_the_runtime_computes_the_weight_once(form: str) -> None:
    result = eqsat.optimize(_graph(_spelled), form=form).program.graph
    assert max(c.bytes for c in result.constants.values()) == 64 * 64


@pytest.mark.parametrize("form", FORMS)
def test_a_pair_that_the_model_has_is_left_alone(form: str) -> None:
    graph = _graph(_pair)
    result = eqsat.optimize(graph, form=form).program.graph
    assert [n.key for n in result.nodes] == ["DequantizeLinear", "MatMul"]


def _fused(graph: Graph, tmp_path: object) -> bool:
    """Whether ONNX Runtime computes the product on activations of 8 bits."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = f"{tmp_path}/optimised.onnx"
    options.log_severity_level = 4
    ort.InferenceSession(to_model(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(f"{tmp_path}/optimised.onnx").graph.node
    return any(n.op_type == "MatMulNBits" for n in nodes)


def _variants() -> dict[str, Build]:
    def transposed(b: GraphBuilder, x: str, w: str, s: str) -> str:
        return b.op("MatMul", x, b.op("Transpose", b.op("DequantizeLinear", w, s, axis=0), perm=[1, 0]))

    def gemm(alpha: float) -> Build:
        def build(b: GraphBuilder, x: str, w: str, s: str) -> str:
            bias = b.constant(np.arange(64, dtype=np.float32))
            return b.op("Gemm", x, b.op("DequantizeLinear", w, s, axis=1), bias, alpha=alpha)

        return build

    def gemm_of_transposed(b: GraphBuilder, x: str, w: str, s: str) -> str:
        bias = b.constant(np.arange(64, dtype=np.float32))
        return b.op("Gemm", x, b.op("DequantizeLinear", w, s, axis=0), bias, transB=1)

    def from_the_end(b: GraphBuilder, x: str, w: str, s: str) -> str:
        return b.op("MatMul", x, b.op("DequantizeLinear", w, s, axis=-1))

    def read_twice(b: GraphBuilder, x: str, w: str, s: str) -> str:
        weight = b.op("DequantizeLinear", w, s, axis=1)
        return b.op("MatMul", b.op("Relu", b.op("MatMul", x, weight)), weight)

    def of_integers(dtype: type[np.integer[Any]]) -> Build:
        def build(b: GraphBuilder, x: str, w: str, s: str) -> str:
            scale, zero = b.constant(np.float32(0.02)), b.constant(dtype(0))
            x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero)
            return b.op("MatMul", x, b.op("DequantizeLinear", w, s, axis=1))

        return build

    return {
        "plain": _pair,
        "transposed": transposed,
        "gemm": gemm(1.0),
        "gemm with a factor": gemm(0.5),
        "gemm of a transposed weight": gemm_of_transposed,
        "axis from the end": from_the_end,
        "read twice": read_twice,
        "product of integers": of_integers(np.int8),
        "product of integers of 16 bits": of_integers(np.int16),
        "reshaped": _through_a_view,
    }


@pytest.mark.parametrize("build", _variants().values(), ids=_variants())
def test_pairs_are_those_that_the_runtime_fuses(build: Build, tmp_path: object) -> None:
    graph = _graph(build, 3)
    assert bool(rounded_products(graph)) == _fused(graph, tmp_path)


@pytest.mark.parametrize(("rows", "packed"), [(1, False), (128, True)])
def test_weights_of_four_bits_are_multiplied_as_is_faster(rows: int, packed: bool) -> None:
    """ONNX Runtime rounds the rows of a pair to bytes: that pays for few of them."""
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", "float32", (rows, 768))
    w, s = rng.integers(-8, 8, (768, 768)).astype(ml_dtypes.int4), rng.random((24, 768)).astype(np.float32)
    weight = b.op("DequantizeLinear", b.constant(w), b.constant(s), axis=0, block_size=32)
    result = eqsat.optimize(b.finish({"y": b.op("MatMul", x, weight)}), form="onnxruntime", verify=False)
    operators = {n.op_type for n in result.to_onnx().graph.node}
    assert operators == ({"MatMulNBits"} if packed else {"DequantizeLinear", "MatMul"})
    assert result.report.predicted_s_after == pytest.approx(result.report.cost_after, rel=0.01)


def test_a_program_whose_pairs_are_taken_apart_relies_on_the_rules_it_did() -> None:
    graph = _graph(lambda b, x, w, s: b.op("MatMul", x, b.op("DequantizeLinear", w, s)))
    kernels = tuple(Kernel(n.op, n.key, (i,), n.inputs, n.outputs) for i, n in enumerate(graph.nodes))
    program = Program(graph, kernels, {}, ("fold_inexact",), Exactness.ROUNDING)
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 64))
    original = b.finish({"y": b.op("MatMul", x, b.constant(np.ones((64, 64), np.float32)))})
    apart = without_new_pairs(program, original)
    assert len(apart.kernels) < len(kernels)
    assert (apart.constant_rules, apart.of_constants) == (program.constant_rules, Exactness.ROUNDING)


def test_weights_in_blocks_stay_packed_in_one_product_of_one_input() -> None:
    """As projections to queries, keys and values are: the runtime rounds activations for them as it did for each."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.input("x", "float32", (64, 64))
    parts: dict[str, str] = {}
    for name, columns in {"q": 512, "k": 256, "v": 256}.items():
        integers = rng.integers(0, 16, (64, columns)).astype(ml_dtypes.uint4)
        scales = rng.uniform(0.01, 0.02, (2, columns)).astype(np.float32)
        points = rng.integers(6, 10, (2, columns)).astype(ml_dtypes.uint4)
        w = b.op("DequantizeLinear", *map(b.constant, (integers, scales, points)), axis=0, block_size=32)
        parts[name] = b.op("MatMul", x, w)
    graph = b.finish(parts)
    result = eqsat.optimize(graph, form="flat")
    found = result.program.graph
    assert [n.op for n in found.nodes if n.op in ("DequantizeLinear", "MatMul")] == ["DequantizeLinear", "MatMul"]
    weight = next(c for c in found.constants.values() if c.dtype is DType.UINT4 and c.type.shape == (64, 1024))
    assert weight.size == 64 * 1024
    assert result.report.verification["verdict"] == "equal"
    feeds = {"x": rng.standard_normal((64, 64)).astype(np.float32)}
    expected, ours = (Session(to_model(g), "all").run(feeds) for g in (graph, found))
    for name in parts:
        np.testing.assert_allclose(ours[name], expected[name], atol=1e-4)
