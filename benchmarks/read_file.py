"""Loads a model in one runtime, runs it, and leaves its outputs: for interpreters that have nothing but that runtime and numpy.

PYTHON read_file.py RUNTIME MODEL.onnx FEEDS.npz OUTPUTS.npz [RUNS]

``RUNTIME`` is ``onnxruntime``, ``openvino`` or ``onnxruntime-web=FOLDER``, a folder in which ``npm install onnxruntime-web`` was
called; or ``onnxruntime@PROVIDER[,OPTION=VALUE...]``, an execution provider built in (``OpenVINOExecutionProvider``) or the
package of one that plugs in (``onnxruntime_ep_webgpu``). Prints its version and the least CPU time of a run, in seconds, as JSON;
with a provider also how many ``nodes`` a run has, those ``on_cpu`` by operator, and the ``copies`` between.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np


def _onnxruntime(model, feeds):
    return _version(), _session(model, feeds, _options(), ["CPUExecutionProvider"])[1]


def _options():
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def _version():
    import onnxruntime

    return onnxruntime.__version__


def _session(model, feeds, options, providers):
    import onnxruntime

    session = onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=False)
    names = [output.name for output in session.get_outputs()]
    return session, lambda: dict(zip(names, session.run(names, feeds), strict=True))


def _on_provider(given, model, feeds, runs):
    """Version, outputs, seconds, and what a run has where, by the profiler of ONNX Runtime."""
    import onnxruntime

    name, *listed = given.split(",")
    settings = dict(entry.split("=", 1) for entry in listed)
    options, providers = _options(), None
    if name in onnxruntime.get_available_providers():
        providers = [(name, settings), "CPUExecutionProvider"]
    else:
        package = import_module(name)
        name = package.get_ep_name()
        onnxruntime.register_execution_provider_library(name, package.get_library_path())
        devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == name]
        if not devices:
            sys.exit(f"no device for {name}")
        options.add_provider_for_devices(devices, settings)
    with tempfile.TemporaryDirectory() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session, run = _session(model, feeds, options, providers)
        found = run()
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    ran = [e["args"] for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    nodes = [args for args in ran if not args["op_name"].startswith("Memcpy")]
    on_cpu = Counter(args["op_name"] for args in nodes if args["provider"] == "CPUExecutionProvider")
    where = {"nodes": len(nodes), "on_cpu": dict(on_cpu), "copies": len(ran) - len(nodes)}
    return _version(), found, _least(run, runs), where


def _openvino(model, feeds):
    """In float32: on processors with bfloat16 products it would compute in that."""
    import openvino  # pyright: ignore[reportMissingImports]

    settings = {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    core = openvino.Core()
    read = core.read_model(model)
    names = [port.get_any_name() for port in read.outputs]  # once compiled, one may be named after a value inside, too
    compiled = core.compile_model(read, "CPU", settings)
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        name = next(n for n in port.get_names() if n in feeds)
        request.set_tensor(port, openvino.Tensor(np.ascontiguousarray(feeds[name])))

    def run():
        request.infer()
        return {name: request.get_output_tensor(k).data.copy() for k, name in enumerate(names)}

    return openvino.__version__.partition("-")[0], run


def _web(modules, model, feeds, runs):
    """The version, the outputs and the least CPU time, by Node.js."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = []
        for k, (value, array) in enumerate(feeds.items()):
            file = folder / f"input{k}"
            array.tofile(file)
            given.append({"name": value, "type": array.dtype.name, "dims": list(array.shape), "file": str(file)})
        (folder / "feeds.json").write_text(json.dumps(given), "utf-8")
        script = Path(__file__).resolve().with_suffix(".mjs")
        command = ["node", str(script), str(Path(model).resolve()), name, str(runs)]
        done = subprocess.run(command, cwd=modules, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").splitlines()
            sys.exit(next((line for line in said if line.startswith("Error")), "node ended with an error"))
        told = json.loads((folder / "outputs.json").read_text("utf-8"))
        found = {o["name"]: np.fromfile(o["file"], o["type"]).reshape(o["dims"]) for o in told["outputs"]}
    return told["version"], found, told["seconds"]


def main() -> None:
    runtime, model, given, outputs, *more = sys.argv[1:]
    runs = int(more[0]) if more else 7
    with np.load(given) as archive:
        feeds = dict(archive)
    name, _, modules = runtime.partition("=")
    where = {}
    if runtime.startswith("onnxruntime@"):
        version, found, seconds, where = _on_provider(runtime.partition("@")[2], model, feeds, runs)
    else:
        version, found, seconds = _web(modules, model, feeds, runs) if modules else _timed(name, model, feeds, runs)
    np.savez(outputs, *found.values())
    print(json.dumps({"version": version, "names": list(found), "seconds": seconds, **where}), flush=True)


def _timed(runtime, model, feeds, runs):
    version, run = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime](model, feeds)
    return version, run(), _least(run, runs)


def _least(run, runs):
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds, default=0.0)


if __name__ == "__main__":
    main()
