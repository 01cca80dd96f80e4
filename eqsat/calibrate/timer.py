"""Timing kernels in ONNX Runtime as they run in a network, without what a run of a session costs by itself.

A kernel is timed in a model with many copies of it (`eqsat.calibrate.copies` says how they share memory), run with the runtime's
own rewriting off, so that the nodes are those that are priced; convolutions of images are timed as they are at its highest
level, on blocks of channels. The time of a call is the time of a run, less that of a model with
one trivial node and that of the nodes that free results, over the number of copies. Weights are rearranged when the model is
loaded, as for users. The kernels of a batch take turns, in an order that rotates, and the median of the repeats counts: a
disturbance of some milliseconds hits one repeat of several kernels, not all repeats of one. Runs in which the operating system
took a processor away do not count, as long as there are others; where there are none, the shortest run does.

ONNX Runtime's profiler would give times node by node too, but in whole microseconds and with the cost of writing events in
them; a small kernel takes half a microsecond.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eqsat.backends.onnxruntime import Bound, Session
from eqsat.calibrate.blocks import as_run, written
from eqsat.calibrate.case import Case, data
from eqsat.calibrate.copies import LONGEST_CHAIN, build, is_chain, turns_of, weight_bytes
from eqsat.cost.timings import Timing
from eqsat.errors import EqsatError
from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.ir.types import TensorType, type_of_array

try:
    import resource
except ImportError:  # Windows
    resource = None

_RUN_S = 2e-3
_MOST_COPIES = 512
_LONGEST_RUN_S = 2e-2
_COLD_BYTES = 1e8
"""Weights of all copies together: several times the last cache, as a network reads each weight once a run."""
_PROBE = 3


@dataclass(frozen=True, slots=True)
class Repeats:
    """How carefully to time: ``repeats`` runs of each kernel, ``threads`` of the runtime."""

    repeats: int = 11
    threads: int = 2


class Run(NamedTuple):
    """Seconds of a run, and whether the operating system took a processor away from it."""

    seconds: float
    disturbed: bool


def _preemptions() -> int:
    """How often this process, with all its threads, had to make way for others; 0 where the platform does not tell."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class _Copies:
    """A model with some copies of a kernel, loaded."""

    def __init__(self, case: Case, copies: int, threads: int, results: Sequence[TensorType] = ()) -> None:
        self.case, self.copies = case, copies
        model = build(case, copies, results)
        self.releases = model.releases
        session = Session(model.proto, "disable", threads=threads, weights=model.weights, prepack=True)
        self.bound: Bound = session.bound(model.feeds)
        self.bound.run()

    @property
    def results(self) -> tuple[TensorType, ...]:
        """Types of a kernel's outputs."""
        return tuple(type_of_array(a) for a in self.bound.outputs().values())

    def run(self) -> Run:
        """One run."""
        before = _preemptions()
        start = time.perf_counter()
        self.bound.run()
        seconds = time.perf_counter() - start
        return Run(seconds, _preemptions() > before)


def time_kernels(cases: Sequence[Case], how: Repeats) -> tuple[list[Timing], dict[str, str]]:
    """Timings of the kernels, which take turns, and what the runtime said of those it cannot run, by `Case.name`."""
    loaded: list[_Copies] = []
    timed: list[Case] = []
    failures: dict[str, str] = {}
    for case in cases:
        try:
            loaded.append(_sized(as_run(case), how.threads))
            timed.append(case)
        except EqsatError as error:
            failures[case.name] = str(error)[:200]
    nothing, looks = _Copies(_TRIVIAL, 1, how.threads), _Copies(_LOOK, _LOOKS, how.threads)
    samples: list[list[Run]] = [[] for _ in loaded]
    overhead: list[float] = []
    looking: list[float] = []
    for turn in range(how.repeats):
        overhead.append(nothing.run().seconds)
        looking.append(looks.run().seconds)
        for k in range(len(loaded)):
            index = (k + turn) % len(loaded)
            samples[index].append(loaded[index].run())
    base = statistics.median(overhead)
    look = max(statistics.median(looking) - base, 0.0) / _LOOKS
    found = zip(timed, loaded, samples, strict=True)
    return [_timing(case, c, s, base + c.releases * look) for case, c, s in found], failures


def _timing(case: Case, copies: _Copies, samples: Sequence[Run], base: float) -> Timing:
    middle, spread = summary(samples, base)
    results = written(case, copies.case, copies.results)
    return Timing(case.key, case.attributes, case.types, results, middle / copies.copies, spread)


def summary(samples: Sequence[Run], base: float) -> tuple[float, float]:
    """Seconds above ``base`` that count, and half the distance of the quartiles over them."""
    all_runs = sorted(max(r.seconds - base, r.seconds * 1e-3) for r in samples)
    quiet = sorted(max(r.seconds - base, r.seconds * 1e-3) for r in samples if not r.disturbed)
    middle = statistics.median(quiet) if quiet else all_runs[0]
    used = quiet if len(quiet) > 2 else all_runs
    return middle, (used[(3 * len(used)) // 4] - used[len(used) // 4]) / (2 * middle)


def _sized(case: Case, threads: int) -> _Copies:
    """As many copies as make a run long beside the clock, their weights larger than the caches, and chains long."""
    probe = _Copies(case, _PROBE, threads)
    each = min(probe.run().seconds for _ in range(3)) / _PROBE
    own = weight_bytes(case)
    cold = max(int(_COLD_BYTES / own), _PROBE) if own > 1024 else 0
    turns = turns_of(case) * (LONGEST_CHAIN if is_chain(case, probe.results) else 2)
    wanted = max(int(_RUN_S / each), min(max(cold, turns), int(_LONGEST_RUN_S / each)), _PROBE)
    copies = min(wanted, _MOST_COPIES, cold or _MOST_COPIES)
    return _Copies(case, copies, threads, probe.results)


_TRIVIAL = Case("Identity", NO_ATTRIBUTES, (data("float32", 1),))
_LOOK = Case("Shape", NO_ATTRIBUTES, (data("float32", 1),))
_LOOKS = 192
"""Copies of the node that looks at a shape."""
