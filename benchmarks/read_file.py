"""Loads a model in one runtime, runs it, and leaves its outputs: for interpreters that have nothing but that runtime and numpy.

PYTHON read_file.py RUNTIME MODEL.onnx FEEDS.npz OUTPUTS.npz [RUNS]

``RUNTIME`` is ``onnxruntime``, ``openvino`` or ``onnxruntime-web=FOLDER``, a folder in which ``npm install onnxruntime-web`` was
called. Prints its version and the least CPU time of a run, in seconds, as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def _onnxruntime(model, feeds):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return onnxruntime.__version__, lambda: dict(zip(names, session.run(names, feeds), strict=True))


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
    version, found, seconds = _web(modules, model, feeds, runs) if modules else _timed(name, model, feeds, runs)
    np.savez(outputs, *found.values())
    print(json.dumps({"version": version, "names": list(found), "seconds": seconds}))


def _timed(runtime, model, feeds, runs):
    version, run = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime](model, feeds)
    found = run()
    seconds = []
    for _ in range(runs):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return version, found, min(seconds)


if __name__ == "__main__":
    main()
