"""What symbolic extents cost: operators, kernels and structures of exports with symbols, beside the same with numbers.

    python -m benchmarks.dynamic_shapes [--into FOLDER] [MODEL.onnx ...]

Without models, the exports of `benchmarks/models/dynamic`: two layers each, by both of PyTorch's exporters. ``ONNX Runtime``:
operators left in the model that it saves at EXTENDED. Of ours: operators / kernels / attention / products.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import onnx
import onnxruntime as ort

import eqsat
from benchmarks.inflate import MODELS, inflate
from eqsat.report import Report

SIZES = {"batch": 2, "seq": 16, "past": 8, "total": 24}
PRODUCTS = ("MatMul", "Gemm")


def of_runtime(path: Path) -> int:
    """Operators that ONNX Runtime leaves of a model."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        options.log_severity_level = 4
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return len(onnx.load(options.optimized_model_filepath, load_external_data=False).graph.node)


def row(path: Path) -> str:
    """One line of the table."""
    symbols = eqsat.inspect(path).symbols
    plain, verified = (
        eqsat.optimize(path, form="flat", consumer="onnxruntime", cost="kernels", verify=verify, dims=dims).report
        for verify, dims in ((True, {}), (False, {s: n for s, n in SIZES.items() if s in symbols}))
    )
    parts = [path.stem, f"{sum(plain.operators_before.values())}", str(of_runtime(path))]
    parts += [f"{_numbers(report)}" for report in (plain, verified)]
    return f"| {' | '.join((*parts, plain.verification['verdict']))} |"


def _numbers(report: Report) -> str:
    products = sum(n for op, n in report.operators_after.items() if op in PRODUCTS)
    attention = report.recognized.get("attention", 0)
    return f"{sum(report.operators_after.values())} / {report.kernels_after} / {attention} / {products}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--into", type=Path, default=Path("out"))
    options = parser.parse_args()
    models = options.models or [inflate(path, options.into) for path in sorted((MODELS / "dynamic").glob("*.onnx"))]
    head = ("model", "operators", "ONNX Runtime", "with symbols", "with numbers", "verified")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for path in models:
        print(row(path), flush=True)


if __name__ == "__main__":
    main()
