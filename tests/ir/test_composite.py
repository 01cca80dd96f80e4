"""Operators defined by what they are built from: types, values, and spelling them out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import eqsat
from eqsat.backends.onnx_file import save_onnx, to_model
from eqsat.exactness import Exactness
from eqsat.frontends.onnx.model import load_onnx
from eqsat.ir.build import GraphBuilder
from eqsat.ir.composite import OWN_DOMAIN, define_composite, expanded
from eqsat.ir.interpret import run
from eqsat.ir.operator import _REGISTRY, Kind, operator
from eqsat.rewrite import apply, rule, unregister, variables

KEY = f"{OWN_DOMAIN}::ScaledRelu"


@pytest.fixture(autouse=True)
def scaled_relu() -> Iterator[None]:
    def expand(b, attributes, inputs):
        factor = b.constant(np.float32(attributes["factor"]))
        return [b.op("Mul", b.op("Relu", inputs[0]), factor), b.op("Shape", inputs[0])]

    define_composite(KEY, expand, Kind.ELEMENTWISE)
    yield
    del _REGISTRY[KEY]


def _graph():
    b = GraphBuilder()
    x = b.input("x", "float32", ("n", 3))
    y, _ = b.op("ScaledRelu", x, outputs=2, domain=OWN_DOMAIN, factor=2.0)
    return b.finish({"y": b.op("Neg", y)})


def test_types_and_values_follow_from_the_expansion() -> None:
    graph = _graph()
    assert str(graph.type_of("y")) == "float32[n, 3]"
    x = np.array([[-1, 0, 3]], np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], [[0, 0, -6]])


def test_expanding_keeps_the_meaning_and_names_no_composite() -> None:
    graph = expanded(_graph()).pruned()
    assert {n.key for n in graph.nodes} == {"Relu", "Mul", "Neg"}
    x = np.array([[-1, 0, 3]], np.float32)
    np.testing.assert_array_equal(run(graph, {"x": x})["y"], run(_graph(), {"x": x})["y"])
    assert len(expanded(_graph(), lambda node: True).nodes) == 2


def test_a_written_model_never_names_an_operator_of_our_own(tmp_path) -> None:
    assert {n.op_type for n in to_model(_graph()).graph.node} == {"Relu", "Shape", "Mul", "Neg"}
    save_onnx(_graph(), tmp_path / "m.onnx")
    assert {n.key for n in load_onnx(tmp_path / "m.onnx").nodes} == {"Relu", "Mul", "Neg"}


def test_a_rule_may_introduce_one_where_the_target_has_it() -> None:
    x, _y = variables("x y")

    @rule(
        apply("Add", apply("Relu", x), apply("Relu", x)),
        exactness=Exactness.EXACT,
        source="x + x = 2x",
        family="test",
        domain=OWN_DOMAIN,
    )
    def double_relu(m):
        """``relu(x) + relu(x) == scaled_relu(x, 2)``."""
        return apply(KEY, m.x, outputs=2, factor=2.0).output(0)

    try:
        b = GraphBuilder()
        x = b.input("x", "float32", (2, 3))
        r = b.op("Relu", x)
        graph = b.finish({"y": b.op("Add", r, r)})
        fused = eqsat.optimize(graph, target="launch-count", only_rules=["double_relu"], verify=True)
        assert [n.key for n in fused.program.graph.nodes] == [KEY]
        plain = eqsat.optimize(graph, target="onnxruntime-cpu", only_rules=["double_relu"], form="flat")
        assert [n.key for n in plain.program.graph.nodes] == ["Relu", "Add"]
    finally:
        unregister("double_relu")
    assert operator(KEY) is not None


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_recentring_computed_at_once_is_what_it_is_built_from(dtype: str) -> None:
    b = GraphBuilder()
    x = b.input("x", dtype, ("n", 2))
    graph = b.finish({"y": b.op("Recenter", x, domain=OWN_DOMAIN)})
    info = np.iinfo(dtype)
    every = np.arange(info.min, info.max + 1).astype(dtype).reshape(-1, 2)[::-1]
    found, spelled = run(graph, {"x": every})["y"], run(expanded(graph), {"x": every})["y"]
    assert found.dtype == spelled.dtype
    np.testing.assert_array_equal(found, spelled)
    assert str(graph.type_of("y")) == str(expanded(graph).type_of("y"))
