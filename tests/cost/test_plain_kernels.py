"""Kernels that the timings do not tell apart: elementwise operators by their memory, splits by their rows. Launches counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.cost.model import Work, find_cost_model, work_of
from eqsat.cost.plain import plain
from eqsat.cost.target import load_target
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Attributes
from eqsat.ir.operator import Application
from eqsat.ir.types import DType, TensorType, tensor_type

Shape = tuple[Any, ...]


def work(key: str, *shapes: Shape, outputs: tuple[Shape, ...] = (), dtype: str = "float32", **attributes: Any) -> Work:
    """A kernel of one operator; its result has the shape of the first operand unless said otherwise."""
    types = [TensorType(DType.of(dtype), s) for s in shapes]
    results = [TensorType(DType.of(dtype), s) for s in outputs or shapes[:1]]
    return work_of(Application(key, Attributes(attributes), types, outputs=len(results)), results)


def shapes(found: Work) -> list[Shape | None]:
    return [t.shape for t in (*found.types, *found.results) if isinstance(t, TensorType)]


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ([(2, 3, 4)], [(24,), (24,)]),
        ([(1, 2, 1, 12), (2, 12)], [(24,), (24,), (24,)]),
        ([(2, 3, 4), (1, 1)], [(24,), (), (24,)]),
        ([(2, 3, 4), (4,)], [(6, 4), (4,), (6, 4)]),
        ([(2, 3, 4), (1, 3, 4)], [(2, 12), (12,), (2, 12)]),
        ([(1, 5), ()], [(5,), (), (5,)]),
        ([(0, 3), (3,)], [(0, 3), (3,), (0, 3)]),
    ],
    ids=str,
)
def test_elementwise_kernels_run_over_memory(operands: list[Shape], expected: list[Shape]) -> None:
    assert shapes(plain(work("Add" if len(operands) > 1 else "Relu", *operands))) == expected


@pytest.mark.parametrize(
    ("operands", "runs"),
    [
        ([(6, 4), (6, 4)], 0),
        ([(6, 4), ()], 0),
        ([(6, 4), (4,)], 6),
        ([(6, 4), (6, 1)], 6),
        ([(2, 3, 4), (3, 4)], 2),
        ([(2, 3, 4), (2, 1, 4)], 6),
        ([(2, 3, 5, 5), (2, 3, 1, 1)], 6),
        ([(2, 3, 1, 4), (1, 3, 1, 4)], 2),
        ([(2, 3, 4), (2, 1, 4), (4,)], 6),
    ],
    ids=str,
)
def test_operands_that_repeat_take_operations_for_each_run(operands: list[Shape], runs: int) -> None:
    before = work("Add" if len(operands) == 2 else "Where", *operands)
    assert plain(before).flops == before.flops + 100 * runs


def test_operators_that_compute_alike_work_alike() -> None:
    before = work("Add", (2, 3, 4), (2, 3, 4))
    after = plain(before)
    assert (after.flops, after.bytes, after.operators) == (before.flops, before.bytes, before.operators)


@pytest.mark.parametrize(
    "kept",
    [
        work("Add", (2, 3, 4), (2, 1, 4)),
        work("Add", (2, 3, 4), (3, 1)),
        work("BatchNormalization", (2, 3), (3,), (3,), (3,), (3,)),
        work("MatMul", (2, 3), (3, 4), outputs=((2, 4),)),
    ],
    ids=lambda w: f"{w.operators[0]} {shapes(w)}",
)
def test_others_stay_as_they_are(kept: Work) -> None:
    assert shapes(plain(kept)) == shapes(kept)


def test_scales_along_an_axis_keep_the_axis() -> None:
    types = [tensor_type("uint8", (2, 3, 4)), tensor_type("float32", (3,)), tensor_type("uint8", (3,))]
    result = [tensor_type("float32", (2, 3, 4))]
    found = work_of(Application("DequantizeLinear", Attributes({"axis": 1}), types), result)
    assert plain(found) == found


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [((2, 6, 5), 1, (2, 30)), ((2, 5, 6), -1, (10, 6)), ((6, 5), 0, (1, 30)), ((1, 2, 6), 2, (2, 6))],
)
def test_splits_cut_rows(shape: Shape, axis: int, rows: Shape) -> None:
    parts = []
    for extent in (2, 4):
        part = list(shape)
        part[axis] = extent
        parts.append(tuple(part))
    found = plain(work("Split", shape, outputs=tuple(parts), axis=axis))
    assert shapes(found) == [rows, (rows[0], rows[1] // 3), (rows[0], 2 * rows[1] // 3)]
    assert found.attributes["axis"] == -1


@pytest.mark.parametrize(
    ("before", "after", "stretches"),
    [
        ((2, 3, 4), (2, 3, 5), 6),
        ((2, 3, 4), (2, 6, 4), 2),
        ((2, 3, 4), (3, 3, 4), 1),
        ((1, 4, 5, 1), (1, 8, 7, 1), 4),
        ((2, 3), (2, 3), 1),
        ((), (), 1),
    ],
)
def test_padding_copies_stretches(before: Shape, after: Shape, stretches: int) -> None:
    assert plain(work("Pad", before, outputs=(after,))).flops == stretches


@pytest.mark.parametrize(
    ("shape", "axis", "rows"),
    [((4, 16), -1, 4), ((2, 32, 3), 1, 6), ((5, 49), 1, 10), ((16,), 0, 1), ((), -1, 1), ((3, 0), 1, 0)],
)
def test_a_softmax_works_by_the_row_and_twice_as_long_for_what_is_no_whole_vector(
    shape: Shape, axis: int, rows: int
) -> None:
    assert plain(work("Softmax", shape, axis=axis)).flops == rows


def test_attention_has_its_heads_apart() -> None:
    rows = (2, 16, 64)
    few, many = (plain(work("Attention", rows, rows, rows, q_num_heads=h, kv_num_heads=h)) for h in (2, 8))
    assert (shapes(few)[0], shapes(many)[0]) == ((2, 16, 2, 32), (2, 16, 8, 8))
    assert work("Attention", rows, rows, rows, q_num_heads=2, kv_num_heads=2).flops < few.flops < many.flops
    apart = (2, 8, 16, 8)
    assert plain(work("Attention", apart, apart, apart)).flops == many.flops


def looked_up(rows: int, tokens: int, axis: int = 0) -> Work:
    table, indices = tensor_type("float32", (rows, 64)), tensor_type("int64", (1, tokens))
    app = Application("Gather", Attributes({"axis": axis}), [table, indices])
    return work_of(app, [tensor_type("float32", (1, tokens, 64))])


def test_a_table_has_no_more_rows_than_are_looked_up() -> None:
    assert plain(looked_up(30522, 16)) == plain(looked_up(16, 16)) == looked_up(16, 16)
    assert plain(looked_up(2, 16)) == looked_up(2, 16)
    assert plain(looked_up(30522, 16, axis=1)) == looked_up(30522, 16, axis=1)


def test_tables_of_an_embedding_have_no_more_rows_than_are_looked_up() -> None:
    def embedding(words: int, places: int) -> Work:
        ids, vector = tensor_type("int32", (1, 16)), tensor_type("float32", (64,))
        tables = [tensor_type("float32", (rows, 64)) for rows in (words, places, 2)]
        key = "com.microsoft::EmbedLayerNormalization"
        app = Application(key, Attributes({"epsilon": 1e-5}), [ids, ids, *tables, vector, vector], outputs=2)
        results = [tensor_type("float32", (1, 16, 64)), tensor_type("int32", (1,))]
        return work_of(app, results)

    assert plain(embedding(30522, 512)) == embedding(16, 16)


def test_a_softmax_along_an_inner_axis_counts_its_transposes_unless_the_target_fuses() -> None:
    count = find_cost_model("kernels").kernel_cost
    last, inner = (work("Softmax", (2, 3, 4), axis=axis) for axis in (-1, -2))
    turn = work("Transpose", (2, 3, 4))
    flat, fusing = load_target("onnxruntime-cpu"), load_target("h200")
    assert count(last, flat) == 1
    assert count(last, flat) + count(turn, flat) < count(inner, flat) < count(last, flat) + 2 * count(turn, flat)
    assert count(inner, fusing) == count(last, fusing)


def test_a_transpose_that_scatters_counts_more_than_two_that_do_not_unless_the_target_fuses() -> None:
    kernels, shape = find_cost_model("kernels"), (8, 3, 16, 3, 16)
    scattered, rows, matrix, units = (
        work("Transpose", shape, perm=perm)
        for shape, perm in (
            (shape, (2, 4, 0, 1, 3)),
            (shape, (0, 1, 3, 2, 4)),
            (shape, (2, 3, 4, 0, 1)),
            ((1, 3, 1, 5), (3, 2, 1, 0)),
        )
    )
    target = load_target("onnxruntime-cpu")
    assert kernels.kernel_cost(scattered, target) > kernels.kernel_cost(rows, target) + kernels.kernel_cost(
        matrix, target
    )
    assert kernels.kernel_cost(units, target) == 1
    assert kernels.kernel_cost(scattered, load_target("tvm-like")) == 1


def test_convolutions_of_volumes_lay_out_their_windows() -> None:
    few, many = (work("Conv", (1, 4, 8, 8, 8), (f, 4, 3, 3, 3), outputs=((1, f, 8, 8, 8),)) for f in (1, 8))
    assert plain(many).flops < 2 * plain(few).flops
    image = work("Conv", (1, 4, 8, 8), (8, 4, 3, 3), outputs=((1, 8, 8, 8),))
    assert plain(image).flops == image.flops
    points = work("Conv", (1, 4, 8, 8, 8), (8, 4, 1, 1, 1), outputs=((1, 8, 8, 8, 8),))
    assert plain(points).flops == points.flops


def test_a_table_of_bytes_is_dequantised_behind_the_look_up() -> None:
    """ONNX Runtime dequantises constants at every call, so the whole table otherwise."""
    b = GraphBuilder()
    table = b.op("DequantizeLinear", b.constant(np.ones((64, 64), np.uint8)), b.constant(np.float32(0.1)))
    graph = b.finish({"y": b.op("Gather", table, b.input("i", "int64", (4,)))})
    result = eqsat.optimize(graph, form="flat", cost="kernels", numerics="exact", verify=False)
    assert [node.key for node in result.program.graph.nodes] == ["Gather", "DequantizeLinear"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_costs_what_single_precision_does_where_only_that_was_timed(dtype: str) -> None:
    """The runtime computes it so; as float16 by the bytes alone, attention was taken to cost more than what it is made of."""
    model, target = find_cost_model("measured"), load_target("onnxruntime-cpu")
    rows = (2, 16, 64)

    def price(key: str, dtype: str, *shapes: Shape, **attributes: Any) -> float:
        return model.kernel_cost(work(key, *shapes, dtype=dtype, **attributes), target)

    for key, operands, attributes in (
        ("MatMul", (rows, (64, 64)), {}),
        ("Attention", (rows, rows, rows), {"q_num_heads": 4, "kv_num_heads": 4}),
        ("Transpose", ((64, 128, 96),), {"perm": (1, 0, 2)}),
    ):
        assert price(key, dtype, *operands, **attributes) == price(key, "float32", *operands, **attributes)
