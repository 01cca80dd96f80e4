"""What is written for a consumer holds only what that consumer reads, and no newer opset than it loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import eqsat
import eqsat.rules  # registers the shipped rules
from eqsat.backends.consumer import consumer_names, find_consumer, releases_of
from eqsat.backends.tensorrt import violations
from eqsat.cost.target import target_names
from eqsat.ir.types import DType, tensor_type
from eqsat.options import Options
from eqsat.rewrite import find_rule

make, info = onnx.helper.make_node, onnx.helper.make_tensor_value_info
FLOAT = onnx.TensorProto.FLOAT


def _model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], opset: int, shape: tuple[int, ...]
) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", FLOAT, shape)], [info("y", FLOAT, None)], initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def _attention(opset: int = 14, then: int = 0) -> onnx.ModelProto:
    """Self-attention, written out, and ``then`` so many operators that nothing is made of."""
    nodes = [
        make("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        make("MatMul", ["x", "t"], ["scores"]),
        make("Mul", ["scores", "scale"], ["scaled"]),
        make("Softmax", ["scaled"], ["weights"], axis=-1),
        make("MatMul", ["weights", "x"], ["y" if not then else "y0"]),
        *(make(("Sin", "Cos")[i % 2], [f"y{i}"], [f"y{i + 1}" if i + 1 < then else "y"]) for i in range(then)),
    ]
    return _model(nodes, {"scale": np.array(0.125, np.float32)}, opset, (1, 4, 16, 64))


def _quantised() -> onnx.ModelProto:
    """A product between pairs of quantisation, signed as TensorRT asks for."""
    rng = np.random.default_rng(0)
    constants = {
        "s": np.array(0.05, np.float32),
        "z": np.array(0, np.int8),
        "w": rng.integers(-127, 128, (32, 16)).astype(np.int8),
        "sw": rng.uniform(0.01, 0.02, 16).astype(np.float32),
        "zw": np.zeros(16, np.int8),
        "sy": np.array(0.2, np.float32),
    }
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["a"]),
        make("DequantizeLinear", ["w", "sw", "zw"], ["b"], axis=1),
        make("MatMul", ["a", "b"], ["p"]),
        make("Relu", ["p"], ["r"]),
        make("QuantizeLinear", ["r", "sy", "z"], ["qr"]),
        make("DequantizeLinear", ["qr", "sy", "z"], ["y"]),
    ]
    return _model(nodes, constants, 13, (4, 32))


def _operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


def _opset(result: eqsat.Result) -> int:
    return next(i.version for i in result.to_onnx().opset_import if not i.domain)


@pytest.mark.parametrize("name", consumer_names())
def test_every_consumer_names_a_form_a_target_and_rules_that_exist(name: str) -> None:
    for release in releases_of(name):
        assert release.target in target_names()
        assert release.source
        eqsat.Options.of({"consumer": f"{name}={release.version}"})
        for rule in (*release.without_rules, *release.with_rules):
            assert find_rule(rule)
        known = {s.name for s in onnx.defs.get_all_schemas_with_history()}
        assert known.issuperset(
            (*(release.reads or ()), *(k for k in release.refuses if "::" not in k), *release.avoids)
        )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("opnvino", "did you mean 'openvino'"),
        ("onnxruntime=1.1", "oldest release known is 1.20; did you mean onnxruntime=1.20"),
        ("onnxruntime=99.0", "newest release known"),
        ("openvino=new", "'new' is no version"),
        ("openvino=", "'' is no version"),
    ],
)
def test_unknown_consumers_and_releases_are_refused_with_the_nearest_known(text: str, message: str) -> None:
    with pytest.raises(eqsat.OptionError, match=message):
        eqsat.optimize(_attention(), consumer=text)


def test_a_release_between_two_known_ones_is_taken_for_the_earlier() -> None:
    assert find_consumer("onnxruntime=1.21").version == "1.20"
    assert find_consumer("onnxruntime=1.22.1").version == "1.22"
    assert find_consumer("openvino").version == releases_of("openvino")[-1].version


def test_what_a_release_does_not_state_is_as_in_the_one_before() -> None:
    assert find_consumer("onnxruntime=1.23").lacks == find_consumer("onnxruntime=1.22").lacks
    assert not find_consumer("onnxruntime=1.31").lacks


def test_types_that_a_release_has_no_kernels_for_are_not_taken() -> None:
    byte = tensor_type(DType.UINT8, (2,))
    assert not find_consumer("onnxruntime=1.20").takes("Mul", (byte, byte))
    assert find_consumer("onnxruntime=1.22").takes("Mul", (byte, byte))
    assert not find_consumer("onnxruntime=1.22").takes("com.microsoft::GroupQueryAttention", ())
    assert find_consumer("onnxruntime=1.31").takes("com.microsoft::GroupQueryAttention", ())
    assert not find_consumer("onnxruntime=1.22").takes("com.microsoft::MoE", ())
    assert find_consumer("onnxruntime=1.23").takes("com.microsoft::MoE", ())
    assert not find_consumer("onnxruntime=1.23").takes("com.microsoft::GroupQueryAttention", ())
    assert not find_consumer("openvino").takes("Clip", (byte, None, None))
    assert find_consumer("openvino").takes("Transpose", (byte,))
    scale = tensor_type(DType.FLOAT, ())
    assert not find_consumer("tensorrt").takes("DequantizeLinear", (byte, scale, byte))


@pytest.mark.parametrize(
    ("consumer", "most", "fused"),
    [
        ("onnxruntime=1.20", 21, False),
        ("openvino=2025.0", 22, False),
        ("openvino", 23, False),
        ("onnxruntime=1.24", 24, True),
        ("tensorrt", 20, False),
    ],
)
def test_attention_is_one_operator_only_where_the_consumer_reads_and_gains_from_it(
    consumer: str, most: int, fused: bool
) -> None:
    result = eqsat.optimize(_attention(), consumer=consumer, cost="kernels")
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert _opset(result) <= most
    assert ("Attention" in _operators(result.to_onnx())) == fused


def test_programs_for_openvino_and_inductor_take_the_least_time_by_a_roofline_unless_asked_for_otherwise() -> None:
    assert Options(consumer="openvino").cost_model.name == "roofline-launch"
    assert Options(target="openvino-cpu").cost_model.name == "roofline-launch"
    assert Options(consumer="openvino", cost="kernels").cost_model.name == "kernels"
    assert Options(target="inductor-cpu").cost_model.name == "roofline-launch"
    assert Options(target="tvm-like").cost_model.name == "kernels"


def test_masks_that_a_release_applies_wrongly_are_not_handed_to_it() -> None:
    heads, mask = tensor_type(DType.FLOAT, (2, 8, 64)), tensor_type(DType.FLOAT, (2, 1, 8, 8))
    old, new = find_consumer("onnxruntime=1.20"), find_consumer("onnxruntime=1.22")
    with_mask = (heads, heads, heads, None, None, mask)
    assert old.takes("com.microsoft::MultiHeadAttention", with_mask[:3])
    assert not old.takes("com.microsoft::MultiHeadAttention", with_mask)
    assert new.takes("com.microsoft::MultiHeadAttention", with_mask)


def test_without_a_consumer_the_file_loads_in_every_supported_runtime_and_the_report_says_what_that_withholds() -> None:
    result = eqsat.optimize(_attention(then=200), form="flat")
    assert _opset(result) <= releases_of("onnxruntime")[0].opset
    assert result.report.withheld == {"Attention": 23}
    assert "Attention (23)" in str(result.report)
    newer = eqsat.optimize(_attention(then=200), form="flat", opset=23)
    assert _opset(newer) == 23
    assert not newer.report.withheld


def test_where_that_costs_much_the_opset_is_raised_and_the_report_says_so() -> None:
    settled = releases_of("onnxruntime")[0].opset
    result = eqsat.optimize(_attention(), form="flat")
    older = eqsat.optimize(_attention(), form="flat", opset=settled)
    assert _opset(result) == 23
    assert not result.report.withheld
    assert result.report.passed_opset == {"opset": settled, "cost": older.report.cost_after}
    assert older.report.cost_after > 1.05 * result.report.cost_after
    assert f"--opset {settled}" in str(result.report)


def test_attention_of_encoders_needs_no_newer_release_than_its_masks_do(real_model: Callable[[str], Path]) -> None:
    report = eqsat.optimize(real_model("bert_base_b1s128"), verify=False).report
    assert report.needs["onnxruntime"] == "1.22"
    assert report.needs["operators"] == ["com.microsoft::MultiHeadAttention"]


def test_a_model_that_is_newer_than_the_supported_runtimes_stays_as_new_as_it_is() -> None:
    assert _opset(eqsat.optimize(_attention(23), form="flat")) == 23


def test_the_opset_may_be_lower_than_that_of_the_model() -> None:
    result = eqsat.optimize(_attention(18), form="flat", opset=13)
    assert _opset(result) == 13
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


@pytest.mark.parametrize(("form", "kernel"), [("flat", ""), ("onnxruntime", "com.microsoft")])
def test_operators_that_the_opset_does_not_have_yet_are_spelled_out(form: str, kernel: str) -> None:
    model = _model([make("Gelu", ["x"], ["g"]), make("HardSwish", ["g"], ["y"])], {}, 20, (2, 3))
    result = eqsat.optimize(model, opset=13, form=form)
    assert _opset(result) == 13
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    written = result.to_onnx().graph.node
    assert {n.domain for n in written if n.op_type == "Gelu"} == ({kernel} if kernel else set())
    assert "HardSwish" not in {n.op_type for n in written}


def test_noise_in_an_original_of_a_newer_opset_measures_its_sensitivity() -> None:
    """An operator that the file may not hold takes part in it, behind a product whose sums are added in another order."""
    draw = np.random.default_rng(8)
    weights = {f"w{i}": draw.standard_normal((64, 64)).astype(np.float32) for i in range(3)}
    nodes = [
        make("Gelu", ["x"], ["g"]),
        *(make("MatMul", ["g" if i == 0 else f"m{i - 1}", f"w{i}"], [f"m{i}"]) for i in range(3)),
        make("Softmax", ["m2"], ["y"]),
    ]
    result = eqsat.optimize(_model(nodes, weights, 20, (8, 64)), opset=17)
    assert _opset(result) == 17
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_operators_that_a_target_of_fused_kernels_does_not_take_are_named() -> None:
    nodes = [make("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), make("DequantizeLinear", ["q", "s", "z"], ["y"])]
    with pytest.raises(eqsat.EqsatError, match=r"of the original those are DynamicQuantizeLinear"):
        eqsat.optimize(_model(nodes, {}, 17, (2, 3)), consumer="tensorrt")


def test_what_no_older_opset_has_is_one_clear_error() -> None:
    model = _model([make("Gelu", ["x"], ["y"])], {}, 20, (2, 3))
    with pytest.raises(eqsat.OutputError, match=r"Gelu.*only from opset 20 on.*17 at most"):
        eqsat.optimize(model, opset=17, form="flat", only_rules=())


def test_operators_that_the_consumer_does_not_read_are_one_clear_error() -> None:
    model = _model([make("Det", ["x"], ["y"])], {}, 14, (3, 3))
    with pytest.raises(eqsat.OutputError, match=r"Det.*openvino 2026.4 does not read it"):
        eqsat.optimize(model, consumer="openvino")


def test_openvino_reads_sequences_between_tensors_since_a_release() -> None:
    nodes = [
        make("Relu", ["x"], ["t"]),
        make("SplitToSequence", ["t"], ["held"], axis=0),
        make("ConcatFromSequence", ["held"], ["y"], axis=0),
    ]
    model = _model(nodes, {}, 17, (2, 3))
    eqsat.optimize(model, consumer="openvino=2026.4")
    with pytest.raises(eqsat.OutputError, match=r"Sequence.*openvino 2025.0 does not read it"):
        eqsat.optimize(model, consumer="openvino=2025.0")


def test_norms_of_groups_that_a_release_of_openvino_does_not_load_are_spelled_out() -> None:
    """2025.4 takes the scale of opset 21, one for each channel, for that of opset 18, one for each group."""
    constants = {"s": np.arange(1, 5, dtype=np.float32), "b": np.ones(4, np.float32)}
    model = _model([make("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)], constants, 21, (2, 4, 5, 3))
    assert "GroupNormalization" in eqsat.optimize(model, consumer="openvino=2026.4").report.operators_after
    assert "GroupNormalization" not in eqsat.optimize(model, consumer="openvino=2025.0").report.operators_after


@pytest.mark.parametrize("consumer", ["onnxruntime=1.20", "onnxruntime=1.22", "onnxruntime-avx2=1.20"])
def test_types_that_the_consumer_has_no_kernel_for_are_one_clear_error(consumer: str) -> None:
    """Signed filters that are no constant, which nothing makes unsigned; releases from 1.31 on have a kernel."""
    b = eqsat.GraphBuilder()
    x, filters = b.input("x", "uint8", (1, 2, 5, 5)), b.input("w", "int8", (3, 2, 2, 2))
    graph = b.finish({"y": b.op("ConvInteger", x, filters)})
    with pytest.raises(eqsat.OutputError, match=r"1\.2[02] has no kernel for it on \(uint8.*, int8"):
        eqsat.optimize(graph, consumer=consumer)
    assert _operators(eqsat.optimize(graph, consumer="onnxruntime=1.31").to_onnx()) == {"ConvInteger"}


@pytest.mark.parametrize("opset", [0, 99])
def test_opsets_out_of_range_are_refused(opset: int) -> None:
    with pytest.raises(eqsat.OptionError, match="opset is"):
        eqsat.optimize(_attention(), opset=opset)


def test_the_file_is_of_no_newer_ir_version_than_the_consumer_loads(tmp_path: Path) -> None:
    model = _attention()
    model.ir_version = 13
    eqsat.optimize(model, consumer="onnxruntime=1.20").save(tmp_path / "old.onnx")
    assert onnx.load(tmp_path / "old.onnx").ir_version == 10


@pytest.mark.parametrize("consumer", ["openvino", "tensorrt"])
def test_quantisation_is_written_as_pairs_of_signed_integers(consumer: str) -> None:
    result = eqsat.optimize(_quantised(), consumer=consumer)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    model = result.to_onnx()
    assert _operators(model) <= {"QuantizeLinear", "DequantizeLinear", "MatMul", "Gemm", "Relu", "Clip"}
    assert {t.data_type for t in model.graph.initializer} <= {FLOAT, onnx.TensorProto.INT8}
    assert {"QLinearMatMul"} & _operators(eqsat.optimize(_quantised(), form="flat").to_onnx())


def test_without_vnni_both_operands_of_products_are_unsigned() -> None:
    result = eqsat.optimize(_quantised(), consumer="onnxruntime-avx2", cost="kernels")
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    model = result.to_onnx()
    assert "QLinearMatMul" in _operators(model)
    assert onnx.TensorProto.INT8 not in {t.data_type for t in model.graph.initializer}
    assert "vnni" not in result.report.needs
    with_signed_weights = eqsat.optimize(_quantised(), form="flat").report
    assert with_signed_weights.needs["vnni"] == ["QLinearMatMul"]
    assert "VNNI" in str(with_signed_weights)


def _pair(zero: np.generic) -> onnx.ModelProto:
    constants = {"s": np.array(0.05, np.float32), "z": np.array(zero)}
    return _model(
        [make("QuantizeLinear", ["x", "s", "z"], ["q"], "q"), make("DequantizeLinear", ["q", "s", "z"], ["y"])],
        constants,
        13,
        (4, 32),
    )


@pytest.mark.parametrize(
    ("zero", "message"),
    [
        (np.int8(3), r"QuantizeLinear 'q': zero point 3; .*`y_zero_point` must be 0.*and 1 more"),
        (np.uint8(0), r"QuantizeLinear 'q': integers of type uint8; .*symmetric quantization scheme"),
    ],
)
def test_quantisation_that_tensorrt_does_not_take_is_refused_by_the_rule_it_breaks(
    zero: np.generic, message: str
) -> None:
    with pytest.raises(eqsat.OutputError, match=message):
        eqsat.optimize(_pair(zero), consumer="tensorrt")


def test_products_of_integers_break_the_rule_on_quantised_types() -> None:
    b = eqsat.GraphBuilder()
    q = b.input("q", "int8", (2, 4))
    weights = b.constant(np.ones((4, 3), np.int8))
    found = list(violations(b.finish({"y": b.op("MatMulInteger", q, weights)})))
    assert [v.found for v in found] == ["input 'q' is of type int8", f"input {weights!r} is of type int8"]
    assert "Quantized Types" in found[0].rule
    assert "IDequantizeLayer" in found[1].rule
