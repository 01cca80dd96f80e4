"""The best of ours against the best of the others, over engines: writes docs/engines_table.md.

    python -m benchmarks.best_engine --models FOLDER [--names a,b] [--engines all] [--precision bf16] [--runs 7] [--processes 3]
        [--limit S] [--results benchmarks/results/best_engine.json] [--restart] [--page docs/engines_table.md]
    python -m benchmarks.best_engine --models FOLDER [--names a,b] --nodes

Each engine runs the original and the program made for it, in processes of its own that alternate (docs/engines.md); the others
are ONNX Runtime at its highest level, OpenVINO and Inductor on the original. Figures are kept after every model; a run goes on
with models that are not there. ``--limit``: seconds that a process may take, with compilation. Nothing else should run on the
machine. ``--nodes``: instead, how many nodes OpenVINO runs of the original and of ours, which says as much on a busy one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.kept import Row, add_arguments, measure_all, names_of
from eqsat.backends.openvino import OpenVino
from eqsat.cost.timings import this_machine
from eqsat.errors import EqsatError
from eqsat.frontends import load
from eqsat.options import Options
from eqsat.pipeline import optimize
from eqsat.speed.bench import OURS, RAW, case_of
from eqsat.speed.contest import Contestant, Measured, Protocol
from eqsat.speed.engines import INSTALLED_BY, engine_names, race

_HEAD = """# The best engine for each model

Written by `python -m benchmarks.best_engine --models out`. {machine}.

For each model the best of our engines against the best of the others, and in each engine the time of the original over that of
ours: above 1, ours is faster. Medians of {runs} runs in each of {processes} processes, float32, {threads} threads; intervals are
of 95 %. How it is measured: [engines.md](engines.md).
"""


def run_model(path: Path, engines: str, precision: str, protocol: Protocol) -> Row:
    """What `eqsat.bench` finds; ``failed`` says why there is nothing."""
    try:
        found = race(path, engines, Options(verify=False), precision=precision, protocol=protocol)
    except EqsatError as error:
        return {"failed": str(error)}
    return found.bench.to_dict()


def nodes_line(path: Path) -> str:
    """How many nodes OpenVINO runs, and how many of them compute in float32, of the original and of ours."""
    cells = [path.stem]
    with tempfile.TemporaryDirectory() as folder:
        ours = Path(folder) / "ours.onnx"
        optimize(path, consumer="openvino", verify=False).save(ours)
        feeds, _ = case_of(load(path), path, Options())
        for file in (path, ours):
            loaded = OpenVino(str(file), profile=True).feed(feeds)
            loaded.run()
            counts = loaded.node_counts()
            cells += [str(counts.total()), str(counts["f32"])]
    return f"| {' | '.join(cells)} |"


def measured_of(row: Row, precision: str = "f32") -> dict[str, Measured]:
    """Those that ran, by name."""
    fields = Contestant.__slots__
    all_of = [
        Measured(Contestant(**{f: c[f] for f in fields}), c["samples"], c["error"], c["misfit"])
        for c in row["contestants"]
    ]
    return {m.contestant.name: m for m in all_of if m.samples and m.contestant.precision == precision}


def best_of(found: Mapping[str, Measured], who: str) -> Measured | None:
    return min((m for name, m in found.items() if name.startswith(who)), key=lambda m: m.median_s, default=None)


def markdown(rows: Mapping[str, Row], engines: tuple[str, ...]) -> str:
    """The table over all models, the geometric means, and what did not run."""
    head = [
        "model",
        "ours ms",
        "engine",
        "others ms",
        "engine",
        "ratio",
        *(f"in {e}" for e in engines),
        "error ours",
        "others",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    best: list[float] = []
    alone: dict[str, list[float]] = {e: [] for e in engines}
    notes: dict[str, list[str]] = {}
    for name, row in sorted(rows.items()):
        found = {} if "failed" in row else measured_of(row)
        ours, others = best_of(found, OURS), best_of(found, RAW)
        for note in _notes(row):
            notes.setdefault(note, []).append(name)
        if ours is None or others is None:
            lines.append(f"| {name} |" + " |" * (len(head) - 1))
            continue
        value, low, high = others.ratio_to(ours)
        best.append(value)
        cells = [name, *_time(ours), *_time(others), f"{value:.2f} ({low:.2f}-{high:.2f})"]
        for engine in engines:
            pair = found.get(f"{RAW} {engine}"), found.get(f"{OURS} {engine}")
            ratio = pair[0].ratio_to(pair[1])[0] if pair[0] and pair[1] else None
            alone[engine] += [ratio] if ratio else []
            cells.append(f"{ratio:.2f}" if ratio else "-")
        lines.append(f"| {' | '.join([*cells, _error(ours), _error(others)])} |")
    lines += ["", _means("best of ours against best of the others", best)]
    lines += [_means(f"in {engine}, ours against the original", ratios) for engine, ratios in alone.items()]
    return "\n".join([*lines, *lower_precision(rows), *_left_out(notes)])


def lower_precision(rows: Mapping[str, Row]) -> list[str]:
    """The rows in bfloat16, if any were asked for."""
    lines = []
    for name, row in sorted(rows.items()):
        for m in ({} if "failed" in row else measured_of(row, "bf16")).values():
            lines.append(f"| {name} | {m.contestant.name} | {1e3 * m.median_s:.2f} | {_error(m)} |")
    head = [
        "",
        "In bfloat16, class lossy, against float32:",
        "",
        "| model | program and engine | ms | error |",
        "|---|---|---|---|",
    ]
    return [*head, *lines] if lines else []


def _notes(row: Row) -> list[str]:
    if "failed" in row:
        return [row["failed"]]
    left = [f"{who}: {why}" for who, why in row["skipped"].items()]
    return left + [f"{c['name']}: {c['misfit']}" for c in row["contestants"] if c["misfit"]]


def _left_out(notes: Mapping[str, list[str]]) -> list[str]:
    listed = [f"- {note} ({', '.join(models)})" for note, models in notes.items()]
    return ["", "Left out:", "", *listed] if listed else []


def _time(m: Measured) -> tuple[str, str]:
    return f"{1e3 * m.median_s:.2f}", m.contestant.engine


def _error(m: Measured) -> str:
    return "-" if m.error is None else f"{m.error:.1g}"


def _means(what: str, ratios: list[float]) -> str:
    if not ratios:
        return f"- {what}: none"
    return f"- {what}: geometric mean {statistics.geometric_mean(ratios):.3f} over {len(ratios)} models, least {min(ratios):.3f}"


def _versions(engines: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for engine in engines:
        package = INSTALLED_BY[engine][0]
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "benchmarks/results/best_engine.json")
    parser.add_argument("--engines", default="all")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--limit", type=int, default=1800)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--nodes", action="store_true")
    given = parser.parse_args()
    if given.nodes:
        print("| model | original: nodes | in float32 | ours: nodes | in float32 |\n|---|---|---|---|---|")
        for name in names_of(given):
            print(nodes_line(given.models / f"{name}.onnx"), flush=True)
        return
    engines = engine_names(given.engines)
    versions = _versions(engines)
    protocol = Protocol(given.runs, given.processes, given.threads, given.limit)
    machine = this_machine(given.threads)
    packages = ", ".join(f"{name} {v}" for name, v in versions.items())
    about = _HEAD.format(machine=f"{machine['cpu']}, {machine['cores']} cores; {packages}", **vars(given))

    def page(rows: Mapping[str, Any]) -> str:
        return f"{about}\n{markdown(rows, engines)}"

    setting = {
        "engines": list(engines),
        "precision": given.precision,
        "runs": given.runs,
        "processes": given.processes,
        **versions,
    }
    measure_all(
        given, setting, lambda path: run_model(path, given.engines, given.precision, protocol), page, given.page
    )


if __name__ == "__main__":
    main()
