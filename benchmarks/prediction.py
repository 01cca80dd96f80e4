"""How well the measured cost model predicts, whole programs and single kernels, and whether choosing by it pays.

    python -m benchmarks.prediction --models FOLDER [--names a,b] [--costs kernels,roofline,roofline-launch,measured]
        [--runs 7] [--processes 3] [--results benchmarks/results/prediction.json]

``FOLDER`` holds inflated models (`benchmarks.inflate`). Each model is optimised under each cost model; the programs are run as
they are in ONNX Runtime (its own rewriting off, so that nodes are those that were priced), once with the profiler for the
kernels, and without it for the whole, all programs of a model in turns (`eqsat.speed.contest`). "predicted" is the sum over
kernels. Spearman's correlation is over all programs; relative errors are over kernels of at least 10 us, the median of 20 runs
less what the profiler itself takes. Last, for each model: how many times as long its program chosen by ``measured`` takes as
those chosen otherwise, with a 95 % interval; it is slower beyond noise where the whole interval is above 1. Nothing else should
run on the machine; the default models take 12 minutes at most.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import eqsat
from eqsat.cost.model import find_cost_model, work_of_node
from eqsat.cost.target import load_target
from eqsat.options import Options
from eqsat.speed.bench import case_of
from eqsat.speed.contest import Contestant, Measured, Protocol, contest
from eqsat.speed.profile import Profile, profile_program

SPREAD = "squeezenet,mobilenetv2,resnet50_qdq,tensat_bert,nasrnn,llama,bert_int8,bert_base_b1s128"
"""Models of every kind: small and large, images and text, floats and integers."""


def run_model(
    path: Path, costs: Sequence[str], form: str, protocol: Protocol
) -> tuple[list[dict[str, Any]], list[Profile], list[Measured]]:
    """For each cost model: predicted and measured seconds of the program it chooses, its kernels, and all its runs."""
    target, model = load_target("onnxruntime-cpu"), find_cost_model("measured")
    rows: list[dict[str, Any]] = []
    profiles: list[Profile] = []
    with tempfile.TemporaryDirectory() as folder:
        contestants = []
        feeds, reference = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for cost in costs:
            result = eqsat.optimize(path, cost=cost, form=form, verify=False)
            if not contestants:
                feeds, reference = case_of(result.original, path, Options())
            written = Path(folder) / f"{cost}.onnx"
            result.save(written)
            contestants.append(Contestant(cost, str(written)))
            graph = result.program.graph
            profile = profile_program(graph, written, feeds, model, target, threads=protocol.threads)
            profiles.append(profile)
            rows.append({
                "model": path.stem,
                "cost": cost,
                "predicted_s": math.fsum(model.kernel_cost(work_of_node(graph, node), target) for node in graph.nodes),
                "kernels_s": profile.measured_s,
                "kernel_error": profile.median_relative_error,
                "unpriced": profile.unpriced,
            })  # fmt: skip
        measured = contest(contestants, feeds, reference, protocol)
    for row, found in zip(rows, measured, strict=True):
        row["measured_s"] = found.median_s
    return rows, profiles, measured


def choice(measured: Sequence[Measured], chosen: str = "measured") -> dict[str, list[float]]:
    """Other cost model -> how many times as long the program chosen by ``chosen`` takes as its program, and the interval."""
    ours = next((m for m in measured if m.contestant.name == chosen), None)
    if ours is None:
        return {}
    return {m.contestant.name: list(ours.ratio_to(m)) for m in measured if m is not ours}


def choices_table(choices: dict[str, dict[str, list[float]]]) -> str:
    """The ratios by model, and for each other cost model on which models ``measured`` is slower beyond noise."""
    others = list(dict.fromkeys(other for row in choices.values() for other in row))
    lines = [f"\n| time chosen by measured over chosen by | {' | '.join(others)} |", "|---" * (len(others) + 1) + "|"]
    for name, row in choices.items():
        cells = (f"{row[o][0]:.3f} ({row[o][1]:.3f}-{row[o][2]:.3f})" for o in others)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for other in others:
        slower = [name for name, row in choices.items() if row[other][1] > 1]
        lines.append(f"measured is slower than {other} beyond noise on: {', '.join(slower) or 'none'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default=SPREAD)
    parser.add_argument("--costs", default="kernels,roofline,roofline-launch,measured")
    parser.add_argument("--form", default="onnxruntime")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/prediction.json"))
    options = parser.parse_args()
    protocol = Protocol(options.runs, options.processes, options.threads)
    rows: list[dict[str, Any]] = []
    operators: dict[str, list[float]] = {}
    choices: dict[str, dict[str, list[float]]] = {}
    print("| model | chosen by | predicted ms | measured ms | kernels ms | median kernel error | unpriced |")
    print("|---|---|---|---|---|---|---|")
    for name in options.names.split(","):
        found, profiles, measured = run_model(
            options.models / f"{name}.onnx", options.costs.split(","), options.form, protocol
        )
        choices[name] = choice(measured)
        rows += found
        for key, error in (found for profile in profiles for found in profile.relative_errors()):
            operators.setdefault(key, []).append(error)
        for row in found:
            print(
                f"| {name} | {row['cost']} | {1e3 * row['predicted_s']:.2f} | {1e3 * row['measured_s']:.2f} | "
                f"{1e3 * row['kernels_s']:.2f} | {100 * (row['kernel_error'] or 0):.0f} % | {row['unpriced']} |",
                flush=True,
            )
    ranks = [rankdata([row[name] for row in rows]) for name in ("predicted_s", "measured_s")]
    correlation = float(np.corrcoef(*ranks)[0, 1])
    errors = [abs(error) for found in operators.values() for error in found]
    summary = {
        "spearman": correlation,
        "programs": len(rows),
        "median_kernel_error": statistics.median(errors),
        "kernels": len(errors),
        "by_operator": {
            key: {"kernels": len(v), "error": statistics.median(map(abs, v)), "signed_error": statistics.median(v)}
            for key, v in sorted(operators.items(), key=lambda i: -len(i[1]))
        },
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps({"summary": summary, "programs": rows, "choices": choices}, indent=1))
    print(f"\nSpearman {correlation:.3f} over {len(rows)} programs; median relative error of {len(errors)} kernels "
          f"{100 * summary['median_kernel_error']:.0f} %")  # fmt: skip
    for key, found in summary["by_operator"].items():
        print(f"  {key:<44} {found['kernels']:>6} kernels, median error {100 * found['error']:.0f} %, with its sign "
              f"{100 * found['signed_error']:+.0f} %")  # fmt: skip
    print(choices_table(choices))


if __name__ == "__main__":
    main()
