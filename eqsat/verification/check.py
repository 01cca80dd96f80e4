"""The verdict: a program against its original, or one model against another."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eqsat.backends.consumer import at_any_opset
from eqsat.backends.onnx_form import written
from eqsat.errors import EqsatError, FeedError, ModelError, ResourceError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.ir.types import compatible
from eqsat.lower.program import Program
from eqsat.verification.compare import bytes_of
from eqsat.verification.extents import Sized, sized
from eqsat.verification.feeds import load_feeds
from eqsat.verification.kernels import KernelCheck
from eqsat.verification.levels import check_levels, levels_of
from eqsat.verification.nested import misfit
from eqsat.verification.original import Original, Source, runnable
from eqsat.verification.reference import PASSED_OVER, Reference
from eqsat.verification.trials import (
    Feeds,
    Notify,
    Run,
    Trial,
    Trials,
    counting,
    mute_outputs,
    remembering,
    reproduced,
    taken_by,
    with_sizes,
)
from eqsat.verification.unsigned import saturates
from eqsat.verification.values import least_class
from eqsat.verification.verification import EQUAL, FAILED, NOT_JUDGED, NOT_RUN, WITHIN, Verification

MEMORY_BYTES = 6 << 30
"""Models of more weights than this, or of more values alive at once, are not run unless a full verification is asked for."""

CUT_OFF = (
    "sums of products of signed bytes were compared exactly; on this processor, which has no VNNI, they are cut off at 16 bits "
    "(--for onnxruntime-avx2 writes a program that is right here)"
)

GivenFeeds = Sequence[Feeds | str | Path] | None
"""The user's own inputs, each by name or in an ``.npz`` file; random ones where there are none."""

Model = tuple[Graph, Source]
"""A graph, and the file or model that is run for it: the graph itself where there is none."""


def verify_program(
    original: Graph,
    program: Program,
    *,
    original_source: Source = None,
    runs: int = 2,
    seed: int = 0,
    feeds: GivenFeeds = None,
    quanta: Mapping[str, int] | None = None,
    form: str = "flat",
    full: bool = False,
    notify: Notify = lambda detail: None,
) -> Verification:
    """Checks ``program`` against ``original``, kernel by kernel and end to end, as it will be written in ``form``.

    ``original_source``: the file (or model) to run for ``original``; by default the graph itself. Random inputs, where there
    are no ``feeds``: ``runs`` of them, with two sizes for each symbolic dimension. A program that
    relies on exact rules only has to be equal bit by bit; otherwise the original's own sensitivity decides. ``quanta``: by
    rule of class ``lsb``, how many quanta it may move an integer (1 by default). Optimised by ONNX Runtime, as it will be
    run, the program has to agree up to the original's sensitivity, if ``full`` at every level and on every trial
    (`eqsat.verification.levels`). Models of more than `MEMORY_BYTES` run only if ``full``. ``notify`` is told how far it is.
    Raises `FeedError` if ``feeds`` do not fit.
    """
    original = at_any_opset(original)  # parts of it are run, too, and are no file that somebody asked for
    inputs = Trials(original, runs, seed, [load_feeds(given, original) for given in feeds or ()])
    mismatch = _signature_mismatch(original, program.graph)
    if mismatch:
        return Verification(FAILED, failures=[mismatch])
    if not full and (large := _too_large(original, program.graph)):
        return Verification(NOT_RUN, notes=[large])
    check = KernelCheck(original, program, quanta, notify, full=full)
    models = (original, original_source), (written(program.graph, form)[0], None)
    exactness = max(program.exactness, least_class(program.graph.nodes))
    return _compare(*models, inputs, exactness, check, form=form, full=full, notify=notify)


def verify_models(
    a_source: Any, b_source: Any, *, runs: int = 2, seed: int = 0, feeds: GivenFeeds = None
) -> Verification:
    """Checks whether model ``b`` computes what model ``a`` computes, up to the sensitivity of ``a``; both as `load_onnx` takes
    them, or graphs.

    Raises `ModelError` if a model cannot be read or the two have different inputs or outputs, `FeedError` if ``feeds``
    do not fit.
    """
    from eqsat.frontends.onnx.model import load_onnx

    a, b = (s if isinstance(s, Graph) else load_onnx(s) for s in (a_source, b_source))
    mismatch = _signature_mismatch(a, b)
    if mismatch:
        raise ModelError(f"{b_source if isinstance(b_source, str | Path) else b.name}: {mismatch}")
    inputs = Trials(a, runs, seed, [load_feeds(given, a) for given in feeds or ()])
    # Nobody says by which rules b was made; `lsb` is the widest class that still is an equality.
    return _compare((a, runnable(a_source)), (b, runnable(b_source)), inputs, Exactness.LSB)


def _compare(
    original: Model,
    result: Model,
    inputs: Trials,
    exactness: Exactness,
    check: KernelCheck | None = None,
    *,
    form: str = "flat",
    full: bool = False,
    notify: Notify = lambda detail: None,
) -> Verification:
    """Runs two models side by side, the second one as a program of class ``exactness``, whose kernels are compared by ``check``;
    without it the second one is a model of which no more is known, and is run at each level on all inputs."""
    graph, report, runner = original[0], Verification(), None
    notify("inputs")
    try:
        at = sized(graph, inputs.first_shapes())
        if not (full or inputs.feeds):
            _expect_to_fit(at)
        extra = () if check is None else check.values_needed(at)
        runner = Original(*original, extra)
        chosen = inputs.run(runner.run, runner.run_with_extra)
    except (ModelError, FeedError) as error:
        return _not_run(runner, inputs, error)
    interpreted = runner.is_interpreted
    try:
        other = Original(*result, stand_in=check is None, interpreted=interpreted)
    except ModelError as error:
        return _not_loaded(error)
    empty, refused = taken_by(other.run, inputs.empty(runner.run, chosen[0], graph, result[0]))
    chosen, unlike = reproduced(graph, runner.run, [*chosen, *empty])
    trials, run = [t.feeds for t in chosen], remembering(runner.run, chosen)
    report.notes += [*runner.notes, *other.notes, *mute_outputs(chosen), *unlike, *refused]
    report.notes += [CUT_OFF] if saturates(result[0]) else []
    kernels = Verification()
    if check is not None:
        kernels = check.run(
            trials[0], chosen[0].fetcher(runner.fetcher(trials[0])), seed=inputs.seed, in_interpreter=interpreted
        )
        chosen[0].values.clear()  # they may be many
    by_kernels = check is not None and not kernels.failures
    read = _as_read(runner, trials)
    reference = Reference(graph, run, trials, inputs.seed, full=full, as_read=read, by_kernels=by_kernels)
    _compare_outputs(chosen, reference, counting(other.run, notify, len(trials)), exactness, report)
    report.add(kernels)
    del runner, run, other  # and their sessions
    if not interpreted:
        notify("levels")
        thorough = full or check is None
        levels = levels_of(form, full=thorough)
        report.add(check_levels(levels, original, result, reference, exactness, inputs.seed, full=thorough))
    report.failures = with_sizes(report.failures, chosen)
    report.notes = list(dict.fromkeys(report.notes))
    report.verdict = _verdict(report)
    return report


def _not_loaded(error: ModelError) -> Verification:
    """What becomes of a result that does not load: it is wrong, unless that is for want of memory."""
    if not isinstance(error, ResourceError):
        return Verification(FAILED, failures=[f"the result does not load: {error}"])
    advice = "compare the two where there is more memory, and threads are left, or do without (--verify none)"
    return Verification(NOT_RUN, notes=[f"the result was not loaded: {error}; {advice}"])


def _too_large(*graphs: Graph) -> str:
    """Why models are not run whose weights may not fit into memory, which the system would answer by ending the process."""
    most = max(sum(c.bytes for c in set(graph.constants.values())) for graph in graphs)
    if most <= MEMORY_BYTES:
        return ""
    return (
        f"the weights take {most / 1e9:.1f} GB, and original and result would hold a copy of them each; compare programs of "
        "fewer layers, or these where there is that much memory (--verify full)"
    )


def _expect_to_fit(original: Sized) -> None:
    """Raises `ModelError` where values may not fit into memory, which the system would answer by ending the process."""
    needed = original.peak_bytes()
    if needed > MEMORY_BYTES:
        raise ModelError(
            f"its values take {needed / 1e9:.4g} GB at once at the least extents tried; on random inputs models run whose "
            f"values take {MEMORY_BYTES / 1e9:.1f} GB at most"
        )


def _not_run(runner: Original | None, inputs: Trials, error: EqsatError) -> Verification:
    """Why nothing was compared, and what to do."""
    if runner is not None and runner.notes:  # the runtime does not take the model, so other inputs would not help
        reason = f"{runner.notes[0]}; and with that: {error}"
        advice = "give the library of its operators (--custom-ops), compare the two where they run, or do without (--verify none)"
    else:
        reason, advice = str(error), inputs.advice()
    return Verification(NOT_RUN, notes=[f"{reason}; {advice}"])


def _as_read(runner: Original, trials: Sequence[Feeds]) -> Mapping[int, Mapping[str, Any]] | None:
    """What the graph computes on trials, as far as known, where the original is run from its file."""
    if not runner.runs_file:
        return None
    found = {k: runner.as_read(feeds) for k, feeds in enumerate(trials)}
    return {k: outputs for k, outputs in found.items() if outputs is not None}


def _compare_outputs(
    trials: Sequence[Trial], reference: Reference, result: Run, exactness: Exactness, report: Verification
) -> None:
    for k, found in _results(result, reference.trials, report):
        for name, value in trials[k].varying.items():
            if unlike := misfit(value, found[name]):
                report.failures.append(f"run {k + 1}: output {name!r}: {unlike}")
        judged = reference.judge(k, found, exactness)
        for name, judgement in judged.items():
            if judgement.passed_over:
                report.verdict = WITHIN
                report.notes.append(PASSED_OVER.format(name))
                continue
            report.record(name, judgement)
            if judgement.message and exactness is Exactness.LOSSY and not judgement.distance.misfit:
                report.verdict = NOT_JUDGED
                report.notes.append(f"output {name!r}: {judgement.message}, which lossy rules do not promise to keep")
            elif judgement.message:
                report.failures.append(f"run {k + 1}: output {name!r}: {judgement.message}")
    report.notes += reference.notes


def _results(result: Run, trials: Sequence[Feeds], report: Verification) -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of each trial on which the result runs, and its outputs; where it does not, that is a failure."""
    for k, feeds in enumerate(trials):
        try:
            found = result(feeds)
        except EqsatError as error:
            report.failures.append(f"run {k + 1}: the result fails: {error}")
            continue
        report.runs += 1
        report.bytes_compared += sum(map(bytes_of, found.values()))
        yield k, found


def _signature_mismatch(a: Graph, b: Graph) -> str:
    """What is different between the inputs and outputs of two graphs; empty if nothing is."""
    for kind, mine, theirs in (("inputs", a.inputs, b.inputs), ("outputs", a.outputs, b.outputs)):
        if set(mine) != set(theirs):
            return f"the {kind} are {list(theirs)} where the original has {list(mine)}"
        for name in mine:
            if not compatible(a.type_of(name), b.type_of(name)):
                return f"{kind[:-1]} {name!r} is {b.type_of(name)} where the original has {a.type_of(name)}"
    return ""


def _verdict(report: Verification) -> str:
    if report.failures:
        return FAILED
    if report.verdict != NOT_RUN:
        return report.verdict
    return EQUAL if all(entry["max_abs_error"] == 0 for entry in report.outputs.values()) else WITHIN
