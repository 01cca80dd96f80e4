"""Attention with keys and values stored before: one operator with them as inputs and outputs, where it means the same."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from attention_graphs import LOWEST, B, H, N, Steps, W, ints, number, plus

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph, Node
from eqsat.ir.interpret import run
from eqsat.ir.types import DType

PAST, NEW = 5, 3
TRIANGLE = np.tri(NEW, PAST + NEW, PAST, dtype=np.bool_)


def cached(
    steps: Steps = lambda b, s: s,
    *,
    groups: int = N,
    heads: int = N,
    rows: bool = False,
    shown: bool = True,
    exchanged: bool = False,
    axis: int = 2,
    values_stored: bool = True,
    operator: bool = False,
) -> Graph:
    """``NEW`` queries over ``PAST`` stored keys and their own. ``rows``: heads together before and behind."""
    b = GraphBuilder()
    sizes = {"q": (heads, NEW, H), "k": (groups, NEW, H), "v": (groups, NEW, W)}
    parts: dict[str, Any] = {}
    for name, (n, length, size) in sizes.items():
        if rows:
            x = b.op("Reshape", b.input(name, "float32", (B, length, n * size)), ints(b, B, length, n, size))
            parts[name] = b.op("Transpose", x, perm=(0, 2, 1, 3))
        else:
            parts[name] = b.input(name, "float32", (B, n, length, size))
    stored = {n: b.input(f"past_{n}", "float32", (B, groups, PAST, size)) for n, size in (("k", H), ("v", W))}
    present: dict[str, Any] = {}
    for name, past in stored.items():
        pair = (parts[name], past) if exchanged else (past, parts[name])
        present[name] = b.op("Concat", *pair, axis=axis)
    if not values_stored:
        present["v"] = b.input("all_values", "float32", (B, groups, PAST + NEW, W))
    k, v = (_repeated(b, present[n], groups, heads // groups) for n in ("k", "v"))
    if operator:
        y = b.op("Attention", parts["q"], k, v, is_causal=1, scale=1.0)
    else:
        s = steps(b, b.op("MatMul", parts["q"], b.op("Transpose", k, perm=(0, 1, 3, 2))))
        y = b.op("MatMul", b.op("Softmax", s), v)
    if rows:
        y = b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), ints(b, B, NEW, heads * W))
    return b.finish({"y": y, **{f"present_{n}": present[n] for n in ("k", "v") if shown}})


def _repeated(b: GraphBuilder, x: Any, groups: int, times: int) -> Any:
    if times == 1:
        return x
    size = W if b.type_of(x).shape[3] == W else H  # type: ignore[union-attr]
    many = b.op("Expand", b.op("Unsqueeze", x, ints(b, 2)), ints(b, B, groups, times, PAST + NEW, size))
    return b.op("Reshape", many, ints(b, B, groups * times, PAST + NEW, size))


def attention_in(graph: Graph) -> tuple[Node, dict[str, int]]:
    """The Attention that the graph becomes and all its operators, after it was run here and in ONNX Runtime."""
    result = eqsat.optimize(graph, verify=False, form="flat")
    rng = np.random.default_rng(3)
    types: Any = {name: graph.type_of(name) for name in graph.inputs}
    feeds = {name: rng.normal(size=t.shape).astype(t.dtype.numpy) for name, t in types.items()}
    expected = run(graph, feeds)
    for found in (run(result.program.graph, feeds), Session(to_model(result.program.graph)).run(feeds)):
        assert list(found) == list(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5)
    (node,) = [node for node in result.program.graph.nodes if node.op == "Attention"]
    return node, dict(result.report.operators_after)


BIAS = plus(np.linspace(-1, 1, PAST + NEW))
SPELLINGS: dict[str, Graph] = {
    "plain": cached(),
    "masked": cached(BIAS),
    "axis counted from the end": cached(axis=-2),
    "shared heads": cached(BIAS, groups=2, heads=4),
    "one head for all": cached(groups=1, heads=4),
    "nobody else reads them": cached(shown=False),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_stored_keys_and_values_are_inputs_and_outputs(name: str) -> None:
    node, left = attention_in(SPELLINGS[name])
    assert len([x for x in node.inputs if x]) >= 5
    assert len(node.outputs) == 3
    assert set(left) <= {"Attention", "Reshape"}


def test_heads_in_rows() -> None:
    node, left = attention_in(cached(rows=True, groups=2, heads=4))
    assert left == {"Attention": 1}
    assert node.attributes["kv_num_heads"] == 2


def test_heads_of_one_query_are_not_rows_of_one_head() -> None:
    """Exports of a single step leave the queries of a group in the place of rows, with a mask for each."""
    batch, groups, times, stored, size = 2, 3, 4, 5, 8
    b = GraphBuilder()
    q = b.input("q", "float32", (batch, 1, groups * times * size))
    new, past = (
        [b.input(f"{name}_{n}", "float32", (batch, groups, length, size)) for n in "kv"]
        for name, length in (("new", 1), ("past", stored))
    )
    k, v = (b.op("Concat", old, one, axis=2) for old, one in zip(past, new, strict=True))
    bias = b.op("Tanh", b.input("bias", "float32", (batch, 1, 1, stored + 1)))
    mask = b.op("Expand", bias, ints(b, batch, 1, times, stored + 1))
    rows = b.op("Reshape", q, ints(b, batch, groups, times, size))
    scores = b.op("Add", b.op("MatMul", rows, b.op("Transpose", k, perm=(0, 1, 3, 2))), mask)
    y = b.op("Reshape", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), ints(b, batch, 1, groups * times * size))
    node, left = attention_in(b.finish({"y": y, "keys": k, "values": v}))
    assert left["Attention"] == 1
    assert "Expand" not in left
    assert (node.attributes["q_num_heads"], node.attributes["kv_num_heads"]) == (groups * times, groups)


def test_queries_of_a_single_head_are_rows_although_they_look_like_heads_of_one_query() -> None:
    """ONNX Runtime multiplies a matrix by a vector for each head: ten times as long."""
    b = GraphBuilder()
    rows = (b.input(name, "float32", (1, 256, 64)) for name in "qkv")
    q, k, v = (b.op("Transpose", b.op("Reshape", x, ints(b, 1, 256, 1, 64)), perm=(0, 2, 1, 3)) for x in rows)
    scores = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), axis=-1)
    heads = b.op("Transpose", b.op("MatMul", scores, v), perm=(0, 2, 1, 3))
    graph = b.finish({"y": b.op("Reshape", heads, ints(b, 1, 256, 64))})
    for cost in ("measured", "kernels"):
        nodes = eqsat.optimize(graph, verify=False, cost=cost).program.graph.nodes
        assert max(max(n.attributes.get(a, 1) for a in ("q_num_heads", "num_heads")) for n in nodes) == 1


def test_attention_in_float32_on_rows_keeps_what_is_stored_in_half_precision() -> None:
    """Casts of new and stored keys and values, and of all of them back, instead of views and Concats."""
    b = GraphBuilder()

    def heads(name: str, dtype: str, many: int, size: int) -> Any:
        rows = b.op("Reshape", b.input(name, dtype, (B, NEW, many * size)), ints(b, B, NEW, many, size))
        return b.op("Transpose", rows, perm=(0, 2, 1, 3))

    past = {n: b.input(f"past_{n}", "float16", (B, N, PAST, size)) for n, size in (("k", H), ("v", W))}
    present = {n: b.op("Concat", x, heads(n, "float16", N, H if n == "k" else W), axis=2) for n, x in past.items()}
    wide = [b.op("Cast", x, to=int(DType.FLOAT)) for x in present.values()]
    y = b.op("Attention", heads("q", "float32", 2 * N, H), *wide, scale=1.0)
    y = b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), ints(b, B, NEW, 2 * N * W))
    node, left = attention_in(b.finish({"y": y, **{f"present_{n}": x for n, x in present.items()}}))
    assert len(node.outputs) == 3
    assert left == {"Cast": 6, "Attention": 1}


@pytest.mark.parametrize("low", [-np.inf, LOWEST, -1e9])
def test_triangle_behind_what_is_stored_is_causality(low: float) -> None:
    node, _ = attention_in(cached(plus(np.where(TRIANGLE, 0, low))))
    assert node.attributes.get("is_causal") == 1
    assert not node.inputs[3]
    node, _ = attention_in(cached(lambda b, s: b.op("Where", b.constant(TRIANGLE), s, number(b, low)), rows=True))
    assert node.attributes.get("is_causal") == 1


@pytest.mark.parametrize("graph", [cached(plus(np.where(np.tri(NEW, PAST + NEW), 0, -np.inf))), cached(operator=True)])
def test_causality_from_the_first_key_on_is_another_one(graph: Graph) -> None:
    """With stored keys it would begin behind them."""
    node, left = attention_in(graph)
    assert node.attributes["is_causal"] == 1
    assert len(node.outputs) == 1
    assert left["Concat"] == 2


NOT_STORED: dict[str, Graph] = {
    "new keys first": cached(exchanged=True),
    "values not stored": cached(values_stored=False, shown=False),
}


@pytest.mark.parametrize("name", NOT_STORED)
def test_what_is_joined_otherwise_stays(name: str) -> None:
    if name == "new keys first":  # the same operator, with the roles of new and stored exchanged
        node, _ = attention_in(NOT_STORED[name])
        assert [x for x in node.inputs if x][1:] in (["past_k", "past_v", "k", "v"], ["k", "v"])
    else:
        node, left = attention_in(NOT_STORED[name])
        assert len(node.outputs) == 1
        assert left["Concat"] == 1


def test_attention_that_also_gives_its_scores_is_left_alone() -> None:
    """An operator with several outputs is no tensor to the rules on Attention."""
    value = onnx.helper.make_tensor_value_info
    shape = [1, 2, 3, 4]
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "scores"])
    inputs = [value(n, onnx.TensorProto.FLOAT, shape) for n in ("q", "k", "v")]
    outputs = [value("y", onnx.TensorProto.FLOAT, shape), value("scores", onnx.TensorProto.FLOAT, [1, 2, 3, 3])]
    graph = onnx.helper.make_graph([node], "scores", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)])
    assert [n.op for n in eqsat.optimize(model, verify=False, form="flat").program.graph.nodes] == ["Attention"]


@pytest.mark.parametrize("halved", ["k", "v"])
def test_keys_and_values_may_be_stored_in_different_precisions(halved: str) -> None:
    b = GraphBuilder()
    present: dict[str, Any] = {}
    for n, size in (("k", H), ("v", W)):
        kind = "float16" if n == halved else "float32"
        present[n] = b.op(
            "Concat", *(b.input(f"{n}{i}", kind, (B, N, rows, size)) for i, rows in enumerate((PAST, NEW))), axis=2
        )
    read = [b.op("Cast", x, to=int(DType.FLOAT)) if n == halved else x for n, x in present.items()]
    y = b.op("Attention", b.input("q", "float32", (B, N, NEW, H)), *read, scale=1.0)
    del present[halved]  # which would be a cast more
    node, left = attention_in(b.finish({"y": y, **{f"present_{n}": x for n, x in present.items()}}))
    assert len([x for x in node.inputs if x]) == 5
    assert left == {"Cast": 2, "Attention": 1}


def test_a_triangle_of_the_lowest_numbers_in_half_precision_is_causality() -> None:
    """What forbids in float32 is no number of float16: the comparison warned."""
    b = GraphBuilder()
    q, *new = (b.input(n, "float16", (B, N, NEW, H)) for n in "qkv")
    k, v = (
        b.op("Concat", b.input(f"past_{n}", "float16", (B, N, PAST, H)), x, axis=2)
        for n, x in zip("kv", new, strict=True)
    )
    mask = b.constant(np.where(TRIANGLE, 0, np.finfo(np.float16).min).astype(np.float16))
    y = b.op("Attention", q, k, v, mask, scale=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = eqsat.optimize(b.finish({"y": y, "keys": k, "values": v}), verify=False, form="flat").program.graph
    (node,) = graph.nodes
    assert node.attributes["is_causal"] == 1
