"""Files for OpenVINO: quantisers in pairs before what moves elements, arithmetic where a level is infinite."""

from importlib.util import find_spec

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnx_form import in_form
from eqsat.backends.openvino import OpenVino
from eqsat.ir.interpret import run

LOWEST = np.float32(np.finfo(np.float32).min)
X = {"x": np.array([[0, 1, -5, 3, LOWEST, -2.7e36, 1e30, -LOWEST, 4e36, -1.34e36]], np.float32)}


def pair(scale: float, zero: np.integer) -> eqsat.Graph:
    b = eqsat.GraphBuilder()
    operands = b.constant(np.float32(scale)), b.constant(zero)
    q = b.op("QuantizeLinear", b.input("x", "float32", (1, 10)), *operands)
    return b.finish({"y": b.op("DequantizeLinear", q, *operands)})


PAIRS = [(2.6793886e36, np.int8(0)), (2.6793886e36, np.int8(-5)), (2.0e36, np.uint8(3))]


@pytest.mark.parametrize(("scale", "zero"), PAIRS)
def test_they_compute_the_same(scale: float, zero: np.integer) -> None:
    graph = pair(scale, zero)
    written = in_form(graph, "openvino")
    written.check()
    assert "QuantizeLinear" not in written.operator_counts()
    with np.errstate(over="ignore", invalid="ignore"):
        np.testing.assert_array_equal(run(written, X)["y"], run(graph, X)["y"])
    assert in_form(graph, "flat") is graph


@pytest.mark.parametrize("scale", [0.05, 1.3e36])
def test_others_stay_as_they_are(scale: float) -> None:
    graph = pair(scale, np.uint8(255))
    assert in_form(graph, "openvino") is graph


def two_pairs(between: str, *, integers: bool = False) -> eqsat.Graph:
    """Two pairs behind a Concat, and one operator between them, or within the second one."""
    b, rest = eqsat.GraphBuilder("pairs"), []
    first, second = ((b.constant(np.float32(s)), b.constant(np.int8(z))) for s, z in ((0.08, 3), (0.1, 0)))
    if between == "Reshape":
        rest.append(b.constant(np.array([3, 4], np.int64)))
    x = b.op("Concat", b.input("x", "float32", (2, 3)), b.input("y", "float32", (2, 3)), axis=1)
    x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, *first), *first)
    x = x if integers else b.op(between, x, *rest)
    q = b.op("QuantizeLinear", x, *second)
    return b.finish({"z": b.op("DequantizeLinear", b.op(between, q, *rest) if integers else q, *second)})


@pytest.mark.parametrize(("between", "integers"), [("Reshape", False), ("Reshape", True), ("Relu", False)])
def test_no_pair_comes_directly_behind_another(between: str, integers: bool) -> None:
    """OpenVINO ends the process where that is behind a Concat."""
    graph = two_pairs(between, integers=integers)
    written = in_form(graph, "openvino")
    written.check()
    producers = written.producers()
    for node in written.nodes:
        if node.op == "QuantizeLinear":
            assert producers[node.inputs[0]].op != "DequantizeLinear"
    feeds = {name: np.linspace(-9, 9, 6, dtype=np.float32).reshape(2, 3) for name in "xy"}
    np.testing.assert_array_equal(run(written, feeds)["z"], run(graph, feeds)["z"])


OPERANDS = {"Add": [np.float32(1)], "BatchNormalization": [np.linspace(1, 2, 6, dtype=np.float32)] * 4}


def behind_concat(first: np.integer, *, operator: str = "", axes: bool = False) -> eqsat.Graph:
    """Two pairs in a row behind a Concat, one operator between or not; the first with a zero point for each slice or not."""
    b = eqsat.GraphBuilder("pairs")
    x = b.op("Concat", b.input("x", "float32", (2, 3, 4)), b.input("y", "float32", (2, 3, 4)), axis=1)
    x = b.op("Mul", b.op("Relu", x), b.constant(np.float32(2)))
    zeros = first + np.arange(6, dtype=first.dtype) if axes else first
    for scale, zero in ((np.linspace(0.08, 0.09, 6, dtype=np.float32) if axes else 0.08, zeros), (0.1, np.int8(0))):
        operands = b.constant(np.asarray(scale, np.float32)), b.constant(np.asarray(zero))
        x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, *operands, axis=1), *operands, axis=1)
        further = [b.constant(o) for o in OPERANDS.get(operator, [])]
        x = b.op(operator, x, *further) if operator else x
    return b.finish({"z": x})


HIDDEN = [
    (np.int8(3), "", False, 1),
    (np.uint8(128), "Add", False, 1),
    (np.int8(3), "BatchNormalization", False, 1),
    (np.int8(3), "", True, 1),
]
IN_SIGHT = [(np.int8(0), "", False, 0), (np.int8(3), "Sigmoid", False, 0)]


@pytest.mark.parametrize(("first", "operator", "axes", "hidden"), HIDDEN + IN_SIGHT)
def test_quantisers_see_no_concat_before_which_they_cannot_be_moved(
    first: np.integer, operator: str, axes: bool, hidden: int
) -> None:
    graph = behind_concat(first, operator=operator, axes=axes)
    written = in_form(graph, "openvino")
    written.check()
    assert written.operator_counts().get("Max", 0) == hidden
    assert in_form(written, "openvino") is written
    feeds = {name: np.linspace(-9, 9, 24, dtype=np.float32).reshape(2, 3, 4) for name in "xy"}
    expected = run(graph, feeds)["z"]
    np.testing.assert_array_equal(run(written, feeds)["z"], expected)
    if find_spec("openvino") is not None:
        np.testing.assert_allclose(eqsat.run(written, feeds, engine="openvino")["z"], expected, atol=0.11)


def test_equal_scales_for_each_slice_are_one() -> None:
    b = eqsat.GraphBuilder()
    scales = b.constant(np.full(4, 0.02, np.float32)), b.constant(np.full(4, 3, np.int8))
    other = b.constant(np.array([0.01, 0.02, 0.02, 0.02], np.float32)), scales[1]
    weight = b.op("DequantizeLinear", b.constant(np.ones((4, 4), np.int8)), *scales, axis=0)
    x, outputs = b.input("x", "float32", (2, 4)), {}
    for name, operands in (("y", scales), ("z", other)):
        q = b.op("QuantizeLinear", x, *operands, axis=1)
        outputs[name] = b.op("MatMul", b.op("DequantizeLinear", q, *operands, axis=1), weight)
    graph = b.finish(outputs)
    written = in_form(graph, "openvino")
    written.check()
    sizes = [written.constants[n.inputs[1]].size for n in written.nodes if n.op.endswith("Linear")]
    assert sorted(sizes) == [1, 1, 4, 4, 4]
    feeds = {"x": np.random.default_rng(8).uniform(-3, 3, (2, 4)).astype(np.float32)}
    for name, value in run(written, feeds).items():
        np.testing.assert_array_equal(value, run(graph, feeds)[name])


needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")


@needs_openvino
@pytest.mark.parametrize(("scale", "zero"), PAIRS)
def test_openvino_computes_them_right(scale: float, zero: np.integer) -> None:
    graph = pair(scale, zero)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = run(graph, X)["y"]
    np.testing.assert_allclose(eqsat.run(graph, X, engine="openvino")["y"], expected, rtol=1e-5, atol=1e-6 * scale)


def moved_heads(read_again: bool = False) -> eqsat.Graph:
    """Heads of two quantised products, quantised behind the movement, dequantised behind more of it; and their product."""
    draw = np.random.default_rng(3)
    b = eqsat.GraphBuilder()
    scale, zero = b.constant(np.float32(0.02)), b.constant(np.int8(0))
    x = b.op("DequantizeLinear", b.op("QuantizeLinear", b.input("x", "float32", (2, 16, 64)), scale, zero), scale, zero)
    outputs, heads = {}, []
    for name, perm in (("a", (0, 2, 1, 3)), ("b", (0, 2, 3, 1))):
        weight = b.constant(draw.integers(-127, 128, (64, 64)).astype(np.int8))
        y = b.op("MatMul", x, b.op("DequantizeLinear", weight, b.constant(np.float32(0.003)), zero))
        y = b.op("Reshape", y, b.constant(np.array([2, 16, 4, 16])))
        q = b.op("QuantizeLinear", y, b.constant(np.float32(0.05)), zero, axis=3)
        q = b.op("Transpose", q, perm=perm)
        heads.append(b.op("DequantizeLinear", q, b.constant(np.float32(0.06)), zero, axis=2))
        if read_again:
            outputs[name] = b.op("Neg", y)
            outputs[f"{name} transposed"] = b.op("Transpose", q, perm=(3, 1, 0, 2))
    return b.finish({"y": b.op("MatMul", *heads), **outputs})


FEEDS = {"x": np.random.default_rng(4).uniform(-3, 3, (2, 16, 64)).astype(np.float32)}


@pytest.mark.parametrize("read_again", [False, True])
def test_quantisers_before_movement_compute_the_same(read_again: bool) -> None:
    graph = moved_heads(read_again)
    written = in_form(graph, "openvino")
    written.check()
    expected = run(graph, FEEDS)
    for name, value in run(written, FEEDS).items():
        np.testing.assert_array_equal(value, expected[name])
        assert written.type_of(name) == graph.type_of(name)
    assert in_form(graph, "flat") is graph


def test_products_are_quantised_before_their_results_are_moved() -> None:
    written = in_form(moved_heads(), "openvino")
    made = written.producers()
    quantised = [n for n in written.nodes if n.op == "QuantizeLinear"]
    assert sorted(made[n.inputs[0]].op for n in quantised if n.inputs[0] in made) == ["MatMul", "MatMul"]
    readers = [n.op for n in written.nodes for q in quantised if q.outputs[0] in n.inputs]
    assert readers == ["DequantizeLinear"] * 3


def test_floats_that_others_read_are_not_transposed_twice() -> None:
    b = eqsat.GraphBuilder()
    scale, zero = b.constant(np.float32(0.02)), b.constant(np.int8(0))
    x = b.op("Transpose", b.input("x", "float32", (4, 5)), perm=(1, 0))
    y = b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero)
    graph = b.finish({"y": y, "z": b.op("Relu", x)})
    assert in_form(graph, "openvino") is graph


def test_a_scale_for_each_slice_stays_where_it_is() -> None:
    b = eqsat.GraphBuilder()
    scales, zeros = b.constant(np.array([0.1, 0.2, 0.3], np.float32)), b.constant(np.zeros(3, np.int8))
    x = b.op("Transpose", b.input("x", "float32", (3, 4)), perm=(1, 0))
    q = b.op("QuantizeLinear", x, scales, zeros, axis=1)
    graph = b.finish({"y": b.op("DequantizeLinear", b.op("Transpose", q, perm=(1, 0)), scales, zeros, axis=0)})
    assert in_form(graph, "openvino") is graph


@needs_openvino
def test_openvino_computes_on_moved_integers() -> None:
    counts = {}
    for form in ("openvino", "flat"):
        loaded = OpenVino(to_model(moved_heads(), form=form).SerializeToString(), 1, profile=True).feed(FEEDS)
        loaded.run()
        counts[form] = loaded.node_counts()
    assert counts["openvino"].total() < counts["flat"].total()
    assert counts["openvino"]["f32"] < counts["flat"]["f32"]


def test_pairs_with_an_infinite_level_are_floats_throughout() -> None:
    assert "Cast" not in in_form(pair(2.6793886e36, np.int8(0)), "openvino").operator_counts()


def test_scales_of_slices_behind_an_infinite_level_stay_along_their_axis() -> None:
    b = eqsat.GraphBuilder()
    x, scales = b.input("x", "float32", (3, 3)), b.constant(np.array([0.5, 1.0, 2.0], np.float32))
    q = b.op("QuantizeLinear", x, b.constant(np.float32(2.6793886e36)))
    graph = b.finish({"y": b.op("DequantizeLinear", q, scales, axis=0)})
    feeds = {"x": np.arange(9, dtype=np.float32).reshape(3, 3) * 1e37}
    np.testing.assert_array_equal(run(in_form(graph, "openvino"), feeds)["y"], run(graph, feeds)["y"])


def quantised_block() -> eqsat.Graph:
    """A convolution with few weights between pairs, Relu behind it, and the pair again that rules find to be one too many."""
    draw = np.random.default_rng(5)
    b = eqsat.GraphBuilder()
    zero = b.constant(np.int8(0))

    def paired(value: str, scale: float) -> str:
        operands = b.constant(np.float32(scale)), zero
        return b.op("DequantizeLinear", b.op("QuantizeLinear", value, *operands), *operands)

    x = paired(b.input("x", "float32", (1, 8, 9, 9)), 0.02)
    for _ in range(2):
        scales = b.constant(draw.uniform(0.001, 0.003, 8).astype(np.float32)), b.constant(np.zeros(8, np.int8))
        weight = b.constant(draw.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8))
        y = b.op("Conv", x, b.op("DequantizeLinear", weight, *scales, axis=0))
        x = paired(b.op("Relu", paired(y, 0.04)), 0.04)
    return b.finish({"y": x})


@pytest.mark.parametrize("form", ["openvino", "tensorrt"])
def test_products_read_dequantised_integers_on_both_sides(form: str) -> None:
    result = eqsat.optimize(quantised_block(), consumer=form)
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    graph = in_form(result.program.graph, form)
    makers = graph.producers()
    products = [n for n in graph.nodes if n.op == "Conv"]
    assert len(products) == 2
    assert {makers[n.inputs[1]].op for n in products} == {"DequantizeLinear"}
    if form == "openvino":
        assert {makers[n.inputs[0]].op for n in products} == {"DequantizeLinear"}
        assert graph.operator_counts()["QuantizeLinear"] == 3


@pytest.mark.parametrize("form", ["openvino", "tensorrt"])
@pytest.mark.parametrize("scales", [1, 96])
def test_weights_that_come_as_floats_are_bytes_beside_bytes(form: str, scales: int) -> None:
    """As tools leave them that fold what dequantises weights, and training for bytes stores them."""
    b, draw = eqsat.GraphBuilder("folded"), np.random.default_rng(0)
    pair = b.constant(np.float32(0.02)), b.constant(np.int8(0))
    x = b.op("DequantizeLinear", b.op("QuantizeLinear", b.input("x", "float32", (8, 64)), *pair), *pair)
    steps = draw.uniform(0.001, 0.01, scales).astype(np.float32)
    y = b.op("MatMul", x, b.constant(draw.integers(-127, 128, (64, 96)).astype(np.float32) * steps))
    graph = b.finish({"y": y})
    result = eqsat.optimize(graph, form=form)
    assert result.report.operators_after["DequantizeLinear"] == 2
    assert result.report.constant_bytes_after < result.report.constant_bytes_before / 3
    assert result.report.exactness == "rounding"
    assert result.report.rules["recognise_multiples_of_a_step"]["uses"] > 0
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    assert eqsat.optimize(graph, form=form, numerics="exact").report.operators_after["DequantizeLinear"] == 1


def test_pairs_that_others_read_stay_before_relu() -> None:
    b = eqsat.GraphBuilder()
    operands = b.constant(np.float32(0.02)), b.constant(np.int8(0))
    y = b.op("DequantizeLinear", b.op("QuantizeLinear", b.input("x", "float32", (2, 3)), *operands), *operands)
    graph = b.finish({"y": b.op("Relu", y), "z": y})
    assert in_form(graph, "openvino") is graph


@pytest.mark.parametrize("zero", [np.int8(-7), np.uint8(128)])
def test_relu_before_a_pair_computes_the_same(zero: np.integer) -> None:
    b = eqsat.GraphBuilder()
    operands = b.constant(np.float32(0.02)), b.constant(zero)
    y = b.op("DequantizeLinear", b.op("QuantizeLinear", b.input("x", "float32", (64,)), *operands), *operands)
    graph = b.finish({"y": b.op("Relu", y)})
    written = in_form(graph, "openvino")
    assert [n.op for n in written.nodes] == ["Relu", "QuantizeLinear", "DequantizeLinear"]
    feeds = {"x": np.random.default_rng(6).uniform(-4, 4, 64).astype(np.float32)}
    np.testing.assert_array_equal(run(written, feeds)["y"], run(graph, feeds)["y"])


def test_rotary_embeddings_stay_as_openvino_finds_them() -> None:
    b = eqsat.GraphBuilder()
    angles = np.tile(np.outer(np.arange(6), 10_000.0 ** -np.arange(0, 1, 1 / 4)), 2)[None, None].astype(np.float32)
    x = b.input("x", "float32", (2, 3, 6, 8))
    first, second = b.op("Split", x, b.constant(np.array([4, 4])), outputs=2, axis=3)
    turned = b.op("Concat", b.op("Neg", second), first, axis=3)
    y = b.op("Add", b.op("Mul", x, b.constant(np.cos(angles))), b.op("Mul", turned, b.constant(np.sin(angles))))
    graph = b.finish({"y": y})
    for consumer, found in (("openvino", 0), ("onnxruntime", 1)):
        counts = eqsat.optimize(graph, consumer=consumer).program.graph.operator_counts()
        assert sum(n for op, n in counts.items() if op.endswith("RotaryEmbedding")) == found


def test_angles_of_rotary_embeddings_have_the_rank_of_what_they_turn() -> None:
    b = eqsat.GraphBuilder()
    x, angles = b.input("x", "float32", (2, 3, "n", 8)), b.input("angles", "float32", (1, "n", 8))
    first, second = b.op("Split", x, b.constant(np.array([4, 4])), outputs=2, axis=3)
    turned = b.op("Concat", b.op("Neg", second), first, axis=3)
    y = b.op("Add", b.op("Mul", x, b.op("Cos", angles)), b.op("Mul", turned, b.op("Sin", angles)))
    graph = b.finish({"y": y})
    written = in_form(graph, "openvino")
    written.check()
    makers = written.producers()
    products = [n for n in written.nodes if n.op == "Mul"]
    assert [makers[n.inputs[1]].op for n in products] == ["Unsqueeze"] * 2
    feeds = {
        k: np.random.default_rng(7).standard_normal(s).astype(np.float32)
        for k, s in (("x", (2, 3, 5, 8)), ("angles", (1, 5, 8)))
    }
    np.testing.assert_array_equal(run(written, feeds)["y"], run(graph, feeds)["y"])
    assert in_form(written, "openvino") is written


def test_outputs_that_are_inputs_with_a_value_are_read() -> None:
    """Else OpenVINO does not load the model."""
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xwy"]
    default = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", floats[:2], floats[1:], [default])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    written = to_model(eqsat.optimize(model, consumer="openvino").program.graph, form="openvino")
    assert [list(n.input) for n in written.graph.node] == [["x"], ["w"]]
    assert [i.name for i in written.graph.input] == ["x", "w"]
    if find_spec("openvino") is not None:
        loaded = OpenVino(written.SerializeToString(), 1).feed({"x": np.zeros(3, np.float32)})
        loaded.run()
        np.testing.assert_array_equal(loaded.outputs()["w"], [1, 2, 3])
