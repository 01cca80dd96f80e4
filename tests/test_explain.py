"""`eqsat explain`: what fired where, and the nearest miss of what did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from eqsat.backends.onnx_file import save_onnx
from eqsat.cli import app
from eqsat.egraph.nearest import Miss
from eqsat.errors import OptionError
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.why import Explanation, explain

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def scaled_product(scale: np.ndarray) -> Graph:
    b = GraphBuilder("scaled")
    product = b.op("MatMul", b.input("x", "float32", (4, 6)), b.constant(normal(6, 5)))
    return b.finish({"y": b.op("Mul", product, b.constant(scale))})


def padded_conv(fill: float, pads: list[int]) -> Graph:
    b = GraphBuilder("padded")
    x = b.input("x", "float32", (1, 3, 8, 8))
    padded = b.op("Pad", x, b.constant(pads, "int64"), b.constant(fill, "float32"))
    return b.finish({"y": b.op("Conv", padded, b.constant(normal(4, 3, 3, 3)))})


def spelled_softmax(axis: int, shifted: bool = True) -> Graph:
    b = GraphBuilder("softmax")
    x = b.input("x", "float32", (4, 6))
    last = b.constant([-1], "int64")
    v = b.op("Sub", x, b.op("ReduceMax", x, b.constant([axis], "int64"))) if shifted else x
    e = b.op("Exp", v)
    return b.finish({"y": b.op("Div", e, b.op("ReduceSum", e, last))})


def only_miss(graph: Graph, rule: str, near: str) -> Miss:
    found = explain(graph, rule=rule, near=near)
    assert not found.uses, f"{rule} fired"
    assert len(found.misses) == 1
    return found.misses[0]


def test_scale_along_the_wrong_axis() -> None:
    miss = only_miss(scaled_product(normal(4, 1)), "fold_scale_into_matmul", "y")
    assert miss.outcome == "condition"
    assert "[4, 1]" in miss.values["s"]
    assert "float32[6, 5]" in miss.values["w"]


def test_scale_along_the_right_axis_fires_and_is_in_the_result() -> None:
    found = explain(scaled_product(normal(5)), rule="fold_scale_into_matmul")
    assert [f.place for f in found.uses[0].firings] == ["y"]
    assert found.uses[0].firings[0].found.startswith("Mul(")
    assert "MatMul(x, Mul(" in found.uses[0].firings[0].added
    assert len(found.uses[0].result) == 1
    assert "(MatMul)" in found.uses[0].result[0]


def test_scale_that_is_no_constant() -> None:
    b = GraphBuilder("dynamic")
    product = b.op("MatMul", b.input("x", "float32", (4, 6)), b.constant(normal(6, 5)))
    graph = b.finish({"y": b.op("Mul", product, b.input("s", "float32", (5,)))})
    miss = only_miss(graph, "fold_scale_into_matmul", "y")
    assert miss.outcome == "condition"
    assert "s, w constant" in miss.reason


def test_padding_with_another_value() -> None:
    miss = only_miss(padded_conv(1.0, [0, 0, 1, 1, 0, 0, 1, 1]), "move_pad_into_conv", "y")
    assert miss.outcome == "condition"
    assert miss.values["value"].endswith("= 1.0")


def test_padding_of_the_channels() -> None:
    b = GraphBuilder("channels")
    x = b.input("x", "float32", (1, 2, 8, 8))
    padded = b.op("Pad", x, b.constant([0, 1, 0, 0, 0, 0, 0, 0], "int64"))
    graph = b.finish({"y": b.op("Conv", padded, b.constant(normal(4, 3, 3, 3)))})
    assert "spatial axes alone are padded" in only_miss(graph, "move_pad_into_conv", "y").reason


def test_pad_is_named_instead_of_the_conv() -> None:
    graph = padded_conv(1.0, [0, 0, 1, 1, 0, 0, 1, 1])
    pad = next(n for n in graph.nodes if n.op == "Pad").outputs[0]
    miss = only_miss(graph, "move_pad_into_conv", pad)
    assert miss.outcome == "condition"
    assert miss.place == "y"


def test_softmax_that_takes_the_maximum_of_another_axis() -> None:
    miss = only_miss(spelled_softmax(0), "recognise_softmax", "y")
    assert "the maximum of the same axis" in miss.reason


def test_softmax_without_the_maximum() -> None:
    miss = only_miss(spelled_softmax(-1, shifted=False), "recognise_softmax", "y")
    assert miss.outcome == "pattern"
    assert (miss.matched, miss.operators) == (2, 8)
    assert "input 0 of Exp must be Sub, and is x (input)" in miss.reason


def test_softmax_fires() -> None:
    found = explain(spelled_softmax(-1), rule="recognise_softmax", near="y")
    assert [f.place for f in found.uses[0].firings] == ["y"]
    assert not found.misses


def test_conv_whose_output_is_read_twice_is_rewritten_beside_the_original() -> None:
    b = GraphBuilder("twice")
    conv = b.op("Conv", b.input("x", "float32", (1, 3, 8, 8)), b.constant(normal(4, 3, 3, 3)))
    scaled = b.op("Mul", conv, b.constant(normal(4, 1, 1)))
    graph = b.finish({"conv": conv, "y": b.op("Relu", scaled), "z": scaled})
    found = explain(graph, rule="fold_scale_into_conv")
    assert [f.place for f in found.uses[0].firings] == ["z"]


def test_rule_that_fired_nowhere_is_explained_where_it_came_nearest() -> None:
    found = explain(scaled_product(normal(4, 1)), rule="fold_scale_into_matmul")
    assert not found.uses
    assert found.misses[0].outcome == "condition"
    assert "nowhere, nearest:" in str(found)


def test_without_a_rule_the_nearest_misses_come_first() -> None:
    found = explain(scaled_product(normal(4, 1)), near="y")
    ranks = [m.rank for m in found.misses]
    assert ranks == sorted(ranks, reverse=True)
    assert "fold_scale_into_matmul" in {m.rule for m in found.misses}


def test_group_rule_says_what_it_looked_at() -> None:
    miss = only_miss(scaled_product(normal(5)), "flatten_concat", "y")
    assert "none of the nodes it looks at (0 Concat)" in miss.reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "no_such_rule"}, "rule 'no_such_rule' does not exist"),
        ({"near": "yy"}, "no node or value 'yy'; did you mean 'y'"),
        ({"rule": "fold_scale_into_matmul", "numerics": "exact"}, "took no part: it is of class rounding"),
        ({"rule": "spell_out_mish"}, "took no part: it spells out Mish, for targets that have no kernel"),
    ],
)
def test_what_does_not_exist_is_one_clear_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        explain(scaled_product(normal(5)), **options)


def test_command_prints_text_and_json(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_onnx(scaled_product(normal(4, 1)), path)
    arguments = ["explain", str(path), "--rule", "fold_scale_into_matmul", "--near", "y"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "the pattern matches, but: " in shown.stdout
    data = json.loads(CliRunner().invoke(app, [*arguments, "--json", "-"]).stdout)
    assert data["misses"][0]["rule"] == "fold_scale_into_matmul"
    assert {"l", "x", "w", "s"} <= data["misses"][0]["values"].keys()


def test_command_names_the_missing_rule(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_onnx(scaled_product(normal(5)), path)
    assert CliRunner().invoke(app, ["explain", str(path), "--rule", "none"]).exit_code == 2


def test_text_lists_each_rule_with_places_and_result() -> None:
    text = str(explain(scaled_product(normal(5))))
    assert text.startswith("scaled: ")
    assert "    at y: Mul(" in text
    assert isinstance(explain(scaled_product(normal(5))), Explanation)


def test_condition_of_a_group_rule_that_failed_is_named_with_what_it_was_about() -> None:
    b = GraphBuilder("attention")
    q, k, v = (b.input(name, "float32", (2, 3, 5, 4)) for name in "qkv")
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 1, 3, 2)))
    chances = b.op("Softmax", b.op("Mul", scores, b.constant(np.float32(1e-35))))
    graph = b.finish({"y": b.op("MatMul", chances, v)})
    miss = only_miss(graph, "recognise_attention", "y")
    assert miss.outcome == "condition"
    assert miss.reason == "condition 'a scale in range' does not hold"
    assert miss.values["v"].startswith("v: float32[2, 3, 5, 4]")
    of_operand = only_miss(graph, "recognise_attention", chances)
    assert (of_operand.place, of_operand.reason) == ("y", miss.reason)
