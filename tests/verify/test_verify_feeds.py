"""Random inputs make sense to the model; the user's own are checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from quantised_models import masked_attention

import eqsat
from eqsat.errors import FeedError
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.verification.feeds import load_feeds, random_feeds
from eqsat.verification.pieces import session_of
from eqsat.verification.relations import symbols_of
from eqsat.verification.sizes import Sizes
from eqsat.verification.trials import Trials


@pytest.mark.parametrize("seed", range(5))
def test_token_ids_stay_in_their_table_and_masks_mask_something(seed: int) -> None:
    feeds = random_feeds(masked_attention(), seed)
    assert feeds["input_ids"].min() >= 0
    assert 8 < feeds["input_ids"].max() < 50
    mask = feeds["attention_mask"]
    assert set(np.unique(mask)) == {0, 1}
    assert (mask[:, 0] == 1).all()
    assert (np.diff(mask, axis=-1) <= 0).all()


def test_inputs_that_have_a_value_need_not_be_given(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    w = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    declared = helper.make_tensor_value_info("w", TensorProto.FLOAT, [3])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [x, declared], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = {"x": np.ones(3, np.float32)}
    np.savez(tmp_path / "given.npz", x=given["x"])
    result = eqsat.optimize(model, feeds=[given, tmp_path / "given.npz", {"w": given["x"], **given}])
    assert result.report.verification["verdict"] == "equal"
    assert eqsat.verify(model, result.to_onnx(), feeds=[given]).verdict == "equal"
    assert eqsat.optimize(model, feeds=[]).report.verification["runs"] > 0  # none are as if nothing was said
    np.testing.assert_array_equal(result(given["x"])["y"], [1, 2, 3])
    np.testing.assert_array_equal(result(given["x"], given["x"])["y"], given["x"])


def test_equal_seeds_give_equal_inputs() -> None:
    first, again, other = (random_feeds(masked_attention(), seed)["input_ids"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def lookup(offset: int) -> Graph:
    b = GraphBuilder()
    ids = b.input("ids", "int32", ("batch", "seq"))
    shifted = b.op("Add", b.op("Cast", ids, to=7), b.constant(offset, "int64"))
    flat = b.op("Reshape", shifted, b.constant([-1], "int64"))
    return b.finish({"y": b.op("Gather", b.constant(np.zeros((5, 3)), "float32"), flat, axis=0)})


def test_the_range_of_an_index_is_found_through_casts_reshapes_and_offsets() -> None:
    ids = random_feeds(lookup(2), 0, {"batch": 8, "seq": 8})["ids"]
    assert ids.dtype == np.int32
    assert ids.shape == (8, 8)
    assert (ids.min(), ids.max()) == (0, 2)


@pytest.mark.parametrize("loss", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_the_labels_of_a_loss_are_classes(loss: str) -> None:
    scores, labels = (
        helper.make_tensor_value_info(name, *kind)
        for name, kind in {"scores": (TensorProto.FLOAT, ["n", 3]), "labels": (TensorProto.INT64, ["n"])}.items()
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node(loss, ["scores", "labels"], ["y"])], "g", [scores, labels], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    drawn = random_feeds(load_onnx(model), 0, {"n": 50})["labels"]
    assert (drawn.min(), drawn.max()) == (0, 2)
    assert eqsat.optimize(model).report.verification["verdict"] == "equal"


def test_rows_of_embeddings_are_drawn_from_their_own_tables() -> None:
    b = GraphBuilder()
    ids, segments, places = (b.input(name, "int32", ("batch", 8)) for name in ("ids", "segments", "places"))
    words, rows, kinds = (b.constant(np.zeros((n, 4), np.float32)) for n in (50, 16, 2))
    vectors = [b.constant(np.ones(4, np.float32)) for _ in range(2)]
    inputs = (ids, segments, words, rows, kinds, *vectors, None, places)
    y, _, _ = b.op("EmbedLayerNormalization", *inputs, outputs=3, domain="com.microsoft")
    feeds = random_feeds(b.finish({"y": y}), 0, {"batch": 64})
    assert {name: int(drawn.max()) for name, drawn in feeds.items()} == {"ids": 49, "segments": 1, "places": 15}


def test_integers_without_a_table_and_codes() -> None:
    b = GraphBuilder()
    codes, flags = b.input("codes", "int8", (64,)), b.input("flags", "bool", (64,))
    positions = b.input("position_ids", "int64", (2, 4))
    b.op("Cast", positions, to=1)
    graph = b.finish([b.op("Cast", codes, to=1), b.op("Not", flags)])
    feeds = random_feeds(graph, 0)
    assert feeds["codes"].min() < -64
    assert feeds["codes"].max() > 64
    assert 0 < feeds["flags"].sum() < 64
    assert feeds["position_ids"].tolist() == [[0, 1, 2, 3]] * 2


def test_integers_are_negative_at_times_unless_something_is_looked_up_or_counted_by_what_they_make() -> None:
    b = GraphBuilder()
    one = b.constant(np.int64(1))
    plain, index, count, root, exponent = (
        b.input(name, "int64", (64,)) for name in ("plain", "index", "count", "root", "exponent")
    )
    table = b.constant(np.zeros((9, 2), np.float32))
    twice = b.op("Mul", b.op("Abs", index), one)
    most = b.op("ReduceMax", b.op("Mul", count, one), keepdims=1)
    outputs = [
        b.op("Mod", plain, b.constant(np.int64(3)), fmod=1),
        b.op("Gather", table, twice, axis=0),
        b.op("Expand", b.constant(np.float32(1)), most),
        b.op("Sqrt", b.op("Mul", b.op("Cast", root, to=1), b.constant(np.float32(2)))),
        b.op("Pow", b.constant(np.int64(2)), b.op("Mul", exponent, one)),
    ]
    feeds = random_feeds(b.finish(outputs), 0)
    assert feeds["plain"].min() < -4
    assert feeds["plain"].max() > 4
    assert all(feeds[name].min() >= 0 for name in feeds if name != "plain")


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8", "float32", "bool"])
def test_integers_are_divided_neither_by_zero_nor_the_least_by_minus_one(dtype: str) -> None:
    """ONNX Runtime refuses the former, and ends the process for the latter."""
    b = GraphBuilder()
    x, y, z = (b.input(name, dtype, (8, 64)) for name in "xyz")
    least = b.constant(np.int64(np.iinfo(np.int64).min))
    plain = b.op("Cast", b.op("Transpose", b.op("Concat", x, axis=0), perm=(1, 0)), to=7)
    magnitude = b.op("Mul", b.op("Abs", b.op("Cast", y, to=7)), b.constant(np.int64(3)))
    of_floats = b.op("Div", b.constant(np.float32(1)), b.op("Cast", z, to=1))
    graph = b.finish([b.op("Div", least, plain), b.op("Mod", least, magnitude), of_floats])
    feeds = random_feeds(graph, 0)
    assert all(len(np.unique(feeds[name])) > 4 for name in "xyz" if dtype != "bool")
    assert not np.isin(np.concatenate([feeds["x"], feeds["y"]]).astype(np.int64), (0, -1)).any()
    assert (np.abs(feeds["z"].astype(np.float32)) < 1).any(), "floats may be divided by anything"
    assert eqsat.optimize(graph).report.verification["runs"] == 2


def test_symbolic_dimensions_get_pairwise_different_sizes() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", ("batch", "seq", "other"))
    y = b.input("y", "float32", ("batch", "batch + seq"))
    graph = b.finish([b.op("Neg", x), b.op("Neg", y)])
    assert symbols_of(graph) == ("batch", "seq", "other")
    first, second, *_ = Sizes(graph).candidates()
    assert len(set(first.values())) == 3
    assert first != second
    feeds = random_feeds(graph, 0, first)
    assert feeds["y"].shape == (first["batch"], first["batch"] + first["seq"])


def test_own_inputs(tmp_path: Path) -> None:
    graph = lookup(0)
    good = tmp_path / "good.npz"
    np.savez(good, ids=np.zeros((2, 3), np.int32))
    assert load_feeds(good, graph)["ids"].shape == (2, 3)
    for content, message in (
        ({"ids": np.zeros((2, 3), np.int64)}, "dtype int64"),
        ({"ids": np.zeros(3, np.int32)}, r"shape \(3,\)"),
        ({"id": np.zeros((2, 3), np.int32)}, "missing .*'ids'"),
    ):
        bad = tmp_path / "bad.npz"
        np.savez(bad, **content)  # type: ignore[arg-type]
        with pytest.raises(FeedError, match=message):
            load_feeds(bad, graph)
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "array.npy", np.zeros(3))
    whole = bytearray(good.read_bytes())
    (tmp_path / "cut.npz").write_bytes(whole[:100])
    whole[60] ^= 255
    (tmp_path / "damaged.npz").write_bytes(whole)
    for name in ("text.npz", "absent.npz", "array.npy", "cut.npz", "damaged.npz"):
        with pytest.raises(FeedError, match=name):
            load_feeds(tmp_path / name, graph)


def test_inputs_beyond_all_memory_leave_a_result_that_is_not_compared() -> None:
    b = GraphBuilder("large")
    graph = b.finish({"y": b.op("Relu", b.input("x", "float32", (1 << 20, 1 << 20, 1 << 10)))})
    found = eqsat.optimize(graph).report.verification
    assert found["verdict"] == "not run"
    assert "its values take 9.007e+06 GB" in found["notes"][0]


def test_values_of_inputs_in_bfloat16_are_handed_over_as_they_are() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    w = helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    declared = helper.make_tensor_value_info("w", TensorProto.BFLOAT16, [3])
    nodes = [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), helper.make_node("Mul", ["x", "f"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x, declared], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = eqsat.optimize(model, feeds=[{"x": np.ones(3, np.float32)}])
    assert result.report.verification["verdict"] == "equal"


def test_a_sequence_is_handed_out_beside_an_input_in_bfloat16() -> None:
    b = GraphBuilder()
    x = b.op("Cast", b.input("x", "bfloat16", (4,)), to=1)
    held = b.op("SplitToSequence", x, axis=0)
    result = eqsat.optimize(b.finish({"y": b.op("ConcatFromSequence", held, axis=0), "held": held}))
    assert result.report.verification["verdict"] == "equal"


def test_sequences_are_handed_over_as_they_are() -> None:
    """Also those of arrays of one shape, which numpy would stack, and of several, which it would not."""
    graph = helper.make_graph(
        [helper.make_node("SequenceAt", ["s", "i"], ["t"]), helper.make_node("Relu", ["t"], ["y"])],
        "sequences",
        [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(1, np.int64), "i")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    alike = [np.ones(2, np.float32), np.array([-1, 2], np.float32)]
    unlike = [np.ones((2, 3), np.float32), np.array([-1, 2], np.float32)]
    for given in (alike, unlike):
        result = eqsat.optimize(model, feeds=[{"s": given}])  # pyright: ignore[reportArgumentType]
        assert result.report.verification["verdict"] == "equal"
        assert result(s=given)["y"].tolist() == [0, 2]


def test_sequences_are_drawn_where_the_type_of_their_elements_is_known() -> None:
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    known, unknown = (helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, d) for d in (["n", 3], None))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("SequenceAt", ["s", "i"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    for given, verdict in ((known, "equal"), (unknown, "not run")):
        graph = helper.make_graph(nodes, "sequences", [given, i], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        found = eqsat.optimize(model).report.verification
        assert found["verdict"] == verdict
        if given is unknown:
            assert "input 's' is a sequence of float32: random values need" in found["notes"][0]


def test_outputs_in_bfloat16_may_be_written_to() -> None:
    b = GraphBuilder()
    graph = b.finish({"y": b.op("Identity", b.input("x", "bfloat16", (4,)))})
    found = session_of(graph).run({"x": np.ones(4, graph.type_of("x").dtype.numpy)})["y"]
    assert found.flags.writeable


def test_text_that_is_read_as_numbers_is_that_of_numbers() -> None:
    words, numerals, z = (
        helper.make_tensor_value_info(n, TensorProto.STRING, [40]) for n in ("words", "numerals", "z")
    )
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 5])
    shape = numpy_helper.from_array(np.array([8, 5]), "shape")
    nodes = [
        helper.make_node("Reshape", ["numerals", "shape"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
        helper.make_node("Identity", ["words"], ["z"]),
    ]
    graph = helper.make_graph(nodes, "g", [words, numerals], [y, z], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = random_feeds(load_onnx(model), 0)
    assert all(text.isdigit() for text in feeds["numerals"])
    assert not any(text.isdigit() for text in feeds["words"])
    assert eqsat.optimize(model, form="flat").report.to_dict()["verification"]["verdict"] == "equal"


def test_what_an_image_is_resized_by_is_positive() -> None:
    """A float that a model takes beside the image, as RobustVideoMatting does."""
    b = GraphBuilder()
    x, ratio = b.input("x", "float32", (1, 1, 8, 8)), b.input("ratio", "float32", (1,))
    scales = b.op("Concat", b.constant(np.ones(2, np.float32)), ratio, ratio, axis=0)
    graph = b.finish({"y": b.op("Resize", x, None, scales, mode="linear")})
    assert all(random_feeds(graph, seed)["ratio"].item() > 0 for seed in range(20))


def _with_weights_that_may_be_overridden(shape: Sequence[int | str], steps: str = "MB") -> onnx.ModelProto:
    """A product and a norm of which the weights are inputs that have values in the file, the extents of a view among them."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 4)).astype(np.float32),
        **{
            name: np.abs(rng.standard_normal(4)).astype(np.float32) + 1
            for name in ("scale", "bias", "mean", "variance")
        },
        "shape": np.array([-1, 2, 2]),
    }
    declared = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in weights.items()
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 2, 2])
    step = {
        "M": lambda x, y: helper.make_node("MatMul", [x, "w"], [y]),
        "B": lambda x, y: helper.make_node("BatchNormalization", [x, "scale", "bias", "mean", "variance"], [y]),
    }
    nodes = [step[steps[0]]("x", "a"), step[steps[1]]("a", "b"), helper.make_node("Reshape", ["b", "shape"], ["y"])]
    held = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    graph = helper.make_graph(nodes, "g", [x, *declared], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shape", [(6, 4), ("n", 4)])
def test_weights_that_callers_may_override_are_those_of_the_file(shape: Sequence[int | str]) -> None:
    """Variances drawn at random make nothing but NaN, and extents no shape."""
    model = _with_weights_that_may_be_overridden(shape)
    verification = eqsat.optimize(model).report.verification
    assert (verification["verdict"] in ("equal", "within tolerance"), verification["runs"] >= 2) == (True, True)
    assert not verification["notes"]
    graph = load_onnx(model)
    for seed in range(4):
        own = random_feeds(graph, seed, {"n": 3})
        assert all(np.array_equal(own[t.name], numpy_helper.to_array(t)) for t in model.graph.initializer)


@pytest.mark.parametrize("steps", ["MB", "BM"])
def test_the_second_run_overrides_weights_where_the_original_makes_something_of_others(steps: str) -> None:
    """A product of a row of which one element is NaN is nothing but NaN."""
    model = _with_weights_that_may_be_overridden((6, 4), steps)
    given = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    trials = Trials(load_onnx(model), 2, 0).run(*[session_of(load_onnx(model)).run] * 2)
    first, second = ({n for n in given if not np.array_equal(t.feeds[n], given[n])} for t in trials)
    assert not first
    assert second == (given.keys() - {"shape"} if steps == "MB" else set())


def test_parts_that_do_not_fit_together_are_not_tried() -> None:
    """Behind the end of ``x`` there is nothing to join the state to, and ONNX Runtime hands out what was in memory."""
    b = GraphBuilder("step")
    x, state, i = b.input("x", "float32", (1, 4, "n")), b.input("s", "float32", (1, 1, 1)), b.input("i", "int64", (1,))
    step = b.op("Slice", x, i, b.op("Add", i, b.constant([1], "int64")), b.constant([2], "int64"))
    graph = b.finish({"y": b.op("Concat", step, state, axis=1)})
    run = session_of(graph).run
    trials = Trials(graph, 2, 0)
    found = trials.run(run, run)
    assert len(found) == 2
    assert all(t.feeds["i"].item() < t.sizes["n"] for t in (*found, *trials.empty(run, found[0], graph)))


def test_parts_joined_at_an_opset_that_is_not_read_are_tried() -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, k]) for n, k in (("a", 3), ("b", 4), ("y", 7))]
    graph = helper.make_graph([helper.make_node("Concat", ["a", "b"], ["y"], axis=1)], "g", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    assert eqsat.optimize(model).report.verification["verdict"] == "equal"


@pytest.mark.parametrize(
    ("key", "vocabulary"), [(TensorProto.STRING, ["rooms", "area", "age"]), (TensorProto.INT64, [3, 5, 1000])]
)
def test_maps_have_keys_that_are_looked_up(key: int, vocabulary: list[int] | list[str]) -> None:
    """Features by their names, as pipelines of scikit-learn and Core ML take them."""
    given = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    looked_up: dict[str, Any] = {f"{'string' if key == TensorProto.STRING else 'int64'}_vocabulary": vocabulary}
    nodes = [helper.make_node("DictVectorizer", ["m"], ["v"], domain="ai.onnx.ml", **looked_up)]
    nodes.append(helper.make_node("Identity", ["v"], ["y"]))
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph(nodes, "g", [helper.make_value_info("m", given)], [made])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    drawn = [random_feeds(load_onnx(model), seed)["m"] for seed in range(8)]
    assert all(m and m.keys() <= set(vocabulary) for m in drawn)
    assert len({frozenset(m) for m in drawn}) > 1
    found = eqsat.optimize(model).report.verification
    assert (found["verdict"], found["runs"]) == ("equal", 2)


def _encoded(taken: int, encoder: str, before: Sequence[onnx.NodeProto], **attributes: Any) -> onnx.ModelProto:
    """A column of categories, encoded as pipelines of scikit-learn have it."""
    x = helper.make_tensor_value_info("x", taken, ["n", 2])
    nodes = [*before, helper.make_node(encoder, ["column"], ["y"], domain="ai.onnx.ml", **attributes)]
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    known = [numpy_helper.from_array(np.array([1], np.int64), "one")]
    graph = helper.make_graph(nodes, "g", [x], [made], known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_encoders_that_refuse_what_is_no_category_are_given_categories() -> None:
    """OneHotEncoder of scikit-learn, whose ``handle_unknown`` is ``error`` unless it is said."""
    same = [helper.make_node("Identity", ["x"], ["column"])]
    strings = _encoded(TensorProto.STRING, "OneHotEncoder", same, cats_strings=["red", "blue"], zeros=0)
    assert set(random_feeds(load_onnx(strings), 1, {"n": 9})["x"].flat) == {"red", "blue"}
    chosen = [
        helper.make_node("Gather", ["x", "one"], ["floats"], axis=1),
        helper.make_node("Cast", ["floats"], ["column"], to=TensorProto.INT64),
    ]
    numbers = _encoded(TensorProto.FLOAT, "OneHotEncoder", chosen, cats_int64s=[3, 700], zeros=0)
    assert set(random_feeds(load_onnx(numbers), 1, {"n": 9})["x"].flat) == {3.0, 700.0}
    for model in (strings, numbers):
        assert eqsat.optimize(model).report.verification["verdict"] == "equal"


def test_encoders_with_a_value_for_the_unknown_are_given_that_too() -> None:
    same = [helper.make_node("Identity", ["x"], ["column"])]
    labels = {"values_floats": [1.0, 2.0], "default_float": -1.0}
    strings = _encoded(TensorProto.STRING, "LabelEncoder", same, keys_strings=["red", "blue"], **labels)
    assert set(random_feeds(load_onnx(strings), 1, {"n": 20})["x"].flat) == {"red", "blue", ""}
    small = [helper.make_node("Cast", ["x"], ["column"], to=TensorProto.INT64)]
    bytes_ = _encoded(TensorProto.UINT8, "LabelEncoder", small, keys_int64s=[3, 1000], **labels)
    assert set(random_feeds(load_onnx(bytes_), 1, {"n": 20})["x"].flat) == {0, 3, 1000 % 256}
    for model in (strings, bytes_):
        assert eqsat.optimize(model).report.verification["verdict"] == "equal"
