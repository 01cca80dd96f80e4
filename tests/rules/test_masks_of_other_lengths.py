"""Attention under masks whose length has another name than the number of keys: as many, or one for all."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import eqsat
from eqsat.backends.onnxruntime import Session

Q, N, D = 3, 2, 16
"""Queries, heads, and the size of each."""


def _decoder(mask: str, *, cut: bool = False, in_rows: bool = False, values: str = "stored") -> onnx.ModelProto:
    """Attention of new queries to stored keys, as many as ``stored`` says or to these and new ones, under a ``mask`` of so many.

    ``cut``: to as many as there are keys. ``in_rows``: batch and heads are one axis but where the mask is added. ``values``: how
    many values there are.
    """
    appended, initializers = mask != "other", []

    def constant(name: str, value: np.ndarray | np.float32) -> str:
        initializers.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def view(source: str, target: str, *extents: int) -> onnx.NodeProto:
        return helper.make_node("Reshape", [source, constant(f"{target}.shape", np.array(extents))], [target])

    nodes = [
        helper.make_node("Concat", ["stored", "new"], ["keys"], axis=2)
        if appended
        else helper.make_node("Identity", ["stored"], ["keys"]),
        helper.make_node("Transpose", ["keys"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["new", "turned"], ["products"]),
        helper.make_node("Cast", ["mask"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Sub", [constant("one", np.float32(1)), "number"], ["closed"]),
        helper.make_node("Mul", ["closed", constant("low", np.float32(-1e4))], ["lowered"]),
        helper.make_node("Unsqueeze", ["lowered", constant("axes", np.array([1, 2]))], ["whole"]),
        helper.make_node("Shape", ["keys"], ["count"], start=2, end=3),
        helper.make_node(
            "Slice", ["whole", constant("first", np.array([0])), "count", constant("last", np.array([3]))], ["bias"]
        )
        if cut
        else helper.make_node("Identity", ["whole"], ["bias"]),
    ]
    if in_rows:
        nodes[2:3] = [
            view("new", "queries", -1, Q, D),
            helper.make_node("Concat", [constant("n", np.array([-1, D])), "count"], ["in rows"], axis=0),
            helper.make_node("Reshape", ["turned", "in rows"], ["columns"]),
            helper.make_node("MatMul", ["queries", "columns"], ["all products"]),
            helper.make_node("Concat", [constant("four", np.array([-1, N, Q])), "count"], ["of heads"], axis=0),
            helper.make_node("Reshape", ["all products", "of heads"], ["products"]),
        ]
        nodes.insert(0, nodes.pop(-2))
    nodes += [
        helper.make_node("Add", ["products", "bias"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "keys" if values == "stored" else "values"], ["y"]),
    ]
    shapes = {
        "mask": ["batch", mask],
        "stored": ["batch", N, "past", D],
        "new": ["batch", N, Q if in_rows else "seq", D],
    }
    shapes |= {} if values == "stored" else {"values": ["batch", N, values, D]}
    kinds = {name: TensorProto.BOOL if name == "mask" else TensorProto.FLOAT for name in shapes}
    inputs = [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _same(source: onnx.ModelProto, result: eqsat.Result, past: int, length: int) -> None:
    rng = np.random.default_rng(past)
    draw = {n: rng.normal(size=(2, N, k, D)).astype(np.float32) for n, k in (("stored", past), ("new", Q))}
    feeds = {"mask": rng.integers(0, 2, (2, length)).astype(bool), **draw}
    feeds["mask"][:, 0] = True
    ours, theirs = (Session(m).run(feeds)["y"] for m in (result.to_onnx(), source))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mask", "appended"), [("past + 1", Q), ("other", 0), ("all", Q)])
@pytest.mark.parametrize("cut", [False, True])
def test_a_mask_is_for_as_many_keys_as_there_are(mask: str, appended: int, cut: bool) -> None:
    """As Optimum calls the length of a decoder's mask ``past + 1`` and has a name of its own for the encoder's."""
    source = _decoder(mask, cut=cut)
    result = eqsat.optimize(source)
    assert result.report.recognized["attention"] == 1
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    for past in (4, 1, 7):
        _same(source, result, past, past + appended)
        _same(source, result, past, 1)  # one for all keys
        if cut:
            _same(source, result, past, past + appended + 2)


def test_a_mask_is_added_to_scores_that_tell_heads_apart() -> None:
    source = _decoder("other", in_rows=True)
    result = eqsat.optimize(source)
    assert result.report.recognized["attention"] == 1
    for past, length in ((4, 4), (4, 1), (1, 1)):
        _same(source, result, past, length)


def test_keys_are_as_many_as_values() -> None:
    """Of one key and a mask for seven there may be seven probabilities."""
    source = _decoder("other", values="other")
    result = eqsat.optimize(source, verify=False)
    assert "attention" not in result.report.recognized
    rng = np.random.default_rng(0)
    draw = {n: rng.normal(size=(2, N, k, D)).astype(np.float32) for n, k in (("stored", 1), ("new", Q), ("values", 7))}
    feeds = {"mask": rng.integers(0, 2, (2, 7)).astype(bool), **draw}
    ours, theirs = (Session(m).run(feeds)["y"] for m in (result.to_onnx(), source))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
