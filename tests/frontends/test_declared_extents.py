"""Names of extents that are true for one element only, as Optimum calls the length of a decoder's mask."""

import numpy as np
import onnx
import pytest
from onnx_models import Arrays, assert_same, model, node, noise, run

import eqsat
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.types import Dim, TensorType

ALL = "past + seq"


def _decoder(*, cut: bool = False, called: str = "past + 1") -> onnx.ModelProto:
    """Attention of new queries to stored keys and values, which are values of their own, and to their own, under a mask of all.

    ``cut``: to as many keys as there are, which may be fewer than it has.
    """
    constants = {"axes": np.array([1, 2]), "one": np.float32(1), "low": np.float32(-1e4), "to": np.array([0, 0, 0, 0])}
    nodes = [
        node("Concat", ["stored", "new"], ["keys"], axis=2),
        node("Transpose", ["keys"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["new", "turned"], ["products"]),
        node("Cast", ["mask"], ["number"], to=1),
        node("Sub", ["one", "number"], ["closed"]),
        node("Mul", ["closed", "low"], ["lowered"]),
        node("Unsqueeze", ["lowered", "axes"], ["whole"]),
        node("Add", ["products", "bias"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "keys"], ["y"]),
    ]
    if cut:
        constants |= {"first": np.array([0]), "last": np.array([3])}
        nodes[7:7] = [
            node("Shape", ["keys"], ["count"], start=2, end=3),
            node("Slice", ["whole", "first", "count", "last"], ["bias"]),
        ]
    else:
        nodes[7:7] = [node("Identity", ["whole"], ["bias"])]
    return model(
        nodes,
        {"mask": np.ones((1, 1), bool), "stored": noise(1, 2, 1, 16), "new": noise(1, 2, 1, 16)},
        constants,
        outputs=["y", "keys"],
        shapes={"mask": ["batch", called], "stored": ["batch", 2, "past", 16], "new": ["batch", 2, "seq", 16]},
    )


def _feeds(past: int, seq: int, length: int) -> Arrays:
    mask = np.ones((2, length), bool)
    mask[1, :1] = length == 1
    return {"mask": mask, "stored": noise(2, 2, past, 16), "new": noise(2, 2, seq, 16)}


def _extents(graph: eqsat.Graph, value: str) -> tuple[Dim, ...] | None:
    found = graph.type_of(value)
    assert isinstance(found, TensorType)
    return found.shape


def test_an_extent_is_what_it_meets_where_only_a_one_differs() -> None:
    graph = load_onnx(_decoder())
    assert _extents(graph, "mask") == ("batch", ALL)
    assert _extents(graph, "scores") == ("batch", 2, "seq", ALL)


@pytest.mark.parametrize("called", ["past + 2", "past + batch", "all", "past"])
def test_other_names_say_what_they_say(called: str) -> None:
    graph = load_onnx(_decoder(called=called))
    assert _extents(graph, "mask") == ("batch", called.replace("past + batch", "batch + past"))


def test_what_is_cut_to_what_it_meets_is_declared_as_it_may_be() -> None:
    graph = load_onnx(_decoder(cut=True))
    assert _extents(graph, "mask") == ("batch", "past + 1")
    assert _extents(graph, "scores") == ("batch", 2, "seq", ALL)


@pytest.mark.parametrize("cut", [False, True])
def test_a_decoder_under_such_a_mask_has_attention(cut: bool) -> None:
    source = _decoder(cut=cut)
    result = eqsat.optimize(source)
    assert result.report.recognized["attention"] == 1
    assert result.report.verification["verdict"] in ("equal", "within tolerance")
    written = result.to_onnx()
    for past, seq in ((4, 1), (4, 3), (0, 1), (0, 5)):
        feeds = _feeds(past, seq, past + seq)
        np.testing.assert_allclose(run(written, feeds)[0], run(source, feeds)[0], rtol=1e-4, atol=1e-5)
    if cut:  # it may be longer, or one for all keys
        for length in (9, 1):
            feeds = _feeds(4, 3, length)
            np.testing.assert_allclose(run(written, feeds)[0], run(source, feeds)[0], rtol=1e-4, atol=1e-5)


def test_the_report_and_the_file_say_what_an_extent_is_taken_for() -> None:
    result = eqsat.optimize(_decoder(), verify=False)
    assert result.report.read_as == {"past + 1": ALL}
    assert "an extent called 'past + 1' are taken to have past + seq" in str(result.report)
    mask = next(i for i in result.to_onnx().graph.input if i.name == "mask")
    assert [d.dim_param for d in mask.type.tensor_type.shape.dim] == ["batch", ALL]
    again = eqsat.optimize(result.to_onnx(), verify=False)
    assert not again.report.read_as
    assert not eqsat.optimize(_decoder(cut=True), verify=False).report.read_as
    feeds = _feeds(4, 3, 7)
    assert_same(run(result.to_onnx(), feeds), run(again.to_onnx(), feeds))


@pytest.mark.parametrize(("past", "length"), [(4, 5), (0, 1)])
def test_a_mask_of_another_length_is_refused(past: int, length: int) -> None:
    written = eqsat.optimize(_decoder(), verify=False).to_onnx()
    with pytest.raises(Exception, match="inconsistent total_sequence_length"):
        run(written, _feeds(past, 3, length))
