"""The verdict: a program against its original, or one model against another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.backends.onnxruntime import Session
from eqsat.errors import EqsatError, FeedError, ModelError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import check_feeds
from eqsat.ir.types import compatible
from eqsat.lower.program import Program
from eqsat.verification.compare import distance
from eqsat.verification.feeds import random_feeds, size_candidates
from eqsat.verification.kernels import KernelCheck
from eqsat.verification.original import Original, Source, runnable
from eqsat.verification.pieces import session_of
from eqsat.verification.sensitivity import Sensitivity
from eqsat.verification.values import random_nodes
from eqsat.verification.verification import EQUAL, FAILED, NOT_JUDGED, NOT_RUN, WITHIN, Verification

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], dict[str, Any]]


def verify_program(
    original: Graph,
    program: Program,
    *,
    original_source: Source = None,
    result_source: str | Path | None = None,
    runs: int = 2,
    seed: int = 0,
    feeds: Sequence[Feeds] | None = None,
    quanta: Mapping[str, int] | None = None,
) -> Verification:
    """Checks ``program`` against ``original``, kernel by kernel and end to end.

    ``original_source`` and ``result_source``: the files (or model) to run; by default the graphs themselves. ``feeds``:
    the user's own inputs; by default ``runs`` random ones, with two sizes for each symbolic dimension. A program that
    relies on exact rules only has to be equal bit by bit; otherwise the original's own sensitivity decides. ``quanta``: by
    rule of class ``lsb``, how many quanta it may move an integer (1 by default). Raises `FeedError` if ``feeds`` do not
    fit.
    """
    report = Verification()
    for given in feeds or ():
        check_feeds(original, given)
    mismatch = _signature_mismatch(original, program.graph)
    if mismatch:
        return Verification(FAILED, failures=(mismatch,))
    check = KernelCheck(original, program, quanta)
    try:
        runner = Original(original, original_source, check.values_needed())
        trials = list(_trials(original, runner.run, runs, seed, feeds))
    except (ModelError, FeedError) as error:
        return Verification(NOT_RUN, notes=(str(error),))
    try:
        result = Session(result_source, arena=False).run if result_source is not None else session_of(program.graph).run
    except ModelError as error:
        return Verification(FAILED, failures=(f"the result does not load: {error}",))
    notes = list(runner.notes)
    failures: list[str] = []
    exactness = program.exactness
    if not _is_deterministic(original, runner.run, trials[0]):
        _compare_types_only(runner.run, result, trials, report, failures, notes)
    else:
        _compare_outputs(original, runner.run, result, trials, exactness, seed, report, failures, notes)
        kernels = check.run(trials[0], runner.fetcher(trials[0]), seed=seed)
        report.kernels_checked, report.kernels_unchanged = kernels.checked, kernels.unchanged
        failures += kernels.failures
        notes += kernels.notes
    return _conclude(report, failures, notes)


def verify_models(
    a_source: Any,
    b_source: Any,
    *,
    runs: int = 2,
    seed: int = 0,
    feeds: Sequence[Feeds] | None = None,
) -> Verification:
    """Checks whether model ``b`` computes what model ``a`` computes, up to the sensitivity of ``a``; both as `load_onnx` takes
    them, or graphs.

    Raises `ModelError` if a model cannot be read or the two have different inputs or outputs, `FeedError` if ``feeds``
    do not fit.
    """
    from eqsat.frontends.onnx_model import load_onnx

    a, b = (s if isinstance(s, Graph) else load_onnx(s) for s in (a_source, b_source))
    mismatch = _signature_mismatch(a, b)
    if mismatch:
        raise ModelError(f"{b_source if isinstance(b_source, str | Path) else b.name}: {mismatch}")
    for given in feeds or ():
        check_feeds(a, given)
    report = Verification()
    try:
        runner = Original(a, runnable(a_source))
        trials = list(_trials(a, runner.run, runs, seed, feeds))
        other = Original(b, runnable(b_source))
    except (ModelError, FeedError) as error:
        return Verification(NOT_RUN, notes=(str(error),))
    notes = [*runner.notes, *other.notes]
    failures: list[str] = []
    if not _is_deterministic(a, runner.run, trials[0]):
        _compare_types_only(runner.run, other.run, trials, report, failures, notes)
    else:
        # Nobody says by which rules b was made; `lsb` is the widest class that still is an equality.
        _compare_outputs(a, runner.run, other.run, trials, Exactness.LSB, seed, report, failures, notes)
    return _conclude(report, failures, notes)


def _trials(
    original: Graph, run: Run, runs: int, seed: int, feeds: Sequence[Feeds] | None
) -> Iterator[dict[str, np.ndarray]]:
    """Inputs on which the original runs. Raises `ModelError` if it runs on none."""
    if feeds is not None:
        yield from map(dict, feeds)
        return
    found: list[dict[str, np.ndarray]] = []
    sizes: list[dict[str, int]] = []
    problem: EqsatError | None = None
    for candidate in size_candidates(original):
        trial = random_feeds(original, seed, candidate)
        try:
            run(trial)
        except ModelError as error:
            problem = error
            continue
        found.append(trial)
        sizes.append(candidate)
        if len(found) == min(2, max(runs, 1)):
            break
    if not found:
        raise ModelError(f"the original does not run on random inputs; give your own: {problem}")
    yield from found
    for k in range(len(found), runs):
        yield random_feeds(original, seed + k, sizes[k % len(sizes)])


def _compare_outputs(
    original: Graph,
    run: Run,
    result: Run,
    trials: Sequence[Feeds],
    exactness: Exactness,
    seed: int,
    report: Verification,
    failures: list[str],
    notes: list[str],
) -> None:
    sensitivity: Sensitivity | None = None
    for k, feeds in enumerate(trials):
        reference = run(feeds)
        try:
            found = result(feeds)
        except EqsatError as error:
            failures.append(f"run {k + 1}: the result fails: {error}")
            continue
        report.runs += 1
        equal = all(
            distance(reference[name], found[name]) == distance(reference[name], reference[name]) for name in reference
        )
        if sensitivity is None and not equal and exactness > Exactness.EXACT:
            sensitivity = Sensitivity(original, min(exactness, Exactness.LSB))
        measure = sensitivity or Sensitivity(original, Exactness.EXACT)
        for name, yardstick in measure.yardsticks(feeds, reference, seed + k).items():
            judgement = yardstick.judge(found[name], exact=exactness is Exactness.EXACT)
            report.record(name, judgement)
            if judgement.message and exactness is Exactness.LOSSY and not judgement.distance.misfit:
                report.verdict = NOT_JUDGED
                notes.append(f"output {name!r}: {judgement.message}, which lossy rules do not promise to keep")
            elif judgement.message:
                failures.append(f"run {k + 1}: output {name!r}: {judgement.message}")
    if sensitivity is not None:
        notes += sensitivity.notes


def _compare_types_only(
    run: Run, result: Run, trials: Sequence[Feeds], report: Verification, failures: list[str], notes: list[str]
) -> None:
    notes.append("the original draws random numbers, so only the outputs' shapes and dtypes were compared")
    for k, feeds in enumerate(trials):
        reference = run(feeds)
        try:
            found = result(feeds)
        except EqsatError as error:
            failures.append(f"run {k + 1}: the result fails: {error}")
            continue
        report.runs += 1
        for name, value in reference.items():
            a, b = np.asarray(value), np.asarray(found[name])
            if (a.dtype, a.shape) != (b.dtype, b.shape):
                failures.append(
                    f"run {k + 1}: output {name!r}: {b.dtype}{b.shape} where the original has {a.dtype}{a.shape}"
                )


def _is_deterministic(original: Graph, run: Run, feeds: Feeds) -> bool:
    if not random_nodes(original):
        return True
    first, second = run(feeds), run(feeds)
    return all(distance(first[name], second[name]).moved == 0 for name in first)


def _signature_mismatch(a: Graph, b: Graph) -> str:
    """What is different between the inputs and outputs of two graphs; empty if nothing is."""
    for kind, mine, theirs in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        if set(mine) != set(theirs):
            return f"the {kind} are {list(theirs)} where the original has {list(mine)}"
        for name in mine:
            if not compatible(a.type_of(name), b.type_of(name)):
                return f"{kind[:-1]} {name!r} is {b.type_of(name)} where the original has {a.type_of(name)}"
    return ""


def _conclude(report: Verification, failures: list[str], notes: list[str]) -> Verification:
    report.failures = tuple(failures)
    report.notes = tuple(dict.fromkeys(notes))
    if failures:
        report.verdict = FAILED
    elif report.verdict == NOT_JUDGED:
        pass
    elif all(entry["max_abs_error"] == 0 for entry in report.outputs.values()):
        report.verdict = EQUAL
    else:
        report.verdict = WITHIN
    return report
