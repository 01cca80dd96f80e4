"""Targets of one's own, from TOML files: what they may say, and how mistakes are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.cost.target import as_target, load_target, parse_target, target_names
from eqsat.cost.target_file import LABELS
from eqsat.fusion.graph import Operation

DOCUMENT = Path(__file__).parents[2] / "docs" / "targets.md"
(EXAMPLE,) = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


@pytest.fixture
def graph() -> eqsat.Graph:
    b = eqsat.GraphBuilder("g")
    x = b.input("x", "float32", (4, 8))
    product = b.op("MatMul", x, b.constant(np.ones((8, 8), np.float32)))
    return b.finish({"y": b.op("Relu", b.op("Add", product, b.constant(np.ones(8, np.float32))))})


def test_the_documented_example_runs(graph: eqsat.Graph, tmp_path: Path) -> None:
    path = tmp_path / "accelerator.toml"
    path.write_text(EXAMPLE)
    report = eqsat.optimize(graph, target=str(path)).report
    assert (report.target, report.kernel_templates) == (str(path), {"product": 1})
    assert as_target(path).argument_limit == 32


def test_a_file_extends_a_shipped_target(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text('extends = "tensorrt-like"\nlaunch_s = 1\n')
    found, base = as_target(path), load_target("tensorrt-like")
    assert (found.launch_s, found.templates) == (1, base.templates)


def test_a_file_extends_a_target_that_extends_another(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    template = 'name = "mine"\nsource = "mine"\nstages = [{ accepts = ["Softmax"] }]\n'
    path.write_text(f'extends = "tensorrt-like-rownorm"\nlaunch_s = 1\n[[more_templates]]\n{template}')
    found, base = as_target(path), load_target("tensorrt-like-rownorm")
    assert base.templates[: len(load_target("tensorrt-like").templates)] == load_target("tensorrt-like").templates
    assert (found.launch_s, found.free_kinds) == (1, base.free_kinds)
    assert (found.templates[:-1], found.templates[-1].name) == (base.templates, "mine")


@pytest.mark.parametrize(("added", "kernels"), [((8,), 1), ((2, 4, 8), 2), ((4, 1), 2)])
def test_a_bias_is_a_vector_along_the_last_axis(added: tuple[int, ...], kernels: int) -> None:
    b = eqsat.GraphBuilder("g")
    product = b.op("MatMul", b.input("x", "float32", (2, 4, 8)), b.input("w", "float32", (8, 8)))
    graph = b.finish({"y": b.op("Add", b.input("c", "float32", added), product)})
    assert eqsat.optimize(graph, target="inductor-cpu", cost="kernels", verify="none").report.kernels_after == kernels


def test_every_key_and_label_is_documented() -> None:
    text = DOCUMENT.read_text()
    with pytest.raises(eqsat.OptionError) as error:
        parse_target("t", {"nobody": 1})
    keys = str(error.value).partition("choose one of ")[2].split(", ")
    assert len(keys) > 15
    for name in (*keys, *LABELS, "once", "required", "entry", "same_size", "row_fits", "from_input"):
        assert f"`{name}`" in text, name


def test_labels_are_those_that_fusion_gives() -> None:
    assert set(LABELS) <= set(re.findall(r"``([a-z]+)``", Operation.__doc__ or ""))


@pytest.mark.parametrize("name", target_names())
def test_shipped_targets_pass_their_own_check(name: str) -> None:
    assert load_target(name).name == name


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("free_operators", "free_operator", "key 'free_operator' does not exist; did you mean 'free_operators'?"),
        ("argument_limit", "argument_limt", "did you mean 'argument_limit'?"),
        ('"elementwise", "broadcast"] }]', '"elementwize"] }]', "templates elementwise: stages 1: accepts: 'elementwize'"),
        ('"elementwise", "broadcast"] }]', '"elementwize"] }]', "did you mean 'elementwise'?"),
        ("default = 2e13", "", "peak_ops: key 'default' is missing"),
        ("default = 2e13", "default = 0", "default is 0; it must be positive"),
        ("float16 = 3e14", "flaot16 = 3e14", "element type 'flaot16' does not exist; did you mean 'float16'?"),
        ('"uint8*int8"', '"uint8*int7"', "element type 'int7' does not exist"),
        ('["Transpose"]', '["Transpos"]', "operator 'Transpos' does not exist; did you mean 'Transpose'?"),
        ('["Transpose"]', '"Transpose"', "free_operators: expected a list"),
        ('free_kinds = ["view"]', 'free_kinds = ["views"]', "kind 'views' does not exist; did you mean 'view'?"),
        ("launch_s = 5e-6", 'launch_s = "short"', "launch_s: expected a number"),
        ("launch_s = 5e-6", "", "key 'launch_s' is missing"),
        ("entry = true", "entri = true", "did you mean 'entry'?"),
        ("once = true", "once = 1", "once: expected true or false"),
        ('name = "product"', "", "templates 2: key 'name' is missing"),
        ("launch_s = 5e-6", "launch_s = = 5", "is no TOML"),
        ("launch_s = 5e-6", 'extends = "tensorrt"', "target 'tensorrt' does not exist; did you mean 'tensorrt-like'?"),
        ("recompute =", 'fusion = "cone"\nrecompute =', "fusion 'cone' does not exist; did you mean 'cones'?"),
        ("bandwidth_bytes_per_s = 1.6e12", "bandwidth_bytes_per_s = 0", "bandwidth_bytes_per_s is 0; it must be positive"),
        ("launch_s = 5e-6", "launch_s = 20", "launch_s is 20 seconds; are microseconds (1e-6) meant?"),
        ("bandwidth_bytes_per_s = 1.6e12", "bandwidth_bytes_per_s = 1600", "bandwidth_bytes_per_s is 1600 per second; is it"),
        ("default = 2e13", "default = 20", "peak_ops.default is 20 per second; is it meant in giga (1e9) or tera (1e12)?"),
        ("launch_s = 5e-6", "launch_s = inf", "launch_s: expected a number that is neither negative nor infinite"),
        ("default = 2e13", "default = nan", "peak_ops.default: expected a number"),
        ("argument_limit = 32", "argument_limit = 0", "argument_limit: expected a whole number of at least 1"),
        ("[peak_ops]\ndefault = 2e13\nfloat16 = 3e14\n\"uint8*int8\" = 6e14", "peak_ops = 1e12", "expected a table of rates"),
        ('accepts = ["elementwise", "broadcast"] }]', "accepts = [] }]", "accepts at least one operator or label"),
        ("recompute =", 'cost = "rooflin"\nrecompute =', "cost: cost model 'rooflin' does not exist; did you mean 'roofline'?"),
        ("recompute =", 'domains = ["com.microsft"]\nrecompute =', "did you mean 'com.microsoft'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_says_where(old: str, new: str, said: str, graph: Any, tmp_path: Path) -> None:
    assert old in EXAMPLE
    path = tmp_path / "my.toml"
    path.write_text(EXAMPLE.replace(old, new, 1))
    with pytest.raises(eqsat.OptionError) as error:
        eqsat.optimize(graph, target=str(path))
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_name_that_is_no_target_is_told_of_files(graph: Any) -> None:
    with pytest.raises(eqsat.OptionError, match=r"target 'mine' does not exist; choose one of .*, or a PATH\.toml"):
        eqsat.optimize(graph, target="mine")


def test_a_file_that_does_not_exist_is_said(graph: Any) -> None:
    with pytest.raises(eqsat.OptionError, match=r"target nowhere\.toml: cannot be read: No such file"):
        eqsat.optimize(graph, target="nowhere.toml")
