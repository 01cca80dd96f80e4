"""Whatever is wrong with a model is said in one line."""

import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import model, node, noise

import eqsat
from eqsat.errors import ModelError, ShapeError
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder

X = noise(2, 3)


def fails(source: object, message: str, kind: type[ModelError] = ModelError) -> None:
    with pytest.raises(kind, match=message) as caught:
        load_onnx(source)  # type: ignore[arg-type]  # some of these are no models
    assert "\n" not in str(caught.value)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    fails(tmp_path / "missing.onnx", "missing.onnx: cannot read the model: No such file")
    fails(tmp_path, "is a folder")
    for name, data in (
        ("empty", b""),
        ("text", b"hello, world\n" * 9),
        ("zeros", bytes(100)),
        ("html", b"<!DOCTYPE html>"),
    ):
        (tmp_path / name).write_bytes(data)
        fails(tmp_path / name, name)
    (tmp_path / "model.ort").write_bytes(b"\x14\0\0\0ORTM" + bytes(50))
    fails(tmp_path / "model.ort", "ONNX Runtime's own format; give the ONNX model")
    fails(7, "expected a path")
    if Path("/dev/zero").exists():
        fails(Path("/dev/zero"), "/dev/zero: is a device, which may never end")


def test_truncated_files(tmp_path: Path) -> None:
    data = model([node("Add", ["x", "w"])], {"x": X}, {"w": noise(2, 3, seed=1)}).SerializeToString()
    path = tmp_path / "cut.onnx"
    messages = []
    for length in range(1, len(data)):
        path.write_bytes(data[:length])
        messages.append(_message(path))
    assert sum(message != "" for message in messages) >= len(data) - 30  # the last fields are optional
    assert not any("\n" in message for message in messages)


def _message(source: object) -> str:
    try:
        load_onnx(source)  # type: ignore[arg-type]
    except ModelError as error:
        return str(error)
    return ""


def test_inconsistent_graphs() -> None:
    relu = node("Relu", ["x"])
    fails(model([node("Relu", ["nowhere"])], {"x": X}), "input 'nowhere' is no graph input")
    fails(model([node("Relu", ["b"], ["a"]), node("Relu", ["a"], ["b"])], {"x": X}, outputs=["b"]), "cycle")
    fails(model([relu, relu], {"x": X}), "'y' is defined twice")
    fails(model([relu, node("Relu", ["y"], ["x"])], {"x": X}), "'x' is defined twice")
    fails(model([relu], {"x": X}, outputs=["z"]), "output 'z' of the graph is not defined")
    fails(model([relu], {"x": X}, outputs=[]), "no outputs")
    fails(model([], {"x": X}, outputs=[]), "its graph is empty: it has neither nodes nor outputs")
    fails(model([node("Relu", ["x", "x"])], {"x": X}), "has 2 inputs, Relu takes 1")
    fails(model([node("Concat", ["x", "x"])], {"x": X}), "attribute 'axis' is missing")
    fails(model([node("Concat", ["x", "x"], axis=[1])], {"x": X}), "attribute 'axis' is INTS, Concat declares INT")
    fails(model([node("Relu", ["a\nb"])], {"x": X}), "no graph input")
    fails(model([relu], {"x": X}, opset=999), "opset 999 is unknown")
    twice = model([relu], {"x": X}, {"w": X})
    twice.graph.initializer.append(twice.graph.initializer[0])
    fails(twice, "initializer 'w' is defined twice")


def test_contradicting_shapes_name_the_node() -> None:
    source = model([node("MatMul", ["x", "w"], name="projection")], {"x": X}, {"w": noise(4, 5)})
    fails(source, r"MatMul node 'projection': .*3.*4", ShapeError)


def test_damaged_tensors() -> None:
    source = model([node("Add", ["x", "w"])], {"x": X}, {"w": X})
    source.graph.initializer[0].raw_data = b"abc"
    fails(source, "float32.*takes 24 bytes, the file has 3")
    source.graph.initializer[0].data_type = 99
    fails(source, "unknown element type 99")


def external(location: str, offset: int = 0, length: int = 24) -> onnx.ModelProto:
    source = model([node("Add", ["x", "w"])], {"x": X}, {"w": X})
    tensor = source.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return source


def test_external_data(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside").write_bytes(bytes(100))
    (folder / "inside").write_bytes(X.tobytes())
    os.symlink(tmp_path / "outside", folder / "link")

    def written(source: onnx.ModelProto) -> Path:
        (folder / "m.onnx").write_bytes(source.SerializeToString())
        return folder / "m.onnx"

    assert np.array_equal(load_onnx(written(external("inside"))).constants["w"].numpy(), X)
    for location in (str(tmp_path / "outside"), "../outside", "link"):
        fails(written(external(location)), "lies outside")
    fails(written(external("missing")), "cannot read external data .*missing.: No such file")
    fails(written(external("inside", offset=4)), "needs bytes 4 to 28 of .*inside, which has 24")
    fails(written(external("inside", length=20)), "takes 24 bytes, the file has 20")
    fails(written(external("inside", offset=-8)), "needs bytes -8")
    fails(external("inside"), "the model has no folder")
    os.mkfifo(folder / "pipe")
    fails(written(external("pipe")), "pipe.: is no regular file")
    fails(written(external("a\0b")), "cannot read external data .*null")
    fails(written(external("a" * 5000)), "cannot read external data .*too long")


def test_external_data_beside_what_a_link_leads_to(tmp_path: Path) -> None:
    """As in the cache of the Hugging Face Hub."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "m").write_bytes(external("data").SerializeToString())
    (blobs / "d").write_bytes(X.tobytes())
    (snapshot / "m.onnx").symlink_to(blobs / "m")
    (snapshot / "data").symlink_to(blobs / "d")
    assert np.array_equal(load_onnx(snapshot / "m.onnx").constants["w"].numpy(), X)


def test_files_of_other_formats_are_named(tmp_path: Path) -> None:
    begins = {
        b"PK\3\4": "zip",
        b"xxxxTFL3": "TensorFlow Lite",
        b'\4\0\0\0\0\0\0\0{"w"': "safetensors",
        b"version https://git-lfs.github.com": "git lfs pull",
    }
    for data, told in begins.items():
        (tmp_path / "model").write_bytes(data)
        fails(tmp_path / "model", told)


def test_messages_start_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([node("Relu", ["nowhere"])], {"x": X}).SerializeToString())
    fails(path, "^" + re.escape(str(path)))


def test_newer_ir_version() -> None:
    source = model([node("Relu", ["x"])], {"x": X})
    source.ir_version = 99
    fails(source, "IR version 99 is newer")


def test_unknown_attribute_reference() -> None:
    source = model([helper.make_node("Elu", ["x"], ["y"])], {"x": X})
    source.graph.node[0].attribute.add(name="alpha", ref_attr_name="a", type=onnx.AttributeProto.FLOAT)
    fails(source, "refers to a function's attribute")


def test_squeeze_of_more_axes_than_can_be_one() -> None:
    """The axes come from a node that the file lists later; how many there are is known."""
    late = [node("Squeeze", ["x", "axes"]), node("Shape", ["x"], ["axes"])]
    fails(model(late, {"x": X}), "Squeeze: axis 2 is out of range for rank 2", ShapeError)
    open_axes = [node("Squeeze", ["x", "axes"]), node("Cast", ["i"], ["axes"], to=TensorProto.INT64)]
    message = r"Squeeze: 2 axes to drop, but 0 extents of \(2, 3\) can be 1"
    fails(model(open_axes, {"x": X, "i": noise(2)}), message, ShapeError)


def test_operands_of_types_the_operator_does_not_take() -> None:
    target = np.array([4, 2], np.complex128)
    fails(
        model([node("Reshape", ["x", "s"])], {"x": X}, {"s": target}),
        r"input 1 \(shape\) is of type complex128",
        ShapeError,
    )
    fails(model([node("Unsqueeze", ["x", "a"])], {"x": X}, {"a": X[0] + 0j}), "is of type complex64", ShapeError)
    fails(model([node("Add", ["x", "i"])], {"x": X}, {"i": np.array(3)}), "they must be equal", ShapeError)
    fails(model([node("Relu", [""])], {"x": X}), r"input 0 \(X\) is absent, Relu needs it")
    fails(model([node("Add", ["x", ""])], {"x": X}), "input 1 .* is absent")
    matrix = np.array([[4, 2]])
    fails(
        model([node("Reshape", ["x", "s"])], {"x": X}, {"s": matrix}),
        r"must be a vector, got int64\[1, 2\]",
        ShapeError,
    )
    ends = {"a": np.zeros(1, np.float32), "b": np.full((), np.inf, np.float32)}
    fails(model([node("Range", ["a", "b", "b"])], {"x": X}, ends), "no range", ShapeError)
    fails(model([node("Split", ["x"], ["y", "z"])], {"x": X}, opset=18), "num_outputs is None", ShapeError)


def test_attributes_the_operator_does_not_have() -> None:
    fails(
        model([node("Relu", ["x"], name="r", alpha=2.0)], {"x": X}), r"Relu 'r'.*no attribute 'alpha' \(it has none\)"
    )
    fails(model([node("Softmax", ["x"], axes=1)], {"x": X}), r"no attribute 'axes' \(it has axis\)")
    internal = model([node("Relu", ["x"], __of_a_runtime=1)], {"x": X})
    assert [n.op for n in load_onnx(internal).nodes] == ["Relu"]


def test_attributes_whose_value_is_of_another_kind_than_they_say() -> None:
    source = model([node("Softmax", ["x"], axis=1)], {"x": X})
    source.graph.node[0].attribute[0].type = onnx.AttributeProto.GRAPH
    fails(source, "attribute 'axis' is GRAPH, Softmax declares INT")
    source.graph.node[0].attribute[0].type = onnx.AttributeProto.INT
    source.graph.node[0].attribute[0].s = b"1"
    fails(source, r"'axis' is declared to be INT but holds i, s")


@pytest.mark.parametrize("to", [0, 99, 1 << 62, -1])
def test_casts_to_element_types_that_do_not_exist(to: int) -> None:
    fails(model([node("Cast", ["x"], to=to)], {"x": X}), f"attribute 'to' is {to}, which is no element type")


def test_windows_that_are_not_positive() -> None:
    image = noise(1, 1, 5, 5)
    for wrong in ("strides", "dilations", "kernel_shape"):
        pool = node("MaxPool", ["x"], kernel_shape=[3, 3])
        kept = [a for a in pool.attribute if a.name != wrong]
        del pool.attribute[:]
        pool.attribute.extend([*kept, helper.make_attribute(wrong, [0, 1])])
        fails(model([pool], {"x": image}), "must be positive", ShapeError)


def test_a_location_that_is_no_text() -> None:
    data = external("inside!").SerializeToString()
    fails(onnx.ModelProto.FromString(data.replace(b"inside!", b"\xff\xfeside!")), "is no UTF-8 text")


def test_operands_that_are_known_by_symbols_are_checked_as_well() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", "m"))
    extents = b.op("Shape", x)
    with pytest.raises(ShapeError, match="start, limit and delta must be scalars"):
        b.op("Range", extents, extents, extents)
    with pytest.raises(ShapeError, match="batch_dims -1"):
        b.op("GatherND", x, b.input("places", "int64", ("n", "k")), batch_dims=-1)


@pytest.mark.parametrize(("op", "operands"), [("FusedMatMul", []), ("EmbedLayerNormalization", ["x"])])
def test_operators_of_the_runtime_that_lack_operands_pass_through(op: str, operands: list[str]) -> None:
    """No schema of ONNX says how many they have."""
    source = model([node(op, operands, domain="com.microsoft")], {"x": X.astype(np.int64)})
    source.opset_import.add(domain="com.microsoft", version=1)
    report = eqsat.optimize(source).report
    assert report.opaque == {f"com.microsoft::{op}": 1}
    assert report.verification["verdict"] == "not run"


def test_rules_fire_on_nothing_that_a_file_leaves_open_or_says_wrong() -> None:
    """An input without an element type; a Squeeze whose declared result has fewer elements than its operand."""
    turned = model([node("Einsum", ["x"], equation="ij->ji")], {"x": X})
    turned.graph.input[0].type.tensor_type.elem_type = TensorProto.UNDEFINED
    turned.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.DOUBLE, [3, 2]))
    squeezed = model([node("Squeeze", ["x", "axes"])], {"x": noise(1, 3, 1, 5), "axes": np.array([-2])})
    squeezed.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 1]))
    for source in (turned, squeezed):
        eqsat.optimize(source, verify=False)  # without a warning that a rule fails


def test_bounds_of_slices_are_vectors() -> None:
    source = model([node("Slice", ["x", "s", "e"])], {"x": X}, {"s": np.array(0), "e": np.array(1)})
    fails(source, "starts, ends, axes and steps must be vectors", ShapeError)
