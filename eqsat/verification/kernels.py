"""Kernel by kernel: every region of a program, fed with the original's values, against the original's values.

End to end, a wrong scale in one layer of a quantised model drowns in what a single flipped rounding does to the layers
after it. Region by region nothing accumulates: what a region may deviate is what its counterpart in the original deviates
by itself when its roundings are made coarser (`eqsat.verification.noise`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, ModelError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph, Node
from eqsat.ir.interpret import run as interpret
from eqsat.ir.types import TensorType, Type
from eqsat.lower.program import Program
from eqsat.verification.compare import Yardstick
from eqsat.verification.counterparts import CounterpartFinder, join
from eqsat.verification.noise import NOISE_RUNS, add_noise
from eqsat.verification.pieces import session_of, subgraph
from eqsat.verification.regions import Region, origin_of, partition
from eqsat.verification.stretch import STRETCHED, Stretch, stretched
from eqsat.verification.values import whole_numbers

BYTE_BUDGET = 1 << 30
"""Bytes of the original's intermediate values held at a time."""

_UNKNOWN_BYTES = 1 << 20
_FED = "original:"

Fetch = Callable[[Sequence[str]], Mapping[str, Any]]
"""Runs the original and returns intermediate values by name."""


@dataclass
class KernelReport:
    """``checked`` and ``unchanged``: kernels that were run, and kernels that are the original's, literally."""

    checked: int = 0
    unchanged: int = 0
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class KernelCheck:
    """The regions of ``program``, ready to be compared with ``original``.

    ``quanta`` says by rule how many quanta a rule of class ``lsb`` may move an integer (1 where it says nothing).
    """

    def __init__(self, original: Graph, program: Program, quanta: Mapping[str, int] | None = None) -> None:
        self.original = original
        self.program = program
        self.origin = origin_of(original, program)
        self.whole = whole_numbers(original)
        self.quanta = quanta or {}
        regions = partition(original, program)
        self.regions = [r for r in regions if r.outputs and not r.unchanged and r.exactness < Exactness.LOSSY]
        self.report = KernelReport(unchanged=sum(len(r.kernels) for r in regions if r.unchanged))
        lossy = sum(len(r.kernels) for r in regions if r.exactness >= Exactness.LOSSY)
        if lossy:
            self.report.notes.append(f"{lossy} kernels rely on lossy rules and were not compared")
        finder = CounterpartFinder(original)
        self._counterparts = {
            r: finder.find([self.origin[v] for v in r.inputs], [self.origin[v] for v in r.outputs])
            for r in self.regions
        }
        self._stretch = Stretch(original)

    def values_needed(self) -> tuple[str, ...]:
        """Values that the original should hand out, if all of them fit into `BYTE_BUDGET` together; else none."""
        needed = set().union(*map(self._needed, self.regions))
        if sum(_bytes(self.original.type_of(v), {}) for v in needed) > BYTE_BUDGET:
            return ()
        return tuple(sorted(self._computed(needed)))

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Fetch, seed: int = 0) -> KernelReport:
        """Checks every region on ``feeds``, as many at a time as `BYTE_BUDGET` allows. Reports add up over calls."""
        self.report.checked = 0
        for chunk in self._chunks(feeds):
            self._run_chunk(chunk, feeds, fetch, seed)
        return self.report

    def _chunks(self, feeds: Mapping[str, np.ndarray]) -> Iterator[list[Region]]:
        sizes = bind_symbols(self.original, feeds)
        chunk: list[Region] = []
        held: set[str] = set()
        total = 0
        for region in self.regions:
            needed = self._needed(region) - held
            more = sum(_bytes(self.original.type_of(v), sizes) for v in needed)
            if chunk and total + more > BYTE_BUDGET:
                yield chunk
                chunk, held, total = [], set(), 0
                needed = self._needed(region)
                more = sum(_bytes(self.original.type_of(v), sizes) for v in needed)
            chunk.append(region)
            held |= needed
            total += more
        if chunk:
            yield chunk

    def _needed(self, region: Region) -> set[str]:
        """Values of the original that checking ``region`` takes."""
        needed = {self.origin[v] for v in (*region.inputs, *region.outputs)}
        return needed | set(self._counterparts[region].inputs)

    def _computed(self, values: set[str]) -> set[str]:
        return {v for v in values if v not in self.original.constants and v not in self.original.inputs}

    def _run_chunk(self, chunk: Sequence[Region], feeds: Mapping[str, np.ndarray], fetch: Fetch, seed: int) -> None:
        needed = set().union(*map(self._needed, chunk))
        values = {v: np.asarray(feeds[v]) for v in needed if v in self.original.inputs}
        values.update((v, self.original.constants[v].numpy()) for v in needed if v in self.original.constants)
        values.update(fetch(sorted(self._computed(needed))))
        self._compare(chunk, values, values, seed, "")
        self.report.checked += sum(len(region.kernels) for region in chunk)
        saturating = [r for r in chunk if self._stretch.applies(r, self._counterparts[r], self.program.graph)]
        if saturating:
            self._compare_stretched(saturating, values, seed)

    def _compare_stretched(self, chunk: Sequence[Region], values: Mapping[str, Any], seed: int) -> None:
        """The same with larger inputs: see `eqsat.verification.stretch`. The original's own regions say what is right."""
        larger = stretched({v: values[v] for r in chunk for v in self._counterparts[r].inputs})
        part = join(self.original, [self._counterparts[r] for r in chunk])
        try:
            found = session_of(part.graph).run({v: larger[v] for v in part.graph.inputs})
        except ModelError:
            return  # no more than an additional test
        references = {part.names[k, v]: v for k, r in enumerate(chunk) for v in map(self.origin.__getitem__, r.outputs)}
        right = {v: found[name] for name, v in references.items()}
        self._compare(chunk, {**larger, **{k: v for k, v in values.items() if k not in larger}}, right, seed, STRETCHED)

    def _compare(
        self, chunk: Sequence[Region], values: Mapping[str, Any], right: Mapping[str, Any], seed: int, where: str
    ) -> None:
        """Runs every region on ``values`` and compares with the values of the original in ``right``."""
        yardsticks = {
            (r, v): Yardstick(
                right[self.origin[v]],
                whole=self.origin[v] in self.whole,
                quanta=self._quanta(r) if _counts_quanta(right[self.origin[v]]) else 0,
            )
            for r in chunk
            for v in r.outputs
        }
        for exactness in (Exactness.ROUNDING, Exactness.LSB):
            inexact = [r for r in chunk if r.exactness is exactness]
            if inexact:
                self._observe(inexact, exactness, values, yardsticks, seed)
        results = self._results(chunk, values)
        for (region, value), yardstick in yardsticks.items():
            if value in results:
                judgement = yardstick.judge(results[value], exact=region.exactness is Exactness.EXACT)
                if judgement.message:
                    self.report.failures.append(self._message(region, value, judgement.message + where))

    def _results(self, chunk: Sequence[Region], values: Mapping[str, Any]) -> dict[str, Any]:
        """What the regions compute from ``values``: all in one session, or one by one if that does not load."""
        piece = self._piece(chunk)
        fed = {name: values[name.removeprefix(_FED)] for name in piece.inputs}
        try:
            return session_of(piece).run(fed)
        except ModelError as error:
            if len(chunk) > 1:
                parts = [self._results([region], values) for region in chunk]
                return {name: value for part in parts for name, value in part.items()}
            reason = error
        try:
            results = interpret(piece, fed)
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

    def _quanta(self, region: Region) -> int:
        if region.exactness is Exactness.EXACT:
            return 0
        return max((self.quanta.get(rule, 1) for rule in region.rules), default=1) or 1

    def _piece(self, chunk: Sequence[Region]) -> Graph:
        """The regions of ``chunk`` as one graph that reads a value of the original wherever a region begins at a value."""
        graph = self.program.graph
        kernel_of = {i: k for k, kernel in enumerate(self.program.kernels) for i in kernel.nodes}
        producer = {value: i for i, node in enumerate(graph.nodes) for value in node.outputs if value}
        nodes: list[Node] = []
        inputs: dict[str, Type] = {}
        for region in chunk:
            boundary = set(region.inputs)
            for i in region.nodes:
                read = []
                for value in graph.nodes[i].inputs:
                    inside = value in producer and kernel_of[producer[value]] == kernel_of[i]
                    if value in boundary and not inside:
                        source = self.origin[value]
                        value = _FED + source
                        inputs[value] = self.original.type_of(source)
                    read.append(value)
                nodes.append(replace(graph.nodes[i], inputs=tuple(read)))
        outputs = [v for region in chunk for v in region.outputs]
        return subgraph(graph, nodes, inputs, outputs, inputs)

    def _observe(
        self,
        chunk: Sequence[Region],
        exactness: Exactness,
        values: Mapping[str, Any],
        yardsticks: Mapping[tuple[Region, str], Yardstick],
        seed: int,
    ) -> None:
        """Runs the original's own regions with noise and shows the yardsticks what comes out."""
        part = join(self.original, [self._counterparts[r] for r in chunk])
        shown = {
            part.names[k, self.origin[v]]: yardsticks[r, v]
            for k, r in enumerate(chunk)
            for v in r.outputs
            if (k, self.origin[v]) in part.names
        }
        noisy = add_noise(part.graph, exactness, part.renamed(self.whole))
        if not noisy.sites:
            return
        try:
            session = session_of(noisy.graph, prepack=False)
            for run in range(NOISE_RUNS):
                fed = {v: values[v] for v in part.graph.inputs} | noisy.pools(seed * NOISE_RUNS + run)
                for name, array in session.run(fed).items():
                    shown[name].observe(array)
        except ModelError as error:
            self.report.notes.append(f"the noise runs of {len(chunk)} regions failed, they get no tolerance: {error}")


def bind_symbols(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Extents of the symbolic dimensions of the inputs, as ``feeds`` has them."""
    sizes: dict[str, int] = {}
    for name in graph.inputs:
        found = graph.type_of(name)
        if isinstance(found, TensorType) and found.shape is not None and name in feeds:
            pairs = zip(found.shape, np.shape(feeds[name]), strict=False)
            sizes.update((d, int(n)) for d, n in pairs if isinstance(d, str))
    return sizes


def _bytes(found: Type, sizes: Mapping[str, int]) -> int:
    if not isinstance(found, TensorType) or found.shape is None:
        return _UNKNOWN_BYTES
    extents = [d if isinstance(d, int) else sizes.get(d) for d in found.shape]
    if None in extents:
        return _UNKNOWN_BYTES
    return int(np.prod([d for d in extents if d is not None], dtype=np.int64)) * found.dtype.bits // 8


def _counts_quanta(reference: Any) -> bool:
    """Whether an element is a code, which may move by a quantum, rather than an index or a size, which may not."""
    return isinstance(reference, np.ndarray) and (reference.dtype.kind == "f" or reference.dtype.itemsize <= 2)
