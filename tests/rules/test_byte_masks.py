"""Masks added to bytes: where they say no more than that a score does not count, and where they say nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime_programs import dequantized, masked_bytes, quantized

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

SCORES = {"x": np.arange(256, dtype=np.uint8)[:144].reshape(2, 3, 4, 6), "kept": np.array([[[1, 0, 1, 1, 0, 1]]], bool)}


def _optimised(graph: Graph) -> Graph:
    return eqsat.optimize(graph, form="onnxruntime", cost="kernels", verify=False).program.graph


@pytest.mark.parametrize("step", [0.004, 0.02, 0.021, 0.3, 5.0])
@pytest.mark.parametrize("far", [-1.0, 0.013, -1e4, -np.inf, np.inf, float(np.finfo(np.float32).min)])
def test_the_kernel_computes_what_the_operators_did(far: float, step: float) -> None:
    graph = masked_bytes(far, step)
    found = _optimised(graph)
    assert "com.microsoft::QLinearAdd" in found.operator_counts()
    for start in (0, 112):  # every byte, kept and masked
        feeds = SCORES | {"x": SCORES["x"] + np.uint8(start)}
        for kept in (feeds["kept"], ~feeds["kept"]):
            before, after = (Session(to_model(g)).run(feeds | {"kept": kept})["y"] for g in (graph, found))
            np.testing.assert_array_equal(before, after)


def test_no_number_is_no_mask() -> None:
    far = np.nan
    assert "com.microsoft::QLinearAdd" not in _optimised(masked_bytes(far, 0.021)).operator_counts()


def test_what_scores_are_computed_from_is_dropped_with_them() -> None:
    b = GraphBuilder()
    x, y = (dequantized(b, b.input(n, "uint8", (2, 4, 4)), 0.02, np.uint8(120)) for n in "xz")
    product = quantized(b, b.op("MatMul", x, y), 0.05, np.uint8(128))
    mask = (b.input("kept", "bool", (4,)), b.constant(np.float32(0)), b.constant(np.finfo(np.float32).min))
    total = b.op("Add", dequantized(b, product, 0.05, np.uint8(128)), b.op("Where", *mask))
    graph = b.finish({"y": quantized(b, total, 2.68e36, np.uint8(128))})
    assert set(_optimised(graph).operator_counts()) == {"Where", "Expand"}


@pytest.mark.parametrize("step", [20.0, 0.5 * 3e38 / 127])
def test_scores_that_move_a_quantum_are_kept(step: float) -> None:
    """At half a quantum from the mask, and where the largest score alone is half a quantum."""
    far = -127.5 * step if step > 1e3 else -np.inf
    scale = step / 255 if step < 1e3 else 0.02
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (2, 6)), scale, np.uint8(120))
    mask = b.op("Where", b.input("kept", "bool", (6,)), b.constant(np.float32(0)), b.constant(np.float32(far)))
    graph = b.finish({"y": quantized(b, b.op("Add", x, mask), step, np.uint8(128))})
    assert "Expand" not in _optimised(graph).operator_counts()
