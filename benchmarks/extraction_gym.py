"""All extraction methods over a folder of extraction-gym files.

    python benchmarks/extraction_gym.py FOLDER [--time-limit 25] [--methods auto,area,greedy-dag,tree] [--verbose]

Prints one row per family (sub-folder): instances, how many each method solved to proven optimality, the mean and largest
cost as a fraction of greedy-dag's, and seconds. Files: https://github.com/egraphs-good/extraction-gym (data/).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from eqsat.extract import METHODS, ExtractionError, ExtractionResult, extract
from eqsat.extract.gym import read_gym

BASELINE = "greedy-dag"


def measure(path: Path, methods: Sequence[str], time_limit_s: float) -> dict[str, ExtractionResult]:
    """Return the result of every method on one file."""
    problem = read_gym(path).problem
    return {method: extract(problem, method=method, time_limit_s=time_limit_s) for method in methods}


def ratio(cost: float, reference: float) -> float:
    """Return ``cost / reference``, 1 where both are 0."""
    if reference:
        return cost / reference
    return 1.0 if not cost else float("inf")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder searched for *.json, or one file")
    parser.add_argument("--time-limit", type=float, default=25.0, metavar="S", help="seconds per file and method")
    parser.add_argument("--methods", default=f"auto,area,{BASELINE},tree", help=f"of {', '.join(METHODS)}")
    parser.add_argument("--verbose", action="store_true", help="one line per file and method")
    options = parser.parse_args(arguments)
    methods = options.methods.split(",")
    if BASELINE not in methods:
        methods.append(BASELINE)
    files = [options.folder] if options.folder.is_file() else sorted(options.folder.rglob("*.json"))
    families: dict[str, list[dict[str, ExtractionResult]]] = {}
    malformed = 0
    for path in files:
        started = time.process_time()
        try:
            results = measure(path, methods, options.time_limit)
        except ExtractionError as error:
            malformed += 1
            if options.verbose:
                print(f"skipped: {error}"[:160])
            continue
        families.setdefault(path.parent.name, []).append(results)
        if options.verbose:
            for method, result in results.items():
                proof = "optimal" if result.optimal else f"bound {result.lower_bound:.6g} gap {result.gap:.2%}"
                print(
                    f"{path.parent.name}/{path.stem[-40:]:40} {method:10} {result.cost:<12.7g} {result.seconds:8.3f} s  "
                    f"{result.method:8} {proof}"
                )
            print(f"    all methods: {time.process_time() - started:.1f} CPU-s", flush=True)
    print(
        f"{'family':16} {'files':>5} {'method':10} {'optimal':>7} {'mean':>7} {'least':>7} {'most':>7} {'seconds':>8}"
    )
    for family, rows in families.items():
        for method in methods:
            ratios = [ratio(row[method].cost, row[BASELINE].cost) for row in rows]
            print(
                f"{family:16} {len(rows):5} {method:10} {sum(row[method].optimal for row in rows):7} "
                f"{sum(ratios) / len(ratios):7.4f} {min(ratios):7.4f} {max(ratios):7.4f} "
                f"{sum(row[method].seconds for row in rows):8.2f}"
            )
    if malformed:
        print(f"{malformed} files skipped: malformed or infeasible (--verbose names them)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
