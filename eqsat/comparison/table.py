"""The result of a comparison: rows, agreement, differences; as JSON data, text and a picture."""

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eqsat.comparison.differences import Difference
from eqsat.comparison.measures import Measures, finite
from eqsat.pipeline import Result


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
            "kernels": measures.kernels,
            "operators": measures.operators,
            "bytes": finite(measures.bytes),
            "flops": finite(measures.flops),
            "predicted_time_s": finite(measures.predicted_time_s),
            "peak_memory_bytes": measures.peak_memory_bytes,
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
    seconds: dict[str, float] = field(default_factory=dict)

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
