"""Gains of normalisations in the products behind them, adapters of low rank in the weights beside them: what folds, what not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized, proved_equal

from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import find_rule

rng = np.random.default_rng(5)


def array(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def products(found: dict[str, int]) -> int:
    return found.get("MatMul", 0) + found.get("Gemm", 0)


def fires(graph: Graph, rule: str) -> bool:
    return bool(saturate(encode(graph).egraph, [find_rule(rule)]).matches[rule])


# --- gains of normalisations


def two_branches(
    op: str, *, shift: bool = False, epsilons: tuple[float, float] = (1e-5, 1e-5), axis: int = -1
) -> Graph:
    """Attention and feed-forward side by side, each behind a normalisation of its own of the same value."""
    b = GraphBuilder()
    x = b.input("x", "float32", (5, 8))
    outputs: dict[str, str] = {}
    for name, epsilon in zip("uv", epsilons, strict=True):
        extents = (8,) if axis == -1 else (5, 8)
        parts = [b.constant(array(*extents)) for _ in range(2 if shift else 1)]
        normed = b.op(op, x, *parts, axis=axis, epsilon=epsilon)
        outputs[name] = b.op("Add", b.op("MatMul", normed, b.constant(array(8, 6))), b.constant(array(6)))
    return b.finish(outputs)


@pytest.mark.parametrize(("op", "shift"), [("RMSNormalization", False), ("LayerNormalization", True)])
def test_normalisations_that_differ_in_gains_become_one_and_so_do_the_products(op: str, shift: bool) -> None:
    found = counts(optimized(two_branches(op, shift=shift)))
    assert (found[op], products(found)) == (1, 1)


@pytest.mark.parametrize("how", [{"epsilons": (1e-5, 1e-3)}, {"axis": -2}])
def test_other_normalisations_keep_their_gains(how: dict[str, Any]) -> None:
    assert counts(optimized(two_branches("LayerNormalization", **how)))["LayerNormalization"] == 2


@pytest.mark.parametrize(("large", "folds"), [(1.0, True), (1e19, False)])
def test_shifts_whose_products_overflow_stay_in_their_normalisation(large: float, folds: bool) -> None:
    """Each product of shift and weights is finite, their sum is not."""
    b = GraphBuilder()
    x, ones = b.input("x", "float32", (5, 8)), np.ones(8, np.float32)
    outputs: dict[str, str] = {}
    for name, gain in (("u", 1.0), ("v", 2.0)):
        parts = [b.constant(ones * np.float32(v)) for v in (gain, large)]
        normed = b.op("LayerNormalization", x, *parts)
        outputs[name] = b.op("MatMul", normed, b.constant(np.full((8, 6), large * 10, np.float32)))
    encoding = encode(b.finish(outputs))
    name = "fold_gains_into_following_matmuls"
    assert bool(saturate(encoding.egraph, [find_rule(name)]).matches[name]) == folds


def test_one_normalisation_keeps_its_gain() -> None:
    b = GraphBuilder()
    normed = b.op("LayerNormalization", b.input("x", "float32", (5, 8)), b.constant(array(8)), b.constant(array(8)))
    weights = [b.constant(array(8, 6)) for _ in range(2)]
    result = optimized(b.finish({"u": b.op("MatMul", normed, weights[0]), "v": b.op("MatMul", normed, weights[1])}))
    assert "fold_gains_into_following_matmuls" not in result.report.rules


@pytest.mark.parametrize("reader", ["Relu", "MatMul"])
def test_a_gain_read_otherwise_stays_right(reader: str) -> None:
    """One of the normalised values is an operand of something else, or the right operand of its product."""
    b = GraphBuilder()
    x = b.input("x", "float32", (8, 8))
    first = b.op("RMSNormalization", x, b.constant(array(8)))
    second = b.op("RMSNormalization", x, b.constant(array(8)))
    other = b.op("Relu", second) if reader == "Relu" else b.op("MatMul", b.constant(array(8, 8)), second)
    optimized(b.finish({"u": b.op("MatMul", first, b.constant(array(8, 6))), "v": other}))


@pytest.mark.parametrize("beta", [False, True])
def test_factor_and_summand_behind_layer_normalization_enter_it(beta: bool) -> None:
    b = GraphBuilder()
    parts = [b.constant(array(8)) for _ in range(2 if beta else 1)]
    normed = b.op("LayerNormalization", b.input("x", "float32", (5, 8)), *parts)
    scaled = b.op("Add", b.op("Mul", normed, b.constant(array(8))), b.constant(array(8)))
    assert set(counts(optimized(b.finish({"y": scaled})))) == {"LayerNormalization"}


def test_factor_behind_scaled_rms_normalization_enters_it() -> None:
    b = GraphBuilder()
    normed = b.op("RMSNormalization", b.input("x", "float32", (5, 8)), b.constant(array(8)))
    assert set(counts(optimized(b.finish({"y": b.op("Mul", b.constant(array(1, 8)), normed)})))) == {"RMSNormalization"}


@pytest.mark.parametrize(("factor", "enters"), [(0.5, True), (2e-4, False)])
@pytest.mark.parametrize("kind", ["layer", "scaled_rms"])
def test_factor_that_leaves_no_digits_of_half_precision_gains_stays(kind: str, factor: float, enters: bool) -> None:
    b = GraphBuilder()
    gain, number = (b.constant(np.full(8, value, "float16")) for value in (0.01, factor))
    op = {"layer": "LayerNormalization", "scaled_rms": "RMSNormalization"}[kind]
    scaled = b.op("Mul", b.op(op, b.input("x", "float16", (5, 8)), gain), number)
    assert fires(b.finish({"y": scaled}), f"scale_{kind}_normalization") is enters


def test_factor_along_another_axis_stays_behind_layer_normalization() -> None:
    b = GraphBuilder()
    normed = b.op("LayerNormalization", b.input("x", "float32", (5, 8)), b.constant(array(8)))
    assert counts(optimized(b.finish({"y": b.op("Mul", normed, b.constant(array(5, 1)))})))["Mul"] == 1


# --- products of low rank


def adapted(*, bias: bool, rank: int = 2, scale: float = 2.0, constant: bool = True) -> Graph:
    """A product with an adapter of low rank beside it, as fine-tuning leaves it."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3, 5, 8))
    y = b.op("MatMul", x, b.constant(array(8, 6)))
    y = b.op("Add", y, b.constant(array(6))) if bias else y
    down = b.op("MatMul", x, b.constant(array(8, rank)) if constant else b.input("a", "float32", (8, rank)))
    up = b.op("Mul", b.op("MatMul", down, b.constant(array(rank, 6))), b.constant(np.float32(scale)))
    return b.finish({"y": b.op("Add", y, up)})


@pytest.mark.parametrize("bias", [False, True])
def test_adapter_merges_with_the_weights(bias: bool) -> None:
    found = counts(optimized(adapted(bias=bias)))
    assert products(found) == 1
    assert found.get("Add", 0) <= int(bias)
    assert "Mul" not in found


def test_adapter_computed_at_run_time_stays() -> None:
    assert products(counts(optimized(adapted(bias=True, constant=False)))) >= 2


def test_products_of_different_widths_do_not_add_up() -> None:
    """The second product is one column, repeated for each column of the first."""
    b = GraphBuilder()
    x = b.input("x", "float32", (5, 8))
    parts = [b.op("MatMul", x, b.constant(array(8, n))) for n in (6, 1)]
    graph = b.finish({"y": b.op("Add", *parts)})
    optimized(graph)


def test_factors_whose_product_overflows_are_left_alone() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (5, 8))
    first, second = b.constant(np.full((8, 9), 1e25, np.float32)), b.constant(np.full((9, 6), 1e25, np.float32))
    chain = b.op("MatMul", b.op("MatMul", x, first), second)
    whole = b.op("MatMul", x, b.op("MatMul", first, second))
    assert not proved_equal(b.finish({"y": chain, "z": whole}), "multiply_constant_factors_first")


@pytest.mark.parametrize(("size", "multiplied"), [(0.03, True), (2e-4, False)])
def test_factors_whose_product_has_no_digits_in_half_precision_are_left_alone(size: float, multiplied: bool) -> None:
    b = GraphBuilder()
    y = b.input("x", "float16", (5, 8))
    for shape in ((8, 9), (9, 6)):
        y = b.op("MatMul", y, b.constant((array(*shape) * size).astype("float16")))
    assert fires(b.finish({"y": y}), "multiply_constant_factors_first") is multiplied


@pytest.mark.parametrize(("between", "products_left"), [(2, 2), (9, 1)])
def test_factors_in_a_row_become_one_where_that_is_no_larger(between: int, products_left: int) -> None:
    b = GraphBuilder()
    y = b.input("x", "float32", (5, 8))
    for shape in ((8, between), (between, 6)):
        y = b.op("MatMul", y, b.constant(array(*shape)))
    assert products(counts(optimized(b.finish({"y": y})))) == products_left
