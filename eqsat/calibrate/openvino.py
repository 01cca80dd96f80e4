"""Timing kernels in OpenVINO, by what its profiler says of each node.

The copies of a kernel (`eqsat.calibrate.copies`) stand side by side, for OpenVINO makes one kernel of a chain; each writes an
output of the model. What counts is the sum over all nodes, over the number of copies, without those that bring operands into the
layout of a kernel: in a network the kernels around it have that layout. Of each node the least of the repeats counts: whatever
else the machine does only adds time, and products with two threads wait for both. OpenVINO's profiler counts microseconds.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from eqsat.backends.openvino import OpenVino
from eqsat.calibrate.case import Case
from eqsat.calibrate.copies import build, turns_of, weight_bytes
from eqsat.calibrate.timer import Repeats
from eqsat.cost.timings import Timing
from eqsat.errors import ModelError
from eqsat.ir.types import type_of_array

_BESIDE = frozenset(("Input", "Output", "Parameter", "Result", "Const", "Constant", "Reorder"))
"""Types of nodes that are not the kernel."""

_LEAST_S = 5e-7
"""What a kernel takes that the profiler sees nothing of."""

_MOST_COPIES = 8
_LONGEST_RUN_S = 2e-2
_COLD_BYTES = 1e7
_PROBE = 2


def time_kernels(cases: Sequence[Case], how: Repeats) -> tuple[list[Timing], dict[str, str]]:
    """Timings of the kernels, and what OpenVINO said of those it cannot run, by `Case.name`."""
    timings: list[Timing] = []
    failures: dict[str, str] = {}
    for case in cases:
        try:
            timings.append(_timed(case, how))
        except ModelError as error:
            failures[case.name] = str(error)[:200]
    return timings, failures


def _timed(case: Case, how: Repeats) -> Timing:
    probe = _Copies(case, _PROBE, how.threads)
    each = probe.seconds([probe.run() for _ in range(3)])
    own = weight_bytes(case)
    copies = max(turns_of(case), int(_COLD_BYTES / own)) if own else turns_of(case)
    loaded = _Copies(case, max(min(copies, _MOST_COPIES, int(_LONGEST_RUN_S / each)), 1), how.threads)
    loaded.run()
    runs = [loaded.run() for _ in range(how.repeats)]
    seconds = loaded.seconds(runs)
    half = loaded.seconds(runs[::2])
    types = tuple(type_of_array(a) for a in loaded.results)
    return Timing(case.key, case.attributes, case.types, types, seconds, half / seconds - 1.0)


class _Copies:
    """A model with some copies of a kernel, loaded."""

    def __init__(self, case: Case, copies: int, threads: int) -> None:
        model = build(case, copies)
        self._count, self._outputs = copies, case.outputs
        message = _whole(model.proto, model.weights, [f"y{j}_{k}" for k in range(copies) for j in range(case.outputs)])
        self._loaded = OpenVino(message, threads, profile=True).feed(model.feeds)

    def run(self) -> dict[tuple[str, str], float]:
        """What each node took."""
        self._loaded.run()
        return self._loaded.node_seconds()

    def seconds(self, runs: Sequence[Mapping[tuple[str, str], float]]) -> float:
        """What one copy takes in some runs."""
        nodes = [node for node in runs[0] if node[1] not in _BESIDE]
        return max(sum(min(run[node] for run in runs) for node in nodes) / self._count, _LEAST_S)

    @property
    def results(self) -> list[np.ndarray]:
        """The outputs of one copy."""
        found = self._loaded.outputs()
        return [found[f"y{j}_0"] for j in range(self._outputs)]


def _whole(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], outputs: Sequence[str]) -> bytes:
    """The model with its weights in it, and all results as outputs."""
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    for constant in proto.graph.initializer:
        if constant.name in weights:
            constant.CopyFrom(numpy_helper.from_array(weights[constant.name], constant.name))
    try:
        return onnx.shape_inference.infer_shapes(proto).SerializeToString()
    except ValueError as error:  # above 2 GiB
        raise ModelError(f"OpenVINO: {error}") from None
