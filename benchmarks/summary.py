"""What the fewest kernels of plain ONNX (`--form flat`) are for every model: operators, kernels, what is recognised, products.

    python -m benchmarks.summary --models FOLDER

``FOLDER`` holds inflated models (`benchmarks.inflate`). Prints a Markdown table; `benchmarks.all_models` verifies, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import eqsat

PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")


def row(path: Path) -> str:
    """The table's line for one model."""
    report = eqsat.optimize(path, verify=False, form="flat", consumer="onnxruntime").report
    before, after, found = report.operators_before, report.operators_after, report.recognized
    norms = sum(count for name, count in found.items() if name.endswith("_norm"))
    products = (sum(counts.get(op, 0) for op in PRODUCTS) for counts in (before, after))
    cells = [
        path.stem,
        f"{sum(before.values())} -> {sum(after.values())}",
        f"{report.launches_before} -> {report.kernels_after}",
        report.exactness,
        f"{found.get('attention', 0)}, {norms}, {found.get('gelu', 0)}",
        " -> ".join(map(str, products)),
        str(report.enodes) + ("" if report.stop_reason == "saturated" else f" ({report.stop_reason})"),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    options = parser.parse_args()
    print("| model | operators | kernels | class used | attention, norms, GELU | products | e-nodes |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(options.models.glob("*.onnx")):
        print(row(path), flush=True)


if __name__ == "__main__":
    main()
