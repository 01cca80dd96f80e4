"""Comparisons and Pareto fronts as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from eqsat.comparison.differences import Difference
    from eqsat.comparison.pareto import ParetoFront
    from eqsat.comparison.table import Comparison

_WIDTH = 150
_OPERATORS_SHOWN = 3
_PLACES_SHOWN = 2


def comparison_text(comparison: Comparison) -> str:
    """Results, prices, agreement and differences, a table each for every target."""
    tables: list[Table] = []
    for target in comparison.targets:
        tables += [_results(comparison, target), _prices(comparison, target), _agreement(comparison, target)]
        if comparison.differences[target]:
            tables.append(_differences(comparison, target))
    egraphs = [
        f"e-graph for {', '.join(e['targets'])}: {e['enodes']} e-nodes, {e['eclasses']} e-classes, {e['stop_reason']}, "
        f"{e['seconds']:.2f} s"
        for e in comparison.egraphs
    ]
    return "\n".join([comparison.model, *egraphs, _render(tables), f"{comparison.seconds['total']:.1f} s in all"])


def pareto_text(front: ParetoFront) -> str:
    """The points of the front, a row each."""
    headings = ["kernels", "time", "peak MB", "operators", "MB moved", "G operations", "exactness", "scalarisation"]
    rows = [
        [
            f"{p.kernels}",
            seconds_text(p.predicted_time_s),
            f"{p.peak_memory_bytes / 1e6:.2f}",
            f"{p.measures.operators}",
            f"{p.measures.bytes / 1e6:.1f}",
            f"{p.measures.flops / 1e9:.2f}",
            p.result.report.exactness,
            ", ".join(f"{k} {v:g}" for k, v in p.weights.items()),
        ]
        for p in front.points
    ]
    title = (
        f"{front.model} on {front.target}: no other program found is as good on all of kernels, time and peak memory"
    )
    tried = f"{front.candidates} candidates, {front.distinct} distinct in kernels, time and memory; "
    tried += f"{front.seconds['total']:.1f} s"
    return "\n".join([front.model, _render([_table(title, headings, rows, left=(6, 7))]), tried])


def seconds_text(seconds: float) -> str:
    """A predicted time with a unit of its size."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.4g} {unit}"
    return f"{seconds * 1e6:.4g} us"


def _results(comparison: Comparison, target: str) -> Table:
    headings = [
        "chosen for", "kernels", "operators", "MB moved", "G operations", "time", "peak MB", "reordered", "cost", "before",
        "gap", "bound", "s",
    ]  # fmt: skip
    rows: list[list[str]] = []
    for row in comparison.rows_of(target):
        m, report = row.measures, row.result.report
        rows.append(
            [
                row.cost_model,
                f"{m.kernels}",
                f"{m.operators}",
                f"{m.bytes / 1e6:.1f}",
                f"{m.flops / 1e9:.2f}",
                seconds_text(m.predicted_time_s),
                f"{m.peak_memory_bytes / 1e6:.1f}",
                f"{m.least_peak_memory_bytes / 1e6:.1f}",
                _price(report.cost_after),
                _price(report.cost_before),
                f"{100 * report.gap:.2f} %",
                report.bound_scope,
                f"{row.seconds:.1f}",
            ]
        )
    return _table(f"{target}: results", headings, rows)


def _prices(comparison: Comparison, target: str) -> Table:
    headings = ["chosen for", *(f"{name}, {unit}" for name, unit in comparison.cost_models.items())]
    rows = [
        [row.cost_model, *(_price(row.measures.prices[name]) for name in comparison.cost_models)]
        for row in comparison.rows_of(target)
    ]
    return _table(f"{target}: each result priced under every model", headings, rows)


def _agreement(comparison: Comparison, target: str) -> Table:
    names = list(comparison.cost_models)
    taus = comparison.agreement[target]
    rows = [[a, *("-" if (tau := taus[a][b]) is None else f"{tau:.2f}" for b in names)] for a in names]
    return _table(f"{target}: agreement of the models on these results, Kendall's tau", ["", *names], rows)


def _differences(comparison: Comparison, target: str) -> Table:
    headings = ["first / second", "values", "only 1st / 2nd", "kernels only 1st / 2nd", "operators", "where"]
    rows = [
        [
            f"{d.first} / {d.second}",
            f"{d.values}",
            f"{d.only_first} / {d.only_second}",
            f"{d.kernels_only_first} / {d.kernels_only_second}",
            "\n".join(_most_frequent(d)),
            "\n".join(_places(d)),
        ]
        for d in comparison.differences[target]
    ]
    return _table(f"{target}: chosen differently", headings, rows, left=(4, 5))


def _most_frequent(found: Difference) -> Iterable[str]:
    items = list(found.by_operator.items())
    for operators, count in items[:_OPERATORS_SHOWN]:
        yield f"{operators}: {count}"
    if len(items) > _OPERATORS_SHOWN:
        yield f"{len(items) - _OPERATORS_SHOWN} more"


def _places(found: Difference) -> Iterable[str]:
    for place in found.places[:_PLACES_SHOWN]:
        yield f"{'inside ' if place.inside else ''}{place.node}: {place.first or 'nothing'} -> {place.second or 'nothing'}"


def _price(value: float) -> str:
    return f"{value:.4g}" if value < 1e-2 or value >= 1e6 else f"{value:.3f}".rstrip("0").rstrip(".")


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    wide = min(len(title), _WIDTH)
    table = Table(
        min_width=wide, title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False
    )
    for number, heading in enumerate(headings):
        text = number == 0 or number in left
        table.add_column(Text(heading), justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _render(tables: Iterable[Table]) -> str:
    from rich.console import Console

    console = Console(file=StringIO(), width=_WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).rstrip("\n")
