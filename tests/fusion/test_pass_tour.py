"""Known groups: the examples of the pass tour, and what each template may hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eqsat.cost.model import find_cost_model
from eqsat.cost.target import load_target, target_names
from eqsat.egraph.encode import encode
from eqsat.egraph.snapshot import take_snapshot
from eqsat.extract import Effort
from eqsat.fusion import fuse_program
from eqsat.fusion.program_graph import graph_of_program
from eqsat.fusion.work import group_work
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.joint import program_of, select_joint
from eqsat.lower.lowering import lower
from eqsat.lower.program import Program
from eqsat.lower.selection import select

KERNELS = find_cost_model("kernels")
FUSING = ("launch-count", "tvm-like", "tensorrt-like", "tensorrt-like-rownorm", "h100", "h200")


def build(make: Callable[..., Any], **inputs: tuple[int, ...]) -> Graph:
    b = GraphBuilder("example")
    made = make(b, *(b.input(name, "float32", shape) for name, shape in inputs.items()))
    outputs = made if isinstance(made, tuple) else (made,)
    return b.finish({f"y{i}": value for i, value in enumerate(outputs)})


def unfused(graph: Graph) -> Program:
    encoding = encode(graph)
    snapshot = take_snapshot(encoding.egraph)
    chosen = select(encoding, snapshot, KERNELS, load_target("launch-count"), effort=Effort(2_000_000))
    return lower(encoding, snapshot, chosen, {})


def counts(graph: Graph, target: str) -> tuple[int, int, int]:
    """Kernels by post-dominators, by optimal fusion, and jointly."""
    machine = load_target(target)
    plain = unfused(graph)
    encoding = encode(graph)
    snapshot = take_snapshot(encoding.egraph)
    joint = program_of(
        encoding, snapshot, select_joint(encoding, snapshot, KERNELS, machine, effort=Effort(5_000_000)), {}
    )
    programs = [fuse_program(plain, machine, KERNELS, method=m) for m in ("tvm", "optimal")]
    for program in (*programs, joint):
        check(program, graph)
    a, b = programs
    return a.kernel_count, b.kernel_count, joint.kernel_count


def check(program: Program, graph: Graph) -> None:
    """Kernels partition the nodes, run in order, declare what crosses them, and compute the same values."""
    program.graph.check()
    assert sorted(i for k in program.kernels for i in k.nodes) == list(range(len(program.graph.nodes)))
    ready = set(program.graph.inputs) | set(program.graph.constants)
    for kernel in program.kernels:
        assert set(kernel.inputs) <= ready
        ready |= set(kernel.outputs)
    assert set(program.graph.outputs) <= ready
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=graph.type_of(n).shape).astype(np.float32) for n in graph.inputs}  # type: ignore[union-attr]
    expected, got = run(graph, feeds), program.run(feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)


def chain(b: GraphBuilder, x: str) -> str:
    for _ in range(5):
        x = b.op("Add", x, b.constant(np.float32(1.5)))
    return b.op("Exp", x)


def around_a_sum(b: GraphBuilder, x: str, y: str) -> str:
    x = b.op("Add", b.op("Add", x, y), y)
    s = b.op("ReduceSum", x, b.constant([1], "int64"), keepdims=1)
    return b.op("Add", s, b.constant(np.float32(2.0)))


@pytest.mark.parametrize("target", FUSING)
def test_five_adds_and_an_exp_are_one_kernel(target: str) -> None:
    assert counts(build(chain, x=(4, 8)), target) == (1, 1, 1)


def test_add_add_sum_add_are_two_kernels_in_tvm() -> None:
    tvm, optimal, joint = counts(build(around_a_sum, x=(4, 8), y=(4, 8)), "tvm-like")
    assert (tvm, optimal, joint) == (2, 2, 2)


def test_add_add_sum_add_are_one_kernel_where_reductions_have_epilogues() -> None:
    assert counts(build(around_a_sum, x=(4, 8), y=(4, 8)), "tensorrt-like") == (2, 1, 1)


def attention(b: GraphBuilder, q: str, k: str, v: str) -> str:
    scores = b.op("MatMul", b.op("Transpose", q, perm=[0, 2, 1, 3]), b.op("Transpose", k, perm=[0, 2, 3, 1]))
    scaled = b.op("Mul", scores, b.constant(np.float32(0.25)))
    p = b.op("Softmax", scaled, axis=-1)
    out = b.op("MatMul", p, b.op("Transpose", v, perm=[0, 2, 1, 3]))
    return b.op("Reshape", b.op("Transpose", out, perm=[0, 2, 1, 3]), b.constant([1, 4, 16], "int64"))


def test_attention_is_one_kernel_where_there_is_a_template() -> None:
    graph = build(attention, q=(1, 4, 2, 8), k=(1, 4, 2, 8), v=(1, 4, 2, 8))
    assert counts(graph, "tensorrt-like")[1:] == (1, 1)
    assert counts(graph, "launch-count")[1] > 1


def projected_values(b: GraphBuilder, scores: str, x: str) -> str:
    w = b.constant(np.ones((8, 8), np.float32))
    return b.op("MatMul", b.op("Softmax", scores, axis=-1), b.op("MatMul", x, w))


def test_attention_needs_its_products_on_one_path() -> None:
    assert counts(build(projected_values, scores=(4, 4), x=(4, 8)), "tensorrt-like")[1:] == (3, 3)


def skip_norm(b: GraphBuilder, x: str, skip: str) -> str:
    w = b.constant(np.full((8, 8), 0.5, np.float32))
    y = b.op("Add", b.op("MatMul", x, w), skip)
    return b.op("LayerNormalization", y, b.constant(np.ones(8, np.float32)), axis=-1)


@pytest.mark.parametrize(("target", "expected"), [("tensorrt-like", 2), ("tensorrt-like-rownorm", 1)])
def test_norm_in_the_epilogue_of_a_product(target: str, expected: int) -> None:
    assert counts(build(skip_norm, x=(4, 8), skip=(4, 8)), target)[1] == expected


def three_users(b: GraphBuilder, x: str) -> tuple[str, str, str]:
    y = b.op("MatMul", x, b.constant(np.full((8, 8), 0.5, np.float32)))
    return b.op("Relu", y), b.op("Exp", y), b.op("Tanh", y)


def test_products_are_not_computed_twice() -> None:
    graph = build(three_users, x=(4, 8))
    assert counts(graph, "launch-count") == (4, 4, 4)


def test_several_users_of_a_product_are_its_outputs() -> None:
    graph = build(three_users, x=(4, 8))
    assert counts(graph, "tensorrt-like") == (4, 1, 1)
    fused = fuse_program(unfused(graph), load_target("tensorrt-like"), KERNELS)
    assert len(fused.kernels[0].outputs) == 3
    assert fused.graph.operator_counts()["MatMul"] == 1


def columns(b: GraphBuilder, x: str) -> tuple[str, ...]:
    y = b.op("MatMul", x, b.constant(np.full((8, 24), 0.5, np.float32)))
    parts = b.op("Split", y, b.constant([8, 8, 8], "int64"), axis=1, outputs=3)
    biased = [b.op("Add", p, b.constant(np.full(8, n, np.float32))) for n, p in enumerate(parts)]
    return tuple(b.op("Transpose", v, perm=[1, 0]) for v in biased)


def test_columns_of_a_product_are_outputs_with_epilogues_of_their_own() -> None:
    assert counts(build(columns, x=(4, 8)), "tensorrt-like")[1:] == (1, 1)


def columns_read_by_a_product(b: GraphBuilder, x: str) -> tuple[str, ...]:
    made: list[str] = []
    for _ in range(3):
        y = b.op("MatMul", x, b.constant(np.full((8, 16), 0.5, np.float32)))
        first, x = b.op("Split", y, b.constant([8, 8], "int64"), axis=1, outputs=2)
        made.append(b.op("Transpose", first, perm=[1, 0]))
    return *made, x


@pytest.mark.parametrize("target", ["tensorrt-like", "tensorrt-like-rownorm"])
def test_columns_that_a_product_could_read_itself_are_outputs_too(target: str) -> None:
    """A product with a prologue has one output: what it reads is better written by the product before it."""
    assert counts(build(columns_read_by_a_product, x=(4, 8)), target)[1:] == (3, 3)


def products_at_random(seed: int) -> Callable[..., Any]:
    """Products of columns of products, some of which are outputs as they are, transposed or through an operator."""

    def make(b: GraphBuilder, x: str) -> tuple[str, ...]:
        rng = random.Random(seed)
        made, waiting = [], [x]
        for _ in range(rng.randint(3, 6)):
            y = b.op("MatMul", waiting.pop(), b.constant(np.full((8, 24), 0.25, np.float32)))
            for part in b.op("Split", y, b.constant([8, 8, 8], "int64"), axis=1, outputs=3):
                use = rng.choice(("product", "Transpose", "Exp", "unused")) if waiting else "product"
                if use == "product":
                    waiting.append(part)
                elif use != "unused":
                    made.append(b.op(use, part, perm=[1, 0]) if use == "Transpose" else b.op(use, part))
        return *made, *waiting

    return make


@pytest.mark.parametrize("seed", range(8))
def test_more_templates_are_never_more_kernels(seed: int) -> None:
    graph = build(products_at_random(seed), x=(4, 8))
    fewer, more = (counts(graph, target)[1:] for target in ("tensorrt-like", "tensorrt-like-rownorm"))
    assert more[0] <= fewer[0]
    assert more[1] <= fewer[1]


def norm_and_its_codes(b: GraphBuilder, x: str) -> tuple[str, str]:
    y = b.op("LayerNormalization", x, b.constant(np.ones(8, np.float32)), axis=-1)
    return y, b.op("QuantizeLinear", y, b.constant(np.float32(0.1)), b.constant(np.int8(0)))


def test_norms_also_write_their_codes() -> None:
    assert counts(build(norm_and_its_codes, x=(4, 8)), "tensorrt-like") == (2, 1, 1)
    assert counts(build(norm_and_its_codes, x=(4, 8)), "launch-count")[1:] == (2, 2)


def circular(b: GraphBuilder, x: str) -> str:
    w = b.constant(np.full((8, 8), 0.5, np.float32))
    y = b.op("MatMul", x, w)
    return b.op("Add", b.op("MatMul", y, w), b.op("Exp", y))


def test_merged_kernels_never_need_themselves() -> None:
    assert counts(build(circular, x=(4, 8)), "tensorrt-like")[1:] == (2, 2)


def shared_sum(b: GraphBuilder, x: str, y: str) -> tuple[str, str]:
    z = b.op("Add", x, y)
    return b.op("Relu", z), b.op("Exp", z)


def test_elementwise_operators_may_be_computed_twice() -> None:
    graph = build(shared_sum, x=(4, 8), y=(4, 8))
    assert counts(graph, "tensorrt-like") == (3, 2, 2)
    fused = fuse_program(unfused(graph), load_target("tensorrt-like"), KERNELS)
    assert fused.graph.operator_counts()["Add"] == 2


def test_views_launch_nothing() -> None:
    def make(b: GraphBuilder, x: str) -> str:
        return b.op("Reshape", x, b.constant([8, 4], "int64"))

    assert counts(build(make, x=(4, 8)), "tensorrt-like") == (0, 0, 0)


def test_operators_with_several_outputs_are_single_kernels() -> None:
    def make(b: GraphBuilder, x: str) -> tuple[str, ...]:
        top, index = b.op("TopK", b.op("Relu", x), b.constant([2], "int64"), outputs=2)
        return b.op("Exp", top), index

    assert counts(build(make, x=(4, 8)), "tensorrt-like") == (3, 3, 3)


def test_an_output_inside_a_group_ends_it() -> None:
    def make(b: GraphBuilder, x: str) -> tuple[str, str]:
        y = b.op("Exp", x)
        return y, b.op("Tanh", y)

    tvm, _, _ = counts(build(make, x=(4, 8)), "tvm-like")
    assert tvm == 2


def test_work_counts_distinct_inputs_once_and_sums_operations() -> None:
    graph = build(lambda b, x: b.op("Add", b.op("Mul", x, x), x), x=(4, 8))
    fusion = graph_of_program(graph, load_target("h200")).graph
    operations = range(len(fusion.operations))
    work = group_work(fusion, operations, [0], fusion.roots[0])
    assert (work.flops, work.bytes_read, work.bytes_written, work.dtype) == (64.0, 128.0, 128.0, "float32")
    assert work.operators == ("Mul", "Add")


@pytest.mark.parametrize("name", target_names())
def test_targets_are_complete(name: str) -> None:
    target = load_target(name)
    assert target.source
    assert all(t.source and t.stages for t in target.templates)
    assert target.launch_s > 0
    assert target.peak("float32") > 0
