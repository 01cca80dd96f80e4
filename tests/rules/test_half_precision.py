"""Structures computed wholly in half precision: what is recognised, what is not, and what ONNX Runtime makes of either."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes  # noqa: F401  # names bfloat16
import numpy as np
import pytest

import eqsat
from benchmarks.spelling_blocks import Types, attention
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

WIDTH = 16
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2}


def layer_norm(dtype: str, epsilon: float = 1e-5, inside: int = 0) -> Graph:
    """A layer normalisation spelled out; ``inside``: the element type of its second half, between casts."""
    b = GraphBuilder()
    x = b.input("x", dtype, (3, 5, WIDTH))
    axes, random = b.constant([-1], "int64"), np.random.default_rng(1)
    d = b.op("Sub", x, b.op("ReduceMean", x, axes))
    wide = b.op("Cast", d, to=inside) if inside else d
    variance = b.op("ReduceMean", b.op("Mul", wide, wide), axes)
    number = np.asarray(epsilon, {0: dtype, 1: "float32", 11: "float64"}[inside])
    y = b.op("Div", wide, b.op("Sqrt", b.op("Add", variance, b.constant(number))))
    y = b.op("Cast", y, to=10) if inside else y
    gain, shift = (b.constant(random.normal(size=WIDTH).astype(dtype)) for _ in range(2))
    return b.finish({"y": b.op("Add", b.op("Mul", y, gain), shift)})


def rows(size: float, dtype: str) -> dict[str, np.ndarray]:
    return {"x": (np.random.default_rng(2).normal(size=(3, 5, WIDTH)) * size).astype(dtype)}


def optimised(graph: Graph, **options: Any) -> eqsat.Result:
    return eqsat.optimize(graph, form="flat", **options)


@pytest.mark.parametrize("inside", [0, 1, 11], ids=["half", "float32", "float64"])
def test_a_norm_in_float16_is_one_operator_whose_statistics_are_in_float32(inside: int) -> None:
    graph = layer_norm("float16", inside=inside)
    result = optimised(graph)
    assert result.report.operators_after == {"LayerNormalization": 1}
    assert result.report.exactness == "rounding"
    assert result.report.verification["verdict"] == "within tolerance"
    for size in (0.01, 1.0, 30.0):
        feeds = rows(size, "float16")
        ours, original = (Session(to_model(g)).run(feeds)["y"] for g in (result.program.graph, graph))
        for expected in (run(graph, feeds)["y"], original):
            np.testing.assert_allclose(ours, expected, rtol=TOLERANCE["float16"], atol=TOLERANCE["float16"])


def test_a_norm_in_bfloat16_is_one_operator() -> None:
    graph = layer_norm("bfloat16", 1e-12)
    result = optimised(graph)
    assert result.report.operators_after == {"LayerNormalization": 1}
    found, expected = (run(g, rows(1.0, "bfloat16"))["y"].astype(np.float32) for g in (result.program.graph, graph))
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE["bfloat16"], atol=TOLERANCE["bfloat16"])


def test_where_squares_overflow_the_norm_is_what_the_program_means() -> None:
    """The steps make zeros of such rows; of class rounding, which leaves out what overflows on the way."""
    graph, feeds = layer_norm("float16"), rows(3e3, "float16")
    with np.errstate(over="ignore"):
        steps = run(graph, feeds)["y"]
    exact = run(layer_norm("float16", inside=11), feeds)["y"]
    assert np.abs(exact - steps).max() > 1
    np.testing.assert_allclose(run(optimised(graph).program.graph, feeds)["y"], exact, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("epsilon", [1e-12, 5e-7], ids=["zero in float16", "smaller than squares that vanish"])
def test_a_norm_in_float16_beside_a_small_epsilon_stays(epsilon: float) -> None:
    """Rows whose squares vanish are divided by the root of epsilon alone, or by zero: the operator would find their squares."""
    graph = layer_norm("float16", epsilon)
    assert "LayerNormalization" not in optimised(graph, verify=False).report.operators_after
    assert optimised(layer_norm("float16", epsilon, 11)).report.operators_after == {"LayerNormalization": 1}


def test_a_group_norm_in_float16_is_one_operator() -> None:
    b = GraphBuilder()
    x, random = b.input("x", "float16", (2, 6, 3, 4)), np.random.default_rng(4)
    grouped, back = b.constant([0, 2, -1], "int64"), b.constant([2, 6, 3, 4], "int64")
    ones, zeros = (b.constant(np.full(2, value, np.float16)) for value in (1, 0))
    normal = b.op("InstanceNormalization", b.op("Reshape", x, grouped), ones, zeros)
    gain, shift = (b.constant(random.normal(size=(6, 1, 1)).astype(np.float16)) for _ in range(2))
    graph = b.finish({"y": b.op("Add", b.op("Mul", b.op("Reshape", normal, back), gain), shift)})
    result = optimised(graph, target="launch-count")  # ONNX Runtime has no such kernel
    assert result.report.operators_after == {"GroupNormalization": 1}
    assert result.report.verification["verdict"] == "within tolerance"


MASKS = {
    "open": [0, -65504, 0, 0, -np.inf, 0],
    "ordinary": [-3, 2, 0, 11, -60, 0],
    "the lowest in all places": [-65504] * 6,
    "low or minus infinity": [-65504, -np.inf, -65504, -65504, -np.inf, -65504],
    "low": [-2e4, -3e4, -2e4, -2e4, -6e4, -2e4],
    "minus infinity in all places": [-np.inf] * 6,
}


def _attending(b: GraphBuilder, x: str, mask: str) -> Graph:
    """Attention of three heads in the rows of ``x`` under a mask."""
    heads, back = b.constant([0, 0, 3, 4], "int64"), b.constant([0, 0, 12], "int64")
    q, k, v = (
        b.op("Transpose", b.op("Reshape", b.op(op, x), heads), perm=(0, 2, 1, 3)) for op in ("Tanh", "Neg", "Abs")
    )
    scores = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), mask)
    y = b.op("MatMul", b.op("Softmax", scores), v)
    return b.finish({"y": b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), back)})


@pytest.mark.parametrize("row", MASKS)
def test_any_mask_of_float16_leaves_of_attention_what_it_left(row: str) -> None:
    """The kernel of ONNX Runtime takes the lowest number for minus infinity, and makes zeros of rows of that: never NaN."""
    b = GraphBuilder()
    x, mask = b.input("x", "float16", (2, 6, 12)), b.input("m", "float16", (2, 1, 1, 6))
    graph = _attending(b, x, mask)
    made = optimised(graph, verify=False, cost="kernels").program.graph
    counts = made.operator_counts()
    assert counts["Attention"] == 1
    assert "Cast" not in counts
    feeds = {"x": rows(1.0, "float16")["x"].reshape(-1)[:144].reshape(2, 6, 12)}
    feeds["m"] = np.broadcast_to(np.asarray(MASKS[row], np.float16), (2, 1, 1, 6)).copy()
    feeds["m"][0] = 0
    with np.errstate(all="ignore"):
        (expected,) = run(graph, feeds).values()
    (found,) = Session(to_model(made)).run(feeds).values()
    assert np.isnan(expected).any() == ("minus infinity in" in row)
    far = row in ("the lowest in all places", "low or minus infinity", "low")
    atol = (
        4e-3 if not far else np.abs(feeds["x"]).max()
    )  # a mean of values, whichever steps of 16 or 32 are left of scores
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=atol)


def test_masks_of_few_numbers_may_be_joined_and_padded() -> None:
    """As GPT-2 puts zeros for stored keys before a mask of places; what is added is lower in float32, and loses as much."""
    b = GraphBuilder()
    x, low, zero = b.input("x", "float16", (2, 6, 12)), b.constant(np.float16(-65504)), b.constant(np.float16(0))
    choices = [b.op("Where", b.input(f"m{n}", "bool", (2, 1, 1, n)), zero, low) for n in (2, 3)]
    joined = b.op("Concat", *choices, axis=-1)
    mask = b.op("Pad", joined, b.constant([0, 0, 0, 1, 0, 0, 0, 0], "int64"))
    graph = _attending(b, x, mask)
    made = optimised(graph, verify=False, cost="kernels").program.graph
    assert made.operator_counts()["Attention"] == 1
    random = np.random.default_rng(1)
    feeds: dict[str, np.ndarray] = {f"m{n}": random.integers(0, 2, (2, 1, 1, n)).astype(bool) for n in (2, 3)}
    feeds["x"] = random.normal(size=(2, 6, 12)).astype(np.float16)
    (expected,), (found,) = (run(g, feeds).values() for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_values_in_half_precision_behind_a_softmax_of_products_in_float32(dtype: str, masked: bool) -> None:
    """As GPT-J: the operator, which has one type for all, is in float32."""
    kind, shape, b = {"float16": 10, "bfloat16": 16}[dtype], (2, 3, 5, 8), GraphBuilder()
    q, k, v = (b.input(n, dtype, shape) for n in "qkv")
    q, k = (b.op("Cast", x, to=1) for x in (q, k))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    if masked:
        low = b.constant(np.finfo(np.float32).min)
        scores = b.op("Where", b.constant(np.tri(5, dtype=np.bool_)), scores, low)
    graph = b.finish({"y": b.op("MatMul", b.op("Cast", b.op("Softmax", scores), to=kind), v)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = optimised(graph, verify=False).program.graph
    assert made.operator_counts() == {"Cast": 4, "Attention": 1}
    random = np.random.default_rng(0)
    feeds = {n: random.normal(size=shape).astype(dtype) for n in graph.inputs}
    expected, found = (run(g, feeds)["y"].astype(np.float32) for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=4 * TOLERANCE[dtype])


def test_attention_in_float16_whose_softmax_is_in_float32_is_one_operator() -> None:
    """As PyTorch's ``softmax(scores, dtype=torch.float32).to(scores.dtype)``."""
    b, shape = GraphBuilder(), (2, 3, 5, 8)
    q, k, v = (b.input(n, "float16", shape) for n in "qkv")
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    chances = b.op("Cast", b.op("Softmax", b.op("Cast", scores, to=1)), to=10)
    graph = b.finish({"y": b.op("MatMul", chances, v)})
    made = optimised(graph, verify=False, cost="kernels").program.graph
    assert made.operator_counts() == {"Attention": 1}
    random = np.random.default_rng(0)
    feeds = {n: random.normal(size=shape).astype("float16") for n in graph.inputs}
    expected, found = (run(g, feeds)["y"].astype(np.float32) for g in (graph, made))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE["float16"])


@pytest.mark.parametrize(("dtype", "low"), [("float16", -1e4), ("bfloat16", -1e4), ("bfloat16", -1e9)])
def test_computed_masks_leave_of_a_row_without_keys_what_they_left(dtype: str, low: float) -> None:
    """In float32 so much lower that as many digits of the scores are lost."""
    graph = attention(4, Types(dtype), low)
    made = optimised(graph, verify=False).program.graph
    assert made.operator_counts()["Attention"] == 1
    x = (np.random.default_rng(3).normal(size=(2, 6, 12)) * 3).astype(dtype)
    feeds = {"x": x, "mask": np.arange(12).reshape(2, 6) < 5}
    (expected,), (found,) = (run(g, feeds).values() for g in (graph, made))
    size = np.abs(expected.astype(np.float32)).max()
    np.testing.assert_allclose(
        found.astype(np.float32), expected.astype(np.float32), rtol=0, atol=2 * TOLERANCE[dtype] * size
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_turned_features_that_are_read_in_float32_are_turned_there(dtype: str) -> None:
    """The casts of cosines and sines are left out, and each of the others takes the place of the one behind the operator."""
    kind, b = {"float16": 10, "bfloat16": 16}[dtype], GraphBuilder()
    angles = b.input("angles", "float32", (2, 5, 4))
    tables = [b.op("Cast", b.op(op, angles), to=kind) for op in ("Cos", "Sin")]
    x = b.op("Cast", b.input("x", "float32", (2, 3, 5, 8)), to=kind)
    y = b.op("Cast", b.op("RotaryEmbedding", b.op("Neg", x), *tables), to=1)
    graph = b.finish({"y": y})
    result = optimised(graph, verify=False)
    assert result.report.operators_after == {"Cos": 1, "Sin": 1, "Cast": 2, "Neg": 1, "RotaryEmbedding": 1}
    assert result.report.exactness == "rounding"
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=graph.type_of(name).shape).astype(np.float32) for name in graph.inputs}  # type: ignore[union-attr]
    expected, found = (run(g, feeds)["y"] for g in (graph, result.program.graph))
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE[dtype], atol=4 * TOLERANCE[dtype])


@pytest.mark.parametrize("tables", ["cast down", "in float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_decoder_that_computes_in_float32_between_casts_has_its_structures(dtype: str, tables: str) -> None:
    """As language models of PyTorch: norm and softmax in float32, and now and then products with cosines and sines."""
    kind, b, heads, size = {"float16": 10, "bfloat16": 16}[dtype], GraphBuilder(), 2, 8
    half, random = np.dtype(dtype), np.random.default_rng(0)

    def constant(*shape: int) -> str:
        return b.constant(random.normal(size=shape).astype(half))

    x = b.input("x", dtype, (1, 5, heads * size))
    wide = b.op("Cast", x, to=1)
    mean = b.op("ReduceMean", b.op("Mul", wide, wide), b.constant([-1], "int64"), keepdims=1)
    root = b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean, b.constant(np.float32(1e-5)))))
    normed = b.op("Mul", constant(heads * size), b.op("Cast", b.op("Mul", wide, root), to=kind))
    angles = b.op("Unsqueeze", b.input("angles", "float32", (1, 5, size // 2)), b.constant([1], "int64"))
    cos, sin = (b.op("Concat", *[b.op(op, angles)] * 2, axis=3) for op in ("Cos", "Sin"))
    if tables == "cast down":
        cos, sin = (b.op("Cast", factor, to=kind) for factor in (cos, sin))

    def projected() -> str:
        found = b.op("MatMul", normed, constant(heads * size, heads * size))
        found = b.op("Reshape", found, b.constant([1, 5, heads, size], "int64"))
        return b.op("Transpose", found, perm=(0, 2, 1, 3))

    def turned(q: str) -> str:
        first, second = b.op("Split", q, b.constant([size // 2] * 2, "int64"), axis=3, outputs=2)
        swapped = b.op("Concat", b.op("Neg", second), first, axis=3)
        if tables == "cast down":
            return b.op("Add", b.op("Mul", q, cos), b.op("Mul", swapped, sin))
        q, swapped = (b.op("Cast", value, to=1) for value in (q, swapped))
        return b.op("Cast", b.op("Add", b.op("Mul", q, cos), b.op("Mul", swapped, sin)), to=kind)

    q, k, v = turned(projected()), turned(projected()), projected()
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    chances = b.op("Softmax", b.op("Cast", b.op("Mul", scores, b.constant(np.array(0.25, half))), to=1), axis=-1)
    graph = b.finish({"y": b.op("MatMul", b.op("Cast", chances, to=kind), v)})
    result = optimised(graph, verify=False)
    found = result.report.operators_after
    assert [found.get(op) for op in ("RMSNormalization", "RotaryEmbedding", "Attention")] == [1, 2, 1]
    assert not {"Softmax", "ReduceMean", "Neg"} & set(found)
    feeds = {
        name: random.normal(size=graph.type_of(name).shape).astype(graph.type_of(name).dtype.numpy)  # type: ignore[union-attr]
        for name in graph.inputs
    }
    expected, got = (run(g, feeds)["y"].astype(np.float32) for g in (graph, result.program.graph))
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=8 * TOLERANCE[dtype])


def test_attention_is_found_whose_mask_is_added_between_casts() -> None:
    """As by converters to half precision that are told to leave Add and Softmax in float32 (`op_block_list`)."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "float16", (2, 4, 8, WIDTH)) for name in "qkv")
    mask = b.input("mask", "float16", (2, 1, 8, 8))
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), b.constant(np.float16(0.25)))
    masked = b.op("Cast", b.op("Add", *(b.op("Cast", x, to=1) for x in (scores, mask))), to=10)
    weights = b.op("Cast", b.op("Softmax", b.op("Cast", masked, to=1), axis=-1), to=10)
    assert eqsat.optimize(b.finish({"y": b.op("MatMul", weights, v)})).report.recognized == {"attention": 1}
