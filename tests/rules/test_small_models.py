"""Small versions of every model family: all rules saturate on them, and every e-node agrees with its class."""

from __future__ import annotations

import pytest
from graph_checks import same_graph

import eqsat
import eqsat.rules  # registers the shipped rules
from benchmarks.small_models import names, small_model
from benchmarks.soundness import check_model
from eqsat.ir.interpret import run

QUICK = ("gpt2", "llama", "mobilenetv2 qdq", "inception", "nasrnn")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names()])
def test_every_enode_of_a_small_model_agrees(name: str) -> None:
    enodes, fired, wrong = check_model(name, seed=1)
    assert not wrong, "\n".join(wrong)
    assert fired
    assert enodes > 2 * len(small_model(name).graph.nodes)


def test_llama_rotates_and_attends_in_three_operators() -> None:
    """Tables of cosines and sines as the exporter computes them, each angle twice."""
    left = eqsat.optimize(small_model("llama").graph, verify=False, form="flat").report.operators_after
    assert (left["RotaryEmbedding"], left["Attention"]) == (2, 1)
    assert not {"Softmax", "Neg", "Concat"} & set(left)


def test_swin_attends_within_each_window_in_one_operator() -> None:
    """Shifted windows too, whose mask is added where images and windows are axes of their own."""
    report = eqsat.optimize(small_model("swin").graph, verify=False, form="flat").report
    assert (report.recognized["attention"], report.recognized["layer_norm"]) == (2, 4)
    assert "Softmax" not in report.operators_after


def test_equal_seeds_give_equal_models() -> None:
    first, second = small_model("vit", 3), small_model("vit", 3)
    assert same_graph(first.graph, second.graph)
    (a,), (b,) = run(first.graph, first.feeds).values(), run(second.graph, second.feeds).values()
    assert (a == b).all()
