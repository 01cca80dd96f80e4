"""What optimising a model takes as it gets deeper: exports of two layers, stacked, up to whole size.

    python -m benchmarks.growth [bert | llama_7b | lstm | FILE.onnx START END] [--layers 2,6,12,24,48,96] [--form FORM]
        [--target NAME] [--cost NAME] [--verify HOW] [--into FOLDER]

``bert`` is a small one (hidden 64), ``llama_7b`` one of 32 layers of its width: hidden 4096, 32 heads, 11,008 inside the
perceptron, 32,000 words, 27 GB of weights in float32. Batch and sequence are symbols in both. ``lstm`` is one layer, unrolled:
as many steps as ``--layers`` says, which share their weights. A file of one's own needs the names of the values before and after
one of its layers.

The second layer is repeated with weights of its own. No weight is ever written: they lie in one file of random numbers,
each somewhere else, so they overlap, and differ. Every depth runs in a process of its own. Seconds are CPU time; memory is the
most that was resident, libraries and what was read of the file of weights (0.5 GB for ``llama_7b``) included. The last line says
how time grows: the exponent of a power law fitted to depths of 6 and more.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.inflate import MODELS

SHIPPED = {
    "bert": (MODELS / "dynamic" / "bert.dynamo.onnx", "layer_norm_2", "last_hidden_state"),
    "llama_7b": (MODELS / "whole" / "llama_7b.onnx", "add_320", "add_543"),
}
"""Skeletons, with the values before and after the second layer."""

_WEIGHT_ELEMENTS = 64
"""Floats of at least so many elements are weights of the layer, not constants of a formula."""

_PAGE, _WINDOWS = 4096, 4096
_DEVIATION = 0.02


def stack_layers(model: onnx.ModelProto, start: str, end: str, layers: int) -> None:
    """Makes ``layers`` layers of two: what lies between the values ``start`` and ``end`` is repeated, with other weights."""
    graph = model.graph
    dependent = _reached(graph.node, start)
    behind = [n for n in graph.node if not dependent.isdisjoint(n.output)]
    body = _needed(behind, end)
    inside = {o for n in body for o in n.output}
    weights = {t.name: t for t in graph.initializer if _is_weight(t)}
    own = {i for n in body for i in n.input if i in weights}
    made = [n for n in graph.node if dependent.isdisjoint(n.output)]
    current = start
    for layer in range(layers - 1):
        last = layer == layers - 2  # it keeps the names, which what comes behind reads
        names = {v: v if last else f"{v}.{layer}" for v in inside | own} | {start: current}
        for node in body:
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            copy.input[:] = [names.get(v, v) for v in node.input]
            copy.output[:] = [names.get(v, v) for v in node.output]
            copy.name = f"{node.name}.{layer}" if node.name and not last else node.name
            made.append(copy)
        for name in () if last else sorted(own):
            tensor = graph.initializer.add()
            tensor.CopyFrom(weights[name])
            tensor.name = names[name]
        current = names[end]
    made += [n for n in behind if inside.isdisjoint(n.output)]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in made]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)


def _is_weight(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type == onnx.TensorProto.FLOAT and int(np.prod(tensor.dims)) >= _WEIGHT_ELEMENTS


def _reached(nodes: Iterable[onnx.NodeProto], value: str) -> set[str]:
    """Everything computed from ``value``."""
    found = {value}
    for node in nodes:
        if not found.isdisjoint(node.input):
            found.update(node.output)
    return found - {value}


def _needed(nodes: Sequence[onnx.NodeProto], value: str) -> list[onnx.NodeProto]:
    """The nodes that ``value`` needs, in order."""
    wanted, kept = {value}, []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(node.input)
    return kept[::-1]


def share_weights(model: onnx.ModelProto, folder: Path) -> None:
    """Points each weight at random numbers of its own in one file, which is as large as the largest of them and a little more.

    Vectors, which scale or shift, are around 1.
    """
    tensors = [t for t in model.graph.initializer if _is_weight(t)]
    sizes = [4 * int(np.prod(t.dims)) for t in tensors]
    vectors = max((s for t, s in zip(tensors, sizes, strict=True) if len(t.dims) == 1), default=0) + _WINDOWS * 64
    matrices = -(-max(sizes) // _PAGE) * _PAGE + _WINDOWS * _PAGE
    for number, (tensor, size) in enumerate(zip(tensors, sizes, strict=True)):
        window = number % _WINDOWS
        offset = matrices + 64 * window if len(tensor.dims) == 1 else _PAGE * window
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "windows.data"), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
    path = folder / "windows.data"
    if path.exists() and path.stat().st_size == matrices + vectors:
        return
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        for begin in range(0, matrices, 1 << 24):
            count = min(1 << 24, matrices - begin) // 4
            file.write((random.standard_normal(count, np.float32) * np.float32(_DEVIATION)).tobytes())
        file.write((random.random(vectors // 4, np.float32) + np.float32(0.5)).tobytes())


def write_stack(of: Sequence[str], layers: int, folder: Path) -> Path:
    """Writes the model of ``layers`` layers into ``folder``. ``of``: a shipped skeleton, or a file and the ends of a layer."""
    skeleton, start, end = SHIPPED.get(of[0]) or (Path(of[0]), *of[1:])
    model = onnx.load(str(skeleton), load_external_data=False)
    stack_layers(model, start, end, layers)
    folder = folder / skeleton.stem
    folder.mkdir(parents=True, exist_ok=True)
    share_weights(model, folder)
    path = folder / f"{layers}.onnx"
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def write_lstm(steps: int, folder: Path, width: int = 32) -> Path:
    """Writes a layer of an LSTM unrolled over ``steps`` steps, as PyTorch exports a loop over cells, into ``folder``."""
    from eqsat import GraphBuilder
    from eqsat.backends.onnx_file import to_model

    random = np.random.default_rng(0)
    b = GraphBuilder(f"lstm_{steps}")

    def weight(*shape: int) -> str:
        return b.constant((random.standard_normal(shape) * 0.1).astype(np.float32))

    x = b.input("x", "float32", (steps, 1, width))
    hidden, cell = (b.constant(np.zeros((1, width), np.float32)) for _ in range(2))
    weights, bias = [weight(width, 4 * width) for _ in range(2)], weight(4 * width)
    outputs: list[str] = []
    for step in range(steps):
        now = b.op("Gather", x, b.constant(np.array(step, np.int64)), axis=0)
        products = [b.op("MatMul", v, w) for v, w in zip((now, hidden), weights, strict=True)]
        gates = b.op("Split", b.op("Add", b.op("Add", *products), bias), outputs=4, num_outputs=4, axis=1)
        taken, forgotten, shown = (b.op("Sigmoid", gates[i]) for i in (0, 1, 3))
        kept, new = b.op("Mul", forgotten, cell), b.op("Mul", taken, b.op("Tanh", gates[2]))
        cell = b.op("Add", kept, new)
        hidden = b.op("Mul", shown, b.op("Tanh", cell))
        outputs.append(hidden)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"lstm_{steps}.onnx"
    path.write_bytes(to_model(b.finish({"y": b.op("Concat", *outputs, axis=0)})).SerializeToString(deterministic=True))
    return path


def measure(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Optimises one file in this process: CPU seconds, memory, and what the report says."""
    import eqsat
    import eqsat.rules  # compiled when first imported

    clock: dict[str, float] = {}
    began = time.process_time()
    current, since = "load", began

    def notify(stage: str, detail: str) -> None:
        nonlocal current, since
        now = time.process_time()
        clock[current] = clock.get(current, 0.0) + now - since
        current, since = stage, now

    report = eqsat.optimize(path, progress=notify, **options).report
    notify("", "")
    return {
        "operators": sum(report.operators_before.values()),
        "after": sum(report.operators_after.values()),
        "attention": report.recognized.get("attention", 0),
        "enodes": report.enodes,
        "gap": report.gap,
        "seconds": {**clock, "all": time.process_time() - began},
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "verdict": report.verification.get("verdict", "not asked for"),
    }


def _in_process(path: Path, options: dict[str, Any]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.growth", "--measure", str(path), json.dumps(options)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(Path(sys.argv[2]), json.loads(sys.argv[3]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", default=["bert"])
    parser.add_argument("--layers", default="2,6,12,24,48,96")
    parser.add_argument("--form", default="onnxruntime")
    parser.add_argument("--target", default="onnxruntime-cpu")
    parser.add_argument("--cost", default=None)
    parser.add_argument("--verify", default="none")
    parser.add_argument("--into", type=Path, default=Path("out/growth"))
    options = parser.parse_args()
    model = options.model
    chosen = {"form": options.form, "target": options.target, "cost": options.cost, "verify": options.verify}
    head = (
        "layers",
        "operators",
        "after",
        "attention",
        "e-nodes",
        "saturation",
        "extraction",
        "all",
        "GB",
        "gap",
        "verified",
    )
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    depths, times = [int(n) for n in options.layers.split(",")], []
    for layers in depths:
        path = write_lstm(layers, options.into) if model == ["lstm"] else write_stack(model, layers, options.into)
        found = _in_process(path, chosen)
        seconds = found["seconds"]
        times.append((seconds["saturate"], seconds["extract"], seconds["all"]))
        cells = [layers, found["operators"], found["after"], found["attention"], found["enodes"]]
        cells += [f"{x:.1f}" for x in times[-1]] + [f"{found['gigabytes']:.2f}", f"{100 * found['gap']:.2f} %"]
        print(f"| {' | '.join(map(str, [*cells, found['verdict']]))} |", flush=True)
    deep = [i for i, layers in enumerate(depths) if layers >= 6]
    if len(deep) > 1:
        logs = np.log([[depths[i], *times[i]] for i in deep])
        exponents = (np.polyfit(logs[:, 0], column, 1)[0] for column in logs.T[1:])
        print("seconds ~ layers ** " + ", ".join(f"{e:.2f} ({n})" for e, n in zip(exponents, head[5:8], strict=True)))


if __name__ == "__main__":
    main()
