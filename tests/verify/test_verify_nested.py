"""Sequences and maps, as classical classifiers compute them: compared element by element."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.verification import verify_models
from eqsat.verification.compare import Yardstick, distance
from eqsat.verification.nested import elements


def classifier(scale: float = 1.0) -> onnx.ModelProto:
    """Scores with a neutral factor, a softmax of them, and its probabilities as a sequence of maps from labels."""
    weights = np.asarray(np.random.default_rng(0).standard_normal((4, 3)) * scale, np.float32)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.ones(1, np.float32), "one")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Mul", ["product", "one"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=-1),
        helper.make_node("ZipMap", ["probabilities"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b", "c"]),
    ]
    by_label = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_value_info("y", helper.make_sequence_type_proto(by_label))],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_classifier_with_probabilities_in_maps_is_optimised_and_verified() -> None:
    report = eqsat.optimize(classifier()).report
    assert report.verification["verdict"] == "equal"
    assert sum(report.operators_after.values()) == 3


def test_no_message_is_held_while_the_runtime_loads_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Trees of a classifier are attributes, of which a message takes six times as much as the file."""
    load, loaded, held = onnxruntime.InferenceSession, list[Any](), list[str]()

    def watched(*args: Any, **options: Any) -> onnxruntime.InferenceSession:
        loaded.append(args[0])
        frame = sys._getframe(1)
        while frame is not None:
            held.extend(frame.f_code.co_qualname for v in frame.f_locals.values() if isinstance(v, onnx.ModelProto))
            frame = frame.f_back
        return load(*args, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    onnx.save(classifier(), path := tmp_path / "m.onnx")
    assert eqsat.optimize(path).report.verification["verdict"] == "equal"
    assert len(loaded) > 1
    assert not held


def test_maps_of_other_numbers_are_refused() -> None:
    found = verify_models(classifier(), classifier(1.01))
    assert found.verdict == "failed"
    assert "max abs error" in found.failures[0]


def test_sequences_and_maps_are_judged_by_their_elements() -> None:
    reference = [{1: 0.5, 2: float(np.float32(0.1))}, {1: 1.0, 2: 2.0}]
    yardstick = Yardstick(reference)
    moved = [{1: 0.5, 2: float(np.nextafter(np.float32(0.1), np.float32(1)))}, {1: 1.0, 2: 2.0}]
    assert not yardstick.judge(moved).message
    assert yardstick.judge(moved, exact=True).message
    assert yardstick.judge([{1: 0.6, 2: 0.1}, {1: 1.0, 2: 2.0}]).message
    assert not Yardstick([np.ones(3, np.float32)]).judge([np.ones(3, np.float32)]).message


def test_what_is_put_together_otherwise_is_a_misfit() -> None:
    reference = [{"a": 1.0}, {"a": 2.0}]
    assert "1 elements" in distance(reference, [{"a": 1.0}]).misfit
    assert "keys ['b']" in distance(reference, [{"a": 1.0}, {"b": 2.0}]).misfit
    assert "shape (2,)" in distance([np.ones(3)], [np.ones(2)]).misfit
    assert "NoneType" in distance([np.ones(3)], None).misfit
    assert not distance(None, None).misfit


def test_numbers_of_maps_are_in_single_precision_where_that_holds_them() -> None:
    assert elements([{1: float(np.float32(0.1))}]).dtype == np.float32
    assert elements([{1: 0.1}]).dtype == np.float64
    assert elements([np.ones(2), np.ones(1)]).dtype == np.float64
