"""A report as a table of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqsat.report import Report


def report_table(report: Report) -> str:
    """Before and after, side by side: operators, kernels, cost, and each operator whose number has changed."""
    rows: list[tuple[Any, ...]] = [
        ("operators", sum(report.operators_before.values()), sum(report.operators_after.values())),
        ("kernels", report.kernels_before, report.kernels_after),
        (f"cost, {report.cost_unit}", f"{report.cost_before:.6g}", f"{report.cost_after:.6g}"),
        *report.changed_operators(),
    ]
    verified = report.verification.get("verdict", "not run")
    caption = f"{report.model}: target {report.target}, cost {report.cost_model}, numerics {report.numerics}"
    gap = "" if report.bound_scope == "none" else f"; gap {100 * report.gap:.2f} % ({report.bound_scope})"
    foot = f"verified: {verified}; highest class used: {report.exactness}{gap}"
    body = "".join(_row(cells) for cells in rows)
    return (
        f"<table><caption>{escape(caption)}</caption><thead>{_row(('', 'before', 'after'), 'th')}</thead>"
        f'<tbody>{body}</tbody><tfoot><tr><td colspan="3">{escape(foot)}</td></tr></tfoot></table>'
    )


def _row(cells: Iterable[Any], tag: str = "td") -> str:
    name, *numbers = (escape(str(cell)) for cell in cells)
    aligned = "".join(f'<{tag} style="text-align: right">{number}</{tag}>' for number in numbers)
    return f'<tr><th style="text-align: left">{name}</th>{aligned}</tr>'
