"""Wall time and memory of a whole optimisation, file to file, beside onnxsim and ONNX Runtime's offline optimisation.

    python -m benchmarks.wall_time --models FOLDER [--names a,b] [--repeats 5] [--warm] [--json PATH]

``FOLDER`` holds inflated models (`benchmarks.inflate`). Each measurement is a process of its own with two threads: imports
are done and timed first, then one optimisation without verification; the median of the repeats is shown. Memory is the peak
resident set above that of the process after its imports, beside the size of the file with its external data.

With ``--warm`` there is one process for each model, in which the tools take turns: the seconds of our first optimisation, which
imports what it needs and loads the rules, the median of the others, and ours over those of the other tools.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def _eqsat(source: str, target: str) -> dict[str, Any]:
    import eqsat

    result = eqsat.optimize(source, form="flat", verify=False)
    result.save(target)
    r = result.report
    core = sum(r.seconds[stage] for stage in ("encode", "saturate", "analyse", "extract"))
    operators = f"{sum(r.operators_before.values())} -> {sum(r.operators_after.values())}"
    return {"core_s": round(core, 3), "operators": operators, "enodes": r.enodes, "stop_reason": r.stop_reason}


def _onnxsim(source: str, target: str) -> dict[str, Any]:
    import onnx
    import onnxsim  # pyright: ignore[reportMissingImports]

    model, _ = onnxsim.simplify(onnx.load(source))
    onnx.save(model, target, save_as_external_data=True, location=Path(target).name + ".data")
    return {}


def _onnxruntime(source: str, target: str) -> dict[str, Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = target
    weights = "session.optimized_model_external_initializers"
    options.add_session_config_entry(f"{weights}_file_name", Path(target).name + ".data")
    options.add_session_config_entry(f"{weights}_min_size_in_bytes", "1024")
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return {}


_TOOLS: dict[str, tuple[Callable[[str, str], dict[str, Any]], str]] = {
    "eqsat": (
        _eqsat,
        "eqsat eqsat.rules egglog.bindings highspy onnx onnx.checker onnx.shape_inference onnxruntime "
        "eqsat.frontends.onnx.model eqsat.backends.onnx_file eqsat.ir.operators",
    ),
    "onnxsim": (_onnxsim, "onnx onnxsim"),
    "onnxruntime": (_onnxruntime, "onnxruntime"),
}
"""What a tool does, and what is imported before."""


def _run(tool: str, source: str) -> tuple[float, dict[str, Any]]:
    """Seconds of one optimisation, and what there is to say of it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        found = _TOOLS[tool][0](source, f"{folder}/{Path(source).name}")
        return time.perf_counter() - start, found


def _alone(tool: str, source: str) -> None:
    """Prints the measurements of one run in this process, which has done nothing else."""
    start = time.perf_counter()
    for module in _TOOLS[tool][1].split():
        importlib.import_module(module)
    imported = time.perf_counter() - start
    base = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")
    seconds, found = _run(tool, source)
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(json.dumps({"import_s": imported, "wall_s": seconds, "peak_bytes": peak - base, **found}))


def _in_turn(tools: Sequence[str], source: str, repeats: int) -> None:
    """Prints the measurements of the tools in turn, in this process."""
    taken: dict[str, list[float]] = {tool: [] for tool in tools}
    for _ in range(repeats + 1):
        for tool in tools:
            taken[tool].append(_run(tool, source)[0])
    print(json.dumps({"first_s": taken[tools[0]][0], **{tool: statistics.median(t[1:]) for tool, t in taken.items()}}))


def _child(*arguments: object) -> dict[str, Any] | None:
    """What this module prints in a process of its own; ``None`` if a tool fails there."""
    command = [sys.executable, "-m", "benchmarks.wall_time", *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    if done.returncode:
        print(f"{' '.join(map(str, arguments))}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def model_bytes(path: Path) -> int:
    """Size of a model with its external data."""
    data = path.with_suffix(".weights")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def _row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


def _each_alone(paths: Sequence[Path], tools: Sequence[str], repeats: int) -> dict[str, Any]:
    _row("model", "tool", "wall s", "core s", "import s", "peak MB", "limit MB", "operators", "e-nodes", "stop")
    _row(*["---"] * 10)
    rows: dict[str, Any] = {}
    for path in paths:
        for tool in tools:
            runs = [r for r in (_child("--alone", tool, "--models", path) for _ in range(repeats)) if r]
            if not runs:
                continue
            middle = {k: statistics.median(r[k] for r in runs) for k in ("wall_s", "import_s", "peak_bytes")}
            rows[f"{path.stem}/{tool}"] = last = {**runs[-1], **middle}
            memory = f"{last['peak_bytes'] / 1e6:.0f}", f"{2 * model_bytes(path) / 1e6 + 64:.0f}"
            times = f"{last['wall_s']:.2f}", last.get("core_s", ""), f"{last['import_s']:.2f}"
            _row(path.stem, tool, *times, *memory, *(last.get(k, "") for k in ("operators", "enodes", "stop_reason")))
    return rows


def _each_warm(paths: Sequence[Path], tools: Sequence[str], repeats: int) -> dict[str, Any]:
    _row("model", "first", *tools, *(f"{tools[0]} / {tool}" for tool in tools[1:]))
    _row(*["---"] * (2 * len(tools) + 1))
    rows: dict[str, Any] = {}
    for path in paths:
        found = _child("--in-turn", ",".join(tools), "--models", path, "--repeats", repeats)
        if found is not None:
            rows[path.stem] = found
            seconds = [found["first_s"], *(found[tool] for tool in tools)]
            ratios = [found[tools[0]] / found[tool] for tool in tools[1:]]
            _row(path.stem, *(f"{s:.2f}" for s in seconds), *(f"{r:.2f}" for r in ratios))
    for tool in tools[1:] if rows else ():
        mean = statistics.geometric_mean(row[tools[0]] / row[tool] for row in rows.values())
        print(f"{tools[0]} / {tool}: geometric mean {mean:.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="bert_base_b1s128,bert_int8_trivial,bert_base_trivial_qdq,sd_unet")
    parser.add_argument("--tools", default=",".join(_TOOLS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    parser.add_argument("--in-turn", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        return _alone(options.alone, str(options.models))
    if options.in_turn:
        return _in_turn(options.in_turn.split(","), str(options.models), options.repeats)
    every = sorted(p.stem for p in options.models.glob("*.onnx"))
    paths = [options.models / f"{n}.onnx" for n in (every if options.names == "all" else options.names.split(","))]
    measure = _each_warm if options.warm else _each_alone
    rows = measure(paths, options.tools.split(","), options.repeats)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))
    return None


if __name__ == "__main__":
    main()
