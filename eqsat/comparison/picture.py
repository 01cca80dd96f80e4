"""Comparisons and Pareto fronts as a picture; needs matplotlib, the extra ``eqsat[plot]``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eqsat.errors import OutputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from eqsat.comparison.pareto import ParetoFront
    from eqsat.comparison.table import Comparison


class NoPictureError(OutputError):
    """matplotlib is not installed."""


def draw_comparison(comparison: Comparison, path: str | Path) -> None:
    """A row of panels for each target: prices relative to the best result, and Kendall's tau.

    Raises `NoPictureError` without matplotlib and `OutputError` if the file cannot be written.
    """
    names = list(comparison.cost_models)
    side = 1.5 + 0.9 * len(names)
    figure = _figure(2 * side, side * len(comparison.targets))
    panels = figure.subplots(len(comparison.targets), 2, squeeze=False)
    for (left, right), target in zip(panels, comparison.targets, strict=True):
        rows = comparison.rows_of(target)
        prices = [[row.measures.prices[n] for n in names] for row in rows]
        best = [min(column) for column in zip(*prices, strict=True)]
        relative = [[_ratio(p, b) for p, b in zip(row, best, strict=True)] for row in prices]
        _grid(left, relative, names, names, "viridis_r", (1.0, max(1.001, *(max(_finite(r)) for r in relative))))
        left.set_title(f"{target}: price / best price")
        left.set_ylabel("chosen for")
        left.set_xlabel("priced under")
        taus = [[_number(comparison.agreement[target][a][b]) for b in names] for a in names]
        _grid(right, taus, names, names, "coolwarm", (-1.0, 1.0))
        right.set_title(f"{target}: Kendall's tau")
    figure.suptitle(comparison.model)
    _save(figure, path)


def draw_front(front: ParetoFront, path: str | Path) -> None:
    """Kernels against predicted time, coloured by peak memory: the front as dots, the other candidates as crosses.

    Raises as `draw_comparison` does.
    """
    figure = _figure(8.0, 6.0)
    axes = figure.subplots()
    others = front.dominated
    axes.scatter(
        [k for k, _, _ in others], [1e3 * t for _, t, _ in others], marker="x", c="lightgrey", label="dominated"
    )
    dots = axes.scatter(
        [p.kernels for p in front.points],
        [1e3 * p.predicted_time_s for p in front.points],
        c=[p.peak_memory_bytes / 1e6 for p in front.points],
        cmap="viridis_r",
        edgecolors="black",
        label="front",
    )
    figure.colorbar(dots, label="peak memory, MB")
    axes.set_xlabel("kernels")
    axes.set_ylabel("predicted time, ms")
    axes.set_title(f"{front.model} on {front.target}")
    axes.legend()
    _save(figure, path)


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NoPictureError("no picture: matplotlib is not installed; pip install 'eqsat[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: str | Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot write the picture: {error.strerror or error}") from None
    except ValueError as error:  # matplotlib's word for a suffix that it does not know
        raise OutputError(f"{path}: cannot write the picture: {error}") from None


def _grid(
    axes: Axes,
    values: Sequence[Sequence[float]],
    rows: Sequence[str],
    columns: Sequence[str],
    colours: str,
    limits: tuple[float, float],
) -> None:
    axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1])
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9}
    style["bbox"] = {"boxstyle": "round", "facecolor": "white", "alpha": 0.7, "linewidth": 0}
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            axes.text(j, i, "-" if math.isnan(value) else f"{value:.3g}", **style)


def _ratio(price: float, best: float) -> float:
    if math.isinf(price):
        return math.nan
    return price / best if best else 1.0 if price == best else math.nan


def _finite(values: Sequence[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)] or [1.0]


def _number(value: float | None) -> float:
    return math.nan if value is None else value
