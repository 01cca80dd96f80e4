"""What other optimisers make of exports with symbolic shapes: operators left and attention recognised, beside ours.

    python -m benchmarks.peers [--python VENV/bin/python] [--into FOLDER] [MODEL.onnx ...]

Without models, the exports of `benchmarks/models/dynamic`. Each peer runs in a process of its own, of the given Python, which may
be that of another environment (``pip install onnxruntime onnxslim onnxsim onnxscript`` there); one that is not installed is left
out, with a sentence. Cells are operators / attention; ``-`` where a peer fails, with its last words below the table.
``transformers`` is ``onnxruntime.transformers.optimizer``, told what kind of model it is and how many heads there are;
``rewriter`` is what onnxscript has for ONNX Runtime.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx

import eqsat
from benchmarks.inflate import MODELS, inflate

_SESSION = """
import onnxruntime as ort
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_{level}
options.optimized_model_filepath = target
options.log_severity_level = 4
ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
"""

PEERS: Mapping[str, tuple[str, str]] = {
    "basic": ("onnxruntime", _SESSION.format(level="BASIC")),
    "extended": ("onnxruntime", _SESSION.format(level="EXTENDED")),
    "all": ("onnxruntime", _SESSION.format(level="ALL")),
    "transformers": (
        "onnxruntime.transformers.optimizer",
        """
from onnxruntime.transformers.optimizer import optimize_model
kind = "gpt2" if name.startswith(("gpt2", "llama")) else "bert"
optimize_model(source, kind, num_heads=heads, hidden_size=hidden, opt_level=0).save_model_to_file(target)
""",
    ),
    "onnxslim": ("onnxslim", "import onnx, onnxslim\nonnx.save(onnxslim.slim(onnx.load(source)), target)"),
    "onnxsim": ("onnxsim", "import onnx, onnxsim\nonnx.save(onnxsim.simplify(onnx.load(source))[0], target)"),
    "onnxscript": (
        "onnxscript",
        "import onnx, onnxscript.optimizer\nonnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)",
    ),
    "rewriter": (
        "onnxscript",
        """
import onnx, onnx_ir
from onnxscript.rewriter.ort_fusions import optimize_for_ort
found = optimize_for_ort(onnx_ir.from_proto(onnx.load(source)))
onnx.save(onnx_ir.to_proto(found[0] if isinstance(found, tuple) else found), target)
""",
    ),
}
"""By column: what it needs, and how it is called. The scripts know ``source``, ``target``, ``name``, ``heads`` and ``hidden``."""

_HEADS, _HIDDEN = 4, 64
_LIMIT_S = 300


def installed(python: str, module: str) -> bool:
    """Whether ``python`` can import a module."""
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def counted(path: Path) -> str:
    """Operators of a file, constants aside, and how many of them are attention."""
    model = onnx.load(path, load_external_data=False)
    nodes = [n for n in model.graph.node if n.op_type != "Constant"]
    return f"{len(nodes)} / {sum('Attention' in n.op_type for n in nodes)}"


def of_peer(python: str, script: str, path: Path) -> tuple[str, str]:
    """The cell of one peer, and why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimised.onnx"
        given = {"source": str(path), "target": str(target), "name": path.name, "heads": _HEADS, "hidden": _HIDDEN}
        head = "".join(f"{name} = {value!r}\n" for name, value in given.items())
        try:
            run = subprocess.run(
                [python, "-c", head + script], capture_output=True, text=True, check=False, timeout=_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return "-", f"not done after {_LIMIT_S} s"
        if run.returncode or not target.exists():
            return "-", (run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1][:200]
        return counted(target), ""


def of_ours(path: Path, form: str) -> str:
    """Ours, in one of the forms, of no newer operators than ONNX Runtime loads."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimised.onnx"
        cost = "kernels" if form == "flat" else None
        eqsat.optimize(path, consumer="onnxruntime", form=form, cost=cost, verify=False).save(target)
        return counted(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--into", type=Path, default=Path("out"))
    options = parser.parse_args()
    models = options.models or [inflate(path, options.into) for path in sorted((MODELS / "dynamic").glob("*.onnx"))]
    for path in models:
        if not path.exists():
            parser.error(f"{path}: there is no such file")
    there = {module: installed(options.python, module) for module in {module for module, _ in PEERS.values()}}
    for module in sorted(m for m, found in there.items() if not found):
        print(f"{module} is left out: {options.python} does not have it (pip install {module.split('.')[0]})")
    peers = {name: script for name, (module, script) in PEERS.items() if there[module]}
    head = ("model", "operators", *peers, "ours, flat", "ours, onnxruntime")
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    failures: dict[tuple[str, str], list[str]] = {}
    for path in models:
        cells = [path.stem, counted(path)]
        for name, script in peers.items():
            cell, reason = of_peer(options.python, script, path)
            cells.append(cell)
            if reason:
                failures.setdefault((name, reason), []).append(path.stem)
        cells += [of_ours(path, form) for form in ("flat", "onnxruntime")]
        print(f"| {' | '.join(cells)} |", flush=True)
    for (name, reason), names in failures.items():
        print(f"{name} fails on {', '.join(names)}: {reason}")


if __name__ == "__main__":
    main()
