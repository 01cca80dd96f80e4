"""The examples of the pattern-rewriting document, of the pull request on several outputs, and of the forum post."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import same_graph

from eqsat.dpl import (
    PatternContext,
    call,
    const,
    dominates,
    find,
    is_const,
    is_op,
    rewrite_bindings,
    rewrite_call,
    wildcard,
)
from eqsat.errors import VerificationError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run


def doubled_twice() -> Graph:
    b = GraphBuilder("main")
    x = b.input("x", "float32", (16, 16))
    x2 = b.op("Add", x, x)
    return b.finish({"x4": b.op("Add", x2, x2)})


def test_sum_with_itself_becomes_a_product() -> None:
    x = wildcard()
    after = rewrite_call(is_op("relax.add")(x, x), lambda _, m: call("multiply", m[x], const(2.0)), doubled_twice())
    assert str(after).split("\n")[1:] == [
        "  add_1: float32[16, 16] = Mul(x, 2.0)",
        "  x4: float32[16, 16] = Mul(add_1, 2.0)",
    ]
    assert after.report.rewrites == 2
    assert after.report.verdict == "unverified"


def test_both_sums_become_one_product() -> None:
    x = wildcard()
    add1 = is_op("relax.add")(x, x)
    pattern = is_op("relax.add")(add1, add1)
    after = rewrite_call(pattern, lambda _, m: m[x] * 4.0, doubled_twice(), check=True)
    assert str(after).split("\n")[1:] == ["  x4: float32[16, 16] = Mul(x, 4.0)"]
    assert after.report.verdict in ("equal", "within tolerance")


def test_callback_that_returns_its_match_changes_nothing() -> None:
    x = wildcard()
    before = doubled_twice()
    after = rewrite_call(is_op("relax.add")(x, x), lambda expr, _: expr, before)
    assert same_graph(before, after)
    assert after.report.rewrites == 0


def attention(rows: int = 64) -> Graph:
    """The document's attention over (2, 4096, 8, 40), with fewer rows."""
    b = GraphBuilder("attention")
    q, k, v = (b.input(name, "float32", (2, rows, 8, 40)) for name in "QKV")

    def to_3d(x: str) -> str:
        return b.op("Reshape", b.op("Transpose", x, perm=(0, 2, 1, 3)), b.constant([16, rows, 40], "int64"))

    q3, k3, v3 = to_3d(q), to_3d(k), to_3d(v)
    scores = b.op("MatMul", q3, b.op("Transpose", k3, perm=(0, 2, 1)))
    weights = b.op("Softmax", b.op("Mul", scores, b.constant(np.float32(40**-0.5))), axis=-1)
    context = b.op("Reshape", b.op("MatMul", weights, v3), b.constant([2, 8, rows, 40], "int64"))
    return b.finish({"out": b.op("Transpose", context, perm=(0, 2, 1, 3))})


def attention_pattern() -> tuple[Any, Any, Any, Any]:
    """As the document has it: it calls the second operand V and the third K."""

    def to_3d(tensor: Any) -> Any:
        return is_op("relax.reshape")(is_op("relax.permute_dims")(tensor), wildcard())

    q, k, v = wildcard(), wildcard(), wildcard()
    scores = is_op("relax.matmul")(to_3d(q), is_op("relax.permute_dims")(to_3d(v)))
    softmax = is_op("relax.nn.softmax")(is_op("relax.multiply")(scores, is_const()))
    product = is_op("relax.matmul")(softmax, to_3d(k))
    return q, k, v, is_op("relax.permute_dims")(is_op("relax.reshape")(product, wildcard()))


def attention_over(q: Any, k: Any, v: Any) -> Any:
    """ONNX's Attention wants the heads before the rows."""
    heads = [call("permute_dims", t, perm=(0, 2, 1, 3)) for t in (q, k, v)]
    return call("permute_dims", call("relax.nn.attention", *heads), perm=(0, 2, 1, 3))


def test_attention_block_becomes_one_operator() -> None:
    q, k, v, pattern = attention_pattern()
    after = rewrite_call(pattern, lambda _, m: attention_over(m[q], m[v], m[k]), attention(), check=True)
    assert after.operator_counts() == {"Transpose": 4, "Attention": 1}
    assert after.report.verdict != "unverified"


def test_attention_as_documented_exchanges_two_operands_and_the_check_says_so() -> None:
    """With the pattern's own names the callback computes another value: taken as meant, unless it is checked."""
    q, k, v, pattern = attention_pattern()

    def exchanged(_: Any, m: Any) -> Any:
        return attention_over(m[q], m[k], m[v])

    after = rewrite_call(pattern, exchanged, attention())
    assert after.operator_counts() == {"Transpose": 4, "Attention": 1}
    assert after.report.verdict == "unverified"
    with pytest.raises(VerificationError, match="computes something else"):
        rewrite_call(pattern, exchanged, attention(), check=True)


def test_constant_on_either_side_of_a_sum() -> None:
    """The documented callback adds 2 where 1 was added: another value, as meant."""
    b = GraphBuilder("before")
    x = b.input("x", "float32", (1024,))
    y = b.op("Add", x, x)
    before = b.finish({"out": b.op("Add", b.constant(1.0, "float32"), y)})
    operator = is_op("relax.add") | is_op("relax.multiply")
    argument, number = wildcard(), is_const()

    def rewriter(expr: Any, matches: Any) -> Any:
        value = matches[number].data.numpy()
        if value.shape == () and value[()] == 1.0:
            return call(matches[operator], matches[argument], const(2.0))
        return expr

    after = rewrite_call(operator(argument, number), rewriter, before)
    assert str(after).split("\n")[1:] == [
        "  add_1: float32[1024] = Add(x, x)",
        "  out: float32[1024] = Add(add_1, 2.0)",
    ]


def test_product_is_distributed_until_nothing_is_left_to_distribute() -> None:
    b = GraphBuilder("before")
    x, y, z = (b.input(name, "float32", (1024,)) for name in "xyz")
    before = b.finish({"out": b.op("Mul", b.op("Add", b.op("Add", x, y), z), b.constant(5.0, "float32"))})
    left, right, number = wildcard(), wildcard(), is_const()
    pattern = is_op("relax.multiply")(is_op("relax.add")(left, right), number)

    def rewriter(_: Any, m: Any) -> Any:
        return m[left] * m[number] + m[right] * m[number]

    after = rewrite_call(pattern, rewriter, before, check=True)
    assert after.operator_counts() == {"Mul": 3, "Add": 2}
    assert after.report.rewrites == 2
    assert after.report.verdict == "within tolerance"


def three_products(weights_between: bool) -> Graph:
    """Products of one input; with weights that nodes compute, some of them after the first product."""
    b = GraphBuilder("qkv")
    x = b.input("x1", "float32", (2, 16, 8))
    products = []
    for i in range(3):
        w = b.input(f"w{i}", "float32", (8, 8))
        for _ in range((1, 2, 1)[i] if weights_between else 0):
            w = b.op("Transpose", w, perm=(1, 0))
        products.append(b.op("MatMul", x, w))
    return b.finish({f"lv{i}": p for i, p in enumerate(products)})


def merged_products(graph: Graph, **options: Any) -> Any:
    """The pull request's rewriting: one product of the joined weights, and a slice for each."""
    with PatternContext() as context:
        source = wildcard()
        weights = [wildcard() for _ in range(3)]
        products = [is_op("relax.matmul")(source, w) for w in weights]
        for product in products:
            source.used_by(product, 0)

    def rewriter(m: Any, _: Any) -> Any:
        width = m[weights[0]].shape[1]
        merged = call("matmul", m[source], call("concat", *(m[w] for w in weights), axis=1))
        return {
            m[p]: call("strided_slice", merged, [i * width], [(i + 1) * width], [2]) for i, p in enumerate(products)
        }

    return rewrite_bindings(context, rewriter, graph, **options)


@pytest.mark.parametrize("weights_between", [False, True])
def test_three_products_of_one_input_become_one(weights_between: bool) -> None:
    before = three_products(weights_between)
    after = merged_products(before)
    counts = after.operator_counts()
    assert (counts["MatMul"], counts["Concat"], counts["Slice"]) == (1, 1, 3)
    assert counts.get("Transpose", 0) == (4 if weights_between else 0)
    after.check()
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=before.type_of(n).shape).astype(np.float32) for n in before.inputs}  # type: ignore[union-attr]
    for name, value in run(before, feeds).items():
        np.testing.assert_allclose(run(after, feeds)[name], value, rtol=1e-5, atol=1e-5)


def forum_graph(masked: bool) -> Graph:
    """The forum post's attention in outline: split, int8 products by way of round and clip, an optional mask."""
    b = GraphBuilder("forum")
    packed = b.input("packed", "float32", (3, 32, 24))
    parts = b.op("Split", packed, outputs=3, axis=0, num_outputs=3)

    def heads(part: str) -> str:
        rows = b.op("Squeeze", part, b.constant([0], "int64"))
        split = b.op("Transpose", b.op("Reshape", rows, b.constant([4, 8, 3, 8], "int64")), perm=(0, 2, 1, 3))
        flat = b.op("Reshape", split, b.constant([12, 8, 8], "int64"))
        return b.op(
            "Clip", b.op("Round", b.op("Mul", flat, b.constant(16.0, "float32"))), b.constant(-127.0, "float32")
        )

    q, k, v = (heads(p) for p in parts)
    scores = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 1))), b.constant(1 / 256, "float32"))
    if masked:
        mask = b.input("mask", "float32", (12, 1, 8))
        scores = b.op("Add", scores, b.op("Mul", mask, b.constant(-10000.0, "float32")))
    context = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    merged = b.op("Reshape", context, b.constant([4, 3, 8, 8], "int64"))
    return b.finish({"out": b.op("Transpose", merged, perm=(0, 2, 1, 3))})


def dominated(side_inputs: bool) -> Any:
    split, transpose = is_op("split")(None), is_op("transpose")(None)
    return dominates(split, wildcard()(None), transpose, side_inputs=side_inputs)


def test_split_dominates_the_transpose_that_ends_the_attention() -> None:
    assert [name for name, _ in find(dominated(False), forum_graph(masked=False))] == ["out"]


def test_mask_beside_the_path_needs_side_inputs() -> None:
    """The post asked why nothing matched: the mask joins the path, and does not come from the split."""
    graph = forum_graph(masked=True)
    assert not list(find(dominated(False), graph))
    assert [name for name, _ in find(dominated(True), graph)] == ["out"]


def test_whole_block_is_replaced_by_one_operator() -> None:
    split = is_op("split")(None)
    pattern = dominates(split, wildcard()(None), is_op("transpose")(None), side_inputs=True)

    def rewriter(_: Any, m: Any) -> Any:
        return call("reshape", call("nn.relu", m[split].args[0]), np.array([4, 8, 3, 24], np.int64))

    after = rewrite_call(pattern, rewriter, forum_graph(masked=True))
    assert after.operator_counts() == {"Relu": 1, "Reshape": 1}
