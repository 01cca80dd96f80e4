"""Rules that gain nothing in a part of a deep model are left out of the whole, and nothing is lost by that."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import eqsat
from eqsat.exactness import Exactness
from eqsat.ir.constants import Constant
from eqsat.ir.interpret import run
from eqsat.ir.parts import part_of_every_kind
from eqsat.rewrite import Match, Term, apply, rule, unregister, variables
from eqsat.rules.terms import add, mul

DEPTH = 150

x, c = variables("x c")


def _deep(last: float = 2.0, depth: int = DEPTH) -> eqsat.Graph:
    """Layers of a product, a function, and a sum with what came in; the last factor is a number of its own."""
    rng = np.random.default_rng(0)
    b = eqsat.GraphBuilder()
    h = b.input("x", "float32", (4, 8))
    for layer in range(depth):
        factor = last if layer == depth - 1 else 2.0 + (layer + 1) / 1000
        product = b.op("MatMul", h, b.constant(rng.standard_normal((8, 8)).astype(np.float32) / 8))
        scaled = b.op("Mul", b.op("Tanh", product), b.constant(np.float32(factor)))
        h = b.op("Add", h, scaled)
    return b.finish({"y": h})


def _report(graph: eqsat.Graph | Path, **options: bool | str) -> eqsat.Report:
    return eqsat.optimize(graph, verify="none", form="flat", **options).report  # pyright: ignore[reportArgumentType]


def test_a_part_has_every_kind_of_node_and_computes_the_same() -> None:
    graph = _deep()
    part = part_of_every_kind(graph)
    part.check()
    assert len(part.nodes) < len(graph.nodes) / 2
    assert part.operator_counts().keys() == graph.operator_counts().keys()
    every = dataclasses.replace(graph, outputs=tuple(v for n in graph.nodes for v in n.outputs))
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    values = run(every, feeds) | feeds
    for name, found in run(part, {v: values[v] for v in part.inputs}).items():
        np.testing.assert_array_equal(found, values[name])


def test_a_kind_is_told_by_what_is_around() -> None:
    graph = _deep()
    marked = [n for n in graph.nodes if n.op == "Tanh"][DEPTH // 2]
    other = graph.with_nodes([dataclasses.replace(n, op="Erf") if n is marked else n for n in graph.nodes])
    assert len(part_of_every_kind(other).nodes) > len(part_of_every_kind(graph).nodes)
    assert "Erf" in part_of_every_kind(other).operator_counts()


def test_small_constants_tell_nodes_apart_where_equations_ask_for_them() -> None:
    sizes = {last: len(part_of_every_kind(_deep(last)).nodes) for last in (1.0, 2.5)}
    assert sizes[1.0] >= sizes[2.5]
    graph = _deep()
    middle = [n for n in graph.nodes if n.op == "Mul"][DEPTH // 2]
    constants = {**graph.constants, middle.inputs[1]: Constant.of(np.float32(1.0))}
    one = dataclasses.replace(graph, constants=constants)
    assert middle.outputs[0] in {v for n in part_of_every_kind(one).nodes for v in n.outputs}
    assert middle.outputs[0] not in {v for n in part_of_every_kind(graph).nodes for v in n.outputs}


def test_lists_of_extents_come_with_all_that_computes_them() -> None:
    b = eqsat.GraphBuilder()
    h = b.input("x", "float32", ("n", 8))
    extents = b.op("Shape", h)
    for _ in range(DEPTH):
        h = b.op("Reshape", b.op("Tanh", h), extents)
    part = part_of_every_kind(b.finish({"y": h}))
    assert len(part.nodes) < DEPTH
    assert part.operator_counts()["Shape"] == 1
    assert part.inputs[0] == "x"


@pytest.mark.thorough
def test_a_deep_model_costs_the_same_with_fewer_enodes(real_model: Callable[[str], Path]) -> None:
    model = real_model("bert_int8_trivial")
    fewer, every = _report(model), _report(model, all_rules=True)
    assert fewer.rehearsal["left_out"]
    assert fewer.rehearsal["operators"] < sum(fewer.operators_before.values()) / 2
    assert fewer.enodes < 0.8 * every.enodes
    assert fewer.cost_after == every.cost_after
    assert fewer.operators_after == every.operators_after
    assert not every.rehearsal
    assert "rehearsal" not in every.work
    assert "--all-rules" in str(fewer)
    assert "--all-rules" not in str(every)


def test_a_model_that_does_not_repeat_itself_is_not_rehearsed() -> None:
    assert not _report(_deep(depth=2)).rehearsal


@pytest.fixture
def thirds() -> Iterator[None]:
    """A rule that holds where a factor is three, and one that holds everywhere and gains nothing."""

    def is_three(m: Match) -> bool:
        return m.c.value is not None and m.c.value.size == 1 and m.c.value.item() == 3.0

    @rule(mul(x, c), exactness=Exactness.LOSSY, source="none", family="test")
    def thrice(m: Match) -> Term:
        """``x * c == x`` (c is three)"""
        m.require(is_three(m), "the factor is three")
        return m.x

    @rule(add(x, c), exactness=Exactness.LOSSY, source="none", family="test")
    def beside(m: Match) -> Term:
        """``x + c == -(-(x + c))``"""
        return apply("Neg", apply("Neg", add(m.x, m.c)))

    yield
    unregister("thrice")
    unregister("beside")


@pytest.mark.usefixtures("thirds")
def test_a_rule_whose_condition_failed_in_the_part_applies_where_it_holds() -> None:
    graph = _deep()
    middle = [n for n in graph.nodes if n.op == "Mul"][DEPTH // 2]
    constants = {**graph.constants, middle.inputs[1]: Constant.of(np.float32(3.0))}
    report = _report(dataclasses.replace(graph, constants=constants), numerics="lossy")
    assert middle.outputs[0] not in {v for n in part_of_every_kind(graph).nodes for v in n.outputs}
    assert report.rules["thrice"] == {"matches": 1, "uses": 1}
    assert report.rehearsal["left_out"].count("beside") == 1
    assert "beside" not in report.rules


@pytest.mark.usefixtures("thirds")
@pytest.mark.parametrize("option", ["all_rules", "prove", "keep_egraph"])
def test_all_rules_are_used_where_that_is_asked_for(option: str) -> None:
    assert "beside" not in _report(_deep(), numerics="lossy").rules
    report = _report(_deep(), numerics="lossy", **{option: True})
    assert report.rules["beside"]["matches"] >= DEPTH
    assert not report.rehearsal


def test_what_is_read_layers_apart_is_joined() -> None:
    b = eqsat.GraphBuilder()
    memory = b.input("memory", "float32", (4, 8))
    h = b.input("x", "float32", (4, 8))
    rng = np.random.default_rng(0)
    for layer in range(6):
        for _ in range(60):
            h = b.op("Tanh", b.op("Add", h, b.constant(rng.standard_normal((8,)).astype(np.float32))))
        h = b.op("Sub", h, b.op("MatMul", memory, b.constant(rng.standard_normal((8, 8)).astype(np.float32) + layer)))
    report = _report(b.finish({"y": h}))
    assert "rehearsal" in report.work
    assert report.operators_after["MatMul"] == 1


def test_constants_of_four_bits_tell_nodes_apart_as_others_do() -> None:
    b = eqsat.GraphBuilder()
    x = b.input("x", "float32", (4,))
    scale = b.constant(np.float32(0.5))
    for _ in range(DEPTH):
        codes = b.constant([3, 1, -8, 7], "int4")
        x = b.op("Add", x, b.op("DequantizeLinear", codes, scale))
    graph = b.finish({"y": x})
    assert len(part_of_every_kind(graph).nodes) < len(graph.nodes)
