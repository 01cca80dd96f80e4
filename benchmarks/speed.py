"""Speed of every model in ONNX Runtime, before and after, with the errors of both.

    python -m benchmarks.speed --models FOLDER [--names a,b] [--cost measured] [--numerics lsb] [--runs 7] [--processes 3]
        [--results benchmarks/results/speed.json] [--restart]

``FOLDER`` holds inflated models (`benchmarks.inflate`). Ratios are medians over the median of ours under its best level; above 1
ours is faster. All contestants take turns in the same processes (`eqsat.speed.contest`). The results are written after every
model; models that are there, made with the same options, are not run again. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.kept import add_arguments, measure_all
from eqsat.errors import EqsatError
from eqsat.options import Options
from eqsat.speed.bench import bench_model
from eqsat.speed.contest import Protocol

LEVELS = ("disable", "basic", "extended", "all")


def run_model(path: Path, options: argparse.Namespace, protocol: Protocol) -> dict[str, Any]:
    """The figures of one model; ``failed`` says why there are none."""
    chosen = Options(
        target="onnxruntime-cpu", cost=options.cost, numerics=options.numerics, form=options.form, verify=False
    )
    try:
        found = bench_model(path, chosen, protocol=protocol)
    except EqsatError as error:
        return {"failed": str(error)}
    data = found.to_dict()
    return {
        "best": data["best"],
        "ratios": data["ratios"],
        "median_s": {m.contestant.name: m.median_s for m in found.measured if m.samples},
        "spread": {m.contestant.name: m.spread for m in found.measured if m.samples},
        "errors": {m.contestant.name: m.error for m in found.measured},
        "misfits": {m.contestant.name: m.misfit for m in found.measured if m.misfit},
    }


def markdown(rows: Mapping[str, dict[str, Any]]) -> str:
    """The table over all models, and the geometric means."""
    names = [f"original {level}" for level in LEVELS]
    head = [
        "model",
        "ours ms",
        "level",
        *(f"vs {n.removeprefix('original ')}" for n in names),
        "interval of all",
    ]
    head += ["error ours", "error all"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for model, row in sorted(rows.items()):
        if "failed" in row:
            lines.append(f"| {model} | {row['failed']} |" + " |" * (len(head) - 2))
            continue
        best, ratios, errors = row["best"], row["ratios"], row["errors"]
        cells = [model, f"{1e3 * row['median_s'][best]:.2f}", best.removeprefix("eqsat ")]
        cells += [f"{ratios[n][0]:.2f}" if n in ratios else "-" for n in names]
        interval = ratios.get("original all")
        cells.append(f"{interval[1]:.2f}-{interval[2]:.2f}" if interval else "-")
        cells += [_error(errors, n) for n in (best, "original all")]
        lines.append("| " + " | ".join(cells) + " |")
    means = []
    for name in names:
        found = [row["ratios"][name][0] for row in rows.values() if name in row.get("ratios", ())]
        means.append(f"{statistics.geometric_mean(found):.3f} against {name} ({len(found)} models)" if found else "")
    return "\n".join([*lines, "", f"Geometric means: {'; '.join(m for m in means if m)}."])


def _error(errors: dict[str, float | None], name: str) -> str:
    found = errors.get(name)
    return "-" if found is None else f"{found:.1g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "benchmarks/results/speed.json")
    parser.add_argument("--cost", default="measured")
    parser.add_argument("--numerics", default="lsb")
    parser.add_argument("--form", default="onnxruntime")
    options = parser.parse_args()
    protocol = Protocol(options.runs, options.processes, options.threads)
    setting = {k: getattr(options, k) for k in ("cost", "numerics", "form", "runs", "processes", "threads")}
    print(markdown(measure_all(options, setting, lambda path: run_model(path, options, protocol), markdown)))


if __name__ == "__main__":
    main()
