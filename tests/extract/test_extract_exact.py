"""The exact methods against brute force and against each other."""

import math
import sys

import pytest
from extraction_instances import Builder, brute_force, large_problem, merged_matmuls, random_problem, reference_optimum

from eqsat.extract import METHODS, ExtractionError, ExtractionProblem, extract, milp
from eqsat.extract.core import Core
from eqsat.extract.problem import evaluate_choice


@pytest.mark.parametrize("block", range(12))
def test_brute_force(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        problem = random_problem(seed)
        optimum = brute_force(problem)
        for method in METHODS:
            if optimum == math.inf:
                with pytest.raises(ExtractionError):
                    extract(problem, method=method)
                continue
            result = extract(problem, method=method)
            label = f"seed {seed}, {method}"
            needed, cost = evaluate_choice(problem, result.choice)
            assert needed == result.choice, label
            assert cost == pytest.approx(result.cost, rel=1e-12, abs=1e-12), label
            assert result.cost >= optimum * (1 - 1e-9), label
            assert result.lower_bound <= optimum * (1 + 1e-9), label
            if method in ("auto", "milp"):
                assert result.cost <= optimum * (1 + 1e-9), label
                assert result.optimal, label
                assert result.gap == 0, label


@pytest.mark.slow
def test_brute_force_on_a_thousand_cyclic_problems() -> None:
    """Only problems count that have a choice, and a cycle that the roots reach through e-nodes that can be derived."""
    cyclic = 0
    for seed in range(10_000, 20_000):
        problem = random_problem(seed)
        try:
            core = Core.from_problem(problem)
        except ExtractionError:
            continue
        if not any(core.cyclic):
            continue
        optimum = brute_force(problem)
        for method in ("auto", "milp"):
            result = extract(problem, method=method)
            _, cost = evaluate_choice(problem, result.choice)
            assert cost == pytest.approx(optimum, rel=1e-9, abs=1e-12), f"seed {seed}, {method}"
            assert result.optimal, f"seed {seed}, {method}"
            assert result.lower_bound <= optimum * (1 + 1e-9), f"seed {seed}, {method}"
        cyclic += 1
        if cyclic == 1000:
            break
    assert cyclic == 1000


@pytest.mark.parametrize("seed", range(40))
def test_larger_problems(seed: int) -> None:
    problem = large_problem(16 + seed // 2, seed, upward=0.2 + 0.1 * (seed % 4))
    optimum = reference_optimum(problem)
    for method in ("auto", "milp"):
        result = extract(problem, method=method)
        assert result.optimal
        assert result.cost == pytest.approx(optimum, rel=1e-6)
    for method in ("tree", "greedy-dag", "area"):
        assert extract(problem, method=method).cost >= optimum * (1 - 1e-6)


@pytest.mark.parametrize("seed", [3, 27, 30, 38])
@pytest.mark.parametrize("rounds", [1, 15])
def test_solver_alone_finds_what_has_no_cycles(monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int) -> None:
    """Its first optimum has a cycle, since nothing was cut off the relaxation: cuts exclude it, or levels after ``rounds``."""
    monkeypatch.setattr(milp, "_LP_ROUNDS", 0)
    monkeypatch.setattr(milp, "_CUT_ROUNDS_BEFORE_LEVELS", rounds)
    found: list[set[int]] = []
    cut = milp.integral_cuts
    monkeypatch.setattr(milp, "integral_cuts", lambda *given: found.append(cut(*given)) or found[-1])
    problem = large_problem(16 + seed // 2, seed, upward=0.2 + 0.1 * (seed % 4))
    result = extract(problem, method="milp")
    assert found, "the optimum had no cycle"
    assert all(found)
    assert result.optimal
    assert result.cost == pytest.approx(reference_optimum(problem), rel=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_problems_that_are_mostly_free(seed: int) -> None:
    """Free classes are eliminated, and those that follow from one another at no cost become one."""
    problem = large_problem(14 + seed // 3, seed, upward=0.5)
    costs = [0.0 if (7 * n + seed) % 4 else cost for n, cost in enumerate(problem.node_cost)]
    free = ExtractionProblem(problem.class_count, problem.node_class, problem.node_children, costs, problem.roots)
    result = extract(free)
    needed, cost = evaluate_choice(free, result.choice)
    assert needed == result.choice
    assert result.optimal
    assert cost == pytest.approx(reference_optimum(free), rel=1e-6, abs=1e-9)


def test_tree_pays_sharing_twice() -> None:
    build = Builder()
    shared = build.new(10.0)
    root = build.new(1.0, build.new(1.0, shared), build.new(1.0, shared))
    build.also(root, 15.0)
    problem = build.problem(root)
    assert extract(problem, method="tree").cost == 15
    assert extract(problem).cost == 13


def test_several_roots_share() -> None:
    build = Builder()
    shared = build.new(5.0)
    roots = [build.also(build.new(3.0), 0.5, shared) for _ in range(3)]
    assert extract(build.problem(*roots)).cost == 6.5
    assert extract(build.problem(roots[0])).cost == 3
    assert extract(build.problem(roots[0], roots[0])).cost == 3


def test_no_roots() -> None:
    result = extract(ExtractionProblem(1, [0], [()], [1.0], ()))
    assert (result.choice, result.cost, result.optimal, result.gap) == ({}, 0, True, 0)


def test_free_problem() -> None:
    build = Builder()
    root = build.new(0.0, build.new(0.0))
    for method in METHODS:
        result = extract(build.problem(root), method=method)
        assert (result.cost, result.gap, result.optimal) == (0, 0, True)


def test_deep_sharing_does_not_overflow() -> None:
    build = Builder()
    current = build.new(1.0)
    depth = sys.getrecursionlimit() + 200
    for _ in range(depth):
        current = build.also(build.new(1.0, current, current), 2.0, current)
    for method in ("auto", "area", "tree"):
        assert extract(build.problem(current), method=method).cost == pytest.approx(
            depth + 1, rel=1 if method == "tree" else 1e-9
        )


def test_costs_far_apart() -> None:
    build = Builder()
    left, right = build.new(1e-9), build.new(2e-9)
    root = build.new(1e6, left)
    build.also(root, 1e6, right)
    assert extract(build.problem(root)).choice[root] == 2


@pytest.mark.parametrize("layers", [1, 4])
def test_merges_of_three(layers: int) -> None:
    problem = merged_matmuls(layers)
    result = extract(problem)
    assert result.optimal
    assert extract(problem, method="milp").cost == pytest.approx(result.cost, rel=1e-9)
    assert result.cost == pytest.approx(layers * (2.01 + 1.5 + 0.006 + 5.5), rel=1e-9)
    assert extract(problem, method="greedy-dag").cost > result.cost


def test_cycles_without_a_way_out_are_not_used() -> None:
    build = Builder()
    first, second = build.new(9.0), build.new(0.0, 0)
    build.also(first, 0.0, second)
    result = extract(build.problem(second))
    assert (result.cost, result.choice) == (9, {first: 0, second: 1})


def test_solutions_with_deep_sharing_survive_the_way_back() -> None:
    # Unfolded, the optimum is astronomically dear, so no step may rebuild it by tree costs.
    problem = merged_matmuls(4)
    build = Builder()
    build.class_count, build.nodes = (
        problem.class_count,
        list(zip(problem.node_class, problem.node_children, problem.node_cost, strict=True)),
    )
    current = problem.roots[0]
    start = current
    for _ in range(120):
        current = build.new(0.01, current, build.new(0.01, current))
    root = build.also(build.new(40.0, start), 50.0)
    build.also(root, 0.0, current)
    result = extract(build.problem(root))
    assert result.optimal
    assert result.cost == pytest.approx(4 * 9.016 + 2.4)
