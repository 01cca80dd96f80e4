"""Work of operators whose extents are symbols: a price never raises, and uses what the operator says of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import eqsat
from eqsat.cost.model import Work, work_of
from eqsat.errors import ModelError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Attributes, Graph
from eqsat.ir.operator import Application
from eqsat.ir.types import Dim, TensorType, tensor_type


def _work(key: str, *shapes: tuple[Dim, ...], result: tuple[Dim, ...], **attributes: int) -> Work:
    types = [tensor_type("float32", s) for s in shapes]
    return work_of(Application(key, Attributes(attributes), types), [tensor_type("float32", result)])


@pytest.mark.parametrize(
    ("found", "first", "flops"),
    [
        (_work("MatMul", ("n", "k"), (64, 8), result=("n", 8)), (32, 64), 2 * 32 * 64 * 8),
        (_work("MatMul", ("k", "k"), (64, 8), result=("k", 8)), (64, 64), 2 * 64 * 64 * 8),
        (_work("MatMul", (5, 64), ("k", 8), result=(5, 8)), (5, 64), 2 * 5 * 64 * 8),
        (_work("Gemm", ("n", "k"), (8, 64), result=("n", 8), transB=1), (32, 64), 2 * 32 * 64 * 8),
        (
            _work("com.microsoft::FusedMatMul", ("n", "k"), (8, 64), result=("n", 8), transB=1),
            (32, 64),
            2 * 32 * 64 * 8,
        ),
        (_work("MatMul", ("n", "k"), ("k", "m"), result=("n", "m")), (32, 32), 2 * 32 * 32 * 32),
    ],
    ids=["rows", "one symbol twice", "second operand", "transposed", "fused", "nothing known"],
)
def test_an_extent_contracted_with_a_known_one_counts_as_that(
    found: Work, first: tuple[int, ...], flops: float
) -> None:
    operand = found.types[0]
    assert isinstance(operand, TensorType)
    assert operand.shape == first
    assert found.flops == flops


def _gemm(extents: tuple[Dim, Dim], weights: tuple[int, int], bias: tuple[int, ...], relu: bool) -> Graph:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", "float32", extents)
    w, c = (b.constant(rng.standard_normal(s).astype(np.float32)) for s in (weights, bias))
    y = b.op("Gemm", x, w, c, transB=1)
    return b.finish({"y": b.op("Relu", y) if relu else y})


@pytest.mark.parametrize(
    "graph",
    [_gemm(("n", "k"), (64, 128), (64,), True), _gemm((5, "N"), (5, 4), (5, 1), False)],
    ids=["gemm and relu", "gemm with a column of biases"],
)
def test_fused_operators_of_a_gemm_with_a_symbolic_inner_extent_have_a_price(graph: Graph) -> None:
    assert eqsat.optimize(graph, form="onnxruntime").report.verification["verdict"] != "failed"


@pytest.mark.parametrize("quantised", [False, True])
def test_products_behind_unknown_extents_have_a_price(quantised: bool) -> None:
    rng = np.random.default_rng(0)
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", "s", "k"))
    if quantised:
        q, scale, zero = b.op("DynamicQuantizeLinear", x, outputs=3)
        w = b.constant(rng.integers(-100, 100, (64, 64)).astype(np.int8))
        sums = b.op("MatMulInteger", q, w, zero, b.constant(np.int8(0)))
        y = b.op("Mul", b.op("Cast", sums, to=1), b.op("Mul", scale, b.constant(np.float32(0.01))))
    else:
        y = b.op("MatMul", x, b.constant(rng.standard_normal((64, 64)).astype(np.float32)))
    result = eqsat.optimize(
        b.finish({"y": b.op("Add", y, b.constant(np.arange(64, dtype=np.float32)))}), form="onnxruntime"
    )
    assert result.report.verification["verdict"] != "failed"


def test_gelu_with_a_bias_of_one_element_has_a_price() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (4, 1))
    y = b.op("Gelu", b.op("Add", b.constant(np.array([0.5], np.float32)), x))
    assert eqsat.optimize(b.finish({"y": y}), form="onnxruntime").report.verification["verdict"] != "failed"


@pytest.mark.parametrize("form", ["flat", "onnxruntime"])
def test_operator_of_another_domain_with_a_known_name_is_not_the_known_one(form: str) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], domain="my.custom", axis=1)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.custom", 1)], ir_version=8
    )
    report = eqsat.optimize(model, form=form).report
    assert report.opaque == {"my.custom::Softmax": 1}
    assert report.recognized == {}


def test_lookup_of_another_domain_says_nothing_of_its_indices() -> None:
    from eqsat.verification.roles import Role, meaning_of

    b = GraphBuilder()
    table = b.constant(np.zeros((7, 2), np.float32))
    ids = b.input("ids", "int64", (3,))
    (own,) = b.opaque(
        "Gather", table, ids, types=[tensor_type("float32", (3, 2))], domain="my.custom", reason="domain my.custom"
    )
    assert meaning_of(b.finish({"y": own}), "ids", {}).role is Role.NUMBER


def test_attribute_that_is_a_graph_where_a_number_belongs_is_one_clear_error() -> None:
    body = helper.make_graph([], "body", [], [])
    node = helper.make_node("Softmax", ["x"], ["y"], axis=body)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(np.zeros(1), "unused")]),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    with pytest.raises(ModelError, match="attribute 'axis' is GRAPH, Softmax declares INT"):
        eqsat.optimize(onnx.ModelProto.FromString(model.SerializeToString()))
