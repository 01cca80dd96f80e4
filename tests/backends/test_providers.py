"""What is written for an execution provider of ONNX Runtime is made of its kernels; the rest is left to the CPU, and said."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import onnx
import pytest

import eqsat
from benchmarks.provider_kernels import asked, kernels_of, row
from eqsat.backends.consumer import consumer_names, find_consumer
from eqsat.backends.onnxruntime_kernels import CPU, TABLES, left_to_cpu, provider_names, runs_on
from eqsat.ir.types import tensor_type
from tests.onnxruntime_programs import shared_heads

make, make_tensor, info = onnx.helper.make_node, onnx.helper.make_tensor, onnx.helper.make_tensor_value_info
FLOAT, HALF, UINT4 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.UINT4
PROVIDERS = [name for name in consumer_names() if find_consumer(name).provider != CPU]


def _model(
    nodes: list[onnx.NodeProto], shape: tuple[int, ...], opset: int, type: int = FLOAT, **constants: np.ndarray
) -> onnx.ModelProto:
    initializers = [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = onnx.helper.make_graph(nodes, "g", [info("x", type, shape)], [info("y", type, None)], initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)


def _optimized(model: onnx.ModelProto, consumer: str) -> tuple[eqsat.Result, onnx.ModelProto]:
    result = eqsat.optimize(model, consumer=consumer)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    return result, result.to_onnx()


def _quantised() -> onnx.ModelProto:
    """A product of bytes by weights of bytes, as quantisers write it."""
    rng = np.random.default_rng(0)
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["a"]),
        make("DequantizeLinear", ["w", "s", "zw"], ["b"]),
        make("MatMul", ["a", "b"], ["p"]),
        make("QuantizeLinear", ["p", "s", "z"], ["r"]),
        make("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    weights = rng.integers(-127, 128, (32, 16)).astype(np.int8)
    scale, zero = np.array(0.05, np.float32), np.array(128, np.uint8)
    return _model(nodes, (8, 32), 17, s=scale, z=zero, w=weights, zw=np.array(0, np.int8))


def test_every_table_belongs_to_a_consumer() -> None:
    assert {find_consumer(name).provider for name in PROVIDERS} == set(provider_names())


@pytest.mark.parametrize(
    ("op", "types", "version", "expected"),
    [
        ("MatMul", ("float16", "float16"), 0, True),
        ("MatMul", ("uint8", "uint8"), 0, False),
        ("QuantizeLinear", ("float32", "float32", "uint8"), 13, True),  # type parameters are those of each version
        ("QuantizeLinear", ("float32", "float32", "uint8"), 23, True),
        ("QuantizeLinear", ("float32", "float32", "uint16"), 0, False),
        ("MaxPool", ("float32",), 12, True),
        ("MaxPool", ("float32",), 22, False),
        ("QLinearMatMul", ("uint8", "float32"), 0, False),
        ("com.microsoft::MultiHeadAttention", ("float16", "float16", "float16"), 0, True),
        ("com.microsoft::SimplifiedLayerNormalization", ("float16", "float16"), 0, True),  # files: default domain
        ("com.microsoft::NoSuchOperator", ("float32",), 0, False),
    ],
)
def test_kernels_are_those_of_versions_and_types(op: str, types: tuple[str, ...], version: int, expected: bool) -> None:
    assert runs_on("cuda", op, [tensor_type(t, (1, 1)) for t in types], version) is expected


@pytest.mark.parametrize(
    ("op", "types", "expected"),
    [
        ("MatMul", ("float32", "float32"), True),
        ("Max", ("float32", "float32"), True),
        ("Sum", ("float32", "float32"), False),
        ("Add", ("int64", "int64"), False),
        ("Erf", ("float64",), False),
        ("Relu", ("bfloat16",), False),
        ("Attention", ("float32", "float32", "float32"), False),
        ("QuantizeLinear", ("float32", "float32", "uint8"), False),
        ("DequantizeLinear", ("uint8", "float32", "uint8"), True),
        ("com.microsoft::FusedMatMul", ("float32", "float32"), False),
        ("com.microsoft::MultiHeadAttention", ("float32", "float32", "float32"), True),
        ("com.microsoft::MatMulNBits", ("float32", "uint8", "float32"), True),
    ],
)
def test_kernels_of_webgpu(op: str, types: tuple[str, ...], expected: bool) -> None:
    assert runs_on("webgpu", op, [tensor_type(t, (1, 1)) for t in types]) is expected


def test_the_kernels_of_webgpu_are_those_that_the_provider_registers() -> None:
    """Where it is installed, of that release, and finds a device."""
    pytest.importorskip("onnxruntime_ep_webgpu")
    table = json.loads((TABLES / "webgpu.json").read_text("utf-8"))
    try:
        provider, release, kernels = asked("onnxruntime_ep_webgpu")
    except RuntimeError as error:
        pytest.skip(f"no device: {error}")
    if release != table["release"]:
        pytest.skip(f"{release} is installed, not {table['release']}")
    found = {key: [row(k) for k in some] for key, some in kernels_of(provider, kernels).items()}
    assert (provider, found) == (table["provider"], table["kernels"])


def test_attention_that_webgpu_has_no_kernel_for_is_not_made() -> None:
    """GroupQueryAttention has one there, which refuses what is not causal, and so a mask in its place."""
    grouped, heads = "com.microsoft::GroupQueryAttention", "com.microsoft::MultiHeadAttention"
    assert grouped in eqsat.optimize(shared_heads(), consumer="onnxruntime", opset=21).report.operators_after
    report = eqsat.optimize(shared_heads(), consumer="onnxruntime-webgpu").report
    assert not {grouped, "Attention"} & set(report.operators_after)
    assert heads in report.operators_after
    assert not report.needs.get("left_to_cpu")


@pytest.mark.parametrize(("width", "taken"), [(32, True), (48, False)])
def test_webgpu_is_given_attention_on_values_as_wide_as_keys(width: int, taken: bool) -> None:
    """It stores values in the shape of keys."""
    types = [tensor_type("float32", (1, 6, n)) for n in (32, 32, width)]
    assert find_consumer("onnxruntime-webgpu").takes("com.microsoft::MultiHeadAttention", types) is taken
    assert find_consumer("onnxruntime").takes("com.microsoft::MultiHeadAttention", types)


@pytest.mark.parametrize("consumer", PROVIDERS)
def test_what_a_provider_has_no_kernel_for_is_not_made(consumer: str) -> None:
    model = _quantised()
    fused = eqsat.optimize(model)
    assert any(n.op_type in left_to_cpu("cuda") for n in fused.to_onnx().graph.node)  # on the CPU it is one of integers
    assert f"leave {fused.report.needs['cpu_kernels'][0]} " in str(fused.report)
    result, written = _optimized(model, consumer)
    provider, before = find_consumer(consumer).provider, {n.op_type for n in model.graph.node}
    assert {n.op_type for n in written.graph.node} - before <= {"MatMulInteger", "Cast", "Mul", "Reshape"}
    assert not {n.op_type for n in written.graph.node} & left_to_cpu(provider) - before
    assert sum(result.report.needs.get("left_to_cpu", {}).values()) <= sum(
        result.report.needs.get("left_to_cpu_before", {"": 0}).values()
    )


def test_a_file_is_as_old_as_the_kernels_of_its_provider() -> None:
    nodes = [make("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]), make("Relu", ["p"], ["y"])]
    model = _model(nodes, (1, 3, 8, 8), 22)
    _, written = _optimized(model, "onnxruntime-cuda")
    assert written.opset_import[0].version == 21
    assert eqsat.optimize(model, consumer="onnxruntime").to_onnx().opset_import[0].version == 22


def test_a_file_that_cannot_be_as_old_as_those_kernels_is_one_that_the_cpu_runs() -> None:
    """HardSwish has kernels up to opset 21 on WebGPU, RMSNormalization from 23 on, QuantizeLinear before 28 on the CPU."""
    nodes = [
        make("HardSwish", ["x"], ["h"]),
        make("RMSNormalization", ["h", "g"], ["n"]),
        make("QuantizeLinear", ["n", "s", "z"], ["q"]),
        make("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    scale, zero = np.array(0.1, np.float32), np.array(128, np.uint8)
    model = _model(nodes, (4, 8), 28, s=scale, z=zero, g=np.ones(8, np.float32))
    result = eqsat.optimize(model, consumer="onnxruntime-webgpu", only_rules=())
    assert 23 <= result.to_onnx().opset_import[0].version < 28
    assert {"HardSwish", "QuantizeLinear"} <= set(result.report.needs["left_to_cpu"])


def test_an_operator_newer_than_those_kernels_is_not_made() -> None:
    """Attention would lift the file to opset 23, where the pool has no kernel."""
    nodes = [
        make("MaxPool", ["x"], ["p"], kernel_shape=[1, 1]),
        make("Transpose", ["p"], ["t"], perm=[0, 1, 3, 2]),
        make("MatMul", ["p", "t"], ["scores"]),
        make("Softmax", ["scores"], ["weights"], axis=-1),
        make("MatMul", ["weights", "p"], ["y"]),
    ]
    _, written = _optimized(_model(nodes, (1, 4, 16, 64), 18), "onnxruntime-cuda")
    assert written.opset_import[0].version <= 21
    assert "Attention" not in {n.op_type for n in written.graph.node}


def test_what_is_left_to_the_cpu_is_said() -> None:
    model = _model([make("Tan", ["x"], ["t"]), make("Relu", ["t"], ["y"])], (4, 8), 17)
    result, written = _optimized(model, "onnxruntime-cuda")
    assert Counter(n.op_type for n in written.graph.node) == {"Tan": 1, "Relu": 1}
    assert result.report.needs["left_to_cpu"] == {"Tan": 1}
    assert "for 1 x Tan (the model: for 1 operators)" in str(result.report)
    assert result.report.cost_after > 3e-5  # what it reads and writes is copied


def test_half_precision_has_operators_that_the_cpu_converts_it_for() -> None:
    scale, bias = (np.ones(8, np.float16), np.zeros(8, np.float16))
    nodes = [
        make("MatMul", ["x", "w"], ["p"]),
        make("Add", ["p", "x"], ["s"]),
        make("LayerNormalization", ["s", "scale", "bias"], ["y"]),
    ]
    weights = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float16)
    model = _model(nodes, (2, 4, 8), 17, HALF, w=weights, scale=scale, bias=bias)
    _, written = _optimized(model, "onnxruntime-cuda")
    assert "SkipLayerNormalization" in {n.op_type for n in written.graph.node}


@pytest.mark.parametrize(("consumer", "fused"), [("onnxruntime", False), ("onnxruntime-cuda", True)])
def test_norms_of_sums_in_half_precision_are_of_providers_that_are_fast_at_them(consumer: str, fused: bool) -> None:
    nodes = [make("Add", ["x", "x2"], ["s"]), make("RMSNormalization", ["s", "scale"], ["y"])]
    model = _model([make("Relu", ["x"], ["x2"]), *nodes], (2, 4, 8), 23, HALF, scale=np.ones(8, np.float16))
    _, written = _optimized(model, consumer)
    assert ("SkipSimplifiedLayerNormalization" in {n.op_type for n in written.graph.node}) is fused


@pytest.mark.parametrize(("consumer", "packs"), [("onnxruntime-cuda", False), ("onnxruntime-webgpu", True)])
def test_packed_weights_are_multiplied_where_the_runtime_does_not_pack_them(consumer: str, packs: bool) -> None:
    """For CUDA ONNX Runtime makes MatMulNBits of the pair when it loads the file; for WebGPU it dequantises on every call."""
    inner, columns, block = 512, 256, 32
    weights = make_tensor("w", UINT4, (inner, columns), [i % 16 for i in range(inner * columns)])
    scales = onnx.numpy_helper.from_array(np.full((inner // block, columns), 0.01, np.float32), "s")
    nodes = [make("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=block), make("MatMul", ["x", "d"], ["y"])]
    model = _model(nodes, (1, inner), 21)
    model.graph.initializer.extend((weights, scales))
    _, written = _optimized(model, consumer)
    assert ("MatMulNBits" in {n.op_type for n in written.graph.node}) is packs


def test_what_was_left_to_the_cpu_is_counted_in_the_model_as_it_came() -> None:
    """Its pool of opset 22 has no kernel, and that of the result one; Gelu is not of the opset that the result may have."""
    nodes = [
        make("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]),
        make("Gelu", ["p"], ["g"]),
        make("Tan", ["g"], ["y"]),
    ]
    result = eqsat.optimize(_model(nodes, (1, 3, 8, 8), 22), consumer="onnxruntime-cuda", opset=17)
    assert result.report.needs["left_to_cpu"] == {"Tan": 1}
    assert result.report.needs["left_to_cpu_before"] == {"MaxPool": 1, "Tan": 1}
