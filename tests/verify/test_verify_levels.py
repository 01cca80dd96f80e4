"""A result has to be right at the levels of ONNX Runtime at which people run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantised_models import Edit, node, nodes_of, quantised_chain

from eqsat.backends.onnx_file import save_onnx
from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.lower.program import Program
from eqsat.verification import verify_models, verify_program
from eqsat.verification.feeds import random_feeds
from eqsat.verification.levels import LevelCheck, levels_of
from eqsat.verification.pieces import session_of
from eqsat.verification.reference import Reference

WIDTH = 128


def bytes_as_weights(dequantised_by: str) -> Graph:
    """A product by weights in bytes, one scale for each column."""
    random = np.random.default_rng(0)
    b = GraphBuilder("bytes")
    x = b.input("x", "float32", (8, WIDTH))
    codes = b.constant(random.integers(-127, 128, (WIDTH, WIDTH)), "int8")
    scale = b.constant(random.uniform(0.001, 0.01, WIDTH), "float32")
    if dequantised_by == "DequantizeLinear":
        weight = b.op("DequantizeLinear", codes, scale, b.constant(np.zeros(WIDTH), "int8"), axis=1)
    else:
        weight = b.op("Mul", b.op("Cast", codes, to=1), scale)
    return b.finish({"y": b.op("MatMul", x, weight)})


def dequantised_by_operator(graph: Graph) -> Program:
    """Cast and Mul become DequantizeLinear: equal bit by bit, as long as nobody fuses it with the product."""
    codes, scale = graph.nodes[0].inputs[0], graph.nodes[1].inputs[1]
    edit = Edit(graph, Exactness.EXACT)
    dequantise = node(
        "DequantizeLinear", (codes, scale, edit.constant(np.zeros(WIDTH), "int8")), graph.nodes[1].outputs[0], axis=1
    )
    return edit.replace(0).replace(1, dequantise).program()


def broken_by_the_runtime(graph: Graph) -> bool:
    feeds = {"x": np.random.default_rng(1).standard_normal((8, WIDTH)).astype(np.float32)}
    plain, fused = (session_of(graph, level, prepack=True).run(feeds)["y"] for level in ("disable", "all"))
    return bool(np.abs(plain - fused).max() > 1e-4 * np.abs(plain).max())


@pytest.fixture
def dequantising() -> Graph:
    graph = bytes_as_weights("DequantizeLinear")
    if not broken_by_the_runtime(graph):
        pytest.skip("this ONNX Runtime does not multiply dequantised bytes with less precision")
    return graph


@pytest.mark.parametrize(("form", "level"), [("flat", "all"), ("onnxruntime", "extended")])
@pytest.mark.usefixtures("dequantising")
def test_a_result_that_is_right_only_without_optimisation_is_refused(form: str, level: str) -> None:
    graph = bytes_as_weights("Mul")
    quick = verify_program(graph, dequantised_by_operator(graph), form=form)
    assert any(failure.startswith("level 'all'") for failure in quick.failures)
    found = verify_program(graph, dequantised_by_operator(graph), form=form, full=True)
    assert found.verdict == "failed"
    assert all(o["max_abs_error"] == 0 for o in found.outputs.values())
    assert any(failure.startswith(f"level {level!r}") for failure in found.failures)
    assert all(failure.startswith("level") for failure in found.failures)


@pytest.mark.usefixtures("dequantising")
def test_two_files_are_compared_as_they_are_run(tmp_path: Path) -> None:
    graph = bytes_as_weights("Mul")
    save_onnx(graph, tmp_path / "a.onnx")
    save_onnx(dequantised_by_operator(graph).graph, tmp_path / "b.onnx")
    found = verify_models(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.verdict == "failed"
    assert "level 'all'" in found.failures[0]


def test_what_the_runtime_does_to_the_original_is_noted_not_refused(dequantising: Graph) -> None:
    found = verify_program(dequantising, Edit(dequantising).program())
    assert found.verdict == "equal"
    assert any("ONNX Runtime itself changes the original" in note for note in found.notes)
    assert found.levels["all"]["max_abs_error"] > 0


def test_a_rewrite_that_is_wrong_all_the_same_is_refused_where_the_runtime_changes_the_original(
    dequantising: Graph,
) -> None:
    product = nodes_of(dequantising, "MatMul")[0]
    wrong = node("MatMul", dequantising.nodes[product].inputs, "doubled")
    edit = Edit(dequantising)
    edit.value("doubled", dequantising.nodes[product].outputs[0])
    add = node("Add", ("doubled", "doubled"), dequantising.nodes[product].outputs[0])
    found = verify_program(dequantising, edit.replace(product, wrong, add).program())
    assert any(failure.startswith("level 'all'") for failure in found.failures)


def test_each_form_is_compared_where_it_is_run() -> None:
    assert levels_of("flat") == ("disable", "all")
    assert levels_of("onnxruntime") == ("disable", "all")
    assert levels_of("openvino") == levels_of("tensorrt", full=True) == ("disable",)  # other runtimes read those
    assert levels_of("onnxruntime", full=True) == ("disable", "basic", "extended", "all")
    graph = quantised_chain(layers=2)
    program = Edit(graph).program()
    assert set(verify_program(graph, program).levels) == {"all"}
    assert set(verify_program(graph, program, form="onnxruntime").levels) == {"all"}
    assert set(verify_program(graph, program, form="onnxruntime", full=True).levels) == {"basic", "extended", "all"}


def test_inputs_of_equal_shapes_are_run_once_at_a_level_unless_all_of_them_are_asked_for() -> None:
    graph = quantised_chain(layers=2)
    feeds = [random_feeds(graph, seed, {}) for seed in range(2)]
    runs: list[int] = []
    session = session_of(graph, "disable")

    class Counted:
        def run(self, given: Any) -> Any:
            runs.append(1)
            return session.run(given)

    for full in (False, True):
        runs.clear()
        reference = Reference(graph, session.run, feeds)
        found = LevelCheck(lambda level: Counted(), lambda level: Counted(), reference, Exactness.EXACT, full=full).run(  # type: ignore[arg-type, return-value]
            ("all",)
        )
        assert not found.failures
        assert len(runs) == 1 + full


def test_half_precision_is_compared_without_optimisation_too() -> None:
    """There the runtime keeps more digits than the reference, in which every operator is rounded."""
    graph = quantised_chain(layers=2, precision="float16")
    found = verify_program(graph, Edit(graph).program())
    assert found.verdict == "equal"
    assert set(found.levels) == {"disable", "all"}


def test_exact_results_may_be_summed_in_another_order_by_the_runtime() -> None:
    graph = quantised_chain(layers=4)
    found = verify_program(graph, Edit(graph, Exactness.EXACT).program())
    assert found.verdict == "equal"


class Fails:
    def __init__(self, *levels: str) -> None:
        self.levels = levels
        self.opened: list[str] = []

    def __call__(self, level: str) -> Any:
        self.opened.append(level)
        if level in self.levels:
            raise ModelError(f"no kernel at {level}")
        return session_of(quantised_chain(layers=1), level)


def test_a_result_that_does_not_run_at_a_level_fails_if_the_original_does() -> None:
    graph = quantised_chain(layers=1)
    trials = [{"x": np.ones((12, 24), np.float32)}]
    reference = Reference(graph, session_of(graph).run, trials)
    original = Fails("extended")
    found = LevelCheck(original, Fails("basic", "extended"), reference, Exactness.EXACT).run(
        ("basic", "extended", "all")
    )
    assert [failure[:13] for failure in found.failures] == ["level 'basic'"]
    assert "neither the original nor the result" in found.notes[0]
    assert set(found.levels) == {"all"}
    assert original.opened == ["basic", "extended"]  # where the result agrees, nobody asks


@pytest.mark.parametrize(("moved", "failures"), [(0.25, 0), (1.0, 1)])
def test_where_the_original_does_not_run_it_is_asked_at_the_level_below(moved: float, failures: int) -> None:
    """What the runtime does to the original there it may do to the result."""
    graph = quantised_chain(layers=1)
    (output,) = graph.outputs

    class Moving:
        def __init__(self, by: dict[str, float]) -> None:
            self.by = by

        def __call__(self, level: str) -> Any:
            if level not in self.by:
                raise ModelError(f"no kernel at {level}")
            run, by = session_of(graph).run, self.by[level]
            return type("Moved", (), {"run": lambda self, feeds: {output: run(feeds)[output] + np.float32(by)}})()

    reference = Reference(graph, session_of(graph).run, [{"x": np.ones((12, 24), np.float32)}])
    found = LevelCheck(Moving({"basic": 0.25}), Moving({"all": moved}), reference, Exactness.EXACT).run(("all",))
    assert len(found.failures) == failures
    assert "the original does not" in found.notes[0]


def test_empty_tensors_are_left_to_the_run_without_optimisation() -> None:
    """Fused kernels of the runtime may end the process on them."""
    graph = quantised_chain(layers=1, rows="rows")
    trials = [{"x": np.ones((rows, 24), np.float32)} for rows in (0, 3)]
    asked: list[int] = []

    class Asked:
        def run(self, feeds: Any) -> dict[str, Any]:
            asked.append(len(feeds["x"]))
            return session_of(graph).run(feeds)

    def load(level: str) -> Any:
        return Asked()

    reference = Reference(graph, session_of(graph).run, trials)
    found = LevelCheck(load, load, reference, Exactness.EXACT).run(("all",))
    assert asked == [3]
    assert set(found.levels) == {"all"}


@pytest.mark.parametrize(("moved", "failures"), [(0.25, 0), (1.0, 1)])
def test_what_the_runtime_changes_of_the_original_on_other_inputs_it_may_change_of_the_result(
    moved: float, failures: int
) -> None:
    """Where a quantum comes or goes at a tie, few elements move: of one program on one input, of the other on another."""
    graph = quantised_chain(layers=1)
    (output,) = graph.outputs
    run, x = session_of(graph).run, np.random.default_rng(0).standard_normal((12, 24)).astype(np.float32)

    def loaded(by: float, on: bool) -> Any:
        """A program that is off where its input is, or is not, that of the trial."""

        def moving(self: Any, feeds: Any) -> Any:
            off = by if np.array_equal(feeds["x"], x) is on else 0.0
            return {output: run(feeds)[output] + np.float32(off)}

        return lambda level: type("Moved", (), {"run": moving})() if level == "all" else session_of(graph)

    reference = Reference(graph, run, [{"x": x}])
    found = LevelCheck(loaded(0.25, on=False), loaded(moved, on=True), reference, Exactness.EXACT).run(("all",))
    assert len(found.failures) == failures
    assert any("on other inputs" in note for note in found.notes) == (not failures)
