"""How well the measured cost model predicts: whole programs and single kernels.

    python -m benchmarks.prediction --models FOLDER [--names a,b] [--costs kernels,roofline-launch,measured] [--runs 10]
        [--results benchmarks/results/prediction.json]

``FOLDER`` holds inflated models (`benchmarks.inflate`). Each model is optimised under each cost model; the programs are run as
they are in ONNX Runtime (its own rewriting off, so that nodes are those that were priced), once with the profiler for the
kernels and without it for the whole. "predicted" is the sum over kernels. Spearman's correlation is over all programs; relative
errors are over kernels of at least 10 us. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import eqsat
from eqsat.backends.onnxruntime import Session
from eqsat.bench.bench import feeds_of
from eqsat.bench.profile import LEAST_S, Profile, predicted_s, profile_program
from eqsat.cost.model import find_cost_model
from eqsat.cost.target import load_target
from eqsat.options import Options


def run_program(path: Path, cost: str, form: str, runs: int, threads: int) -> tuple[dict[str, Any], Profile]:
    """Predicted and measured seconds of one model optimised under one cost model, and its kernels."""
    target, model = load_target("onnxruntime-cpu"), find_cost_model("measured")
    result = eqsat.optimize(path, cost=cost, form=form, verify=False)
    feeds = feeds_of(result.original, path, Options())
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / path.name
        result.save(written)
        profile = profile_program(result.program.graph, written, feeds, model, target, runs=runs, threads=threads)
        bound = Session(written, "disable", threads=threads, prepack=True).bound(feeds)
        seconds = []
        for _ in range(runs + 2):
            start = time.perf_counter()
            bound.run()
            seconds.append(time.perf_counter() - start)
    row = {
        "model": path.stem,
        "cost": cost,
        "predicted_s": predicted_s(result.program.graph, model, target),
        "measured_s": statistics.median(seconds[2:]),
        "kernels_s": profile.measured_s,
        "kernel_error": profile.median_relative_error,
        "unpriced": profile.unpriced,
    }
    return row, profile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--costs", default="kernels,roofline-launch,measured")
    parser.add_argument("--form", default="onnxruntime")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/prediction.json"))
    options = parser.parse_args()
    names = [n for n in options.names.split(",") if n] or [p.stem for p in sorted(options.models.glob("*.onnx"))]
    rows: list[dict[str, Any]] = []
    errors: list[float] = []
    operators: dict[str, list[float]] = {}
    print("| model | chosen by | predicted ms | measured ms | kernels ms | median kernel error | unpriced |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for cost in options.costs.split(","):
            row, profile = run_program(
                options.models / f"{name}.onnx", cost, options.form, options.runs, options.threads
            )
            rows.append(row)
            for kernel in profile.kernels:
                if kernel.predicted_s is not None and kernel.measured_s >= LEAST_S:
                    error = abs(kernel.predicted_s - kernel.measured_s) / kernel.measured_s
                    errors.append(error)
                    operators.setdefault(kernel.key, []).append(error)
            print(
                f"| {name} | {cost} | {1e3 * row['predicted_s']:.2f} | {1e3 * row['measured_s']:.2f} | "
                f"{1e3 * row['kernels_s']:.2f} | {100 * (row['kernel_error'] or 0):.0f} % | {row['unpriced']} |",
                flush=True,
            )
    ranks = [rankdata([row[name] for row in rows]) for name in ("predicted_s", "measured_s")]
    correlation = float(np.corrcoef(*ranks)[0, 1])
    summary = {
        "spearman": correlation,
        "programs": len(rows),
        "median_kernel_error": statistics.median(errors),
        "kernels": len(errors),
        "by_operator": {
            k: [len(v), statistics.median(v)] for k, v in sorted(operators.items(), key=lambda i: -len(i[1]))
        },
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps({"summary": summary, "programs": rows}, indent=1))
    print(f"\nSpearman {correlation:.3f} over {len(rows)} programs; median relative error of {len(errors)} kernels "
          f"{100 * summary['median_kernel_error']:.0f} %")  # fmt: skip
    for key, (count, error) in summary["by_operator"].items():
        print(f"  {key:<44} {count:>6} kernels, median error {100 * error:.0f} %")


if __name__ == "__main__":
    main()
