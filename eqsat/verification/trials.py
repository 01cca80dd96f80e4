"""The inputs to compare two programs on, with what the original makes of them."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, ModelError, UndefinedError
from eqsat.frontends.onnx.envelope import envelope_of
from eqsat.ir.extents import symbols
from eqsat.ir.graph import Graph
from eqsat.ir.types import is_array
from eqsat.verification.compare import distance
from eqsat.verification.extents import may_end_process, shapes_of, sized
from eqsat.verification.feeds import random_feeds
from eqsat.verification.joins import Joins
from eqsat.verification.overflows import Overflows
from eqsat.verification.relations import input_shapes, symbols_of
from eqsat.verification.sizes import Sizes, described
from eqsat.verification.values import random_nodes

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], dict[str, Any]]
Fetch = Callable[[Sequence[str]], Mapping[str, Any]]
"""Runs the original and returns intermediate values by name."""

Notify = Callable[[str], None]
"""Told what is being done."""

_ATTEMPTS = 64
_MUTE = 8
"""Extents passed over because all the original makes of random inputs there is zero or NaN."""

_EMPTY = 4
"""Runs with an extent of 0, at most."""

_USED, _BLOCKS = 0x5A, 4
"""What memory is filled with that nobody should read, in so many blocks of the size of each output."""


@dataclass(frozen=True)
class Trial:
    """``reference``: the outputs of the original on ``feeds``; ``values``: these and intermediate values, if they came along.
    ``sizes``: of the symbols, if the feeds were drawn at random. ``varying``: outputs that the original does not compute alike
    twice, but in the same shape, which are not in ``reference``."""

    feeds: Feeds
    reference: Mapping[str, Any]
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    varying: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def label(self) -> str:
        return f" ({described(self.sizes)})" if self.sizes else ""

    @property
    def is_empty(self) -> bool:
        """Whether an extent was chosen to be 0."""
        return 0 in self.sizes.values()

    @property
    def is_mute(self) -> bool:
        """Whether all floats that come out are zero or not finite, so that a wrong result may well agree."""
        floats = [name for name, value in self.reference.items() if _is_float(value)]
        return bool(floats) and not any(_says_something(self.reference[name]) for name in floats)

    def fetcher(self, fetch: Fetch) -> Fetch:
        """``fetch``, which is not asked for values that came along."""
        return lambda names: self.values if self.values.keys() >= set(names) else fetch(names)


class Trials:
    """Chooses the inputs: the user's ``feeds``, or random ones at extents that the original runs at."""

    def __init__(self, original: Graph, runs: int, seed: int, feeds: Sequence[Feeds] = ()) -> None:
        self.original = original
        self.runs = runs
        self.seed = seed
        self.feeds = feeds
        self._sizes = None if feeds else Sizes(original)
        self._overflows = Overflows(original)
        self._joins = Joins(original)

    def first_shapes(self) -> Mapping[str, Sequence[int]]:
        """Shapes of the inputs that will be tried first."""
        if self._sizes is None:
            return shapes_of(self.feeds[0])
        return input_shapes(self.original, next(self._sizes.candidates(), dict[str, int]()))

    def run(self, run: Run, first: Run) -> list[Trial]:
        """``runs`` trials of random inputs. Raises `ModelError` if the original runs at no extents tried, and `FeedError` if
        inputs cannot be drawn.

        ``first`` is what runs the original at the extents tried first, ``run`` does at the others. Extents at which the
        outputs say something are preferred.
        """
        if self._sizes is None:
            return [self._trial(run if k else first, dict(f), {}) for k, f in enumerate(self.feeds)]
        found: list[Trial] = []
        mute: list[Trial] = []
        problem: EqsatError | str = "no extents fit together"
        for k, sizes in enumerate(itertools.islice(self._sizes.candidates(), _ATTEMPTS)):
            try:
                trial = self._drawn(run if k else first, sizes, overridden=bool(found))
                (mute if trial.is_mute else found).append(trial)
            except UndefinedError:  # at all other extents, too
                raise
            except ModelError as error:
                problem = problem if found else f"with {described(sizes)}: {error}" if sizes else error
            if len(found) == self.runs or len(mute) == _MUTE:
                break
        found += mute[: self.runs - len(found)]
        if not found:
            raise ModelError(f"the original does not run on random inputs: {problem}")
        for k in range(len(found), self.runs):  # another draw at the same extents
            found.append(self._drawn(run, found[k % len(found)].sizes, k, overridden=True))
        return found

    def empty(self, run: Run, general: Trial, *graphs: Graph) -> list[Trial]:
        """Trials like ``general`` but for one extent that is 0, where the original takes that and the runtime survives it
        in all of ``graphs``."""
        found: list[Trial] = []
        for changed in itertools.islice(self._sizes.empty(general.sizes) if self._sizes else (), _EMPTY):
            if all(_survives(graph, input_shapes(self.original, changed)) for graph in graphs):
                with suppress(EqsatError):  # if the original does not take it, the result need not
                    found.append(self._drawn(run, changed))
        return found

    def _drawn(self, run: Run, sizes: Mapping[str, int], draw: int = 0, *, overridden: bool = False) -> Trial:
        """One trial; ``overridden``: with other values than the file has for an input, where these make something of it."""
        if overridden and envelope_of(self.original).defaults:
            with suppress(ModelError):
                trial = self._random(run, sizes, draw, overridden=True)
                if not trial.is_mute:
                    return trial
        return self._random(run, sizes, draw)

    def _random(self, run: Run, sizes: Mapping[str, int], draw: int, *, overridden: bool = False) -> Trial:
        trial = self._trial(run, self._feeds(sizes, draw, overridden=overridden), sizes)
        self._joins.check(trial.feeds)  # behind the run, which tells loops that have no end
        return trial

    def _feeds(self, sizes: Mapping[str, int], draw: int, *, overridden: bool) -> Feeds:
        try:
            drawn = partial(random_feeds, self.original, self.seed + draw, sizes, overridden=overridden)
            return self._overflows.least(drawn)
        except (MemoryError, ValueError) as error:  # numpy's, of more elements than it can count
            raise ModelError(f"its inputs do not fit into memory: {error}") from None

    def _trial(self, run: Run, feeds: Feeds, sizes: Mapping[str, int]) -> Trial:
        found = run(feeds)
        reference = {name: found[name] for name in self.original.outputs}
        return Trial(feeds, reference, found if found.keys() > reference.keys() else {}, sizes)

    def advice(self) -> str:
        """What to do where no inputs were found."""
        named = ", ".join(f"--dim {s}=N" for s in symbols_of(self.original) if not s.startswith("?"))
        fix = f"fix extents ({named}) or " if named else ""
        return f"{fix}give your own inputs (--inputs FEEDS.npz)"


def mute_outputs(trials: Sequence[Trial]) -> list[str]:
    """Notes on the outputs about which the trials say little."""
    notes: list[str] = []
    for name in trials[0].reference if trials else ():
        values = [t.reference[name] for t in trials if not t.is_empty]
        if values and all(map(_is_float, values)) and not any(map(_says_something, values)):
            notes.append(
                f"output {name!r} is zero or NaN in every run, which says little: give inputs for which it is not"
            )
    return notes


def reproduced(original: Graph, run: Run, trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """The trials, telling outputs apart that the original does not compute alike twice, and notes on these: random numbers, and
    what operators unknown here make, whose buffers hold what was in memory where nothing is stored yet."""
    if not random_nodes(original) and not any(node.opaque for node in original.nodes):
        return list(trials), []
    again = [_run_in_used_memory(run, trial) for trial in trials]
    pairs = [(n, distance(v, found[n])) for t, found in zip(trials, again, strict=True) for n, v in t.reference.items()]
    unlike = {n for n, apart in pairs if apart.moved or apart.misfit}
    drawn = {n for n, apart in pairs if apart.misfit}
    if random_nodes(original):  # two draws may come to the same shape by chance
        drawn |= {n for n in unlike if not _follows(original, n)}
    shaped = unlike - drawn
    kept = [
        replace(
            t,
            reference={n: v for n, v in t.reference.items() if n not in unlike},
            varying={n: v for n, v in t.reference.items() if n in shaped},
        )
        for t in trials
    ]
    notes = [
        f"the original does not compute the same twice, so {compared}: {named}"
        for names, compared in (
            (shaped, "only shapes and dtypes were compared"),
            (drawn, "nothing was compared of outputs that may have another shape each time"),
        )
        if (named := ", ".join(name for name in original.outputs if name in names))
    ]
    return kept, notes


def _follows(original: Graph, output: str) -> bool:
    """Whether the shape of an output is known from those of the inputs, so that no random number is in it."""
    shape = original.type_of(output).shape
    given = frozenset(symbols_of(original))
    return shape is not None and all(symbols(d) <= given for d in shape)


def _run_in_used_memory(run: Run, trial: Trial) -> dict[str, Any]:
    """``run`` again, with something else in the memory that was let go last and is taken next."""
    sizes = [value.nbytes for value in trial.reference.values() if isinstance(value, np.ndarray)]
    used = [np.full(size, _USED, np.uint8) for size in sizes for _ in range(_BLOCKS)]
    del used
    return run(trial.feeds)


def taken_by(result: Run, trials: Sequence[Trial]) -> tuple[list[Trial], list[str]]:
    """The trials that ``result`` takes, and notes on the others."""
    found: list[Trial] = []
    notes: list[str] = []
    for trial in trials:
        try:
            result(trial.feeds)
            found.append(trial)
        except EqsatError as error:
            notes.append(f"empty tensors: the original takes{trial.label}, the result does not: {error}")
    return found, notes


def counting(run: Run, notify: Notify, total: int) -> Run:
    """``run``, which tells how often it has been asked."""
    count = itertools.count(1)

    def counted(feeds: Feeds) -> dict[str, Any]:
        notify(f"run {next(count)} of {total}")
        return run(feeds)

    return counted


def remembering(run: Run, trials: Sequence[Trial]) -> Run:
    """``run``, which is not asked again for what the trials know."""
    known = {id(trial.feeds): trial.reference for trial in trials}
    return lambda feeds: dict(known[id(feeds)]) if id(feeds) in known else run(feeds)


def with_sizes(failures: Sequence[str], trials: Sequence[Trial]) -> list[str]:
    """``failures`` with the extents of the run that each speaks of."""
    return [re.sub(r"\brun (\d+)(?=:)", lambda m: m[0] + trials[int(m[1]) - 1].label, f) for f in failures]


def _is_float(value: Any) -> bool:
    return is_array(value) and value.size > 0 and value.dtype.kind == "f"


def _says_something(value: np.ndarray) -> bool:
    return bool(np.any(np.isfinite(value) & (value != 0)))


def _survives(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Whether no node gets or makes an empty tensor whose operator may end the process then.

    Those outside the default domain and those with bodies have not been tried: they may read empty tensors, as when
    nothing is stored yet, but not make some.
    """
    if any(node.attributes.bodies for node in graph.nodes):
        return False  # what reaches its bodies is not known
    sizes = sized(graph, shapes)

    def may_be_empty(values: Sequence[str]) -> bool:
        return any(sizes.type_of(v).size in (0, None) for v in values if v)

    return not any(
        may_be_empty(node.inputs) if may_end_process(node) else may_be_empty(node.outputs)
        for node in graph.nodes
        if may_end_process(node) or node.domain or node.opaque
    )
