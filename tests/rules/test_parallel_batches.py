"""Products as one batch: stacked matrices, and several inputs of one matrix."""

from __future__ import annotations

import numpy as np
from graph_checks import counts, optimized

from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.ir.build import GraphBuilder
from eqsat.rewrite import registered_rules

RNG = np.random.default_rng(0)


def array(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_two_dense_as_stack_and_batched_product_are_available() -> None:
    """The pass tour's picture: ``stack`` of the weights, one batched product, ``split`` and ``squeeze``."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 4))
    weights = [b.op("Transpose", b.input(f"w{i}", "float32", (5, 4)), perm=(1, 0)) for i in range(2)]
    encoding = encode(b.finish([b.op("MatMul", x, w) for w in weights]))
    saturate(encoding.egraph, registered_rules())
    batched = [
        h
        for h, n in enumerate(encoding.egraph.nodes)
        if n.op == "MatMul" and str(encoding.egraph.type_of(h)).endswith("[2, 3, 5]")
    ]
    assert batched
    output = encoding.egraph.find(encoding.handles[encoding.graph.outputs[0]])
    assert any(encoding.egraph.nodes[h].rule == "stack_matmuls_of_one_input" for h in encoding.egraph.members(output))


def test_inputs_of_one_matrix_are_rows_of_one_product() -> None:
    b = GraphBuilder()
    w = b.constant(array(4, 5))
    inputs = [b.input(f"x{i}", "float32", (i + 1, 4)) for i in range(4)]
    assert counts(optimized(b.finish([b.op("MatMul", x, w) for x in inputs]))) == {"Concat": 1, "MatMul": 1, "Split": 1}


def test_a_chain_of_products_with_one_matrix_stays_a_chain() -> None:
    b = GraphBuilder()
    w = b.constant(array(4, 4))
    x = b.input("x", "float32", (2, 4))
    for _ in range(4):
        x = b.op("Tanh", b.op("MatMul", x, w))
    assert counts(optimized(b.finish([x]))) == {"MatMul": 4, "Tanh": 4}


def test_batches_of_different_extents_stay_apart() -> None:
    b = GraphBuilder()
    w = b.constant(array(4, 5))
    inputs = [b.input(f"x{i}", "float32", (i + 1, 2, 4)) for i in range(4)]
    assert counts(optimized(b.finish([b.op("MatMul", x, w) for x in inputs]))) == {"MatMul": 4}
