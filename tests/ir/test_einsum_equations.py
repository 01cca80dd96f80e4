"""Equations of Einsum: what they say of operands of given ranks, and what ONNX Runtime and numpy compute."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from eqsat.ir.einsum import equation_of
from eqsat.ir.graph import Attributes
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import operator
from eqsat.ir.operators.matmul import as_kernels_do

EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    (" i j , j k -> k i ", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("kj,ji", (2, 3), (3, 4)),
    ("ii", (3, 3)),
    ("ii->i", (3, 3)),
    ("...ii->...i", (2, 3, 3)),
    ("ba", (2, 3)),
    ("ijk->", (2, 3, 4)),
    ("Bi,Bj->iBj", (2, 3), (2, 4)),
    ("aA,Ab->ab", (2, 3), (3, 4)),
    ("...ij,...jk->...ik", (1, 2, 3), (5, 3, 4)),
    ("...ij,...jk", (2, 3), (5, 3, 4)),
    ("i...j,j...->...i", (2, 5, 3), (3, 5)),
    ("i...,i...->...", (2, 3), (2, 3)),
    ("...ij->ij", (2, 3)),
    ("ij->...ij", (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("ij,ij->ij", (1, 3), (2, 1)),
    ("ij,jj->i", (2, 3), (3, 3)),
    (",->", (), ()),
    ("i,->i", (3,), ()),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
    ("i,i,i->i", (3,), (3,), (3,)),
]


@pytest.mark.parametrize(("equation", "shapes"), [(text, shapes) for text, *shapes in EQUATIONS])
def test_einsum_computes_what_onnx_runtime_and_numpy_do(equation: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=s).astype(np.float32) for s in shapes]
    definition = operator("Einsum")
    assert definition is not None
    (found,) = definition.evaluate(Attributes({"equation": equation}), inputs)
    np.testing.assert_allclose(found, np.einsum(equation, *inputs), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, _by_onnx_runtime(equation, inputs), rtol=1e-5, atol=1e-5)


def _by_onnx_runtime(equation: str, inputs: list[np.ndarray]) -> np.ndarray:
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node("Einsum", names, ["y"], equation=equation)
    declared = [helper.make_tensor_value_info(n, 1, None) for n in names]  # shape inference refuses some that run
    graph = helper.make_graph([node], "one", declared, [helper.make_value_info("y", onnx.TypeProto())])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(zip(names, inputs, strict=True)))[0])


def test_capital_letters_come_before_small_ones_in_a_result_that_is_not_stated() -> None:
    found = equation_of("bA,Ac", (2, 2))
    assert found is not None
    assert found.result == ("b", "c")
    found = equation_of("bA", (2,))
    assert found is not None
    assert found.result == ("A", "b")


def test_half_precision_is_summed_up_in_single_precision() -> None:
    """Added one by one in float16, ones would stop at 2048."""
    definition = operator("Einsum")
    assert definition is not None
    ones = np.ones(4096, np.float16)
    for equation, inputs in (("i->", [ones]), ("i,i->", [ones, ones])):
        (found,) = definition.evaluate(Attributes({"equation": equation}), inputs)
        assert found.dtype == np.float16
        assert found == 4096


def test_an_equation_is_written_with_a_letter_for_each_axis_of_an_ellipsis() -> None:
    found = equation_of("...q, Z...q -> ...Z", (3, 4))
    assert found is not None
    assert found.text() == "abc,dabc->abd"


def test_an_ellipsis_of_unknown_length_tells_nothing() -> None:
    assert equation_of("...ij->...ji", (None,)) is None
    assert equation_of("ij->ji", (None,)) is not None


def test_sums_are_as_exact_as_those_of_kernels_where_that_is_asked_for() -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 4, 1000)).astype(np.float32)
    attributes, exact = (
        Attributes({"equation": "ik,jk->ij"}),
        (x.astype(np.float64) @ y.T.astype(np.float64)).astype("f"),
    )
    (found,) = evaluate_operator("Einsum", attributes, [x, y])
    assert np.array_equal(found, exact)
    with as_kernels_do():
        (found,) = evaluate_operator("Einsum", attributes, [x, y])
    assert not np.array_equal(found, exact)
    assert np.allclose(found, exact, atol=1e-4)
