"""What a file can say, as a graph and back."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import assert_round_trip, assert_same, info, model, node, noise, run

import eqsat
from eqsat.backends.onnx_file import save_onnx, to_model
from eqsat.errors import ModelError, OptionError
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.graph import Graph, Subgraph
from eqsat.ir.types import DType, OpaqueType, TensorType

X = noise(2, 3)
CONSTANTS = {
    "value": numpy_helper.from_array(noise(3, seed=1)),
    "value_float": 1.5,
    "value_floats": [1.0, 2.0, 3.0],
}


@pytest.mark.parametrize("form", CONSTANTS)
def test_constant_nodes_become_constants(form: str) -> None:
    source = model([node("Constant", [], ["c"], **{form: CONSTANTS[form]}), node("Add", ["x", "c"])], {"x": X})
    graph = load_onnx(source)
    assert [n.op for n in graph.nodes] == ["Add"]
    assert "c" in graph.constants
    assert_round_trip(source, {"x": X})


def test_constants_of_integers_and_strings() -> None:
    nodes = [
        node("Constant", [], ["i"], value_ints=[3, 2]),
        node("Constant", [], ["k"], value_int=7),
        node("Constant", [], ["s"], value_strings=["a", "ä"]),
        node("Constant", [], ["t"], value_string="z"),
        node("Reshape", ["x", "i"]),
    ]
    source = model(nodes, {"x": X}, outputs=["y", "k", "s", "t"])
    graph = load_onnx(source)
    assert graph.constants["s"].numpy().tolist() == ["a", "ä"]
    assert_same(run(source, {"x": X}), run(to_model(graph), {"x": X}))


def test_sparse_constants_are_dense() -> None:
    values = numpy_helper.from_array(np.array([1.5, -2.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 4], np.int64))
    sparse = helper.make_sparse_tensor(values, indices, [2, 3])
    source = model([node("Add", ["x", "w"])], {"x": X}, sparse_initializer=[sparse])
    assert load_onnx(source).constants["w"].numpy().tolist() == [[0, 1.5, 0], [0, -2, 0]]
    assert_same(run(source, {"x": X}), run(to_model(load_onnx(source)), {"x": X}))


DTYPES = [d for d in DType if d not in (DType.UNDEFINED, DType.STRING)]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_of_every_type(dtype: DType, raw: bool, tmp_path: Path) -> None:
    array = np.array([1, 0, 1, 1, 0, 1, 1]).astype(dtype.numpy)
    tensor = numpy_helper.from_array(array, "w")
    if not raw:
        tensor = helper.make_tensor("w", int(dtype), [7], array)
    graph = helper.make_graph(
        [node("Identity", ["w"])], "g", [], [helper.make_tensor_value_info("y", int(dtype), [7])], [tensor]
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    loaded = load_onnx(source)
    assert loaded.constants["w"].dtype is dtype
    assert loaded.constants["w"].numpy().tobytes() == array.tobytes()
    written = to_model(loaded)
    assert numpy_helper.to_array(written.graph.initializer[0]).tobytes() == array.tobytes()
    save_onnx(loaded, tmp_path / "m.onnx", external_threshold_bytes=1, embed_limit_bytes=0)
    again = load_onnx(tmp_path / "m.onnx").constants["w"]
    assert again.source is not None
    assert again.numpy().tobytes() == array.tobytes()


def test_large_packed_tensors_stay_in_the_file(tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(-8, 8, 20001).astype(ml_dtypes.int4)
    graph = helper.make_graph(
        [node("Identity", ["w"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.INT4, [20001])],
        [numpy_helper.from_array(array, "w")],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    save_onnx(load_onnx(source), tmp_path / "m.onnx", embed_limit_bytes=0)
    assert (tmp_path / "m.onnx.data").stat().st_size == 10001
    assert load_onnx(tmp_path / "m.onnx").constants["w"].numpy().tobytes() == array.tobytes()


def test_equal_constants_are_one() -> None:
    source = model(
        [node("Add", ["x", "a"], ["t"]), node("Mul", ["t", "b"], ["u"]), node("Sub", ["u", "c"])],
        {"x": X},
        {"a": noise(3), "b": noise(3), "c": noise(3, seed=1)},
    )
    constants = load_onnx(source).constants
    assert constants["a"] is constants["b"]
    assert constants["a"] is not constants["c"]
    assert_round_trip(source, {"x": X})


def test_nodes_are_sorted_and_pruned() -> None:
    nodes = [node("Exp", ["r"], ["y"]), node("Neg", ["unused_input"], ["unused"]), node("Relu", ["x"], ["r"])]
    source = model(nodes, {"x": X, "unused_input": X}, {"unused_weight": X})
    graph = load_onnx(source)
    assert [n.op for n in graph.nodes] == ["Relu", "Exp"]
    assert graph.inputs == ("x", "unused_input")
    assert not graph.constants


@pytest.mark.parametrize("ir_version", [3, 4])
def test_initializers_among_the_inputs(ir_version: int) -> None:
    source = model(
        [node("Add", ["x", "w"])], {"x": X, "w": X}, {"w": noise(2, 3, seed=5)}, opset=9, ir_version=ir_version
    )
    graph = load_onnx(source)
    assert graph.inputs == (("x",) if ir_version == 3 else ("x", "w"))
    written = to_model(graph)
    assert_same(run(source, {"x": X}), run(written, {"x": X}))
    if ir_version == 4:
        assert_same(run(source, {"x": X, "w": X}), run(written, {"x": X, "w": X}))


def test_envelope_survives() -> None:
    source = model([node("Relu", ["x"])], {"x": X}, shapes={"x": ("batch", 3)})
    source.producer_name, source.producer_version, source.domain = "maker", "1.2", "org.example"
    source.model_version, source.doc_string, source.graph.doc_string = 5, "about", "graph"
    source.metadata_props.add(key="author", value="someone")
    source.opset_import.add(domain="com.example.unused", version=7)
    source.graph.input[0].type.denotation = "TENSOR"
    source.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    annotation = source.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="x")
    written = assert_round_trip(source, {"x": X})
    for part in (
        "producer_name",
        "producer_version",
        "domain",
        "model_version",
        "doc_string",
        "metadata_props",
        "opset_import",
    ):
        assert getattr(written, part) == getattr(source, part)
    for part in ("name", "doc_string", "input", "output", "quantization_annotation", "node"):
        assert getattr(written.graph, part) == getattr(source.graph, part)


def test_dims_fix_symbols() -> None:
    source = model(
        [node("Shape", ["x"], ["s"]), node("Relu", ["x"])], {"x": X}, shapes={"x": ("n", "m")}, outputs=["y", "s"]
    )
    graph = load_onnx(source, dims={"n": 2})
    assert str(graph.type_of("y")) == "float32[2, m]"
    written = to_model(graph)
    assert [d.dim_value or d.dim_param for d in written.graph.input[0].type.tensor_type.shape.dim] == [2, "m"]
    assert load_onnx(source, dims={"n": 2, "m": 3}).envelope.known["s"].tolist() == [2, 3]
    with pytest.raises(OptionError, match=r"no symbolic dimension 'q'; it has n, m"):
        load_onnx(source, dims={"q": 2})
    with pytest.raises(OptionError, match="n = 0"):
        load_onnx(source, dims={"n": 0})


def test_extents_of_inputs_without_a_name_get_one() -> None:
    source = model([node("Add", ["x", "z"])], {"x": X, "z": X}, shapes={"x": (None, 3), "z": (-1, 3)})
    named = load_onnx(source)
    assert [str(named.type_of(i)) for i in "xz"] == ["float32[x.0, 3]", "float32[z.0, 3]"]
    one = load_onnx(source, dims={"x.0": "n", "z.0": "n"})
    assert str(one.type_of("y")) == "float32[n, 3]"
    assert str(load_onnx(source, dims={"x.0": 4, "z.0": 4}).type_of("y")) == "float32[4, 3]"


def test_symbols_get_other_names_in_expressions_too() -> None:
    stored = [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["2*n", 3])]
    nodes = [node("Concat", ["x", "z"], ["t"], axis=0), node("Exp", ["t"])]
    source = model(nodes, {"x": X, "z": X}, shapes={"x": ("n", 3), "z": ("m", 3)}, value_info=stored)
    assert str(load_onnx(source, dims={"n": "k", "m": "k"}).type_of("y")) == "float32[2*k, 3]"


@pytest.mark.parametrize("dims", [{"n": "two words"}, {"n": "m", "m": "n"}, {"n": ""}])
def test_names_that_are_none_are_refused(dims: dict[str, str]) -> None:
    source = model([node("Add", ["x", "z"])], {"x": X, "z": X}, shapes={"x": ("n", 3), "z": ("m", 3)})
    with pytest.raises(OptionError, match="another name is a word"):
        load_onnx(source, dims=dims)


def test_outputs_that_alias() -> None:
    source = model([node("Relu", ["x"])], {"x": X}, {"w": X}, outputs=["y", "x", "w", "y"])
    assert_same(run(source, {"x": X}), run(to_model(load_onnx(source)), {"x": X}))


def _function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function(
        "local", name, ["a"], ["b"], nodes, [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    )


@pytest.mark.parametrize("version", [1, 17])
def test_functions_are_inlined(version: int) -> None:
    """Also where the functions import another version of their own domain than the model, as jax2onnx writes it."""
    source = model([node("Twice", ["x"], domain="local")], {"x": X})
    source.opset_import.add(domain="local", version=version)
    inner = helper.make_node("Once", ["a"], ["c"], domain="local")
    source.functions.append(_function("Once", [node("Relu", ["a"], ["b"])]))
    source.functions.append(_function("Twice", [inner, node("Exp", ["c"], ["b"])]))
    source.functions.append(_function("Unused", [node("Exp", ["a"], ["b"])]))
    graph = load_onnx(source)
    assert [n.op for n in graph.nodes] == ["Relu", "Exp"]
    assert not to_model(graph).functions
    assert_same(run(source, {"x": X}), run(to_model(graph), {"x": X}))


@pytest.mark.parametrize(
    ("op", "opset", "inlined"), [("Exp", 13, True), ("Exp", 19, True), ("Round", 10, False), ("Cast", 19, False)]
)
def test_functions_of_another_opset_are_inlined_where_their_operators_mean_the_same(
    op: str, opset: int, inlined: bool
) -> None:
    """As skl2onnx writes nearest neighbours. Round-10 is no operator, and Cast-19 says more than Cast-13."""
    attributes = {"to": TensorProto.FLOAT} if op == "Cast" else {}
    source = model([node("Local", ["x"], ["y"], domain="local")], {"x": X}, opset=17)
    source.opset_import.add(domain="local", version=1)
    source.functions.append(_function("Local", [node(op, ["a"], ["b"], **attributes)]))
    source.functions[0].opset_import[0].version = opset
    assert [n.op for n in load_onnx(source).nodes] == [op if inlined else "Local"]


def test_functions_that_would_be_inlined_for_ever_are_refused() -> None:
    source = model([node("F30", ["x"], domain="local")], {"x": X})
    source.opset_import.add(domain="local", version=1)
    source.functions.append(_function("F0", [node("Relu", ["a"], ["b"])]))
    for k in range(30):
        twice = [helper.make_node(f"F{k}", [a], [b], domain="local") for a, b in (("a", "c"), ("c", "b"))]
        source.functions.append(_function(f"F{k + 1}", twice))
    with pytest.raises(ModelError, match="1,073,741,824 nodes, more than"):
        load_onnx(source)


def _refers(op: str, attribute: str, to: str, **domain: str) -> onnx.NodeProto:
    found = helper.make_node(op, ["a"], ["b"], **domain)
    found.attribute.append(
        onnx.AttributeProto(name=attribute, ref_attr_name=to, type=onnx.AttributeProto.AttributeType.FLOAT)
    )
    return found


@pytest.mark.parametrize(
    ("given", "outer_default", "alpha"),
    [({"slope": 0.7}, True, 0.7), ({}, True, 0.5), ({"slope": 0.7}, False, 0.7), ({}, False, 0.3)],
)
def test_attributes_of_functions_have_defaults(given: dict[str, float], outer_default: bool, alpha: float) -> None:
    """A reference to an attribute that was not given, and has no default, is none: then the inner function's default counts."""
    source = model([node("Outer", ["x"], ["y"], domain="local", **given)], {"x": X}, ir_version=9)
    source.opset_import.add(domain="local", version=1)
    source.functions.append(_function("Outer", [_refers("Inner", "alpha", "slope", domain="local")]))
    source.functions.append(_function("Inner", [_refers("LeakyRelu", "alpha", "alpha")]))
    source.functions[1].attribute_proto.append(helper.make_attribute("alpha", 0.3))
    if outer_default:
        source.functions[0].attribute_proto.append(helper.make_attribute("slope", 0.5))
    else:
        source.functions[0].attribute.append("slope")
    graph = load_onnx(source)
    assert [n.op for n in graph.nodes] == ["LeakyRelu"]
    assert np.float32(graph.nodes[0].attributes["alpha"]) == np.float32(alpha)
    assert_same(run(source, {"x": X}), run(to_model(graph), {"x": X}))


def test_attributes_of_functions_have_defaults_in_bodies() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [node(op, ["x"], [name], **domain)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])],
        )
        for name, op, domain in (("then", "Leaky", {"domain": "local"}), ("else", "Neg", {}))
    }
    source = model([node("If", ["c"], ["y"], **branches)], {"x": X, "c": np.array(True)}, ir_version=9)
    source.opset_import.add(domain="local", version=1)
    source.functions.append(_function("Leaky", [_refers("LeakyRelu", "alpha", "alpha")]))
    source.functions[0].attribute_proto.append(helper.make_attribute("alpha", 0.3))
    feeds = {"x": X, "c": np.array(True)}
    assert_same(run(source, feeds), run(to_model(load_onnx(source)), feeds))


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize("order", [1, -1])
def test_overloads_of_functions_are_functions_of_their_own(opset: int, order: int) -> None:
    """Those of an opset at which the operators meant something else are not inlined."""
    call = node("F", ["x"], domain="local")
    call.overload = "two"
    source = model([call], {"x": X}, ir_version=10)
    source.opset_import.add(domain="local", version=1)
    for overload, op in (("one", "LogSoftmax"), ("two", "Softmax"))[::order]:
        source.functions.append(_function("F", [node(op, ["a"], ["b"])]))
        source.functions[-1].overload = overload
        source.functions[-1].opset_import[0].version = opset
    written = to_model(load_onnx(source))
    assert len(written.functions) == (opset == 12)
    assert_same(run(source, {"x": X}), run(written, {"x": X}))


def test_what_nodes_that_pass_through_say_of_themselves_is_kept() -> None:
    foreign = node("Foreign", ["x"], ["t"], domain="of.others", doc_string="says what it does")
    foreign.metadata_props.add(key="made", value="by hand")
    source = model([foreign, node("Identity", ["t"], ["u"]), node("Relu", ["u"])], {"x": X}, opset=21, ir_version=10)
    source.opset_import.add(domain="of.others", version=1)
    kept = eqsat.optimize(source, verify=False).to_onnx().graph.node[0]
    assert (kept.op_type, kept.doc_string) == ("Foreign", "says what it does")
    assert [(p.key, p.value) for p in kept.metadata_props] == [("made", "by hand")]


def test_recursive_functions_stay() -> None:
    source = model([node("Loopy", ["x"], ["t"], domain="local"), node("Plain", ["t"], domain="local")], {"x": X})
    source.opset_import.add(domain="local", version=1)
    source.functions.append(_function("Loopy", [helper.make_node("Loopy", ["a"], ["b"], domain="local")]))
    source.functions.append(_function("Plain", [node("Exp", ["a"], ["b"])]))
    graph = load_onnx(source)
    assert [(n.op, n.opaque) for n in graph.nodes] == [("Loopy", "domain local"), ("Exp", "")]
    assert [f.name for f in to_model(graph).functions] == ["Loopy"]


def _branch(name: str, op: str, *names: str) -> onnx.GraphProto:
    result = f"{name}_result"
    return helper.make_graph(
        [node(op, names, [result])], name, [], [helper.make_tensor_value_info(result, TensorProto.FLOAT, [2, 3])]
    )


def _nonzero(name: str, op: str, declared: list[int | str | None]) -> onnx.GraphProto:
    nodes = [node(op, ["x"], [f"{name}_a"]), node("NonZero", [f"{name}_a"], [name])]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, TensorProto.INT64, declared)])


def test_extents_that_shape_inference_names_are_not_those_of_another_call() -> None:
    """It numbers them afresh for every body that we have it infer."""

    def either(outputs: list[str], prefix: str) -> onnx.NodeProto:
        branches = {f"{b}_branch": _nonzero(prefix + b, op, [2, None]) for b, op in (("then", "Relu"), ("else", "Abs"))}
        return node("If", ["c"], outputs, **branches)

    def outer(prefix: str) -> onnx.GraphProto:
        nodes = [either([f"{prefix}_i"], prefix), node("Identity", [f"{prefix}_i"], [f"{prefix}_o"])]
        output = helper.make_tensor_value_info(f"{prefix}_o", TensorProto.INT64, [2, None])
        return helper.make_graph(nodes, prefix, [], [output])

    nodes = [either(["one"], "a"), node("If", ["d"], ["two"], then_branch=outer("p"), else_branch=outer("q"))]
    feeds = {"x": X, "c": np.array(True), "d": np.array(True)}
    graph = load_onnx(model([*nodes, node("Add", ["one", "two"])], feeds))
    extents = {t.shape[1] for v in ("one", "two") if isinstance(t := graph.type_of(v), TensorType) and t.shape}
    assert len(extents) == 2


@pytest.mark.parametrize("last", [False, True])
def test_types_that_are_stale_are_left_out_where_an_operator_of_another_domain_is_defined(last: bool) -> None:
    """A model whose batch was made symbolic, with the types of another size still in it."""
    stale = helper.make_tensor_value_info("y" if last else "t", TensorProto.FLOAT, [1, 3])
    nodes = [node("Gelu", ["x"], ["y" if last else "t"], domain="com.microsoft")]
    nodes += [] if last else [node("Relu", ["t"])]
    source = model(nodes, {"x": X}, shapes={"x": ["n", 3]}, outputs=[stale if last else "y"])
    source.graph.value_info.extend([] if last else [stale])
    source.opset_import.add(domain="com.microsoft", version=1)
    graph = load_onnx(source)
    assert [n.op for n in graph.nodes] == [n.op_type for n in nodes]
    assert str(graph.type_of("y")) == "float32[n, 3]"
    assert_same(run(source, {"x": X}), run(to_model(graph), {"x": X}))


def test_what_bodies_and_functions_keep_outside_is_read_into_them(tmp_path: Path) -> None:
    """Attributes of nodes in bodies, inner ones too, and in functions; and what a body returns as it is."""

    def outside(name: str) -> onnx.NodeProto:
        return node("Constant", [], [name], value=numpy_helper.from_array(X, name))

    def body(*nodes: onnx.NodeProto, initializer: bool = False) -> onnx.GraphProto:
        name = nodes[-1].output[0] if nodes else f"returned_{initializer}"
        weights = [numpy_helper.from_array(X, name)] if initializer else []
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3])
        return helper.make_graph(nodes, "body", [], [output], weights)

    inner = helper.make_node("If", ["c"], ["i"], then_branch=body(initializer=True), else_branch=body(outside("e")))
    then = body(outside("t"), inner, node("Add", ["t", "i"], ["u"]))
    nodes = [helper.make_node("If", ["c"], ["z"], then_branch=then, else_branch=body(outside("f")))]
    nodes.append(helper.make_node("Shift", ["z"], ["y"], domain="local"))
    feeds = {"c": np.array(True)}
    source = model(nodes, feeds)
    source.opset_import.add(domain="local", version=1)
    source.functions.append(_function("Shift", [outside("k"), node("Add", ["a", "k"], ["b"])]))
    source.functions[0].opset_import[0].version = 16  # so it is not inlined
    expected = run(source, feeds)
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "m.data").write_bytes(X.tobytes())
    for tensor in _tensors(source.graph.node, source.functions[0].node):
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="m.data")
    onnx.save(source, tmp_path / "m.onnx")
    save_onnx(load_onnx(tmp_path / "m.onnx"), kept / "m.onnx")
    assert_same(expected, run(str(kept / "m.onnx"), feeds))


def _tensors(*lists: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """Those in attributes, and the initializers of bodies."""
    for attribute in (a for nodes in lists for n in nodes for a in n.attribute):
        if attribute.HasField("t"):
            yield attribute.t
        if attribute.HasField("g"):
            yield from attribute.g.initializer
            yield from _tensors(attribute.g.node)


def test_digits_are_a_name_of_an_extent() -> None:
    declared = helper.make_tensor_value_info("y", TensorProto.INT64, [2, "3"])
    graph = load_onnx(model([node("NonZero", ["x"]), node("Shape", ["y"], ["z"])], {"x": X}, outputs=[declared, "z"]))
    assert not graph.type_of("y").is_static  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("producer", "extents"), [("pytorch", ("batch", 2, "past", "'0'")), ("", ("batch", "'2'", "past", "'0'"))]
)
def test_numbers_that_pytorch_writes_as_names_are_numbers(producer: str, extents: tuple[object, ...]) -> None:
    """Of inputs: where its export found that heads that were to be free are two."""
    past = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "2", "past", "0"])
    source = model([node("Relu", ["x"], ["y"])], {"x": X})
    source.graph.input[0].CopyFrom(past)
    source.producer_name = producer
    assert load_onnx(source).type_of("x").shape == extents  # pyright: ignore[reportAttributeAccessIssue]


def test_bodies_capture() -> None:
    nodes = [
        node("Relu", ["x"], ["r"]),
        node(
            "If", ["flag"], ["y"], then_branch=_branch("then", "Add", "r", "w"), else_branch=_branch("else", "Neg", "r")
        ),
    ]
    flag = np.array(True)
    source = model(nodes, {"x": X, "flag": flag}, {"w": noise(2, 3, seed=3)}, outputs=[info("y", X)])
    graph = load_onnx(source)
    branch = graph.nodes[1]
    assert branch.opaque == "control flow"
    assert branch.inputs == ("flag", "r", "r", "w")  # else_branch comes first: attributes are sorted
    assert isinstance(branch.attributes["then_branch"], Subgraph)
    for value in (True, False):
        assert_round_trip(source, {"x": X, "flag": np.array(value)})


def test_captures_follow_renaming() -> None:
    """The body's own names give way when a captured value takes one of them."""
    from dataclasses import replace

    nodes = [
        node("Relu", ["x"], ["r"]),
        node("If", ["flag"], ["y"], then_branch=_branch("then", "Neg", "r"), else_branch=_branch("else", "Exp", "r")),
    ]
    source = model(nodes, {"x": X, "flag": np.array(True)}, outputs=[info("y", X)])
    graph = load_onnx(source)
    relu, branch = graph.nodes
    renamed = "then_result"
    graph = replace(
        graph,
        nodes=(replace(relu, outputs=(renamed,)), replace(branch, inputs=("flag", renamed, renamed))),
        types={**graph.types, renamed: graph.type_of("r")},
    )
    for value in (True, False):
        feeds = {"x": X, "flag": np.array(value)}
        assert_same(run(source, feeds), run(to_model(graph), feeds))


def test_loop_with_nested_bodies() -> None:
    inner = _branch("then", "Add", "state", "r"), _branch("else", "Mul", "state", "w")
    body = helper.make_graph(
        [
            node("If", ["go"], ["next"], then_branch=inner[0], else_branch=inner[1]),
            node("Identity", ["go"], ["go_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 3]),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 3]),
        ],
    )
    nodes = [node("Relu", ["x"], ["r"]), node("Loop", ["trips", "", "x"], ["y"], body=body)]
    source = model(nodes, {"x": X}, {"trips": np.array(3), "w": X}, outputs=[info("y", X)])
    assert load_onnx(source).nodes[1].inputs == ("trips", "", "x", "w", "r")
    assert_round_trip(source, {"x": X})


def test_sequences_and_custom_domains() -> None:
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"]),
        node("SequenceAt", ["s", "i"], ["c"]),
        node("TransposeMatMul", ["c", "c"], ["y"], domain="com.microsoft", transB=1, alpha=0.5),
    ]
    feeds = {"x": X, "i": np.array(1)}
    source = model(nodes, feeds)
    source.opset_import.add(domain="com.microsoft", version=1)
    graph = load_onnx(source)
    assert isinstance(graph.type_of("s"), OpaqueType)
    assert graph.nodes[2].opaque == "domain com.microsoft"
    assert_same(run(source, feeds), run(to_model(graph), feeds))


def _product_by_packed_weights(*order: str, **how: int) -> Graph:
    x = np.zeros((2, 5, 64), np.float32)
    parts = {"w": np.zeros((24, 2, 32 * how.get("bits", 4) // 8), np.uint8), "s": np.ones((24, 2), np.float32)}
    parts |= {name: np.zeros(64, np.int32) for name in order if name}
    attributes = {"K": 64, "N": 24, "block_size": 32, "bits": 4, **how}
    product = node("MatMulNBits", ["x", "w", "s", *order], ["t"], domain="com.microsoft", **attributes)
    source = model([product, node("Exp", ["t"])], {"x": x}, parts, shapes={"x": ("batch", "seq", 64)})
    source.opset_import.add(domain="com.microsoft", version=1)
    return load_onnx(source)


@pytest.mark.parametrize("how", [{"accuracy_level": 4}, {"bits": 8}, {"bits": 2}])
def test_products_by_packed_weights_are_understood(how: dict[str, int]) -> None:
    graph = _product_by_packed_weights(**how)
    assert not graph.nodes[0].opaque
    assert str(graph.type_of("y")) == "float32[batch, seq, 24]"


def test_a_domain_that_is_used_and_not_imported_is_one_of_the_source(tmp_path: Path) -> None:
    """Quantisers leave the import out, and ONNX Runtime loads what they write."""
    weights = {"w": np.zeros((24, 2, 16), np.uint8), "s": np.ones((24, 2), np.float32)}
    attributes = {"K": 64, "N": 24, "block_size": 32, "bits": 4}
    product = node("MatMulNBits", ["x", "w", "s"], ["t"], domain="com.microsoft", **attributes)
    source = model([product, node("Exp", ["t"])], {"x": np.zeros((2, 64), np.float32)}, weights)
    assert [i.domain for i in source.opset_import] == [""]
    eqsat.optimize(source, form="flat").save(tmp_path / "flat.onnx")
    written = onnx.load(tmp_path / "flat.onnx")
    assert {n.op_type for n in written.graph.node} == {"MatMulNBits", "Exp"}
    assert {i.domain: i.version for i in written.opset_import}["com.microsoft"] == 1


@pytest.mark.parametrize(("order", "how"), [(("", "order"), {}), ((), {"weight_prepacked": 1}), ((), {"bits": 3})])
def test_uses_of_an_operator_that_are_not_covered_have_types(order: tuple[str, ...], how: dict[str, int]) -> None:
    """Exports say nothing of what is behind weights that were quantised afterwards."""
    graph = _product_by_packed_weights(*order, **how)
    assert graph.nodes[0].opaque
    assert str(graph.type_of("y")) == "float32[batch, seq, 24]"


def test_stale_types_are_ignored() -> None:
    stale = [helper.make_tensor_value_info("r", TensorProto.FLOAT, [1, 3])]
    source = model([node("Relu", ["x"], ["r"]), node("Exp", ["r"])], {"x": X}, shapes={"x": ("n", 3)}, value_info=stale)
    assert str(load_onnx(source).type_of("y")) == "float32[n, 3]"


def test_stored_types_fill_gaps() -> None:
    stored = [helper.make_tensor_value_info("t", TensorProto.FLOAT, [2, 3])]
    source = model(
        [node("Mystery", ["x"], ["t"], domain="org.example"), node("Exp", ["t"])], {"x": X}, value_info=stored
    )
    source.opset_import.add(domain="org.example", version=1)
    assert str(load_onnx(source).type_of("y")) == "float32[2, 3]"


def test_symbols_flow_through_computed_shapes() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["list"]),
        node("Concat", ["list", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"]),
    ]
    extents = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([-1, 2, 4])}
    source = model(nodes, {"x": noise(2, 3, 8)}, extents, shapes={"x": ("n", "m", 8)})
    graph = load_onnx(source)
    assert str(graph.type_of("y")) == "float32[n, m, 2, 4]"
    assert len(graph.nodes) == 5
    graph = load_onnx(source, dims={"n": 2})
    assert graph.envelope.known["target"].tolist() == [2, -1, 2, 4]
    assert graph.type_of("y") == TensorType(DType.FLOAT, (2, "m", 2, 4))


@pytest.mark.parametrize("numerics", ["exact", "lsb"])
def test_shapes_computed_of_products_of_known_extents_are_known(numerics: str) -> None:
    """As tf2onnx writes Einsum of known shapes: batches and heads are multiplied, which of integers is exact."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "batches"], ["lengths"]),
        node("ReduceProd", ["lengths"], ["count"], axes=[0]),
        node("Concat", ["count", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"]),
    ]
    extents = {"batches": np.array([0, 1]), "rest": np.array([-1])}
    graph = load_onnx(model(nodes, {"x": noise(2, 3, 8)}, extents, opset=17))
    assert graph.type_of("y") == TensorType(DType.FLOAT, (6, 8))
    assert eqsat.optimize(graph, numerics=numerics, form="flat").report.operators_after == {"Reshape": 1}


def test_onnx_ir_models() -> None:
    import onnx_ir

    source = model([node("Add", ["x", "w"])], {"x": X}, {"w": X}, outputs=[info("y", X)])
    graph = load_onnx(onnx_ir.from_proto(source))
    assert_same(run(source, {"x": X}), run(to_model(graph), {"x": X}))


@pytest.mark.parametrize("dtype", [TensorProto.UINT8, TensorProto.UINT16, TensorProto.INT16, TensorProto.INT4])
def test_quantisers_of_the_runtime_are_those_of_onnx(dtype: int) -> None:
    """Its tools write integers of 4 and 16 bits so in files of older opsets."""
    zero = helper.make_tensor("z", dtype, [], [3])
    constants = [zero, numpy_helper.from_array(np.asarray(0.05, np.float32), "s")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], domain="com.microsoft"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")]
    proto = helper.make_graph(nodes, "quantisers", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    source = helper.make_model(proto, opset_imports=opsets, ir_version=10)
    graph = load_onnx(source)
    assert [(n.op, n.domain, n.opaque) for n in graph.nodes] == [
        ("QuantizeLinear", "", ""),
        ("DequantizeLinear", "", ""),
    ]
    written = to_model(graph)
    assert written.opset_import[0].version == (17 if dtype == TensorProto.UINT8 else 21)
    assert_same(run(source, {"x": X}), run(written, {"x": X}))
