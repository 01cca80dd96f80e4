"""Gates and group normalisation are recognised, and spelled out again where a target has no kernel for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.cost.target import load_target
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

EVERYTHING = replace(load_target("onnxruntime-cpu"), name="everything", expanded=frozenset(), domains=frozenset())
"""A target with a kernel for each operator of ONNX."""


def without(*operators: str) -> Any:
    return replace(EVERYTHING, name="few", unsupported=frozenset(operators))


def _graph(op: str, shape: tuple[Any, ...] = (2, 6, 5), vectors: int = 0, **attributes: Any) -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", shape)
    rng = np.random.default_rng(0)
    weights = [b.constant(rng.normal(size=shape[1]).astype(np.float32)) for _ in range(vectors)]
    return b.finish([b.op(op, x, *weights, **attributes)])


CASES = {
    "Swish": _graph("Swish"),
    "HardSwish": _graph("HardSwish"),
    "Mish": _graph("Mish"),
    "Gelu": _graph("Gelu", approximate="none"),
    "Softmax": _graph("Softmax", axis=1),
    "LogSoftmax": _graph("LogSoftmax", axis=-1),
    "LayerNormalization": _graph("LayerNormalization", (3, 4), 2),
    "RMSNormalization": _graph("RMSNormalization", (3, 4), 1),
    "GroupNormalization": _graph("GroupNormalization", (2, 6, 5, 3), 2, num_groups=2),
}


@pytest.mark.parametrize("op", CASES)
def test_an_operator_without_a_kernel_is_spelled_out(op: str) -> None:
    result = optimized(CASES[op], target=without(op))
    assert op not in counts(result)
    assert result.report.cost_after < result.report.cost_before


@pytest.mark.parametrize("op", CASES)
def test_an_operator_with_a_kernel_stays(op: str) -> None:
    assert counts(optimized(CASES[op], target=EVERYTHING)) == {op: 1}


@pytest.mark.parametrize("op", CASES)
def test_spelled_out_it_is_recognised_again(op: str) -> None:
    spelled = optimized(CASES[op], target=without(op)).program.graph
    assert counts(optimized(spelled, target=EVERYTHING)) == {op: 1}


def test_an_operator_that_nobody_can_spell_out_is_kept() -> None:
    graph = _graph("Softsign")
    assert counts(optimized(graph, target=without("Softsign"))) == {"Softsign": 1}


def _group_norm(groups: int, back: list[int], gain: np.ndarray) -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 6, 4, 4))
    grouped = b.op("Reshape", x, b.constant(np.array([0, groups, -1])))
    ones, zeros = (b.constant(np.full(groups, v, np.float32)) for v in (1, 0))
    normal = b.op("InstanceNormalization", grouped, ones, zeros, epsilon=1e-5)
    whole = b.op("Reshape", normal, b.constant(np.array(back)))
    scaled = b.op("Mul", whole, b.constant(gain.astype(np.float32)))
    return b.finish([b.op("Add", scaled, b.constant((gain - 1).astype(np.float32)))])


GAIN = np.arange(1, 7).reshape(6, 1, 1) / 4


def test_group_normalization_of_an_exporter() -> None:
    graph = _group_norm(3, [0, 6, 4, 4], GAIN)
    assert counts(optimized(graph, target=EVERYTHING)) == {"GroupNormalization": 1}
    assert "InstanceNormalization" in counts(optimized(graph, target="onnxruntime-cpu"))


def test_a_vector_along_the_width_is_no_scale_of_channels() -> None:
    found = counts(optimized(_group_norm(3, [0, 6, 4, 4], np.arange(1, 5) / 4), target=EVERYTHING))
    assert found == {"GroupNormalization": 1, "Mul": 1, "Add": 1}


def test_another_order_of_elements_is_no_group_normalization() -> None:
    found = counts(optimized(_group_norm(3, [0, 4, 6, 4], np.ones((4, 1, 1)) / 2), target=EVERYTHING))
    assert "InstanceNormalization" in found


@pytest.mark.parametrize(("factor", "expected"), [(1.0, "Swish"), (1.702, "Swish")])
def test_a_value_times_its_sigmoid(factor: float, expected: str) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    inner = x if factor == 1 else b.op("Mul", x, b.constant(np.float32(factor)))
    result = optimized(b.finish([b.op("Mul", x, b.op("Sigmoid", inner))]), target=EVERYTHING)
    assert counts(result) == {expected: 1}


def test_hard_swish_in_the_spellings_of_exporters() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    zero, three, six = (b.constant(np.float32(v)) for v in (0, 3, 6))
    ramp = b.op("Clip", b.op("Add", x, three), zero, six)
    one = b.finish([b.op("Div", b.op("Mul", x, ramp), six)])
    assert counts(optimized(one, target=EVERYTHING)) == {"HardSwish": 1}
    assert "HardSwish" not in counts(optimized(one, target="onnxruntime-cpu"))


def test_a_program_with_swish_runs_and_is_written() -> None:
    """ONNX Runtime has no kernel for Swish: programs for targets that have one are spelled out to be run and written."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    result = eqsat.optimize(b.finish([b.op("Mul", x, b.op("Sigmoid", x))]), target="tensorrt-like")
    assert counts(result) == {"Swish": 1}
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert {n.op_type for n in to_model(result.program.graph).graph.node} == {"Sigmoid", "Mul"}
