"""The printed before/after pairs of a tour through TVM's passes that concern functions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

import eqsat
from eqsat.backends.onnx_file import to_model


def _function(name: str, nodes: list[onnx.NodeProto]) -> onnx.FunctionProto:
    return helper.make_function("local", name, ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])


def _main(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto], shape: list[int]) -> onnx.ModelProto:
    z, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("z", "out"))
    graph = helper.make_graph(nodes, "main", [z], [out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)


def _identity() -> list[onnx.NodeProto]:
    return [helper.make_node("Identity", ["x"], ["y"])]


def _check(model: onnx.ModelProto, shape: list[int]) -> None:
    """Only ``out = z + z`` is left, no function, and it computes the same."""
    result = eqsat.optimize(model, form="flat")
    assert [(n.op, n.inputs) for n in result.program.graph.nodes] == [("Add", ("z", "z"))]
    assert not to_model(result.program.graph).functions
    z = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(result.program.run({"z": z})["out"], z + z)


def test_remove_unused_functions() -> None:
    """``main(z) = z + fn1(z)``; ``fn2`` is called by nobody."""
    nodes = [helper.make_node("fn1", ["z"], ["a"], domain="local"), helper.make_node("Add", ["z", "a"], ["out"])]
    _check(_main(nodes, [_function("fn1", _identity()), _function("fn2", _identity())], [1, 1000]), [1, 1000])


def test_inline() -> None:
    """``main(p0) = g1(p0) + g2(p0)``, and ``g2`` calls ``g1``."""
    calls = [helper.make_node(f, ["z"], [f], domain="local") for f in ("g1", "g2")]
    inner = _function("g2", [helper.make_node("g1", ["x"], ["y"], domain="local")])
    inner.opset_import.append(helper.make_opsetid("local", 1))
    nodes = [*calls, helper.make_node("Add", ["g1", "g2"], ["out"])]
    _check(_main(nodes, [_function("g1", _identity()), inner], [1, 10]), [1, 10])
