"""Quantised products run on integers, unsigned by signed ones; and stay in float where that would be another function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, feeds_of, optimized

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import DType
from eqsat.result import Result
from eqsat.verification.unsigned import in_unsigned

Q, DQ = "QuantizeLinear", "DequantizeLinear"
RNG = np.random.default_rng(0)


class Quantised:
    """A builder of quantised graphs; activations are int8 with zero point 0, as most tools write them."""

    def __init__(self) -> None:
        self.b = GraphBuilder()

    def fake(self, value: str, scale: float, dtype: str = "int8", zero: int = 0) -> str:
        """``value`` quantised and dequantised."""
        s, z = self.b.constant(np.float32(scale)), self.b.constant(np.array(zero, dtype))
        return self.b.op(DQ, self.b.op(Q, value, s, z), s, z)

    def weight(self, *shape: int, axis: int | None = None, zeros: int = 0) -> str:
        """A dequantised int8 constant with one scale, or one for each slice of ``axis``."""
        size = () if axis is None else (shape[axis],)
        scale = RNG.uniform(0.001, 0.01, size).astype(np.float32)
        integers = RNG.integers(-127, 128, shape).astype(np.int8)
        zero = np.full(size, zeros, np.int8)
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        return self.b.op(DQ, *map(self.b.constant, (integers, scale, zero)), **attributes)

    def finish(self, value: str, scale: float = 0.05) -> Graph:
        return self.b.finish({"y": self.fake(value, scale)})


def product(*, axis: int | None = 1, rows: tuple[int, ...] = (4, 16), columns: int = 8, **weight: Any) -> Graph:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", rows), 0.05)
    return g.finish(g.b.op("MatMul", x, g.weight(rows[-1], columns, axis=axis, **weight)))


def convolution(
    *, bias: float | None = 1.0, channels: int = 6, outputs: int = 4, relu: bool = False, **conv: Any
) -> Graph:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (2, channels, 7, 6)), 0.05)
    w = g.weight(outputs, channels // conv.get("group", 1), 3, 2, axis=0)
    more = () if bias is None else (g.b.constant((RNG.normal(size=outputs) * bias).astype(np.float32)),)
    y = g.b.op("Conv", x, w, *more, **conv)
    if relu:
        y = g.b.op("Relu", g.fake(y, 0.05))
    return g.finish(y)


def within_one_quantum(graph: Graph, quantum: float = 0.05, **options: Any) -> Result:
    """The optimised graph; its results, in our interpreter and in ONNX Runtime, are within one quantum of the original's."""
    chosen: dict[str, Any] = {"cost": "roofline"} | options
    result = eqsat.optimize(graph, verify=False, **dict[str, Any](form="flat") | chosen)
    session = Session(to_model(in_unsigned(result.program.graph)))
    for feeds in feeds_of(graph):
        expected = run(graph, feeds)["y"]
        for found in (run(result.program.graph, feeds)["y"], session.run(feeds)["y"]):
            assert np.abs(found - expected).max() <= quantum * 1.001
    return result


def integer_operands(result: Result, op: str) -> list[str]:
    graph = result.program.graph
    return [graph.type_of(n.inputs[0]).dtype.name for n in graph.nodes if n.op == op]  # type: ignore[union-attr]


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("rows", [(4, 16), (2, 5, 16)])
def test_matmul_runs_on_integers(axis: int | None, rows: tuple[int, ...]) -> None:
    result = within_one_quantum(product(axis=axis, rows=rows))
    assert counts(result) == {Q: 1, "QLinearMatMul": 1, DQ: 1}
    assert integer_operands(result, "QLinearMatMul") == ["UINT8"]


def test_scales_along_the_contracted_axis_stay_in_float() -> None:
    assert counts(within_one_quantum(product(axis=0)))["MatMul"] == 1


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_weights_scaled_in_blocks_of_their_rows_stay_in_float(form: Any) -> None:
    """Blocks along the axis of the columns are not columns. No rule fails, so none is left out."""
    g = Quantised()
    integers, scales = RNG.integers(-127, 128, (32, 64)).astype(np.int8), RNG.uniform(0.001, 0.01, (32, 4))
    weight = g.b.op(
        DQ, *map(g.b.constant, (integers, scales.astype(np.float32), np.zeros((32, 4), np.int8))), axis=1, block_size=16
    )
    x = g.fake(g.b.input("x", "float32", ("n", 4, 32)), 0.05, "uint8", 128)
    y = g.b.op("Add", g.b.op("MatMul", x, weight), g.b.constant(np.linspace(-1, 1, 64, dtype=np.float32)))
    result = eqsat.optimize(g.b.finish({"y": g.fake(y, 0.05, "uint8", 128)}), form=form)
    assert not result.report.left_out
    assert "MatMul" in {n.key for n in result.program.graph.nodes}


def test_activations_are_multiplied_batched() -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (2, 3, 4, 16)), 0.05)
    w = g.fake(g.b.input("w", "float32", (2, 3, 16, 5)), 0.02)
    result = within_one_quantum(g.finish(g.b.op("MatMul", x, w), 0.5), 0.5)
    assert counts(result) == {Q: 2, "QLinearMatMul": 1, DQ: 1}


@pytest.mark.parametrize("transposed", [False, True])
def test_bias_of_gemm_becomes_rows_of_the_weights(transposed: bool) -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (64, 256)), 0.05)
    bias = g.b.constant(RNG.normal(size=512).astype(np.float32))
    w = g.weight(512, 256, axis=0) if transposed else g.weight(256, 512, axis=1)
    y = g.b.op("Gemm", x, w, bias, transB=int(transposed))
    result = within_one_quantum(g.finish(y, 0.4), 0.4)
    assert counts(result) == {Q: 1, "Pad": 1, "QLinearMatMul": 1, DQ: 1}
    moved = within_one_quantum(
        g.finish(y, 0.1), 0.1
    )  # steps of the rows are a fortieth of a quantum: too many elements move
    assert "Pad" not in counts(moved)


def test_a_bias_that_rows_cannot_hold_stays_in_float() -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (8, 16)), 1e-3)
    bias = g.b.constant(RNG.normal(size=512).astype(np.float32) * np.float32(1e6))
    y = g.b.op("Gemm", x, g.weight(16, 512, axis=1), bias)
    assert "Pad" not in counts(within_one_quantum(g.finish(y, 1e5), 1e5))


def test_sums_that_overflow_stay_in_float() -> None:
    assert 66_312 * 255 * 127 > 2**31 - 1 > 66_311 * 255 * 127
    for inner, integer in ((66_311, True), (66_312, False)):
        g = Quantised()
        x = g.fake(g.b.input("x", "float32", (1, inner)), 1e-4, "uint8")
        integers = np.full((inner, 1), 127, np.int8)
        w = g.b.op(DQ, *map(g.b.constant, (integers, np.float32(1e-4), np.array(0, np.int8))))
        ops = counts(eqsat.optimize(g.finish(g.b.op("MatMul", x, w), 1.0), verify=False, cost="roofline", form="flat"))
        assert ("MatMul" not in ops) is integer


@pytest.mark.parametrize(("rows", "integer"), [(65_793, True), (65_794, False), (None, False)])
def test_sums_of_unknown_length_are_integers_where_a_table_limits_it(rows: int | None, integer: bool) -> None:
    assert 65_794 * 255 * 128 > 2**31 - 1 > 65_793 * 255 * 128
    g = Quantised()
    x = g.b.input("x", "float32", (3, "seq"))
    if rows is not None:  # added to as many of these numbers, of which there are no more
        length = g.b.op("Shape", x, start=1, end=2)
        zero = g.b.constant(np.zeros(1, np.int64))
        x = g.b.op("Add", x, g.b.op("Slice", g.b.constant(np.ones(rows, np.float32)), zero, length, zero))
    w = g.fake(g.b.input("w", "float32", ("seq", 4)), 1e-4)
    result = within_one_quantum(g.finish(g.b.op("MatMul", g.fake(x, 1e-4, "uint8"), w)))
    assert ("QLinearMatMul" in counts(result)) is integer


@pytest.mark.parametrize("axis", [None, 0])
def test_convolution_whose_result_stays_float_runs_on_integers(axis: int | None) -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (1, 64, 12, 12)), 0.05)
    bias = g.b.constant(RNG.normal(size=96).astype(np.float32))
    y = g.b.op("Conv", x, g.weight(96, 64, 3, 3, axis=axis), bias, pads=(1, 0, 1, 1))
    graph = g.b.finish({"y": y})
    result = eqsat.optimize(graph, verify=False, cost="roofline", form="flat")
    assert counts(result)["ConvInteger"] == 1
    length, largest_weight = 64 * 9, 127 * 0.01
    for feeds in feeds_of(graph):
        total = length * largest_weight * min(float(np.abs(feeds["x"]).max()), 6.4)
        rounding = 2 * math.sqrt(length) * 2.0**-24 * total  # of the sums of floats
        expected = run(graph, feeds)["y"]
        session = Session(to_model(in_unsigned(result.program.graph)))
        for found in (run(result.program.graph, feeds)["y"], session.run(feeds)["y"]):
            assert np.abs(found - expected).max() <= rounding < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("bias", [None, 1.0])
@pytest.mark.parametrize("attributes", [{}, {"group": 2}, {"pads": (1, 0, 1, 1), "strides": (2, 1)}])
def test_convolution_runs_on_integers(bias: float | None, attributes: dict[str, Any]) -> None:
    result = within_one_quantum(convolution(bias=bias, **attributes))
    assert counts(result) == {Q: 1, "QLinearConv": 1, DQ: 1}


@pytest.mark.parametrize("whole", [True, False])
def test_bias_that_is_no_whole_number_of_coarse_units_stays_in_float(*, whole: bool) -> None:
    """Rounded to the scale of the sums, as large as weights of 4 bits make it, it would move every tenth element."""
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (2, 6, 7, 6)), 1.0)
    integers = RNG.integers(-7, 8, (4, 6, 3, 2)).astype(np.int8)
    weight = g.b.op(DQ, *map(g.b.constant, (integers, np.float32(0.01), np.int8(0))))
    bias = RNG.integers(-9, 9, 4) * 0.01 + (0 if whole else 0.004)
    y = g.b.op("Conv", x, weight, g.b.constant(bias.astype(np.float32)))
    assert ("QLinearConv" in counts(within_one_quantum(g.finish(y)))) is whole


def test_bias_beyond_int32_stays_in_float() -> None:
    ops = counts(eqsat.optimize(convolution(bias=1e9), verify=False, cost="roofline", form="flat"))
    assert ops["ConvInteger"] == ops["Add"] == 1


def test_relu_is_a_clip_of_integers_unless_saturation_does_it() -> None:
    result = within_one_quantum(convolution(relu=True))
    assert counts(result) == {Q: 1, "QLinearConv": 1, "Clip": 1, DQ: 1}
    for zero, absorbed in ((-128, True), (-127, False)):
        g = Quantised()
        x = g.fake(g.b.input("x", "float32", (2, 3, 7, 6)), 0.05)
        y = g.b.op("Relu", g.b.op("Conv", x, g.weight(4, 3, 3, 2, axis=0)))
        graph = g.b.finish({"y": g.fake(y, 0.05, zero=zero)})
        assert ("Clip" not in counts(within_one_quantum(graph))) is absorbed


def test_residual_block() -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (1, 4, 6, 6)), 0.05)
    y = g.fake(g.b.op("Conv", x, g.weight(4, 4, 1, 1, axis=0)), 0.05)
    y = g.fake(g.b.op("Conv", g.b.op("Relu", y), g.weight(4, 4, 1, 1, axis=0)), 0.05)
    result = eqsat.optimize(g.finish(g.b.op("Add", x, y)), verify=False, cost="roofline", form="flat")
    ops = counts(result)
    assert (ops["QLinearConv"], ops["Add"], ops.get("Conv", 0)) == (2, 1, 0)


def test_parallel_products_with_scales_of_their_own_are_one() -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (4, 16)), 0.05)
    parts = [g.fake(g.b.op("MatMul", x, g.weight(16, n, axis=1)), s) for n, s in ((8, 0.05), (6, 0.02), (8, 0.1))]
    graph = g.b.finish({f"y{i}": p for i, p in enumerate(parts)})
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert counts(result) == {Q: 1, "QLinearMatMul": 1, "Split": 1, DQ: 3}
    for feeds in feeds_of(graph):
        for name, scale in (("y0", 0.05), ("y1", 0.02), ("y2", 0.1)):
            assert np.abs(run(graph, feeds)[name] - run(result.program.graph, feeds)[name]).max() <= scale * 1.001


def test_sums_of_many_products_are_bounded_by_the_weights_there_are() -> None:
    g = Quantised()
    x = g.fake(g.b.input("x", "float32", (2, 2048)), 0.05, "uint8", 7)
    w = RNG.integers(-127, 128, (2048, 4)).astype(np.int8)
    sums = g.b.op("MatMul", x, g.b.op(DQ, g.b.constant(w), g.b.constant(np.float32(0.001))))
    assert counts(within_one_quantum(g.finish(sums, 0.022), quantum=0.022)) == {Q: 1, "QLinearMatMul": 1, DQ: 1}


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_unsigned_weights_are_written_signed_for_faster_products(form: str) -> None:
    g = Quantised()
    w = [RNG.integers(0, 256, shape).astype(np.uint8) for shape in ((192, 192, 1, 1), (17, 64))]
    filters, matrix = (g.b.op(DQ, *map(g.b.constant, (v, np.float32(0.004), np.uint8(131)))) for v in w)
    x = g.fake(g.b.input("x", "float32", (1, 192, 17, 17)), 0.05, "uint8", 120)
    y = g.fake(g.b.op("Conv", x, filters), 0.05, "uint8", 118)
    result = within_one_quantum(g.finish(g.b.op("MatMul", y, matrix)), form=form, cost=None)
    found = result.program.graph
    weights = {n.op: found.type_of(n.inputs[3]).dtype for n in found.nodes if n.op in ("QLinearConv", "QLinearMatMul")}
    assert weights == {"QLinearConv": DType.INT8, "QLinearMatMul": DType.INT8}
    assert result.report.needs["vnni"] == ["QLinearConv", "QLinearMatMul"]
    slow = eqsat.optimize(result.original, consumer="onnxruntime-avx2").program.graph
    assert all(slow.type_of(n.inputs[3]).dtype is DType.UINT8 for n in slow.nodes if n.op in weights)


def test_unsigned_weights_of_dynamic_quantisation_are_written_signed() -> None:
    b = GraphBuilder()
    q, scale, zero = b.op("DynamicQuantizeLinear", b.input("x", "float32", (64, 1024)), outputs=3)
    w, point = b.constant(RNG.integers(0, 256, (1024, 256)).astype(np.uint8)), b.constant(np.uint8(131))
    sums = b.op("Cast", b.op("MatMulInteger", q, w, zero, point), to=1)
    graph = b.finish({"y": b.op("Mul", sums, b.op("Mul", scale, b.constant(np.float32(0.004))))})
    found = optimized(graph, form="onnxruntime").program.graph
    assert [n.op for n in found.nodes] == ["DynamicQuantizeMatMul"]
    assert found.type_of(found.nodes[0].inputs[1]).dtype is DType.INT8


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_unsigned_spelling_is_bit_equal(form: str) -> None:
    """Only the shift: quantised, moved, pooled, clipped, joined and cut values lose nothing."""
    g = Quantised()
    x = g.b.input("x", "float32", (2, 4, 6, 6))
    s, z = g.b.constant(np.float32(0.05)), g.b.constant(np.array(3, np.int8))
    q = g.b.op("MaxPool", g.b.op(Q, x, s, z), kernel_shape=(2, 2))
    q = g.b.op("Concat", q, g.b.op("Clip", q, g.b.constant(np.array(-5, np.int8))), axis=1)
    graph = g.b.finish({"y": g.b.op(DQ, g.b.op("Transpose", q, perm=(0, 2, 3, 1)), s, z)})
    result = optimized(graph, tolerance=0.0, form=form, numerics="exact", cost=_unsigned_only())
    found = result.program.graph
    assert "int8" not in {str(found.type_of(v)).partition("[")[0] for n in found.nodes for v in n.outputs}


def _unsigned_only() -> Any:
    from eqsat.cost.model import FormulaModel

    return FormulaModel(
        "unsigned", "kernels", lambda w, _: 100.0 if w.dtype.startswith("int8") else 1.0, "signed is dear"
    )


def test_signed_inputs_are_recentred_by_arithmetic() -> None:
    g = Quantised()
    x = g.b.input("x", "int8", (4, 16))
    s, z = g.b.constant(np.float32(0.05)), g.b.constant(np.array(0, np.int8))
    graph = g.finish(g.b.op("MatMul", g.b.op(DQ, x, s, z), g.weight(16, 8, axis=1)))
    result = within_one_quantum(graph, cost=_integers_only())
    assert counts(result) == {DQ: 2, Q: 1, "QLinearMatMul": 1}


def _integers_only() -> Any:
    from eqsat.cost.model import FormulaModel

    return FormulaModel(
        "integers", "kernels", lambda w, _: 100.0 if w.operators == ("MatMul",) else 1.0, "floats are dear"
    )


def test_a_quantised_value_is_never_taken_for_the_value() -> None:
    g = Quantised()
    x = g.b.input("x", "float32", (4, 16))
    graph = g.b.finish({"y": g.fake(x, 0.05)})
    assert counts(optimized(graph, numerics=Exactness.LSB.label)) == {Q: 1, DQ: 1}
    assert math.isfinite(float(np.abs(run(graph, {"x": np.zeros((4, 16), np.float32)})["y"]).max()))


def test_convolutions_that_quantise_their_input_as_they_run_are_computed_on_floats() -> None:
    """Of bytes by a scale that is computed, with a bias behind."""
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    a, scale, zero = b.op("DynamicQuantizeLinear", b.input("x", "float32", (1, 32, 16, 16)), outputs=3)
    weight = b.constant(rng.integers(0, 256, (32, 1, 3, 3)).astype(np.uint8))
    sums = b.op("ConvInteger", a, weight, zero, b.constant(np.uint8(120)), group=32, pads=[1, 1, 1, 1])
    product = b.op("Mul", b.op("Cast", sums, to=1), b.op("Mul", scale, b.constant(np.float32(0.01))))
    bias = b.constant(rng.normal(size=(1, 32, 1, 1)).astype(np.float32))
    result = eqsat.optimize(b.finish({"y": b.op("Relu", b.op("Add", product, bias))}))
    made = result.program.graph.operator_counts()
    assert made == {"DynamicQuantizeLinear": 1, "DequantizeLinear": 1, "Conv": 1, "Relu": 1}
    assert result.report.kernels_after == 4
    assert result.report.verification["verdict"] != "failed"
