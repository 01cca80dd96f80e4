"""Extraction on the files of the extraction-gym: proofs, and costs against the gym's own greedy and ILP extractors.

    python -m benchmarks.extraction_gym FOLDER --results PATH [--time-limit 25] [--ilp open|all|none] [--families a,b]

``FOLDER`` holds a folder of JSON files for each family (https://github.com/egraphs-good/extraction-gym, data/). Each finished
file is a line of ``PATH``; what is there already is not run again unless it had less time, so that a run can be continued, and
the table is printed from it. The limit is meant in CPU seconds, for one thread: it is stretched by the load of the machine,
and a proof that took more does not count. ``--ilp open`` runs the integer programme only where optimality is not proved,
``all`` everywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.gym_baselines import Baseline, cycle_banning_ilp, faster_greedy_dag
from eqsat.extract import STEPS_PER_SECOND, Effort, ExtractionError, ExtractionProblem, extract
from eqsat.extract.gym import read_gym

FAMILIES = "tensat,impress,flexc,egg,eggcc-bril,diospyros,lean-egg,babble,herbie,rover"
GREEDY_LIMIT_S = 120.0
_LEAST_SHARE = 0.5
"""A file without a proof that had a smaller share of the limit is run again."""
_TOLERANCE = 1.05
_SAME = 1e-7
"""Costs that differ by less than this fraction are equal."""


def stretch() -> float:
    """Wall seconds that a CPU second takes at present, from the load of the machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def ours(problem: ExtractionProblem, limit_s: float) -> dict[str, Any]:
    """The entry of eqsat's own extraction; only a proof within the limit counts."""
    started = time.process_time()
    result = extract(problem, effort=Effort(limit_s * STEPS_PER_SECOND))
    cpu = time.process_time() - started
    entry = {"cost": result.cost, "bound": result.lower_bound, "gap": result.gap}
    return {**entry, "optimal": result.optimal and cpu <= limit_s * _TOLERANCE, "stage": result.method, "cpu_s": cpu}


def entry_of(found: Baseline) -> dict[str, Any]:
    return {"cost": found.cost, "finished": found.finished, "cpu_s": found.cpu_s}


def measure(path: Path, known: dict[str, Any], limit_s: float, ilp: str) -> dict[str, Any]:
    """The entry of a file, ``known`` completed by what is missing; without a proof and with less time it is run again."""
    problem = read_gym(path).problem
    entry = {"nodes": problem.node_count, "classes": problem.class_count, **known}
    if "ours" not in entry or not (entry["ours"]["optimal"] or entry["ours"]["cpu_s"] > _LEAST_SHARE * limit_s):
        entry["ours"] = ours(problem, limit_s)
    wanted = "ilp" not in entry and (ilp == "all" or (ilp == "open" and not entry["ours"]["optimal"]))
    if "greedy" not in entry or wanted:
        greedy = faster_greedy_dag(problem, GREEDY_LIMIT_S * stretch())
        entry["greedy"] = entry_of(greedy)
        if wanted:
            entry["ilp"] = entry_of(cycle_banning_ilp(problem, greedy, limit_s * stretch()))
    return entry


def table(entries: list[dict[str, Any]]) -> None:
    """Prints the line of each family, then those of the files where optimality is not proved or a baseline is cheaper."""
    print(
        "| family | files | proved | CPU-s, median | CPU-s, most | cheaper than greedy | dearest greedy | ILP run | ILP finished "
        "| cheaper than ILP | dearest ILP | dearer than either |"
    )
    print("|---" * 12 + "|")
    for family in [*dict.fromkeys(e["family"] for e in entries), "all"]:
        rows = [e for e in entries if family in (e["family"], "all")]
        print(f"| {family} | {' | '.join(map(str, cells(rows)))} |")
    for e in entries:
        dearer = [b for b in ("greedy", "ilp") if b in e and e["ours"]["cost"] > e[b]["cost"] * (1 + _SAME)]
        if dearer or not e["ours"]["optimal"]:
            costs = ", ".join(f"{b} {e[b]['cost']:.9g}" for b in ("greedy", "ilp") if b in e)
            print(
                f"{e['file']}: {e['ours']['cost']:.9g}, gap {e['ours']['gap']:.3%}; {costs} {'DEARER' if dearer else ''}"
            )


def cells(rows: list[dict[str, Any]]) -> list[Any]:
    seconds = sorted(e["ours"]["cpu_s"] for e in rows)
    ratios = {
        b: [e[b]["cost"] / e["ours"]["cost"] if e["ours"]["cost"] else 1.0 for e in rows if b in e]
        for b in ("greedy", "ilp")
    }
    both = [r for found in ratios.values() for r in found]
    return [
        len(rows),
        sum(e["ours"]["optimal"] for e in rows),
        f"{seconds[len(seconds) // 2]:.2f}",
        f"{seconds[-1]:.1f}",
        sum(r > 1 + _SAME for r in ratios["greedy"]),
        f"{max(ratios['greedy'], default=1.0):.3f}",
        len(ratios["ilp"]),
        sum(e["ilp"]["finished"] for e in rows if "ilp" in e),
        sum(r > 1 + _SAME for r in ratios["ilp"]),
        f"{max(ratios['ilp'], default=1.0):.3f}",
        sum(r < 1 - _SAME for r in both),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--time-limit", type=float, default=25.0)
    parser.add_argument("--ilp", choices=("open", "all", "none"), default="open")
    parser.add_argument("--families", default=FAMILIES)
    options = parser.parse_args()
    known: dict[str, dict[str, Any]] = {}
    if options.results.exists():
        lines = options.results.read_text(encoding="utf-8").splitlines()
        known = {entry["file"]: entry for entry in map(json.loads, lines)}
    skipped: dict[str, int] = {}
    for family in options.families.split(","):
        for path in sorted((options.folder / family).glob("*.json")):
            name = f"{family}/{path.stem}"
            before = known.get(name, {"file": name, "family": family})
            try:
                entry = measure(path, before, options.time_limit, options.ilp)
            except ExtractionError:
                skipped[family] = skipped.get(family, 0) + 1
                continue
            known[name] = entry
            if entry != before:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")
    table([e for e in known.values() if e["family"] in options.families.split(",")])
    print("not loadable (malformed, or no root can be derived):", skipped)


if __name__ == "__main__":
    main()
