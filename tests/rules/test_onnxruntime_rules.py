"""Fused operators of ONNX Runtime in whole programs: chosen where there is a kernel, left where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnxruntime_programs import PROGRAMS, float_block, integer_layer

import eqsat
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
