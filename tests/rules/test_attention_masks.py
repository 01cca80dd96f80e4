"""Masks of attention: minus infinity, truth values, causality, guards against NaN, float16; and where these are not equal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_graphs import LOWEST, B, H, N, S, Steps, T, W, core, ints, number, plus, scaled

import eqsat
import eqsat.rules  # registers the shipped rules
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph, Node
from eqsat.ir.interpret import run
from eqsat.rewrite import select_rules

INFINITE = -np.inf
EARLIER = np.tril(np.ones((S, T), np.bool_))
SCATTERED = np.random.default_rng(1).random((S, T)) < 0.8
TABLE = np.linspace(-3, 3, S * T, dtype=np.float32).reshape(S, T)
FULL_ROW = np.where(np.arange(S)[:, None] == 2, INFINITE, np.zeros((S, T)))


def guard(b: GraphBuilder, p: Any) -> Any:
    return b.op("Where", b.op("IsNaN", p), number(b, 0.0), p)


def truth(b: GraphBuilder, *shape: int, name: str = "allowed") -> str:
    return b.input(name, "bool", shape or (B, 1, S, T))


def selected(low: float, *, swapped: bool = False) -> Steps:
    def steps(b: GraphBuilder, s: Any) -> Any:
        return b.op("Where", truth(b), *((number(b, low), s) if swapped else (s, number(b, low))))

    return steps


def biased(low: float, *shape: int, name: str = "allowed") -> Steps:
    def steps(b: GraphBuilder, s: Any) -> Any:
        return b.op("Add", s, b.op("Where", truth(b, *shape, name=name), number(b, 0.0), number(b, low)))

    return steps


def inverted(dtype: str, low: float, *, late: bool) -> Steps:
    """``(1 - m) * low`` for a mask over the keys, cast before or behind the new axes."""

    def steps(b: GraphBuilder, s: Any) -> Any:
        m = b.input("m", dtype, (B, T))
        m = (
            b.op("Cast", b.op("Unsqueeze", m, ints(b, 1, 2)), to=1)
            if late
            else b.op("Unsqueeze", b.op("Unsqueeze", b.op("Cast", m, to=1), ints(b, 1)), ints(b, 2))
        )
        return b.op("Add", s, b.op("Mul", b.op("Sub", number(b, 1.0), m), number(b, low)))

    return steps


def subtracted(dtype: str, low: float) -> Steps:
    """``s - (1 - m) * -low``"""

    def steps(b: GraphBuilder, s: Any) -> Any:
        m = b.op("Unsqueeze", b.op("Cast", b.input("m", dtype, (B, T)), to=1), ints(b, 1, 2))
        return b.op("Sub", s, b.op("Mul", b.op("Sub", number(b, 1.0), m), number(b, -low)))

    return steps


def then(*steps: Steps) -> Steps:
    def all_of(b: GraphBuilder, s: Any) -> Any:
        for step in steps:
            s = step(b, s)
        return s

    return all_of


def feeds_for(graph: Graph) -> dict[str, np.ndarray]:
    """Random inputs; truth values and masks of integers forbid all of a row now and then."""
    rng = np.random.default_rng(7)
    feeds: dict[str, np.ndarray] = {}
    for name in graph.inputs:
        found: Any = graph.type_of(name)
        if found.dtype.is_float:
            feeds[name] = rng.normal(size=found.shape).astype(found.dtype.numpy)
        else:
            allowed = rng.random(found.shape) < 0.6
            allowed[0] = False if found.shape[0] > 1 else allowed[0]
            feeds[name] = allowed.astype(found.dtype.numpy)
    return feeds


def attention_in(graph: Graph, *, tolerance: float = 2e-5, **options: Any) -> Node | None:
    """The Attention that the graph becomes, if any, after it was run here and in ONNX Runtime."""
    result = eqsat.optimize(graph, verify=False, **dict[str, Any](form="flat") | options)
    feeds = feeds_for(graph)
    (expected,) = run(graph, feeds).values()
    ours = run(result.program.graph, feeds), Session(to_model(result.program.graph)).run(feeds)
    for outputs in ours:
        for value in outputs.values():
            np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
    found = [node for node in result.program.graph.nodes if node.op == "Attention"]
    assert len(found) <= 1
    return found[0] if found else None


SPELLINGS: dict[str, Graph] = {
    "minus infinity": core(plus(np.where(SCATTERED, 0, INFINITE))),
    "bias and minus infinity": core(plus(np.where(SCATTERED, np.linspace(-1, 1, T), INFINITE))),
    "minus infinity before the scale": core(then(plus(np.where(SCATTERED, 0, INFINITE)), scaled("Mul", 0.5))),
    "a full row, guarded": core(plus(FULL_ROW), after=guard),
    "finite, guarded": core(plus(np.where(EARLIER, 0, -1e9)), after=guard),
    "selected": core(selected(LOWEST)),
    "selected by a large number": core(selected(-1e9)),
    "selected by a large number, then scaled": core(then(selected(-1e9), scaled("Mul", 0.5))),
    "selected by a number of Emformer": core(selected(-1e8)),
    "selected otherwise": core(selected(-1e9, swapped=True)),
    "selected and guarded": core(selected(INFINITE), after=guard),
    "selected otherwise and guarded": core(selected(INFINITE, swapped=True), after=guard),
    "added": core(biased(-1e9)),
    "added and guarded": core(biased(INFINITE), after=guard),
    "over the keys, guarded": core(biased(INFINITE, T), after=guard),
    "two masks, guarded": core(then(biased(INFINITE), biased(INFINITE, S, T, name="causal")), after=guard),
    "minus infinity that leaves rows open, and a finite mask": core(
        then(plus(np.where(EARLIER, 0, INFINITE)), inverted("int64", -10000.0, late=False))
    ),
    "integers, cast first": core(inverted("int64", -10000.0, late=False)),
    "integers, cast last": core(inverted("int32", -10000.0, late=True)),
    "truth values inverted": core(inverted("bool", LOWEST, late=True)),
    "integers, subtracted": core(subtracted("int64", -10000.0)),
    "truth values, subtracted": core(subtracted("bool", LOWEST)),
    "inverted before the scale": core(then(inverted("int64", -10000.0, late=True), scaled("Div", 8.0))),
    "regrouped behind the mask": core(
        lambda b, s: b.op("Reshape", biased(-1e9)(b, b.op("Reshape", s, ints(b, B, N, S, T))), ints(b, B * N, S, T)),
        lead=(B * N,),
    ),
    "large numbers twice": core(then(biased(-1e9), biased(-1e9, S, T, name="causal"))),
    "a large number and the lowest": core(then(biased(-1e4), biased(LOWEST, S, T, name="causal"))),
    "large numbers whose sum is exact": core(then(biased(-1e9), biased(-64e4, S, T, name="causal"))),
    "known numbers, a row open": core(then(plus(np.where(EARLIER, 0, -1e9)), plus(np.where(SCATTERED, 0, -1e4)))),
    "masks of different rank": core(then(biased(-10.0, S, T), biased(-3.0, B, 1, 1, T, name="padding"))),
}


def relative(b: GraphBuilder, s: Any) -> Any:
    """Scores with products for relative positions, looked up as DeBERTa and Transformer-XL do."""
    near = b.op("MatMul", b.input("r", "float32", (B, N, T, 2)), b.input("e", "float32", (B, N, 2, S)))
    return b.op("Add", s, b.op("Mul", b.op("Transpose", near, perm=(0, 1, 3, 2)), number(b, 0.5)))


def in_rows_and_columns(b: GraphBuilder, s: Any) -> Any:
    """Scores of images with products for the row and for the column of a key, which are apart under a view, as in ViTDet."""
    q = b.op("Reshape", "q", ints(b, B * N, 2, 3, H))
    row = b.op("MatMul", q, b.input("rows", "float32", (2, H, 2)))
    column = b.op("MatMul", b.op("Transpose", q, perm=(0, 2, 1, 3)), b.input("columns", "float32", (3, H, 3)))
    s = b.op("Add", b.op("Reshape", s, ints(b, B * N, 2, 3, 2, 3)), b.op("Unsqueeze", row, ints(b, 4)))
    column = b.op("Unsqueeze", b.op("Transpose", column, perm=(0, 2, 1, 3)), ints(b, 3))
    return b.op("Reshape", b.op("Add", s, column), ints(b, B * N, 6, 6))


def forbidden(low: float, *, swapped: bool = False) -> dict[str, Any]:
    """Keys that are forbidden before the softmax, and whose probabilities are zeros behind it."""

    def chosen(b: GraphBuilder, x: Any, other: float) -> Any:
        return b.op("Where", "allowed", *((number(b, other), x) if swapped else (x, number(b, other))))

    def before(b: GraphBuilder, s: Any) -> Any:
        truth(b)
        return chosen(b, s, low)

    return {"steps": before, "after": lambda b, p: chosen(b, p, 0.0)}


def biased_where(low: float) -> Steps:
    """A table of relative positions, and a number in its place."""
    return lambda b, s: b.op("Add", s, b.op("Where", truth(b), b.constant(TABLE), number(b, low)))


ORDINARY: dict[str, Graph] = {
    "products": core(relative),
    "products by row and column": core(in_rows_and_columns, lead=(B * N,), queries=6, keys=6),
    "products beside a mask": core(then(relative, biased(LOWEST))),
    "products, then replaced": core(then(relative, selected(LOWEST))),
    "a table, and the lowest number in its place": core(biased_where(LOWEST)),
    "a table beside the lowest number": core(
        lambda b, s: b.op(
            "Add",
            s,
            b.op(
                "Add",
                b.constant(TABLE),
                b.op("Where", truth(b), number(b, 0.0), number(b, LOWEST)),
            ),
        )
    ),
    "zeros behind the softmax": core(**forbidden(LOWEST)),
    "zeros behind the softmax, swapped": core(**forbidden(-1e9, swapped=True)),
    "products, and zeros behind the softmax": core(
        then(relative, forbidden(LOWEST)["steps"]), after=forbidden(LOWEST)["after"]
    ),
    "no lower than the lowest number": core(then(biased(LOWEST), lambda b, s: b.op("Max", s, number(b, LOWEST)))),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_masks_of_ordinary_numbers_are_taken_as_they_are(name: str) -> None:
    """Without a shift of each row, though all of it may be forbidden."""
    assert attention_in(ORDINARY[name]) is not None
    left = eqsat.optimize(ORDINARY[name], verify=False, form="flat").report.operators_after
    assert not {"Shrink", "Softmax", "Max"} & set(left)


def test_a_mask_that_tells_batch_and_heads_apart_has_its_place_beside_them() -> None:
    """Batch and heads are one axis of the products, as in DeBERTa: then the mask would have to be repeated for each head."""

    def steps(b: GraphBuilder, s: Any) -> Any:
        apart = b.op("Where", truth(b), b.op("Reshape", s, ints(b, B, N, S, T)), number(b, LOWEST))
        return b.op("Reshape", apart, ints(b, B * N, S, T))

    graph = core(steps, lead=(B * N,))
    assert attention_in(graph) is not None
    made = eqsat.optimize(graph, verify=False, form="flat").program.graph
    (node,) = (node for node in made.nodes if node.op == "Attention")
    assert str(made.type_of(node.inputs[0])) == f"float32[{B}, {N}, {S}, {H}]"
    assert str(made.type_of(node.inputs[3])) == f"float32[{B}, 1, {S}, {T}]"


@pytest.mark.parametrize("name", SPELLINGS)
def test_mask_is_part_of_the_operator(name: str) -> None:
    assert attention_in(SPELLINGS[name]) is not None


@pytest.mark.parametrize("name", ["selected and guarded", "added and guarded", "two masks, guarded"])
def test_truth_values_are_the_mask(name: str) -> None:
    """Zeros where a row forbids everything are what the operator gives, so nothing need be chosen or added."""
    left = eqsat.optimize(SPELLINGS[name], verify=False, form="flat").report.operators_after
    assert set(left) <= {"Attention", "Transpose", "And"}


CAUSAL: dict[str, Graph] = {
    "added": core(plus(np.where(EARLIER, 0, INFINITE))),
    "large numbers": core(plus(np.where(EARLIER, 0, -1e9))),
    "lowest numbers": core(plus(np.where(EARLIER, 0, LOWEST)[None, None])),
    "before the scale": core(then(plus(np.where(EARLIER, 0, INFINITE)), scaled("Mul", 0.5))),
    "selected": core(lambda b, s: b.op("Where", b.constant(EARLIER), s, number(b, INFINITE))),
    "selected otherwise": core(lambda b, s: b.op("Where", b.constant(~EARLIER), number(b, -1e9), s)),
    "computed": core(
        lambda b, s: b.op(
            "Add",
            s,
            b.op(
                "Where",
                b.op("LessOrEqual", b.constant(np.arange(T)[None]), b.constant(np.arange(S)[:, None])),
                number(b, 0.0),
                number(b, LOWEST),
            ),
        )
    ),
    "longer": core(
        lambda b, s: b.op("Where", b.constant(np.tril(np.ones((1, 1, 80, 90), np.bool_))), s, number(b, LOWEST)),
        lead=(1, 1),
        queries=80,
        keys=90,
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_triangle_is_causality(name: str) -> None:
    node = attention_in(CAUSAL[name])
    assert node is not None
    assert node.attributes.get("is_causal") == 1
    assert len(node.inputs) == 3


NOT_CAUSAL: dict[str, Graph] = {
    "the last query sees all": core(plus(np.where(np.tri(S, T, T - S), 0, INFINITE))),
    "keys that come later": core(plus(np.where(EARLIER[::-1, ::-1], 0, INFINITE))),
    "one more key": core(plus(np.where(np.tri(S, T, 1), 0, INFINITE))),
    "small numbers": core(plus(np.where(EARLIER, 0, -10000.0))),
    "a bias, too": core(plus(np.where(EARLIER, np.linspace(0, 1, T), INFINITE))),
    "one head": core(plus(np.where(EARLIER | (np.arange(N)[:, None, None] > 0), 0, INFINITE))),
}


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_other_shapes_stay_masks(name: str) -> None:
    node = attention_in(NOT_CAUSAL[name])
    assert node is not None
    assert "is_causal" not in node.attributes


# --- masks that may be anything ------------------------------------------------------------------------------------------


def given(*shape: int) -> Steps:
    """A mask that is an input."""
    return lambda b, s: b.op("Add", s, b.input("m", "float32", shape or (B, 1, S, T)))


UNKNOWN: dict[str, Graph] = {
    "added": core(given()),
    "over queries and keys": core(given(S, T)),
    "over the keys": core(given(B, 1, 1, T)),
    "over the keys alone": core(given(T)),
    "over the queries": core(given(B, N, S, 1)),
    "one number": core(lambda b, s: b.op("Add", s, b.input("m", "float32", ()))),
    "before the scale": core(then(given(), scaled("Mul", 0.5))),
    "before a negative scale": core(then(given(), scaled("Mul", -0.5))),
    "times the lowest number": core(inverted("float32", LOWEST, late=True)),
    "times a large number": core(inverted("float32", -1e9, late=True)),
    "beside a known one": core(then(plus(np.where(SCATTERED, 0, -1e4)), given())),
    "beside minus infinity": core(then(plus(np.where(SCATTERED, 0, INFINITE)), given())),
    "selected": core(then(given(), selected(INFINITE))),
    "selected otherwise": core(then(given(), selected(LOWEST, swapped=True))),
    "selected, then scaled": core(then(given(), selected(LOWEST), scaled("Div", 8.0))),
    "three axes": core(given(N, S, T), lead=(N,)),
    "regrouped scores": core(
        lambda b, s: b.op(
            "Reshape", given(B, N, S, T)(b, b.op("Reshape", s, ints(b, B, N, S, T))), ints(b, B * N, S, T)
        ),
        lead=(B * N,),
    ),
    "a row may be minus infinity": core(biased(INFINITE)),
    "a row may be replaced by minus infinity": core(selected(INFINITE)),
    "a row is minus infinity": core(plus(FULL_ROW)),
    "minus infinity and padding that may be": core(
        then(plus(np.where(EARLIER, 0, INFINITE)), biased(INFINITE, B, 1, 1, T))
    ),
    "zero times infinity": core(inverted("bool", INFINITE, late=True)),
    "integers times the lowest number": core(inverted("int64", LOWEST, late=True)),
    "the lowest number twice": core(then(biased(LOWEST), biased(LOWEST, S, T, name="causal"))),
    "two low numbers": core(
        lambda b, s: b.op("Add", s, b.op("Where", truth(b), number(b, -2e38), number(b, -3e38))),
    ),
}
ROWS = (0.0, INFINITE, LOWEST, -2e38, -1e38, -1e37, -1e30, -1e9, -1e4, 3e38, np.inf, np.nan)


@pytest.mark.parametrize("name", UNKNOWN)
def test_rows_that_forbid_everything_stay_as_they_are(name: str) -> None:
    """NaN for minus infinity, the mean of the greatest for large numbers: here and in ONNX Runtime."""
    graph = UNKNOWN[name]
    encoding = encode(graph)
    saturate(encoding.egraph, select_rules(Exactness.ROUNDING, only=["recognise_attention"]))
    assert any(node.op == "Attention" for node in encoding.egraph.nodes)
    result = eqsat.optimize(graph, verify=False, cost=without("Softmax"), form="flat")
    assert "Softmax" not in result.report.operators_after
    session = Session(to_model(result.program.graph))
    rng = np.random.default_rng(3)
    for low in ROWS:
        for other in (0.0, low, LOWEST, INFINITE):
            feeds = feeds_for(graph)
            if "m" in feeds and feeds["m"].dtype == np.float32:
                feeds["m"] = rows_of(low, other, feeds["m"].shape, rng)
            (expected,) = run(graph, feeds).values()
            for outputs in (run(result.program.graph, feeds), session.run(feeds)):
                for value in outputs.values():
                    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-5)


def rows_of(low: float, other: float, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Rows of one number, and rows of two."""
    whole = rng.random((*shape[:-1], 1)) < 0.5
    return np.where(whole | (rng.random(shape) < 0.7), low, other).astype(np.float32).reshape(shape)


def without(operator: str) -> Callable[[Any], float]:
    """A cost that avoids an operator."""
    return lambda kernel: 1000.0 if operator in kernel.operators else 1.0


def test_ordinary_rows_get_the_same_bits() -> None:
    graph = UNKNOWN["added"]
    result = eqsat.optimize(graph, verify=False, form="flat")
    operand = next(node.inputs[3] for node in result.program.graph.nodes if node.op == "Attention")
    shifted = replace(result.program.graph, outputs=(operand,))
    feeds = feeds_for(graph)
    feeds["m"] = np.where(feeds["m"] < 0, LOWEST, feeds["m"] * 1e20).astype(np.float32)
    feeds["m"][..., 3] = 0.1
    (mask,) = run(shifted, feeds).values()
    np.testing.assert_array_equal(mask, feeds["m"])


UNEQUAL: dict[str, Graph] = {
    "the guard gives ones": core(
        biased(INFINITE), after=lambda b, p: b.op("Where", b.op("IsNaN", p), number(b, 1.0), p)
    ),
    "the guard asks for something else": core(
        biased(INFINITE),
        after=lambda b, p: b.op("Where", b.op("IsNaN", b.input("x", "float32", (S, T))), number(b, 0.0), p),
    ),
    "the guard keeps NaN only": core(
        biased(INFINITE), after=lambda b, p: b.op("Where", b.op("IsNaN", p), p, number(b, 0.0))
    ),
    "NaN of the mask is guarded": core(given(), after=guard),
    "replaced by a number that matters": core(selected(-10000.0)),
    "replaced by a number beside a mask that may be as large": core(then(given(), selected(-1e9))),
    "replaced before a mask that may undo it": core(then(selected(LOWEST), given())),
    "two numbers, rounded to multiples of 64": core(then(biased(-1e4, T), biased(-1e9, S, 1, name="rows"))),
    "raised from minus infinity": core(then(biased(INFINITE), lambda b, s: b.op("Max", s, number(b, LOWEST)))),
    "zeros behind the softmax, for numbers that matter": core(**forbidden(-3.0)),
    "zeros behind the softmax, beside a mask as low": core(
        then(biased(LOWEST, S, T, name="causal"), forbidden(LOWEST)["steps"]), after=forbidden(LOWEST)["after"]
    ),
    "zeros for other keys": core(selected(LOWEST), after=lambda b, p: b.op("Where", "allowed", number(b, 0.0), p)),
    "replaced beside another mask": core(then(selected(-1e9), biased(-1e10, S, T, name="causal"))),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_masks_on_which_the_operator_differs_stay(name: str) -> None:
    assert "Attention" not in eqsat.optimize(UNEQUAL[name], verify=False, form="flat").report.operators_after


def test_constant_masks_are_not_added_where_all_of_a_row_rounds_otherwise() -> None:
    """Other rules may add the constants, by their own class; this one does not, unless the rows have a key that is near."""
    near, far = np.where(np.arange(T) % 3, 0, -1e4), np.where(np.arange(S)[:, None] == 2, -1e9, np.zeros((S, T)))
    for mask, expected in ((far, False), (np.where(EARLIER, far, 0), True), (np.where(EARLIER, 0, -1e9), True)):
        encoding = encode(core(then(plus(near), plus(mask))))
        saturate(encoding.egraph, select_rules(Exactness.ROUNDING, only=["recognise_attention"]))
        assert any(node.op == "Attention" for node in encoding.egraph.nodes) == expected


# --- float16 -------------------------------------------------------------------------------------------------------------


def half(steps: Steps = lambda b, s: s, *, low: float | None = None, back: int = 10, **more: Any) -> Graph:
    """Products in float16 around a softmax in float32; ``low``: of a causal mask in float16."""

    def widened(b: GraphBuilder, s: Any) -> Any:
        if low is not None:
            s = b.op("Add", s, b.constant(np.where(EARLIER, 0, low).astype(np.float16)))
        return steps(b, b.op("Cast", s, to=1))

    after = more.pop("after", lambda b, p: p)
    return core(widened, after=lambda b, p: b.op("Cast", after(b, p), to=back), dtype="float16", **more)


HALVES = {
    "plain": half(),
    "scaled in float32": half(scaled("Mul", 0.5)),
    "masked in float16": half(low=-65504.0),
    "masked in float32": half(plus(np.where(SCATTERED, 0, LOWEST))),
    "guarded": half(biased(INFINITE), after=guard),
}


@pytest.mark.parametrize("name", HALVES)
def test_softmax_in_float32_is_a_precision(name: str) -> None:
    node = attention_in(HALVES[name], tolerance=4e-3)
    assert node is not None
    assert node.attributes.get("softmax_precision") == 1


def test_everything_in_float16() -> None:
    node = attention_in(core(dtype="float16"), tolerance=4e-3)
    assert node is not None
    assert "softmax_precision" not in node.attributes


def chosen_in_half(low: float) -> Steps:
    """A mask in float16 that is computed."""

    def steps(b: GraphBuilder, s: Any) -> Any:
        zero, number = (b.constant(np.float16(n)) for n in (0.0, low))
        return b.op("Add", s, b.op("Where", truth(b), zero, number))

    return steps


def replaced_in_half(low: float) -> Steps:
    return lambda b, s: b.op("Where", truth(b), s, b.constant(np.float16(low)))


COMPUTED = {
    "the lowest": core(chosen_in_half(-65504.0), dtype="float16"),
    "a large number": core(chosen_in_half(-1e4), dtype="float16"),
    "minus infinity": core(chosen_in_half(INFINITE), dtype="float16"),
    "guarded": core(
        chosen_in_half(-65504.0),
        dtype="float16",
        after=lambda b, p: b.op("Where", b.op("IsNaN", p), b.constant(np.float16(0)), p),
    ),
    "replaced": core(replaced_in_half(-65504.0), dtype="float16"),
    "a constant": core(
        lambda b, s: b.op(
            "Add", s, b.constant(np.where(EARLIER & (np.arange(S)[:, None] != 2), 0, -65504.0).astype(np.float16))
        ),
        dtype="float16",
    ),
    "before the softmax in float32": half(low=-65504.0),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_large_masks_of_float16_leave_of_scores_in_float32_what_they_leave_in_float16(name: str) -> None:
    """Of a row in which every key is forbidden: multiples of 32 beside the lowest number, though scores are large."""
    graph = COMPUTED[name]
    result = eqsat.optimize(graph, verify=False, cost=without("Softmax"), form="flat")
    assert "Softmax" not in result.report.operators_after
    session = Session(to_model(result.program.graph))
    for size in (1.0, 3.0, 6.0):
        feeds = feeds_for(graph)
        feeds["q"], feeds["k"] = (np.abs(feeds[n]) * np.float16(size) for n in "qk")  # nothing becomes minus infinity
        (expected,) = run(graph, feeds).values()
        for outputs in (run(result.program.graph, feeds), session.run(feeds)):
            for value in outputs.values():
                np.testing.assert_allclose(value, expected, rtol=2e-2, atol=2e-2)


def in_half(value: np.ndarray, dtype: Any = np.float16) -> Steps:
    return lambda b, s: b.op("Add", s, b.constant(value.astype(dtype)))


def positions_in_half(b: GraphBuilder, s: Any) -> Any:
    """A table of relative positions, and the lowest number in its place."""
    table, low = b.constant(np.linspace(-3, 3, S * T).reshape(S, T).astype(np.float16)), b.constant(np.float16(-65504))
    return b.op("Add", s, b.op("Where", truth(b), table, low))


MIDDLING = np.where(EARLIER, np.linspace(-2, 2, T), -100.0)
OPEN = {
    "windows": core(in_half(MIDDLING), dtype="float16"),
    "windows in float32": half(in_half(MIDDLING, np.float32)),
    "positions": core(positions_in_half, dtype="float16"),
    "positions, then padding": core(then(in_half(np.where(EARLIER, 2, -2)), chosen_in_half(-65504.0)), dtype="float16"),
}


@pytest.mark.parametrize("name", OPEN)
def test_middling_numbers_beside_an_open_key_weigh_nothing_in_half_precision(name: str) -> None:
    assert attention_in(OPEN[name], tolerance=4e-3, cost=without("Softmax")) is not None


@pytest.mark.parametrize("row", [-100.0, -300.0])
def test_a_row_of_middling_numbers_stays_in_half_precision(row: float) -> None:
    graph = core(in_half(np.where(np.arange(S)[:, None] == 2, row, MIDDLING)), dtype="float16")
    assert "Attention" not in eqsat.optimize(graph, verify=False, form="flat").report.operators_after


@pytest.mark.parametrize("low", [-300.0, -5000.0])
def test_middling_masks_of_float16_stay(low: float) -> None:
    """Beside them float16 loses a part of the scores that matters."""
    graph = core(chosen_in_half(low), dtype="float16")
    assert "Attention" not in eqsat.optimize(graph, verify=False, form="flat").report.operators_after


def raised_in_half(b: GraphBuilder, s: Any) -> Any:
    return b.op("Max", s, b.constant(np.float16(-65504)))


def test_a_floor_of_float16_is_nothing_beside_open_rows() -> None:
    """Of a row that forbids everything nothing is left but what was above zero."""
    known = core(then(in_half(np.where(EARLIER, 0, -65504.0)), raised_in_half), dtype="float16")
    assert attention_in(known, tolerance=4e-3) is not None
    for steps in (chosen_in_half(-65504.0), in_half(np.where(np.arange(S)[:, None] == 2, -65504.0, 0))):
        graph = core(then(steps, raised_in_half), dtype="float16")
        assert "Attention" not in eqsat.optimize(graph, verify=False, form="flat").report.operators_after


def test_the_lowest_number_of_float16_takes_the_place_of_scores_in_float32() -> None:
    """Of those that were in float16, beside the biases of MPT; not where masks are added to it, as to the number itself."""
    biases = plus(np.linspace(-7, 0, N * T).reshape(N, 1, T))
    assert attention_in(half(then(biases, selected(-65504.0))), tolerance=4e-3, cost=without("Softmax")) is not None
    for steps in (
        then(selected(-65504.0), biased(-1e4, S, T, name="causal")),
        then(plus(np.where(SCATTERED, 0, -6e4)), selected(-65504.0)),
        then(selected(-65504.0), scaled("Mul", 1e-3)),
    ):
        stays = eqsat.optimize(half(steps), verify=False, cost=without("Softmax"), form="flat")
        assert "Attention" not in stays.report.operators_after


# --- bfloat16 ------------------------------------------------------------------------------------------------------------


def in_bfloat16(low: float) -> dict[str, Graph]:
    """Masks of bfloat16 with this number: computed, in place of scores, and constant with a row that forbids all."""

    def number(b: GraphBuilder, value: Any) -> str:
        return b.constant(np.asarray(value).astype(ml_dtypes.bfloat16))

    steps: dict[str, Steps] = {
        "added": lambda b, s: b.op("Add", s, b.op("Where", truth(b), number(b, 0), number(b, low))),
        "replaced": lambda b, s: b.op("Where", truth(b), s, number(b, low)),
        "a constant": lambda b, s: b.op("Add", s, number(b, np.where(EARLIER & (np.arange(S)[:, None] != 2), 0, low))),
    }
    return {name: core(step, dtype="bfloat16") for name, step in steps.items()}


@pytest.mark.parametrize("name", in_bfloat16(-3.3895e38))
def test_masks_of_bfloat16_that_leave_nothing_of_scores_are_taken(name: str) -> None:
    graph = in_bfloat16(-3.3895e38)[name]
    made = eqsat.optimize(graph, verify=False, form="flat").program.graph
    assert made.operator_counts()["Attention"] == 1
    feeds = feeds_for(graph)
    (expected,), (found,) = (run(g, feeds).values() for g in (graph, made))
    np.testing.assert_allclose(found.astype(np.float32), expected.astype(np.float32), rtol=4e-2, atol=4e-2)


@pytest.mark.parametrize("low", [-300.0, -1e9])
@pytest.mark.parametrize("name", in_bfloat16(0.0))
def test_masks_of_bfloat16_beside_which_a_part_of_the_scores_is_left_stay(name: str, low: float) -> None:
    made = eqsat.optimize(in_bfloat16(low)[name], verify=False, form="flat").program.graph
    assert "Attention" not in made.operator_counts()


def test_values_in_float32_take_queries_and_keys_there() -> None:
    b = GraphBuilder()
    q, k = (b.input(name, "float16", (B, N, n, H)) for name, n in (("q", S), ("k", T)))
    v = b.input("v", "float32", (B, N, T, W))
    scores = b.op("Cast", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), to=1)
    chances = b.op("Softmax", b.op("Add", scores, b.constant(np.where(EARLIER, 0, -1e9).astype(np.float32))))
    node = attention_in(b.finish({"y": b.op("MatMul", chances, v)}), tolerance=4e-3)
    assert node is not None
    assert "softmax_precision" not in node.attributes


@pytest.mark.parametrize(
    "steps",
    [
        biased(-1e9),
        biased(LOWEST),
        plus(np.full((S, T), -10000.0)),
        inverted("int64", -10000.0, late=True),
        given(),
        selected(INFINITE),
    ],
)
def test_masks_without_a_form_in_float16_are_added_in_float32(steps: Steps) -> None:
    """A row that forbids everything would lose what the scores were."""
    found = attention_in(half(steps), tolerance=4e-3, cost=without("Softmax"))
    assert found is not None
    assert "softmax_precision" not in found.attributes


# --- ONNX Runtime's own operator -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (SPELLINGS["added and guarded"], False),
        (SPELLINGS["added"], True),
        (SPELLINGS["minus infinity"], True),
        (SPELLINGS["selected"], True),
        (CAUSAL["selected"], True),
    ],
)
def test_operator_of_onnxruntime_gives_nan_where_attention_gives_zeros(graph: Graph, expected: bool) -> None:
    """So rows that may look at nothing are replaced, unless there are none."""
    encoding = encode(graph)
    rules = ["recognise_attention", "use_multi_head_attention"]
    saturate(encoding.egraph, select_rules(Exactness.ROUNDING, only=rules, domains=["com.microsoft"]))
    made = [node.op for node in encoding.egraph.nodes if node.rule == "use_multi_head_attention"]
    assert "MultiHeadAttention" in made
    assert ("Equal" not in made) == expected
