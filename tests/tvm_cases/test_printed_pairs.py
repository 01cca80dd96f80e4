"""What a tour through TVM's passes and a pull request print before and after, at their shapes.

Their examples elsewhere: fusion in tests/fusion/test_pass_tour.py, functions in tests/frontends/test_pass_tour_functions.py,
device copies in tests/placement/test_tvm_device_cases.py (`fuse_log_add`), pattern rewriting in tests/dpl/test_seed_examples.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import registered_rules

RNG = np.random.default_rng(6)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def offered(graph: Graph, op: str, shape: str) -> int:
    """How many values of that shape the e-graph computes by ``op``."""
    encoding = encode(graph)
    saturate(encoding.egraph, registered_rules())
    nodes = enumerate(encoding.egraph.nodes)
    found = {h for h, n in nodes if n.op == op and str(encoding.egraph.type_of(h)) == f"float32{shape}"}
    return len({encoding.egraph.find(h) for h in found})


@pytest.mark.parametrize("constant", [False, True])
def test_simplify_inference(constant: bool) -> None:
    """A normalisation and a dropout of (1, 10). TVM prints eight operators on statistics that are inputs.

    Here the product and the sum are offered, and one operator is shorter.
    """
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 10))
    statistics = [
        b.constant(np.abs(array(10)) + 0.5) if constant else b.op("Abs", b.input(n, "float32", (10,)))
        for n in ("gamma", "beta", "mean", "var")
    ]
    graph = b.finish({"y": b.op("Dropout", b.op("BatchNormalization", x, *statistics))})
    assert offered(graph, "Add", "[1, 10]")
    found = counts(optimized(graph))
    assert "Dropout" not in found
    assert sum(n for op, n in found.items() if op != "Abs") <= (2 if constant else 8)


def scaled_conv(*, forward: bool, constant: bool) -> dict[str, int]:
    """A scale of channels in front of a convolution of (1, 1, 10, 10), or behind it."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 1, 10, 10))
    w, s = array(2, 1, 3, 3), array(*((1, 1, 1) if forward else (2, 1, 1)))
    weight = b.constant(w) if constant else b.input("w", "float32", w.shape)
    scale = b.constant(s) if constant else b.input("s", "float32", s.shape)
    y = b.op("Conv", b.op("Mul", x, scale) if forward else x, weight, pads=(1, 1, 1, 1))
    return counts(optimized(b.finish({"y": y if forward else b.op("Mul", y, scale)})))


@pytest.mark.parametrize("forward", [True, False])
def test_fold_scale_axis(forward: bool) -> None:
    """The scale is multiplied into the weight: nothing is left of it where both are constants, and no more where not."""
    assert scaled_conv(forward=forward, constant=True) == {"Conv": 1}
    assert sum(scaled_conv(forward=forward, constant=False).values()) <= 2


def two_dense() -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    return b.finish([b.op("Gemm", x, b.input(f"w{i}", "float32", (5, 4)), transB=1) for i in range(2)])


def test_two_dense_as_stack_and_batched_product_are_available() -> None:
    """``nn.dense`` of (3, 4) and two (5, 4): one batched product of (2, 3, 5), cut in two; here also one of (3, 10)."""
    assert offered(two_dense(), "MatMul", "[2, 3, 5]")
    assert offered(two_dense(), "MatMul", "[3, 10]")
    assert sum(counts(optimized(two_dense())).values()) <= 3


@pytest.mark.parametrize("constant", [False, True])
def test_two_convolutions_are_combined_and_the_max_pool_is_untouched(constant: bool) -> None:
    """(1, 4, 16, 16) by two (4, 4, 1, 1), beside a pool; its window of one element as printed does nothing, and goes."""

    def convs(kernel: int) -> Graph:
        b = GraphBuilder()
        x = b.input("x", "float32", (1, 4, 16, 16))
        weights = [
            b.constant(array(4, 4, 1, 1)) if constant else b.input(f"w{i}", "float32", (4, 4, 1, 1)) for i in range(2)
        ]
        return b.finish([*(b.op("Conv", x, w) for w in weights), b.op("MaxPool", x, kernel_shape=(kernel, kernel))])

    assert offered(convs(2), "Conv", "[1, 8, 16, 16]")
    found = counts(optimized(convs(2)))
    assert found["MaxPool"] == 1
    assert sum(found.values()) <= 3
    assert sum(counts(optimized(convs(1))).values()) <= 3


@pytest.mark.parametrize("blocks", [1, 3])
def test_products_merge_although_later_nodes_compute_their_weights(blocks: int) -> None:
    """The pull request's contrived bindings: transposes of the second and third weight stand behind the first product.

    Of three products it is offered, of nine chosen.
    """
    b = GraphBuilder()
    x = b.input("x1", "float32", (2, 16, 8))
    products = []
    for i, transposes in enumerate((1, 2, 1) * blocks):
        w = b.input(f"w{i}", "float32", (8, 8))
        for _ in range(transposes):
            w = b.op("Transpose", w, perm=(1, 0))
        products.append(b.op("Softmax", b.op("MatMul", x, w)))
    graph = b.finish(products)
    assert offered(graph, "MatMul", f"[2, 16, {24 * blocks}]")
    assert counts(optimized(graph))["MatMul"] <= (3 if blocks == 1 else 1)


@pytest.mark.parametrize("count", [3, 22, 32])
def test_products_of_one_input_become_one(count: int) -> None:
    """Queries, keys and values; the 22 and 32 that the pull request calls highly non-obvious."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 16, 8))
    outputs = [b.op("MatMul", x, b.constant(array(8, 4 + i % 3))) for i in range(count)]
    assert counts(optimized(b.finish(outputs))) == {"MatMul": 1, "Split": 1}
