"""Timing kernels in ONNX Runtime, without what a run of a session costs by itself.

A kernel is timed in a model with many copies of it side by side, run with the runtime's own rewriting off, so that the nodes
are those that are priced. All copies read the same activations, which stay in the cache as they do between two kernels of a
network; every copy has weights of its own, together more than a cache holds, because a network reads each weight once a run.
Only the last copy's outputs are outputs of the model: the others' are freed at once, as in a network. The time of a call is
the time of a run less that of a model with one trivial node, over the number of copies. Weights are rearranged when the model is
loaded, as for users. The kernels of a batch take turns, in an order that rotates, and the median of the repeats counts: a
disturbance of some milliseconds hits one repeat of several kernels, not all repeats of one. Runs in which the operating system
took a processor away do not count, as long as there are others; where there are none, the shortest run does.

ONNX Runtime's profiler would give times node by node too, but in whole microseconds and with the cost of writing events in
them; a small kernel takes half a microsecond.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from eqsat.backends.onnx_weights import external_tensor
from eqsat.backends.onnxruntime import Bound, Session
from eqsat.calibrate.case import Case, Operand, data
from eqsat.cost.timings import Timing
from eqsat.errors import EqsatError
from eqsat.ir.constants import Constant
from eqsat.ir.graph import NO_ATTRIBUTES
from eqsat.ir.operator import OPSET, split_key
from eqsat.ir.types import DType, type_of_array

try:
    import resource
except ImportError:  # Windows
    resource = None

_OPSET = min(OPSET, 23)
_RUN_S = 2e-3
_MOST_COPIES = 192
_LONGEST_RUN_S = 2e-2
_COLD_BYTES = 36e6
_PROBE = 3


@dataclass(frozen=True, slots=True)
class Repeats:
    """How carefully to time: ``repeats`` runs of each kernel, ``threads`` of the runtime."""

    repeats: int = 11
    threads: int = 2


class Run(NamedTuple):
    """Seconds of a run, and whether the operating system took a processor away from it."""

    seconds: float
    disturbed: bool


def _preemptions() -> int:
    """How often this process, with all its threads, had to make way for others; 0 where the platform does not tell."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class _Copies:
    """A model with some copies of a kernel, loaded."""

    def __init__(self, case: Case, copies: int, threads: int) -> None:
        self.case, self.copies = case, copies
        model, feeds, weights = build(case, copies)
        session = Session(model, "disable", threads=threads, weights=weights, prepack=True)
        self.bound: Bound = session.bound(feeds)
        self.bound.run()

    def run(self) -> Run:
        """One run."""
        before = _preemptions()
        start = time.perf_counter()
        self.bound.run()
        seconds = time.perf_counter() - start
        return Run(seconds, _preemptions() > before)


def time_kernels(cases: Sequence[Case], how: Repeats) -> tuple[list[Timing], dict[str, str]]:
    """Timings of the kernels, which take turns, and what the runtime said of those it cannot run, by `Case.name`."""
    loaded: list[_Copies] = []
    failures: dict[str, str] = {}
    for case in cases:
        try:
            loaded.append(_sized(case, how.threads))
        except EqsatError as error:
            failures[case.name] = str(error)[:200]
    nothing = _Copies(_TRIVIAL, 1, how.threads)
    samples: list[list[Run]] = [[] for _ in loaded]
    overhead: list[float] = []
    for turn in range(how.repeats):
        overhead.append(nothing.run().seconds)
        for k in range(len(loaded)):
            index = (k + turn) % len(loaded)
            samples[index].append(loaded[index].run())
    base = statistics.median(overhead)
    return [_timing(copies, s, base) for copies, s in zip(loaded, samples, strict=True)], failures


def _timing(copies: _Copies, samples: Sequence[Run], base: float) -> Timing:
    case = copies.case
    middle, spread = summary(samples, base)
    results = tuple(type_of_array(a) for a in copies.bound.outputs().values())
    return Timing(case.key, case.attributes, case.types, results, middle / copies.copies, spread)


def summary(samples: Sequence[Run], base: float) -> tuple[float, float]:
    """Seconds above ``base`` that count, and half the distance of the quartiles over them."""
    all_runs = sorted(max(r.seconds - base, r.seconds * 1e-3) for r in samples)
    quiet = sorted(max(r.seconds - base, r.seconds * 1e-3) for r in samples if not r.disturbed)
    middle = statistics.median(quiet) if quiet else all_runs[0]
    used = quiet if len(quiet) > 2 else all_runs
    return middle, (used[(3 * len(used)) // 4] - used[len(used) // 4]) / (2 * middle)


def _sized(case: Case, threads: int) -> _Copies:
    """As many copies as make a run long beside the clock, and their weights larger than the caches."""
    probe = _Copies(case, _PROBE, threads)
    each = min(probe.run().seconds for _ in range(3)) / _PROBE
    own = sum(o.type.bytes or 0 for o in case.operands if o is not None and o.weight)
    cold = int(_COLD_BYTES / own) if own > 1024 else 0
    cold = min(cold, int(_LONGEST_RUN_S / each))
    copies = min(max(int(_RUN_S / each), cold, _PROBE), _MOST_COPIES)
    return probe if copies <= _PROBE else _Copies(case, copies, threads)


_TRIVIAL = Case("Identity", NO_ATTRIBUTES, (data("float32", 1),))


def build(case: Case, copies: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A model of ``copies`` kernels side by side, the values of its inputs, and arrays of its weights."""
    domain, op = split_key(case.key)
    random = np.random.default_rng(0)
    inputs: list[onnx.ValueInfoProto] = []
    constants: list[onnx.TensorProto] = []
    feeds: dict[str, np.ndarray] = {}
    weights: dict[str, np.ndarray] = {}
    names: list[list[str]] = [[] for _ in range(copies)]
    for i, operand in enumerate(case.operands):
        if operand is None:
            own = [""] * copies
        elif operand.weight:
            array = _draw(operand, random)
            own = [f"w{i}_{k}" for k in range(copies)]
            for name in own:
                weights[name] = array.copy()
                constants.append(external_tensor(name, Constant.of(weights[name]), "lent", 0))
        elif operand.value is not None:
            own = [f"c{i}"] * copies
            array = np.asarray(operand.value, operand.type.dtype.numpy)
            constants.append(numpy_helper.from_array(array, f"c{i}"))
        else:
            own = [f"x{i}"] * copies
            feeds[f"x{i}"] = _draw(operand, random)
            inputs.append(helper.make_tensor_value_info(f"x{i}", int(operand.type.dtype), operand.type.shape))
        for of_copy, name in zip(names, own, strict=True):
            of_copy.append(name)
    attributes: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in case.attributes.items()}
    nodes = [
        helper.make_node(op, read, [f"y{j}_{k}" for j in range(case.outputs)], f"copy{k}", domain=domain, **attributes)
        for k, read in enumerate(names)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in nodes[-1].output]
    graph = helper.make_graph(nodes, "timing", inputs, outputs, constants)
    imports = [helper.make_opsetid("", _OPSET), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds, weights


def _draw(operand: Operand, random: np.random.Generator) -> np.ndarray:
    type = operand.type
    dtype = type.dtype
    shape = tuple(d for d in type.shape or () if isinstance(d, int))
    if dtype is DType.BOOL:
        return random.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return (0.5 * random.standard_normal(shape, np.float32)).astype(dtype.numpy)
    information = np.iinfo(dtype.numpy)
    top = operand.limit if operand.limit is not None else min(information.max, 127) + 1
    low = 0 if operand.limit is not None else max(information.min, -128)
    return random.integers(low, top, shape).astype(dtype.numpy)
