"""Quantisers whose lowest or highest level is infinite are arithmetic in files for OpenVINO."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import eqsat
from eqsat.backends.onnx_form import in_form
from eqsat.ir.interpret import run

LOWEST = np.float32(np.finfo(np.float32).min)
X = {"x": np.array([[0, 1, -5, 3, LOWEST, -2.7e36, 1e30, -LOWEST, 4e36, -1.34e36]], np.float32)}


def pair(scale: float, zero: np.integer) -> eqsat.Graph:
    b = eqsat.GraphBuilder()
    operands = b.constant(np.float32(scale)), b.constant(zero)
    q = b.op("QuantizeLinear", b.input("x", "float32", (1, 10)), *operands)
    return b.finish({"y": b.op("DequantizeLinear", q, *operands)})


PAIRS = [(2.6793886e36, np.int8(0)), (2.6793886e36, np.int8(-5)), (2.0e36, np.uint8(3))]


@pytest.mark.parametrize(("scale", "zero"), PAIRS)
def test_they_compute_the_same(scale: float, zero: np.integer) -> None:
    graph = pair(scale, zero)
    written = in_form(graph, "openvino")
    written.check()
    assert "QuantizeLinear" not in written.operator_counts()
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(run(written, X)["y"], run(graph, X)["y"])
    assert in_form(graph, "flat") is graph


@pytest.mark.parametrize("scale", [0.05, 1.3e36])
def test_others_stay_as_they_are(scale: float) -> None:
    graph = pair(scale, np.uint8(255))
    assert in_form(graph, "openvino") is graph


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
@pytest.mark.parametrize(("scale", "zero"), PAIRS)
def test_openvino_computes_them_right(scale: float, zero: np.integer) -> None:
    graph = pair(scale, zero)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = run(graph, X)["y"]
    np.testing.assert_allclose(eqsat.run(graph, X, engine="openvino")["y"], expected, rtol=1e-5, atol=1e-6 * scale)
