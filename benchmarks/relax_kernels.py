"""Kernels that TVM Relax launches: what it makes of a model alone, and of our program for it; and whether outputs agree.

    python -m benchmarks.relax_kernels --models FOLDER [--names a,b] [--no-run]

"TVM alone": launches after FoldBatchnormToConv2D, LegalizeOps, FoldConstant, FuseOps and FuseTIR of the model as TVM's ONNX
frontend reads it. "ours": kernels of the program for the target ``tvm-like``. "FuseTIR": launches of its module, one primitive
function per kernel, after FuseTIR. "FuseOps": launches that TVM's own fusion makes of the operators of our program. "drop-in":
launches after FuseTIR of `eqsat.relax.optimize` on the module that TVM's frontend read. The difference is the largest one
between outputs built by TVM and those of the original in ONNX Runtime without its optimisations, over the largest output;
seconds are one run of loops that nobody scheduled. Needs ``eqsat[tvm]``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.frontends.relax.library import from_onnx, relax
from eqsat.relax import Executable, fused, kernel_count, optimize, to_module
from eqsat.verification.feeds import random_feeds

NAMES = ("bert_base_b1s128", "nasrnn", "resnet50", "squeezenet")


def read_by_tvm(model: onnx.ModelProto) -> Any:
    """The model as TVM's frontend reads it; ``None`` where it does not."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return from_onnx(model, dtype_dict=None)
    except Exception:  # TVM raises errors of several libraries
        return None


def launches_of_tvm(module: Any) -> str:
    """What TVM alone launches; ``-`` for a model that it does not read."""
    if module is None:
        return "-"
    for step in (relax.transform.FoldBatchnormToConv2D(), relax.transform.DecomposeOpsForInference()):
        module = step(module)
    return str(kernel_count(relax.get_pipeline("zero")(module)))


def launches_of_drop_in(module: Any) -> str:
    """Launches after optimising the module that TVM's frontend read; ``-`` where there is none."""
    return "-" if module is None else str(kernel_count(fused(optimize(module, verify=False))))


def difference(result: Any, feeds: dict[str, np.ndarray], run: Executable) -> tuple[float, float]:
    """Largest difference of outputs relative to the largest output, and seconds of a run."""
    expected = eqsat.run(result.original, feeds, engine="onnxruntime")
    start = time.perf_counter()
    found = run(feeds)
    seconds = time.perf_counter() - start
    pairs = [(np.float64(found[v]), np.float64(expected[v])) for v in expected]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) for a, b in pairs), seconds


def row(path: Path, run: bool) -> str:
    """A row of the table for one model."""
    result = eqsat.optimize(path, target="tvm-like", verify=False)
    program = result.program
    module = read_by_tvm(to_model(result.original))
    lowered = fused(to_module(program).module)
    cells = [path.stem, launches_of_tvm(module), str(program.kernel_count), str(kernel_count(lowered))]
    cells += [launches_of_tvm(read_by_tvm(to_model(program.graph))), launches_of_drop_in(module)]
    if run:
        worst, seconds = difference(result, random_feeds(result.original, 0), Executable(program))
        cells += [f"{worst:.1e}", f"{seconds:.1f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--no-run", action="store_true", help="counts only")
    chosen = parser.parse_args()
    columns = ["model", "TVM alone", "ours", "FuseTIR", "FuseOps", "drop-in"]
    columns += [] if chosen.no_run else ["difference", "run, s"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for name in chosen.names.split(","):
        print(row(chosen.models / f"{name}.onnx", not chosen.no_run), flush=True)


if __name__ == "__main__":
    main()
