"""Products of bytes are compared exactly, whatever the processor's kernels make of them."""

from __future__ import annotations

import numpy as np
import pytest

import eqsat
import eqsat.backends.onnxruntime
import eqsat.verification.unsigned
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import DType
from eqsat.verification.unsigned import in_unsigned, saturates

RNG = np.random.default_rng(3)


def whole_range(*shape: int, dtype: str = "int8") -> np.ndarray:
    """Bytes whose products saturate in pairs: the least and largest ones, and others."""
    info = np.iinfo(dtype)
    return RNG.choice([info.min, info.max, 3], shape).astype(dtype)


def products() -> Graph:
    """A product by constant weights without a zero point, one by computed ones, and a convolution of signed data."""
    b = GraphBuilder()
    a, x = b.input("a", "uint8", (4, 64)), b.input("x", "int8", (1, 8, 6, 6))
    sums = b.op("MatMulInteger", a, b.constant(whole_range(64, 16)))
    scale = b.constant(np.float32(2000))
    bytes_ = b.op("QuantizeLinear", b.op("Cast", sums, to=1), scale, b.constant(np.int8(5)))
    again = b.op("MatMulInteger", b.op("Transpose", a, perm=(1, 0)), bytes_, None, b.constant(np.int8(5)))
    points = (b.constant(np.int8(n)) for n in (-3, 7))
    image = b.op("ConvInteger", x, b.constant(whole_range(4, 8, 3, 3)), *points, pads=(1, 1, 1, 1))
    return b.finish({"sums": sums, "again": again, "image": image})


@pytest.fixture
def saturating(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eqsat.verification.unsigned, "sums_saturate", lambda: True)


@pytest.mark.usefixtures("saturating")
def test_a_graph_in_unsigned_bytes_is_equal_and_exact_in_onnx_runtime() -> None:
    graph = products()
    feeds = {"a": whole_range(4, 64, dtype="uint8"), "x": whole_range(1, 8, 6, 6)}
    assert saturates(graph)
    unsigned = in_unsigned(graph)
    assert not saturates(unsigned)
    expected = run(graph, feeds)
    for found in (run(unsigned, feeds), Session(to_model(unsigned)).run(feeds)):
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.usefixtures("saturating")
def test_a_graph_without_signed_products_stays_as_it_is() -> None:
    b = GraphBuilder()
    a = b.input("a", "uint8", (4, 8))
    graph = b.finish({"y": b.op("MatMulInteger", a, b.constant(whole_range(8, 2, dtype="uint8")))})
    assert in_unsigned(graph) is graph


def test_signed_products_stay_where_kernels_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eqsat.verification.unsigned, "sums_saturate", lambda: False)
    graph = products()
    assert in_unsigned(graph) is graph


def test_products_of_whole_bytes_are_verified_everywhere() -> None:
    b = GraphBuilder()
    x, step = b.input("x", "float32", (8, 64)), b.constant(np.float32(0.02))
    point = b.constant(np.uint8(100))
    bytes_ = b.op("DequantizeLinear", b.op("QuantizeLinear", x, step, point), step, point)
    weights = b.op(
        "DequantizeLinear", b.constant(whole_range(64, 16)), b.constant(np.float32(0.01)), b.constant(np.int8(0))
    )
    y = b.op("QuantizeLinear", b.op("MatMul", bytes_, weights), b.constant(np.float32(0.5)), b.constant(np.uint8(128)))
    graph = b.finish({"y": y})
    feeds = {"x": (RNG.normal(size=(8, 64)) * 2).astype(np.float32)}
    result = eqsat.optimize(graph, cost="kernels", feeds=[feeds])
    assert "QLinearMatMul" in result.report.operators_after
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert DType.INT8 in {c.dtype for c in result.program.graph.constants.values()}


@pytest.mark.parametrize("saturate", [False, True])
def test_sessions_ask_for_unsigned_weights_only_where_sums_saturate(
    monkeypatch: pytest.MonkeyPatch, *, saturate: bool
) -> None:
    monkeypatch.setattr(eqsat.backends.onnxruntime, "sums_saturate", lambda: saturate)
    session = Session(to_model(products()), "all").inference_session
    asked = session.get_session_options().get_session_config_entry("session.x64quantprecision")
    assert asked == str(int(saturate))
