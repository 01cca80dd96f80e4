"""Normalisation, scales, shifts and borders that move into linear operators: what folds, and what must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graph_checks import counts, optimized, proved_equal

import eqsat
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.ir.build import GraphBuilder
from eqsat.ir.interpret import run
from eqsat.rewrite import find_rule, registered_rules

rng = np.random.default_rng(11)


def array(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def statistics(b: GraphBuilder, channels: int) -> list[str]:
    return [b.constant(v) for v in (array(channels), array(channels), array(channels), np.abs(array(channels)) + 0.1)]


def graph_of(build: Callable[[GraphBuilder], str]) -> Any:
    b = GraphBuilder()
    return b.finish({"y": build(b)})


# --- BatchNormalization ----------------------------------------------------------------------------------------------------


def test_batch_normalization_with_computed_statistics_is_a_product_and_a_sum() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 10))
    gamma, beta, mean, var = (b.input(name, "float32", (10,)) for name in ("gamma", "beta", "mean", "var"))
    scale = b.op("Div", gamma, b.op("Sqrt", b.op("Add", var, b.constant(np.float32(1e-5)))))
    written_out = b.op("Add", b.op("Mul", x, scale), b.op("Sub", beta, b.op("Mul", mean, scale)))
    graph = b.finish({"norm": b.op("BatchNormalization", x, gamma, beta, mean, var), "written_out": written_out})
    assert proved_equal(graph, "batch_normalization_as_scale_and_shift")


def test_dropout_behind_batch_normalization_vanishes() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 10))
    y = b.op("BatchNormalization", x, *statistics(b, 10))
    assert "Dropout" not in counts(optimized(b.finish({"y": b.op("Dropout", y)})))


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_constant_statistics_cost_a_product_and_a_sum_at_most(rank: int) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4, 5)[:rank])
    optimized(b.finish({"y": b.op("BatchNormalization", x, *statistics(b, 3), epsilon=0.01)}))


def test_training_mode_is_left_alone() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y, *_ = b.op("BatchNormalization", x, *statistics(b, 3), outputs=3, training_mode=1)
    assert not proved_equal(
        b.finish({"y": y, "z": b.op("BatchNormalization", x, *statistics(b, 3))}),
        "batch_normalization_as_scale_and_shift",
    )


def test_half_precision_keeps_epsilon() -> None:
    b = GraphBuilder()
    x = b.input("x", "float16", (2, 3))
    zeros, ones = np.zeros(3, np.float16), np.ones(3, np.float16)
    parts = [b.constant(v) for v in (ones, zeros, zeros, zeros)]
    graph = b.finish({"y": b.op("BatchNormalization", x, *parts, epsilon=1e-3)})
    optimized(graph, tolerance=2e-3)


@pytest.mark.parametrize(("mean", "fires"), [(300, False), (100, True)])
def test_shift_of_half_precision_that_is_no_number_stays_in_the_normalisation(mean: float, fires: bool) -> None:
    b = GraphBuilder()
    x = b.input("x", "float16", (1, 3, 2, 2))
    parts = [b.constant(np.full(3, value, "float16")) for value in (1, 0, mean, 0)]
    encoding = encode(b.finish({"y": b.op("BatchNormalization", x, *parts, epsilon=1e-5)}))
    name = "batch_normalization_as_scale_and_shift"
    assert bool(saturate(encoding.egraph, [find_rule(name)]).matches[name]) is fires


# --- scales behind an operator ---------------------------------------------------------------------------------------------


def conv(b: GraphBuilder, *, group: int = 1, bias: bool = False, op: str = "Conv", **attributes: Any) -> str:
    """8 channels out of 4, on a 6 x 8 image."""
    x = b.input("x", "float32", (2, 4, 6, 8))
    w = array(8, 4 // group, 3, 3) if op == "Conv" else array(4, 8 // group, 3, 3)
    parts = [x, b.constant(w), *([b.constant(array(8))] if bias else [])]
    return b.op(op, *parts, group=group, **attributes)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1, 1), (), (1,), (1, 1, 1, 1)])
def test_scale_along_output_channels_folds(shape: tuple[int, ...], op: str, group: int, bias: bool) -> None:
    graph = graph_of(lambda b: b.op("Mul", b.constant(array(*shape)), conv(b, op=op, group=group, bias=bias)))
    assert counts(optimized(graph)) == {op: 1}


def test_normalised_convolution_of_one_channel_is_one_convolution() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 1, 10, 10))
    y = b.op("Conv", x, b.constant(array(2, 1, 3, 3)), pads=(1, 1, 1, 1))
    result = optimized(b.finish({"y": b.op("Mul", y, b.constant(array(2, 1, 1)))}))
    assert counts(result) == {"Conv": 1}


@pytest.mark.parametrize("shape", [(8,), (6, 1), (2, 1, 1, 1), (8, 6, 8), (1, 1, 8, 1, 1), (1, 1, 1, 1, 1)])
def test_scale_along_another_axis_stays(shape: tuple[int, ...]) -> None:
    def build(b: GraphBuilder) -> str:
        y = conv(b, pads=(1, 1, 1, 1))
        return b.op("Mul", y, b.constant(array(*shape)))

    assert counts(optimized(graph_of(build))) == {"Conv": 1, "Mul": 1}


def test_scale_that_enlarges_stays() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 3))
    y = b.op("MatMul", x, b.constant(array(3, 1)))
    assert counts(optimized(b.finish({"y": b.op("Mul", y, b.constant(array(5)))})))["MatMul"] == 1


@pytest.mark.parametrize("factor", [np.inf, np.nan, 1e30])
def test_scale_that_overflows_the_weights_stays(factor: float) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    y = b.op("Mul", b.op("MatMul", x, b.constant(array(3, 4) * 1e10)), b.constant(np.float32(factor)))
    assert counts(optimized(b.finish({"y": y}))) == {"MatMul": 1, "Mul": 1}


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 5), ()])
def test_scale_along_columns_folds_into_product(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y = b.op("Mul", b.op("MatMul", x, b.constant(array(4, 5))), b.constant(array(*shape)))
    assert counts(optimized(b.finish({"y": y}))) == {"MatMul": 1}


@pytest.mark.parametrize("shape", [(3, 1), (2, 1, 1), (3, 5)])
def test_scale_along_rows_stays_behind_product(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y = b.op("Mul", b.op("MatMul", x, b.constant(array(4, 5))), b.constant(array(*shape)))
    assert counts(optimized(b.finish({"y": y}))) == {"MatMul": 1, "Mul": 1}


@pytest.mark.parametrize("attributes", [{}, {"transB": 1}, {"transA": 1, "alpha": 0.5, "beta": 2.0}])
@pytest.mark.parametrize("bias", [None, (5,), (3, 1), ()])
def test_scale_and_shift_fold_into_gemm(bias: tuple[int, ...] | None, attributes: dict[str, Any]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 3) if attributes.get("transA") else (3, 4))
    parts = [x, b.constant(array(5, 4) if attributes.get("transB") else array(4, 5))]
    y = b.op("Gemm", *parts, *([] if bias is None else [b.constant(array(*bias))]), **attributes)
    y = b.op("Add", b.op("Mul", y, b.constant(array(5))), b.constant(array(1, 5)))
    assert counts(optimized(b.finish({"y": y}))) == {"Gemm": 1}


def test_division_by_constant_folds() -> None:
    graph = graph_of(lambda b: b.op("Div", conv(b), b.constant(np.abs(array(8, 1, 1)) + 0.5)))
    assert counts(optimized(graph)) == {"Conv": 1}


def test_division_by_zero_stays() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4,))
    graph = b.finish({"y": b.op("Div", x, b.constant([1, 0, -1, 1e-45], "float32"))})
    assert "divide_by_constant_as_multiplication" not in _fired(optimized(graph))


def _fired(result: Any) -> set[str]:
    return {name for name, found in result.report.rules.items() if found["matches"]}


@pytest.mark.parametrize("channels", [8, 2048])
@pytest.mark.parametrize("group", [1, 2])
def test_batch_normalization_behind_convolution_folds(group: int, channels: int) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (1, 4, 5, 5))
    y = b.op("Conv", x, b.constant(array(channels, 4 // group, 1, 1)), group=group)
    y = b.op("BatchNormalization", y, *statistics(b, channels))
    assert counts(optimized(b.finish({"y": y}), tolerance=1e-4)) == {"Conv": 1}


def test_batch_normalization_behind_dense_layer_folds() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (6, 4))
    y = b.op("BatchNormalization", b.op("MatMul", x, b.constant(array(4, 5))), *statistics(b, 5))
    assert counts(optimized(b.finish({"y": y}))) == {"Gemm": 1}


def test_batch_normalization_of_rows_behind_a_view_of_a_product_folds() -> None:
    """As LeViT normalises the features of its tokens."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y = b.op("Reshape", b.op("MatMul", x, b.constant(array(4, 5))), b.constant([-1, 5]))
    y = b.op("BatchNormalization", y, *statistics(b, 5))
    assert counts(optimized(b.finish({"y": b.op("Reshape", y, b.constant([2, 3, 5]))}))) == {"MatMul": 1, "Add": 1}


# --- shifts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1, 1), (), (1, 1)])
def test_constant_along_output_channels_joins_the_bias(shape: tuple[int, ...], bias: bool) -> None:
    graph = graph_of(lambda b: b.op("Add", conv(b, bias=bias), b.constant(array(*shape))))
    assert counts(optimized(graph)) == {"Conv": 1}


@pytest.mark.parametrize("shape", [(8,), (6, 8), (2, 1, 1, 1)])
def test_constant_along_another_axis_stays(shape: tuple[int, ...]) -> None:
    graph = graph_of(lambda b: b.op("Add", conv(b, pads=(1, 1, 1, 1)), b.constant(array(*shape))))
    assert counts(optimized(graph)) == {"Conv": 1, "Add": 1}


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1), (3, 5), ()])
def test_product_and_sum_of_matrices_is_one_gemm(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x, w, c = (b.input(n, "float32", s) for n, s in (("x", (3, 4)), ("w", (4, 5)), ("c", shape)))
    assert counts(optimized(b.finish({"y": b.op("Add", c, b.op("MatMul", x, w))}))) == {"Gemm": 1}


@pytest.mark.parametrize(("rows", "shape"), [(1, (3, 5)), (3, (2, 3, 5)), (3, (1, 3, 5))])
def test_sum_that_enlarges_the_product_is_no_gemm(rows: int, shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x, w = b.input("x", "float32", (rows, 4)), b.input("w", "float32", (4, 5))
    y = b.op("Add", b.op("MatMul", x, w), b.input("c", "float32", shape))
    assert counts(optimized(b.finish({"y": y}))) == {"MatMul": 1, "Add": 1}


def test_symbolic_rows_do_not_hide_a_gemm() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 4))
    y = b.op("Add", b.op("MatMul", x, b.constant(array(4, 5))), b.constant(array(5)))
    assert counts(optimized(b.finish({"y": y}))) == {"Gemm": 1}


# --- scales and shifts before an operator ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4), ()])
def test_scale_before_product_folds(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y = b.op("MatMul", b.op("Mul", x, b.constant(array(*shape))), b.constant(array(4, 5)))
    assert counts(optimized(b.finish({"y": y}))) == {"MatMul": 1}


@pytest.mark.parametrize("shape", [(3, 1), (2, 1, 1)])
def test_scale_of_rows_before_product_stays(shape: tuple[int, ...]) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 4))
    y = b.op("MatMul", b.op("Mul", x, b.constant(array(*shape))), b.constant(array(4, 5)))
    assert counts(optimized(b.finish({"y": y}))) == {"MatMul": 1, "Mul": 1}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_scale_before_convolution_folds_under_padding(op: str, group: int) -> None:
    b = GraphBuilder()
    x = b.op("Mul", b.input("x", "float32", (1, 4, 5, 5)), b.constant(array(4, 1, 1)))
    w = array(6, 4 // group, 3, 3) if op == "Conv" else array(4, 6 // group, 3, 3)
    y = b.op(op, x, b.constant(w), pads=(1, 1, 1, 1), group=group)
    assert counts(optimized(b.finish({"y": y}))) == {op: 1}


@pytest.mark.parametrize(("pads", "left"), [((0, 0, 0, 0), {"Conv": 1}), ((1, 0, 0, 0), {"Conv": 1, "Add": 1})])
@pytest.mark.parametrize("group", [1, 2])
def test_shift_before_convolution_folds_without_padding_only(
    group: int, pads: tuple[int, ...], left: dict[str, int]
) -> None:
    b = GraphBuilder()
    x = b.op("Add", b.input("x", "float32", (1, 4, 5, 5)), b.constant(array(4, 1, 1)))
    y = b.op("Conv", x, b.constant(array(6, 4 // group, 3, 3)), pads=pads, group=group)
    assert counts(optimized(b.finish({"y": y}))) == left


@pytest.mark.parametrize(
    ("mean", "deviation", "left"), [(2.0, 0.5, 0), (123.0, 58.0, 0), (48.0, 0.02, 1), (2000.0, 5.0, 1)]
)
@pytest.mark.parametrize("op", ["Gemm", "MatMul", "Conv"])
def test_what_varies_by_little_is_centred_before_it_is_multiplied(
    op: str, mean: float, deviation: float, left: int
) -> None:
    """Behind the product the difference of two large numbers would be left: few digits, which random inputs do not show."""
    b = GraphBuilder()
    size = (3, 3) if op == "Conv" else ()
    x = b.input("x", "float32", (5, 4, *size))
    w = array(8, 4, *size) if op == "Conv" else array(4, 8)
    centred = b.op("Sub", x, b.constant(np.full((4, *(1 for _ in size)), mean, np.float32)))
    y = b.op(op, b.op("Div", centred, b.constant(np.float32(deviation))), b.constant(w / np.abs(w).max()))
    result = optimized(b.finish({"y": y}))
    assert sum(counts(result).get(name, 0) for name in ("Add", "Sub")) == left
    feeds = {"x": (mean + deviation * rng.normal(size=(5, 4, *size))).astype(np.float32)}
    expected, found = (run(g, feeds)["y"] for g in (result.original, result.program.graph))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_shift_before_dense_layer_joins_its_bias() -> None:
    b = GraphBuilder()
    x = b.op("Add", b.input("x", "float32", (2, 4)), b.constant(array(4)))
    assert counts(optimized(b.finish({"y": b.op("MatMul", x, b.constant(array(4, 5)))}))) == {"Gemm": 1}


def _scaled(b: GraphBuilder, op: str, factor: float, place: str) -> str:
    """Four features or channels to eight, in float16, scaled before, behind, or behind a bias."""
    images, scale = op != "MatMul", b.constant(np.full((8 if place != "before" else 4,), factor, "float16"))
    x = b.input("x", "float16", (2, 4, 5, 5) if images else (2, 4))
    weights = array(*((4, 8, 3, 3) if op == "ConvTranspose" else (8, 4, 3, 3) if images else (4, 8)))
    if images:
        scale = b.op("Reshape", scale, b.constant([-1, 1, 1], "int64"))
    y = b.op(op, b.op("Mul", x, scale) if place == "before" else x, b.constant(weights.astype("float16")))
    if place == "biased":
        y = b.op("Add", y, b.constant(array(8).astype("float16")))
    return y if place == "before" else b.op("Mul", y, scale)


@pytest.mark.parametrize(("factor", "folds"), [(0.125, True), (1e-6, False), (0.0, True)])
@pytest.mark.parametrize(
    ("op", "place"),
    [(o, p) for o in ("Conv", "ConvTranspose", "MatMul") for p in ("before", "behind")] + [("MatMul", "biased")],
)
def test_scale_that_leaves_no_digits_of_half_precision_weights_stays(
    op: str, place: str, factor: float, folds: bool
) -> None:
    name = {"before": "fold_scale_into_following", "behind": "fold_scale_into", "biased": "fold_scale_into_biased"}[
        place
    ]
    name = f"{name}_{op.lower()}"
    encoding = encode(graph_of(lambda b: _scaled(b, op, factor, place)))
    never = factor == 0 and place == "before"  # all products of zeros are one value
    assert bool(saturate(encoding.egraph, [find_rule(name)]).matches[name]) == (folds and not never)


@pytest.mark.parametrize("place", ["before", "behind", "biased"])
def test_scales_of_layers_in_half_precision_are_verified(place: str) -> None:
    result = eqsat.optimize(graph_of(lambda b: _scaled(b, "MatMul", 1e-6, place)), form="flat")
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert "Mul" in result.report.operators_after


@pytest.mark.parametrize(
    ("dtype", "alpha", "size", "folds"),
    [
        ("float16", 0.125, 1, True),
        ("float16", 0.0, 1, True),
        ("float16", 1e-8, 100, False),  # the factor is 0
        ("float16", 1e-3, 1e-3, False),  # the weights are subnormal
        ("float16", 1e5, 1e-3, False),  # the factor is infinite
        ("float32", 1e-8, 100, True),
    ],
)
def test_factors_of_gemm_enter_weights_where_these_keep_their_digits(
    dtype: str, alpha: float, size: float, folds: bool
) -> None:
    b = GraphBuilder()
    x, w = b.input("x", dtype, (2, 4)), b.constant((array(4, 3) * size).astype(dtype))
    encoding = encode(b.finish({"y": b.op("Gemm", x, w, alpha=alpha)}))
    name = "fold_factors_of_gemm"
    assert bool(saturate(encoding.egraph, [find_rule(name)]).matches[name]) is folds


@pytest.mark.parametrize("flag", [0, 1, 2, -1])
@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_any_flag_but_0_transposes(form: str, side: str, flag: int) -> None:
    b = GraphBuilder()
    turned, other = b.op("Transpose", b.input("x", "float32", (3, 3)), perm=(1, 0)), b.constant(array(3, 3))
    operands = (turned, other) if side == "A" else (other, turned)
    optimized(b.finish({"y": b.op("Gemm", *operands, **dict[str, Any]({f"trans{side}": flag}))}), form=form)


def test_a_quantised_layer_may_have_any_flag_too() -> None:
    b = GraphBuilder()
    weights = b.constant(np.arange(9, dtype=np.int8).reshape(3, 3))
    parts = ((b.input("q", "uint8", (3, 3)), np.uint8(3)), (weights, np.int8(0)))
    operands = [b.op("DequantizeLinear", v, b.constant(np.float32(0.1)), b.constant(zero)) for v, zero in parts]
    y = b.op("Gemm", *operands, b.constant(np.array([0.5, -0.25, 0.12], np.float32)), transB=2)
    y = b.op("QuantizeLinear", y, b.constant(np.float32(0.4)), b.constant(np.uint8(100)))
    encoding = encode(b.finish({"y": y}))
    assert saturate(encoding.egraph, registered_rules()).matches["multiply_integers_and_rows_of_bias"]


OVERFLOWING: dict[str, Callable[[GraphBuilder, float], str]] = {
    "fold_scale_before_shift_into_following_conv": lambda b, large: b.op(
        "Conv",
        b.op(
            "Add",
            b.op("Mul", b.input("x", "float32", (1, 4, 5, 5)), b.constant(np.float32(1e-3))),
            b.constant(np.float32(large)),
        ),
        b.constant(array(6, 4, 3, 3)),
    ),
    "shift_shifted_layer_normalization": lambda b, large: b.op(
        "Add",
        b.op("LayerNormalization", b.input("x", "float32", (3, 4)), *(b.constant(np.full(4, large, "float32")),) * 2),
        b.constant(np.full(4, large, "float32")),
    ),
    "fold_factors_of_gemm": lambda b, large: b.op(
        "Gemm", b.input("x", "float32", (3, 4)), b.constant(np.full((4, 5), large, "float32")), alpha=2.0
    ),
}


@pytest.mark.parametrize(("large", "fires"), [(1.0, True), (2.5e38, False)])
@pytest.mark.parametrize("name", OVERFLOWING)
def test_constants_that_would_overflow_in_the_weights_stay(name: str, large: float, fires: bool) -> None:
    encoding = encode(graph_of(lambda b: OVERFLOWING[name](b, large)))
    assert bool(saturate(encoding.egraph, [find_rule(name)]).matches[name]) == fires


def test_neutral_constants_do_not_run_for_ever() -> None:
    b = GraphBuilder()
    x = b.op("Mul", b.input("x", "float32", (2, 4)), b.constant(np.ones(4, np.float32)))
    x = b.op("Add", x, b.constant(np.zeros(4, np.float32)))
    y = b.op("MatMul", x, b.constant(array(4, 5)))
    for factor in (1.0, 0.0, 0.0):
        y = b.op("Mul", y, b.constant(np.full(5, factor, np.float32)))
    result = optimized(b.finish({"y": y}), node_limit=2000)
    assert result.report.stop_reason == "saturated"


@pytest.mark.parametrize("factors", [(-1, -1), (2, 0.5), (3, 1 / 3), (2, 2, 0.25)])
def test_factors_that_undo_one_another_are_absorbed_once(factors: tuple[float, ...]) -> None:
    """Weights too large to be computed while the e-graph grows absorbed the one factor and then the other, for ever."""
    b, rng = GraphBuilder("back"), np.random.default_rng(0)
    value = b.input("x", "float32", (3, 96))
    for factor in factors:
        value = b.op("Mul", value, b.constant(np.float32(factor)))
    w, c = b.constant(rng.normal(size=(96, 64)).astype(np.float32)), b.constant(rng.normal(size=64).astype(np.float32))
    y = b.op("Add", b.op("MatMul", value, w), c)
    report = eqsat.optimize(
        b.finish({"y": y, "z": b.op("Mul", y, b.constant(np.float32(2)))}), form="flat", node_limit=2000
    ).report
    assert report.stop_reason == "saturated"
    assert report.enodes < 600
    assert set(report.operators_after) <= {"Gemm", "MatMul", "Add", "Mul"}
    assert sum(report.operators_after.values()) <= 3


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv"])
@pytest.mark.parametrize("steps", ["+-", "-++-", "++2", "*+-/", "+*-+/-", "+-*/"])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_steps_there_and_back_give_weights_and_biases_few_spellings(op: str, steps: str, side: str) -> None:
    """Each step and its opposite made another bias that differed from the first by its rounding, for ever."""
    rng = np.random.default_rng(0)

    def vector() -> np.ndarray:
        return rng.uniform(0.5, 2, (64, 1, 1) if op == "Conv" else 64).astype(np.float32)

    b = GraphBuilder("back")

    def stepped(value: str) -> str:
        opposite = {"+": "-", "*": "/", "-": "+", "/": "*"}
        operators = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div"}
        undone: list[tuple[str, np.ndarray]] = []
        for step in steps:
            if step == "2":  # both shifts at once
                value = b.op("Sub", value, b.constant(undone.pop()[1] + undone.pop()[1]))
                continue
            if undone and step == opposite[undone[-1][0]]:
                constant = undone.pop()[1]
            else:
                constant = vector()
                undone.append((step, constant))
            value = b.op(operators[step], value, b.constant(constant))
        return value

    x = b.input("x", "float32", (2, 64, 5, 5) if op == "Conv" else (4, 64))
    w = rng.normal(size=(64, 64, 1, 1) if op == "Conv" else (64, 64)).astype(np.float32)
    operands = [b.constant(w)] + [b.constant(rng.normal(size=64).astype(np.float32))] * (op != "MatMul")
    value = b.op(op, stepped(x) if side == "before" else x, *operands)
    report = optimized(b.finish({"y": stepped(value) if side == "behind" else value}), node_limit=2000).report
    assert report.stop_reason == "saturated"
    assert report.enodes < 500
    assert report.operators_after == {op: 1}


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([("Mul", 0.5), ("Add", 0.5), ("Mul", 2), ("Sub", 1)], 0),
        ([("Div", 3), ("Sub", 0.3), ("Mul", 3)], 1),
        ([("Mul", 3), ("Add", 12582912), ("Mul", 1 / 3)], 3),  # which rounds to thirds
    ],
)
def test_factors_around_a_summand_cancel(steps: list[tuple[str, float]], left: int, vector: bool) -> None:
    b = GraphBuilder()
    value = b.op("Relu", b.input("x", "float32", (4, 8)))
    for op, number in steps:
        value = b.op(op, value, b.constant(np.full(8 if vector else (), number, np.float32)))
    assert sum(counts(optimized(b.finish({"y": b.op("Tanh", value)}))).values()) == 2 + left


@pytest.mark.parametrize("shape", [(3, 4), ("n", 4), ()])
@pytest.mark.parametrize(("op", "neutral"), [("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1), ("Pow", 1)])
def test_neutral_elements_that_add_axes_are_views(op: str, neutral: int, shape: tuple[int | str, ...]) -> None:
    b = GraphBuilder()
    x = b.op("Relu", b.input("x", "float32", shape))
    value = b.op(op, x, b.constant(np.full((1, 1, 1), neutral, np.float32)))
    report = optimized(b.finish({"y": b.op("Tanh", value)})).report
    views = {"Reshape", "Unsqueeze"}
    assert {op for op in report.operators_after if op not in views} == {"Relu", "Tanh"}


@pytest.mark.parametrize("op", ["MatMul", "Gemm", "Conv", "LayerNormalization", "GroupNormalization"])
@pytest.mark.parametrize("side", ["before", "behind"])
def test_what_is_rounded_on_purpose_stays_rounded(op: str, side: str) -> None:
    """``(x + c) - c`` with a huge ``c`` is how one rounds: such shifts are no biases."""

    def rounded(value: str) -> str:
        huge = b.constant(np.float32(12582912))
        return b.op("Sub", b.op("Add", value, huge), huge)

    b = GraphBuilder()
    x = b.input("x", "float32", (2, 8, 3, 8))
    weights = {"MatMul": [array(8, 8)], "Conv": [array(8, 8, 1, 1), array(8)]}.get(op, [array(8), array(8)])
    if op == "Gemm":
        x, weights = b.op("Reshape", x, b.constant([-1, 8], "int64")), [array(8, 8), array(8)]
    attributes: dict[str, Any] = {"num_groups": 4} if op == "GroupNormalization" else {}
    value = b.op(op, rounded(x) if side == "before" else x, *map(b.constant, weights), **attributes)
    found = optimized(b.finish({"y": rounded(value) if side == "behind" else value}), form="flat")
    assert counts(found)["Sub"] == 1


@pytest.mark.parametrize("length", [12, "length"])
def test_bias_behind_a_convolution_of_one_axis_in_two_is_its_own(length: int | str) -> None:
    """As converters from TensorFlow write Conv1D."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, length))
    row = b.op("Unsqueeze", x, b.constant([2], "int64"))
    y = b.op("Squeeze", b.op("Conv", row, b.constant(array(4, 3, 1, 2))), b.constant([2], "int64"))
    graph = b.finish({"y": b.op("Relu", b.op("Add", y, b.constant(array(1, 4, 1))))})
    assert counts(optimized(graph)) == {"Conv": 1, "Relu": 1}


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_constants_in_a_long_row_are_one(op: str) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4,))
    value = x
    for k in range(60):
        value = b.op(op, value, b.constant(np.float32(1 + k / 1024)))
    report = eqsat.optimize(b.finish({"y": value})).report
    assert report.operators_after == {op: 1}
    assert report.verification["verdict"] == "within tolerance"


# --- channels in another order -------------------------------------------------------------------------------------------


def _looked_up(b: GraphBuilder, x: str) -> str:
    return b.op("Gather", x, b.constant([2, 1, 0], "int64"), axis=1)


def _looked_up_by_places(b: GraphBuilder, x: str) -> str:
    """As PyTorch's newer exporter writes ``x[:, [2, 1, 0]]``."""
    first = b.op("Transpose", x, perm=[1, 0, 2, 3])
    found = b.op("GatherND", first, b.constant([[2], [1], [0]], "int64"))
    return b.op("Transpose", found, perm=[1, 0, 2, 3])


@pytest.mark.parametrize("looked_up", [_looked_up, _looked_up_by_places])
def test_weights_are_stored_in_the_order_in_which_channels_are_looked_up(
    looked_up: Callable[[GraphBuilder, str], str],
) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", 3, 8, 8))
    scaled = b.op("Div", b.op("Sub", x, b.constant(array(3, 1, 1))), b.constant(np.float32(0.25)))
    y = b.op("Conv", looked_up(b, scaled), b.constant(array(4, 3, 3, 3)), pads=[1, 1, 1, 1])
    after = counts(optimized(b.finish({"y": y})))
    assert after["Conv"] == 1
    assert not after.keys() & {"Gather", "GatherND", "Transpose"}
