"""TVM's Relay tests of the pattern language (test_dataflow_pattern.py), re-created from what they assert.

Matching of single expressions is in test_tvm_relax_patterns.py; here are dominators, optional parts, rewriting by callbacks
and partitions. docs/dpl.md lists the cases that have no counterpart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import same_graph

from eqsat.dpl import (
    Expr,
    Item,
    Tuple,
    Var,
    call,
    const,
    dominates,
    graph_of,
    has_dtype,
    has_shape,
    is_const,
    is_expr,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    partition,
    rewrite_call,
    wildcard,
)
from eqsat.errors import RuleError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import tensor_type

UNARY = wildcard().has_attr({"kind": "elementwise"})(wildcard())


def var(name: str, shape: Any = (1, 3, 12, 12)) -> Var:
    return Var(name, tensor_type("float32", shape))


def conv_of(x: Expr, name: str = "w") -> Any:
    return call("nn.conv2d", x, var(name, (3, 3, 3, 3)), pads=(1, 1, 1, 1))


def relu(x: Expr) -> Any:
    return call("nn.relu", x)


def leaky(x: Expr) -> Any:
    return call("nn.leaky_relu", x, alpha=0.0)


def tanh(x: Expr) -> Any:
    return call("tanh", x)


def diamond_pattern(path: Any = UNARY) -> Any:
    return dominates(is_op("nn.conv2d")(wildcard(), wildcard()), path, is_op("add")(wildcard(), wildcard()))


def test_match_op_and_no_match_op() -> None:
    assert is_op("add")(None).match(var("x") + var("y"))
    assert not is_op("add")(None).match(var("x") - var("y"))
    with pytest.raises(RuleError, match="neither an ONNX operator"):
        is_op("no_such_operator")


def test_match_op_or() -> None:
    either = is_op("add") | is_op("subtract")
    assert either(wildcard(), wildcard()).match(var("x") + var("y"))
    assert either(wildcard(), wildcard()).match(var("x") - var("y"))
    assert not either(wildcard(), wildcard()).match(var("x") * var("y"))


def test_match_call_and_no_match_call() -> None:
    x, y = var("x"), var("y")
    assert is_op("add")(wildcard(), wildcard()).match(x + y)
    assert not is_op("add")(wildcard(), wildcard()).match(x - y)
    assert wildcard()(None).match(relu(x))
    assert wildcard()(None).match(x + y)


def test_match_tuple_and_no_match_tuple() -> None:
    x, y = var("x"), var("y")
    three = is_tuple([is_var("x"), wildcard(), is_op("add")(None)])
    fields = Tuple([x, y, x + y])
    assert three.match(fields)
    assert is_tuple_get_item(three, 1).match(Item(fields, 1))
    assert not is_tuple_get_item(three, 1).match(Item(fields, 2))
    assert all(is_tuple_get_item(three).match(Item(fields, i)) for i in range(3))
    assert not is_tuple([is_var("x"), wildcard(), is_op("add")(None), wildcard()]).match(fields)


def test_match_op_attr_and_no_match_op_attr() -> None:
    """TVM has no kind for sums that enlarge; here they are elementwise, and products are not."""
    operator = is_op("add").has_attr({"kind": "elementwise"})
    assert operator(wildcard(), wildcard()).match(var("x") + var("y"))
    assert not operator(wildcard(), wildcard()).match(var("x") - var("y"))
    product = is_op("nn.dense").has_attr({"kind": "elementwise"})(wildcard(), wildcard())
    assert not product.match(call("nn.dense", var("x", (2, 3)), var("w", (4, 3)), transB=1))


def test_match_type_and_no_match_type() -> None:
    assert wildcard().has_type((10, 10), "float32").match(var("x", (10, 10)))
    assert not wildcard().has_type((10, 10), "int32").match(var("x", (10, 10)))


@pytest.mark.parametrize("op", ["add", "multiply"])
def test_match_call_commutive(op: str) -> None:
    x, y = var("x"), var("y")
    assert is_op(op)(is_var("x"), is_var("y")).match(call(op, x, y))
    assert is_op(op)(is_var("x"), is_var("y")).match(call(op, y, x))


@pytest.mark.parametrize("op", ["subtract", "divide"])
def test_no_match_call_commutive(op: str) -> None:
    x, y = var("x"), var("y")
    assert is_op(op)(is_var("x"), is_var("y")).match(call(op, x, y))
    assert not is_op(op)(is_var("x"), is_var("y")).match(call(op, y, x))


def test_match_option() -> None:
    x, b = var("x"), var("b", (3, 1, 1))
    pattern = is_op("nn.relu")(
        is_op("nn.conv2d")(wildcard(), wildcard()).optional(lambda p: is_op("nn.bias_add")(p, wildcard()))
    )
    assert pattern.match(relu(conv_of(x) + b))
    assert pattern.match(relu(conv_of(x)))
    two = is_op("nn.conv2d")(wildcard(), wildcard())
    two = two.optional(lambda p: is_op("nn.relu")(p)).optional(lambda p: is_op("tanh")(p))
    assert two.match(conv_of(x))
    assert two.match(relu(conv_of(x)))
    assert two.match(tanh(conv_of(x)))
    assert two.match(tanh(relu(conv_of(x))))


def test_no_match_option() -> None:
    x, b = var("x"), var("b", (3, 1, 1))
    pattern = is_op("nn.relu")(
        is_op("nn.conv2d")(wildcard(), wildcard()).optional(lambda p: is_op("nn.bias_add")(p, wildcard()))
    )
    assert not pattern.match(relu(tanh(conv_of(x))))
    assert not pattern.match(relu(tanh(conv_of(x) + b)))
    assert not pattern.match(conv_of(x))


def test_match_const() -> None:
    pattern = is_op("nn.bias_add")(is_op("nn.conv2d")(wildcard(), wildcard()), is_const())
    assert pattern.match(conv_of(var("x")) + const([[[1.0]]] * 3))
    assert not pattern.match(conv_of(var("x")) + var("b", (3, 1, 1)))


def test_match_and_no_match_dtype_and_shape() -> None:
    assert has_dtype("float32").match(var("x", (10, 10)))
    assert not has_dtype("float16").match(var("x", (10, 10)))
    assert has_shape((10, 10)).match(var("x", (10, 10)))
    assert not has_shape((10, 10)).match(var("x", (10, 11)))


def test_match_and_no_match_call_attr() -> None:
    pattern = is_op("nn.conv2d")(wildcard(), wildcard())
    assert pattern.has_attr({"pads": (1, 1, 1, 1)}).match(conv_of(var("x")))
    assert not pattern.has_attr({"pads": (0, 0, 0, 0)}).match(conv_of(var("x")))
    assert not pattern.has_attr({"no_such_attribute": 1}).match(conv_of(var("x")))
    assert pattern.has_attr({}).match(conv_of(var("x")))
    assert wildcard()(None).has_attr({"alpha": 0.0}).match(leaky(var("x")))
    assert not wildcard()(None).has_attr({"alpha": 0.5}).match(leaky(var("x")))


def test_match_call_attr_dtype() -> None:
    cast = call("cast", var("x"), to=10)
    assert is_op("cast")(wildcard()).has_attr({"to": 10}).match(cast)
    assert is_op("cast")(wildcard()).has_dtype("float16").match(cast)


def test_match_diamond_and_fake_diamond() -> None:
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    pattern = is_op("add")(is_op("nn.relu")(conv), is_op("nn.leaky_relu")(conv))
    shared = conv_of(var("x"))
    assert pattern.match(relu(shared) + leaky(shared))
    assert not pattern.match(relu(shared))
    assert not pattern.match(relu(shared) + relu(shared))
    assert not pattern.match(relu(conv_of(var("x"))) + leaky(conv_of(var("z"))))


def test_not_fuse_multi_diamond() -> None:
    """What joins the diamond to its own beginning is no diamond."""
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    pattern = is_op("add")(is_op("nn.relu")(conv), is_op("nn.leaky_relu")(conv))
    shared = conv_of(var("x"))
    assert not pattern.match((relu(shared) + leaky(shared)) + shared)


def test_match_dominator() -> None:
    conv = conv_of(var("x"))
    assert diamond_pattern().match(relu(relu(conv)) + leaky(conv))
    conv = conv_of(var("x"))
    assert diamond_pattern().match(tanh(relu(relu(conv))) + leaky(conv))
    above = relu(relu(conv_of(var("x"))))
    assert diamond_pattern().match(above + tanh(above))
    conv = conv_of(var("x"))
    doubled = relu(conv)
    doubled = doubled + doubled
    nested = diamond_pattern(UNARY | is_op("add")(wildcard(), wildcard()))
    assert nested.match(tanh(doubled) + leaky(conv))


def test_match_dominator2() -> None:
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    pattern = wildcard()(wildcard(), wildcard()).dominates(conv, wildcard()(None))
    biased = relu(conv_of(var("x")) + var("b", (3, 1, 1)))
    assert pattern.match(call("reshape", biased, [-1]))


def test_not_match_dominator() -> None:
    assert not diamond_pattern().match(relu(conv_of(var("x"))) + leaky(conv_of(var("z"))))
    conv = conv_of(var("x"))
    doubled = relu(conv)
    assert not diamond_pattern(is_op("nn.relu")(wildcard()) | is_op("nn.leaky_relu")(wildcard())).match(
        (doubled + doubled) + leaky(conv)
    )
    x = var("x")
    assert not diamond_pattern().match(relu(x) + leaky(conv_of(x)))
    above = relu(relu(var("x")))
    assert not diamond_pattern().match(above + tanh(above))


def test_not_match_dominator2() -> None:
    first = conv_of(var("x"))
    second = conv_of(tanh(first))
    assert not diamond_pattern(is_op("nn.relu")(wildcard())).match(second + relu(first))


def test_at_most_one_parent() -> None:
    """Two convolutions reach the sum: by way of the second, and around it."""
    first = conv_of(var("x"))
    second = conv_of(tanh(first))
    path = is_op("nn.relu")(wildcard())
    assert not diamond_pattern(path).match(relu(second) + relu(first))
    assert diamond_pattern(path).match(relu(second) + relu(second))


def test_match_and_no_match_typed_dominator() -> None:
    conv = conv_of(var("x"))
    out = relu(relu(conv)) + leaky(conv)

    def typed(dtype: str, shape: Any) -> Any:
        join = is_op("add")(wildcard(), wildcard()).has_shape(shape)
        return dominates(is_op("nn.conv2d")(wildcard(), wildcard()), UNARY.has_dtype(dtype), join)

    assert typed("float32", [1, 3, 12, 12]).match(out)
    assert not typed("float32", [1, 1, 12, 12]).match(out)
    assert not typed("float16", [1, 3, 12, 12]).match(out)


# ---- rewriting


def graph(build: Any, **shapes: Any) -> Graph:
    """A graph from a function of variables with these shapes, (4, 3) where none is given."""
    names = build.__code__.co_varnames[: build.__code__.co_argcount]
    return graph_of({"y": build(*(var(name, shapes.get(name, (4, 3))) for name in names))})


def test_rewrite() -> None:
    x, y = wildcard(), wildcard()
    after = rewrite_call(is_op("add")(x, y), lambda _, m: m[x] - m[y], graph(lambda a, b: a + b))
    assert after.operator_counts() == {"Sub": 1}


def test_nested_rewrite() -> None:
    def build(x: Any, y: Any) -> Any:
        n0 = x + (y + y)
        return (x + n0) + n0

    a, b = wildcard(), wildcard()
    n0 = is_op("add")(a, b)
    pattern = is_op("add")(n0, is_op("add")(n0, a))
    before = graph(build)
    assert same_graph(before, rewrite_call(pattern, lambda expr, _: expr, before))


def normalise(x: Any, var_: Any, mean: Any, beta: Any, gamma: Any) -> Any:
    return gamma * (x - mean) / call("sqrt", var_ + 1e-5) + beta


def fuse_batch_norm(graph: Graph) -> Graph:
    x, variance, mean, beta, gamma = (wildcard() for _ in range(5))
    epsilon = is_const()
    pattern = gamma * (x - mean) / is_op("sqrt")(variance + epsilon) + beta

    def rewriter(_: Any, m: Any) -> Any:
        value = m[epsilon].data.numpy().item()
        return call("batch_norm", *(m[p] for p in (x, gamma, beta, mean, variance)), epsilon=value)

    return rewrite_call(pattern, rewriter, graph)


def batch_norm_graph(build: Any) -> Graph:
    """With the batch in front and one axis of channels, where the spelled-out form and ONNX's operator agree."""
    row = (3,)
    return graph_of({"y": build(var("x", (4, 3)), *(var(n, row) for n in ("var", "mean", "beta", "gamma")))})


def test_fuse_batchnorm() -> None:
    after = fuse_batch_norm(batch_norm_graph(normalise))
    assert str(after).split("\n")[1].startswith("  y: float32[4, 3] = BatchNormalization(x, gamma, beta, mean, var;")


def test_no_fuse_batchnorm() -> None:
    before = batch_norm_graph(lambda x, v, m, b, g: g * (x - m) / call("sqrt", v + 1e-5) - b)
    assert same_graph(before, fuse_batch_norm(before))


def test_fuse_double_batchnorm() -> None:
    before = batch_norm_graph(lambda x, v, m, b, g: normalise(normalise(x, v, m, b, g), v, m, b, g))
    assert fuse_batch_norm(before).operator_counts() == {"BatchNormalization": 2}


def test_partial_fuse_double_batchnorm() -> None:
    def build(x: Any, v: Any, m: Any, b: Any, g: Any) -> Any:
        return normalise(g * (x - m) / call("sqrt", v + 1e-5) - b, v, m, b, g)

    counts = fuse_batch_norm(batch_norm_graph(build)).operator_counts()
    assert counts["BatchNormalization"] == 1
    assert counts["Sub"] == 2


def test_fuse_batchnorm_commutation() -> None:
    """The sum and the product commute; TVM's third spelling, re-associated, is another pattern here."""
    commuted = batch_norm_graph(lambda x, v, m, b, g: b + (x - m) * g / call("sqrt", v + 1e-5))
    assert fuse_batch_norm(commuted).operator_counts() == {"BatchNormalization": 1}
    associated = batch_norm_graph(lambda x, v, m, b, g: g * ((x - m) / call("sqrt", v + 1e-5)) + b)
    assert "BatchNormalization" not in fuse_batch_norm(associated).operator_counts()


def quadruple() -> Graph:
    """Four regions that a convolution dominates: a diamond, a deeper one, one branch, a diamond with a sum on the way."""
    conv = conv_of(var("x"), "w1")
    out = relu(relu(conv)) + leaky(conv)
    conv = conv_of(out, "w2")
    out = tanh(relu(relu(conv))) + leaky(conv)
    above = relu(relu(conv_of(out, "w3")))
    conv = conv_of(above + tanh(above), "w4")
    doubled = relu(conv)
    return graph_of({"y": tanh(doubled + doubled) + leaky(conv)})


def test_quadruple_rewrite_dominator() -> None:
    inp, weight = wildcard(), wildcard()
    pattern = dominates(
        is_op("nn.conv2d")(inp, weight),
        UNARY | is_op("add")(wildcard(), wildcard()),
        is_op("add")(wildcard(), wildcard()),
    )
    after = rewrite_call(pattern, lambda _, m: call("nn.conv2d", m[inp], m[weight], pads=(1, 1, 1, 1)), quadruple())
    assert after.operator_counts() == {"Conv": 4}


def test_algebraic_simplify() -> None:
    zero, one = is_expr(const(0.0)), is_expr(const(1.0))
    x = wildcard()
    anything = wildcard()
    gone = (zero * anything) | (zero / anything)
    pattern = gone | (x + zero) | (x - zero) | (x * one) | (x / one)

    def replaced(_: Any, m: Any) -> Any:
        return call("Expand", 0.0, [4, 3]) if gone in m else m[x]

    def simplified(build: Any) -> dict[str, int]:
        return rewrite_call(pattern, replaced, graph(build)).operator_counts()

    assert simplified(lambda x, y: (x + 0.0) * y) == {"Mul": 1}
    assert simplified(lambda x, y: (x * 1.0 - 0.0) / 1.0 + y) == {"Add": 1}
    assert simplified(lambda x, y: (0.0 + x) + y) == {"Add": 1}
    assert simplified(lambda x, y: (1.0 * x) + y) == {"Add": 1}
    assert simplified(lambda x, y: (x * 0.0) + y) == {"Expand": 1, "Add": 1}
    assert simplified(lambda x, y: y - call("divide", const(0.0), x)) == {"Expand": 1, "Sub": 1}


def without_last(expr: Any, _: Any) -> Any:
    """A Concat of one value less, or the value that is left."""
    kept = expr.args[:-1]
    return call("concat", *kept, axis=0) if len(kept) > 1 else kept[0]


@pytest.mark.parametrize(("once", "left"), [(True, {"Concat": 1}), (False, {})])
def test_rewrite_once(once: bool, left: dict[str, int]) -> None:
    before = graph(lambda x, y, z: call("softmax", call("concat", x, y, z, axis=0), axis=-1))
    after = rewrite_call(is_op("concatenate")(None), without_last, before, once=once)
    assert after.operator_counts() == {"Softmax": 1, **left}
    assert [len(n.inputs) for n in after.nodes if n.op == "Concat"] == ([2] if once else [])
    activated = rewrite_call(is_op("nn.softmax")(None), lambda expr, _: relu(expr), after, once=True)
    assert activated.operator_counts() == {"Softmax": 1, **left, "Relu": 1}


@pytest.mark.parametrize("redirected", ["operand", "left", "right"])
def test_rewrite_with_pattern_recursion(redirected: str) -> None:
    """Any number of casts behind a product, as one pattern that is a part of itself."""
    product, inner = is_op("nn.dense")(wildcard(), wildcard()), wildcard()
    if redirected == "operand":
        pattern = is_op("cast")(inner)
        inner.redirect_to(pattern | product)
    else:
        pattern = is_op("cast")(inner | product if redirected == "left" else product | inner)
        inner.redirect_to(pattern)

    def casts(product: Any) -> Any:
        for _ in range(6):
            product = call("cast", product, to=1)
        return product

    before = graph(lambda x, w: casts(call("nn.dense", x, w, transB=1)))
    after = rewrite_call(pattern, lambda expr, _: relu(expr), before, once=True, outermost=True)
    assert [n.op for n in after.nodes] == ["Gemm", *["Cast"] * 6, "Relu"]
    assert not pattern.match(casts(relu(var("x"))))
    with pytest.raises(RuleError, match="contains itself"):
        partition(pattern, before)


def test_rewriting_without_an_end_is_an_error() -> None:
    x = wildcard()
    before = graph(lambda v: relu(v))
    with pytest.raises(RuleError, match="did not come to an end"):
        rewrite_call(is_op("nn.relu")(x), lambda expr, m: relu(expr), before)


# ---- partitions


def conv_graph(*, overused: bool = False) -> Graph:
    b = GraphBuilder()
    x, w = b.input("x", "float32", (1, 3, 8, 8)), b.input("w", "float32", (3, 3, 1, 1))
    bias = b.input("bias", "float32", (3, 1, 1))
    first = b.op("Conv", x, w)
    value = b.op("Relu", b.op("Add", first, bias))
    second = b.op("Add", b.op("Conv", value, w), bias)
    outputs = {"y": second}
    return b.finish({**outputs, "z": b.op("Neg", first)} if overused else outputs)


def conv_bias() -> Any:
    return is_op("nn.bias_add")(is_op("nn.conv2d")(wildcard(), wildcard()), wildcard())


def test_double_partition() -> None:
    graph = conv_graph()
    activated = partition(is_op("nn.relu")(conv_bias()), graph)
    assert [len(p.nodes) for p in activated] == [3]
    assert activated[0].inputs == ("x", "w", "bias")
    found = partition(conv_bias(), graph)
    assert [len(p.nodes) for p in found] == [2, 2]
    assert not set(found[0].nodes) & set(found[1].nodes)


def test_partition_overused() -> None:
    assert [p.output for p in partition(conv_bias(), conv_graph(overused=True))] == ["y"]


def test_partition_check() -> None:
    graph = conv_graph()
    assert len(partition(conv_bias(), graph, check=lambda root: root.dtype == "float32")) == 2
    assert not partition(conv_bias(), graph, check=lambda root: root.dtype == "float16")


def test_partition_option() -> None:
    pattern = conv_bias().optional(lambda p: is_op("nn.relu")(p))
    assert [len(p.nodes) for p in partition(pattern, conv_graph())] == [2, 2]
    alone = is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard()).optional(lambda p: p + wildcard()))
    assert [len(p.nodes) for p in partition(alone, conv_graph())] == [3]


def test_partition_dominator() -> None:
    b = GraphBuilder()
    conv = b.op("Conv", b.input("x", "float32", (1, 3, 8, 8)), b.input("w", "float32", (3, 3, 1, 1)))
    join = b.op("Add", b.op("Relu", b.op("Relu", conv)), b.op("LeakyRelu", conv))
    graph = b.finish({"y": b.op("Tanh", join)})
    (found,) = partition(diamond_pattern(), graph)
    assert len(found.nodes) == 5
    assert found.inputs == ("x", "w")


def test_overlappting_partitions() -> None:
    """Two parts of one split: a region of either would hold the split, which the other one needs."""
    b = GraphBuilder()
    first, second = b.op("Split", b.input("x", "float32", (4, 6)), outputs=2, axis=1, num_outputs=2)
    graph = b.finish({"y": b.op("Add", first, second)})
    assert not partition(is_tuple_get_item(is_op("split")(wildcard())), graph)


def normalised_twice(times: int) -> Graph:
    def build(x: Any, *parameters: Any) -> Any:
        for _ in range(times):
            x = normalise(x, *parameters)
        return x

    return batch_norm_graph(build)


def batch_norm_pattern(epsilon: Any) -> Any:
    x, variance, mean, beta, gamma = (wildcard() for _ in range(5))
    return gamma * (x - mean) / is_op("sqrt")(variance + epsilon) + beta


def test_partition_batchnorm() -> None:
    (found,) = partition(batch_norm_pattern(is_const()), normalised_twice(1))
    assert len(found.nodes) == 6
    assert found.inputs == ("x", "mean", "gamma", "var", "beta")
    assert len(found.constants) == 1


def test_partition_double_batchnorm() -> None:
    first, second = partition(batch_norm_pattern(is_const()), normalised_twice(2))
    assert [len(p.nodes) for p in (first, second)] == [6, 6]
    assert first.inputs == ("x", "mean", "gamma", "var", "beta")
    assert second.inputs == (first.output, "mean", "gamma", "var", "beta")
    assert second.output == "y"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_partition_fuzzy_tuple(count: int) -> None:
    """A joint of any number of values."""
    b = GraphBuilder()
    values = [b.input(f"x{i}", "float32", (2, 3)) for i in range(count)]
    graph = b.finish({"y": b.op("Concat", *values, axis=0)})
    (found,) = partition(is_op("concatenate")(is_tuple(None)), graph)
    assert found.inputs == tuple(values)
    assert is_tuple(None)[5].match(Item(Tuple([var("x")] * 6), 5))
    assert not is_tuple(None).match(var("x"))


def test_quadruple_partition_dominator() -> None:
    pattern = diamond_pattern(UNARY | is_op("add")(wildcard(), wildcard()))
    found = partition(pattern, quadruple())
    assert [len(p.nodes) for p in found] == [5, 6, 5, 6]
    assert [p.inputs for p in found] == [("x", "w1"), *((f.output, f"w{i}") for i, f in enumerate(found[:-1], 2))]


def test_partition_check_types() -> None:
    """The check sees attributes and types: one batch, and no groups."""

    def check(root: Any) -> bool:
        conv = root.args[0]
        return conv.attrs.get("group", 1) == 1 and conv.shape[0] == 1

    def found(batch: int, group: int) -> int:
        b = GraphBuilder()
        conv = b.op(
            "Conv",
            b.input("x", "float32", (batch, 4, 8, 8)),
            b.input("w", "float32", (4, 4 // group, 3, 3)),
            group=group,
        )
        graph = b.finish({"y": b.op("Relu", conv)})
        return len(partition(is_op("nn.relu")(is_op("nn.conv2d")(wildcard(), wildcard())), graph, check=check))

    assert [found(1, 1), found(1, 2), found(2, 1)] == [1, 0, 0]


@pytest.mark.parametrize("constant", [False, True])
def test_partition_constant_embedding(constant: bool) -> None:
    """A constant that the pattern asks for belongs to the region; one that any value would do for is read by it."""
    w = np.ones((3, 3, 1, 1), np.float32)
    b = GraphBuilder()
    conv = b.op(
        "Conv",
        b.input("x", "float32", (1, 3, 4, 4)),
        b.constant(w, name="w") if constant else b.input("w", "float32", w.shape),
    )
    graph = b.finish({"y": b.op("Relu", b.op("Add", conv, b.input("b", "float32", (3, 1, 1))))})

    def inputs(weight: Any) -> list[Any]:
        biased = is_op("nn.bias_add")(is_op("nn.conv2d")(wildcard(), weight), wildcard())
        return [(p.inputs, p.constants) for p in partition(is_op("nn.relu")(biased), graph)]

    lifted, embedded = [(("x", "w", "b"), ())], [(("x", "b"), ("w",))]
    assert inputs(wildcard()) == lifted
    assert inputs(is_var()) == ([] if constant else lifted)
    assert inputs(is_const()) == (embedded if constant else [])
    assert inputs(is_expr(const(w))) == (embedded if constant else [])
    assert inputs(is_var() | is_const()) == (embedded if constant else lifted)
    assert inputs(is_const() | is_var()) == (embedded if constant else lifted)


@pytest.mark.parametrize("used_elsewhere", [False, True])
def test_matched_outside_but_dominated(used_elsewhere: bool) -> None:
    """The sum inside is read by a sigmoid outside, which only the region needs: with ``recompute`` there is a region."""
    b = GraphBuilder()
    conv = b.op("Conv", b.input("x", "float32", (1, 3, 4, 4)), b.input("w", "float32", (3, 3, 1, 1)))
    summed = b.op("Add", conv, b.input("b", "float32", (3, 1, 1)))
    gate = b.op("Sigmoid", summed)
    outputs = {"y": b.op("Mul", summed, gate)}
    graph = b.finish({**outputs, "gate": b.op("Neg", gate)} if used_elsewhere else outputs)
    biased = is_op("add")(is_op("nn.conv2d")(wildcard(), wildcard()), wildcard())
    pattern = is_op("multiply")(biased, wildcard())
    assert not partition(pattern, graph)
    found = partition(pattern, graph, recompute=True)
    if used_elsewhere:
        assert not found
    else:
        assert [p.inputs for p in found] == [("x", "w", "b", gate)]
        assert [p.recomputed for p in found] == [(conv, summed)]


def test_partition_parallel_branch_with_same_input() -> None:
    """Both branches read one convolution: it is one input of the region."""
    b = GraphBuilder()
    conv = b.op("Conv", b.input("x", "float32", (1, 3, 4, 4)), b.input("w", "float32", (3, 3, 1, 1)))
    left = b.op("Mul", b.input("left", "float32", (1, 3, 4, 4)), conv)
    right = b.op("Add", conv, b.input("right", "float32", (1, 3, 4, 4)))
    graph = b.finish({"y": b.op("Add", left, right)})
    pattern = is_op("add")(is_op("multiply")(wildcard(), wildcard()), is_op("add")(wildcard(), wildcard()))
    (found,) = partition(pattern, graph)
    assert len(found.nodes) == 3
    assert found.inputs == ("left", conv, "right")
