"""A report as text: a summary of at most ten lines, and all of it; as a table of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from eqsat.report_phrases import (
    cost,
    in_short,
    number,
    of_better,
    of_bodies,
    of_engines,
    of_growth,
    of_left_out,
    of_needs,
    of_overridable,
    of_placement,
    of_subnormal,
    of_untouched,
    of_verification,
)

if TYPE_CHECKING:
    from eqsat.report import Report


_SAME = 1.01
"""Times closer than this are the same."""


def summary(report: Report) -> str:
    """What was asked for and what came of it, in at most ten lines.

    Whatever was not fused, not understood or not verified, and whatever a reader may not expect of the file, is there in short.
    """
    found = ", ".join(f"{n} {structure}" for structure, n in report.recognized.items())
    rows = [
        ("", _header(report)),
        ("operators", _operators(report) + f"; kernels {_kernels(report)}" + (f"; {found}" if found else "")),
        ("cost", f"{_cost(report)}, {_distance(report)}"),
        ("measured", of_engines(report.engine)) if report.engine else ("predicted", _predicted(report)),
        ("needs", _needs(report)),
        ("not fused", in_short(_missed(report))),
        ("untouched", of_untouched(report.opaque)),
        ("note", "; ".join(_remarks(report))),
        ("verified", _verified_in_short(report)),
        ("seconds", f"{sum(report.seconds.values()):.1f}; for rules, operators and all else -v or --json PATH"),
    ]
    return "\n".join(_line(label, text) for label, text in rows if text)


def details(report: Report) -> str:
    """The whole report."""
    lines = [
        _header(report),
        _line("operators", _operators(report)),
        _line("kernels", _kernels(report)),
        _line("cost", f"{_cost(report)}; {_bound(report)}"),
        _line("e-graph", _egraph(report)),
        _line("memory", f"{report.peak_memory_bytes / 1e6:.1f} MB at the peak, constants aside{_budget(report)}"),
        _line("constants", f"{report.constant_bytes_before / 1e6:.1f} -> {report.constant_bytes_after / 1e6:.1f} MB"),
    ]
    if report.assumed or report.sizes:
        lines.append(_line("assumed", f"{_sizes(report)}: what prices are for (--assume); the program takes any"))
        lines += _over_sizes(report)
    optional = {
        "predicted": _predicted(report),
        "measured": of_engines(report.engine),
        "needs": _needs(report),
        "note": _counted(report),
        "placement": of_placement(report.placement),
        "bodies": of_bodies(report.bodies),
    }
    lines += [_line(label, text) for label, text in optional.items() if text]
    lines += [f"    {op:<24} {before:>6} -> {after}" for op, before, after in report.changed_operators()]
    lines += [_line("not fused", reason) for reason in _missed(report)]
    if report.opaque:
        lines.append(_line("untouched", of_untouched(report.opaque)))
    lines += _used_rules(report)
    if report.unverified_rules:
        lines.append(_line("unverified rule", _unverified(report)))
    if report.verification:
        lines.append(_line("verified", of_verification(report.verification)))
        lines += [f"    {note}" for note in report.verification.get("notes", ())]
    lines += [f"    {of_left_out([wrong])}: {wrong['because']}" for wrong in report.left_out]
    lines.append(_line("seconds", ", ".join(f"{k} {v:.3f}" for k, v in report.seconds.items())))
    return "\n".join(lines)


def _needs(report: Report) -> str:
    """What the file needs, and what it could be with other needs."""
    parts = [needs] if (needs := of_needs(report.needs)) else []
    if report.passed_opset:
        opset, cost = int(report.passed_opset["opset"]), report.passed_opset["cost"]
        parts.append(f"with --opset {opset}, for older readers, the cost is {number(cost)} {report.cost_unit}")
    elif report.withheld:
        listed = ", ".join(f"{op} ({opset})" for op, opset in report.withheld.items())
        parts.append(f"withheld {listed}: of a newer opset than the file may have (--for onnxruntime, --opset)")
    return "; ".join(parts)


def _line(label: str, text: str) -> str:
    return f"  {label:<10} {text}" if label else text


def _header(report: Report) -> str:
    return (
        f"{report.model}: target {report.target}, cost {report.cost_model}, numerics {report.numerics} "
        f"(highest class used: {report.exactness})"
    )


def _operators(report: Report) -> str:
    return f"{sum(report.operators_before.values())} -> {sum(report.operators_after.values())}"


def _kernels(report: Report) -> str:
    """Launches; and what the target's own fusion makes of the original, where that is something."""
    fused = report.counted_only and report.kernels_before != report.launches_before
    text = f"{report.launches_before} -> {report.kernels_after}"
    return text + (f" (the original fused by the target, from {report.kernels_before})" if fused else "")


def _cost(report: Report) -> str:
    before, after = (cost(value, report.cost_unit) for value in (report.cost_before, report.cost_after))
    return f"{before} -> {after} {report.cost_unit}"


def _bound(report: Report) -> str:
    if report.bound_scope == "none":
        return _NO_BOUND
    return f"lower bound {number(report.lower_bound)}, gap {100 * report.gap:.2f} % ({report.bound_scope})"


_NO_BOUND = "how far it is from the least was not looked for (--prove)"

_SCOPES = {
    "e-graph": "all programs in the e-graph",
    "pool": "the kernels that were enumerated",
    "placement": "the kernels for the chosen operators",
}


def _distance(report: Report) -> str:
    """How far the result may be from the cheapest, and of what."""
    if report.bound_scope == "none":
        return _NO_BOUND
    scope = f"{_SCOPES.get(report.bound_scope, report.bound_scope)}{_left_out(report)}"
    if report.gap <= 0:
        return f"proved least of {scope}"
    if report.gap > 0.49:
        return f"not known to be near the least (lower bound {number(report.lower_bound)}) of {scope}"
    return f"at most {100 * report.gap / (1 - report.gap):.2g} % above the least of {scope}"


def _left_out(report: Report) -> str:
    """That the e-graph is not the one of all rules."""
    if not report.rehearsal:
        return ""
    count = len(report.rehearsal["left_out"])
    return f", without {count} rules that gained nothing in {report.rehearsal['operators']} operators (--all-rules)"


def _egraph(report: Report) -> str:
    return (
        f"{report.enodes} e-nodes in {report.eclasses} e-classes, {report.iterations} iterations, {report.stop_reason}"
        f"{_left_out(report)}"
    )


def _sizes(report: Report) -> str:
    assumed: dict[str, object] = {**report.assumed}
    for entry in (report.sizes[0], report.sizes[-1]) if report.sizes else ():
        for name, size in entry["assumed"].items():
            if name not in report.assumed:
                assumed[name] = f"{assumed[name]}..{size}" if name in assumed else str(size)
    return ", ".join(f"{name} = {size}" for name, size in assumed.items())


def _over_sizes(report: Report) -> list[str]:
    """The costs at each size of a range."""
    varied = [{s: n for s, n in e["assumed"].items() if s not in report.assumed} for e in report.sizes]
    return [
        f"    {', '.join(f'{s} = {n}' for s, n in at.items())}: {number(e['cost_before'])} -> {number(e['cost'])} "
        f"{report.cost_unit}{of_better(e)}"
        for at, e in zip(varied, report.sizes, strict=True)
    ]


def _most_beaten(report: Report) -> str:
    """The size at which another program would win by most."""
    if not report.sizes:
        return ""
    worst = max(report.sizes, key=lambda e: e["cost"] / e["least"] if e["least"] else 1.0)
    at = ", ".join(f"{s} = {n}" for s, n in worst["assumed"].items() if s not in report.assumed)
    beaten = of_better(worst)
    return f"{beaten} at {at}" if beaten else "; no program found costs 0.1 % less at one of them"


def _predicted(report: Report) -> str:
    before, after = report.predicted_s_before, report.predicted_s_after
    if before is None or after is None or "no kernels" in (cost(before, "seconds"), cost(after, "seconds")):
        return ""
    hint = "" if report.cost_model.startswith("measured") else ": --cost measured minimises it"
    slower = f"; SLOWER{hint}" if after > before * _SAME else ""
    return f"{1e3 * before:.3g} -> {1e3 * after:.3g} ms, kernel by kernel on {report.target}{slower}"


_LATE = "the time limit, not the work limit, ended extraction: another run may find another program"


def _counted(report: Report) -> str:
    if not report.counted_only:
        return ""
    return f"kernels of {report.target} are counted, not run: the file holds operators, for an engine to fuse"


def _missed(report: Report) -> list[str]:
    return [
        f"{count} x no {structure}: {reason}"
        for structure, reasons in report.missed.items()
        for reason, count in sorted(reasons.items())
    ]


def _remarks(report: Report) -> list[str]:
    """What a reader of the numbers has to know, most important first."""
    priced, peak = report.assumed or report.sizes, report.peak_memory_bytes / 1e6
    remarks = (
        "" if report.stop_reason == "saturated" else f"saturation ended early: {report.stop_reason}",
        _LATE if report.work.get("extraction", {}).get("late") else "",
        _counted(report),
        f"prices are for {_sizes(report)}; the program takes any{_most_beaten(report)}" if priced else "",
        of_placement(report.placement),
        of_overridable(report.overridable),
        of_subnormal(report.subnormal),
        of_growth(report.constant_bytes_before, report.constant_bytes_after),
        of_bodies(report.bodies, reasons=False),
        f"{peak:.1f} MB at the peak{_budget(report)}" if report.memory_budget else "",
    )
    return [remark for remark in remarks if remark]


def _verified_in_short(report: Report) -> str:
    text = of_verification(report.verification) if report.verification else "no: not asked for"
    notes = report.verification.get("notes", ())
    if report.verification.get("verdict") == "not run":
        text += f" {notes[-1]}" if notes else ""
    elif notes:
        text += f"; {in_short(notes)}"
    text += f"; {of_left_out(report.left_out)}" if report.left_out else ""
    return text + (f"; unverified rule {_unverified(report)}" if report.unverified_rules else "")


def _unverified(report: Report) -> str:
    return f"{', '.join(report.unverified_rules)}: registered without a check, and applied"


def _used_rules(report: Report) -> list[str]:
    used = {name: counts for name, counts in sorted(report.rules.items()) if counts["uses"]}
    if not used:
        return []
    width = max(map(len, used)) + 2
    return ["  rules      uses in the result (matches)"] + [
        f"    {name:<{width}} {counts['uses']:>5} ({counts['matches']})" for name, counts in used.items()
    ]


def _budget(report: Report) -> str:
    data = report.memory_budget
    if not data:
        return ""
    text = f"; budget {data['bytes'] / 1e6:.1f} MB kept"
    if data["candidates"] > 1:
        text += (
            f" by the cheapest of {data['candidates']} candidates; without it {data['peak_unconstrained_bytes'] / 1e6:.1f} MB, "
            f"cost {number(data['cost_unconstrained'])} instead of {number(report.cost_after)}"
        )
    return text


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
