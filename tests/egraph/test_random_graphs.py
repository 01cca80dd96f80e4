"""All rules on random graphs: every e-node computes the value of its e-class."""

from __future__ import annotations

import pytest
from graph_checks import same_graph

from benchmarks.random_graphs import random_graph
from benchmarks.soundness import check
from eqsat.ir.interpret import run


@pytest.mark.parametrize("first", range(1, 120, 30))
def test_every_spelling_has_the_value_of_its_class(first: int) -> None:
    for number in range(first, first + 30, 2):
        _, _, wrong = check(number)
        assert not wrong, wrong[0]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(21_002_521, id="a table across a rounding on the way"),
        pytest.param(21_003_329, id="floats of integers at a tie, one spelling apart"),
        pytest.param(21_002_633, id="products of constants taken apart"),
        pytest.param(21_003_291, id="products of constants taken apart again"),
    ],
)
def test_graphs_that_were_wrong_or_grew(seed: int) -> None:
    _, _, wrong = check(seed % 1_000_000, seed // 1_000_000)
    assert not wrong, wrong[0]


def test_equal_seeds_give_equal_graphs() -> None:
    one, two = random_graph(7), random_graph(7)
    assert same_graph(one.graph, two.graph)
    assert list(run(one.graph, one.feeds)) == list(one.graph.outputs)
