"""Loads a model in one runtime, runs it, and leaves its outputs: for interpreters that have nothing but that runtime and numpy.

PYTHON read_file.py RUNTIME MODEL.onnx FEEDS.npz OUTPUTS.npz [RUNS]

``RUNTIME`` is ``onnxruntime`` or ``openvino``. Prints its version and the least CPU time of a run, in seconds, as JSON.
"""

from __future__ import annotations

import json
import sys
import time

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


def main() -> None:
    runtime, model, given, outputs, *runs = sys.argv[1:]
    with np.load(given) as archive:
        feeds = dict(archive)
    version, run = {"onnxruntime": _onnxruntime, "openvino": _openvino}[runtime](model, feeds)
    found = run()
    seconds = []
    for _ in range(int(runs[0]) if runs else 7):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    np.savez(outputs, *found.values())
    print(json.dumps({"version": version, "names": list(found), "seconds": min(seconds)}))


if __name__ == "__main__":
    main()
