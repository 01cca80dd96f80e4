"""The result of a comparison: rows, agreement, differences; as JSON data, text and a picture."""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eqsat.comparison.differences import Difference
from eqsat.cost.model import COST_MODELS, CostModel
from eqsat.cost.target import Target
from eqsat.fusion import kernel_works, price_works
from eqsat.lower.liveness import peak_memory_bytes
from eqsat.lower.program import Program
from eqsat.lower.schedule import with_least_memory
from eqsat.result import Result

TIME_MODEL = COST_MODELS["roofline-launch"]
"""The cost model that predicts time."""


@dataclass(frozen=True)
class Measures:
    """``bytes`` cross the boundaries of kernels; ``flops`` are operations; ``predicted_time_s`` is the price under
    `TIME_MODEL`. ``peak_memory_bytes`` holds for the order of the program, ``least_peak_memory_bytes`` for the best order
    found. ``prices``: name of a cost model -> price under it."""

    kernels: int
    operators: int
    bytes: float
    flops: float
    predicted_time_s: float
    peak_memory_bytes: int
    least_peak_memory_bytes: int
    prices: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """What does not depend on cost models, for JSON, which has no infinity."""
        return {
            "kernels": self.kernels,
            "operators": self.operators,
            "bytes": finite(self.bytes),
            "flops": finite(self.flops),
            "predicted_time_s": finite(self.predicted_time_s),
            "peak_memory_bytes": self.peak_memory_bytes,
        }


def measure(program: Program, target: Target, models: Sequence[CostModel]) -> Measures:
    """Measures of a program on a target, and its price under each of ``models``."""
    works = kernel_works(program, target)
    reordered = with_least_memory(program)
    return Measures(
        kernels=program.kernel_count,
        operators=len(program.graph.nodes),
        bytes=price_works(works, target, COST_MODELS["bytes"]),
        flops=price_works(works, target, COST_MODELS["flops"]),
        predicted_time_s=price_works(works, target, TIME_MODEL),
        peak_memory_bytes=peak_memory_bytes(program.graph, program.kernels),
        least_peak_memory_bytes=peak_memory_bytes(reordered.graph, reordered.kernels),
        prices={model.name: price_works(works, target, model) for model in models},
    )


def finite(value: float) -> float | None:
    """The value for JSON, which has no infinity."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Row:
    """What one cost model chose on one target. ``result`` holds the program and its whole report."""

    target: str
    cost_model: str
    measures: Measures
    result: Result

    @property
    def seconds(self) -> float:
        """Seconds of extraction and lowering."""
        return self.result.report.seconds["extract"] + self.result.report.seconds["lower"]

    def to_dict(self) -> dict[str, Any]:
        """As in docs/compare.md."""
        report, measures = self.result.report, self.measures
        return {
            "target": self.target,
            "cost_model": self.cost_model,
            **measures.to_dict(),
            "least_peak_memory_bytes": measures.least_peak_memory_bytes,
            "cost": finite(report.cost_after),
            "cost_before": finite(report.cost_before),
            "cost_unit": report.cost_unit,
            "lower_bound": finite(report.lower_bound),
            "gap": finite(report.gap),
            "bound_scope": report.bound_scope,
            "prices": {name: finite(price) for name, price in measures.prices.items()},
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Comparison:
    """Cost models compared on one model; `to_dict` is a stable contract, docs/compare.md says what the keys mean.

    ``rows``: one for each target and cost model, in the order asked for. ``egraphs``: size, stop reason and seconds of the
    saturated e-graphs. ``agreement``: target -> model -> model -> Kendall's tau over the target's rows. ``differences``:
    target -> what each pair of models chose differently. ``seconds``: of the whole comparison.
    """

    model: str
    targets: tuple[str, ...]
    cost_models: dict[str, str]
    egraphs: tuple[dict[str, Any], ...]
    rows: tuple[Row, ...]
    agreement: dict[str, dict[str, dict[str, float | None]]]
    differences: dict[str, tuple[Difference, ...]]
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def row(self, target: str, cost_model: str) -> Row:
        """The row of a target and a cost model. Raises `KeyError` if they were not compared."""
        for row in self.rows:
            if (row.target, row.cost_model) == (target, cost_model):
                return row
        raise KeyError((target, cost_model))

    def rows_of(self, target: str) -> tuple[Row, ...]:
        """The rows of a target, in the order of the cost models."""
        return tuple(row for row in self.rows if row.target == target)

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain JSON data; all that depends on the clock is under keys called ``seconds``."""
        return {
            "model": self.model,
            "targets": list(self.targets),
            "cost_models": self.cost_models,
            "egraphs": list(self.egraphs),
            "results": [row.to_dict() for row in self.rows],
            "agreement": self.agreement,
            "differences": {t: [d.to_dict() for d in found] for t, found in self.differences.items()},
            "seconds": self.seconds,
        }

    def plot(self, path: str | Path) -> None:
        """Draws prices and agreement into a file that matplotlib can write, such as PNG, SVG or PDF.

        Raises `OutputError` if matplotlib is missing or the file cannot be written.
        """
        from eqsat.comparison.picture import draw_comparison

        draw_comparison(self, path)

    def __str__(self) -> str:
        from eqsat.comparison.text import comparison_text

        return comparison_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"
