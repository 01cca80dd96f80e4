"""Fused operators of ONNX Runtime in whole programs: chosen where there is a kernel, left where there is none."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime_programs import PROGRAMS, dequantized, float_block, integer_layer, quantized, shared_heads

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, saturate
from eqsat.ir.build import GraphBuilder
from eqsat.options import Options
from eqsat.rewrite import find_rule


def _assert_verified(result: Any) -> None:
    assert result.report.verification is not None
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


@pytest.mark.parametrize("name", PROGRAMS)
def test_fused_operators_are_chosen_and_verified(name: str) -> None:
    graph, expected = PROGRAMS[name]
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels")
    counts = {k.removeprefix("com.microsoft::"): n for k, n in result.program.graph.operator_counts().items()}
    assert {k: n for k, n in counts.items() if k != "Reshape"} == expected
    _assert_verified(result)


@pytest.mark.parametrize("name", PROGRAMS)
def test_flat_programs_name_none(name: str) -> None:
    result = eqsat.optimize(PROGRAMS[name][0], verify=False, form="flat")
    assert not any(n.domain for n in result.program.graph.nodes)


@pytest.mark.parametrize(
    ("dtype", "zero", "scale", "adds"), [("int8", 0, 2.6793887e36, 0), ("uint8", 255, 1.3344e36, 1)]
)
def test_masks_are_added_as_bytes_where_they_overflow_alike(dtype: str, zero: int, scale: float, adds: int) -> None:
    """By the scale of the least float -127 is -inf, of which QuantizeLinear makes -128, and -127 in a kernel on integers."""
    b = GraphBuilder()
    point, step = b.constant(np.asarray(zero, dtype)), b.constant(np.float32(scale))
    scores = b.op("DequantizeLinear", b.input("scores", dtype, (2, 4, 4)), b.constant(np.float32(2e-4)), point)
    mask = b.op("DequantizeLinear", b.input("mask", dtype, (1, 4, 4)), step, point)
    result = eqsat.optimize(b.finish([b.op("QuantizeLinear", b.op("Add", scores, mask), step, point)]), cost="kernels")
    assert sum(n.op == "QLinearAdd" for n in result.program.graph.nodes) == adds
    _assert_verified(result)


@pytest.mark.parametrize("is_gate", [False, True])
def test_a_sigmoid_that_is_spelled_out_stays_precise_unless_it_is_a_gate(is_gate: bool) -> None:
    """ONNX Runtime's Sigmoid is 0 below -18. scikit-learn's SGDClassifier chose class 0 where all scores were below."""
    b = GraphBuilder()
    scores = b.input("scores", "float32", ("n", 4))
    one = b.constant(np.float32(1))
    parts = b.op("Reciprocal", b.op("Add", b.op("Exp", b.op("Neg", scores)), one))
    total = b.op("ReduceSum", parts, b.constant([1], "int64"), keepdims=1)
    y = b.op("Mul", b.input("x", "float32", ("n", 4)), parts) if is_gate else b.op("Div", parts, total)
    graph = b.finish({"y": y})
    result = eqsat.optimize(graph)
    _assert_verified(result)
    assert result.program.graph.operator_counts().get("Sigmoid", 0) == is_gate
    if not is_gate:
        feeds = {"scores": -20 - np.arange(12, dtype=np.float32).reshape(3, 4)}
        expected = Session(to_model(graph)).run(feeds)["y"]
        np.testing.assert_allclose(result(feeds["scores"])["y"], expected, rtol=1e-5)


@pytest.mark.parametrize(("stated", "adds"), [({}, 1), ({"output_dtype": 1}, 1), ({"output_dtype": 10}, 0)])
@pytest.mark.parametrize("op", ["Add", "MatMul"])
def test_dequantised_to_another_type_than_the_scale_is_not_what_kernels_on_bytes_compute(
    op: str, stated: dict[str, int], adds: int
) -> None:
    """In float16 the sum overflows, and a product with it."""
    b = GraphBuilder()
    x, y = (dequantized(b, b.input(n, "uint8", (4, 4)), 1000.0, np.uint8(0), **stated) for n in "xy")
    graph = b.finish({"z": quantized(b, b.op(op, x, y), 2000.0, np.uint8(0))})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = eqsat.optimize(graph, cost="kernels")
    if op == "Add":
        assert sum(n.op == "QLinearAdd" for n in result.program.graph.nodes) == adds
    assert ("DequantizeLinear" in result.program.graph.operator_counts()) == (not adds)


def test_products_of_two_signed_operands_are_computed_unsigned() -> None:
    graph = eqsat.optimize(integer_layer(np.int8), form="onnxruntime", cost="kernels").program.graph
    (product,) = (n for n in graph.nodes if n.op == "QGemm")
    assert [graph.type_of(product.inputs[i]).dtype.name for i in (0, 3)] == ["UINT8", "INT8"]  # type: ignore[union-attr]


@pytest.mark.parametrize("known", [True, False])
def test_operators_without_a_kernel_are_not_chosen(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.backends import onnxruntime_kernels

    def has_kernel(op: str, types: Any) -> bool:
        return known or op != "QuickGelu"

    monkeypatch.setattr(onnxruntime_kernels, "has_kernel", has_kernel)
    counts = eqsat.optimize(
        float_block(), form="onnxruntime", cost="kernels", verify=False
    ).program.graph.operator_counts()
    assert ("com.microsoft::QuickGelu" in counts) == known


@pytest.mark.parametrize("given", [False, True])
def test_a_bias_before_gelu_is_left_to_the_product_unless_the_model_has_it_with_gelu(given: bool) -> None:
    """ONNX Runtime adds it on the way, which takes no more time than the product without."""
    b = GraphBuilder()
    rng = np.random.default_rng(1)
    x, weight = b.input("x", "float32", (2, 64, 64)), b.constant(rng.normal(size=(64, 128)), "float32")
    product, bias = b.op("MatMul", x, weight), b.constant(rng.normal(size=128), "float32")
    y = b.op("com.microsoft::BiasGelu", product, bias) if given else b.op("Gelu", b.op("Add", product, bias))
    counts = eqsat.optimize(b.finish({"y": y}), verify=False).program.graph.operator_counts()
    assert counts.get("com.microsoft::BiasGelu", 0) == given


@pytest.mark.parametrize(("tokens", "columns"), [(12, 64), (128, 768)])
def test_a_sum_before_a_norm_is_left_apart(tokens: int, columns: int) -> None:
    """ONNX Runtime's operator for both takes several times as long."""
    b = GraphBuilder()
    rng = np.random.default_rng(1)
    x, y = (b.input(name, "float32", ("batch", tokens, columns)) for name in "xy")
    bias, gain, shift = (b.constant(rng.normal(size=columns), "float32") for _ in range(3))
    total = b.op("Add", b.op("Add", x, bias), y)
    normed = b.op("LayerNormalization", total, gain, shift, axis=-1)
    counts = eqsat.optimize(b.finish({"normed": normed, "total": total})).program.graph.operator_counts()
    assert "com.microsoft::SkipLayerNormalization" not in counts


@pytest.mark.parametrize(
    ("known", "left"), [(True, {"SpaceToDepth"}), (False, {"DequantizeLinear", "SpaceToDepth", "QuantizeLinear"})]
)
def test_operators_on_bytes_without_a_kernel_are_not_chosen(
    known: bool, left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from eqsat.backends import onnxruntime_kernels

    monkeypatch.setattr(onnxruntime_kernels, "takes_narrow", lambda op, _: known or op != "SpaceToDepth")
    b = GraphBuilder()
    moved = b.op("SpaceToDepth", dequantized(b, b.input("x", "int8", (1, 3, 6, 8)), 2.0, np.int8(1)), blocksize=2)
    graph = b.finish({"y": quantized(b, moved, 2.0, np.int8(1))})
    assert eqsat.optimize(graph, verify=False, form="flat").program.graph.operator_counts().keys() == left


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
        ({}, "measured"),
        ({"form": "flat"}, "kernels"),
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
    _assert_verified(result)


@pytest.mark.parametrize("lowest", [None, 1], ids=["whole range", "narrow range"])
@pytest.mark.parametrize("bytes_as_bias", [False, True])
def test_heads_are_written_by_one_product_and_biased_by_one_table(*, bytes_as_bias: bool, lowest: int | None) -> None:
    """Queries, keys and values as exporters write them: a product, a bias, a view and a transpose each. Biases that are bytes
    are added to all at once."""

    def narrow(value: str) -> str:
        return value if lowest is None else b.op("Clip", value, b.constant(np.uint8(lowest)))

    random = np.random.default_rng(3)
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (1, 5, 16)), 0.02, np.uint8(120))
    outputs = {}
    for name, perm in (("q", (0, 2, 1, 3)), ("k", (0, 2, 3, 1)), ("v", (0, 2, 1, 3))):
        weight = dequantized(b, b.constant(random.integers(-127, 128, (16, 16)).astype(np.int8)), 0.01, np.int8(0))
        summed = narrow(quantized(b, b.op("MatMul", x, weight), 0.04, np.uint8(128)))
        bias = b.constant(random.normal(size=16).astype(np.float32))
        if bytes_as_bias:
            bias = dequantized(b, b.constant(random.integers(-127, 128, 16).astype(np.int8)), 0.01, np.int8(0))
        total = b.op("Add", dequantized(b, summed, 0.04, np.uint8(128)), bias)
        heads = b.op("Reshape", quantized(b, total, 0.05, np.uint8(128)), b.constant(np.array([1, 5, 4, 4])))
        outputs[name] = narrow(b.op("Transpose", heads, perm=perm))
    result = eqsat.optimize(b.finish(outputs), form="onnxruntime", cost="kernels")
    added = {"com.microsoft::QLinearAdd": 1} if bytes_as_bias and lowest is None else {"Cast": 1, "GatherElements": 1}
    expected = {"QLinearMatMul": 1, **added, "Split": 1, "Transpose": 1}
    assert dict(result.program.graph.operator_counts()) == expected
    _assert_verified(result)


def test_heads_are_read_by_a_convolution() -> None:
    random = np.random.default_rng(4)
    b = GraphBuilder()
    heads = dequantized(b, b.input("x", "uint8", (2, 3, 5, 4)), 0.02, np.uint8(120))
    rows = b.op("Reshape", b.op("Transpose", heads, perm=(0, 2, 1, 3)), b.constant(np.array([10, 12])))
    scales = random.uniform(0.01, 0.02, 7).astype(np.float32)
    weight = b.constant(random.integers(-127, 128, (12, 7)).astype(np.int8))
    product = b.op("MatMul", rows, dequantized(b, weight, scales, np.zeros(7, np.int8), axis=1))
    graph = b.finish({"y": quantized(b, product, 0.03, np.uint8(128))})
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels")
    assert dict(result.program.graph.operator_counts()) == {"com.microsoft::QLinearConv": 1, "Reshape": 1}
    _assert_verified(result)


@pytest.mark.parametrize("length", [2, 7, 384, 4096])
@pytest.mark.parametrize(("scale", "step", "zero"), [(0.05, 1 / 127, 128), (1e-4, 1 / 256, 0), (2.0, 0.007874016, 128)])
def test_softmax_of_bytes_is_one_kernel_and_off_by_one_quantum_at_most(
    length: int, scale: float, step: float, zero: int
) -> None:
    b = GraphBuilder()
    soft = b.op("Softmax", dequantized(b, b.input("x", "uint8", (60, length)), scale, np.uint8(128)), axis=-1)
    graph = b.finish({"y": quantized(b, soft, step, np.uint8(zero))})
    made = eqsat.optimize(graph, form="onnxruntime", cost="kernels", verify=False).program.graph
    assert dict(made.operator_counts()) == {"com.microsoft::QLinearSoftmax": 1}
    x = np.random.default_rng(length).integers(0, 256, (60, length)).astype(np.uint8)
    x[:4] = np.array([0, 128, 254, 255], np.uint8)[
        :, None
    ]  # rows of equal parts, and rows with one part that differs by one
    x[4:8] = x[:4]
    x[4:8, -1] ^= 1
    x[8:12, 1:] = 0
    expected, found = (Session(to_model(g), "disable").run({"x": x})["y"].astype(int) for g in (graph, made))
    apart = np.abs(expected - found)
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= max(1, 2e-4 * apart.size)


@pytest.mark.parametrize("step", [0.0035, 1 / 300])
def test_softmax_of_bytes_stays_where_the_kernel_would_round_the_scale(step: float) -> None:
    b = GraphBuilder()
    soft = b.op("Softmax", dequantized(b, b.input("x", "uint8", (3, 2)), 0.1, np.uint8(128)), axis=-1)
    graph = b.finish({"y": quantized(b, soft, step, np.uint8(0))})
    made = eqsat.optimize(graph, form="onnxruntime", cost="kernels", verify=False).program.graph
    assert set(made.operator_counts()) == {"DequantizeLinear", "Mul", "Softmax", "QuantizeLinear"}


@pytest.mark.parametrize("step", [1 / 256, 1 / 255])
def test_softmax_of_bytes_of_a_file_is_taken_apart_where_that_gives_what_the_kernel_does(step: float) -> None:
    """Of 255 quanta, which float32 has a little less of, it makes 254: of one element in six it made another byte."""
    b = GraphBuilder()
    scales = (
        b.constant(np.float32(0.01)),
        b.constant(np.uint8(128)),
        b.constant(np.float32(step)),
        b.constant(np.uint8(0)),
    )
    x = b.input("x", "uint8", (64, 7))
    soft = b.op("com.microsoft::QLinearSoftmax", x, *scales, axis=-1, opset=13)
    result = eqsat.optimize(b.finish({"y": b.op("DequantizeLinear", soft, *scales[2:])}))
    assert not result.report.left_out
    assert ("take_quantised_operator_apart" in result.report.rules) == (step == 1 / 256)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("quantised", [False, True])
def test_weights_of_convolutions_on_floats_are_dequantised_when_the_program_is_loaded(
    op: str, *, quantised: bool
) -> None:
    """As NNCF leaves them, whose results are activated in floats: on every call, and in no blocks of channels, otherwise."""
    b = GraphBuilder()
    rng, out = np.random.default_rng(0), int(op == "ConvTranspose")
    weights = b.constant(rng.integers(-127, 128, (64, 64, 3, 3)).astype(np.int8))
    scales = b.constant(rng.uniform(0.001, 0.002, 64).astype(np.float32))
    x = b.input("x", "float32", (1, 64, 16, 16))
    if quantised:
        step, zero = b.constant(np.float32(0.02)), b.constant(np.uint8(128))
        x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, step, zero), step, zero)
    y = b.op(op, x, b.op("DequantizeLinear", weights, scales, axis=out), pads=(1, 1, 1, 1))
    result = eqsat.optimize(b.finish([b.op("Mul", y, b.op("Sigmoid", y))]))
    _assert_verified(result)
    graph = result.program.graph
    dequantised = [n.inputs[0] for n in graph.nodes if n.op == "DequantizeLinear"]
    assert graph.constants.keys().isdisjoint(dequantised)
    assert result.report.constant_bytes_after < 1.1 * result.report.constant_bytes_before


@pytest.mark.parametrize(
    ("scale", "image", "fused"),
    [(0.02, 7, True), (0.02, "h", True), (1e32, 7, False), (0.002, 1, False), (0.002, "h", False)],
)
def test_averages_of_images_of_bytes_are_one_kernel_where_it_takes_their_scales(
    scale: float, image: int | str, fused: bool
) -> None:
    """It refuses quotients of the scales, and the elements of an image, below 2**-32 and from 2**8 on."""
    b = GraphBuilder()
    x = b.op(
        "DequantizeLinear", b.input("x", "int8", (2, 3, image, 1)), b.constant(np.float32(0.64)), b.constant(np.int8(5))
    )
    y = b.op("QuantizeLinear", b.op("GlobalAveragePool", x), b.constant(np.float32(scale)), b.constant(np.int8(3)))
    result = eqsat.optimize(b.finish([y]), form="onnxruntime")
    assert ("QLinearGlobalAveragePool" in [n.op for n in result.program.graph.nodes]) == fused
    assert not result.report.left_out


def test_shared_and_stored_keys_have_an_operator_of_their_own() -> None:
    def without_attention(work: Any) -> float:
        return 2.0 if "Attention" in work.operators else 1.0

    result = eqsat.optimize(shared_heads(), form="onnxruntime", cost=without_attention)
    assert result.program.graph.operator_counts()["com.microsoft::GroupQueryAttention"] == 1
    _assert_verified(result)


def test_a_bias_that_is_no_whole_number_of_units_stays_a_float() -> None:
    b = GraphBuilder()
    x = dequantized(b, b.input("x", "uint8", (5, 16)), 0.02, np.uint8(3))
    rng = np.random.default_rng(3)
    weight = dequantized(b, b.constant(rng.integers(-127, 128, (16, 8)).astype(np.int8)), 0.01, np.int8(0))
    y = b.op("Add", b.op("MatMul", x, weight), b.constant(rng.normal(scale=0.2, size=8).astype(np.float32)))
    graph = b.finish({"y": quantized(b, y, 0.02, np.uint8(120))})
    assert eqsat.optimize(graph, form="onnxruntime", cost="kernels").report.operators_after == {
        "com.microsoft::MatMulIntegerToFloat": 1,
        "QuantizeLinear": 1,
    }
    assert "Pad" in eqsat.optimize(graph, cost="kernels", form="flat").report.operators_after


@pytest.mark.parametrize("name", ["dynamic/llama.dynamo", "dynamic/llama_decode.dynamo"])
def test_language_models_with_symbols_need_no_new_opset(name: str, real_model: Callable[[str], Path]) -> None:
    """Two layers, of which two heads share keys: rotary embeddings, norms and attention are operators of ONNX Runtime."""
    result = eqsat.optimize(real_model(name), form="onnxruntime", opset=21)
    counts = {k.removeprefix("com.microsoft::"): n for k, n in result.report.operators_after.items()}
    assert (counts["MultiHeadAttention"], counts["RotaryEmbedding"], counts["QuickGelu"]) == (2, 4, 2)
    assert counts["MatMul"] <= 13
    assert result.report.recognized["rms_norm"] == 5
    assert not counts.keys() & {"Softmax", "Neg", "ReduceMean", "Transpose"}
    _assert_verified(result)


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("tokens", ["tokens", 24])
def test_tokens_are_sorted_by_expert(tokens: str | int, columns: bool) -> None:
    """Two of five for each token, whose weights transformers' `batched_mm` looks up: a copy for each choice."""
    b, rng = GraphBuilder(), np.random.default_rng(5)
    x = b.input("x", "float32", (tokens, 64))

    def multiply(vectors: str, ids: str, out: int, inner: int) -> str:
        stack = rng.normal(size=(5, out, inner)).astype(np.float32) / np.float32(inner**0.5)
        weights = b.constant(stack if columns else stack.swapaxes(1, 2).copy())
        matrices = (
            b.op("Gather", weights, ids, axis=0) if columns else b.op("GatherND", weights, b.op("Unsqueeze", ids, one))
        )
        axis = two if columns else one
        vectors = b.op("Unsqueeze", vectors, axis)
        return b.op("Squeeze", b.op("MatMul", *((matrices, vectors) if columns else (vectors, matrices))), axis)

    one, two, last = (b.constant([n], "int64") for n in (1, 2, -1))
    scores = b.op("Softmax", b.op("MatMul", x, b.constant(rng.normal(size=(64, 5)), "float32")), axis=-1)
    shares, ids = b.op("TopK", scores, two, outputs=2, axis=-1)
    ids = b.op("Reshape", ids, last)
    twice = b.op("Expand", b.op("Unsqueeze", x, one), b.constant([1, 2, 1], "int64"))
    hidden = multiply(b.op("Reshape", twice, b.constant([-1, 64], "int64")), ids, 192, 64)
    gate, up = b.op("Split", hidden, outputs=2, axis=1, num_outputs=2)
    made = multiply(b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up), ids, 64, 96)
    weighed = b.op("Mul", made, b.op("Reshape", shares, b.constant([-1, 1], "int64")))
    y = b.op("ReduceSum", b.op("Reshape", weighed, b.constant([-1, 2, 64], "int64")), one, keepdims=0)
    result = eqsat.optimize(b.finish({"y": y}))
    assert result.report.recognized["experts"] == 1
    assert result.report.operators_after["MatMul"] == 1
    _assert_verified(result)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_of_a_decoder_has_ten_operators_a_layer(batch: int, real_model: Callable[[str], Path]) -> None:
    """Products of queries, keys and values, of the result, of gate and up, and of what they gate; attention, in which heads turn;
    two norms with the sums before them; Split, SiLU and the product of the two."""
    sizes = {"batch": batch, "seq": 1, "past": 24, "total": 25}
    result = eqsat.optimize(
        real_model("dynamic/llama_decode.dynamo"), dims=sizes, form="onnxruntime", cost="kernels", opset=21
    )
    counts = {k.removeprefix("com.microsoft::"): n for k, n in result.report.operators_after.items()}
    assert (counts["MatMul"], counts["GroupQueryAttention"], counts["SkipSimplifiedLayerNormalization"]) == (9, 2, 4)
    assert (counts["Split"], counts["QuickGelu"]) == (2, 2)
    assert "RotaryEmbedding" not in counts
    assert sum(result.program.graph.operator_counts().values()) <= 2 * 10 + 15
    _assert_verified(result)


def test_attention_on_stored_keys_asks_for_all_keys_and_values() -> None:
    """The kernels work in these two results, and compute something else where nobody asks for them."""
    b = GraphBuilder()

    def heads(name: str, length: int) -> str:
        apart = b.op("Reshape", b.input(name, "float32", (1, length, 16)), b.constant([1, length, 2, 8], "int64"))
        return b.op("Transpose", apart, perm=(0, 2, 1, 3))

    q, k, v = heads("q", 7), heads("k", 3), heads("v", 3)
    keys, values = (
        b.op("Concat", b.input(name, "float32", (1, 2, 4, 8)), new, axis=2) for name, new in (("pk", k), ("pv", v))
    )
    scores = b.op("MatMul", q, b.op("Transpose", keys, perm=(0, 1, 3, 2)))
    rows = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores, axis=-1), values), perm=(0, 2, 1, 3))
    graph = b.finish({"y": b.op("Reshape", rows, b.constant([1, 7, 16], "int64"))})
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels", opset=21)
    (attention,) = result.program.graph.nodes
    assert (attention.op, len(attention.inputs)) == ("MultiHeadAttention", 8)
    assert all(attention.outputs)
    _assert_verified(result)


def test_a_factor_behind_attention_leaves_it_in_rows() -> None:
    """Attention of a query that may see nothing is zero in PyTorch. Two heads of queries share each of two of keys."""
    b = GraphBuilder()
    apart, spread, whole = (b.constant(s, "int64") for s in ([1, 5, 4, 8], [1, 2, 2, 5, 8], [1, 4, 5, 8]))
    q = b.op("Transpose", b.op("Reshape", b.input("q", "float32", (1, 5, 32)), apart), perm=(0, 2, 1, 3))
    alone = (b.op("Unsqueeze", b.input(name, "float32", (1, 2, 5, 8)), b.constant([2], "int64")) for name in "kv")
    k, v = (b.op("Reshape", b.op("Expand", x, spread), whole) for x in alone)
    mask = b.input("mask", "bool", (1, 1, 5, 5))
    bias = b.op("Where", mask, b.constant(0.0, "float32"), b.constant(-3e38, "float32"))
    scores = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), bias)
    found = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    seen = b.op("ReduceMax", b.op("Cast", mask, to=6), b.constant([-1], "int64"), keepdims=1)
    found = b.op("Mul", found, b.op("Cast", seen, to=1))
    rows = b.op("Reshape", b.op("Transpose", found, perm=(0, 2, 1, 3)), b.constant([1, 5, 32], "int64"))
    result = eqsat.optimize(b.finish({"y": rows}), form="onnxruntime", cost="kernels", opset=21)
    counts = result.report.operators_after
    assert counts.keys() & {"com.microsoft::MultiHeadAttention", "com.microsoft::GroupQueryAttention"}
    assert not counts.keys() & {"Softmax", "Expand"}
    _assert_verified(result)


def test_attention_without_a_scale_is_written_without_one() -> None:
    """The rule stated none, and such a file could not be written."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (1, n, 32)) for name, n in zip("qkv", (5, 7, 7), strict=True))
    encoding = encode(b.finish({"y": b.op("Attention", q, k, v, q_num_heads=4, kv_num_heads=4)}))
    saturate(encoding.egraph, [find_rule("use_multi_head_attention")], Limits(), literals=True)
    (found,) = (node for node in encoding.egraph.nodes if node.op.endswith("MultiHeadAttention"))
    assert dict(found.attributes) == {"num_heads": 4}
