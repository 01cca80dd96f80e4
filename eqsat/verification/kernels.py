"""Kernel by kernel: every region of a program, fed with the original's values, against the original's values.

End to end, a wrong scale in one layer of a quantised model drowns in what a single flipped rounding does to the layers
after it. Region by region nothing accumulates: what a region may deviate is what its counterpart in the original deviates
by itself when its roundings are made coarser (`eqsat.verification.noise`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.exactness import Exactness
from eqsat.ir.constants import same_bits
from eqsat.ir.graph import Graph
from eqsat.ir.types import is_array, is_sequence
from eqsat.lower.program import Program
from eqsat.verification.alike import excused, most_telling
from eqsat.verification.compare import Yardstick, bytes_of
from eqsat.verification.counterparts import CounterpartFinder, join
from eqsat.verification.extents import Sized, shapes_of, sized
from eqsat.verification.noise import add_noise, noise_runs_of
from eqsat.verification.overflows import not_finite, with_checks
from eqsat.verification.pieces import in_interpreter_of, in_session_of, with_dtypes
from eqsat.verification.regions import FED, Region, origin_of, partition, piece_of
from eqsat.verification.stretch import STRETCHED, Stretch, stretched
from eqsat.verification.trials import Fetch
from eqsat.verification.values import is_deterministic, whole_numbers
from eqsat.verification.verification import Verification

BYTE_BUDGET = 1 << 30
"""Bytes of the original's intermediate values held at a time."""


class KernelCheck:
    """The regions of ``program``, ready to be compared with ``original``.

    ``quanta`` says by rule how many quanta a rule of class ``lsb`` may move an integer (1 where it says nothing). ``notify``
    is told which kernel it is about. ``full``: noise is run in each region that it may excuse, else in the most telling one of
    equal regions, as of equal layers, if that excuses the others.
    """

    def __init__(
        self,
        original: Graph,
        program: Program,
        quanta: Mapping[str, int] | None = None,
        notify: Callable[[str], None] = lambda detail: None,
        *,
        full: bool = False,
    ) -> None:
        self.full = full
        self.original = original
        self.program = program
        self.origin = origin_of(original, program)
        self.whole = whole_numbers(original)
        self.quanta = quanta or {}
        self._notify = notify
        regions = partition(original, program)
        changed = [r for r in regions if r.outputs and not r.unchanged and r.exactness < Exactness.LOSSY]
        drawn = {r for r in changed if not all(is_deterministic(program.graph.nodes[i]) for i in r.nodes)}
        self.regions = [r for r in changed if r not in drawn]
        self.report = Verification(kernels_unchanged=sum(len(r.kernels) for r in regions if r.unchanged))
        for kernels, what in (
            (sum(len(r.kernels) for r in regions if r.exactness >= Exactness.LOSSY), "lossy rules"),
            (sum(len(r.kernels) for r in drawn), "random numbers"),
        ):
            if kernels:
                self.report.notes.append(f"not compared: {kernels} kernel{'s' if kernels > 1 else ''} with {what}")
        finder = CounterpartFinder(original)
        self._counterparts = {
            r: finder.find([self.origin[v] for v in r.inputs], [self.origin[v] for v in r.outputs])
            for r in self.regions
        }
        self._stretch = Stretch(original, self.origin)
        self._load = in_session_of

    def values_needed(self, sizes: Sized) -> tuple[str, ...]:
        """Values that the original should hand out, if all of them fit into `BYTE_BUDGET` together; else none."""
        needed = set[str]().union(*map(self._needed, self.regions))
        if sum(map(sizes.bytes_of, needed)) > BYTE_BUDGET:
            return ()
        return tuple(sorted(self._computed(needed)))

    def run(
        self, feeds: Mapping[str, np.ndarray], fetch: Fetch, seed: int = 0, *, in_interpreter: bool = False
    ) -> Verification:
        """Checks every region on ``feeds``, as many at a time as `BYTE_BUDGET` allows.

        ``in_interpreter``: the reference interpreter ran the original, so it runs the regions, too: another runtime sums in
        another order.
        """
        self._load = in_interpreter_of if in_interpreter else in_session_of
        total = sum(len(region.kernels) for region in self.regions)
        for chunk in self._chunks(feeds):
            more = sum(len(region.kernels) for region in chunk)
            self._notify(
                f"kernel {self.report.kernels_checked + 1} of {total}"
                + (f", and {more - 1} with it" if more > 1 else "")
            )
            self._run_chunk(chunk, feeds, fetch, seed)
        return self.report

    def _chunks(self, feeds: Mapping[str, np.ndarray]) -> Iterator[list[Region]]:
        sizes = sized(self.original, shapes_of(feeds))
        chunk: list[Region] = []
        held: set[str] = set()
        total = 0
        for region in self.regions:
            needed = self._needed(region)
            if chunk and total + sum(map(sizes.bytes_of, needed - held)) > BYTE_BUDGET:
                yield chunk
                chunk, held, total = [], set[str](), 0
            chunk.append(region)
            total += sum(map(sizes.bytes_of, needed - held))
            held |= needed
        if chunk:
            yield chunk

    def _needed(self, region: Region) -> set[str]:
        """Values of the original that checking ``region`` takes."""
        needed = {self.origin[v] for v in (*region.inputs, *region.outputs)}
        return needed | set(self._counterparts[region].inputs)

    def _computed(self, values: set[str]) -> set[str]:
        return {v for v in values if v not in self.original.constants and v not in self.original.inputs}

    def _run_chunk(self, chunk: Sequence[Region], feeds: Mapping[str, np.ndarray], fetch: Fetch, seed: int) -> None:
        needed = set[str]().union(*map(self._needed, chunk))
        values: dict[str, Any] = {
            v: feeds[v] if is_sequence(feeds[v]) else np.asarray(feeds[v]) for v in needed if v in self.original.inputs
        }
        values.update((v, self.original.constants[v].numpy()) for v in needed if v in self.original.constants)
        values.update(fetch(sorted(self._computed(needed))))
        self.original = with_dtypes(self.original, values)
        self._compare(chunk, values, values, seed, "")
        self.report.kernels_checked += sum(len(region.kernels) for region in chunk)
        saturating = [r for r in chunk if self._stretch.applies(r, self._counterparts[r], self.program.graph)]
        if saturating:
            self._compare_stretched(saturating, values, seed)

    def _compare_stretched(self, chunk: Sequence[Region], values: Mapping[str, Any], seed: int) -> None:
        """The same with larger inputs: see `eqsat.verification.stretch`. The original's own regions say what is right."""
        larger = stretched({v: values[v] for r in chunk for v in self._counterparts[r].inputs})
        part = join(self.original, [self._counterparts[r] for r in chunk])
        try:
            found = self._load(with_checks(part.graph))({v: larger[v] for v in part.graph.inputs})
        except EqsatError:
            return  # no more than an additional test
        beyond = not_finite(found)
        spoilt = {k for (k, _), name in part.names.items() if name in beyond}
        fair = {k: r for k, r in enumerate(chunk) if k not in spoilt or r.exactness is Exactness.EXACT}
        right = {v: found[part.names[k, v]] for k, r in fair.items() for v in map(self.origin.__getitem__, r.outputs)}
        fed = {**larger, **{k: v for k, v in values.items() if k not in larger}}
        if fair:
            self._compare([*fair.values()], fed, right, seed, STRETCHED)

    def _compare(
        self, chunk: Sequence[Region], values: Mapping[str, Any], right: Mapping[str, Any], seed: int, where: str
    ) -> None:
        """Runs every region on ``values`` and compares with the values of the original in ``right``."""
        results = self._results(chunk, values)
        self.report.bytes_compared += sum(bytes_of(results[v]) for r in chunk for v in r.outputs if v in results)
        differing = self._differing(chunk, right, results)
        alone = [r for r in differing if r.exactness is Exactness.EXACT]
        if alone and len(alone) < len(chunk):
            # Others may need a newer opset, at which ONNX Runtime has another kernel of an operator: of AveragePool from 19 on.
            results.update(self._results(alone, values))
            differing = self._differing(chunk, right, results)
        yardsticks = {
            (r, v): Yardstick(
                right[self.origin[v]],
                whole=self.origin[v] in self.whole,
                quanta=self._quanta(r, right[self.origin[v]]),
            )
            for r, moved in differing.items()
            for v in moved
        }
        refused = self._refused(yardsticks, results)
        # Most regions are right without noise to explain anything.
        for exactness in (Exactness.ROUNDING, Exactness.LSB):
            inexact = {r: self._counterparts[r] for r, _ in refused if r.exactness is exactness}
            telling = {r: r for r in inexact}
            if not self.full:
                telling = most_telling(self.program.graph, self.original, inexact, yardsticks, results)
            self._observe(list(dict.fromkeys(telling.values())), exactness, values, yardsticks, results, seed)
            left = [r for r in inexact if telling[r] is not r and not excused(r, telling[r], yardsticks, results)]
            self._observe(left, exactness, values, yardsticks, results, seed)
        for (region, value), message in self._refused({key: yardsticks[key] for key in refused}, results).items():
            failure = self._message(region, value, message + where)
            self.report.failures.append(failure)
            self.report.wrong_kernels += ((failure, region.rules),)

    def _differing(
        self, chunk: Sequence[Region], right: Mapping[str, Any], results: Mapping[str, Any]
    ) -> dict[Region, list[str]]:
        """Regions whose results are not, bit by bit, the values in ``right``, and which ones."""
        found = {
            r: [v for v in r.outputs if v in results and not _is_same(right[self.origin[v]], results[v])] for r in chunk
        }
        return {r: values for r, values in found.items() if values}

    def _refused(
        self, yardsticks: Mapping[tuple[Region, str], Yardstick], results: Mapping[str, Any]
    ) -> dict[tuple[Region, str], str]:
        """What is wrong with the results, where something is."""
        found = {
            (r, v): yardstick.judge(results[v], exact=r.exactness is Exactness.EXACT).message
            for (r, v), yardstick in yardsticks.items()
        }
        return {key: message for key, message in found.items() if message}

    def _results(self, chunk: Sequence[Region], values: Mapping[str, Any]) -> dict[str, Any]:
        """What the regions compute from ``values``: all in one session, or one by one if that does not load."""
        piece = piece_of(chunk, self.original, self.program, self.origin)
        fed = {name: values[name.removeprefix(FED)] for name in piece.inputs}
        try:
            return self._load(piece)(fed)
        except EqsatError as error:
            if len(chunk) > 1:
                parts = [self._results([region], values) for region in chunk]
                return {name: value for part in parts for name, value in part.items()}
            reason = error
        try:
            results = in_interpreter_of(piece)(fed)
            self.report.notes.append(f"{chunk[0].label}: run by the reference interpreter: {reason}")
            return results
        except EqsatError as error:
            self.report.notes.append(f"{chunk[0].label}: not checked: {reason}; {error}")
            return {}

    def _message(self, region: Region, value: str, what: str) -> str:
        source = self.origin[value]
        name = repr(value) if source == value else f"{value!r} (in the original {source!r})"
        rules = ", ".join(region.rules) or "no rule"
        return f"{region.label}: {name}: {what}; class {region.exactness.label}, rules: {rules}"

    def _quanta(self, region: Region, reference: Any) -> int:
        """By how many quanta an element may move: a code, rather than an index or a size, which may not."""
        is_code = is_array(reference) and (reference.dtype.kind == "f" or reference.dtype.itemsize <= 2)
        if region.exactness is Exactness.EXACT or not is_code:
            return 0
        return max((self.quanta.get(rule, 1) for rule in region.rules), default=1) or 1

    def _observe(
        self,
        chunk: Sequence[Region],
        exactness: Exactness,
        values: Mapping[str, Any],
        yardsticks: Mapping[tuple[Region, str], Yardstick],
        results: Mapping[str, Any],
        seed: int,
    ) -> None:
        """Runs the original's own regions with noise and shows the yardsticks what comes out, as often as they need it."""
        if not chunk:
            return
        own = {key: yardstick for key, yardstick in yardsticks.items() if key[0] in set(chunk)}
        part = join(self.original, [self._counterparts[r] for r in chunk])
        shown = {
            part.names[k, self.origin[v]]: yardsticks[r, v]
            for k, r in enumerate(chunk)
            for v in r.outputs
            if (k, self.origin[v]) in part.names and (r, v) in yardsticks
        }
        noisy = add_noise(part.graph, exactness, part.renamed(self.whole))
        if not noisy.sites:
            return
        try:
            run_noisy, runs = self._load(noisy.graph), noise_runs_of(part.graph)
            for run in range(runs):
                if not self._refused(own, results):
                    break
                fed = {v: values[v] for v in part.graph.inputs} | noisy.pools(seed * runs + run)
                for name, array in run_noisy(fed).items():
                    if name in shown:
                        shown[name].observe(array)
        except EqsatError as error:
            self.report.notes.append(f"the noise runs of {len(chunk)} regions failed, they get no tolerance: {error}")


def _is_same(a: Any, b: Any) -> bool:
    return is_array(a) and is_array(b) and (a.dtype, a.shape) == (b.dtype, b.shape) and same_bits(a, b)
