"""However a mask of truth values is spelled, with whatever number, it is one choice of a number that is added to the scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_graphs import LOWEST, B, S, T, core, number

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

HALF_LOWEST = float(np.finfo(np.float16).min)
NUMBERS = (LOWEST, -1e30, -1e9, HALF_LOWEST, -1e4, -100.0)
Spelling = Callable[[GraphBuilder, Any, Any, float], Any]


def as_float(b: GraphBuilder, c: Any) -> Any:
    return b.op("Cast", c, to=1)


def forbidden(b: GraphBuilder, c: Any) -> Any:
    return b.op("Sub", number(b, 1.0), as_float(b, c))


SPELLINGS: dict[str, Spelling] = {
    "a choice": lambda b, s, c, n: b.op("Add", s, b.op("Where", c, number(b, 0.0), number(b, n))),
    "a choice the other way round": lambda b, s, c, n: b.op(
        "Add", b.op("Where", b.op("Not", c), number(b, n), number(b, 0.0)), s
    ),
    "negated, times the number": lambda b, s, c, n: b.op(
        "Add", s, b.op("Mul", as_float(b, b.op("Not", c)), number(b, n))
    ),
    "one minus it, times the number": lambda b, s, c, n: b.op("Add", s, b.op("Mul", forbidden(b, c), number(b, n))),
    "it minus one, times the opposite": lambda b, s, c, n: b.op(
        "Add", s, b.op("Mul", b.op("Sub", as_float(b, c), number(b, 1.0)), number(b, -n))
    ),
    "subtracted": lambda b, s, c, n: b.op("Sub", s, b.op("Mul", forbidden(b, c), number(b, -n))),
    "divided": lambda b, s, c, n: b.op(
        "Add", s, b.op("Div", forbidden(b, c), number(b, 1 / n if n > -1e30 else -1e-37))
    ),
}


def truth_values(b: GraphBuilder) -> Any:
    return b.input("allowed", "bool", (B, 1, S, T))


def masked(spelling: Spelling, low: float, truth: Callable[[GraphBuilder], Any] = truth_values) -> Graph:
    return core(lambda b, s: spelling(b, s, truth(b), low))


def check_values(graph: Graph, found: Graph) -> None:
    """The same results, with rows that forbid everything among them."""
    rng = np.random.default_rng(2)
    feeds: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        kind: Any = graph.type_of(name)
        array = rng.normal(size=kind.shape) if kind.dtype.is_float else rng.random(kind.shape) < 0.5
        feeds[name] = array.astype(kind.dtype.numpy)
    if "allowed" in feeds:
        feeds["allowed"][..., :2, :] = 0
    for name, value in run(graph, feeds).items():
        np.testing.assert_allclose(run(found, feeds)[name], value, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("low", NUMBERS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_added_number_is_one_choice(spelling: str, low: float) -> None:
    graph = masked(SPELLINGS[spelling], low)
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert result.report.operators_after == {"Attention": 1, "Where": 1}
    check_values(graph, result.program.graph)


def replaced(low: float) -> Graph:
    return core(lambda b, s: b.op("Where", truth_values(b), s, number(b, low)))


def test_number_in_place_of_a_score_may_be_the_sum_of_two_products() -> None:
    """As exporters of TensorFlow write a choice, and the conjunction of masks."""

    def sum_of_products(b: GraphBuilder, s: Any) -> Any:
        both = b.op("Mul", as_float(b, truth_values(b)), as_float(b, b.input("known", "bool", (B, 1, 1, T))))
        mask = b.op("Cast", both, to=9)
        chosen = b.op("Mul", as_float(b, mask), s)
        return b.op("Add", chosen, b.op("Mul", as_float(b, b.op("Not", mask)), number(b, -1e30)))

    graph = core(sum_of_products)
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert result.report.operators_after == {"Attention": 1, "And": 1, "Where": 1}
    check_values(graph, result.program.graph)


@pytest.mark.parametrize("low", NUMBERS)
def test_number_in_place_of_a_score_is_added_where_no_score_is_as_low(low: float) -> None:
    """-1e9 and below are out of every race. A score may be below -10000, and then the number wins: no mask that is added does
    that. Kernels that compute the choice themselves need no mask."""
    graph = replaced(low)
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert ("Attention" in result.report.operators_after) == (low <= -1e9)
    check_values(graph, result.program.graph)
    fused = eqsat.optimize(graph, target="tensorrt-like", verify=False)
    assert fused.report.kernels_after == 1
    check_values(graph, fused.program.graph)


@pytest.mark.parametrize("low", [-np.inf, *NUMBERS])
def test_constant_mask_is_causality_or_stays(low: float) -> None:
    earlier = np.tril(np.ones((S, T), np.bool_))
    for constant in (
        lambda b, s: b.op("Add", s, b.constant(np.where(earlier, 0, low).astype(np.float32))),
        lambda b, s: b.op("Add", s, b.op("Where", b.constant(earlier), number(b, 0.0), number(b, low))),
    ):
        graph = core(constant)
        result = eqsat.optimize(graph, verify=False, form="flat")
        assert result.report.operators_after == {"Attention": 1}
        node = next(n for n in result.program.graph.nodes if n.op == "Attention")
        assert (node.attributes.get("is_causal", 0) == 1) == (low <= -1e9)
        check_values(graph, result.program.graph)


def test_comparison_with_a_float_is_no_grid_of_places() -> None:
    b = GraphBuilder("finite")
    x, m = b.input("x", "float32", (4, 6)), b.input("m", "bool", (4, 6))
    below = b.op("Less", x, b.constant(np.float32(np.inf)))
    result = eqsat.optimize(b.finish({"y": b.op("And", below, m)}))
    assert not result.report.left_out
