"""Limits, incumbents, errors and determinism."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from extraction_instances import Builder, large_problem, merged_matmuls, random_problem

from eqsat.errors import EqsatError, OptionError
from eqsat.extract import METHODS, Effort, ExtractionError, ExtractionProblem, effort, extract
from eqsat.extract.problem import evaluate_choice


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("limit_s", [0.0, 0.3])
def test_limit_of_work_is_a_result(method: str, limit_s: float) -> None:
    problem = large_problem(1500, seed=1, upward=0.3)
    result = extract(problem, method=method, effort=Effort(1e6 * limit_s))
    assert result.work.steps < 1e6 * (limit_s + 0.5)
    _, cost = evaluate_choice(problem, result.choice)
    assert cost == pytest.approx(result.cost)
    assert 0 <= result.lower_bound <= result.cost
    assert result.gap == pytest.approx((result.cost - result.lower_bound) / result.cost)


def test_limit_of_work_ends_at_the_same_place_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy: by its clock, all takes fifty times as long."""
    problem = large_problem(1500, seed=1, upward=0.3)
    quiet = [extract(problem, effort=Effort(steps)) for steps in (1e5, 1e6)]
    assert quiet[0].work.steps < quiet[1].work.steps
    monkeypatch.setattr(effort, "time", SimpleNamespace(perf_counter=lambda: 50 * time.perf_counter()))
    loaded = [extract(problem, effort=Effort(steps)) for steps in (1e5, 1e6)]
    for a, b in zip(quiet, loaded, strict=True):
        assert not a.optimal
        assert (a.choice, a.lower_bound, a.work) == (b.choice, b.lower_bound, b.work)


def test_ceiling_in_seconds_is_said_to_have_ended_the_search() -> None:
    problem = large_problem(300, 1)
    assert not extract(problem).work.late
    assert extract(problem, effort=Effort(ceiling_s=0.0)).work.late


def test_parts_of_an_effort_count_the_same_work() -> None:
    effort = Effort(1000)
    part = effort.part(0.5)
    part.spend(400)
    assert (effort.left, part.left) == (600, 100)
    part.spend(100)
    assert part.over()
    assert not effort.over()


def test_incumbent_is_never_beaten_by_the_result() -> None:
    for seed in range(6):
        problem = large_problem(300, seed)
        best = extract(problem, method="area")
        for method in METHODS:
            result = extract(problem, method=method, effort=Effort(0), incumbent=best.choice)
            assert result.cost <= best.cost * (1 + 1e-12)


def test_cutoff_gives_a_bound_up_to_itself() -> None:
    for problem in [large_problem(size, seed) for size in (20, 60, 150) for seed in range(4)]:
        best = extract(problem)
        if not best.optimal or not best.cost:
            continue
        for factor in (0.5, 0.999, 1 + 1e-9, 1.3):
            result = extract(problem, cutoff=factor * best.cost)
            assert result.lower_bound <= best.cost * (1 + 1e-7)
            assert result.lower_bound >= min(factor, 1.0) * best.cost * (1 - 3e-7)
            if factor > 1.01:
                assert result.cost == pytest.approx(best.cost)


def test_slack_is_what_the_bound_may_stay_below_the_cost() -> None:
    for problem in [large_problem(size, seed) for size in (60, 150, 400) for seed in range(3)]:
        best = extract(problem)
        for part in (0.3, 0.02):
            result = extract(problem, slack=part * best.cost)
            assert result.lower_bound <= best.cost * (1 + 1e-7)
            assert result.cost - result.lower_bound <= (part + 3e-7) * best.cost


def test_incumbent_of_infinite_cost() -> None:
    build = Builder()
    root = build.new(float("inf"))
    build.also(root, 2.0)
    assert extract(build.problem(root), incumbent={root: 0}).cost == 2


def test_incumbent_errors() -> None:
    build = Builder()
    first = build.new(1.0)
    second = build.new(1.0, first)
    build.also(first, 1.0, second)
    problem = build.problem(second)
    with pytest.raises(ExtractionError, match=r"^incumbent choice: e-class 0 is needed but has no e-node; choose"):
        extract(problem, incumbent={second: 1})
    with pytest.raises(ExtractionError, match="depends on itself"):
        extract(problem, incumbent={second: 1, first: 2})
    with pytest.raises(ExtractionError, match="e-node 0 is not in e-class 1"):
        extract(problem, incumbent={second: 0})


def test_infeasible() -> None:
    build = Builder()
    first = build.new(1.0, 1)
    second = build.new(1.0, first)
    dead = build.new(float("inf"))
    for root in (first, second, dead):
        for method in METHODS:
            with pytest.raises(ExtractionError, match=rf"^root e-class {root}: no acyclic choice of finite cost"):
                extract(build.problem(root), method=method)
    assert issubclass(ExtractionError, EqsatError)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ExtractionProblem(1, [0], [()], [], (0,)), "lists of unequal length"),
        (ExtractionProblem(1, [1], [()], [1.0], (0,)), "e-node 0: e-class 1 is not in 0..0"),
        (ExtractionProblem(1, [0], [(2,)], [1.0], (0,)), "e-node 0: child e-class 2 is not in 0..0"),
        (ExtractionProblem(1, [0], [()], [-1.0], (0,)), "e-node 0: cost -1.0 is not >= 0"),
        (ExtractionProblem(1, [0], [()], [float("nan")], (0,)), "e-node 0: cost nan is not >= 0"),
        (ExtractionProblem(1, [0], [()], [1.0], (1,)), "root e-class 1 is not in 0..0"),
    ],
)
def test_malformed(problem: ExtractionProblem, message: str) -> None:
    with pytest.raises(ExtractionError, match=message) as caught:
        extract(problem)
    assert "\n" not in str(caught.value)


def test_unknown_options() -> None:
    problem = ExtractionProblem(1, [0], [()], [1.0], (0,))
    with pytest.raises(OptionError, match="'magic' does not exist; use one of: auto"):
        extract(problem, method="magic")
    with pytest.raises(OptionError, match="limit of work"):
        extract(problem, effort=Effort(float("nan")))


def test_same_input_same_choice() -> None:
    for problem in [random_problem(s) for s in range(40)] + [merged_matmuls(3), large_problem(60, 5)]:
        for method in METHODS:
            try:
                first = extract(problem, method=method)
            except ExtractionError:
                continue
            again = extract(problem, method=method)
            assert list(first.choice.items()) == list(again.choice.items())
            assert (first.cost, first.lower_bound, first.method) == (again.cost, again.lower_bound, again.method)


def test_choice_does_not_depend_on_the_hash_seed() -> None:
    script = (
        "from extraction_instances import large_problem, merged_matmuls; from eqsat.extract import extract;"
        "print([list(extract(p).choice.items()) for p in (large_problem(100, 3), merged_matmuls(4))])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_choice_lists_children_first() -> None:
    problem = merged_matmuls(2)
    seen: set[int] = set()
    for eclass, node in extract(problem).choice.items():
        assert seen.issuperset(problem.node_children[node])
        seen.add(eclass)


def test_large_problem_is_fast() -> None:
    problem = merged_matmuls(40)
    extract(problem)
    started = time.process_time()
    result = extract(problem)
    assert result.optimal
    assert time.process_time() - started < 1.0  # measured 0.03 s; the limit only catches quadratic behaviour
