"""What a report says of norms and of products on integers that a program does not have, though it nearly has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import eqsat
from eqsat.egraph.unfused import why_unfused
from eqsat.ir.build import GraphBuilder
from eqsat.rewrite import find_rule

FLAT: dict[str, Any] = {"form": "flat", "cost": "kernels", "verify": False}


def _norm(
    shape: tuple[int | str, ...] = (2, 16, 64),
    axes: tuple[int, ...] = (-1,),
    dtype: str = "float32",
    *,
    eps: float | None = 1e-5,
    own: bool = True,
) -> eqsat.Graph:
    """Twice ``x / Sqrt(mean of squares + epsilon)``, but for what is asked for: an epsilon that is known, what is squared."""
    b = GraphBuilder()
    found: list[str] = []
    for i in range(2):
        x = b.input(f"x{i}", dtype, shape)
        mean = b.op("ReduceMean", b.op("Mul", x, x), b.constant(axes, "int64"), keepdims=1)
        epsilon = b.constant(eps, dtype) if eps else b.input(f"e{i}", dtype, (1,))
        divided = x if own else b.input(f"z{i}", dtype, shape)
        found.append(b.op("Div", divided, b.op("Sqrt", b.op("Add", mean, epsilon))))
    return b.finish(found)


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            _norm((300, 300, 4), axes=(0, 1)),
            "'so few that a kernel adds them up precisely' does not hold (x float32[300, 300, 4], a int64[2])",
        ),
        (_norm(eps=None), "'eps constant' does not hold (x float32[2, 16, 64])"),
        (_norm(("b", 16, "h")), "'normalised extents known' does not hold (x float32[b, 16, h])"),
        (
            _norm(dtype="float64"),
            "'kernels for x: float32 or float16 or bfloat16' does not hold (x float64[2, 16, 64])",
        ),
        (
            _norm(dtype="float16", eps=3e-7),
            "'epsilon is larger than squares that underflow' does not hold (x float16[2, 16, 64])",
        ),
    ],
    ids=["many", "epsilon", "extents", "type", "small epsilon"],
)
def test_a_norm_that_stays_in_steps_is_listed_with_the_condition_that_failed(graph: eqsat.Graph, reason: str) -> None:
    report = eqsat.optimize(graph, verify=False).report
    assert report.missed == {"norm": {reason: 2}}
    assert f"not fused  2 x no norm: {reason}" in str(report)


def test_a_product_with_an_older_spelling_is_listed_by_its_own_operands() -> None:
    """``(v' p')' == p v`` is found before the report asks what the product is of: the oldest spelling has one operand."""
    b = GraphBuilder()
    p = b.op("Reshape", b.op("Softmax", b.input("s", "float32", (6, 4))), b.constant([2, 3, 4], "int64"))
    p, v = (b.op("Transpose", x, perm=(0, 2, 1)) for x in (p, b.input("v", "float32", (2, 4, 5))))
    graph = b.finish([b.op("Transpose", b.op("MatMul", v, p), perm=(0, 2, 1))])
    (reason,) = eqsat.optimize(graph, **FLAT).report.missed["attention"]
    assert "probabilities float32[2, 3, 4], values float32[2, 4, 5]" in reason


def test_attention_whose_probabilities_are_kept_costs_more_than_its_steps() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (2, 3, 4, 4)) for name in "qkv")
    p = b.op("Softmax", b.op("MatMul", q, k))
    report = eqsat.optimize(b.finish([b.op("MatMul", p, v), p]), **FLAT).report
    assert report.missed == {"attention": {"it was found, and its steps cost less": 1}}


WITHHELD = "but at its opset, or for its reader, the file may not have Attention of these types (--opset, --for)"


def _attention_of_rows(*extents: int) -> eqsat.Graph:
    """Its probabilities are kept. ``extents``: what its rows are reshaped to."""
    b = GraphBuilder()
    heads = [b.op("Reshape", b.input(n, "float32", (2, 5, 12)), b.constant([2, 5, 3, 4], "int64")) for n in "qkv"]
    perms = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    q, k, v = (b.op("Transpose", h, perm=perm) for h, perm in zip(heads, perms, strict=True))
    p = b.op("Softmax", b.op("MatMul", q, k))
    attended = b.op("Transpose", b.op("MatMul", p, v), perm=(0, 2, 1, 3))
    return b.finish([b.op("Reshape", attended, b.constant(extents, "int64")), p])


@pytest.mark.parametrize("extents", [(2, 5, 12), (2, 1, 5, 12)])
def test_attention_that_the_file_may_have_of_rows_alone_costs_more_than_its_steps(extents: tuple[int, ...]) -> None:
    """Of heads apart it has none at its opset, but the runtime has its own, which hands out rows."""
    report = eqsat.optimize(_attention_of_rows(*extents), form="onnxruntime", opset=18, verify=False).report
    assert report.missed == {"attention": {"it was found, and its steps cost less": 1}}


@pytest.mark.parametrize(
    ("in_vain", "said"),
    [
        ((), WITHHELD),
        (("fuse_transpose_into_left_operand",), WITHHELD),
        (("use_multi_head_attention",), "and in a part of the model its steps cost less (--all-rules)"),
    ],
)
def test_attention_of_a_runtime_that_gained_nothing_in_a_part_of_the_model(in_vain: Sequence[str], said: str) -> None:
    options: dict[str, Any] = {"form": "onnxruntime", "opset": 18, "disabled_rules": ["use_multi_head_attention"]}
    result = eqsat.optimize(_attention_of_rows(2, 5, 12), **options, verify=False, keep_egraph=True)
    assert result.encoding is not None
    nodes = result.encoding.egraph.nodes
    without = [find_rule(name) for name in in_vain]
    found = why_unfused(
        result.encoding.egraph, result.rules, range(len(nodes)), lambda h: nodes[h].key != "Attention", without
    )
    assert list(found["attention"]) == [f"it was found, {said}"]


def test_attention_that_the_file_may_not_have_is_said_to_be_withheld() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (2, 3, 4, 4)) for name in "qkv")
    graph = b.finish([b.op("MatMul", b.op("Softmax", b.op("MatMul", q, k)), v)])
    (reason,) = eqsat.optimize(graph, **FLAT, opset=18).report.missed["attention"]
    assert reason.endswith("the file may not have Attention of these types (--opset, --for)")
    assert not eqsat.optimize(graph, **FLAT, opset=23).report.missed


def test_a_newer_opset_is_no_advice_where_the_best_program_of_any_has_no_attention() -> None:
    types = "float[2, 3, 4, 4]"
    text = f"""<ir_version: 9, opset_import: ["": 17]> agraph ({types} q, {types} k, {types} v) => ({types} y, {types} p)
               {{ s = MatMul(q, k)  p = Softmax(s)  y = MatMul(p, v) }}"""
    model = onnx.parser.parse_model(text)
    assert eqsat.optimize(model, **FLAT).report.missed == {"attention": {"it was found, and its steps cost less": 1}}
    (reason,) = eqsat.optimize(model, **FLAT, opset=17).report.missed["attention"]
    assert reason.endswith("(--opset, --for)")


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_means_of_numbers_are_no_attention(op: str) -> None:
    """As detectors find distances: the numbers up to 8, each with a probability. ultralytics' have a Conv, PaddleDetection's a
    MatMul."""
    b, numbers = GraphBuilder(), np.arange(8, dtype=np.float32)
    x = b.input("x", "float32", (1, 4, 8, 20))
    if op == "MatMul":
        p = b.op("Softmax", b.op("Transpose", x, perm=(0, 3, 1, 2)), axis=-1)
        y = b.op("MatMul", p, b.constant(numbers))
    else:
        p = b.op("Softmax", b.op("Transpose", x, perm=(0, 2, 1, 3)), axis=1)
        y = b.op("Conv", p, b.constant(numbers.reshape(1, 8, 1, 1)))
    assert not eqsat.optimize(b.finish([y]), **FLAT).report.missed


def test_roots_that_belong_to_no_norm_are_not_listed() -> None:
    assert not eqsat.optimize(_norm(own=False), verify=False).report.missed
    assert not eqsat.optimize(_norm(), verify=False).report.missed


def _product(
    op: str = "MatMul", dtype: str = "uint8", axis: int | None = None, *, data: bool = True, weights: bool = True
) -> eqsat.Graph:
    """A product of dequantised data and weights, or of floats; the weights with one scale or several along ``axis``."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    rows, columns = ((2, 8, 6, 6), (5, 8, 3, 3)) if op == "Conv" else ((4, 16), (16, 8))
    x = b.input("x", dtype if data else "float32", rows)
    if data:
        x = b.op("DequantizeLinear", x, b.constant(0.05, "float32"), b.constant(3, dtype))
    if weights:
        scales = np.float32(0.1) if axis is None else rng.random(columns[axis], np.float32) + np.float32(0.1)
        kept: dict[str, Any] = {} if axis is None else {"axis": axis}
        integers = b.constant(rng.integers(-100, 100, columns), "int8")
        w = b.op("DequantizeLinear", integers, b.constant(scales), b.constant(np.zeros(scales.shape), "int8"), **kept)
    else:
        w = b.constant(rng.random(columns, np.float32))
    return b.finish({"y": b.op(op, x, w)})


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (_product(weights=False), "weights float32[16, 8] of MatMul are not quantised"),
        (_product(data=False), "data float32[4, 16] of MatMul are not quantised"),
        (
            _product(axis=0),
            "'the right scales are those of the columns' does not hold "
            "(a uint8[4, 16], w int8[16, 8], sw float32[16], zw int8[16])",
        ),
        (
            _product("Conv", axis=1),
            "'the scales are those of the channels' does not hold "
            "(a uint8[2, 8, 6, 6], w int8[5, 8, 3, 3], sw float32[8], zw int8[8])",
        ),
        (_product(dtype="int16"), "'kernels for a: uint8' does not hold (a int16[4, 16], w int8[16, 8])"),
    ],
    ids=["weights", "data", "rows", "channels", "type"],
)
def test_a_product_in_floats_of_what_was_quantised_is_listed_with_what_is_missing(
    graph: eqsat.Graph, reason: str
) -> None:
    report = eqsat.optimize(graph, **FLAT).report
    assert report.missed == {"product on integers": {reason: 1}}
    assert f"1 x no product on integers: {reason}" in report.details()


def test_products_that_are_cheaper_in_floats_or_were_never_quantised_are_not_listed() -> None:
    for graph in (_product(), _product(data=False, weights=False)):
        report = eqsat.optimize(graph, **FLAT).report
        assert "MatMul" in report.operators_after
        assert not report.missed


def test_probabilities_that_no_product_reads_are_no_attention() -> None:
    b = GraphBuilder()
    scores = b.op("MatMul", b.input("x", "float32", (2, 8)), b.input("w", "float32", (8, 3)))
    probabilities = b.op("Softmax", scores, axis=-1)
    label = b.op("ArgMax", probabilities, axis=-1)
    assert eqsat.optimize(b.finish([probabilities, label]), **FLAT).report.missed == {}


def test_a_router_that_chooses_experts_is_no_attention() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (6, 8))
    chances = b.op("Softmax", b.op("MatMul", x, b.input("router", "float32", (8, 4))), axis=-1)
    _, chosen = b.op("TopK", chances, b.constant([1], "int64"), outputs=2)
    experts = b.op(
        "Gather", b.input("experts", "float32", (4, 8, 5)), b.op("Squeeze", chosen, b.constant([1], "int64"))
    )
    y = b.op("MatMul", b.op("Unsqueeze", x, b.constant([1], "int64")), experts)
    assert eqsat.optimize(b.finish([y]), **FLAT).report.missed == {}
