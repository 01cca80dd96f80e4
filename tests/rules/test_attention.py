"""Attention: each axis along which exporters differ, spelled in several ways, is one operator; what only looks alike is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_graphs import LOWEST, B, H, N, S, Steps, T, W, core, ints, number, plus, scaled
from graph_checks import counts, optimized

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run


def found(graph: Graph, **options: Any) -> dict[str, int]:
    return counts(optimized(graph, **options))


CAUSAL = np.where(np.tril(np.ones((S, T))), 0, -1e9)
BY_HEAD = np.arange(1, N + 1, dtype=np.float32).reshape(N, 1, 1)
RNG = np.random.default_rng(0)


def by_window(op: str, images: int = 2, before: Steps = lambda b, s: s, behind: Steps = lambda b, s: s) -> Steps:
    """A mask for each of three windows, as a window transformer adds it where images and windows are axes of their own."""

    def steps(b: GraphBuilder, s: Any) -> Any:
        s = b.op("Reshape", before(b, s), ints(b, images, 3, N, S, T))
        allowed = b.constant(np.random.default_rng(2).random((3, 1, S, T)) < 0.7)
        if op == "Add":
            s = b.op("Add", s, b.op("Where", allowed, number(b, 0), number(b, -100)))
        else:
            s = b.op("Where", allowed, s, number(b, LOWEST))
        return behind(b, b.op("Reshape", s, ints(b, images * 3, N, S, T)))

    return steps


SPELLINGS: dict[str, Graph] = {
    "no scale": core(),
    "multiplied": core(scaled("Mul", 0.125)),
    "divided": core(scaled("Div", 8.0)),
    "divided twice": core(lambda b, s: scaled("Div", 4.0)(b, scaled("Mul", 0.5)(b, s))),
    "scaled query": core(on_query=scaled("Mul", 0.125)),
    "scaled key": core(on_key=scaled("Div", 8.0)),
    "query scaled in another shape": core(
        on_query=lambda b, q: b.op(
            "Reshape", scaled("Mul", 0.125)(b, b.op("Reshape", q, ints(b, H, -1))), ints(b, B, N, S, H)
        )
    ),
    "key scaled before it is transposed twice": core(
        on_key=lambda b, k: b.op(
            "Transpose", scaled("Mul", 0.5)(b, b.op("Transpose", k, perm=(1, 0, 3, 2))), perm=(1, 0, 3, 2)
        )
    ),
    "roots on both": core(on_query=scaled("Mul", 0.35), on_key=scaled("Mul", 0.35)),
    "bias over heads": core(plus(RNG.normal(size=(N, S, T)))),
    "bias over batch": core(plus(RNG.normal(size=(B, 1, S, T)))),
    "bias over keys": core(plus(RNG.normal(size=T))),
    "bias over queries": core(plus(RNG.normal(size=(S, 1)))),
    "causal": core(plus(CAUSAL)),
    "mask before scale": core(lambda b, s: scaled("Mul", 0.5)(b, plus(CAUSAL)(b, s))),
    "mask after scale": core(lambda b, s: plus(CAUSAL)(b, scaled("Mul", 0.5)(b, s))),
    "lowest number": core(plus(np.where(CAUSAL, LOWEST, 0))),
    "selected": core(lambda b, s: b.op("Where", b.constant(CAUSAL == 0), s, number(b, LOWEST))),
    "selected otherwise": core(lambda b, s: b.op("Where", b.constant(CAUSAL < 0), number(b, LOWEST), s)),
    "capped": core(lambda b, s: scaled("Mul", 3.0)(b, b.op("Tanh", scaled("Div", 3.0)(b, s)))),
    "capped and masked": core(lambda b, s: plus(CAUSAL)(b, scaled("Mul", 3.0)(b, b.op("Tanh", s)))),
    "three axes": core(scaled("Mul", 0.5), lead=(N,)),
    "five axes": core(scaled("Mul", 0.5), lead=(2, 2, N)),
    "regrouped scores": core(
        lambda b, s: plus(CAUSAL)(b, b.op("Reshape", s, ints(b, B, N, S, T))),
        lead=(B * N,),
        after=lambda b, p: b.op("Reshape", p, ints(b, B * N, S, T)),
    ),
    "keys without a batch": core(scaled("Mul", 0.5), lead=(1, N), on_key=lambda b, k: b.op("Squeeze", k, ints(b, 0))),
    "scores and keys without a batch": core(
        lambda b, s: b.op("Squeeze", plus(CAUSAL)(b, s), ints(b, 0)),
        lead=(1, N),
        on_key=lambda b, k: b.op("Squeeze", k, ints(b, 0)),
        after=lambda b, p: b.op("Unsqueeze", p, ints(b, 0)),
    ),
    "bias, then a mask by window": core(by_window("Add", before=plus(RNG.normal(size=(N, S, T)))), lead=(6, N)),
    "mask by window, then a bias": core(by_window("Add", behind=plus(RNG.normal(size=(N, S, T)))), lead=(6, N)),
    "mask by window of one image": core(by_window("Add", images=1), lead=(3, N)),
    "chosen by window": core(by_window("Where", before=plus(RNG.normal(size=(N, S, T)))), lead=(6, N)),
    "one query": core(plus(np.zeros((B, 1, 1, T))), lead=(B, N)),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_is_one_attention(name: str) -> None:
    left = found(SPELLINGS[name])
    assert left.pop("Attention") == 1
    assert set(left) <= {"Transpose"}, left  # keys that were transposed, or none


@pytest.mark.parametrize("factors", [BY_HEAD, np.linspace(1, 2, S, dtype=np.float32).reshape(S, 1)])
def test_factors_by_head_or_query_go_to_the_queries(factors: np.ndarray) -> None:
    left = found(core(lambda b, s: plus(CAUSAL)(b, b.op("Mul", s, b.constant(factors)))))
    assert (left["Attention"], left["Mul"]) == (1, 1)
    regrouped = core(lambda b, s: by_window("Add")(b, b.op("Mul", s, b.constant(factors))), lead=(6, N))
    assert found(regrouped)["Attention"] == 1


def test_zeros_before_a_large_mask() -> None:
    """Relative positions as they are before training: ``0 + m`` is in the e-class of ``m``, which is then a part of itself."""
    windows = np.random.default_rng(3).choice(np.array((0, -50), np.float32), (96, 1, 16, 16))

    def steps(b: GraphBuilder, s: Any) -> Any:
        return b.op("Add", s, plus(np.zeros((16, 16)))(b, b.op("Mul", b.constant(windows), number(b, 2))))

    assert found(core(steps, lead=(96, 1), queries=16, keys=16)) == {"Attention": 1}


def test_negative_scale_is_folded_into_the_query() -> None:
    assert found(core(scaled("Mul", -0.5))) == {"Attention": 1, "Neg": 1}


@pytest.mark.parametrize("graph", [core(on_query=scaled("Mul", -0.5)), core(on_key=scaled("Mul", -0.5))])
def test_negative_factor_of_an_operand_stays_there(graph: Graph) -> None:
    left = found(graph)
    assert sum(left.get(op, 0) for op in ("Mul", "Neg")) == 1
    assert left["Attention"] == 1


def test_two_negative_factors_are_a_positive_scale() -> None:
    assert found(core(on_query=scaled("Mul", -0.5), on_key=scaled("Div", -2.0))) == {"Attention": 1}


def test_unknown_batch() -> None:
    assert found(core(scaled("Mul", 0.5), lead=("b", N))) == {"Attention": 1}


def test_the_last_of_a_table_of_distances_is_the_mask() -> None:
    """From ``8 - keys`` on, as exporters spell ALiBi with symbols: of nine keys that would be the last one, for all of them."""
    b = GraphBuilder()
    q, k, v = (b.input(n, "float32", ("b", N, "s", H)) for n in "qkv")
    start = b.op("Sub", ints(b, 8), b.op("Shape", q, start=2, end=3))
    far = b.constant(np.linspace(-3, 0, 8 * N, dtype=np.float32).reshape(N, 1, 8))
    near = b.op("Slice", far, start, ints(b, 2**63 - 1), ints(b, 2), ints(b, 1))
    scores = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), near)
    graph = b.finish([b.op("MatMul", b.op("Softmax", scores), v)])
    result = eqsat.optimize(graph, verify=False, form="flat")
    assert counts(result).get("Attention") == 1
    for length in (1, 5, 8, 9):
        feeds = {n: RNG.normal(size=(B, N, length, H)).astype(np.float32) for n in "qkv"}
        (expected,) = run(graph, feeds).values()
        for outputs in run(result.program.graph, feeds), Session(to_model(result.program.graph)).run(feeds):
            (y,) = outputs.values()
            np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("low", [LOWEST, -1e9, -10000.0])
def test_computed_masks_keep_fully_masked_rows_as_they_are(low: float) -> None:
    """Softmax of a row of equal numbers is their mean; ONNX Runtime would give zeros for the lowest number."""
    b = GraphBuilder()
    q, k, v = (b.input(n, "float32", (B, N, S, H)) for n in "qkv")
    m = b.op("Cast", b.input("m", "int64", (B, S)), to=1)
    m = b.op("Mul", b.op("Sub", number(b, 1.0), b.op("Unsqueeze", m, ints(b, 1, 2))), number(b, low))
    s = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), m)
    graph = b.finish([b.op("MatMul", b.op("Softmax", s), v)])
    result = eqsat.optimize(graph, verify=False, form="flat")
    rng = np.random.default_rng(1)
    feeds: dict[str, Any] = {n: rng.normal(size=(B, N, S, H)).astype(np.float32) for n in "qkv"}
    feeds["m"] = np.array([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0]])
    (y,) = Session(to_model(result.program.graph)).run(feeds).values()
    np.testing.assert_allclose(y, *run(graph, feeds).values(), rtol=1e-4, atol=1e-5)
    assert counts(result).get("Attention", 0) == (
        low != LOWEST
    )  # (1 - m) * lowest may be infinite: more operators on the mask


NOT_ATTENTION: dict[str, Graph] = {
    "softmax over queries": core(axis=-2),
    "scale by head behind a mask": core(lambda b, s: b.op("Mul", plus(CAUSAL)(b, s), b.constant(BY_HEAD))),
    "zero for a head": core(lambda b, s: b.op("Mul", s, b.constant(BY_HEAD - 1))),
    "scale by key": core(lambda b, s: b.op("Mul", s, b.constant(np.linspace(1, 2, T, dtype=np.float32)))),
    "computed scale by head": core(lambda b, s: b.op("Mul", s, b.input("c", "float32", (N, 1, 1)))),
    "zero scale": core(scaled("Mul", 0.0)),
    "key permuted wrongly": core(lead=(S, S), on_key=lambda b, k: b.op("Transpose", k, perm=(1, 0, 2, 3))),
    "mask of minus infinity": core(plus(np.full((S, T), -np.inf))),
    "replaced by a number that matters": core(lambda b, s: b.op("Where", b.constant(CAUSAL == 0), s, number(b, -3.0))),
    "capped after the mask": core(lambda b, s: b.op("Tanh", plus(RNG.normal(size=(S, T)))(b, s))),
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_only_looks_like_attention_stays(name: str) -> None:
    graph = NOT_ATTENTION[name]
    kept = counts(eqsat.optimize(graph, verify=False, form="flat"))
    if name == "key permuted wrongly":  # it is attention, over other keys
        assert kept["Transpose"] == 1
        optimized(graph)
    else:
        assert "Attention" not in kept


def test_zeros_behind_a_view_are_not_where_keys_were_forbidden_along_another_axis() -> None:
    b = GraphBuilder()
    q, k, v = (
        b.input(n, "float32", shape) for n, shape in (("q", (2, 2, S, H)), ("k", (2, 2, H, T)), ("v", (2, 2, 1, T, W)))
    )
    allowed = b.constant(np.random.default_rng(1).random((2, 1, S, T)) < 0.6)
    scores = b.op("Where", allowed, b.op("MatMul", q, k), number(b, -1e9))
    chances = b.op("Softmax", b.op("Reshape", scores, ints(b, 2, 2, 1, S, T)))
    y = b.op("MatMul", b.op("Where", allowed, chances, number(b, 0.0)), v)
    result = optimized(b.finish({"y": y}))
    assert "Attention" not in result.program.graph.operator_counts()


def test_mask_that_enlarges_the_scores() -> None:
    left = found(
        core(plus(RNG.normal(size=(4, 1, 1, S, T))), lead=(1, N), after=lambda b, p: b.op("ReduceMean", p, ints(b, 0)))
    )
    assert "Attention" not in left


def test_probabilities_that_are_used_elsewhere_are_kept() -> None:
    graph = core(scaled("Mul", 0.5), keep=True)
    left = found(graph)
    assert left.get("Softmax", 0) == 1


# --- layouts -------------------------------------------------------------------------------------------------------------


def layered(b: GraphBuilder, heads: int, groups: int, *, repeat: str = "", packed: bool = False) -> str:
    """Projections, heads apart, attention, heads together."""
    x = b.input("x", "float32", (B, S, 8))
    rng = np.random.default_rng(2)
    widths = (heads * H, groups * H, groups * H)
    weights = [rng.normal(size=(8, n)).astype(np.float32) for n in widths]
    if packed:
        whole = b.op("MatMul", x, b.constant(np.concatenate(weights, axis=1)))
        parts = b.op("Split", whole, ints(b, *widths), outputs=3, axis=2)
    else:
        parts = [b.op("MatMul", x, b.constant(w)) for w in weights]
    q, k, v = (
        b.op("Transpose", b.op("Reshape", p, ints(b, B, S, n // H, H)), perm=(0, 2, 1, 3))
        for p, n in zip(parts, widths, strict=True)
    )
    if groups != heads:
        k, v = (_repeated(b, y, groups, heads // groups, repeat) for y in (k, v))
    s = b.op("Mul", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), number(b, 0.5))
    y = b.op("Transpose", b.op("MatMul", b.op("Softmax", s), v), perm=(0, 2, 1, 3))
    return b.op("Reshape", y, ints(b, B * S, heads * H))


def _repeated(b: GraphBuilder, x: str, groups: int, times: int, how: str) -> str:
    alone = b.op("Unsqueeze", x, ints(b, 2))
    if how == "expand":
        many = b.op("Expand", alone, ints(b, B, groups, times, S, H))
    elif how == "tile":
        many = b.op("Tile", alone, ints(b, 1, 1, times, 1, 1))
    else:
        many = b.op("Concat", *[alone] * times, axis=2)
    return b.op("Reshape", many, ints(b, B, groups * times, S, H))


@pytest.mark.parametrize("packed", [False, True])
def test_transposes_of_heads_are_part_of_the_operator(packed: bool) -> None:
    b = GraphBuilder()
    left = found(b.finish([layered(b, 2, 2, packed=packed)]))
    assert left == {"MatMul": 1, "Split": 1, "Attention": 1}


@pytest.mark.parametrize("batch", [B, "b"])
def test_heads_that_are_one_axis_with_the_batch_are_told_apart(batch: int | str) -> None:
    """Products of three axes, as CLIP and BART have them."""
    b = GraphBuilder()
    rows = {name: b.input(name, "float32", (batch, length, N * H)) for name, length in (("q", S), ("k", T), ("v", T))}
    apart = {name: b.op("Reshape", x, ints(b, -1, S if name == "q" else T, N, H)) for name, x in rows.items()}
    q, k, v = (
        b.op("Reshape", b.op("Transpose", x, perm=(0, 2, 1, 3)), ints(b, -1, S if name == "q" else T, H))
        for name, x in apart.items()
    )
    chances = b.op("Softmax", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 1))))
    y = b.op("Reshape", b.op("MatMul", chances, v), ints(b, -1, N, S, H))
    y = b.op("Reshape", b.op("Transpose", y, perm=(0, 2, 1, 3)), ints(b, -1, S, N * H))
    assert found(b.finish([y])) == {"Attention": 1}


@pytest.mark.parametrize("repeat", ["expand", "tile", "concat"])
@pytest.mark.parametrize("groups", [1, 2])
def test_repeated_heads_are_shared(repeat: str, groups: int) -> None:
    b = GraphBuilder()
    left = found(b.finish([layered(b, 4, groups, repeat=repeat)]))
    assert left == {"MatMul": 1, "Split": 1, "Attention": 1}


def test_keys_that_are_an_output_stay_one() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(n, "float32", (B, N, S, H)) for n in "qkv")
    k, v = b.op("Neg", k), b.op("Abs", v)
    s = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    graph = b.finish({"y": b.op("MatMul", b.op("Softmax", s), v), "k2": k, "v2": v})
    assert found(graph) == {"Neg": 1, "Abs": 1, "Attention": 1}


# --- quantised -----------------------------------------------------------------------------------------------------------


def qdq(scale: float) -> Steps:
    def apply(b: GraphBuilder, x: Any) -> Any:
        parameters = number(b, scale), b.constant(np.int8(0))
        return b.op("DequantizeLinear", b.op("QuantizeLinear", x, *parameters), *parameters)

    return apply


def spelled_out(scale: float) -> Steps:
    def apply(b: GraphBuilder, x: Any) -> Any:
        y = b.op("Round", b.op("Mul", x, number(b, 1 / scale)))
        y = b.op("Cast", b.op("Clip", y, number(b, -127), number(b, 127)), to=3)
        return b.op("Mul", b.op("Cast", y, to=1), number(b, scale))

    return apply


EDGES = ("queries", "keys", "scores", "scaled", "masked", "probabilities")


@pytest.mark.parametrize("spelling", [qdq, spelled_out])
@pytest.mark.parametrize("edge", [*EDGES, "all"])
def test_quantisation_on_any_edge_is_one_operator(spelling: Callable[[float], Steps], edge: str) -> None:
    def at(name: str) -> Steps:
        return spelling(1 / 16) if edge in (name, "all") else lambda b, x: x

    def steps(b: GraphBuilder, s: Any) -> Any:
        s = at("scaled")(b, scaled("Mul", 0.5)(b, at("scores")(b, s)))
        return at("masked")(b, b.op("Add", s, b.constant(np.linspace(-1, 1, T, dtype=np.float32))))

    graph = core(steps, on_query=at("queries"), on_key=at("keys"), after=at("probabilities"))
    result = eqsat.optimize(graph, target="launch-count", verify=False)
    assert result.report.recognized == {"quantized_attention": 1}
    assert result.report.kernels_after <= 3
    check_on_random_inputs(result, graph)


def test_what_is_dequantised_to_half_precision_by_scales_of_float32_is_not_that_operator() -> None:
    def halved(b: GraphBuilder, x: Any) -> Any:
        parameters = number(b, 1 / 16), b.constant(np.int8(0))
        return b.op("DequantizeLinear", b.op("QuantizeLinear", x, *parameters), *parameters, output_dtype=10)

    graph = core(on_query=halved, on_key=halved, after=halved, dtype="float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = eqsat.optimize(graph, target="launch-count", verify=False)
    assert "quantized_attention" not in result.report.recognized


def test_quantised_attention_with_masks_by_window_is_one_operator() -> None:
    at = qdq(1 / 16)
    steps = by_window("Add", before=lambda b, s: at(b, plus(np.ones((N, S, T)))(b, at(b, s))), behind=at)
    graph = core(steps, on_query=at, on_key=at, after=at, lead=(6, N))
    result = eqsat.optimize(graph, target="launch-count", verify=False)
    assert result.report.recognized == {"quantized_attention": 1}
    check_on_random_inputs(result, graph)


def test_quantised_probabilities_need_no_guard_against_nan() -> None:
    def guarded(b: GraphBuilder, p: Any) -> Any:
        p = qdq(1 / 16)(b, p)
        return b.op("Where", b.op("IsNaN", p), number(b, 0), p)

    graph = core(qdq(1 / 16), on_query=qdq(1 / 16), on_key=qdq(1 / 16), after=guarded)
    assert not {"IsNaN", "Where"} & set(found(graph))
    result = eqsat.optimize(graph, target="launch-count", verify=False)
    assert result.report.recognized == {"quantized_attention": 1}
    check_on_random_inputs(result, graph)


def check_on_random_inputs(result: eqsat.Result, graph: Graph) -> None:
    rng = np.random.default_rng(3)
    feeds = {n: rng.normal(size=graph.type_of(n).shape).astype(np.float32) for n in graph.inputs}  # type: ignore[union-attr]
    for ours, theirs in zip(run(result.program.graph, feeds).values(), run(graph, feeds).values(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("batch", [3, "n"])
def test_heads_that_are_transposed_before_they_are_cut_stay_in_rows(batch: int | str) -> None:
    b = GraphBuilder()
    packed = b.op("Reshape", b.input("x", "float32", (batch, 5, 2 * 12)), ints(b, -1, 5, 2, 12))
    q, k, v = b.op("Split", b.op("Transpose", packed, perm=(0, 2, 1, 3)), outputs=3, axis=3, num_outputs=3)
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    heads = b.op("MatMul", b.op("Softmax", scores, axis=-1), v)
    graph = b.finish({"y": b.op("Reshape", b.op("Transpose", heads, perm=(0, 2, 1, 3)), ints(b, -1, 5, 8))})
    assert found(graph).get("Transpose", 0) == 0


@pytest.mark.parametrize(("batch", "rows"), [(3, 5), ("n", "s")])
def test_factors_by_query_behind_attention_leave_heads_in_rows(batch: int | str, rows: int | str) -> None:
    """Axes of 1 change places with symbolic extents between them, which no Reshape says without a list of extents."""
    b = GraphBuilder()
    q, k, v = (b.input(n, "float32", (batch, rows, N * 4)) for n in "qkv")
    seen = b.input("seen", "float32", (batch, 1, rows, 1))
    q, k, v = (b.op("Transpose", b.op("Reshape", x, ints(b, 0, 0, N, 4)), perm=(0, 2, 1, 3)) for x in (q, k, v))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    heads = b.op("Mul", b.op("MatMul", b.op("Softmax", scores, axis=-1), v), seen)
    graph = b.finish({"y": b.op("Reshape", b.op("Transpose", heads, perm=(0, 2, 1, 3)), ints(b, 0, 0, N * 4))})
    made = found(graph)
    assert made["Attention"] == 1
    assert not made.keys() & {"Transpose", "Shape"}
