"""What is recognised in each model: attention, norms, GELU, the softmaxes left, and the matrix products that remain.

python -m benchmarks.recognition /path/to/models [--target launch-count] [model ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import eqsat
from eqsat.report import Report

COLUMNS = {
    "attention": ("attention",),
    "quantised attention": ("quantized_attention",),
    "layer norm": ("layer_norm",),
    "RMS norm": ("rms_norm",),
    "group norm": ("group_norm", "instance_norm"),
    "GELU": ("gelu",),
    "softmax": ("softmax",),
}
"""Column -> structures of the report that it counts."""

PRODUCTS = ("MatMul", "Gemm", "FusedMatMul", "MatMulInteger", "QLinearMatMul")


def row(report: Report) -> list[int]:
    """Counts for the columns, then the matrix products outside attention before and after."""
    structures = [sum(report.recognized.get(name, 0) for name in names) for names in COLUMNS.values()]
    before, after = (
        sum(ops.get(op, 0) for op in PRODUCTS) for ops in (report.operators_before, report.operators_after)
    )
    return [*structures, before, after]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", help="names without .onnx; all of the folder by default")
    parser.add_argument("--target", default="onnxruntime-cpu")
    options = parser.parse_args()
    names = options.models or sorted(path.stem for path in options.folder.glob("*.onnx"))
    header = [*COLUMNS, "products before", "after"]
    print(f"| {options.target} | {' | '.join(header)} |\n|---|{'---:|' * len(header)}")
    for name in names:
        path, chosen = options.folder / f"{name}.onnx", {"target": options.target, "consumer": "onnxruntime"}
        result = eqsat.optimize(path, **chosen, verify=False, form="flat")
        print(f"| {name} | {' | '.join(map(str, row(result.report)))} |", flush=True)


if __name__ == "__main__":
    main()
