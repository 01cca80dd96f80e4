"""Operators imply the largest extents, and these bound what is computed of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.limits import largest, limits_of


def rows_of_a_table(rows: int, *, added: bool = True) -> Graph:
    """As many rows of a table as an input has, and the input with them added."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", "seq", 4))
    zero, length = (b.constant(np.array([n], np.int64)) for n in (0, rows))
    table = b.constant(np.ones((rows, 4), np.float32))
    first = b.op("Slice", table, zero, b.op("Shape", x, start=1, end=2), zero)
    return b.finish({"y": b.op("Add", x, first) if added else first, "length": length})


def operands(*shapes: tuple[int | str, ...]) -> Graph:
    b = GraphBuilder()
    return b.finish({"y": b.op("Sum", *(b.input(f"x{i}", "float32", shape) for i, shape in enumerate(shapes)))})


LIMITED: tuple[tuple[Graph, dict[str, int]], ...] = (
    (rows_of_a_table(512), {"seq": 512}),
    (rows_of_a_table(512, added=False), {}),
    (rows_of_a_table(1), {}),  # one row goes with any number
    (operands(("n", 4), ("m", 4)), {}),
    (operands(("n", 4), (7, 4)), {"n": 7}),
    (operands((4, "n"), (7,), (1,)), {"n": 7}),
    (operands((4, "n + 1"), (7,)), {}),
)


@pytest.mark.parametrize(("graph", "limits"), LIMITED)
def test_operators_limit_what_they_broadcast(graph: Graph, limits: dict[str, int]) -> None:
    assert limits_of(graph) == limits


@pytest.mark.parametrize(
    ("dim", "most"),
    [
        (5, 5),
        ("n", 7),
        ("m", math.inf),
        ("2*n + 3", 17),
        ("n - m", 7),
        ("m*n", math.inf),
        ("min(m, n)", 7),
        ("min(12, m)*n", 84),
        ("max(m, n)", math.inf),
        ("n - floordiv(m - 3, 2)", math.inf),
    ],
)
def test_an_extent_is_no_larger_than_its_symbols_let_it_be(dim: Any, most: float) -> None:
    assert largest(dim, {"n": 7}) == most
