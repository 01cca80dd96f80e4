"""Fused operators of ONNX Runtime in whole programs: chosen where there is a kernel, left where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime_programs import PROGRAMS, dequantized, float_block, integer_layer, quantized, shared_heads

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.options import Options


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_operators_are_chosen_and_verified(name: str) -> None:
    graph, expected = PROGRAMS[name]
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels")
    counts = {k.removeprefix("com.microsoft::"): n for k, n in result.program.graph.operator_counts().items()}
    assert {k: n for k, n in counts.items() if k != "Reshape"} == expected
    assert result.report.verification is not None
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


@pytest.mark.parametrize("name", PROGRAMS)
def test_flat_programs_name_none(name: str) -> None:
    result = eqsat.optimize(PROGRAMS[name][0], verify=False)
    assert not any(n.domain for n in result.program.graph.nodes)


def test_products_of_two_signed_operands_are_computed_unsigned() -> None:
    graph = eqsat.optimize(integer_layer(np.int8), form="onnxruntime", cost="kernels").program.graph
    (product,) = (n for n in graph.nodes if n.op == "QGemm")
    assert [graph.type_of(product.inputs[i]).dtype.name for i in (0, 3)] == ["UINT8", "INT8"]  # type: ignore[union-attr]


def test_operators_without_a_kernel_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.backends import onnxruntime_kernels

    def has_kernel(op: str, types: Any) -> bool:
        return op != "BiasGelu"

    monkeypatch.setattr(onnxruntime_kernels, "has_kernel", has_kernel)
    counts = eqsat.optimize(
        float_block(), form="onnxruntime", cost="kernels", verify=False
    ).program.graph.operator_counts()
    assert "com.microsoft::BiasGelu" not in counts
    assert "com.microsoft::QuickGelu" in counts


@pytest.mark.parametrize(
    ("known", "left"), [(True, {"SpaceToDepth"}), (False, {"DequantizeLinear", "SpaceToDepth", "QuantizeLinear"})]
)
def test_operators_on_bytes_without_a_kernel_are_not_chosen(
    known: bool, left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqsat.backends import onnxruntime_kernels

    monkeypatch.setattr(onnxruntime_kernels, "takes_bytes", lambda op, _: known or op != "SpaceToDepth")
    b = GraphBuilder()
    moved = b.op("SpaceToDepth", dequantized(b, b.input("x", "int8", (1, 3, 6, 8)), 2.0, np.int8(1)), blocksize=2)
    graph = b.finish({"y": quantized(b, moved, 2.0, np.int8(1))})
    assert eqsat.optimize(graph, verify=False).program.graph.operator_counts().keys() == left


@pytest.mark.parametrize("cost", ["kernels", "bytes", "roofline", "roofline-launch"])
def test_a_fused_program_is_not_dearer_under_any_cost_model(cost: str) -> None:
    for graph, _ in PROGRAMS.values():
        flat, fused = (
            eqsat.optimize(graph, form=form, cost=cost, verify=False).report.cost_after
            for form in ("flat", "onnxruntime")
        )
        assert fused <= flat * (1 + 1e-9)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ({}, "kernels"),
        ({"form": "onnxruntime"}, "measured"),
        ({"form": "onnxruntime", "target": "tvm-like"}, "kernels"),
        ({"form": "onnxruntime", "cost": "bytes"}, "bytes"),
        ({"form": "onnxruntime", "devices": {"*": "cpu"}}, "kernels"),
    ],
)
def test_cost_by_default(options: dict[str, Any], model: str) -> None:
    assert Options(**options).cost_model.name == model


def test_a_function_of_bytes_is_read_from_a_table() -> None:
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (3, 512)), 0.03, np.uint8(100))
    gate = quantized(b, b.op("Erf", b.op("Mul", x, b.constant(np.float32(0.7)))), 0.01, np.uint8(128))
    y = quantized(b, b.op("Mul", x, dequantized(b, gate, 0.01, np.uint8(128))), 0.03, np.uint8(120))
    result = eqsat.optimize(b.finish({"y": y}), form="onnxruntime", cost="kernels")
    assert dict(result.program.graph.operator_counts()) == {"Cast": 1, "GatherElements": 1}
    assert result.report.verification is not None
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


@pytest.mark.parametrize("bytes_as_bias", [False, True])
def test_heads_of_one_product_are_laid_out_at_once(*, bytes_as_bias: bool) -> None:
    """Queries, keys and values as exporters write them: a product, a bias, a view and a transpose each."""
    random = np.random.default_rng(3)
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (1, 5, 16)), 0.02, np.uint8(120))
    outputs = {}
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        weight = dequantized(b, b.constant(random.integers(-127, 128, (16, 16)).astype(np.int8)), 0.01, np.int8(0))
        product = dequantized(b, quantized(b, b.op("MatMul", x, weight), 0.04, np.uint8(128)), 0.04, np.uint8(128))
        bias = b.constant(random.normal(size=16).astype(np.float32))
        if bytes_as_bias:
            bias = dequantized(b, b.constant(random.integers(-127, 128, 16).astype(np.int8)), 0.01, np.int8(0))
        total = quantized(b, b.op("Add", product, bias), 0.05, np.uint8(128))
        heads = b.op("Reshape", total, b.constant(np.array([1, 5, 4, 4])))
        outputs[name] = b.op("Transpose", heads, perm=perm)
    result = eqsat.optimize(b.finish(outputs), form="onnxruntime", cost="kernels")
    counts = {k.removeprefix("com.microsoft::"): n for k, n in result.program.graph.operator_counts().items()}
    shared = {"QLinearMatMul": 1, "Reshape": 1, "Transpose": 2, "Split": 1}
    once = {"DequantizeLinear": 1, "Mul": 1, "Add": 1, "QuantizeLinear": 1}
    assert counts == shared | ({"QLinearAdd": 3} if bytes_as_bias else once)
    assert result.report.verification is not None
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_shared_and_stored_keys_have_an_operator_of_their_own() -> None:
    def without_attention(work: Any) -> float:
        return 2.0 if "Attention" in work.operators else 1.0

    result = eqsat.optimize(shared_heads(), form="onnxruntime", cost=without_attention)
    assert result.program.graph.operator_counts()["com.microsoft::GroupQueryAttention"] == 1
    assert result.report.verification is not None
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_a_bias_that_is_no_whole_number_of_units_stays_a_float() -> None:
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (5, 16)), 0.02, np.uint8(3))
    rng = np.random.default_rng(3)
    weight = dequantized(b, b.constant(rng.integers(-127, 128, (16, 8)).astype(np.int8)), 0.01, np.int8(0))
    y = b.op("Add", b.op("MatMul", x, weight), b.constant(rng.normal(size=8).astype(np.float32)))
    graph = b.finish({"y": quantized(b, y, 0.02, np.uint8(120))})
    assert eqsat.optimize(graph, form="onnxruntime", cost="kernels").report.operators_after == {
        "com.microsoft::MatMulIntegerToFloat": 1,
        "QuantizeLinear": 1,
    }
    assert "Pad" in eqsat.optimize(graph, cost="kernels").report.operators_after
