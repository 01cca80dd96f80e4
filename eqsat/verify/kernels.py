"""Kernel by kernel: every region of a program, fed with the original's values, against the original's values.

End to end, a wrong scale in one layer of a quantised model drowns in what a single flipped rounding does to the layers
after it. Region by region nothing accumulates: what a region may deviate is what its counterpart in the original deviates
by itself when its roundings are made coarser (`eqsat.verify.noise`).
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
from eqsat.verify.compare import Yardstick
from eqsat.verify.noise import add_noise
from eqsat.verify.pieces import session_of, subgraph
from eqsat.verify.regions import Region, origin_of, partition
from eqsat.verify.values import whole_numbers

BYTE_BUDGET = 1 << 30
"""Bytes of the original's intermediate values held at a time."""

_UNKNOWN_BYTES = 1 << 20

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
        self.unchanged = sum(len(r.kernels) for r in regions if r.unchanged)
        self.lossy = sum(len(r.kernels) for r in regions if r.exactness >= Exactness.LOSSY)
        self._counterparts = _Counterparts(original)
        self._specifications = {
            r: self._counterparts.of([self.origin[v] for v in r.inputs], [self.origin[v] for v in r.outputs])
            for r in self.regions
            if r.exactness > Exactness.EXACT
        }

    def values_needed(self) -> tuple[str, ...]:
        """Values that the original should hand out, if all of them fit into `BYTE_BUDGET` together; else none."""
        needed = set().union(*map(self._needed, self.regions))
        if sum(_bytes(self.original.type_of(v), {}) for v in needed) > BYTE_BUDGET:
            return ()
        return tuple(sorted(self._computed(needed)))

    def run(self, feeds: Mapping[str, np.ndarray], fetch: Fetch, *, seed: int = 0, noise_runs: int = 3) -> KernelReport:
        """Checks every region on ``feeds``, as many at a time as `BYTE_BUDGET` allows."""
        report = KernelReport(unchanged=self.unchanged)
        if self.lossy:
            report.notes.append(f"{self.lossy} kernels rely on lossy rules and were not compared")
        for chunk in self._chunks(feeds):
            self._run_chunk(chunk, feeds, fetch, seed, noise_runs, report)
        return report

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
        specification = self._specifications.get(region)
        return needed | set(specification.inputs) if specification else needed

    def _computed(self, values: set[str]) -> set[str]:
        return {v for v in values if v not in self.original.constants and v not in self.original.inputs}

    def _run_chunk(
        self,
        chunk: Sequence[Region],
        feeds: Mapping[str, np.ndarray],
        fetch: Fetch,
        seed: int,
        noise_runs: int,
        report: KernelReport,
    ) -> None:
        needed = set().union(*map(self._needed, chunk))
        values = {v: np.asarray(feeds[v]) for v in needed if v in self.original.inputs}
        values.update((v, self.original.constants[v].numpy()) for v in needed if v in self.original.constants)
        values.update(fetch(sorted(self._computed(needed))))
        yardsticks = {
            (r, v): Yardstick(
                values[self.origin[v]],
                whole=self.origin[v] in self.whole,
                quanta=self._quanta(r) if _counts_quanta(values[self.origin[v]]) else 0,
            )
            for r in chunk
            for v in r.outputs
        }
        for exactness in (Exactness.ROUNDING, Exactness.LSB):
            inexact = [r for r in chunk if r.exactness is exactness]
            if inexact:
                self._observe(inexact, exactness, values, yardsticks, seed, noise_runs, report)
        results = _run_piece(self._piece(chunk), {f"original:{v}": array for v, array in values.items()}, report)
        if results is None:
            results = {}
            for region in chunk:
                fed = {f"original:{self.origin[v]}": values[self.origin[v]] for v in region.inputs}
                one = _run_piece(self._piece([region]), fed, report)
                results.update(one or {})
                if one is None:
                    report.notes.append(
                        f"{region.label}: neither ONNX Runtime nor the reference interpreter can run it"
                    )
        for region in chunk:
            report.checked += len(region.kernels)
            for value in region.outputs:
                if value in results:
                    exact = region.exactness is Exactness.EXACT
                    judgement = yardsticks[region, value].judge(results[value], exact=exact)
                    if judgement.message:
                        report.failures.append(self._message(region, value, judgement.message))

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
        """The regions of ``chunk`` as one graph that reads ``original:v`` wherever a region begins at a value."""
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
                        value = f"original:{source}"
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
        noise_runs: int,
        report: KernelReport,
    ) -> None:
        """Runs the original's own regions with noise and shows the yardsticks what comes out."""
        nodes: list[Node] = []
        inputs: dict[str, None] = {}
        types: dict[str, Type] = {}
        whole = set(self.whole)
        outputs: dict[str, tuple[Region, str]] = {}
        for k, region in enumerate(chunk):
            specification = self._specifications[region]
            own = {v: f"{k}:{v}" for node in specification.nodes for v in node.outputs if v}
            types.update((new, self.original.type_of(old)) for old, new in own.items())
            whole.update(new for old, new in own.items() if old in self.whole)
            inputs.update(dict.fromkeys(specification.inputs))
            for node in specification.nodes:
                read = tuple(v if v in specification.inputs else own.get(v, v) for v in node.inputs)
                nodes.append(replace(node, inputs=read, outputs=tuple(own.get(v, v) for v in node.outputs)))
            for value in region.outputs:
                if self.origin[value] in own:
                    outputs[own[self.origin[value]]] = (region, value)
        if not outputs:
            return
        piece = subgraph(self.original, nodes, inputs, outputs, types)
        noisy = add_noise(piece, exactness, whole)
        if not noisy.sites:
            return
        try:
            session = session_of(noisy.graph, prepack=False)
            for run in range(noise_runs):
                fed = {v: values[v] for v in inputs} | noisy.pools(seed * noise_runs + run)
                for name, array in session.run(fed).items():
                    yardsticks[outputs[name]].observe(array)
        except ModelError as error:
            report.notes.append(f"the noise runs of {len(chunk)} regions failed, they get no tolerance: {error}")


@dataclass(frozen=True)
class _Specification:
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]


class _Counterparts:
    """Finds the part of the original that computes given values from given values."""

    def __init__(self, original: Graph) -> None:
        self.graph = original
        self.producer = {v: i for i, node in enumerate(original.nodes) for v in node.outputs if v}

    def of(self, inputs: Sequence[str], outputs: Sequence[str]) -> _Specification:
        """The nodes between ``inputs`` and ``outputs``. What they read besides, and is not affected by ``inputs``, is
        an input of the part as well."""
        boundary = set(inputs)
        first = min((self.producer.get(v, -1) for v in boundary), default=len(self.graph.nodes))
        affected: dict[str, bool] = {}
        stack = list(outputs)
        while stack:  # values in post-order: a value after everything it is computed from
            value = stack[-1]
            if value in affected:
                stack.pop()
                continue
            source = self.producer.get(value)
            if source is None or source < first or (value in boundary and value not in outputs):
                affected[value] = value in boundary
                stack.pop()
                continue
            operands = [v for v in self.graph.nodes[source].inputs if v and v not in boundary]
            waiting = [v for v in operands if v not in affected]
            if waiting:
                stack.extend(waiting)
                continue
            reads = any(v in boundary for v in self.graph.nodes[source].inputs)
            affected[value] = reads or any(affected[v] for v in operands)
            stack.pop()
        chosen = sorted(
            {self.producer[v] for v, hit in affected.items() if hit and self._is_computed(v, boundary, outputs)}
        )
        nodes = tuple(self.graph.nodes[i] for i in chosen)
        inside = {v for node in nodes for v in node.outputs if v not in boundary}
        read = dict.fromkeys(v for node in nodes for v in node.inputs if v)
        return _Specification(nodes, tuple(v for v in read if v not in inside and v not in self.graph.constants))

    def _is_computed(self, value: str, boundary: set[str], outputs: Sequence[str]) -> bool:
        return value in self.producer and (value not in boundary or value in outputs)


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


def _run_piece(piece: Graph, feeds: Mapping[str, Any], report: KernelReport) -> dict[str, Any] | None:
    """Outputs of a piece by ONNX Runtime, else by the reference interpreter; ``None`` if neither can."""
    fed = {name: feeds[name] for name in piece.inputs}
    try:
        return session_of(piece).run(fed)
    except ModelError as error:
        if len(piece.nodes) > 64:  # probably many regions: let the caller find the one that does not run
            return None
        try:
            results = interpret(piece, fed)
        except EqsatError:
            return None
        report.notes.append(f"run by the reference interpreter: {error}")
        return results
