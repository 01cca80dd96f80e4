"""Extraction in other processes: the same results, all jobs done, and nothing left behind."""

import pytest
from extraction_instances import large_problem

from eqsat.errors import EqsatError
from eqsat.extract import ExtractionError, ExtractionProblem, ExtractionResult, extract, workers
from eqsat.extract.workers import Extract, Workers


@pytest.mark.parametrize("count", [1, 2])
def test_results_are_those_of_this_process(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LEAST_NODES", 0)
    problems = [large_problem(60, seed) for seed in range(4)]
    found: dict[int, ExtractionResult] = {}

    def job(number: int, by: Extract) -> None:
        found[number] = by(problems[number], time_limit_s=30.0)
        if number < 2:
            pool.submit(1, lambda by: job(number + 2, by))

    with Workers(count) as pool:
        for number in range(2):
            pool.submit(0, lambda by, number=number: job(number, by))
        pool.finish()
        assert sorted(found) == [0, 1, 2, 3]
        for number, problem in enumerate(problems):
            here = extract(problem)
            assert (found[number].choice, found[number].cost) == (here.choice, here.cost)


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_reaches_the_caller(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LEAST_NODES", 0)
    impossible = ExtractionProblem(1, [0], [(0,)], [1.0], (0,))
    with Workers(count) as pool:
        pool.submit(0, lambda by: (by(impossible, time_limit_s=30.0), None)[1])
        with pytest.raises(ExtractionError, match="no acyclic choice"):
            pool.finish()
        pool.finish()  # it is told once


def test_a_process_that_ends_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LEAST_NODES", 0)
    problem = large_problem(60, seed=1)
    found: list[float] = []

    def job(by: Extract) -> None:
        for process in pool._processes:
            assert process._process is not None
            process._process.kill()
        found.append(by(problem, time_limit_s=30.0).cost)

    with Workers(2) as pool:
        pool.submit(0, job)
        pool.finish()
    assert found == [extract(problem).cost]


def test_jobs_that_wait_are_dropped() -> None:
    done: list[int] = []
    with Workers(1) as pool:
        pool.submit(0, lambda by: done.append(1))
        pool.drop()
        pool.finish()
    assert not done


def test_no_interpreter_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_LEAST_NODES", 0)
    monkeypatch.setattr(workers.sys, "executable", "/no/such/interpreter")
    problem = large_problem(60, seed=1)
    found: list[float] = []
    try:
        with Workers(2) as pool:
            pool.submit(0, lambda by: found.append(by(problem, time_limit_s=30.0).cost))
            pool.finish()
    except EqsatError as error:
        pytest.fail(str(error))
    assert found == [extract(problem).cost]
