"""What every kernel of a program takes in ONNX Runtime, beside what a cost model said it would.

The runtime's profiler describes a node's operands within the time it reports of it, which takes longer than a small kernel does.
What that comes to is measured, on nodes that do next to nothing, and taken off.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from eqsat.backends.onnxruntime import Session
from eqsat.cost.model import CostModel, work_of_node
from eqsat.cost.target import Target
from eqsat.errors import ModelError
from eqsat.ir.graph import Graph
from eqsat.ir.operator import OPSET

LEAST_S = 1e-5
"""Kernels below this are left out of relative errors: the runtime's profiler counts whole microseconds."""

_WARM_UP = 5
"""Runs before those that count: the first ones are slower."""

_NODES = 200
"""Nodes of the model by which the profiler itself is measured."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One node: predicted seconds (``None`` where the cost model was not asked: the node is in the file only) and measured
    ones, the median over runs less what the profiler takes."""

    key: str
    output: str
    predicted_s: float | None
    measured_s: float


@dataclass(frozen=True)
class Profile:
    """Kernels of a program in the order of the file, and the seconds that the profiler took for each, which are not in them."""

    kernels: tuple[KernelTime, ...]
    profiler_s: float = 0.0

    @property
    def predicted_s(self) -> float:
        return math.fsum(k.predicted_s or 0.0 for k in self.kernels)

    @property
    def measured_s(self) -> float:
        return math.fsum(k.measured_s for k in self.kernels)

    def relative_errors(self) -> list[tuple[str, float]]:
        """Operator and relative error of the prediction, below zero where it is too low, of each priced kernel of at least
        `LEAST_S`."""
        return [
            (k.key, (k.predicted_s - k.measured_s) / k.measured_s)
            for k in self.kernels
            if k.predicted_s is not None and k.measured_s >= LEAST_S
        ]

    @property
    def median_relative_error(self) -> float | None:
        """Without signs, over kernels of at least `LEAST_S`; ``None`` if there are none."""
        errors = [abs(error) for _, error in self.relative_errors()]
        return statistics.median(errors) if errors else None

    @property
    def unpriced(self) -> int:
        return len([k for k in self.kernels if k.predicted_s is None])

    def by_operator(self) -> list[tuple[str, int, float, float]]:
        """Operator, number of kernels, seconds predicted and measured; the dearest first."""
        found: dict[str, tuple[int, float, float]] = {}
        for k in self.kernels:
            count, predicted, measured = found.get(k.key, (0, 0.0, 0.0))
            found[k.key] = (count + 1, predicted + (k.predicted_s or 0.0), measured + k.measured_s)
        return sorted(((key, *row) for key, row in found.items()), key=lambda row: (-row[3], row[0]))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "predicted_s": self.predicted_s,
            "measured_s": self.measured_s,
            "median_relative_error": self.median_relative_error,
            "unpriced": self.unpriced,
            "profiler_s": self.profiler_s,
            "kernels": [asdict(k) for k in self.kernels],
        }

    def __str__(self) -> str:
        error = self.median_relative_error
        lines = [
            f"kernels: predicted {1e3 * self.predicted_s:.3f} ms, measured {1e3 * self.measured_s:.3f} ms; median relative "
            f"error {'-' if error is None else f'{100 * error:.0f} %'} over kernels of at least {1e6 * LEAST_S:.0f} us; "
            f"{1e6 * self.profiler_s:.1f} us of each are the profiler's and not counted",
            f"  {'operator':<44} {'count':>5} {'predicted ms':>13} {'measured ms':>12}",
        ]
        for key, count, predicted, measured in self.by_operator():
            lines.append(f"  {key:<44} {count:>5} {1e3 * predicted:>13.3f} {1e3 * measured:>12.3f}")
        return "\n".join(lines)


def profile_program(
    graph: Graph,
    path: Path,
    feeds: Mapping[str, np.ndarray],
    model: CostModel,
    target: Target,
    *,
    runs: int = 20,
    threads: int,
) -> Profile:
    """Runs the model file ``path``, written from ``graph``, as it is, with the runtime's profiler on.

    Nodes of the file are those of ``graph`` with the same outputs; both are priced as kernels of one operator.
    Raises `ModelError` when the model does not run.
    """
    proto = onnx.load(str(path), load_external_data=False)  # pyright: ignore[reportUnknownMemberType]
    for k, node in enumerate(proto.graph.node):
        node.name = f"node{k}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        session = Session(
            proto, "disable", threads=threads, prepack=True, folder=path.resolve().parent, profile=f"{folder}/profile"
        )
        for _ in range(_WARM_UP + runs):
            session.run(feeds)
        seconds = _seconds_by_node(session)
    if not seconds:
        raise ModelError(f"{path}: ONNX Runtime's profiler names no node")
    profiler_s = profiler_seconds(threads)
    own = {value: node for node in graph.nodes for value in node.outputs if value}
    kernels: list[KernelTime] = []
    for proto_node in proto.graph.node:
        samples = seconds.get(proto_node.name, [])[_WARM_UP:]
        if not samples:
            continue
        output = next((v for v in proto_node.output if v), "")
        node = own.get(output)
        price = None if node is None else model.kernel_cost(work_of_node(graph, node), target)
        key = f"{proto_node.domain}::{proto_node.op_type}" if proto_node.domain else proto_node.op_type
        kernels.append(KernelTime(key, output, price, max(statistics.median(samples) - profiler_s, 0.0)))
    return Profile(tuple(kernels), profiler_s)


def _seconds_by_node(session: Session) -> dict[str, list[float]]:
    """Node -> seconds of each run, of a session that profiles; it stops doing so."""
    events = json.loads(session.end_profile().read_text("utf-8"))
    seconds: dict[str, list[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            seconds.setdefault(name.removesuffix("_kernel_time"), []).append(1e-6 * float(event["dur"]))
    return seconds


def profiler_seconds(threads: int, runs: int = 20) -> float:
    """What the profiler adds to the time of a node: that of additions of two numbers with it, less that without it."""
    names = ["x", *(f"y{k}" for k in range(_NODES))]
    nodes = [helper.make_node("Add", [a, "x"], [b], b) for a, b in pairwise(names)]
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1])] for name in (names[0], names[-1])
    )
    opset = helper.make_opsetid("", min(OPSET, 23))
    model = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[opset], ir_version=10)
    feeds = {"x": np.zeros(1, np.float32)}
    without = Session(model, "disable", threads=threads).bound(feeds)
    alone: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        profiled = Session(model, "disable", threads=threads, profile=f"{folder}/profile")
        for _ in range(_WARM_UP + runs):
            profiled.run(feeds)
            start = time.perf_counter()
            without.run()
            alone.append((time.perf_counter() - start) / _NODES)
        found = _seconds_by_node(profiled)
    by_run = zip(*found.values(), strict=True)
    reported = [statistics.fmean(run) for run in by_run][_WARM_UP:]
    return max(statistics.median(reported) - statistics.median(alone[_WARM_UP:]), 0.0)
