"""What symbolic extents cost: operators, kernels and structures of exports with symbols, beside the same with numbers.

    python -m benchmarks.dynamic_shapes [--into FOLDER] [--sizes] [MODEL.onnx ...]

Without models, the exports of `benchmarks/models/dynamic`: two layers each, by both of PyTorch's exporters. ``ONNX Runtime``:
operators left in the model that it saves at EXTENDED. Of ours: operators / kernels / attention / products.

With ``--sizes`` each program, in both forms, runs beside the original at batches of 1, 2 and 5, sequences of 1, 7, 33 and 128,
with 0, 1, 16 and 127 keys stored before, at every level of ONNX Runtime: the largest error as a part of the largest output, and
where it is. Exit status 1 if one is larger than `ALLOWED`.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import eqsat
from benchmarks.inflate import MODELS, inflate
from eqsat.report import Report

SIZES = {"batch": 2, "seq": 16, "past": 8, "total": 24, "height": 16, "width": 16}
PRODUCTS = ("MatMul", "Gemm", "com.microsoft::MatMulNBits")
FORMS: dict[str, dict[str, Any]] = {"flat": {"form": "flat", "cost": "kernels"}, "onnxruntime": {}}
LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")
ALLOWED = {"tensor(float)": 2e-5, "tensor(float16)": 1e-2}
"""Errors by the type of an output."""

ROUNDED = 0.1
"""Where integers were rounded on the way: models of that kind amplify single roundings."""

ROUNDING = ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulNBits")


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


# --- right at all sizes


def sizes(names: set[str]) -> Iterator[dict[str, int]]:
    """Every combination of sizes for the symbols of a model."""
    lengths = (0, 1, 16, 127) if "past" in names else (0,)
    for batch, seq, past in itertools.product((1, 2, 5), (1, 7, 33, 128), lengths):
        image = {"height": 8 * min(seq, 8), "width": 16, "frames": seq}
        yield {"batch": batch, "seq": seq, "past": past, "total": past + seq, **image}


def feeds_of(session: ort.InferenceSession, at: dict[str, int]) -> dict[str, np.ndarray]:
    """Random inputs of the right kinds. The last row of a mask begins with padding.

    Not in half precision: ONNX Runtime rounds scores of a row in which every key is forbidden to float16, or not, as it likes.
    """
    random = np.random.default_rng(3)
    half = any(value.type == "tensor(float16)" for value in (*session.get_inputs(), *session.get_outputs()))
    feeds: dict[str, np.ndarray] = {}
    for given in session.get_inputs():
        shape = [at.get(d, 2) if isinstance(d, str) else d for d in given.shape]
        if "mask" in given.name:
            kept = np.ones(shape, np.int64)
            kept[-1, : shape[-1] // 3] = half or shape[0] == 1
            feeds[given.name] = kept
        elif given.name == "position_ids":
            feeds[given.name] = np.broadcast_to(np.arange(shape[1]) + at["past"], shape).astype(np.int64)
        elif given.type == "tensor(int64)":
            feeds[given.name] = random.integers(0, 2 if "type" in given.name else 900, shape)
        else:
            feeds[given.name] = random.standard_normal(shape).astype(
                np.float16 if given.type == "tensor(float16)" else np.float32
            )
    return feeds


def session_at(path: Path, level: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def checked(path: Path) -> tuple[str, bool]:
    """A line that says how far the program is from the original at worst, and whether that is allowed."""
    original = session_at(path, "DISABLE_ALL")
    names = {d for given in original.get_inputs() for d in given.shape if isinstance(d, str)}
    coarse = any(node.op_type in ROUNDING for node in onnx.load(path, load_external_data=False).graph.node)
    allowed = ROUNDED if coarse else ALLOWED[original.get_outputs()[0].type]
    worst, where, runs = 0.0, "", 0
    with tempfile.TemporaryDirectory() as folder:
        for form, how in FORMS.items():
            written = Path(folder) / f"{form}.onnx"
            eqsat.optimize(path, verify=False, **how).save(written)
            sessions = {level: session_at(written, level) for level in LEVELS}
            for at in sizes(names):
                feeds = feeds_of(original, at)
                expected = original.run(None, feeds)
                for level, session in sessions.items():
                    runs += 1
                    error = max(map(_error, expected, session.run(None, feeds)))
                    if not error <= worst:
                        chosen = ", ".join(f"{name} {at[name]}" for name in sorted(names & at.keys()))
                        worst, where = error, f"{form}, {level}, {chosen}"
    return f"| {path.stem} | {runs} | {worst:.1e} | {allowed:.0e} | {where} |", worst <= allowed


def _error(expected: Any, found: Any) -> float:
    """The largest difference, as a part of the largest number; infinite for NaN that is only in one of them."""
    a, b = (np.asarray(x, np.float64) for x in (expected, found))
    if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
        return float("inf")
    return float(np.nanmax(np.abs(a - b), initial=0.0) / max(1.0, np.nanmax(np.abs(a), initial=0.0)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--into", type=Path, default=Path("out"))
    parser.add_argument("--sizes", action="store_true", help="check the programs at many sizes")
    options = parser.parse_args()
    models = options.models or [inflate(path, options.into) for path in sorted((MODELS / "dynamic").glob("*.onnx"))]
    if options.sizes:
        print("| model | runs | largest error | allowed | where |\n|---|---|---|---|---|")
        right = True
        for path in models:
            line, fine = checked(path)
            right &= fine
            print(line, flush=True)
        raise SystemExit(not right)
    head = ("model", "operators", "ONNX Runtime", "with symbols", "with numbers", "verified")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for path in models:
        print(row(path), flush=True)


if __name__ == "__main__":
    main()
