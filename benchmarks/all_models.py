"""The main job on every model: round trip without rules, then optimised and verified.

    python -m benchmarks.all_models --models FOLDER [--names a,b] [--json PATH]

``FOLDER`` holds inflated models (`benchmarks.inflate`). "round trip" loads, encodes, decodes and saves without any rule and
compares with the original in ONNX Runtime with optimisations off: it must be equal bit by bit. "optimised" uses every rule of
the default numerics. Operators do not count Constants.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from pathlib import Path
from typing import Any

import eqsat
from eqsat.verification import verify_models


def run_model(path: Path) -> dict[str, Any]:
    """Round trip and optimisation of one model, both verified from the written files."""
    row: dict[str, Any] = {"model": path.stem}
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / path.name
        plain = eqsat.optimize(path, only_rules=(), numerics="exact", verify=False, form="flat")
        plain.save(written)
        row["round_trip"] = verify_models(path, written, runs=1).verdict
        row["round_trip_operators"] = sum(plain.report.operators_after.values())
        del plain
    try:
        report = eqsat.optimize(path, form="flat", consumer="onnxruntime").report
    except eqsat.VerificationError as error:
        return {**row, "verdict": f"FAILED {error}"[:300]}
    data = report.to_dict()
    row["verdict"] = data["verification"]["verdict"]
    outputs = data["verification"]["outputs"].values()
    row["max_abs_error"] = max((o["max_abs_error"] or 0.0 for o in outputs), default=0.0)
    row["operators"] = (sum(report.operators_before.values()), sum(report.operators_after.values()))
    row["kernels"] = (report.launches_before, report.kernels_after)
    row.update(
        {k: data[k] for k in ("exactness", "enodes", "iterations", "stop_reason", "gap", "seconds", "operators_after")}
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    paths = sorted(options.models.glob("*.onnx"))
    if options.names:
        paths = [options.models / f"{name}.onnx" for name in options.names.split(",")]
    rows = []
    print("| model | round trip | operators | kernels | class | verdict | error | e-nodes | stop | core s | verify s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for path in paths:
        row = run_model(path)
        rows.append(row)
        seconds = row.get("seconds", {})
        core = sum(seconds.get(k, 0.0) for k in ("encode", "saturate", "analyse", "extract"))
        before, after = row.get("operators", ("", ""))
        kernels = row.get("kernels", ("", ""))
        print(
            f"| {row['model']} | {row['round_trip']} | {before} -> {after} | {kernels[0]} -> {kernels[1]} | "
            f"{row.get('exactness', '')} | {row['verdict']} | {row.get('max_abs_error', 0):.2g} | {row.get('enodes', '')} | "
            f"{row.get('stop_reason', '')} | {core:.2f} | {seconds.get('verify', 0):.1f} |",
            flush=True,
        )
        gc.collect()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
