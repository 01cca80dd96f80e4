"""Attention under masks whose length has another name than the number of keys: as many, or one for all."""

import numpy as np
import pytest
from attention_graphs import ints

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph

Q, N, D = 3, 2, 16
"""Queries, heads, and the size of each."""


def _decoder(mask: str, *, cut: bool = False, in_rows: bool = False, values: str = "stored") -> Graph:
    """Attention of new queries to stored keys, as many as ``stored`` says or to these and new ones, under a ``mask`` of so many.

    ``cut``: to as many as there are keys. ``in_rows``: batch and heads are one axis but where the mask is added. ``values``: how
    many values there are.
    """
    b = GraphBuilder()
    given, stored = b.input("mask", "bool", ("batch", mask)), b.input("stored", "float32", ("batch", N, "past", D))
    new = b.input("new", "float32", ("batch", N, Q if in_rows else "seq", D))
    keys = stored if mask == "other" else b.op("Concat", stored, new, axis=2)
    count, turned = b.op("Shape", keys, start=2, end=3), b.op("Transpose", keys, perm=(0, 1, 3, 2))
    if in_rows:
        columns = b.op("Reshape", turned, b.op("Concat", ints(b, -1, D), count, axis=0))
        products = b.op("MatMul", b.op("Reshape", new, ints(b, -1, Q, D)), columns)
        products = b.op("Reshape", products, b.op("Concat", ints(b, -1, N, Q), count, axis=0))
    else:
        products = b.op("MatMul", new, turned)
    closed = b.op("Sub", b.constant(np.float32(1)), b.op("Cast", given, to=1))
    bias = b.op("Unsqueeze", b.op("Mul", closed, b.constant(np.float32(-1e4))), ints(b, 1, 2))
    if cut:
        bias = b.op("Slice", bias, ints(b, 0), count, ints(b, 3))
    p = b.op("Softmax", b.op("Add", products, bias))
    v = keys if values == "stored" else b.input("values", "float32", ("batch", N, values, D))
    return b.finish({"y": b.op("MatMul", p, v)})


def _same(source: Graph, result: eqsat.Result, past: int, length: int) -> None:
    rng = np.random.default_rng(past)
    draw = {n: rng.normal(size=(2, N, k, D)).astype(np.float32) for n, k in (("stored", past), ("new", Q))}
    feeds = {"mask": rng.integers(0, 2, (2, length)).astype(bool), **draw}
    feeds["mask"][:, 0] = True
    ours, theirs = (Session(m).run(feeds)["y"] for m in (result.to_onnx(), to_model(source)))
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
    ours, theirs = (Session(m).run(feeds)["y"] for m in (result.to_onnx(), to_model(source)))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
