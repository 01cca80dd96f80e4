"""Verdicts on pairs of models and on whole programs, and the comparison underneath."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quantised_models import WIDTH, Edit, integer_chain, masked_attention, nodes_of, quantised_chain

import eqsat
from eqsat.backends.onnx_file import save_onnx, to_model_and_weights
from eqsat.backends.onnx_weights import files_of_weights
from eqsat.backends.onnxruntime import Session
from eqsat.errors import FeedError, ModelError, OptionError, VerificationError
from eqsat.exactness import Exactness
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.constants import Constant, FileRange, file_stamp
from eqsat.ir.graph import NO_ATTRIBUTES, Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import DType, TensorType
from eqsat.verification import Verification, verify_models, verify_program
from eqsat.verification.compare import Yardstick, distance
from eqsat.verification.pieces import session_of
from eqsat.verification.reference import tolerance
from eqsat.verification.sensitivity import Sensitivity


def saved(graph: Graph, path: Path) -> Path:
    save_onnx(graph, path)
    return path


def test_a_model_equals_itself(tmp_path: Path) -> None:
    a, b = saved(masked_attention(), tmp_path / "a.onnx"), saved(masked_attention(), tmp_path / "b.onnx")
    found = verify_models(a, b, runs=3)
    assert (found.verdict, found.runs) == ("equal", 3)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["outputs"]["y"]["max_abs_error"] == 0
    assert data.keys() >= {"runs", "outputs", "kernels_checked", "verdict"}


def test_models_that_differ(tmp_path: Path) -> None:
    graph = masked_attention()
    wrong = Edit(graph).change_constant(nodes_of(graph, "Mul")[0], lambda a: a * 1.01).program().graph
    found = verify_models(saved(graph, tmp_path / "a.onnx"), saved(wrong, tmp_path / "b.onnx"))
    assert found.verdict == "failed"
    assert "'y'" in found.failures[0]
    with pytest.raises(VerificationError, match="'y'"):
        found.require()


def test_models_of_different_signature_are_not_compared(tmp_path: Path) -> None:
    a, b = saved(quantised_chain(), tmp_path / "a.onnx"), saved(masked_attention(), tmp_path / "b.onnx")
    with pytest.raises(ModelError, match="inputs are"):
        verify_models(a, b)
    c = saved(quantised_chain(rows=13), tmp_path / "c.onnx")
    with pytest.raises(ModelError, match="13"):
        verify_models(a, c)


def test_own_inputs_are_used_and_checked(tmp_path: Path) -> None:
    path = saved(quantised_chain(), tmp_path / "a.onnx")
    x = np.ones((12, WIDTH), np.float32)
    assert verify_models(path, path, feeds=[{"x": x}]).runs == 1
    with pytest.raises(FeedError, match="dtype float64"):
        verify_models(path, path, feeds=[{"x": x.astype(np.float64)}])


def test_symbolic_dimensions_are_run_at_two_sizes() -> None:
    graph = quantised_chain(rows="rows")
    program = Edit(graph).change_constant(nodes_of(graph, "Mul")[9], lambda a: a * 1.01).program()
    assert verify_program(graph, Edit(graph).program()).verdict == "equal"
    assert verify_program(graph, program).verdict == "failed"


def test_exact_programs_have_to_be_equal_bit_by_bit() -> None:
    graph = quantised_chain()
    edit = Edit(graph, Exactness.EXACT)
    program = edit.change_constant(nodes_of(graph, "Add")[-1], lambda a: np.nextafter(a, np.float32(9))).program()
    found = verify_program(graph, program)
    assert found.verdict == "failed"
    assert any("must be equal" in failure for failure in found.failures)


def test_lossy_rules_are_reported_not_judged() -> None:
    graph = quantised_chain()
    edit = Edit(graph, Exactness.LOSSY, rule="gelu_by_tanh")
    program = edit.change_constant(nodes_of(graph, "Add")[-1], lambda a: a + 1).program()
    found = verify_program(graph, program)
    assert (found.verdict, found.failures) == ("not judged", [])
    assert found.outputs["y"]["max_abs_error"] == pytest.approx(1, rel=1e-4)


def test_a_quantised_model_is_more_sensitive_than_a_float_one() -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((12, WIDTH)).astype(np.float32)}
    graph = quantised_chain()
    smooth = tolerance(without_rounding(graph), feeds, Exactness.ROUNDING)["y"]
    assert 0 < smooth < 1e-3
    assert tolerance(graph, feeds, Exactness.LSB)["y"] > 10 * smooth
    assert tolerance(graph, feeds, Exactness.EXACT) == {"y": 0.0}


def without_rounding(graph: Graph) -> Graph:
    nodes = tuple(
        replace(n, op="Identity", attributes=NO_ATTRIBUTES) if n.op in ("Round", "Cast") else n for n in graph.nodes
    )
    floats = {v: TensorType(DType.FLOAT, t.shape) for v, t in graph.types.items() if isinstance(t, TensorType)}
    return replace(graph, nodes=nodes, types=floats)


def random_model(tmp_path: Path) -> Path:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["noise"]), helper.make_node("Add", ["x", "noise"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "random", [x], [y]), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    onnx.save(model, str(tmp_path / "random.onnx"))
    return tmp_path / "random.onnx"


def _misread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads every LeakyRelu with another slope from now on."""
    from eqsat.frontends.onnx import model as reading

    inline = reading.inline_functions

    def wrong(model: onnx.ModelProto) -> onnx.ModelProto:
        changed = onnx.ModelProto()
        changed.CopyFrom(inline(model))
        for node in changed.graph.node:
            if node.op_type == "LeakyRelu":
                node.attribute[0].f = 0.01
        return changed

    monkeypatch.setattr(reading, "inline_functions", wrong)


def _leaky(*, function: bool) -> onnx.ModelProto:
    """Products of rounded numbers around a LeakyRelu, in a function if that is asked for."""
    inner = [
        helper.make_node("MatMul", ["a", "w"], ["i"]),
        helper.make_node("LeakyRelu", ["i"], ["j"], alpha=0.3),
        helper.make_node("MatMul", ["j", "w"], ["b"]),
    ]
    tail = [helper.make_node("Transpose", [v], [o], perm=[1, 0]) for v, o in (("b", "t"), ("t", "y"))]
    w = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Leaky", ["a", "w"], ["b"], domain="local") if function else inner[0], *tail],
        "leaky",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    if function:
        model.functions.append(helper.make_function("local", "Leaky", ["a", "w"], ["b"], inner, opsets))
    else:
        del model.graph.node[0]
        nodes = [*inner, *model.graph.node]
        copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
    return model


@pytest.mark.parametrize("keep", [(), ("i",)])
@pytest.mark.parametrize("kind", ["file", "message", "onnx_ir"])
@pytest.mark.parametrize("function", [False, True])
def test_a_model_that_was_misread_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: bool, kind: str, keep: tuple[str, ...]
) -> None:
    """What the file says counts, also where it does not name the values by which kernels are compared, and only what noise
    moves is noise."""
    source = _leaky(function=function)
    if kind == "file":
        onnx.save(source, tmp_path / "m.onnx")
    if kind == "onnx_ir":
        import onnx_ir

        model = onnx_ir.serde.deserialize_model(source)
    else:
        model = tmp_path / "m.onnx" if kind == "file" else source
    if not (keep and function):  # inlined, the value has another name
        assert eqsat.optimize(model, keep=keep).report.verification["verdict"] in ("equal", "within tolerance")
    _misread(monkeypatch)
    kept = () if function else keep
    with pytest.raises(VerificationError, match="output 'y'"), pytest.warns(eqsat.LeftOutWarning):
        eqsat.optimize(model, keep=kept, node_limit=200)  # without the rule that it rests on transposes go on for ever


def test_random_models_are_compared_by_type_only(tmp_path: Path) -> None:
    path = random_model(tmp_path)
    found = verify_models(path, path)
    assert found.verdict == "equal"
    assert "the original does not compute the same twice" in found.notes[0]


def _noisy_pair(op: str) -> Graph:
    b = GraphBuilder("noisy pair")
    x = b.input("x", "float32", (3,))
    return b.finish({"noise": b.op("RandomNormalLike", x), "y": b.op(op, x)})


def test_outputs_beside_random_ones_are_compared() -> None:
    same = verify_models(_noisy_pair("Relu"), _noisy_pair("Relu"))
    assert same.verdict == "equal"
    assert same.notes == [
        "the original does not compute the same twice, so only shapes and dtypes were compared: noise"
    ]
    assert list(same.outputs) == ["y"]
    other = verify_models(_noisy_pair("Relu"), _noisy_pair("Abs"))
    assert other.verdict == "failed"
    assert "output 'y'" in other.failures[0]


def test_outputs_whose_length_is_drawn_are_not_compared() -> None:
    """As of models that speak, which draw how long each sound is."""
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 64))
    drawn = b.op("NonZero", b.op("Relu", b.op("RandomNormalLike", x)))
    graph = b.finish({"drawn": drawn, "y": b.op("Relu", b.op("Relu", x))})
    found = eqsat.optimize(graph).report
    assert found.verification["verdict"] == "equal"
    assert not found.left_out
    assert list(found.verification["outputs"]) == ["y"]
    assert any(note.endswith("another shape each time: drawn") for note in found.verification["notes"])


def test_kernels_that_draw_random_numbers_are_not_compared_where_the_outputs_are_the_same() -> None:
    """As in models that look up something at random places where all is the same."""
    b = GraphBuilder()
    x = b.input("x", "float32", (3,))
    drawn = b.op(
        "RandomUniformLike", b.op("Add", b.constant(np.ones(3, np.float32)), b.constant(np.ones(3, np.float32)))
    )
    graph = b.finish({"y": b.op("Add", b.op("Add", x, b.op("Floor", drawn)), b.constant(np.ones(3, np.float32)))})
    found = eqsat.optimize(graph, form="flat").report.verification
    assert found is not None
    assert found["verdict"] in ("equal", "within tolerance")
    assert found["notes"] == ["not compared: 1 kernel with random numbers"]


def test_infinities_and_nans_have_to_be_in_the_same_places() -> None:
    a = np.array([1.0, np.nan, np.inf, -0.0], np.float32)
    assert Yardstick(a).judge(np.array([1.0, np.nan, np.inf, 0.0], np.float32), exact=True).equal
    assert "NaN or infinite" in Yardstick(a).judge(np.array([1.0, np.nan, -np.inf, 0.0], np.float32)).message
    assert "shape" in distance(a, a[None]).misfit
    assert "dtype" in distance(a, a.astype(np.float64)).misfit


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_that_doubles_do_not_tell_apart_differ(dtype: type) -> None:
    a = np.array([1_700_000_000_000_000_000, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    b = np.array([1_700_000_000_000_000_090, np.iinfo(dtype).max - 1, np.iinfo(dtype).max], dtype)
    assert distance(a, a).moved == 0
    assert [distance(x, y).max_abs for x, y in zip(a[:2], b[:2], strict=True)] == [90, 1]
    assert distance(a, b).moved == 3
    assert Yardstick(a).judge(b, exact=True).message


def test_masked_scores_do_not_hide_the_others() -> None:
    scores = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    scores[:, 32:] -= 10000
    off = np.where(scores > -100, scores * np.float32(1.0005), scores)
    assert Yardstick(scores).judge(off).message
    assert not Yardstick(scores).judge(np.nextafter(scores, np.float32(0))).message


def test_labels_in_the_order_of_equal_scores_may_change_as_often_as_noise_changes_them() -> None:
    labels = np.arange(300) % 5
    for noisy, message in ((240, ""), (100, "200 of 300 elements are off by a quantum, 150 allowed")):
        yardstick = Yardstick(labels)
        yardstick.observe(np.where(np.arange(300) < noisy, 4 - labels, labels))
        moved = np.where(np.arange(300) < 250, 4 - labels, labels)  # the label in the middle stays
        assert yardstick.judge(moved).message == message


def test_session_hands_out_intermediate_values_of_a_file(tmp_path: Path) -> None:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["inner"]), helper.make_node("Relu", ["inner"], ["y"])],
            "external",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 64])],
            [helper.make_tensor("w", TensorProto.FLOAT, [64, 64], np.ones((64, 64), np.float32).tobytes(), raw=True)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(model, str(folder / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=16)
    before = sorted(p.name for p in folder.iterdir())
    session = Session(folder / "m.onnx", extra_outputs=("inner",))
    found = session.run({"x": -np.ones((2, 64), np.float32)}, ["inner", "y"])
    assert (found["inner"] == -64).all()
    assert (found["y"] == 0).all()
    assert sorted(p.name for p in folder.iterdir()) == before
    for wrong, error, message in (
        (lambda: Session(folder / "m.onnx", extra_outputs=("nowhere",)), ModelError, "'nowhere'"),
        (lambda: Session(folder / "absent.onnx"), ModelError, "no such file"),
        (lambda: Session(b"junk"), ModelError, "ONNX Runtime"),
        (lambda: Session(folder / "m.onnx", "most"), OptionError, "disable"),
        (lambda: session.run({"x": np.ones((2, 3), np.float32)}), ModelError, "x"),
    ):
        with pytest.raises(error, match=message) as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_sessions_read_weights_where_they_lie(tmp_path: Path) -> None:
    """Also of half a byte, and from a folder that is a link; what is not in a file is lent."""
    rng = np.random.default_rng(0)
    blob, path = tmp_path / "blobs", tmp_path / "model" / "weights"
    blob.mkdir()
    (tmp_path / "model").symlink_to(blob)
    codes, added = rng.integers(0, 256, 512 * 512 // 2, np.uint8), rng.standard_normal((512, 512)).astype(np.float32)
    path.write_bytes(bytes(64) + codes.tobytes() + added.tobytes())
    files = [
        Constant(TensorType(dtype, (512, 512)), None, FileRange(path, offset, size, file_stamp(path)))
        for dtype, offset, size in ((DType.UINT4, 64, codes.nbytes), (DType.FLOAT, 64 + codes.nbytes, added.nbytes))
    ]
    b = GraphBuilder("g")
    floats = b.op("DequantizeLinear", b.constant(files[0]), b.constant(np.float32(0.5)))
    product = b.op("MatMul", b.input("x", "float32", (3, 512)), b.op("Add", floats, b.constant(files[1])))
    graph = b.finish({"y": b.op("MatMul", product, b.constant(rng.standard_normal((512, 128)).astype(np.float32)))})
    folder, names = files_of_weights(list(graph.constants.values()))
    assert folder == blob
    model, lent = to_model_and_weights(graph, 1 << 16, names)
    places = [e.value for i in model.graph.initializer for e in i.external_data if e.key == "location"]
    assert sorted(places) == ["lent", "weights", "weights"]
    assert [a.shape for a in lent.values()] == [(512, 128)]
    x = rng.standard_normal((3, 512)).astype(np.float32)
    wanted = run(graph, {"x": x})["y"]
    for level in ("disable", "all"):
        np.testing.assert_allclose(session_of(graph, level).run({"x": x})["y"], wanted, rtol=1e-4, atol=0.01)
    (blob / "new").write_bytes(bytes(64 + codes.nbytes + added.nbytes))
    (blob / "new").replace(path)
    with pytest.raises(ModelError, match="changed since the model was read"):
        session_of(graph)


def test_quantised_model_end_to_end_from_files(tmp_path: Path) -> None:
    graph = integer_chain()
    path = saved(graph, tmp_path / "a.onnx")
    found = verify_program(graph, Edit(graph).program(), original_source=path)
    assert isinstance(found, Verification)
    assert found.verdict == "equal"


def test_few_elements_that_move_of_very_many_may_be_some_more() -> None:
    """A sigmoid far below 0 gives 0 or one step of its kernel: noise moved one element, the result two, and one of them twice."""
    step = 2.0**-25
    reference = np.zeros(4096, np.float32)
    reference[0] = step
    noisy, found, wrong = reference.copy(), reference.copy(), reference.copy()
    noisy[1], found[[2, 3]], wrong[:64] = step, (step, 2 * step), step
    yardstick = Yardstick(reference)
    yardstick.observe(noisy)
    assert not yardstick.judge(found).message
    assert yardstick.judge(wrong).message


def _kept(by_one_factor: bool = False) -> Graph:
    """Which elements are larger for having been multiplied by 3 and by a third: what roundings say, and how many do."""
    b = GraphBuilder()
    w = b.constant(np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32))
    y = b.op("MatMul", b.input("x", "float32", (16, 8)), w)
    factors = [1.0] if by_one_factor else [3.0, 1 / 3]
    z = y
    for factor in factors:
        z = b.op("Mul", z, b.constant(np.float32(factor)))
    return b.finish({"kept": b.op("NonZero", b.op("Greater", b.op("Sub", z, y), b.constant(np.float32(0))))})


def test_an_output_whose_shape_is_a_matter_of_roundings_is_passed_over() -> None:
    """As the boxes of a detector are, which are kept by their scores. Its kernels agree."""
    result = eqsat.optimize(_kept(), form="flat")
    assert not result.report.left_out
    found = result.report.to_dict()["verification"]
    assert found["verdict"] == "within tolerance"
    assert found["notes"] == [
        "output 'kept' was not compared: roundings of the original change its shape; the kernels were, one by one"
    ]


def test_an_output_of_another_shape_is_wrong_where_a_kernel_is() -> None:
    graph = _kept()
    wrong = Edit(graph).change_constant(nodes_of(graph, "Mul")[0], lambda a: a * 1.01).program()
    assert verify_program(graph, wrong).verdict == "failed"


def test_an_output_of_another_shape_is_wrong_where_no_kernels_are_known(tmp_path: Path) -> None:
    found = verify_models(saved(_kept(), tmp_path / "a.onnx"), saved(_kept(by_one_factor=True), tmp_path / "b.onnx"))
    assert found.verdict == "failed"


def _of_opset_10(rows: int | str) -> Graph:
    """A mask that is read holds the file at the opset it has: that of Dropout was defined anew at 12."""
    types = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [rows, 64]) for v in "xy"]
    mask = helper.make_tensor_value_info("mask", TensorProto.BOOL, [rows, 64])
    nodes = [helper.make_node("Dropout", ["x"], ["d", "mask"]), helper.make_node("Exp", ["d"], ["y"])]
    graph = helper.make_graph(nodes, "old", types[:1], [types[1], mask])
    return load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=7))


@pytest.mark.parametrize(("rows", "said"), [(4, False), ("n", True)])
def test_noise_is_none_of_what_an_old_opset_lacks(rows: int | str, said: bool) -> None:
    """Where extents may be 0 the noise takes a newer one; then the noise is left out, and nothing else."""
    graph, feeds = _of_opset_10(rows), {"x": np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64)}
    sensitivity = Sensitivity(graph, Exactness.ROUNDING)
    reference = {"y": session_of(graph).run(feeds)["y"]}
    yardsticks = {"y": Yardstick(reference["y"])}
    strict = yardsticks["y"].judge(reference["y"]).tolerance
    sensitivity.observe(yardsticks, feeds, 0, 0)
    assert ["cannot be run with noise" in note for note in sensitivity.notes] == [True] * said
    assert (yardsticks["y"].judge(reference["y"]).tolerance > strict) is not said
