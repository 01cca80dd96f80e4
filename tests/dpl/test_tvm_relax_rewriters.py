"""TVM's Relax tests of rewriters made of two functions (test_dataflow_rewriter.py), re-created from what they assert.

The names are TVM's; docs/tvm_cases.md lists the cases that have no counterpart. Where TVM calls a packed function of the user's
("my_optimized_add_impl"), an operator that computes the same stands here, so that every rewriting is checked by running it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_checks import same_graph

from eqsat.dpl import Expr, Rewriter, Var, call, const, graph_of
from eqsat.errors import RuleError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.types import tensor_type

ROW, MATRIX = (16,), (16, 16)


def function(build: Callable[..., Any], *shapes: Sequence[int | str]) -> Graph:
    """A graph from a function of variables with these shapes; as many outputs as it returns values."""
    names = build.__code__.co_varnames[: build.__code__.co_argcount]
    made = build(*(Var(n, tensor_type("float32", tuple(s))) for n, s in zip(names, shapes, strict=True)))
    return graph_of({f"y{i}": y for i, y in enumerate(made if isinstance(made, tuple) else (made,))})


def rewriter(pattern: Callable[..., Any], replacement: Callable[..., Any], *shapes: Sequence[int | str]) -> Rewriter:
    return Rewriter(function(pattern, *shapes), function(replacement, *shapes))


def optimized_add(a: Expr, b: Expr) -> Expr:
    return call("Sum", a, b)


def optimized_multiply(a: Expr, b: Expr) -> Expr:
    return a / call("Reciprocal", b)


def add_rewriter() -> Rewriter:
    return rewriter(lambda a, b: a + b, optimized_add, ROW, ROW)


def halves(x: Expr) -> Any:
    return call("split", x, outputs=2, axis=0, num_outputs=2)


def counts(rewrite: Rewriter, graph: Graph) -> dict[str, int]:
    """Operators of the rewritten graph, which computes what the graph did."""
    after = rewrite(graph, check=True)
    after.check()
    assert after.report.verdict in ("equal", "within tolerance")
    return after.operator_counts()


def unchanged(rewrite: Rewriter, graph: Graph) -> bool:
    return same_graph(graph, rewrite(graph))


# ---- one value


def sum_of_halves(x: Expr) -> Expr:
    parts = halves(x)
    return parts[0] + parts[1]


def test_rewrite_defined_by_ir_module() -> None:
    after = add_rewriter()(function(sum_of_halves, (32,)), check=True)
    assert str(after).split("\n")[1:] == [
        "  split_1: float32[16], split_2: float32[16] = Split(x; axis=0, num_outputs=2)",
        "  y0: float32[16] = Sum(split_1, split_2)",
    ]


def test_missing_pattern_raises_error() -> None:
    with pytest.raises(TypeError, match="pattern"):
        Rewriter(replacement=function(lambda a: a + a, ROW))  # type: ignore[call-arg]


def test_incorrect_function_type_of_pattern_raises_error() -> None:
    with pytest.raises(RuleError, match="the pattern of a rewriter is a graph, not function"):
        Rewriter(optimized_add, function(optimized_add, ROW, ROW))  # type: ignore[arg-type]


def test_missing_replacement_raises_error() -> None:
    with pytest.raises(TypeError, match="replacement"):
        Rewriter(pattern=function(lambda a: a + a, ROW))  # type: ignore[call-arg]


def test_incorrect_function_type_of_replacement_raises_error() -> None:
    with pytest.raises(RuleError, match="the replacement of a rewriter is a graph, not function"):
        Rewriter(function(optimized_add, ROW, ROW), optimized_add)  # type: ignore[arg-type]


def test_mismatch_of_static_shapes_raises_error() -> None:
    def negated(a: Expr) -> Expr:
        return call("negative", a)

    with pytest.raises(RuleError, match=r"must have the same inputs: 'a' is float32\[32\], and float32\[16\]"):
        Rewriter(function(negated, (32,)), function(negated, (16,)))


def test_mismatch_of_names_and_of_outputs_raises_error() -> None:
    pair = function(lambda a, b: (a + b, a - b), ROW, ROW)
    with pytest.raises(RuleError, match="the pattern has no 'c'"):
        Rewriter(pair, function(lambda a, c: (a, c), ROW, ROW))
    with pytest.raises(RuleError, match="as many outputs: 2, and 1"):
        Rewriter(pair, function(optimized_add, ROW, ROW))
    input_only = replace(function(lambda a: a, ROW), outputs=("a",))
    with pytest.raises(RuleError, match="is no operator's"):
        Rewriter(input_only, input_only)
    with pytest.raises(RuleError, match=r"'y0' is float32\[32\], not float32\[16\]"):
        Rewriter(function(lambda a: a + a, ROW), function(lambda a: call("concat", a, a, axis=0), ROW))


def test_rewriter_may_be_applied_to_ir_module() -> None:
    """There, a module of several functions; here a rewriter is applied to graph after graph."""
    rewrite = add_rewriter()
    assert counts(rewrite, function(sum_of_halves, (32,))) == {"Split": 1, "Sum": 1}
    assert counts(rewrite, function(lambda x: x + x, ROW)) == {"Sum": 1}


def test_rewriter_may_be_used_as_ir_transform() -> None:
    """A rewriter is a function of a graph, as a pass is: it can stand between others."""
    passes: list[Callable[[Graph], Graph]] = [add_rewriter(), lambda graph: graph.pruned()]
    graph = function(lambda x: x + x, ROW)
    for step in passes:
        graph = step(graph)
    assert graph.operator_counts() == {"Sum": 1}


def test_same_pattern_applied_multiple_times() -> None:
    def twice(x: Expr) -> Expr:
        y = x + x
        return y + y

    assert counts(add_rewriter(), function(twice, ROW)) == {"Sum": 2}


def test_composition_of_rewrite_rules() -> None:
    both = add_rewriter() | rewriter(lambda a, b: a * b, optimized_multiply, ROW, ROW)
    assert counts(both, function(lambda a, b, c: c * (a + b), ROW, ROW, ROW)) == {"Sum": 1, "Reciprocal": 1, "Div": 1}


def test_recursive_rewrite_rules() -> None:
    """The second rewriter matches what the first one made; its reciprocal of a constant is a constant."""
    doubled = rewriter(lambda a: a + a, lambda a: a * 2.0, ROW)
    product = rewriter(lambda a, b: a * b, optimized_multiply, ROW, ())
    assert counts(doubled | product, function(lambda a: a + a, ROW)) == {"Div": 1}


# ---- subroutines: functions of Python, whose operators the replacement has


def test_rewrite_may_introduce_private_relax_subroutines() -> None:
    def subroutine(a: Expr) -> Expr:
        return a * 2.0

    def twice(a: Expr) -> Expr:
        b = a + a
        return b + b

    assert counts(rewriter(lambda a: a + a, lambda a: subroutine(a), ROW), function(twice, ROW)) == {"Mul": 2}


def test_rewrite_only_introduces_private_subroutines_when_required() -> None:
    """What a rewriter that does not apply would have brought, a constant for example, is not in the graph."""
    doubled = rewriter(lambda a: a + a, lambda a: a * const(np.full(16, 2, np.float32)), ROW)
    cubed = rewriter(lambda a: call("Pow", a, 3.0), lambda a: a * a * const(np.ones(16, np.float32)), ROW)
    after = (doubled | cubed)(function(lambda a: a + a, ROW), check=True)
    assert after.operator_counts() == {"Mul": 1}
    assert [c.numpy()[0] for c in after.constants.values()] == [2]


def test_rewrite_branches_may_reuse_subroutine_name() -> None:
    """Both replacements name a value of theirs "subroutine"; in the graph all names differ."""

    def named(op: str, other: float) -> Graph:
        b = GraphBuilder()
        b.input("a", "float32", ROW)
        b.constant(np.float32(other), name="subroutine")
        return b.finish({"y": b.op(op, "a", "subroutine")})

    doubled = Rewriter(function(lambda a: a + a, ROW), named("Mul", 2.0))
    squared = Rewriter(function(lambda a: a * a, ROW), named("Pow", 2.0))

    def both(a: Expr) -> Expr:
        b = a + a
        return (b * b) * (a * a)

    assert counts(doubled | squared, function(both, ROW)) == {"Mul": 2, "Pow": 2}


# ---- tuples: several values at once


def two_products(a: Expr, b: Expr, rhs: Expr) -> tuple[Expr, Expr]:
    return call("matmul", a, rhs), call("matmul", b, rhs)


def joined_product(a: Expr, b: Expr, rhs: Expr) -> tuple[Expr, Expr]:
    parts = halves(call("matmul", call("concat", a, b, axis=0), rhs))
    return parts[0], parts[1]


def product_rewriter() -> Rewriter:
    return rewriter(two_products, joined_product, MATRIX, MATRIX, ROW)


def sum_of_products(state: Expr, a: Expr, b: Expr) -> Expr:
    first, second = two_products(a, b, state)
    return first + second


JOINED = {"Concat": 1, "MatMul": 1, "Split": 1}


def test_rewrite_of_explicit_relax_tuple() -> None:
    """A graph has no tuples of its own: the fields are read where the tuple would be."""
    after = product_rewriter()(function(sum_of_products, ROW, MATRIX, MATRIX), check=True)
    assert after.operator_counts() == {**JOINED, "Add": 1}
    assert "= Concat(a, b; axis=0)" in str(after)


def test_rewrite_of_output_relax_tuple() -> None:
    graph = function(lambda state, a, b: two_products(a, b, state), ROW, MATRIX, MATRIX)
    after = product_rewriter()(graph, check=True)
    assert after.operator_counts() == JOINED
    assert after.outputs == graph.outputs


def test_rewrite_of_implicit_tuple() -> None:
    """The values that are replaced together are read apart from each other."""

    def far_apart(state: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        first, second = two_products(a, b, state)
        return call("exp", first), call("tanh", second)

    assert counts(product_rewriter(), function(far_apart, ROW, MATRIX, MATRIX)) == {**JOINED, "Exp": 1, "Tanh": 1}


def neighbour_sums(x: Expr, y: Expr, z: Expr) -> tuple[Expr, Expr]:
    return x + y, y + z


def neighbour_rewriter() -> Rewriter:
    def replacement(x: Expr, y: Expr, z: Expr) -> tuple[Expr, Expr]:
        parts = halves(call("concat", x, y, axis=0) + call("concat", y, z, axis=0))
        return parts[0], parts[1]

    return rewriter(neighbour_sums, replacement, ROW, ROW, ROW)


def test_rewrite_of_implicit_tuple_with_shared_wildcard() -> None:
    def product(a: Expr, b: Expr, c: Expr) -> Expr:
        lhs, rhs = neighbour_sums(a, b, c)
        return lhs * rhs

    found = counts(neighbour_rewriter(), function(product, ROW, ROW, ROW))
    assert found == {"Concat": 2, "Add": 1, "Split": 1, "Mul": 1}


def test_no_rewrite_of_implicit_tuple_when_shared_wildcard_is_mismatched() -> None:
    graph = function(lambda a, b, c, d: (a + b) * (c + d), ROW, ROW, ROW, ROW)
    assert unchanged(neighbour_rewriter(), graph)


def test_implicit_tuple_may_not_introduce_extra_compute() -> None:
    """The second product needs the first: they cannot be computed together."""

    def chained(state: Expr, a: Expr, b: Expr) -> Expr:
        first = call("matmul", a, state)
        return first + call("matmul", call("matmul", first, b), state)

    square = rewriter(two_products, joined_product, MATRIX, MATRIX, MATRIX)
    assert unchanged(square, function(chained, MATRIX, MATRIX, MATRIX))


def test_pairs_that_need_each_other_are_not_both_joined() -> None:
    """Either pair of products could be joined; of both, each would wait for the other."""

    def crossed(s: Expr, t: Expr, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        first, third = call("matmul", a, s), call("matmul", a, t)
        return call("matmul", b + call("softmax", third), s), call("matmul", b + call("sigmoid", first), t)

    square = rewriter(two_products, joined_product, MATRIX, MATRIX, MATRIX)
    found = counts(square, function(crossed, MATRIX, MATRIX, MATRIX, MATRIX))
    assert (found["MatMul"], found["Split"]) == (3, 1)


def test_rewrite_of_implicit_tuple_with_three_elements() -> None:
    """Two of three parts are embedded, the third is what the split gave."""
    factors = np.repeat(np.array([2, 2, 1], np.float32), 4)

    def embedded(qkv: Expr) -> tuple[Expr, Expr, Expr]:
        parts = call("split", qkv, outputs=3, axis=0, num_outputs=3)
        return parts[0] * 2.0, parts[1] * 2.0, parts[2]

    def at_once(qkv: Expr) -> tuple[Expr, Expr, Expr]:
        parts = call("split", qkv * const(factors), outputs=3, axis=0, num_outputs=3)
        return parts[0], parts[1], parts[2]

    def attention(state: Expr, weight: Expr) -> Expr:
        q, k, v = embedded(call("matmul", weight, state))
        return call("softmax", q * k) * v

    found = counts(rewriter(embedded, at_once, (12,)), function(attention, (4,), (12, 4)))
    assert found == {"MatMul": 1, "Mul": 3, "Split": 1, "Softmax": 1}


# ---- symbolic extents


def test_match_dynamic_shape() -> None:
    """A pattern of symbolic extents against known ones: what the replacement reads of them is a number."""

    def cut_in_two(a: Expr, b: Expr, rhs: Expr) -> tuple[Expr, Expr]:
        joined = call("matmul", call("concat", a, b, axis=0), rhs)
        rows = call("Shape", a, start=0, end=1)
        first = call("strided_slice", joined, [0], rows, [0])
        return first, call("strided_slice", joined, rows, [np.iinfo(np.int64).max], [0])

    rewrite = rewriter(two_products, cut_in_two, ("n1", "m"), ("n2", "m"), ("m",))
    after = rewrite(function(sum_of_products, ROW, MATRIX, MATRIX), check=True)
    assert after.operator_counts() == {"Concat": 1, "MatMul": 1, "Slice": 2, "Add": 1}
    assert str(after).count("float32[16] = Slice(") == 2
    unequal = function(lambda s, a, b: two_products(a, b, s), (3,), (5, 3), (2, 3))
    assert counts(rewrite, unequal) == {"Concat": 1, "MatMul": 1, "Slice": 2}


def test_match_dynamic_pattern_against_dynamic_shape() -> None:
    """A square right operand, whatever its extent is called."""

    def square_product(a: Expr, b: Expr) -> Expr:
        return call("Einsum", a, b, equation="mk,kn->mn")

    rewrite = rewriter(lambda a, b: call("matmul", a, b), square_product, ("m", "n"), ("n", "n"))

    def products(a: Expr, b: Expr, c: Expr) -> Expr:
        turned = call("permute_dims", call("matmul", a, b), perm=(1, 0))
        return call("matmul", turned, c)

    graph = function(products, ("k", "k2"), ("k2", "k2"), ("k", "k"))
    assert rewrite(graph).operator_counts() == {"Einsum": 2, "Transpose": 1}
    other = function(products, ("k", "j"), ("j", "l"), ("k", "k"))
    assert rewrite(other).operator_counts() == {"MatMul": 1, "Einsum": 1, "Transpose": 1}


def test_wildcard_ty_with_symbolic_vars() -> None:
    """A case of test_dataflow_pattern.py: sums of equal shapes, and not those that enlarge an operand."""
    rewrite = rewriter(lambda a, b: a + b, lambda a, b: a * b, ("m", "n"), ("m", "n"))
    graph = function(lambda a, b, c: (a + b, a + c), (4, 8), (4, 8), (1, 8))
    after = rewrite(graph)
    assert after.operator_counts() == {"Mul": 1, "Add": 1}
    assert [n.outputs for n in after.nodes if n.op == "Mul"] == [("y0",)]


# ---- what a match needs


def test_attributes_element_types_and_absent_operands_are_part_of_the_pattern() -> None:
    last = rewriter(lambda a: call("softmax", a, axis=-1), lambda a: call("exp", call("LogSoftmax", a, axis=-1)), ROW)
    assert counts(last, function(lambda a: call("softmax", a, axis=-1), ROW)) == {"LogSoftmax": 1, "Exp": 1}
    assert unchanged(last, function(lambda a: call("softmax", a, axis=0), ROW))
    half = graph_of({"y": call("softmax", Var("a", tensor_type("float16", ROW)), axis=-1)})
    assert unchanged(last, half)
    upper = rewriter(lambda a: call("clip", a, None, 1.0), lambda a: call("minimum", a, 1.0), ROW)
    assert counts(upper, function(lambda a: call("clip", a, None, 1.0), ROW)) == {"Min": 1}
    assert unchanged(upper, function(lambda a: call("clip", a, -1.0, 1.0), ROW))


def test_replacement_of_another_shape_is_an_error() -> None:
    """Shapes of the pattern's inputs may be unknown: then it shows at the match."""

    def graph(shape: Any, op: str) -> Graph:
        a = Var("a", tensor_type("float32", shape))
        return graph_of({"y": call("ReduceSum", a, [0]) if op == "sum" else call("negative", a)})

    rewrite = Rewriter(graph(None, "sum"), graph(None, "neg"))
    with pytest.raises(RuleError, match=r"replacement is float32\[16\], what it replaces is float32\[1\]"):
        rewrite(graph(ROW, "sum"))


def test_identities_of_a_replacement_are_the_values_themselves() -> None:
    twice_negated = rewriter(lambda a: call("negative", call("negative", a)), lambda a: a, ROW)
    assert counts(twice_negated, function(lambda a: call("exp", call("negative", call("negative", a))), ROW)) == {
        "Exp": 1
    }


def test_rewriting_to_and_fro_is_an_error() -> None:
    there = rewriter(lambda a, b: a - b, lambda a, b: a + call("negative", b), ROW, ROW)
    back = rewriter(lambda a, b: a + call("negative", b), lambda a, b: a - b, ROW, ROW)
    with pytest.raises(RuleError, match="did not come to an end"):
        (there | back)(function(lambda a, b: a - b, ROW, ROW))


def test_chains_longer_than_the_limit_of_passes() -> None:
    def chain(x: Expr) -> Expr:
        for _ in range(150):
            x = x + x
        return x

    after = rewriter(lambda a: a + a, lambda a: a * 2.0, ROW)(function(chain, ROW))
    assert after.operator_counts() == {"Mul": 150}
    assert after.report.passes < 10
