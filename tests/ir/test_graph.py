"""Graphs, attributes, constants, the builder, the text form and the interpreter."""

from __future__ import annotations

import doctest
import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eqsat.errors import FeedError, ModelError, ShapeError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.constants import Constant, ConstantPool, FileRange, pack, unpack
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.interpret import run
from eqsat.ir.types import DType, TensorType, compatible, meet, tensor_type


def _layer() -> Graph:
    b = GraphBuilder("layer")
    x = b.input("x", "float32", ("n", 4))
    w = b.constant(np.arange(8, dtype=np.float32).reshape(4, 2), name="w")
    y = b.op("MatMul", x, w)
    left, right = b.op("Split", y, outputs=2, axis=1, num_outputs=2)
    return b.finish({"y": b.op("Relu", b.op("Mul", left, right)), "x2": x})


def test_text_form() -> None:
    assert str(_layer()) == (
        "graph layer(x: float32[n, 4]) -> (y: float32[n, 1], x2: float32[n, 4])\n"
        "  matmul_1: float32[n, 2] = MatMul(x, [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])\n"
        "  split_2: float32[n, 1], split_3: float32[n, 1] = Split(matmul_1; axis=1, num_outputs=2)\n"
        "  mul_4: float32[n, 1] = Mul(split_2, split_3)\n"
        "  y: float32[n, 1] = Relu(mul_4)\n"
        "  x2: float32[n, 4] = Identity(x)"
    )


def test_interpreter_runs_what_the_text_says() -> None:
    x = np.array([[1, 2, 3, 4], [-1, 0, 0, 1]], np.float32)
    outputs = run(_layer(), {"x": x})
    product = x @ np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(outputs["y"], np.maximum(product[:, :1] * product[:, 1:], 0))
    np.testing.assert_array_equal(outputs["x2"], x)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "missing ['x']"),
        ({"x": np.zeros((2, 4), np.float32), "z": np.zeros(1)}, "unknown ['z']"),
        ({"x": np.zeros((2, 4))}, "dtype float64"),
        ({"x": np.zeros((2, 5), np.float32)}, "shape (2, 5)"),
        ({"x": np.zeros((2,), np.float32)}, "shape (2,)"),
    ],
)
def test_feeds_that_do_not_fit_are_refused(feeds: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(FeedError) as caught:
        run(_layer(), feeds)
    assert message in str(caught.value)


def test_shape_errors_name_operator_and_shapes() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    y = b.input("y", "float32", (4, 5))
    with pytest.raises(ShapeError, match=r"MatMul: inner extents differ: \(2, 3\) @ \(4, 5\) \(3 != 4\)"):
        b.op("MatMul", x, y)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda b: b.op("Rleu", "x"), "'Rleu' is no operator of ONNX; did you mean 'Relu'?"),
        (lambda b: b.op("Relu", "x", "x"), "Relu is given 2 operands; it takes 1"),
        (lambda b: b.op("Clip"), "Clip is given 0 operands; it takes 1 to 3"),
        (lambda b: b.op("Concat", axis=0), "Concat is given 0 operands; it takes 1 or more"),
        (lambda b: b.op("Softmax", "x", axs=1), "Softmax has no attribute 'axs'; did you mean 'axis'?"),
        (lambda b: b.op("Relu", "z"), "'z' is no value of the graph"),
        (lambda b: b.op("Add", "x", 1.0), "1.0 is no value of the graph; make it one with constant()"),
        (lambda b: b.op("Concat", ["x", "x"], axis=0), "is no value of the graph; make it one"),
        (lambda b: b.finish({"y": "z"}), "'z' is no value of the graph"),
        (lambda b: b.input("x", "float32", ()), "value 'x' is declared twice"),
        (lambda b: b.constant(1.0, name="x"), "value 'x' is declared twice"),
        (
            lambda b: b.input("z", "flaot32", ()),
            "input 'z': element type 'flaot32' does not exist; did you mean 'float32'?",
        ),
        (lambda b: b.input("z", "float32", (-1,)), "input 'z': extent -1 is neither"),
        (lambda b: b.input("z", "float32", (2.5,)), "input 'z': extent 2.5 is neither"),
    ],
)
def test_a_builder_says_what_is_wrong(build: Callable[[GraphBuilder], Any], said: str) -> None:
    b = GraphBuilder()
    shape: Any = (np.int64(2), "n")
    b.input("x", "float32", shape)
    with pytest.raises(ModelError, match=re.escape(said)):
        build(b)


def test_a_builder_makes_names_that_are_not_taken() -> None:
    b = GraphBuilder()
    x = b.input("relu_1", "float32", (2,))
    assert b.finish({"y": b.op("Relu", b.op("Relu", x))}).operator_counts() == {"Relu": 2}


def test_attributes_distinguish_what_equality_of_floats_does_not() -> None:
    assert Attributes({"a": 0.0}) != Attributes({"a": -0.0})
    assert Attributes({"a": float("nan")}) == Attributes({"a": float("nan")})
    assert Attributes({"a": 1}) != Attributes({"a": 1.0})
    assert hash(Attributes({"b": (1, 2), "a": 3})) == hash(Attributes([("a", 3), ("b", (1, 2))]))
    assert Attributes({"a": 1, "b": 2}).updated(b=None, c=3) == Attributes({"a": 1, "c": 3})


def test_pool_merges_equal_contents_only() -> None:
    pool = ConstantPool()
    first = pool.intern(Constant.of(np.zeros(5000, np.float32)))
    other = np.zeros(5000, np.float32)
    other[1234] = -0.0
    assert pool.intern(Constant.of(np.zeros(5000, np.float32))) is first
    assert pool.intern(Constant.of(other)) is not first
    assert pool.intern(Constant.of(np.zeros(5000, np.int32))) is not first
    assert pool.intern(Constant.of(np.zeros((50, 100), np.float32))) is not first


def test_constant_in_a_file_is_mapped(tmp_path) -> None:
    data = np.arange(3000, dtype=np.float32)
    path = tmp_path / "weights"
    path.write_bytes(b"\0" * 8 + data.tobytes())
    constant = Constant(tensor_type("float32", (3000,)), source=FileRange(path, 8, data.nbytes))
    np.testing.assert_array_equal(constant.numpy(), data)
    assert not constant.numpy().flags.writeable
    path.write_bytes(b"\0" * 8)
    with pytest.raises(ModelError, match="is the file complete"):
        Constant(tensor_type("float32", (3000,)), source=FileRange(path, 8, data.nbytes)).numpy()


def test_packed_integers() -> None:
    packed = np.array([0x1F, 0x80], np.uint8)
    assert unpack(packed, DType.INT4, (3,)).tolist() == [-1, 1, 0]
    assert unpack(packed, DType.UINT4, (4,)).tolist() == [15, 1, 0, 8]
    for dtype in (DType.INT4, DType.UINT4, DType.INT2, DType.UINT2):
        assert pack(unpack(packed, dtype, (4,)), dtype).tolist() == packed.tolist()[: dtype.bits // 2]


def test_types() -> None:
    a = TensorType(DType.FLOAT, ("n", 4))
    b = TensorType(DType.FLOAT, (2, 4))
    assert compatible(a, b)
    assert meet(a, b) == b
    assert not compatible(b, TensorType(DType.FLOAT, (3, 4)))
    assert not compatible(a, TensorType(DType.INT8, ("n", 4)))
    assert TensorType(DType.INT4, (3,)).bytes == 2


def test_check_finds_undefined_and_doubly_defined_values() -> None:
    graph = _layer()
    with pytest.raises(ModelError, match="not defined before"):
        graph.with_nodes(tuple(reversed(graph.nodes))).check()
    with pytest.raises(ModelError, match="defined twice"):
        graph.with_nodes((*graph.nodes, Node("Relu", ("x",), ("y",)))).check()


@pytest.mark.parametrize("module", ["ir.types", "ir.text", "ir.build", "ir.extents", "ir.graph", "frontends"])
def test_documented_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"eqsat.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
