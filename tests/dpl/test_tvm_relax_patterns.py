"""TVM's Relax tests of the pattern language (test_dataflow_pattern.py), re-created from what they assert.

The names are TVM's; docs/dpl.md lists the cases that have no counterpart. Its opaque packed functions are operators here.
"""

# pyright: reportUnusedExpression=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import same_graph

from eqsat.dpl import (
    Call,
    Const,
    Item,
    PatternContext,
    Tuple,
    Var,
    call,
    const,
    has_dtype,
    is_const,
    is_expr,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    rewrite_bindings,
    rewrite_call,
    wildcard,
)
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import tensor_type


def var(name: str = "x", shape: Any = (32, 32), dtype: str = "float32") -> Var:
    return Var(name, tensor_type(dtype, shape))


def any_call(op: str) -> Any:
    return is_op(op)(None)


def body(graph: Graph) -> list[str]:
    return [line.strip() for line in str(graph).split("\n")[1:]]


# ---- one expression


def test_expr_pattern() -> None:
    x = var()
    assert is_expr(x).match(x)
    assert is_expr(const(1.0)).match(const(1.0))
    assert not is_expr(const(1.0)).match(const(2.0))


def test_var_pattern() -> None:
    assert is_var("x").match(var("x"))
    assert is_var().match(var("y"))
    assert not is_var("x").match(var("y"))
    assert not is_var().match(const(1.0))


def test_constant_pattern() -> None:
    assert is_const().match(const([[0.1, 1.1, 2.1], [3.1, 4.1, 5.1]]))
    assert not is_const().match(var())


def test_wildcard_pattern() -> None:
    assert wildcard().match(var())


def test_call_pattern() -> None:
    pattern = is_op("relax.add")(wildcard(), wildcard())
    assert pattern.match(var("x") + var("y"))
    assert not pattern.match(var("x") - var("y"))


def test_tuple_pattern() -> None:
    t = is_tuple([wildcard(), is_var()])
    pair = Tuple([const(1.0), var("y")])
    assert t.match(pair)
    assert not t.match(Tuple([var("x"), const(1.0)]))
    assert not t.match(Tuple([]))
    assert t[0].match(Item(pair, 0))
    assert t[1].match(Item(pair, 1))
    assert t[-1].match(Item(pair, 1))
    assert not t[0].match(Item(pair, 1))
    assert t[None].match(Item(pair, 0))
    assert t[None].match(Item(pair, 1))
    with pytest.raises(IndexError):
        t[2]


def test_unordered_tuple_pattern() -> None:
    t = is_tuple([is_const(), is_var()], unordered=True)
    assert t.match(Tuple([const([]), var("x")]))
    assert t.match(Tuple([var("x"), const([])]))
    assert not t.match(Tuple([var("x"), var("y")]))
    assert not t.match(Tuple([]))


def test_tuple_get_item_pattern() -> None:
    pair = Tuple([var("x"), var("y")])
    assert is_tuple_get_item(is_tuple([is_var("x"), is_var("y")]), 0).match(Item(pair, 0))
    split = call("split", var(), outputs=2, axis=0, num_outputs=2)
    assert is_tuple_get_item(any_call("split"), 1).match(split[1])
    assert not is_tuple_get_item(any_call("split"), 1).match(split[0])


def test_or_pattern() -> None:
    pattern = is_var("x") | is_const()
    assert pattern.match(var("x"))
    assert pattern.match(const(1.0))
    assert not pattern.match(var("y"))


def test_and_pattern() -> None:
    pattern = wildcard().has_shape((2, 3, 3)) & has_dtype("float32")
    assert pattern.match(var(shape=(2, 3, 3)))
    assert not pattern.match(var(shape=(3, 3, 3)))
    assert not pattern.match(var(shape=(2, 3, 3), dtype="float16"))
    assert not pattern.match(var(shape=None))


def test_not_pattern() -> None:
    pattern = ~wildcard().has_shape((2, 3, 3))
    assert pattern.match(var(shape=(3, 3, 3)))
    assert not pattern.match(var(shape=(2, 3, 3)))


def test_dtype_pattern() -> None:
    assert has_dtype("float32").match(var())
    assert not has_dtype("float16").match(var())


def test_shape_pattern() -> None:
    assert wildcard().has_shape([32, 32]).match(var())
    symbolic = var(shape=("n", "m", "n + m"))
    assert wildcard().has_shape(["n", "m", "n + m"]).match(symbolic)
    assert not wildcard().has_shape([1, 2, 3]).match(symbolic)
    assert not wildcard().has_shape(["m", "n", "n + m"]).match(symbolic)


def test_prim_arr_pattern() -> None:
    """A shape as an operand is a constant of int64."""
    reshaped = call("reshape", var(shape=(16, 64)), np.array([32, 32]))
    assert is_op("reshape")(wildcard(), is_expr(const(np.array([32, 32])))).match(reshaped)
    assert not is_op("reshape")(wildcard(), is_expr(const(np.array([64, 16])))).match(reshaped)


def test_op_attr() -> None:
    conv = call("nn.conv2d", var("x", (1, 3, 9, 9)), var("y", (4, 3, 3, 3)), strides=(3, 3))
    pattern = is_op("relax.nn.conv2d")(is_var("x"), is_var("y"))
    assert pattern.has_attr({"strides": [3, 3]}).match(conv)
    assert not pattern.has_attr({"strides": [4, 3]}).match(conv)
    assert not pattern.has_attr({"group": 2}).match(conv)


def test_varg_default_wildcard() -> None:
    product = call("matmul", var("x"), var("w"))
    assert is_op("matmul")(wildcard(), wildcard()).match(product)
    assert is_op("matmul")(varg_default_wildcard=True).match(product)
    assert not is_op("matmul")(wildcard()).match(product)


# ---- a graph


def matmul_relu() -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", "float32", (32, 32)), b.input("w", "float32", (32, 32))
    return b.finish({"y": b.op("Relu", b.op("MatMul", x, w))})


def matched(state: Callable[[], object], graph: Graph) -> Any:
    with PatternContext() as context:
        state()
    return context.match(graph)


def test_simple_used_by() -> None:
    with PatternContext() as context:
        n0, n1 = is_var("x"), wildcard()
        n0 ^ n1
        found = context.match(matmul_relu())
    assert found is not None
    assert repr(found[n0]) == "x"
    assert repr(found[n1]) == "MatMul(x, w)"


@pytest.mark.parametrize("only", [False, True])
def test_simple_call_tir_edge_and_simple_oub(only: bool) -> None:
    with PatternContext() as context:
        n0, n1 = any_call("matmul"), any_call("relu")
        n0.only_used_by(n1) if only else n0.used_by(n1)
        found = context.match(matmul_relu())
    assert found is not None
    assert [found[n].op for n in (n0, n1)] == ["MatMul", "Relu"]  # type: ignore[union-attr]


def test_counter_syntax_match() -> None:
    assert not matched(lambda: any_call("matmul") >> any_call("tanh"), matmul_relu())
    assert not matched(lambda: any_call("matmul") ^ any_call("tanh"), matmul_relu())


def diamond() -> Graph:
    b = GraphBuilder()
    product = b.op("MatMul", b.input("x", "float32", (32, 32)), b.input("w", "float32", (32, 32)))
    return b.finish({"y": b.op("Add", b.op("Relu", product), b.op("Sigmoid", product))})


def test_diamond() -> None:
    def stated() -> None:
        product, relu, sigmoid, join = map(any_call, ("matmul", "relu", "sigmoid", "add"))
        product ^ relu
        product ^ sigmoid
        relu >> join
        sigmoid >> join

    def forked() -> None:
        relu, sigmoid, join = map(any_call, ("relu", "sigmoid", "add"))
        any_call("matmul").fork_to(relu, sigmoid)
        relu >> join
        sigmoid >> join

    assert matched(stated, diamond())
    assert matched(forked, diamond())


def test_diamond_counter_oub() -> None:
    def stated() -> None:
        product, relu, sigmoid, join = map(any_call, ("matmul", "relu", "sigmoid", "add"))
        product >> relu
        product >> sigmoid
        relu >> join
        sigmoid >> join

    assert not matched(stated, diamond())


def test_distinguish_diamond_and_parallel() -> None:
    def graph(relus: int) -> Graph:
        b = GraphBuilder()
        x = b.input("x", "float32", (32, 32))
        first = b.op("Relu", x)
        return b.finish({"y": b.op("Add", first, b.op("Relu", x) if relus == 2 else first)})

    def one_fork() -> None:
        fork, join = any_call("relu"), any_call("add")
        fork.only_used_by(join, index=0)
        fork.only_used_by(join, index=1)

    def two() -> None:
        join = any_call("add")
        any_call("relu") >> join
        any_call("relu") >> join

    assert matched(one_fork, graph(1))
    assert not matched(one_fork, graph(2))
    assert matched(two, graph(2))
    assert not matched(two, graph(1))


def two_convs() -> Graph:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 8, 8))
    branches = []
    for i in range(2):
        conv = b.op("Conv", x, b.input(f"w{i}", "float32", (4, 4, 1, 1)))
        branches.append(b.op("Relu", b.op("Add", conv, b.input(f"bias{i}", "float32", (4, 1, 1)))))
    return b.finish({"y": b.op("Concat", *branches, axis=1)})


def conv_bias_relu() -> Any:
    return any_call("nn.conv2d") >> any_call("nn.bias_add") >> any_call("nn.relu")


def test_nested_context() -> None:
    graph = two_convs()
    with PatternContext() as outer:
        conv_bias_relu()
        with PatternContext() as missing:
            any_call("nn.conv2d") >> any_call("nn.relu")
            with PatternContext() as inner:
                any_call("nn.bias_add") >> any_call("nn.relu")
                assert inner.match(graph)
                assert PatternContext.current() is inner
            assert not missing.match(graph)
            assert PatternContext.current() is missing
        assert outer.match(graph)
        assert PatternContext.current() is outer


def test_two_cbr() -> None:
    def forked(name: str) -> Callable[[], None]:
        def state() -> None:
            first = conv_bias_relu()
            second = first.dup()
            assert not set(first.patterns) & set(second.patterns)
            is_var(name).fork_to(first, second)

        return state

    assert matched(forked("x"), two_convs())
    assert not matched(forked("y"), two_convs())


def test_two_matmul() -> None:
    b = GraphBuilder()
    first = b.op("MatMul", b.input("a", "float32", (32, 16)), b.input("b", "float32", (16, 48)))
    graph = b.finish({"y": b.op("MatMul", first, b.input("c", "float32", (48, 32)))})
    product = any_call
    assert matched(lambda: product("matmul") >> product("matmul"), graph)
    assert matched(lambda: product("matmul").has_shape([32, 48]) >> product("matmul").has_shape([32, 32]), graph)
    assert not matched(lambda: product("matmul") >> product("matmul") >> product("matmul"), graph)


def test_concat_mm_split() -> None:
    b = GraphBuilder()
    a = b.input("a", "float32", (32, 32))
    joined = b.op("Concat", b.input("b", "float32", (16, 32)), b.input("c", "float32", (16, 32)), axis=0)
    parts = b.op("Split", b.op("MatMul", a, joined), outputs=2, axis=0, num_outputs=2)
    graph = b.finish({"y": b.op("Add", *parts)})
    assert matched(lambda: any_call("concat") >> any_call("matmul") >> any_call("split"), graph)

    def parts_of_the_split() -> None:
        split = any_call("split")
        first = is_tuple_get_item(split, 0).has_shape([16, 32])
        second = is_tuple_get_item(split, 1).has_shape([16, 32])
        split.fork_to(first, second)
        join = is_op("relax.add")(first, second)
        first >> join
        second >> join

    assert matched(parts_of_the_split, graph)


def test_self_attention() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("b", "s", "n", 8))
    q, k, v = (
        b.op("Transpose", b.op("MatMul", x, b.input(f"w{i}", "float32", (8, 8))), perm=(0, 1, 3, 2)) for i in "qkv"
    )
    scores = b.op("Softmax", b.op("Mul", b.op("Mul", q, k), b.constant(1.1, "float32")))
    graph = b.finish({"y": b.op("Mul", scores, v)})

    def state() -> None:
        first = any_call("matmul") >> any_call("permute_dims")
        is_var("x").fork_to(first, first.dup(), first.dup())

    assert matched(state, graph)


def test_nested_diamond() -> None:
    b = GraphBuilder()
    x, w = b.input("x", "float32", (32, 32)), b.input("w", "float32", (32, 32))
    m0, m1 = b.op("MatMul", x, w), b.op("MatMul", x, w)
    add4 = b.op("Add", m0, m1)
    add5, add6 = b.op("Add", b.op("Sigmoid", m0), add4), b.op("Add", b.op("Sigmoid", m1), add4)
    graph = b.finish({"y": b.op("Add", add5, add6)})

    def one_diamond(only: bool) -> Callable[[], None]:
        def state() -> None:
            sigmoid, inner, outer = any_call("sigmoid"), any_call("add"), any_call("add")
            any_call("matmul").fork_to(sigmoid, inner)
            sigmoid >> outer
            inner.only_used_by(outer) if only else inner.used_by(outer)

        return state

    def sums() -> None:
        left, right, last = (any_call("add") for _ in range(3))
        any_call("add").fork_to(left, right)
        left >> last
        right >> last

    assert matched(one_diamond(only=False), graph)
    assert not matched(one_diamond(only=True), graph)
    assert matched(sums, graph)


def chain(*ops: str) -> Graph:
    b = GraphBuilder()
    value = b.input("x", "float32", (32, 32))
    for op in ops:
        value = b.op(op, value)
    return b.finish({"y": value})


def test_incremental_solving() -> None:
    relu, sigmoid, neg = map(any_call, ("relu", "sigmoid", "negative"))
    graph = chain("Relu", "Sigmoid", "Neg")
    with PatternContext() as outer:
        relu >> sigmoid
        with PatternContext(incremental=True) as inner:
            sigmoid >> neg
            assert inner.match(graph)
        assert outer.match(graph)


def test_incremental_solving_counter() -> None:
    relu, sigmoid, neg = map(any_call, ("relu", "sigmoid", "negative"))
    graph = chain("Sigmoid", "Neg")
    with PatternContext():
        relu >> sigmoid
        with PatternContext(incremental=False) as alone:
            sigmoid >> neg
            assert alone.match(graph)
        with PatternContext(incremental=True) as both:
            sigmoid >> neg
            assert not both.match(graph)


def products(same_input: bool) -> Graph:
    b = GraphBuilder()
    inputs = [b.input(f"x{i}", "float32", (2, 16, 8)) for i in range(2)]
    made = [
        b.op("MatMul", inputs[0 if same_input or i < 2 else 1], b.input(f"w{i}", "float32", (8, 8))) for i in range(3)
    ]
    return b.finish({f"y{i}": p for i, p in enumerate(made)})


def three_of_one() -> None:
    source = wildcard()
    for product in [is_op("relax.matmul")(source, wildcard()) for _ in range(3)]:
        source.used_by(product, 0)


def test_attention_qkv() -> None:
    assert matched(three_of_one, products(same_input=True))


def test_attention_fake_qkv() -> None:
    assert not matched(three_of_one, products(same_input=False))


def qkv_rewriting(count: int) -> tuple[PatternContext, Any]:
    with PatternContext() as context:
        source = wildcard()
        weights = [wildcard() for _ in range(count)]
        found = [is_op("relax.matmul")(source, w) for w in weights]
        for product in found:
            source.used_by(product, 0)

    def rewriter(m: Any, _: Any) -> Any:
        width = m[weights[0]].shape[1]
        joined = call("matmul", m[source], call("concat", *(m[w] for w in weights), axis=1))
        return {m[p]: call("strided_slice", joined, [i * width], [(i + 1) * width], [2]) for i, p in enumerate(found)}

    return context, rewriter


def test_combine_matmul_twice() -> None:
    b = GraphBuilder()
    made = []
    for i in range(2):
        x = b.input(f"x{i}", "float32", (2, 16, 8))
        made += [b.op("MatMul", x, b.input(f"w{i}{j}", "float32", (8, 8))) for j in range(3)]
    graph = b.finish({f"y{i}": p for i, p in enumerate(made)})
    after = rewrite_bindings(*qkv_rewriting(3), graph, check=True)
    assert after.operator_counts() == {"Slice": 6, "Concat": 2, "MatMul": 2}
    assert after.report.rewrites == 6
    assert after.report.verdict != "unverified"


def test_combine_transposed_matmul_twice() -> None:
    b = GraphBuilder()
    made = []
    for i in range(2):
        x = b.input(f"x{i}", "float32", (2, 16, 8))
        made += [b.op("MatMul", x, b.op("Transpose", b.input(f"w{i}{j}", "float32", (8, 8)))) for j in range(2)]
    graph = b.finish({f"y{i}": p for i, p in enumerate(made)})
    with PatternContext() as context:
        source, w1, w2 = wildcard(), wildcard(), wildcard()
        first = is_op("relax.matmul")(source, is_op("relax.permute_dims")(w1))
        second = is_op("relax.matmul")(source, is_op("relax.permute_dims")(w2))

    def rewriter(m: Any, _: Any) -> Any:
        joined = call("matmul", m[source], call("permute_dims", call("concat", m[w1], m[w2], axis=0)))
        sizes = [m[w1].shape[0], m[w2].shape[0]]
        parts = call("split", joined, sizes, outputs=2, axis=-1)
        return {m[first]: parts[0], m[second]: parts[1]}

    after = rewrite_bindings(context, rewriter, graph, check=True)
    assert after.operator_counts() == {"Concat": 2, "MatMul": 2, "Split": 2, "Transpose": 2}


def test_rewrite_without_trivial_binding() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1024,))
    graph = b.finish({"b": b.op("Reshape", b.op("Add", x, x), b.constant([1024], "int64"))})
    argument, shape = wildcard(), wildcard()

    def rewriter(expr: Any, m: Any) -> Any:
        return m[argument] if list(m[argument].shape) == m[shape].data.numpy().tolist() else expr

    after = rewrite_call(is_op("relax.reshape")(argument, shape), rewriter, graph)
    assert body(after) == ["b: float32[1024] = Add(x, x)"]


@pytest.mark.parametrize(
    ("left", "right", "holds"),
    [
        ((1024, 128), (1024, 128), True),
        (("n", 128), ("n", 128), True),
        ((1024, 128), (1, 128), False),
        (("n", 128), ("m", 128), False),
    ],
)
def test_same_shape_pattern(left: Any, right: Any, holds: bool) -> None:
    b = GraphBuilder()
    doubled = b.op("Mul", b.input("a", "float32", left), b.constant(2.0, "float32"))
    graph = b.finish({"y": b.op("Add", b.input("b", "float32", right), doubled)})
    with PatternContext() as context:
        lhs, rhs = wildcard(), wildcard()
        is_op("relax.add")(lhs, rhs)
        lhs.same_shape_as(rhs)
    assert (context.match(graph) is not None) is holds


def test_iterative_rewrite_without_trivial_binding() -> None:
    """Both slices become parts of splits; equal splits are one operator for the optimiser, not for the rewriting."""
    b = GraphBuilder()
    x = b.input("x", "float32", (1024,))
    halves = [b.op("Slice", x, *(b.constant([v], "int64") for v in (start, start + 512, 0, 1))) for start in (0, 512)]
    graph = b.finish({"c": b.op("Add", *halves)})
    argument, begin, end, axes, strides = (wildcard() for _ in range(5))
    splits: dict[Any, Any] = {}

    def rewriter(expr: Any, m: Any) -> Any:
        first, last, size = int(m[begin].data.numpy()[0]), int(m[end].data.numpy()[0]), m[argument].shape[0]
        width = math.gcd(first, last, size)
        if (last - first) // width != 1:
            return expr
        key = (m[argument], size // width)
        if key not in splits:
            splits[key] = call("split", m[argument], outputs=size // width, axis=0, num_outputs=size // width)
        return splits[key][first // width]

    pattern = is_op("relax.strided_slice")(argument, begin, end, axes, strides)
    after = rewrite_call(pattern, rewriter, graph, check=True)
    assert after.operator_counts() == {"Add": 1, "Split": 1}


def test_iterative_rewrite_with_removed_intermediates() -> None:
    b = GraphBuilder()
    x, y = b.input("a", "float32", (1024,)), b.input("b", "float32", (1024,))
    first, second = b.op("Split", b.op("Concat", x, y, axis=0), outputs=2, axis=0, num_outputs=2)
    graph = b.finish({"h": b.op("Add", second, b.op("Add", x, first))})
    parts, argument = wildcard(), wildcard()
    split = is_op("relax.split")(is_op("relax.concat")(parts).has_attr({"axis": 0})).has_attr({"num_outputs": 2})
    doubled = is_op("relax.add")(argument, argument)

    def rewriter(expr: Any, m: Any) -> Any:
        if split in m:
            fields = m[parts]
            return fields if len(fields) == 2 and fields.fields[0].type == fields.fields[1].type else expr
        return m[argument] * 2.0

    after = rewrite_call(split | doubled, rewriter, graph, check=True)
    assert after.operator_counts() == {"Add": 1, "Mul": 1}
    assert after.report.rewrites == 2


def typed_sum(*shapes: Any, dtype: str = "int32") -> Graph:
    b = GraphBuilder()
    return b.finish({"y": b.op("Add", b.input("a", dtype, shapes[0]), b.input("b", dtype, shapes[1]))})


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@pytest.mark.parametrize(("shape", "op"), [((2, 3), "Mul"), ((16, 32), "Add")])
def test_wildcard_with_ty(shape: Any, op: str, dtype: str) -> None:
    """..._updates_when_matching, ..._is_no_op_when_not_matching and wildcard_ty_for_unknown_dtype."""
    lhs, rhs = wildcard().has_type([2, 3]), wildcard().has_type([2, 3])
    graph = typed_sum(shape, shape, dtype=dtype)
    after = rewrite_call(is_op("relax.add")(lhs, rhs), lambda _, m: m[lhs] * m[rhs], graph)
    assert after.operator_counts() == {op: 1}


def test_backtrack_if_rewriter_returns_no_op() -> None:
    b = GraphBuilder()
    ones = b.op("Expand", b.constant(1, "int32"), b.constant([64, 128], "int64"))
    zeros = b.op("Expand", b.constant(0, "int32"), b.constant([64, 128], "int64"))
    graph = b.finish({"C": b.op("Add", ones, zeros)})
    refused = is_op("relax.add")(wildcard(), wildcard())
    argument = wildcard()
    zero = is_op("Expand")(is_expr(const(0, dtype="int32")), wildcard())
    accepted = is_op("relax.add")(argument, zero)

    def rewriter(expr: Any, m: Any) -> Any:
        return expr if refused in m else m[argument]

    after = rewrite_call(refused | accepted, rewriter, graph)
    assert body(after) == ["C: int32[64, 128] = Expand(1, [64, 128])"]


def test_backtrack_for_no_op_rewriter_does_not_match_on_var() -> None:
    first = is_op("relax.add")(wildcard(), wildcard())
    second = is_op("relax.add")(wildcard(), wildcard())
    pattern = first | second

    def rewriter(expr: Any, m: Any) -> Any:
        assert isinstance(m[pattern], Call)
        return expr

    graph = typed_sum((64, 128), (64, 128))
    assert same_graph(graph, rewrite_call(pattern, rewriter, graph))


def test_constants_are_read_by_callbacks() -> None:
    found: list[np.ndarray] = []
    number = is_const()
    b = GraphBuilder()
    graph = b.finish({"y": b.op("Mul", b.input("x", "float32", (3,)), b.constant([1.0, 2.0, 3.0], "float32"))})

    def rewriter(expr: Any, m: Any) -> Any:
        assert isinstance(m[number], Const)
        found.append(m[number].data.numpy())
        return expr

    rewrite_call(is_op("multiply")(wildcard(), number), rewriter, graph)
    np.testing.assert_array_equal(found[0], [1.0, 2.0, 3.0])
