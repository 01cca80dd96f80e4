"""Models of many layers and large weights: exports of two layers, stacked; folded weights that are computed when asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import eqsat
from benchmarks.growth import SHIPPED, stack_layers, write_stack
from eqsat.lower import materialize
from eqsat.verification import check

Models = Callable[[str], Path]


def _matrices(path: Path) -> int:
    model = onnx.load(path, load_external_data=False)
    return sum(len(t.dims) == 2 for t in model.graph.initializer)


def test_a_stack_runs_and_has_as_many_layers_with_weights_of_their_own(tmp_path: Path) -> None:
    three, five = (write_stack(["bert"], layers, tmp_path) for layers in (3, 5))
    assert _matrices(five) - _matrices(three) == 2 * 6
    session = ort.InferenceSession(str(five), providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    out = np.asarray(session.run(None, {name: np.ones((2, 7), np.int64) for name in names})[0])
    assert out.shape == (2, 7, 64)
    assert np.isfinite(out).all()
    report = eqsat.optimize(five).report
    assert report.recognized["attention"] == 5
    assert report.verification["verdict"] == "within tolerance"


def test_the_whole_size_skeleton_stacks_to_a_valid_model() -> None:
    skeleton, start, end = SHIPPED["llama_7b"]
    model = onnx.load(str(skeleton), load_external_data=False)
    stack_layers(model, start, end, 32)
    products = [n for n in model.graph.node if n.op_type == "MatMul"]
    assert len(products) == 32 * 9 + 1
    defined = {t.name for t in model.graph.initializer} | {i.name for i in model.graph.input}
    for node in model.graph.node:
        assert defined.issuperset(i for i in node.input if i), node
        assert defined.isdisjoint(node.output), node
        defined.update(node.output)
    weights = sum(int(np.prod(t.dims)) for t in model.graph.initializer)
    assert 6.7e9 < weights < 6.8e9


def test_e_nodes_grow_with_layers_and_not_faster(tmp_path: Path) -> None:
    counts = {
        layers: eqsat.optimize(write_stack(["bert"], layers, tmp_path), verify=False).report.enodes
        for layers in (2, 4, 8)
    }
    assert counts[8] - counts[4] == 2 * (counts[4] - counts[2])


def test_folded_weights_beyond_the_limit_are_computed_when_asked_for(
    real_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = real_model("dynamic/bert.dynamo")
    held = eqsat.optimize(path, verify=False)
    assert not any(c.is_deferred for c in held.program.graph.constants.values())
    monkeypatch.setattr(materialize, "KEPT_BYTES", 0)
    monkeypatch.setattr(materialize, "ALWAYS_KEPT_BYTES", 1 << 10)
    deferred = eqsat.optimize(path)
    assert deferred.report.verification["verdict"] == "within tolerance"
    merged = [c for c in deferred.program.graph.constants.values() if c.is_deferred]
    assert len(merged) >= 2
    array = merged[0].numpy()
    assert merged[0].numpy() is array
    kept = weakref.ref(array)
    del array
    assert kept() is None
    for name, result in (("held", held), ("deferred", deferred)):
        result.save(tmp_path / f"{name}.onnx")
    assert (tmp_path / "held.onnx").read_bytes() == (tmp_path / "deferred.onnx").read_bytes()


def test_models_larger_than_memory_may_be_are_not_run_unless_asked_to(
    real_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MEMORY_BYTES", 1000)
    found = eqsat.optimize(real_model("dynamic/bert.dynamo")).report.verification
    assert found["verdict"] == "not run"
    assert "fewer layers" in found["notes"][-1]
    assert eqsat.optimize(real_model("dynamic/bert.dynamo"), verify="full").report.verification["runs"]
