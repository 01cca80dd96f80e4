"""Rows of constant tables: looked up after what is computed of them, and instead of products with one-hot rows."""

from __future__ import annotations

import numpy as np
import pytest
from graph_checks import counts, optimized

import eqsat
from eqsat.ir.build import GraphBuilder

rng = np.random.default_rng(4)


def embedded(b: GraphBuilder, number: str, rows: int) -> str:
    """GELU of a biased embedding as JAX spells it: a product with one-hot rows."""
    listed = b.constant(np.arange(rows, dtype=np.int32).reshape(1, 1, rows))
    one_hot = b.op("Cast", b.op("Equal", b.op("Unsqueeze", number, b.constant(np.array([-1]))), listed), to=1)
    product = b.op("MatMul", one_hot, b.constant(rng.normal(size=(rows, 8)).astype(np.float32)))
    return b.op("Gelu", b.op("Add", product, b.constant(rng.normal(size=(1, 1, 8)).astype(np.float32))))


@pytest.mark.parametrize("batch", [2, "n"])
def test_embedding_by_one_hot_rows_is_one_look_up(batch: int | str) -> None:
    b = GraphBuilder()
    graph = b.finish({"y": embedded(b, b.input("x", "int32", (batch, 5)), 7)})
    assert counts(optimized(graph)) == {"Clip": 1, "Gather": 1}


def test_numbers_of_rows_need_no_clip() -> None:
    b = GraphBuilder()
    bounds = (b.constant(np.int32(n)) for n in (0, 6))
    graph = b.finish({"y": embedded(b, b.op("Abs", b.op("Clip", b.input("x", "int32", (2, 5)), *bounds)), 7)})
    assert counts(optimized(graph)) == {"Clip": 1, "Gather": 1}


def test_what_differs_by_place_is_added_behind_the_look_up() -> None:
    b = GraphBuilder()
    table, places = (b.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((7, 8), (5, 8)))
    number = b.op("Clip", b.input("i", "int64", (2, 5)), *(b.constant(np.int64(n)) for n in (0, 6)))
    graph = b.finish({"y": b.op("Add", b.op("Gather", table, number), places)})
    assert counts(optimized(graph)) == {"Clip": 1, "Gather": 1, "Add": 1}


def test_what_is_looked_up_of_constants_makes_no_tables() -> None:
    b = GraphBuilder()
    extents = b.constant(np.array([1, 48, 48], np.int64))
    one, side = (b.op("Gather", extents, b.constant(np.int64(i))) for i in (0, 1))
    total = b.op("Add", b.op("Div", side, side), b.op("Mul", side, one))
    graph = b.finish({"y": b.op("Add", b.input("x", "int64", ("n",)), total)})
    result = eqsat.optimize(graph, form="flat")
    assert result.report.operators_after == {"Add": 1}
    assert "compute_in_table" not in result.report.rules
