"""Wall time and memory of a whole optimisation, file to file, beside onnxsim and ONNX Runtime's offline optimisation.

    python -m benchmarks.wall_time --models FOLDER [--names a,b] [--repeats 3] [--json PATH]

``FOLDER`` holds inflated models (`benchmarks.inflate`). Each measurement is a process of its own with two threads: imports
are done and timed first, then one optimisation without verification; the median of the repeats is shown. Memory is the peak
resident set above that of the process after its imports, beside the size of the file with its external data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_COMMON = """
import json, os, resource, sys, time
os.environ["OMP_NUM_THREADS"] = "2"
source, target = sys.argv[1], sys.argv[2]
def resident():
    with open("/proc/self/statm") as f: return int(f.read().split()[1]) * resource.getpagesize()
def peak():
    with open("/proc/self/status") as f:
        return next(int(l.split()[1]) * 1024 for l in f if l.startswith("VmHWM"))
def done(extra=None):
    measured = {"import_s": imported - start, "wall_s": time.perf_counter() - begin, "peak_bytes": peak() - base}
    print(json.dumps({**measured, **(extra or {})}))
start = time.perf_counter()
"""

_TOOLS = {
    "eqsat": """
import eqsat, eqsat.rules, egglog.bindings, scipy.optimize, onnx, onnx.checker, onnx.shape_inference
import eqsat.frontends.onnx.model, eqsat.backends.onnx_file, eqsat.ir.operators, onnxruntime
imported = time.perf_counter(); base = resident(); open("/proc/self/clear_refs", "w").write("5"); begin = time.perf_counter()
result = eqsat.optimize(source, form="flat", verify=False)
result.save(target)
r = result.report
done({"seconds": r.seconds, "before": sum(r.operators_before.values()), "after": sum(r.operators_after.values()),
      "kernels": r.kernels_after, "enodes": r.enodes, "iterations": r.iterations, "stop_reason": r.stop_reason, "gap": r.gap})
""",
    "onnxsim": """
import onnx, onnxsim
imported = time.perf_counter(); base = resident(); open("/proc/self/clear_refs", "w").write("5"); begin = time.perf_counter()
model, ok = onnxsim.simplify(onnx.load(source))
onnx.save(model, target, save_as_external_data=True, location=os.path.basename(target) + ".data")
done()
""",
    "onnxruntime": """
import onnxruntime as ort
imported = time.perf_counter(); base = resident(); open("/proc/self/clear_refs", "w").write("5"); begin = time.perf_counter()
options = ort.SessionOptions()
options.intra_op_num_threads = 2
options.log_severity_level = 4
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.optimized_model_filepath = target
options.add_session_config_entry("session.optimized_model_external_initializers_file_name", os.path.basename(target) + ".data")
options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
done()
""",
}


def measure(tool: str, model: Path) -> dict[str, object] | None:
    """One run of a tool in a process of its own; ``None`` if the tool fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _COMMON + _TOOLS[tool], str(model), f"{folder}/{model.name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{tool} {model.name}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def model_bytes(path: Path) -> int:
    """Size of a model with its external data."""
    data = path.with_suffix(".weights")
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="bert_base_b1s128,bert_int8_trivial,bert_base_trivial_qdq,sd_unet")
    parser.add_argument("--tools", default=",".join(_TOOLS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = (
        [p.stem for p in sorted(options.models.glob("*.onnx"))] if options.names == "all" else options.names.split(",")
    )
    rows: dict[str, dict[str, object]] = {}
    print("| model | tool | wall s | core s | import s | peak MB | limit MB | operators | e-nodes | stop |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        path = options.models / f"{name}.onnx"
        for tool in options.tools.split(","):
            runs = [r for r in (measure(tool, path) for _ in range(options.repeats)) if r]
            if not runs:
                continue
            middle = {
                k: statistics.median(float(str(r[k])) for r in runs) for k in ("wall_s", "import_s", "peak_bytes")
            }
            last = runs[-1]
            core = ""
            seconds = last.get("seconds")
            if isinstance(seconds, dict):
                core = f"{sum(seconds[k] for k in ('encode', 'saturate', 'analyse', 'extract')):.3f}"
            rows[f"{name}/{tool}"] = {**last, **middle}
            print(
                f"| {name} | {tool} | {middle['wall_s']:.2f} | {core} | {middle['import_s']:.2f} | "
                f"{middle['peak_bytes'] / 1e6:.0f} | {2 * model_bytes(path) / 1e6 + 64:.0f} | "
                f"{last.get('before', '')} -> {last.get('after', '')} | {last.get('enodes', '')} | "
                f"{last.get('stop_reason', '')} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
