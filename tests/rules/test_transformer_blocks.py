"""Blocks of Llama, GPT-2 and ViT as exporters spell them: projections merged, norms, attention, embeddings and gates found."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_graphs import LOWEST, ints, number
from graph_checks import assert_close, counts

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

S, HEADS, GROUPS, SIZE, INNER = 6, 4, 2, 4, 24
WIDTH = HEADS * SIZE
RNG = np.random.default_rng(11)


def weight(b: GraphBuilder, *shape: int) -> str:
    return b.constant((RNG.normal(size=shape) / 4).astype(np.float32))


def rms_norm(b: GraphBuilder, x: Any) -> Any:
    mean = b.op("ReduceMean", b.op("Pow", x, number(b, 2.0)), ints(b, -1), keepdims=1)
    root = b.op("Reciprocal", b.op("Sqrt", b.op("Add", mean, number(b, 1e-6))))
    return b.op("Mul", weight(b, WIDTH), b.op("Mul", x, root))


def layer_norm(b: GraphBuilder, x: Any) -> Any:
    centred = b.op("Sub", x, b.op("ReduceMean", x, ints(b, -1), keepdims=1))
    variance = b.op("ReduceMean", b.op("Pow", centred, number(b, 2.0)), ints(b, -1), keepdims=1)
    scaled = b.op("Div", centred, b.op("Sqrt", b.op("Add", variance, number(b, 1e-5))))
    return b.op("Add", b.op("Mul", scaled, weight(b, WIDTH)), weight(b, WIDTH))


def heads_of(b: GraphBuilder, x: Any, heads: int) -> Any:
    return b.op("Transpose", b.op("Reshape", x, ints(b, 1, S, heads, SIZE)), perm=(0, 2, 1, 3))


def attend(b: GraphBuilder, q: Any, k: Any, v: Any, mask: Callable[[Any], Any] = lambda s: s) -> Any:
    s = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), number(b, SIZE**-0.5))
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", mask(s)), v), perm=(0, 2, 1, 3))
    return b.op("Reshape", y, ints(b, 0, 0, WIDTH))


def embedded(b: GraphBuilder, x: Any) -> Any:
    angles = np.outer(np.arange(S), 10.0 ** -np.arange(0, 1, 2 / SIZE))
    cosine, sine = (b.constant(f(np.tile(angles, 2)).astype(np.float32)[None, None]) for f in (np.cos, np.sin))
    low, high = (b.op("Slice", x, ints(b, i), ints(b, i + SIZE // 2), ints(b, 3)) for i in (0, SIZE // 2))
    turned = b.op("Concat", b.op("Neg", high), low, axis=-1)
    return b.op("Add", b.op("Mul", x, cosine), b.op("Mul", turned, sine))


def llama_block() -> Graph:
    """Grouped queries, rotary embeddings, a causal mask that also takes padding from an input, gate and up."""
    b = GraphBuilder("llama")
    x = b.input("x", "float32", (1, S, WIDTH))
    real = b.op("Reshape", b.op("Cast", b.input("padding", "int64", (1, S)), to=9), ints(b, 1, 1, 1, S))
    allowed = b.op("And", b.constant(np.tri(S, dtype=np.bool_)[None, None]), real)
    forbidden = b.op("Where", allowed, number(b, 0.0), number(b, LOWEST))
    y = rms_norm(b, x)
    q, k, v = (heads_of(b, b.op("MatMul", y, weight(b, WIDTH, n * SIZE)), n) for n in (HEADS, GROUPS, GROUPS))
    q, k = embedded(b, q), embedded(b, k)
    times = HEADS // GROUPS
    k, v = (b.op("Expand", b.op("Unsqueeze", z, ints(b, 2)), ints(b, 1, GROUPS, times, S, SIZE)) for z in (k, v))
    k, v = (b.op("Reshape", z, ints(b, 1, HEADS, S, SIZE)) for z in (k, v))
    y = attend(b, q, k, v, lambda s: b.op("Add", s, forbidden))
    x = b.op("Add", x, b.op("MatMul", y, weight(b, WIDTH, WIDTH)))
    y = rms_norm(b, x)
    gate, up = (b.op("MatMul", y, weight(b, WIDTH, INNER)) for _ in range(2))
    y = b.op("Mul", b.op("Mul", gate, b.op("Sigmoid", gate)), up)
    return b.finish([b.op("Add", x, b.op("MatMul", y, weight(b, INNER, WIDTH)))])


def gelu_tanh(b: GraphBuilder, x: Any) -> Any:
    cube = b.op("Mul", number(b, 0.044715), b.op("Pow", x, number(b, 3.0)))
    inner = b.op("Tanh", b.op("Mul", number(b, (2 / np.pi) ** 0.5), b.op("Add", x, cube)))
    return b.op("Mul", b.op("Mul", number(b, 0.5), x), b.op("Add", number(b, 1.0), inner))


def gelu(b: GraphBuilder, x: Any) -> Any:
    erf = b.op("Erf", b.op("Div", x, number(b, 2**0.5)))
    return b.op("Mul", b.op("Mul", x, b.op("Add", erf, number(b, 1.0))), number(b, 0.5))


def gpt2_block() -> Graph:
    """One packed projection with a bias, and a causal mask cut from a larger triangle."""
    b = GraphBuilder("gpt2")
    x = b.input("x", "float32", (1, S, WIDTH))
    packed = b.op("Add", b.op("MatMul", layer_norm(b, x), weight(b, WIDTH, 3 * WIDTH)), weight(b, 3 * WIDTH))
    parts = b.op("Split", packed, ints(b, WIDTH, WIDTH, WIDTH), outputs=3, axis=2)
    whole = b.constant(np.tri(2 * S, dtype=np.bool_)[None, None])
    causal = b.op("Slice", whole, ints(b, 0, 0), ints(b, S, S), ints(b, 2, 3))
    q, k, v = (heads_of(b, p, HEADS) for p in parts)
    y = attend(b, q, k, v, lambda s: b.op("Where", causal, s, number(b, LOWEST)))
    x = b.op("Add", x, b.op("Add", b.op("MatMul", y, weight(b, WIDTH, WIDTH)), weight(b, WIDTH)))
    y = gelu_tanh(b, b.op("Add", b.op("MatMul", layer_norm(b, x), weight(b, WIDTH, INNER)), weight(b, INNER)))
    return b.finish([b.op("Add", x, b.op("Add", b.op("MatMul", y, weight(b, INNER, WIDTH)), weight(b, WIDTH)))])


def vit_block() -> Graph:
    """Three projections with biases, no mask."""
    b = GraphBuilder("vit")
    x = b.input("x", "float32", (1, S, WIDTH))
    y = layer_norm(b, x)
    parts = [b.op("Add", weight(b, WIDTH), b.op("MatMul", y, weight(b, WIDTH, WIDTH))) for _ in range(3)]
    q, k, v = (heads_of(b, p, HEADS) for p in parts)
    y = attend(b, q, k, v)
    x = b.op("Add", b.op("Add", b.op("MatMul", y, weight(b, WIDTH, WIDTH)), weight(b, WIDTH)), x)
    y = gelu(b, b.op("Add", b.op("MatMul", layer_norm(b, x), weight(b, WIDTH, INNER)), weight(b, INNER)))
    return b.finish([b.op("Add", x, b.op("Add", b.op("MatMul", y, weight(b, INNER, WIDTH)), weight(b, WIDTH)))])


BLOCKS: dict[str, tuple[Graph, dict[str, int]]] = {
    "llama": (llama_block(), {"RMSNormalization": 2, "RotaryEmbedding": 2, "Attention": 1, "Sigmoid": 1}),
    "gpt2": (gpt2_block(), {"LayerNormalization": 2, "Attention": 1, "Gelu": 1}),
    "vit": (vit_block(), {"LayerNormalization": 2, "Attention": 1, "Gelu": 1}),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_has_four_products_and_one_attention(name: str) -> None:
    graph, expected = BLOCKS[name]
    result = eqsat.optimize(graph, verify=False, form="flat")
    left = counts(result)
    products = sum(left.get(op, 0) for op in ("MatMul", "Gemm"))
    assert products == 4  # packed queries, keys and values; behind attention; packed gate and up, or up; down
    assert {op: left.get(op, 0) for op in expected} == expected
    (attention,) = (node for node in result.program.graph.nodes if node.op == "Attention")
    assert attention.attributes.get("is_causal", 0) == (name == "gpt2")
    heads = attention.attributes["q_num_heads"], attention.attributes["kv_num_heads"]
    assert heads == (HEADS, GROUPS if name == "llama" else HEADS)
    assert "Transpose" not in left
    feeds: dict[str, Any] = {"x": np.random.default_rng(2).normal(size=(1, S, WIDTH)).astype(np.float32)}
    if name == "llama":
        feeds["padding"] = np.array([[0, 1, 1, 1, 1, 1]])
    assert_close(run(graph, feeds), run(result.program.graph, feeds), 2e-5)


MODELS = {
    "llama": (6, 25, {"attention": 6, "rms_norm": 13}),
    "gpt2": (12, 49, {"attention": 12, "gelu": 12, "layer_norm": 25}),
    "vit_b16": (12, 49, {"attention": 12, "gelu": 12, "layer_norm": 25}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_layer_of_a_model(name: str, real_model: Callable[[str], Path]) -> None:
    """Four products for each layer, and those of the head: 25 and 49 in all."""
    layers, products, recognised = MODELS[name]
    result = eqsat.optimize(real_model(name), verify=False, form="flat")
    left = result.report.operators_after
    assert result.report.stop_reason == "saturated"
    assert sum(left.get(op, 0) for op in ("MatMul", "Gemm")) == products
    assert {k: result.report.recognized.get(k, 0) for k in recognised} == recognised
    assert "Softmax" not in left
    assert len([n for n in result.program.graph.nodes if n.op == "Attention"]) == layers


def multihead_attention(batch: int | str, length: int | str, masked: bool) -> Graph:
    """``torch.nn.MultiheadAttention(batch_first=True)``: rows before batches inside, queries, keys and values along an axis of
    their own that is moved to the front, heads part of the batch; a row may forbid all keys."""
    b = GraphBuilder()
    x = b.input("x", "float32", (batch, length, WIDTH))
    extent = {name: b.op("Shape", x, start=i, end=i + 1) for i, name in enumerate(("n", "t"))}

    def shaped(value: Any, *extents: Any) -> Any:
        return b.op("Reshape", value, b.op("Concat", *(extent.get(d) or ints(b, d) for d in extents), axis=0))

    rows = b.op(
        "Add", b.op("MatMul", b.op("Transpose", x, perm=(1, 0, 2)), weight(b, WIDTH, 3 * WIDTH)), weight(b, 3 * WIDTH)
    )
    apart = b.op("Unsqueeze", shaped(rows, "t", "n", 3, WIDTH), ints(b, 0))
    packed = b.op("Squeeze", b.op("Transpose", apart, perm=(3, 1, 2, 0, 4)), ints(b, -2))
    extent["nh"] = b.op("Mul", extent["n"], ints(b, HEADS))
    parts = (b.op("Gather", packed, b.constant(np.int64(i)), axis=0) for i in range(3))
    heads = (b.op("Transpose", shaped(part, "t", "nh", SIZE), perm=(1, 0, 2)) for part in parts)
    q, k, v = (shaped(part, "n", HEADS, "t", SIZE) for part in heads)
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), number(b, SIZE**-0.5))
    if masked:
        allowed = b.input("mask", "bool", (batch, length))
        bias = shaped(b.op("Where", allowed, number(b, 0), number(b, -np.inf)), "n", 1, 1, "t")
        scores = b.op("Add", scores, bias)
    found = b.op("Transpose", b.op("MatMul", b.op("Softmax", scores), v), perm=(2, 0, 1, 3))
    product = b.op("MatMul", b.op("Reshape", found, ints(b, -1, WIDTH)), weight(b, WIDTH, WIDTH))
    return b.finish({"y": b.op("Add", x, b.op("Transpose", shaped(product, "t", "n", WIDTH), perm=(1, 0, 2)))})


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(2, S), ("n", "t")])
def test_torch_multi_head_attention_has_nothing_but_products_and_attention(
    batch: int | str, length: int | str, masked: bool
) -> None:
    graph = multihead_attention(batch, length, masked)
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels", verify=False, opset=17)
    left = result.report.operators_after
    assert (left["MatMul"], left["Split"], left["com.microsoft::MultiHeadAttention"]) == (2, 1, 1)
    assert not {"Transpose", "Gather", "Softmax", "ReduceMax"} & set(left)
    feeds: dict[str, Any] = {"x": RNG.normal(size=(2, S, WIDTH)).astype(np.float32)}
    if masked:
        feeds["mask"] = np.arange(S) < np.array([[S - 2], [0]])
    for ours, theirs in zip(run(result.program.graph, feeds).values(), run(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("batch", "length"), [(2, S), ("n", S), ("n", "t")])
def test_queries_keys_and_values_that_are_unbound_need_no_transpose(batch: int | str, length: int | str) -> None:
    """``qkv.reshape(n, t, 3, h, d).permute(2, 0, 3, 1, 4).unbind(0)``, as TorchScript's exporter writes it."""
    b = GraphBuilder()
    x = b.input("x", "float32", (batch, length, WIDTH))
    whole = b.op("Reshape", b.op("MatMul", x, weight(b, WIDTH, 3 * WIDTH)), ints(b, 0, 0, 3, HEADS, SIZE))
    parts = b.op("Split", b.op("Transpose", whole, perm=(2, 0, 3, 1, 4)), ints(b, 1, 1, 1), axis=0, outputs=3)
    q, k, v = (b.op("Squeeze", part, ints(b, 0)) for part in parts)
    graph = b.finish([b.op("MatMul", attend(b, q, k, v), weight(b, WIDTH, WIDTH))])
    result = eqsat.optimize(graph, form="flat", verify=False)
    left = result.report.operators_after
    assert left == {"MatMul": 2, "Split": 1, "Attention": 1, "Reshape": left["Reshape"]}


def test_attention_beside_the_greatest_of_all_elements() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, HEADS, S, SIZE))
    y = b.op("Add", attend(b, x, x, x), b.op("ReduceMax", x, keepdims=0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = eqsat.optimize(b.finish({"y": y}), form="onnxruntime", cost="kernels", verify=False, opset=17)
    assert result.report.operators_after["com.microsoft::MultiHeadAttention"] == 1
