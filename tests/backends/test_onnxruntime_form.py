"""Fused operators of ONNX Runtime: our definitions against its kernels, and files that name them at every level."""

from __future__ import annotations

import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime_instances import INSTANCES
from onnxruntime_programs import PROGRAMS, random_inputs
from typer.testing import CliRunner

import eqsat
from eqsat.backends import custom_ops
from eqsat.backends.onnx_file import save_onnx, to_model
from eqsat.backends.onnxruntime import LEVELS, Session
from eqsat.backends.onnxruntime_kernels import DOMAIN, has_kernel, may_run, takes_narrow
from eqsat.cli import app
from eqsat.errors import ShapeError
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.operator import defined_operators
from eqsat.ir.types import DType, tensor_type
from eqsat.samples import Fixed, Sampler
from eqsat.speed.contest import Contestant
from eqsat.speed.worker import run_task
from eqsat.verification.unsigned import in_unsigned

DRAWS = 6
OUTPUTS = {
    "SkipLayerNormalization": ("y", "", "", "sum"),
    "SkipSimplifiedLayerNormalization": ("y", "", "", "sum"),
    "EmbedLayerNormalization": ("y", "counts", "sum"),
    "MultiHeadAttention": ("y", "keys", "values"),
    "GroupQueryAttention": ("y", "keys", "values"),
}
"""Outputs of an operator that has several, by name; one that is not looked at has none."""


def _drawn(op: str, seed: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of one fused operator and its inputs; small operands are constants half of the time."""
    d = Sampler(seed)
    inputs, attributes = INSTANCES[op](d)
    b = GraphBuilder()
    feeds: dict[str, np.ndarray] = {}
    names: list[str | None] = []
    for i, array in enumerate(inputs):
        if array is None:
            names.append(None)
            continue
        array = np.asarray(array.array if isinstance(array, Fixed) else array)
        if isinstance(inputs[i], Fixed) or (i and array.ndim <= 1 and d.chance()):
            names.append(b.constant(array))
        else:
            feeds[f"i{i}"] = array
            names.append(b.input(f"i{i}", DType.of(array.dtype), array.shape))
    while names[-1] is None:
        names.pop()
    outputs = OUTPUTS.get(op, ("y",))
    stored = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in attributes.items()}
    made = b.op(op, *names, outputs=len(outputs), domain=DOMAIN, **stored)
    wanted = dict(zip(outputs, made if len(outputs) > 1 else [made], strict=True))
    return b.finish({name: value for name, value in wanted.items() if name}), feeds


def _assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if expected.dtype.kind in "iu":
        apart = np.abs(found.astype(int) - expected.astype(int))
        assert apart.max(initial=0) <= 1
        assert (apart > 0).mean() <= 0.05
    else:
        size = np.abs(expected).max(initial=1.0)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-6 * size)


def test_each_fused_operator_is_tried() -> None:
    assert {f"{DOMAIN}::{op}" for op in INSTANCES} == {k for k in defined_operators() if k.startswith(DOMAIN)}


@pytest.mark.parametrize("op", INSTANCES)
def test_kernel_computes_what_the_definition_says_at_every_level(op: str) -> None:
    for seed in range(DRAWS):
        graph, feeds = _drawn(op, seed)
        node = graph.nodes[0]
        assert has_kernel(op, [graph.type_of(v) if v else None for v in node.inputs])
        expected = run(graph, feeds)
        for level in LEVELS:
            found = Session(to_model(in_unsigned(graph)), level).run(feeds)
            for name in graph.outputs:
                _assert_close(found[name], expected[name])


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_sequence_without_keys_that_count_is_no_nan_in_halves(dtype: str, unidirectional: int) -> None:
    """ONNX Runtime's optimizer keeps the least number of float32 for the mask when it converts to halves."""
    b = GraphBuilder()
    rows, weights = b.input("x", dtype, (2, 3, 8)), b.input("w", dtype, (8, 24))
    mask = b.input("mask", "int32", (2, 3))
    least = float(np.finfo(np.float32).min)
    operands, how = (rows, weights, None, mask), {"num_heads": 2, "unidirectional": unidirectional}
    graph = b.finish({"y": b.op("Attention", *operands, domain=DOMAIN, mask_filter_value=least, **how)})
    rng, shapes = np.random.default_rng(0), {"x": (2, 3, 8), "w": (8, 24)}
    feeds = {name: rng.normal(size=shape).astype(DType.of(dtype).numpy) for name, shape in shapes.items()}
    found = run(graph, {**feeds, "mask": np.array([[1, 1, 1], [0, 0, 0]], np.int32)})["y"]
    assert np.isfinite(found.astype(np.float32)).all()
    values = (feeds["x"].astype(np.float32) @ feeds["w"].astype(np.float32))[1, :, 16:]
    last = values.mean(axis=0)  # of the last row all keys are seen, and all weigh the same
    np.testing.assert_allclose(found[1, -1].astype(np.float32), last, atol=0.05)


def test_libraries_of_operators_reach_every_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken: list[str] = []
    monkeypatch.setattr(onnxruntime.SessionOptions, "register_custom_ops_library", lambda _, path: taken.append(path))
    monkeypatch.setattr(custom_ops, "_LIBRARIES", {})
    eqsat.load_custom_ops(tmp_path / "mine.so")
    b = GraphBuilder()
    x = b.input("x", "float32", (2,))
    path, data = tmp_path / "relu.onnx", tmp_path / "data"
    onnx.save(to_model(b.finish([b.op("Relu", x)])), path)
    data.write_bytes(pickle.dumps(({x: np.zeros(2, np.float32)}, {})))
    task = {
        "contestants": [asdict(Contestant("model", str(path)))],
        "data": str(data),
        "process": 0,
        "runs": 1,
        "threads": 1,
    }
    for use in (
        lambda: Session(path, "disable"),
        lambda: Session(path, "all"),
        lambda: run_task({**task, "custom_ops": custom_ops.custom_ops()}),
    ):
        taken.clear()
        use()
        assert set(taken) == {str(tmp_path / "mine.so")}


def test_what_is_no_library_of_operators_is_told(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    result = CliRunner().invoke(app, ["verify", "a.onnx", "b.onnx", "--custom-ops", str(tmp_path / "text.so")])
    assert result.exit_code == 2
    assert "text.so: ONNX Runtime takes no operators from it" in result.output
    assert custom_ops.custom_ops() == ()


def test_kernels_are_asked_for_by_element_type() -> None:
    u8, s8, f32, f16 = (tensor_type(d, (2, 2)) for d in ("uint8", "int8", "float32", "float16"))
    assert has_kernel("MatMulIntegerToFloat", [u8, s8, f32, f32])
    assert not has_kernel("MatMulIntegerToFloat", [s8, u8, f32, f32])
    assert not has_kernel("FusedMatMul", [f16, f16])
    assert not has_kernel("QLinearAdd", [u8, f32, None, s8, f32, None, f32])
    assert not has_kernel("GroupNorm", [f32])
    assert not has_kernel("NoSuchOperator", [f32])


def test_kernels_of_a_version_are_asked_by_the_parameters_of_that_version() -> None:
    u8, u16, f32 = (tensor_type(d, (1, 2, 2)) for d in ("uint8", "uint16", "float32"))
    assert may_run("Resize", [u8, None, f32])
    assert not may_run("Resize", [u16, None, f32]), "the type of its images was T before it was T1"
    assert may_run("Resize", [u16, None, f32], computed_ahead=True)


def test_only_numbers_of_8_bits_and_less_are_asked_for_in_the_standard() -> None:
    u8, s8, f32, i64, u4, f8 = (
        tensor_type(d, (2, 2)) for d in ("uint8", "int8", "float32", "int64", "uint4", "float8_e4m3fn")
    )
    assert takes_narrow("Slice", [s8, i64, i64, None])
    assert takes_narrow("MatMulInteger", [u8, s8, u8, s8])
    assert not takes_narrow("Softmax", [s8])
    assert not takes_narrow("MatMul", [u8, u8])
    assert takes_narrow("DequantizeLinear", [f8, f32, f8])
    assert not takes_narrow("Split", [f8, i64])
    assert not takes_narrow("Split", [u4, i64])
    assert takes_narrow("NoSuchOperator", [f32])


@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_images_quantised_to_16_bits_are_not_resized_so(dtype: str) -> None:
    b = GraphBuilder()
    x, scale = b.input("x", dtype, (1, 3, 4, 4)), b.constant(np.float32(0.5))
    twice = b.constant(np.array([1, 1, 2, 2], np.float32))
    how: Any = {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    y = b.op("Relu", b.op("Resize", b.op("DequantizeLinear", x, scale), None, twice, **how))
    feeds = {"x": np.arange(48).reshape(1, 3, 4, 4).astype(DType.of(dtype).numpy)}
    graph = b.finish({"y": y})
    for level in LEVELS:
        np.testing.assert_array_equal(Session(to_model(graph), level).run(feeds)["y"], run(graph, feeds)["y"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_written_file_means_the_same_at_every_level(name: str, tmp_path: Path) -> None:
    graph = PROGRAMS[name][0]
    result = eqsat.optimize(graph, form="onnxruntime", cost="kernels", verify=False)
    fused, flat = tmp_path / "fused.onnx", tmp_path / "flat.onnx"
    result.save(fused)
    result.save(flat, form="flat")
    assert any(n.domain == DOMAIN for n in load_onnx(fused).nodes)
    assert not any(n.domain for n in load_onnx(flat).nodes)
    feeds = random_inputs(graph)
    expected = run(graph, feeds)["y"]
    for path in (fused, flat):
        for level in LEVELS:
            _assert_close(Session(to_model(in_unsigned(load_onnx(path))), level).run(feeds)["y"], expected)


def test_the_command_line_writes_the_form_and_reports_the_operators(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    save_onnx(PROGRAMS["convolutions"][0], source)
    done = CliRunner().invoke(
        app, ["optimize", str(source), "-o", str(target), "--form", "onnxruntime", "--cost", "kernels", "-v"]
    )
    assert done.exit_code == 0, done.output
    assert "com.microsoft::FusedGemm" in done.output
    assert "com.microsoft::FusedGemm" in {n.key for n in load_onnx(target).nodes}


def test_a_use_that_the_definition_does_not_cover_stays_opaque(tmp_path: Path) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 8))
    graph = b.finish({"y": b.op("MultiHeadAttention", x, x, x, domain=DOMAIN, num_heads=2)})
    model = to_model(graph)
    assert not load_onnx(model).nodes[0].opaque
    model.graph.node[0].attribute.add(name="unidirectional", i=1, type=2)
    node = load_onnx(model).nodes[0]
    assert "not covered" in node.opaque


def test_an_output_that_the_definition_does_not_cover_keeps_a_node_opaque() -> None:
    """The scores that MultiHeadAttention may hand out."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 8))
    model = to_model(b.finish({"y": b.op("MultiHeadAttention", x, x, x, domain=DOMAIN, num_heads=2)}))
    model.graph.node[0].output.extend(["keys", "values", "scores"])
    model.graph.output.add(name="scores")
    assert "output 3 is not covered" in load_onnx(model).nodes[0].opaque
    with pytest.raises(ShapeError, match="output 3 is not covered"):
        b.op("MultiHeadAttention", x, x, x, outputs=4, domain=DOMAIN, num_heads=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_a_file_in_half_precision_is_read(dtype: str) -> None:
    b = GraphBuilder()
    x = b.input("x", dtype, (2, 3, 8))
    graph = b.finish({"y": b.op("MultiHeadAttention", x, x, x, domain=DOMAIN, num_heads=2)})
    (node,) = load_onnx(to_model(graph)).nodes
    assert not node.opaque
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, 8)).astype(DType[dtype.upper()].numpy)}
    found = run(graph, feeds)["y"]
    heads = feeds["x"].astype(np.float32).reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    chances = np.exp(heads @ heads.swapaxes(2, 3) / 2)
    expected = (chances / chances.sum(axis=-1, keepdims=True) @ heads).transpose(0, 2, 1, 3).reshape(2, 3, 8)
    assert found.dtype == feeds["x"].dtype
    np.testing.assert_allclose(found.astype(np.float32), expected, atol=1e-2 if dtype == "float16" else 8e-2)


@pytest.mark.parametrize(("smooth", "covered"), [(-1, True), (0, True), (1, False)])
def test_smooth_softmax_is_off_at_zero_too(smooth: int, covered: bool) -> None:
    b = GraphBuilder()
    operands = [b.input(name, "float32", (1, 4, 16)) for name in "qkv"]
    lengths = b.constant(np.full(1, 3, np.int32)), b.constant(np.int32(4))
    how = {"num_heads": 2, "kv_num_heads": 2}
    y, *_ = b.op("GroupQueryAttention", *operands, None, None, *lengths, domain=DOMAIN, outputs=3, **how)
    model = to_model(b.finish({"y": y}))
    model.graph.node[0].attribute.add(name="smooth_softmax", i=smooth, type=2)
    assert bool(load_onnx(model).nodes[0].opaque) != covered


def test_rows_of_unknown_heads_stay_as_they_are() -> None:
    """Neither an attribute nor tables of known width tell how many heads there are."""
    b = GraphBuilder()
    x, places = b.input("x", "float32", (2, 3, 8)), b.input("places", "int64", (2, 3))
    tables = (b.input(name, "float32", (5, "angles")) for name in ("cosines", "sines"))
    graph = b.finish({"y": b.op("RotaryEmbedding", x, places, *tables, domain=DOMAIN, num_heads=2)})
    model = to_model(graph)
    del model.graph.node[0].attribute[:]
    loaded = load_onnx(model)
    assert loaded.nodes[0].opaque
    assert loaded.type_of("y") == graph.type_of("x")


def test_an_operator_that_files_have_in_the_default_domain_is_written_and_read_there(tmp_path: Path) -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3, 8))
    gain = b.constant(np.arange(8, dtype=np.float32))
    graph = b.finish({"y": b.op("SimplifiedLayerNormalization", x, gain, domain=DOMAIN)})
    save_onnx(graph, tmp_path / "norm.onnx", form="onnxruntime")
    (node,) = onnx.load(tmp_path / "norm.onnx").graph.node
    assert (node.op_type, node.domain) == ("SimplifiedLayerNormalization", "")
    assert load_onnx(tmp_path / "norm.onnx").nodes[0].key == f"{DOMAIN}::SimplifiedLayerNormalization"
    assert [n.op_type for n in to_model(graph, form="flat").graph.node] == ["RMSNormalization"]


def test_convolutions_of_half_precision_share_no_bias() -> None:
    """ONNX Runtime casts a shared one on every call, and keeps the convolution out of its blocked layout."""
    b = GraphBuilder()
    x, bias = b.input("x", "float16", (1, 16, 8, 8)), b.constant(np.ones(16, np.float16))
    h = b.op("Conv", x, b.constant(np.ones((16, 16, 1, 1), np.float16)), bias)
    graph = b.finish({"y": b.op("Conv", h, b.constant(np.full((16, 16, 1, 1), 2, np.float16)), bias)})
    first, second = to_model(graph).graph.node
    assert first.input[2] != second.input[2]


@pytest.mark.parametrize("dtype", ["uint4", "int4"])
def test_numbers_of_less_than_a_byte_go_in_and_out(dtype: str) -> None:
    b = GraphBuilder()
    x, zero, one = (
        b.input("x", dtype, (3, 5)),
        b.constant(np.zeros((), np.int8).astype(dtype)),
        b.constant(np.float32(1)),
    )
    floats = b.op("DequantizeLinear", x, one, zero)
    turned = b.op("QuantizeLinear", b.op("Neg", b.op("Neg", floats)), one, zero)
    given = np.arange(15).reshape(3, 5).astype(dtype)
    found = Session(to_model(b.finish({"floats": floats, "again": turned}))).run({"x": given})
    np.testing.assert_array_equal(found["floats"], given.astype(np.float32))
    np.testing.assert_array_equal(found["again"], given)
