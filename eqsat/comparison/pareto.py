"""The trade-off between kernels, predicted time and peak memory: programs that no other found beats on all three."""

import html
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Unpack

from eqsat.comparison.run import Growths, comparison_options
from eqsat.comparison.table import TIME_MODEL, Measures, finite, measure
from eqsat.cost.custom import LargeValueModel, WeightedModel
from eqsat.cost.model import COST_MODELS, CostModel
from eqsat.cost.target import Target, as_target
from eqsat.extraction import ChosenKernel, Extraction, extract_program
from eqsat.growth import Progress, collector_off
from eqsat.lower.schedule import with_least_memory
from eqsat.options import SharedOptions, takes_options
from eqsat.pipeline import result_of
from eqsat.result import Result

TIME_WEIGHTS = (0.0, 1.0, 0.5, 0.05, 0.25, 0.75, 0.95)
"""Shares of predicted time in a scalarisation; the rest is the number of kernels. Both are relative to the least possible."""

MEMORY_WEIGHTS = (0.0, 1.0, 0.1, 10.0)
"""Prices of a value as large as the whole peak, relative to the least price of the program."""

FULL_SHARES = 8
"""The sweep's effort is handed out as if it had so many steps left at most: few good programs say more than many hasty ones."""

Objectives = tuple[int, float, int]


@dataclass(frozen=True)
class ParetoPoint:
    """A program of the front, with the weights of the scalarisation that found it first. ``result`` holds the program, its
    kernels in the order of least memory, and its whole report."""

    weights: dict[str, float]
    measures: Measures
    result: Result

    @property
    def kernels(self) -> int:
        return self.measures.kernels

    @property
    def predicted_time_s(self) -> float:
        return self.measures.predicted_time_s

    @property
    def peak_memory_bytes(self) -> int:
        return self.measures.peak_memory_bytes

    @property
    def objectives(self) -> Objectives:
        """Kernels, predicted seconds, bytes at the peak: less is better."""
        return self.kernels, self.predicted_time_s, self.peak_memory_bytes

    def to_dict(self) -> dict[str, Any]:
        """As in docs/compare.md."""
        return {**self.measures.to_dict(), "weights": self.weights, "report": self.result.report.to_dict()}


@dataclass(frozen=True)
class ParetoFront:
    """``points``: by kernels, then time, then memory. ``dominated``: objectives of the other distinct candidates.
    ``candidates``: programs extracted. ``complete``: whether the time sufficed for every scalarisation of the sweep."""

    model: str
    target: str
    points: tuple[ParetoPoint, ...]
    dominated: tuple[Objectives, ...]
    candidates: int
    complete: bool
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def distinct(self) -> int:
        """Candidates that differ in kernels, time or memory."""
        return len(self.points) + len(self.dominated)

    def to_dict(self) -> dict[str, Any]:
        """The front as plain JSON data."""
        return {
            "model": self.model,
            "target": self.target,
            "points": [point.to_dict() for point in self.points],
            "dominated": [
                {"kernels": k, "predicted_time_s": finite(t), "peak_memory_bytes": m} for k, t, m in self.dominated
            ],
            "candidates": self.candidates,
            "complete": self.complete,
            "seconds": self.seconds,
        }

    def plot(self, path: str | Path) -> None:
        """Draws the front. Raises `OutputError` if matplotlib is missing or the file cannot be written."""
        from eqsat.comparison.picture import draw_front

        draw_front(self, path)

    def __str__(self) -> str:
        from eqsat.comparison.text import pareto_text

        return pareto_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@takes_options(SharedOptions)
def pareto(
    source: Any,
    *,
    target: str | Target = "onnxruntime-cpu",
    progress: Progress | None = None,
    **options: Unpack[SharedOptions],
) -> ParetoFront:
    """The programs that no other candidate equals or beats on all of kernels, predicted time and peak memory.

    Candidates come from a sweep of scalarisations: weighted sums of kernels and time, with a price on large values. Each has
    its kernels put in the order of least memory that was found. The sweep stops when its effort
    is spent. Only programs on the convex hull of prices can be found, and memory is steered by a
    stand-in (squares of the values' sizes), so a front is what was found, not all there is. Raises `ModelError` and
    `OptionError` for bad input.
    """
    started = time.perf_counter()
    chosen = comparison_options(options)
    machine = chosen.restricted(as_target(target))
    candidates: dict[frozenset[ChosenKernel], tuple[dict[str, float], Measures, Extraction]] = {}
    count = 0
    complete = True
    with collector_off():
        growths = Growths(source, chosen, progress)
        growth = growths.of(machine)
        effort = replace(chosen, prove=True).effort()
        sweep = _Sweep()
        for weights, model in sweep:
            if count >= 2 and effort.over():
                complete = False
                break
            growths.notify("extract", ", ".join(f"{k} {v:g}" for k, v in weights.items()))
            share = effort.part(1 / min(FULL_SHARES, len(TIME_WEIGHTS) * len(MEMORY_WEIGHTS) - count))
            found = extract_program(growth.saturated, machine, model, effort=share)
            count += 1
            if found.kernels not in candidates:
                ordered = replace(found, program=with_least_memory(found.program))
                candidates[found.kernels] = weights, measure(ordered.program, machine, ()), ordered
            sweep.learn(found, candidates[found.kernels][1])
        entries = list(candidates.values())
        objectives = [(m.kernels, m.predicted_time_s, m.peak_memory_bytes) for _, m, _ in entries]
        front = non_dominated(objectives)
        points = [
            ParetoPoint(weights, measures, result_of(source, chosen, growths.graph, growth, found))
            for weights, measures, found in (entries[i] for i in front)
        ]
    on_front = {point.objectives for point in points}
    return ParetoFront(
        points[0].result.report.model,
        machine.name,
        tuple(points),
        tuple(sorted(set(objectives) - on_front)),
        count,
        complete,
        {"load": growths.load_seconds, "total": time.perf_counter() - started},
    )


def non_dominated(objectives: Sequence[Objectives]) -> list[int]:
    """Indices of the entries that no other beats, sorted by objectives; of equal entries the first."""
    front: list[int] = []
    for i in sorted(range(len(objectives)), key=lambda i: (objectives[i], i)):
        if not any(all(a <= b for a, b in zip(objectives[j], objectives[i], strict=True)) for j in front):
            front.append(i)
    return front


class _Sweep:
    """Scalarisations in turn: first kernels alone and time alone, whose results set the scale of the others; then those whose
    weights come first in both lists."""

    def __init__(self) -> None:
        self._kernels = self._time = self._peak = 0.0

    def learn(self, found: Extraction, measures: Measures) -> None:
        """Takes the scale from the first results."""
        if not self._kernels:
            self._kernels = max(found.selection.cost, 1e-12)
            self._peak = max(float(measures.peak_memory_bytes), 1.0)
        elif not self._time:
            self._time = max(found.selection.cost, 1e-30)

    def __iter__(self) -> Iterator[tuple[dict[str, float], CostModel]]:
        places = product(range(len(MEMORY_WEIGHTS)), range(len(TIME_WEIGHTS)))
        for i, j in sorted(places, key=lambda place: (2 * place[0] + place[1], place)):
            share = TIME_WEIGHTS[j]
            weights = {"kernels": 1.0 - share, "time": share, "memory": MEMORY_WEIGHTS[i]}
            yield weights, self._model(weights)

    def _model(self, weights: dict[str, float]) -> CostModel:
        if weights == {"kernels": 1.0, "time": 0.0, "memory": 0.0}:
            return COST_MODELS["kernels"]
        if weights == {"kernels": 0.0, "time": 1.0, "memory": 0.0}:
            return TIME_MODEL
        terms = (
            (weights["kernels"] / self._kernels, COST_MODELS["kernels"]),
            (weights["time"] / self._time, TIME_MODEL),
        )
        name = "+".join(f"{weights[k]:g} {k}" for k in ("kernels", "time") if weights[k])
        base = WeightedModel(name, terms)
        return LargeValueModel(base, weights["memory"], self._peak) if weights["memory"] else base
