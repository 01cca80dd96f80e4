"""Files that ONNX Runtime has optimised before: its fused operators, and how it writes lists of extents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from graph_checks import counts, optimized, proved_equal

import eqsat
from eqsat.errors import ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

WRITTEN_OUT = {"transA": 0, "transBatchA": 0, "transBatchB": 0}
"""Attributes of FusedMatMul that mean nothing, as ONNX Runtime's files have them."""


def _attention(*, turned: bool) -> Graph:
    b = GraphBuilder()
    q, v = (b.input(name, "float32", ("n", 2, "s", 8)) for name in "qv")
    k = b.input("k", "float32", ("n", 2, "s", 8) if turned else ("n", 2, 8, "s"))
    scores = b.op("FusedMatMul", q, k, domain="com.microsoft", alpha=0.25, transB=int(turned), **WRITTEN_OUT)
    return b.finish([b.op("MatMul", b.op("Softmax", scores, axis=-1), v)])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_attention_is_found_around_a_product_with_a_scale(turned: bool, form: str) -> None:
    result = optimized(_attention(turned=turned), form=form)
    assert result.report.recognized == {"attention": 1}
    assert not result.report.opaque


def test_matrices_along_the_first_axis_are_not_covered() -> None:
    b = GraphBuilder()
    x, w = b.input("x", "float32", (4, 2, 3)), b.input("w", "float32", (2, 3, 5))
    with pytest.raises(ShapeError, match=r"'transBatchA' \(1\) is not covered"):
        b.op("FusedMatMul", x, w, domain="com.microsoft", transBatchA=1)


def test_products_with_scales_of_one_input_are_one() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 8))
    weights = [b.constant(np.linspace(-1, end, 32, dtype=np.float32).reshape(8, 4)) for end in (1, 2, 3)]
    products = [b.op("FusedMatMul", x, w, domain="com.microsoft", alpha=0.25, **WRITTEN_OUT) for w in weights]
    assert counts(optimized(b.finish(products))) == {"MatMul": 1, "Split": 1}


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_before_a_norm_is_seen(op: str) -> None:
    """Its second use, the sum that the norm hands out, is the sum that the file computes beside it."""
    b = GraphBuilder()
    x, skip = (b.input(name, "float32", (2, 3, 8)) for name in ("x", "skip"))
    gain = b.constant(np.linspace(0.5, 1.5, 8, dtype=np.float32))
    normed, _, _, total = b.op(op, x, skip, gain, outputs=4, domain="com.microsoft", epsilon=1e-5)
    result = optimized(b.finish([normed, b.op("Neg", total), b.op("Exp", b.op("Add", x, skip))]))
    assert result.report.operators_after.get("Add", 0) <= 1


def test_heads_repeated_by_extents_that_are_split_and_gathered() -> None:
    """``Split(Gather(Shape(x), order))`` is followed: the halves of heads have known extents, and the repeated keys are keys."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", "s", 2, 8))
    shape = b.op("Gather", b.op("Shape", x, start=0), b.constant([0, 2, 1, 3], "int64"))
    turned = b.op("Transpose", x, perm=(0, 2, 1, 3))
    extents = b.op("Split", shape, b.constant([1, 1, 1, 1], "int64"), outputs=4, axis=0)
    half = b.op("Div", b.op("Gather", shape, b.constant(np.int64(3))), b.constant(np.int64(2)))
    end = b.op("Unsqueeze", half, b.constant([0], "int64"))
    numbers = [b.constant([n], "int64") for n in (0, 3, 1)]
    first = b.op("Slice", turned, numbers[0], end, numbers[1], numbers[2])
    batch, heads, rows, _ = (b.op("Squeeze", e) for e in extents)
    axis = b.constant([0], "int64")
    listed = [b.op("Unsqueeze", e, axis) for e in (batch, heads, rows)]
    whole = b.op("Concat", *listed, b.constant([4], "int64"), axis=0)
    graph = b.finish([b.op("Expand", b.op("Neg", first), whole)])
    assert str(graph.type_of(graph.outputs[0])) == "float32[n, 2, s, 4]"
    assert counts(optimized(graph)) == {"Transpose": 1, "Slice": 1, "Neg": 1}


def _steps(b: GraphBuilder, *shape: int, low: int = 60) -> tuple[str, str]:
    scales = np.linspace(0.01, 0.02, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return b.constant(scales), b.constant(np.full(shape, low, np.uint8))


OPERANDS = {"MatMul": ((2, 4, 3), (3, 3), 1), "Conv": ((1, 3, 5, 5), (2, 3, 2, 3), 0), "Add": ((2, 4, 3), (3,), 0)}
"""Shapes of the input and of a constant operand, and the axis along which that has several scales, where it may."""


@pytest.mark.parametrize("op", OPERANDS)
def test_operators_on_bytes_are_their_operators_on_floats(op: str) -> None:
    b = GraphBuilder()
    extents, shape, axis = OPERANDS[op]
    x = b.input("x", "uint8", extents)
    w = b.constant(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape))
    of_x, of_w, of_y = _steps(b), _steps(b, *(shape[axis : axis + 1] if op != "Add" else ())), _steps(b)
    along = {"axis": axis} if op != "Add" else {}
    operands = [b.op("DequantizeLinear", x, *of_x), b.op("DequantizeLinear", w, *of_w, **along)]
    bias = [b.constant(np.array([7, -9], np.int32))] if op == "Conv" else []
    operands += [b.op("DequantizeLinear", v, b.op("Mul", of_x[0], of_w[0]), axis=0) for v in bias]
    fused = b.op(f"QLinear{op}", x, *of_x, w, *of_w, *of_y, *bias, domain="com.microsoft" if op == "Add" else "")
    apart = b.op("QuantizeLinear", b.op(op, *operands), *of_y)
    assert proved_equal(b.finish([fused, apart]), "take_quantised_operator_apart")


@pytest.mark.parametrize(("half", "scale", "apart"), [(4096, 0.01, False), (4096, 4000.0, True), (8, 1.0, True)])
def test_sums_that_floats_round_stay_sums_of_integers(half: int, scale: float, apart: bool) -> None:
    """Of products that cancel nothing is left, but where floats have lost digits on the way."""
    b, random = GraphBuilder(), np.random.default_rng(0)
    w = random.integers(0, 127, (half, 2)).astype(np.int8)
    one, result = b.constant(np.float32(1)), (b.constant(np.float32(scale)), b.constant(np.uint8(128)))
    w, zero = b.constant(np.concatenate((w, -w))), b.constant(np.int8(0))
    x = b.input("x", "uint8", (2, 2 * half)), one, b.constant(np.uint8(0))
    graph = b.finish({"y": b.op("QLinearMatMul", *x, w, one, zero, *result)})
    found = eqsat.explain(graph, rule="take_quantised_operator_apart")
    assert ("1 rules fired" in str(found)) == apart


def test_packed_weights_stay_packed() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 32))
    packed, scales = b.constant(np.full((8, 1, 16), 0x5A, np.uint8)), b.constant(np.ones(8, np.float32))
    y = b.op("MatMulNBits", x, packed, scales, domain="com.microsoft", K=32, N=8, bits=4, block_size=32)
    assert counts(optimized(b.finish([y]))) == {"com.microsoft::MatMulNBits": 1}


@pytest.mark.parametrize("level", ["BASIC", "EXTENDED"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_what_onnxruntime_has_optimised_is_found_all_the_same(
    name: str, level: str, real_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = real_model(f"dynamic/{name}.legacy")
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    weights = path.with_name(f"{path.name}.data")
    (tmp_path / weights.name).hardlink_to(weights)
    first, second = (eqsat.optimize(p, form="flat", verify=False).report for p in (path, tmp_path / "optimised.onnx"))
    assert first.recognized.items() <= second.recognized.items()
    assert sum(second.operators_after.values()) <= sum(first.operators_after.values())
