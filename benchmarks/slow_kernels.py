"""What ONNX Runtime's kernels are slow at, alone and as eqsat has it: the original at ENABLE_ALL against the result there.

    python -m benchmarks.slow_kernels [--threads 1]

Each is a graph of one operator, or of a few as networks have them. Sessions of both take turns in one process; a figure is the
least of `ROUNDS` times, in microseconds. The error is the largest difference, as a part of the largest element.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import eqsat
from eqsat.backends.onnx_file import to_model
from eqsat.backends.onnxruntime import Session
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.verification.feeds import random_feeds

ROUNDS = 30
Value = str
Body = Callable[[GraphBuilder, Value], Value]


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _mean(b: GraphBuilder, x: Value, axis: int) -> Value:
    return b.op("ReduceMean", x, b.constant([axis], "int64"), keepdims=1)


def _channel_norm(b: GraphBuilder, x: Value) -> Value:
    """As NAFNet and SAM spell it."""
    distances = b.op("Sub", x, _mean(b, x, 1))
    squares = _mean(b, b.op("Pow", distances, b.constant(np.float32(2))), 1)
    root = b.op("Sqrt", b.op("Add", squares, b.constant(np.float32(1e-6))))
    scaled = b.op("Mul", b.op("Div", distances, root), b.constant(_numbers(64, 1, 1)))
    return b.op("Add", scaled, b.constant(_numbers(64, 1, 1)))


def _position_norm(b: GraphBuilder, x: Value) -> Value:
    """As tf2onnx writes TensorFlow's moments over heights and widths, with what TensorFlow folds into one factor."""
    mean = b.op("GlobalAveragePool", x)
    distances = b.op("Sub", x, mean)
    root = b.op(
        "Sqrt", b.op("Add", b.op("GlobalAveragePool", b.op("Mul", distances, distances)), b.constant(np.float32(1e-5)))
    )
    factor = b.op("Mul", b.op("Reciprocal", root), b.constant(_numbers(64, 1, 1)))
    return b.op("Add", b.op("Mul", x, factor), b.op("Sub", b.constant(_numbers(64, 1, 1)), b.op("Mul", mean, factor)))


def _power(b: GraphBuilder, x: Value) -> Value:
    """As PyTorch spells the power of local response normalisation, of what is not negative."""
    return b.op("Pow", b.op("Abs", x), b.constant(np.float32(0.75)))


def _leaky(b: GraphBuilder, x: Value) -> Value:
    """As JAX spells it."""
    positive = b.op("GreaterOrEqual", x, b.constant(np.float32(0)))
    return b.op("Where", positive, x, b.op("Mul", x, b.constant(np.float32(0.2))))


def _sampled(b: GraphBuilder, x: Value) -> Value:
    """At places beyond the border, too, as images are warped by flow."""
    places = b.op("Transpose", b.op("Slice", x, *(b.constant([n]) for n in (0, 2, 1))), perm=(0, 2, 3, 1))
    return b.op("GridSample", x, places, padding_mode="border")


def _between_convolutions(b: GraphBuilder, x: Value) -> Value:
    """As PyTorch resizes between the layers of a pyramid."""
    first, last = (b.constant(_numbers(64, 64, 1, 1)) for _ in range(2))
    how: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}
    return b.op("Conv", b.op("Resize", b.op("Conv", x, first), None, b.constant(_TWICE), **how), last)


_TWICE = np.array([1, 1, 2, 2], np.float32)


def _op(key: str, *constants: np.ndarray | None, **attributes: Any) -> Body:
    return lambda b, x: b.op(key, x, *(None if c is None else b.constant(c) for c in constants), **attributes)


CASES: dict[str, tuple[tuple[int, ...], Body]] = {
    "norm over 64 channels of 64 x 64": ((1, 64, 64, 64), _channel_norm),
    "norm of each of 64 channels of 64 x 64": ((1, 64, 64, 64), _position_norm),
    "mean over 64 channels of 32 x 32": ((1, 64, 32, 32), lambda b, x: _mean(b, x, 1)),
    "mean over 197 tokens of 768": ((1, 197, 768), lambda b, x: _mean(b, x, 1)),
    "length of 1024 vectors of 256": ((1024, 256), _op("ReduceL2", np.array([-1]), keepdims=1)),
    "Softmax over 21 classes of 128 x 128": ((1, 21, 128, 128), _op("Softmax", axis=1)),
    "Mish of 64 x 64 x 64": ((1, 64, 64, 64), _op("Mish")),
    "Elu of 64 x 64 x 64": ((1, 64, 64, 64), _op("Elu")),
    "PRelu of 64 x 64 x 64": ((1, 64, 64, 64), _op("PRelu", _numbers(64, 1, 1) / 8)),
    "Conv, 31 weights for each of 256 channels, 1000 places": (
        (1, 256, 1000), _op("Conv", _numbers(256, 1, 31), group=256, pads=(15, 15)),
    ),
    "Conv, 4 weights for each of 2048 channels, 4 places": (
        (1, 2048, 4), _op("Conv", _numbers(2048, 1, 4), group=2048, pads=(3, 0)),
    ),
    "AveragePool of 25 of 4096 places, 64 channels": ((1, 64, 4096), _op("AveragePool", kernel_shape=(25,), pads=(12, 12))),
    "MaxPool of 3 of 4096 places, 64 channels": ((1, 64, 4096), _op("MaxPool", kernel_shape=(3,), pads=(1, 1))),
    "local response norm, 5 of 64 channels of 56 x 56": ((1, 64, 56, 56), _op("LRN", size=5)),
    "power 3/4 of 64 x 64 x 64": ((1, 64, 64, 64), _power),
    "choice between x and x / 5 of 64 x 64 x 64": ((1, 64, 64, 64), _leaky),
    "nearest element by centres, 64 x 64 x 64, twice": ((1, 64, 64, 64), _op("Resize", None, _TWICE)),
    "nearest element, volumes 32 x 8 x 16 x 16, twice": ((1, 32, 8, 16, 16), _op("Resize", None, np.append(_TWICE, _TWICE[-1:]))),
    "linear, volumes 32 x 8 x 16 x 16, twice": (
        (1, 32, 8, 16, 16), _op("Resize", None, np.append(_TWICE, _TWICE[-1:]), mode="linear"),
    ),
    "linear, 64 x 32 x 32, twice, between convolutions": ((1, 64, 32, 32), _between_convolutions),
    "cubic, 3 x 64 x 64 to 256 x 256": ((1, 3, 64, 64), _op("Resize", None, None, np.array([1, 3, 256, 256]), mode="cubic")),
    "GridSample, border, 64 x 64 x 64": ((1, 64, 64, 64), _sampled),
    "DepthToSpace of 64 x 64 x 64": ((1, 64, 64, 64), _op("DepthToSpace", blocksize=2, mode="CRD")),
    "largest of 64 channels of 64 x 64": ((1, 64, 64, 64), _op("ReduceMax", np.array([1]), keepdims=1)),
    "place of the largest of 21 classes of 128 x 128": ((1, 21, 128, 128), _op("ArgMax", axis=1)),
    "QuantizeLinear, 128 rows, a scale for each of 768 columns": (
        (128, 768), _op("QuantizeLinear", np.abs(_numbers(768)) + np.float32(0.1), np.zeros(768, np.int8)),
    ),
    "sum of 128 rows of 768 magnitudes": ((128, 768), _op("ReduceL1", np.array([-1]))),
    "logarithm of sums of exponentials, 128 rows of 768": ((128, 768), _op("ReduceLogSumExp", np.array([-1]))),
    "Conv 3 x 1 x 1, 64 channels of 8 x 28 x 28": (
        (1, 64, 8, 28, 28), _op("Conv", _numbers(64, 64, 3, 1, 1), pads=(1, 0, 0) * 2),
    ),
    "Conv 3 x 3 x 3, 32 channels of 8 x 28 x 28": ((1, 32, 8, 28, 28), _op("Conv", _numbers(32, 32, 3, 3, 3), pads=(1,) * 6)),
    "Conv 3 x 3 x 3 for each of 64 channels of 8 x 28 x 28": (
        (1, 64, 8, 28, 28), _op("Conv", _numbers(64, 1, 3, 3, 3), group=64, pads=(1,) * 6),
    ),
}  # fmt: skip


def graphs() -> Iterator[tuple[str, Graph]]:
    for name, (shape, body) in CASES.items():
        b = GraphBuilder()
        yield name, b.finish({"y": body(b, b.input("x", "float32", shape))})


def compare(graph: Graph, threads: int) -> tuple[float, float, float, tuple[str, ...]]:
    """Microseconds of the original and of the result, the error, and the operators of the result."""
    result = eqsat.optimize(graph)
    files = [to_model(graph), result.to_onnx()]
    sessions = [Session(file, level="all", threads=threads) for file in files]
    feeds = random_feeds(graph, 0)
    first, second = (session.run(feeds)["y"] for session in sessions)
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for session, found in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(feeds)
            found.append(time.perf_counter() - start)
    error = float(abs(first - second).max() / abs(first).max())
    return min(times[0]) * 1e6, min(times[1]) * 1e6, error, tuple(n.key for n in result.program.graph.nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    threads = parser.parse_args().threads
    print("| what | original, us | ours, us | error | operators |\n|---|---|---|---|---|")
    for name, graph in graphs():
        original, ours, error, operators = compare(graph, threads)
        print(f"| {name} | {original:.0f} | {ours:.0f} | {error:.0e} | {', '.join(operators)} |")


if __name__ == "__main__":
    main()
