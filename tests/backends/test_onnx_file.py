"""Writing models: opsets, weights, and files that appear whole or not at all."""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.backends import onnx_file
from eqsat.backends.consumer import newest_opset
from eqsat.backends.onnx_file import save_onnx, to_model, to_model_and_weights
from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError, OutputError
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, with_bodies
from eqsat.ir.types import tensor_type


def run(
    source: onnx.ModelProto | Path, feeds: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray] | None = None
) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(w) for w in weights.values()]
        options.add_external_initializers(list(weights), values)
    data = str(source) if isinstance(source, Path) else source.SerializeToString()
    return list(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, dict(feeds)))


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = random(4, 64)


def chain() -> Graph:
    """Three products, two of them with the same weight."""
    b = GraphBuilder("chain")
    value = b.input("x", "float32", (4, 64))
    for i, seed in enumerate((1, 2, 1)):
        value = b.op("MatMul", value, b.constant(random(64, 64, seed=seed), name=f"w{i}"))
    return b.finish({"y": b.op("Add", value, b.constant(random(64, seed=3), name="bias"))})


def old_model(opset: int, *nodes: onnx.NodeProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 64]) for n in "xy")
    graph = helper.make_graph(list(nodes), "old", [x], [y], [numpy_helper.from_array(random(64), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def with_layer_norm(graph: Graph) -> Graph:
    """``graph`` followed by a node that its opset may not know."""
    (last,) = graph.outputs
    inner = {last: f"{last}_inner"}
    nodes = [replace(n, outputs=tuple(inner.get(o, o) for o in n.outputs)) for n in graph.nodes]
    nodes.append(Node("LayerNormalization", (inner[last], "w"), (last,), Attributes({"axis": -1})))
    return replace(graph, nodes=tuple(nodes), types={**graph.types, inner[last]: graph.type_of(last)})


def test_graphs_without_a_source_take_the_newest_opset() -> None:
    written = to_model(chain())
    assert written.opset_import[0].version == newest_opset()
    onnx.checker.check_model(written, full_check=True)
    assert run(written, {"x": X})[0].shape == (4, 64)


def attending(*, source: bool, more: str = "") -> Graph:
    """Attention as the one operator; or as a model at the newest opset spells it, now and then beside another operator."""
    b = GraphBuilder()
    q, k, v = (b.input(name, "float32", (2, 3, 5, 4)) for name in "qkv")
    if not source:
        return b.finish({"y": b.op("Attention", q, k, v)})
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=[0, 1, 3, 2]))
    outputs = {"y": b.op("MatMul", b.op("Softmax", scores, axis=-1), v)}
    if more == "CumProd":
        outputs["z"] = b.op("CumProd", v, b.constant(np.int64(0)))
    elif more:
        outputs["z"] = b.op(more, q, k, v)
    return load_onnx(to_model(b.finish(outputs)))


def kernels_of(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The operators that ONNX Runtime runs."""
    session = Session(model, profile=folder / "profile")
    session.run({name: random(2, 3, 5, 4) for name in "qkv"})
    events = json.loads(Path(session.end_profile()).read_text())
    return [e["args"]["op_name"] for e in events if e["name"].endswith("_kernel_time")]


def test_attention_is_written_at_an_opset_for_which_there_is_a_kernel(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 spells Attention-25 out, in 64 kernels."""
    model = to_model(attending(source=False))
    assert model.opset_import[0].version == 24
    assert kernels_of(model, tmp_path) == ["Attention"]


def test_a_model_at_a_newer_opset_is_lowered_for_attention(tmp_path: Path) -> None:
    source = attending(source=True)
    assert to_model(source).opset_import[0].version == newest_opset()
    model = eqsat.optimize(source, form="flat").to_onnx()
    assert model.opset_import[0].version == 24
    assert kernels_of(model, tmp_path).count("Attention") == 1


@pytest.mark.parametrize("more", ["CumProd", "Attention"])
def test_attention_is_not_used_where_the_opset_has_to_stay(more: str) -> None:
    """An operator that no older opset has, or an Attention of the source, which its kernel would compute otherwise where all of a
    row is the lowest number."""
    source = raised(attending(source=True, more=more))
    model = eqsat.optimize(source, form="flat").to_onnx()
    assert model.opset_import[0].version == newest_opset()
    assert [n.op_type for n in model.graph.node].count("Attention") == (more == "Attention")


def raised(graph: Graph) -> Graph:
    """``graph`` as if it had come with the newest opset."""
    return replace(graph, envelope=replace(graph.envelope, opset=newest_opset()))


def test_opset_rises_only_for_a_node_that_needs_it() -> None:
    source = old_model(
        12,
        helper.make_node("Unsqueeze", ["x"], ["u"], axes=[0]),
        helper.make_node("ReduceSum", ["u"], ["s"], axes=[0], keepdims=0),
        helper.make_node("Mul", ["s", "w"], ["y"]),
    )
    assert to_model(load_onnx(source)).opset_import[0].version == 12
    written = to_model(with_layer_norm(load_onnx(source)))
    assert written.opset_import[0].version == 17
    onnx.checker.check_model(written, full_check=True)
    before = run(source, {"x": X})[0]
    centred = before - before.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * random(64)
    np.testing.assert_allclose(run(written, {"x": X})[0], expected, rtol=1e-4, atol=1e-5)


def test_element_types_can_need_a_newer_opset() -> None:
    graph = load_onnx(old_model(13, helper.make_node("Mul", ["x", "w"], ["y"])))
    types = {"x": tensor_type("int32", (2,)), "y": tensor_type("int32", (2,))}
    envelope = replace(graph.envelope, inputs={}, outputs={})
    graph = Graph((Node("Relu", ("x",), ("y",)),), ("x",), ("y",), types, {}, "g", envelope)
    assert to_model(graph).opset_import[0].version == 14


def test_nodes_that_are_only_valid_at_the_old_opset_forbid_a_newer_one() -> None:
    graph = load_onnx(
        old_model(11, helper.make_node("Dropout", ["x"], ["d", "mask"]), helper.make_node("Mul", ["d", "w"], ["y"]))
    )
    nodes = (replace(graph.nodes[0], outputs=("d", "mask"), opaque="mask is used"), *graph.nodes[1:])
    with pytest.raises(OutputError, match="Dropout is only valid at the opset 11") as caught:
        to_model(with_layer_norm(replace(graph, nodes=nodes)))
    assert "\n" not in str(caught.value)


def test_a_scan_over_batches_forbids_a_newer_opset() -> None:
    """It has neither lengths of sequences nor an axis of batches from 9 on."""
    values = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [64]) for n in ("s", "e", "t", "o")}
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["o"])]
    body = helper.make_graph(nodes, "body", [values["s"], values["e"]], [values["t"], values["o"]])
    graph = helper.make_graph(
        [helper.make_node("Scan", ["", "first", "x"], ["last", "y"], body=body, num_scan_inputs=1)],
        "scan",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("first", [1, 64]), ("x", [1, 4, 64]))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 64])],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=4)
    loaded = load_onnx(source)
    feeds = {"first": random(1, 64), "x": random(1, 4, 64)}
    assert run(to_model(loaded), feeds)[0].tobytes() == run(source, feeds)[0].tobytes()
    with pytest.raises(OutputError, match="Scan is only valid at the opset 8"):
        to_model(with_layer_norm(loaded))


def test_bodies_are_brought_to_a_newer_opset_and_forbid_it_only_where_they_cannot_be_read() -> None:
    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [4, 64])]
        )

    def source(other: onnx.GraphProto) -> onnx.ModelProto:
        return old_model(
            13,
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
            helper.make_node(
                "If", ["c"], ["y"], then_branch=branch("then", helper.make_node("Neg", ["x"], ["a"])), else_branch=other
            ),
        )

    plain = source(branch("else", helper.make_node("Exp", ["x"], ["b"])))
    assert to_model(with_layer_norm(load_onnx(plain))).opset_import[0].version == 17
    fixed = source(
        branch("else", helper.make_node("BatchNormalization", ["x", "w", "w", "w", "w"], ["b"])),
    )
    fixed.opset_import[0].version = 13
    graph = with_layer_norm(load_onnx(fixed))
    newer = to_model(graph)
    assert newer.opset_import[0].version == 17
    onnx.checker.check_model(newer)
    unread = [with_bodies(n, lambda body, names: (replace(body, graph=None), names)) for n in graph.nodes]
    with pytest.raises(OutputError, match="BatchNormalization is only valid at the opset 13"):
        to_model(graph.with_nodes(unread))


def test_small_models_are_one_file(tmp_path: Path) -> None:
    save_onnx(chain(), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == ["m.onnx"]
    assert run(tmp_path / "m.onnx", {"x": X})[0].tobytes() == run(to_model(chain()), {"x": X})[0].tobytes()


def test_large_models_keep_their_weights_outside(tmp_path: Path) -> None:
    save_onnx(chain(), tmp_path / "m.onnx", embed_limit_bytes=0)
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    assert (
        tmp_path / "m.onnx.data"
    ).stat().st_size == 3 * 64 * 64 * 4  # w0 and w2 have equal contents, but are two here
    onnx.checker.check_model(tmp_path / "m.onnx", full_check=True)
    graph = load_onnx(tmp_path / "m.onnx")
    assert graph.constants["w0"] is graph.constants["w2"]
    save_onnx(graph, tmp_path / "again.onnx", embed_limit_bytes=0)
    assert (tmp_path / "again.onnx.data").stat().st_size == 2 * 64 * 64 * 4
    tensors = {
        t.name: {e.key: e.value for e in t.external_data}
        for t in onnx.load(tmp_path / "again.onnx", load_external_data=False).graph.initializer
    }
    assert tensors["w0"] == tensors["w2"]
    assert int(tensors["w1"]["offset"]) % 4096 == 0
    assert not tensors["bias"]
    assert run(tmp_path / "again.onnx", {"x": X})[0].tobytes() == run(to_model(chain()), {"x": X})[0].tobytes()


def test_extents_that_a_reader_might_not_find_out_are_declared() -> None:
    """ONNX Runtime leaves the layout of its convolutions for a sum of images unless it knows them to have the same extents."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 64))
    image = b.op("Reshape", x, b.constant([-1, 16, 2, 2]))
    weights = b.constant(random(16, 16, 1, 1))
    y = b.op("Conv", b.op("Add", image, b.op("Conv", image, weights)), weights)
    model = to_model(b.finish({"y": y}))
    declared = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info]
    assert declared == [["n", 16, 2, 2]] * 3
    assert not to_model(chain()).graph.value_info


def test_equal_graphs_give_equal_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save_onnx(chain(), tmp_path / folder / "m.onnx", embed_limit_bytes=0)
    for name in ("m.onnx", "m.onnx.data"):
        data = (tmp_path / "a" / name).read_bytes()
        assert data == (tmp_path / "b" / name).read_bytes()
        assert bytes(tmp_path) not in data


def test_a_model_can_be_written_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save_onnx(chain(), path, embed_limit_bytes=0)
    expected = run(path, {"x": X})[0].tobytes()
    graph = load_onnx(path)
    shrunk = replace(
        graph, nodes=tuple(n for n in graph.nodes), constants=dict(reversed(list(graph.constants.items())))
    )
    for _ in range(3):
        save_onnx(shrunk, path, embed_limit_bytes=0)
        assert run(path, {"x": X})[0].tobytes() == expected
        assert run(to_model(graph), {"x": X})[0].tobytes() == expected  # what was mapped is still there
    save_onnx(chain(), tmp_path / "m.onnx")
    assert run(to_model(graph), {"x": X})[0].tobytes() == expected


def test_weights_of_the_model_that_was_read_are_left_alone(tmp_path: Path) -> None:
    """``mv m.onnx original.onnx``: that refers to ``m.onnx.data`` still."""
    save_onnx(chain(), tmp_path / "m.onnx", embed_limit_bytes=0)
    (tmp_path / "m.onnx").rename(tmp_path / "original.onnx")
    expected = run(tmp_path / "original.onnx", {"x": X})[0].tobytes()
    graph = load_onnx(tmp_path / "original.onnx")
    for _ in range(2):
        save_onnx(graph, tmp_path / "m.onnx", embed_limit_bytes=0)
        assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.1.data", "m.onnx.data", "original.onnx"]
        for name in ("m.onnx", "original.onnx"):
            assert run(tmp_path / name, {"x": X})[0].tobytes() == expected
    with pytest.raises(OutputError, match="holds weights of the model"):
        save_onnx(graph, tmp_path / "m.onnx.data", embed_limit_bytes=0)


def test_weights_that_no_program_reads_are_left_alone(tmp_path: Path) -> None:
    """Computed once, they are others."""
    save_onnx(chain(), tmp_path / "m.onnx", embed_limit_bytes=0)
    (tmp_path / "m.onnx").rename(tmp_path / "original.onnx")
    data = tmp_path / "m.onnx.data"
    before = data.read_bytes()
    result = eqsat.optimize(tmp_path / "original.onnx", verify=False)
    constants = {k: Constant.of(c.numpy() + 1) for k, c in result.program.graph.constants.items()}
    save_onnx(
        replace(result.program.graph, constants=constants), tmp_path / "m.onnx", embed_limit_bytes=0, spared=[data]
    )
    assert data.read_bytes() == before


def test_weights_that_were_written_over_are_not_written(tmp_path: Path) -> None:
    save_onnx(chain(), tmp_path / "m.onnx", embed_limit_bytes=0)
    graph = load_onnx(tmp_path / "m.onnx")
    held = [c.numpy() for c in graph.constants.values()]  # mapped
    with open(tmp_path / "m.onnx.data", "r+b") as file:
        file.write(bytes(64))
    os.utime(tmp_path / "m.onnx.data", ns=(1, 1))
    with pytest.raises(OutputError, match="was written to since"):
        save_onnx(graph, tmp_path / "again.onnx", embed_limit_bytes=0)
    assert held


def test_ranges_are_copied_when_the_system_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_onnx(chain(), tmp_path / "m.onnx", embed_limit_bytes=0)
    graph = load_onnx(tmp_path / "m.onnx")
    save_onnx(graph, tmp_path / "a.onnx", embed_limit_bytes=0)
    monkeypatch.delattr(os, "copy_file_range")
    save_onnx(graph, tmp_path / "b.onnx", embed_limit_bytes=0)
    assert (tmp_path / "a.onnx.data").read_bytes() == (tmp_path / "b.onnx.data").read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any) -> None:
    path = tmp_path / "m.onnx"
    save_onnx(chain(), path, embed_limit_bytes=0)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}

    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(onnx_file, "write_weights", fail)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else OutputError):
        save_onnx(chain(), path, embed_limit_bytes=0)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "m.onnx", "does not exist"),
        (Path("/proc/m.onnx"), "cannot write"),
    ):
        with pytest.raises(OutputError, match=message) as caught:
            save_onnx(chain(), path)
        assert "\n" not in str(caught.value)


def test_weights_can_stay_out_of_the_message() -> None:
    model, weights = to_model_and_weights(chain())
    assert sorted(weights) == ["w0", "w1", "w2"]
    assert model.ByteSize() < 2000
    assert run(model, {"x": X}, weights)[0].tobytes() == run(to_model(chain()), {"x": X})[0].tobytes()


def test_attributes_take_the_type_of_their_schema() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 64))
    y = b.op("Transpose", b.op("LeakyRelu", x, alpha=1), perm=[1, 0])
    written = to_model(b.finish({"y": b.op("Cast", y, to=1)}))
    onnx.checker.check_model(written, full_check=True)
    assert run(written, {"x": X})[0].tobytes() == np.ascontiguousarray(X.T).tobytes()


def test_errors_of_the_runtime_name_the_operator_and_not_its_source() -> None:
    b = GraphBuilder()
    x, shape = b.input("x", "float32", ("n",)), b.input("shape", "int64", (2,))
    session = Session(to_model(b.finish({"y": b.op("Reshape", x, shape)})).SerializeToString())
    with pytest.raises(ModelError, match=r"ONNX Runtime: Reshape.*: The input tensor cannot be reshaped") as caught:
        session.run({"x": np.ones(5, np.float32), "shape": np.array([2, 3])})
    assert "/" not in str(caught.value)


@pytest.mark.parametrize("name", ["gemm_input_shape", "gemm_input_shape_token_0", "gemm_output_shape_token_3"])
def test_constants_are_not_named_as_fusions_of_the_runtime_name_theirs(name: str) -> None:
    """Fusing the product and the sum, ONNX Runtime names a shape like the one that is here already, and gives up."""
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 4, 16))
    rows = b.op("Relu", b.op("Reshape", x, b.constant([-1, 16], "int64")))
    first = b.op("Tanh", b.op("Add", b.constant(random(16)), b.op("MatMul", x, b.constant(random(16, 16)))))
    second = b.op("Add", b.constant(random(16, seed=1)), b.op("MatMul", first, b.constant(random(16, 16, seed=1))))
    graph = b.finish({"rows": rows, "y": b.op("Tanh", second)})
    (shape,) = (v for v in graph.constants if graph.constants[v].shape == (2,))
    nodes = [replace(n, inputs=tuple(name if v == shape else v for v in n.inputs)) for n in graph.nodes]
    renamed = {name if v == shape else v: c for v, c in graph.constants.items()}
    graph = replace(graph.with_nodes(nodes), constants=renamed)
    with pytest.raises(ModelError, match="Attempt to replace the existing tensor"):
        Session(to_model(graph), "all")
    result = eqsat.optimize(graph, form="flat")
    assert result.report.verification["verdict"] == "equal"
    Session(result.to_onnx(), "all")
