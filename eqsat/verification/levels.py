"""The result at the levels of ONNX Runtime at which people run it.

ONNX Runtime rewrites a graph before it runs it, by default as far as it can, and not every file that is right stays so: a
fusion may compute less precisely than what it replaces. So a result has to be right at these levels, too. The original
says what that means: its sensitivity to roundings, since the runtime reorders sums like any rewrite of class ``rounding``,
and, where that does not do, the original itself at that level, or at the highest below at which it runs. A model that ONNX
Runtime already changes for the worse is not refused for that, but noted.

Each session is let go before the next is opened. All of them rearrange weights as the runtime does by default; one that
does not may sum in another order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from eqsat.backends.onnx_form import FOREIGN
from eqsat.backends.onnxruntime import LEVELS, Session
from eqsat.backends.transposed_products import crashing_products
from eqsat.errors import EqsatError, ModelError, ResourceError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.ir.types import DType, is_array, is_sequence
from eqsat.verification.compare import Judgement, Yardstick, bytes_of
from eqsat.verification.halves import computes_in_half
from eqsat.verification.original import Source, open_file
from eqsat.verification.pieces import session_of
from eqsat.verification.reference import PASSED_OVER, Reference
from eqsat.verification.unsigned import saturates
from eqsat.verification.verification import Verification

Open = Callable[[str], Session]
"""From a level to the model, loaded at that level. Raises `ModelError`."""

Trials = Mapping[int, Mapping[str, Any]]
"""From the number of a trial to its outputs by name."""

Judgements = Mapping[tuple[int, str], Judgement]
"""By trial and output."""

Beside = tuple[Yardstick, Yardstick]
"""What a result may be, around what the original computes without optimisation, and with."""

K = TypeVar("K")

_OTHERS, _AT_ONCE = 16, 4
"""On how many other inputs the original is asked, as long as a result is refused, what the runtime changes of it, and how many of
them one session runs: where a quantum comes or goes it may leave all elements of one input as they are."""


def levels_of(form: str, *, full: bool = False) -> tuple[str, ...]:
    """The levels at which files of a form are compared: either end, which is where they are run; files with the runtime's own
    operators at all levels if the comparison is to be ``full``. Files for other runtimes are run as they are: around pairs of
    quantisation ONNX Runtime would compute on integers elsewhere than in the original, and quanta differ."""
    if form in FOREIGN:
        return ("disable",)
    return tuple(LEVELS) if full and form == "onnxruntime" else ("disable", "all")


class LevelCheck:
    """Compares a result with its original at some levels. ``open_original`` and ``open_result`` load them.

    ``reference``: the original on every trial. ``exactness``: of the result. ``full``: on every trial, else on one of each size,
    which is what decides how the runtime fuses.
    """

    def __init__(
        self, open_original: Open, open_result: Open, reference: Reference, exactness: Exactness, *, full: bool = False
    ) -> None:
        self.open_original = open_original
        self.open_result = open_result
        self.reference = reference
        self.exactness = exactness
        self.report = Verification()
        # Fused kernels of the runtime may end the process on empty tensors, where those they replace do not.
        shapes: dict[tuple[object, ...], int] = {}
        for k, feeds in enumerate(reference.trials):
            if all(map(_size, feeds.values())):
                shapes.setdefault((k,) if full else tuple(map(_shape, feeds.values())), k)
        self._trials = {k: reference.trials[k] for k in shapes.values()}

    def run(self, levels: Sequence[str]) -> Verification:
        """Checks each of ``levels``."""
        for level in levels if self._trials else ():
            self._check(level)
        self.report.notes += self.reference.notes
        return self.report

    def _check(self, level: str) -> None:
        try:
            found = _outputs(self.open_result(level), self._trials)
        except ResourceError as error:
            self.report.notes.append(f"level {level!r}: not compared: {error}")
            return
        except EqsatError as error:
            self._explain(level, error)
            return
        self.report.bytes_compared += sum(bytes_of(value) for outputs in found.values() for value in outputs.values())
        allowed = max(self.exactness, Exactness.ROUNDING)
        judged = {
            (k, name): judgement
            for k, outputs in found.items()
            for name, judgement in self.reference.judge(k, outputs, allowed).items()
        }
        if _refusals(judged):
            judged = self._judge_beside_the_original(level, found, judged)
        passed_over = {key for key, judgement in judged.items() if judgement.passed_over}
        self.report.notes += [PASSED_OVER.format(name) for _, name in sorted(passed_over)]
        compared = [judgement for key, judgement in judged.items() if key not in passed_over]
        worst = max(compared, key=lambda j: j.distance.max_abs, default=None)
        if worst is not None:
            self.report.levels[level] = {"max_abs_error": worst.distance.max_abs, "tolerance": worst.tolerance}
        for (k, name), judgement in _refusals(judged).items():
            if self.exactness < Exactness.LOSSY or judgement.distance.misfit:
                self.report.failures.append(f"level {level!r}, run {k + 1}: output {name!r}: {judgement.message}")

    def _explain(self, level: str, error: EqsatError) -> None:
        """The result does not run at ``level``: that is a failure if the original does."""
        try:
            _outputs(self.open_original(level), self._trials)
        except EqsatError:
            self.report.notes.append(f"level {level!r}: ONNX Runtime runs neither the original nor the result: {error}")
        else:
            self.report.failures.append(f"level {level!r}: the result fails where the original does not: {error}")

    def _outputs_up_to(self, level: str) -> Trials:
        """What the original gives at the highest level that it runs at, up to ``level``; without optimisation it does."""
        known = tuple(LEVELS)
        for below in known[known.index(level) : 0 : -1]:
            try:
                return _outputs(self.open_original(below), self._trials)
            except EqsatError as error:
                note = f"level {below!r}: the result runs there, but the original does not: {error}"
                self.report.notes += [note] if below == level else []
        return {k: self.reference.outputs[k] for k in self._trials}

    def _judge_beside_the_original(self, level: str, found: Trials, judged: Judgements) -> Judgements:
        """What was refused again, now that the runtime may change the result as far as it changes the original."""
        theirs = self._outputs_up_to(level)
        yardsticks = self.reference.yardsticks(max(self.exactness, Exactness.ROUNDING))
        changes = {(k, name): y.judge(theirs[k][name]) for k in theirs for name, y in yardsticks[k].items()}
        for (k, name), change in _refusals(changes).items():
            self.report.notes.append(
                f"level {level!r}, run {k + 1}: output {name!r}: ONNX Runtime itself changes the original: {change.message}"
            )
        judged, beside = dict(judged), dict[tuple[int, str], Beside]()
        for k, name in _refusals(judged):
            wider = yardsticks[k][name].moved_to(self.reference.outputs[k][name])
            wider.observe(theirs[k][name])
            beside[k, name] = wider, yardsticks[k][name].moved_to(theirs[k][name])
            judged[k, name] = _by_either(beside[k, name], found[k][name])
        unexplained = tuple(_refusals(judged))
        for first in range(0, _OTHERS, _AT_ONCE):
            refused = tuple(_refusals(judged))
            if not refused:
                break
            for (k, name), clean, changed in self._changes_of_others(level, refused, range(first, first + _AT_ONCE)):
                for yardstick in beside[k, name]:
                    yardstick.observe(changed, clean)
                judged[k, name] = _by_either(beside[k, name], found[k][name])
        for k, name in unexplained:
            if not judged[k, name].message:
                where = f"level {level!r}, run {k + 1}: output {name!r}"
                self.report.notes.append(f"{where}: no more off than ONNX Runtime makes the original on other inputs")
        return judged

    def _changes_of_others(
        self, level: str, keys: Sequence[tuple[int, str]], seeds: Sequence[int]
    ) -> Iterator[tuple[tuple[int, str], Any, Any]]:
        """For trials and outputs: what the original computes of the elements of the trial in other orders, without optimisation
        and at ``level``."""
        others = {(k, seed): _shuffled(self._trials[k], seed) for k, _ in keys for seed in seeds}
        try:
            plain, optimised = (_outputs(self.open_original(load), others) for load in ("disable", level))
        except EqsatError:
            return
        for k, name in keys:
            yield from (((k, name), plain[k, seed][name], optimised[k, seed][name]) for seed in seeds)


def _outputs(session: Session, trials: Mapping[K, Mapping[str, Any]]) -> dict[K, Mapping[str, Any]]:
    return {k: session.run(feeds) for k, feeds in trials.items()}


def _by_either(yardsticks: Beside, found: Any) -> Judgement:
    either = [yardstick.judge(found) for yardstick in yardsticks]
    return next((j for j in either if not j.message), either[0])


def _shuffled(feeds: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Arrays of floats and bytes with their elements in another order, and everything else, which may be places, as it is."""
    random = np.random.default_rng([seed, 0x6C6576])
    return {name: random.permuted(v.reshape(-1)).reshape(v.shape) if _may_move(v) else v for name, v in feeds.items()}


def _may_move(value: Any) -> bool:
    dtype = DType.of(value.dtype) if is_array(value) else DType.UNDEFINED
    return dtype.is_float or (dtype.is_integer and dtype.bits == 8)


def _size(value: Any) -> int:
    return min(map(_size, value), default=0) if is_sequence(value) else np.size(value)


def _shape(value: Any) -> tuple[object, ...]:
    """That of an array, or those of all in a sequence."""
    return tuple(map(_shape, value)) if is_sequence(value) else np.shape(value)


def _refusals(judged: Judgements) -> dict[tuple[int, str], Judgement]:
    return {key: judgement for key, judgement in judged.items() if judgement.message}


def check_levels(
    levels: Sequence[str],
    original: tuple[Graph, Source],
    result: tuple[Graph, Source],
    reference: Reference,
    exactness: Exactness,
    seed: int = 0,
    *,
    full: bool = False,
) -> Verification:
    """Compares two models, each given as its graph and, if there is one, its file, at ``levels`` of ONNX Runtime.

    ``reference``: the original without optimisation. Level ``disable`` is left out where ``reference`` was run there, which
    it was unless it computes in half precision: there the runtime keeps more digits than the model says.
    """
    halves = computes_in_half(original[0]) or computes_in_half(result[0])
    if halves:
        try:
            reference = Reference(
                original[0],
                _open(*original, "disable").run,
                reference.trials,
                seed,
                round_halves=False,
                as_read=None if original[1] is None else {},
            )
        except EqsatError as error:
            note = (
                "half precision was computed in single precision and rounded after every operator, and no level of ONNX"
            )
            return Verification(notes=[f"{note} Runtime compared: it does not run the original: {error}"])
    check = LevelCheck(partial(_open, *original), partial(_open, *result), reference, exactness, full=full)
    return check.run([level for level in levels if halves or level != "disable"])


def _open(graph: Graph, source: Source, level: str) -> Session:
    if source is None or saturates(graph):
        return session_of(graph, level, prepack=True, round_halves=False)
    if level == "all" and crashing_products(graph):  # a graph is written without them, a file is run as it is
        raise ModelError("ONNX Runtime ends the process on products of transposed operands of another rank (#28392)")
    return open_file(source, graph.outputs, level=level, prepack=True)
