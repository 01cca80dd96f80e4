"""The graph of "How to fuse 50+ ops into one op" in the TVM forum, transcribed: attention on int8 by way of round and clip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run


@dataclass(frozen=True)
class Sizes:
    batch: int
    tokens: int
    heads: int
    size: int


SMALL = Sizes(2, 6, 4, 8)
POSTED = Sizes(8, 384, 12, 64)
STARTS = ("product", "accumulators", "split")


def forum_graph(sizes: Sizes, start: str) -> Graph:
    """From the product of the packed projections, from its int32 result (the first line posted), or from their split (where
    the author begins to fuse), to the int32 result in rows."""
    batch, tokens, heads, size = sizes.batch, sizes.tokens, sizes.heads, sizes.size
    rows, width = batch * tokens, heads * size
    b = GraphBuilder("forum")

    def number(value: float) -> str:
        return b.constant(np.float32(value))

    def ints(*values: int) -> str:
        return b.constant(list(values), "int64")

    def heads_of(part: str) -> str:
        y = b.op("Reshape", b.op("Squeeze", part, ints(0)), ints(batch, tokens, heads, size))
        return b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), ints(batch * heads, tokens, size))

    def integers(y: str) -> str:
        y = b.op("Round", b.op("Mul", y, number(16.0)))
        return b.op("Cast", b.op("Clip", y, number(-127), number(127)), to=3)

    rng = np.random.default_rng(4)
    if start == "split":
        x = b.input("projected", "float32", (3, rows, width))
    else:
        if start == "product":
            weight = b.constant(rng.integers(-127, 128, (3, width, width)).astype(np.int8))
            x = b.op("MatMulInteger", b.input("x", "int8", (3, rows, width)), weight)
        else:
            x = b.input("projected", "int32", (3, rows, width))
        bias = rng.normal(size=(3, 1, width)).astype(np.float32)
        x = b.op("Add", b.op("Mul", b.op("Cast", x, to=1), number(0.000488281)), b.constant(bias))
    parts = b.op("Split", x, outputs=3, axis=0, num_outputs=3)
    q, k = integers(heads_of(parts[0])), integers(heads_of(parts[1]))
    s = b.op("MatMulInteger", q, b.op("Transpose", k, perm=(0, 2, 1)))
    s = b.op("Cast", b.op("Reshape", s, ints(batch, heads, tokens, tokens)), to=1)
    s = b.op("Mul", b.op("Mul", s, number(0.00390625)), number(0.125))
    mask = b.op("Cast", b.op("Reshape", b.input("input_mask", "int32", (batch, tokens)), ints(batch, 1, tokens)), to=1)
    mask = b.op("Unsqueeze", b.op("Mul", b.constant(np.ones((batch, tokens, 1), np.float32)), mask), ints(1))
    mask = b.op("Mul", b.op("Sub", number(1.0), mask), number(-10000.0))
    p = b.op("Reshape", b.op("Softmax", b.op("Add", s, mask)), ints(batch * heads, tokens, tokens))
    v = integers(b.op("Transpose", heads_of(parts[2]), perm=(0, 2, 1)))
    y = b.op("MatMulInteger", integers(p), b.op("Transpose", v, perm=(0, 2, 1)))
    y = b.op("Transpose", b.op("Reshape", y, ints(batch, heads, tokens, size)), perm=(0, 2, 1, 3))
    return b.finish({"y": b.op("Reshape", y, ints(rows, width))})


@cache
def optimized(sizes: Sizes, start: str) -> eqsat.Result:
    return eqsat.optimize(forum_graph(sizes, start), target="tensorrt-like", verify=False)


@pytest.mark.parametrize("sizes", [SMALL, POSTED], ids=["small", "posted"])
@pytest.mark.parametrize("start", STARTS)
def test_forum_graph_is_one_attention_kernel(start: str, sizes: Sizes) -> None:
    """Split, mask and all: the kernel before it is the product of the projections, or what dequantises their accumulators."""
    result = optimized(sizes, start)
    assert len(forum_graph(sizes, start).nodes) >= 50
    assert result.report.recognized == {"quantized_attention": 1}
    # Whether the product writes its parts, or the attention reads them out of the whole, costs the same.
    kernels = [k.template.removesuffix("-split") for k in result.program.kernels if k.template != "view"]
    before = {"product": ["gemm"], "accumulators": ["pointwise"], "split": []}[start]
    assert kernels == [*before, "attention-operator"]


def test_kernel_before_the_attention_dequantises_and_adds_the_bias() -> None:
    """An epilogue of the product, where that is in the graph; TensorRT documents none of it in front of its attention."""
    result = optimized(SMALL, "accumulators")
    first = next(k for k in result.program.kernels if k.template == "pointwise")
    nodes = result.program.graph.nodes
    assert [nodes[i].op for i in first.nodes] == ["DequantizeLinear", "Add"]


def test_all_that_was_posted_is_one_kernel_where_queries_keys_and_values_have_a_prologue() -> None:
    """All 51 operators, from the cast of the accumulators to the result in rows: dequantisation and bias are in the kernel."""
    graph = forum_graph(POSTED, "accumulators")
    result = eqsat.optimize(graph, target="tensorrt-like-rownorm", verify=False)
    assert len(graph.nodes) >= 51
    assert [k.template for k in result.program.kernels if k.template != "view"] == ["attention-operator-prologue"]


def test_forum_graph_without_templates() -> None:
    """Kernels of one operator, or pointwise: the projections dequantised, split, the mask, the attention."""
    assert (
        eqsat.optimize(forum_graph(SMALL, "accumulators"), target="launch-count", verify=False).report.kernels_after
        == 4
    )


@pytest.mark.parametrize("start", STARTS)
def test_integers_of_the_forum_graph_are_the_same(start: str) -> None:
    graph, result = forum_graph(SMALL, start), optimized(SMALL, start)
    rng = np.random.default_rng(5)
    feeds: dict[str, Any] = {"input_mask": np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]], np.int32)}
    if start == "product":
        feeds["x"] = rng.integers(-20, 20, (3, 12, 32)).astype(np.int8)
    elif start == "accumulators":
        feeds["projected"] = rng.integers(-8000, 8000, (3, 12, 32)).astype(np.int32)
    else:
        feeds["projected"] = rng.normal(size=(3, 12, 32)).astype(np.float32)
    np.testing.assert_array_equal(*(run(g, feeds)["y"] for g in (result.program.graph, graph)))
