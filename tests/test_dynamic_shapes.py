"""Exports with symbolic extents are optimised as well as those with numbers, and are right at all sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import eqsat
from benchmarks.dynamic_shapes import feeds_of
from eqsat.backends.onnx_file import to_model
from eqsat.egraph.snapshot import take_snapshot
from eqsat.extract.components import strong_components
from eqsat.ir.build import GraphBuilder

MODELS = [f"dynamic/{name}.{by}" for name in ("bert", "gpt2", "llama", "llama_decode") for by in ("dynamo", "legacy")]

EXTRA = {"bert": (5, 5), "gpt2": (8, 14), "llama": (8, 12), "llama_decode": (7, 7)}
"""Operators more than with numbers for all extents, in plain ONNX with the fewest kernels and in ONNX Runtime's form with the
least time: positions, their angles and masks are computed at run time, and rows of Gemm are joined and taken apart by views."""

EXTRA_KERNELS = {"bert": (3, 3), "gpt2": (4, 5), "llama": (6, 7), "llama_decode": (3, 6)}
"""Of these, those that are no views."""

FORMS: list[dict[str, str]] = [
    {"form": "flat", "cost": "kernels", "consumer": "onnxruntime"},
    {"consumer": "onnxruntime"},
]
PRODUCTS = ("MatMul", "Gemm", "com.microsoft::FusedGemm")

Models = Callable[[str], Path]

BOTH = [pytest.param(0, id="flat", marks=pytest.mark.thorough), pytest.param(1, id="onnxruntime")]


def _products(report: eqsat.Report) -> int:
    return sum(n for op, n in report.operators_after.items() if op in PRODUCTS)


@cache
def _sizes(path: Path) -> dict[str, int]:
    """Those of its symbols that the model has."""
    numbers = {"batch": 2, "seq": 16, "past": 8, "total": 24}
    return {s: n for s, n in numbers.items() if s in eqsat.inspect(path).symbols}


@cache
def _optimized(path: Path, form: int) -> eqsat.Result:
    return eqsat.optimize(path, assume=_sizes(path), **FORMS[form])  # type: ignore[arg-type]


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("name", MODELS)
def test_symbols_cost_no_fusion(name: str, form: int, real_model: Models) -> None:
    path = real_model(name)
    found = _optimized(path, form).report
    fixed = eqsat.optimize(path, verify=False, dims=_sizes(path), **FORMS[form]).report  # type: ignore[arg-type]
    assert found.recognized == fixed.recognized
    assert found.recognized["attention"] == 2
    assert _products(found) == _products(fixed)
    model = name.split("/")[1].split(".", maxsplit=1)[0]
    extra = sum(found.operators_after.values()) - sum(fixed.operators_after.values())
    assert extra <= EXTRA[model][form]
    assert found.kernels_after - fixed.kernels_after <= EXTRA_KERNELS[model][form]


@pytest.mark.parametrize("name", ["dynamic/gpt2.dynamo", "dynamic/llama.legacy", "dynamic/llama_decode.legacy"])
def test_lists_of_extents_do_not_make_layers_one_circle(name: str, real_model: Models) -> None:
    found = eqsat.optimize(real_model(name), verify=False, keep_egraph=True, **FORMS[0])  # type: ignore[arg-type]
    assert found.encoding is not None
    snapshot = take_snapshot(found.encoding.egraph)
    numbers = {cls: i for i, cls in enumerate(snapshot.classes)}
    read = [
        [] if cls in snapshot.constants else [numbers[c] for item in items for c in item.children]
        for cls, items in snapshot.classes.items()
    ]
    assert max(map(len, strong_components(read))) < 20  # one layer has 80


@pytest.mark.parametrize("by", ["dynamo", "legacy"])
@pytest.mark.parametrize("sizes", [(1, 127), (2, 16)], ids=str)
def test_one_query_over_stored_keys_is_one_attention_a_layer_by_time(
    sizes: tuple[int, int], by: str, real_model: Models
) -> None:
    batch, past = sizes
    numbers = {"batch": batch, "seq": 1, "past": past, "total": past + 1}
    path = real_model(f"dynamic/llama_decode.{by}")
    fixed = eqsat.optimize(path, verify=False, dims=numbers).report
    for report in (fixed, eqsat.optimize(path, verify=False, assume=numbers).report):
        assert sum(report.operators_after.get(op, 0) for op in ("Attention", "com.microsoft::GroupQueryAttention")) == 2
        assert "Softmax" not in report.operators_after
        assert report.stop_reason == "saturated"


def _session(model: bytes, level: ort.GraphOptimizationLevel) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("form", BOTH)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_right_at_all_sizes(name: str, form: int, real_model: Models, tmp_path: Path) -> None:
    path = real_model(name)
    result = _optimized(path, form)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    written = tmp_path / "result.onnx"
    result.save(written)
    original = _session(str(path), ort.GraphOptimizationLevel.ORT_DISABLE_ALL)  # type: ignore[arg-type]
    levels = (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    ours = [_session(str(written), level) for level in levels]  # type: ignore[arg-type]
    decodes = "decode" in name
    for batch, seq, past in ((1, 1, 0), (2, 7, 1), (5, 33, 16), (1, 128, 0), (2, 1, 127), (3, 5, 0)):
        stored = past if decodes else 0
        sizes = {"batch": batch, "seq": seq, "past": stored, "total": stored + seq}
        feeds = feeds_of(original, sizes)
        expected = original.run(None, feeds)
        for session in ours:
            for a, b in zip(map(np.asarray, expected), map(np.asarray, session.run(None, feeds)), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1.0, float(np.abs(a).max(initial=0))))


def test_programs_are_priced_at_the_sizes_that_are_assumed(real_model: Models) -> None:
    path = real_model("dynamic/llama.dynamo")
    report = eqsat.optimize(path, verify=False).report
    assert report.assumed == {"batch": 1, "seq": 128}
    assert "prices are for batch = 1, seq = 128" in str(report)
    large = eqsat.optimize(path, verify=False, assume={"seq": 512}).report
    assert large.assumed == {"batch": 1, "seq": 512}
    assert large.cost_before > 2 * report.cost_before
    fixed = eqsat.optimize(path, verify=False, dims={"batch": 1, "seq": 128}).report
    assert report.predicted_s_after is not None
    assert fixed.predicted_s_after is not None
    assert report.predicted_s_after == pytest.approx(fixed.predicted_s_after, rel=0.25)  # positions are computed, too
    assert not fixed.assumed


@pytest.mark.parametrize("sizes", [{"sequence": 4}, {"seq": 0}])
def test_sizes_of_unknown_symbols_are_refused(sizes: dict[str, int], real_model: Models) -> None:
    with pytest.raises(eqsat.OptionError, match="assume: "):
        eqsat.optimize(real_model("dynamic/bert.dynamo"), verify=False, assume=sizes)


def test_report_says_why_something_is_no_attention() -> None:
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (2, 3, 5, 4)) for name in "qkv")
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    chances = b.op("Softmax", b.op("Sin", scores))
    report = eqsat.optimize(b.finish({"y": b.op("MatMul", chances, v)}), verify=False).report
    assert list(report.missed) == ["attention"]
    assert "not fused  1 x no attention: 'the steps before its softmax are scales" in str(report)


def _beside_mask(batch: str, length: str) -> str:
    """Why it is no attention where scores are no product of queries and keys, and the mask has extents of its own."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", ("batch", "seq", 4)) for name in "qkv")
    mask = b.op("Unsqueeze", b.input("mask", "bool", (batch, length)), b.constant(np.array([1])))
    scores = b.op("Sin", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 1))))
    shown = b.op("Where", mask, scores, b.constant(np.float32(-1e9)))
    given = {"y": b.op("MatMul", b.op("Softmax", shown), v)}
    ((reason, _),) = eqsat.optimize(b.finish(given), verify=False).report.missed["attention"].items()
    return reason


def test_report_names_the_extents_that_keep_a_mask_apart() -> None:
    reason = _beside_mask("n", "m")
    assert "p float32[broadcast(batch, n), seq, broadcast(m, seq)]" in reason
    assert reason.endswith("for example --dim n=batch --dim m=seq")


def test_extents_without_names_get_one_each_in_the_example() -> None:
    assert _beside_mask("mask.0", "mask.1").endswith("for example --dim batch=n,mask.0=n --dim seq=n1,mask.1=n1")


def test_extents_of_which_nothing_is_known_ask_for_numbers() -> None:
    """To call the length of a text that of the sound beside it would not help."""
    b = GraphBuilder()
    q, text = b.input("q", "float32", ("batch", "samples", 4)), b.input("text", "float32", ("batch", "words", 4))
    zero, low = b.constant(np.float32(0)), b.constant(np.float32(-1e9))
    kept = b.op("Compress", q, b.input("kept", "bool", ("samples",)), axis=1)
    mask = b.op("Greater", b.op("ReduceSum", kept, b.constant(np.array([0, 2])), keepdims=0), zero)
    scores = b.op("Where", mask, b.op("Sin", b.op("MatMul", q, b.op("Transpose", q, perm=(0, 2, 1)))), low)
    given = {"y": b.op("MatMul", b.op("Softmax", scores), q), "z": b.op("Neg", text)}
    ((reason, _),) = eqsat.optimize(b.finish(given), verify=False).report.missed["attention"].items()
    assert reason.endswith(
        "; extents that the model computes (?) are not known: numbers for its inputs may help (--dim samples=N)"
    )


def _with_other_names(path: Path, names: dict[str, tuple[str, str]]) -> onnx.ModelProto:
    model = onnx.load(path)
    for given in model.graph.input:
        if given.name in names:
            for dim, name in zip(given.type.tensor_type.shape.dim, names[given.name], strict=True):
                dim.dim_param = name
    del model.graph.value_info[:]
    return model


@pytest.mark.parametrize("name", ["dynamic/gpt2.dynamo", "dynamic/llama.legacy"])
def test_a_mask_with_extents_of_its_own_keeps_no_attention_apart(name: str, real_model: Models) -> None:
    model = _with_other_names(real_model(name), {"attention_mask": ("b", "s")})
    assert eqsat.optimize(model, verify=False).report.recognized["attention"] == 2


@pytest.mark.parametrize(("name", "turned"), [("qwen2", 4), ("gpt_bigcode", 0)])
def test_decoders_of_optimum_have_attention(name: str, turned: int, real_model: Models) -> None:
    """Their masks are called one longer than what is stored, and cut; tables of places and angles are cut to the keys."""
    path = real_model(f"optimum/{name}")
    result = eqsat.optimize(path)
    assert result.report.recognized["attention"] == 2
    assert result.report.operators_after.get("RotaryEmbedding", 0) == turned
    assert result.report.verification["verdict"] == "within tolerance"
    files = (str(path), result.to_onnx().SerializeToString())
    sessions = [ort.InferenceSession(file, providers=["CPUExecutionProvider"]) for file in files]
    random = np.random.default_rng(0)
    for past, seq in ((6, 1), (6, 3), (0, 5), (0, 1)):
        extents = {"batch_size": 2, "sequence_length": seq, "past_sequence_length": past}
        feeds: dict[str, np.ndarray] = {}
        for given in sessions[0].get_inputs():
            shape = [extents.get(d, past + seq) if isinstance(d, str) else d for d in given.shape]
            feeds[given.name] = random.normal(size=shape).astype(np.float32)
            if given.type == "tensor(int64)":
                feeds[given.name] = random.integers(0, 200, shape)
        feeds["attention_mask"] = np.ones((2, past + seq), np.int64)
        feeds["attention_mask"][0, :1] = past == 0
        feeds["position_ids"] = np.tile(np.arange(past, past + seq), (2, 1))
        for theirs, ours in zip(*(s.run(None, feeds) for s in sessions), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_report_says_which_extents_keep_attention_apart_and_what_to_do() -> None:
    b = GraphBuilder()
    q, k = b.input("q", "float32", ("batch", 2, "seq", 16)), b.input("k", "float32", ("batch", 2, "past", 16))
    mask, v = b.input("mask", "float32", ("batch", 1, 1, "all")), b.input("v", "float32", ("batch", 2, "all", 16))
    scores = b.op("Add", b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2))), mask)
    graph = b.finish({"y": b.op("MatMul", b.op("Softmax", scores), v)})
    report = eqsat.optimize(graph, verify=False).report
    ((reason, count),) = report.missed["attention"].items()
    assert count == 1
    assert "v float32[batch, 2, all, 16]" in reason
    assert "k [batch, 2, past, 16], mask [batch, 1, 1, all]" in reason
    assert reason.endswith("for example --dim all=past")
    assert f"1 x no attention: {reason}" in report.details()
    named = eqsat.optimize(to_model(graph), verify=False, dims={"all": "past"}).report
    assert not named.missed
    assert named.recognized["attention"] == 1


def test_a_program_without_softmax_misses_no_attention(real_model: Models) -> None:
    assert not eqsat.optimize(real_model("dynamic/llama.dynamo"), verify=False).report.missed


def test_a_range_of_sizes_gets_the_program_that_costs_least_in_sum(real_model: Models) -> None:
    path = real_model("dynamic/bert.dynamo")
    report = eqsat.optimize(path, verify=False, assume={"seq": (1, 512)}).report
    assert [e["assumed"]["seq"] for e in report.sizes] == [1, 5, 23, 108, 512]
    assert report.assumed == {"batch": 1}
    assert report.lower_bound <= report.cost_after <= report.cost_before
    least: list[float] = []
    for entry in report.sizes:
        alone = eqsat.optimize(path, verify=False, opset=21, assume=entry["assumed"]).report
        assert entry["cost_before"] == pytest.approx(alone.cost_before)
        assert alone.predicted_s_after is not None
        assert 0.99 * alone.predicted_s_after <= entry["least"] <= alone.predicted_s_after * (1 + 1e-9)
        assert entry["cost"] >= entry["least"]
        least.append(entry["least"])
    assert report.cost_before == pytest.approx(np.mean([e["cost_before"] for e in report.sizes]))
    assert report.cost_after == pytest.approx(np.mean([e["cost"] for e in report.sizes]))
    assert report.cost_after <= 1.1 * np.mean(least)
    worst = max(report.sizes, key=lambda e: e["cost"] / e["least"])
    assert "prices are for batch = 1, seq = 1..512" in str(report)
    if worst["cost"] > 1.001 * worst["least"]:
        assert f"% less at seq = {worst['assumed']['seq']}" in str(report)
    assert report.details().count("seq = 108: ") == 1


def test_two_ranges_are_tried_with_each_other_and_three_refused(real_model: Models) -> None:
    path = real_model("dynamic/llama_decode.dynamo")
    sizes = eqsat.optimize(path, verify=False, assume={"seq": (1, 4), "past": (1, 100), "batch": 2}).report.sizes
    assert {(e["assumed"]["seq"], e["assumed"]["past"]) for e in sizes} == {
        (seq, past) for seq in (1, 2, 4) for past in (1, 10, 100)
    }
    with pytest.raises(eqsat.OptionError, match="3 ranges"):
        eqsat.optimize(path, verify=False, assume={"seq": (1, 4), "past": (1, 100), "batch": (1, 2)})


@pytest.mark.parametrize("extents", [(0, 5), (8, 8), (9, 2)])
def test_ranges_that_are_none_are_refused(extents: tuple[int, int], real_model: Models) -> None:
    with pytest.raises(eqsat.OptionError, match="a range goes from"):
        eqsat.optimize(real_model("dynamic/bert.dynamo"), verify=False, assume={"seq": extents})


def test_a_range_goes_with_no_budget_and_no_comparison(real_model: Models) -> None:
    path = real_model("dynamic/bert.dynamo")
    with pytest.raises(eqsat.OptionError, match="memory_budget_bytes"):
        eqsat.optimize(path, assume={"seq": (1, 8)}, memory_budget_bytes=1000)
    with pytest.raises(eqsat.OptionError, match="ranges are for optimize"):
        eqsat.compare(path, assume={"seq": (1, 8)})
