"""One program of a captured graph: exported, optimised, loaded, and called with tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, fx
from torch._guards import tracing

from eqsat.backends.consumer import newest_opset
from eqsat.backends.onnxruntime_kernels import without_kernels
from eqsat.backends.torch_tensors import to_array
from eqsat.dynamo.captured import Captured, KernelError, NodeError, UnsupportedError, origin, pairs
from eqsat.dynamo.export import export_captured
from eqsat.dynamo.extents import require
from eqsat.dynamo.running import in_onnxruntime, in_torch
from eqsat.dynamo.views import axes_in_memory
from eqsat.errors import EqsatError, ModelError, OptionError, choices
from eqsat.exactness import Exactness
from eqsat.frontends import load
from eqsat.frontends.torch_export import OperatorError, as_onnx
from eqsat.ir.graph import Graph
from eqsat.options import Options
from eqsat.pipeline import optimize
from eqsat.result import Result
from eqsat.verification.reference import tolerance
from eqsat.verification.values import of_integers

_PRIVATE = ("feeds", "keep", "dims", "assume", "example_inputs", "dynamic_shapes")
"""Options that name values or sizes of a model: nobody knows those of a captured graph."""

_OF_SESSIONS = ("runtime", "level", "threads")
"""Options of what runs programs."""

RUNTIMES = ("onnxruntime", "inductor", "eager", "fastest")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Settings:
    """How to optimise and what runs the program: one of `RUNTIMES`, by default ONNX Runtime on the CPU, else Inductor.
    ``fastest`` is the faster of the two, where sizes are fixed.

    ``level`` and ``threads`` are ONNX Runtime's; by default it uses as many threads as PyTorch. ``mode`` is that of
    ``torch.compile``.
    """

    options: Mapping[str, Any]
    runtime: str | None = None
    level: str = "all"
    threads: int | None = None
    mode: str = "default"

    @staticmethod
    def of(given: Mapping[str, Any], mode: str | None = None) -> Settings:
        """The settings in the ``options`` and ``mode`` of ``torch.compile``. Raises `OptionError` for one that does not exist."""
        given, mode = dict(given), mode or "default"
        if mode not in MODES:
            raise OptionError(f"mode {mode!r} does not exist; {choices(mode, MODES)}")
        known = [*_OF_SESSIONS, *(f.name for f in fields(Options) if f.name not in _PRIVATE)]
        for name in given:
            if name in _PRIVATE:
                raise OptionError(f"option {name!r} is none of the backend's: graphs and their inputs are PyTorch's")
            if name not in known:
                raise OptionError(f"option {name!r} does not exist; {choices(name, known)}")
        session = {k: given.pop(k) for k in _OF_SESSIONS if k in given}
        runtime = session.get("runtime")
        if runtime is not None and runtime not in RUNTIMES:
            raise OptionError(f"runtime {runtime!r} does not exist; {choices(str(runtime), RUNTIMES)}")
        if runtime not in (None, "onnxruntime", "fastest") and (other := {"level", "threads"} & session.keys()):
            raise OptionError(f"option {min(other)!r} is one of ONNX Runtime's, and the runtime is {runtime!r}")
        threads = session.get("threads")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise OptionError(f"threads is {threads!r}; it must be a number of threads, 1 or more")
        found = Settings(given, **session, mode=mode)
        Options.of(found.options_on("cpu"))
        return found

    def runtime_on(self, device: str) -> str:
        """What runs a program whose inputs are on a device."""
        default = "onnxruntime" if device == "cpu" else "inductor"
        return default if self.runtime in (None, "fastest") else self.runtime

    def each_on(self, device: str, *, symbolic: bool) -> list[Settings]:
        """These settings, with each of the runtimes that are tried. Inductor's programs are for single sizes."""
        several = self.runtime == "fastest" and device == "cpu" and not symbolic
        return [replace(self, runtime=r) for r in ("onnxruntime", "inductor")] if several else [self]

    def instead_on(self, device: str, *, symbolic: bool) -> Settings | None:
        """What is tried where ONNX Runtime, which nobody asked for, has no kernels for a graph: PyTorch's own."""
        if self.runtime is not None or device != "cpu":
            return None
        return replace(self, runtime="eager" if symbolic else "inductor")

    def options_on(self, device: str) -> dict[str, Any]:
        """Those of `eqsat.optimize`, with the form and target that suit the runtime where they are not given, and the newest
        opset where it is PyTorch: no file is written that anything else would have to read."""
        if self.runtime_on(device) == "onnxruntime":
            return {"form": "onnxruntime", **self.options}
        target = "inductor-cuda" if device.startswith("cuda") else "inductor-cpu"
        return {"form": "flat", "target": target, "opset": newest_opset(), **self.options}


OPSET_OF_ATTENTION = 23
"""What is exported for PyTorch's own runtimes: from this one on, torch's attention is one operator, its mask as it is."""


def compile_captured(
    captured: Captured, inputs: Sequence[Any], settings: Settings, *, symbolic: bool
) -> Callable[..., tuple[Any, ...]]:
    """A function like the captured graph, for the weights in ``inputs`` and their sizes or, ``symbolic``, for all sizes.

    It is verified against its export, on the tensors in ``inputs`` or, for all sizes, on random ones of several; and what it
    computes for ``inputs`` is compared with what PyTorch does. Raises `EqsatError` where that cannot be done.
    """
    weights = [inputs[i] for i in captured.weights]
    tensors: list[Tensor] = [inputs[i] for i in captured.tensors]
    numbers = {i: captured.number(inputs, i) for i in captured.loose}
    model = _exported(captured, (weights, tensors, numbers), settings, symbolic=symbolic)
    if not isinstance(model, onnx.ModelProto):
        raise UnsupportedError("its weights do not fit into a message of 2 GiB")
    if captured.device != "cpu" and settings.runtime == "onnxruntime":
        raise UnsupportedError(f"its inputs are on {captured.device}, and ONNX Runtime runs on the CPU here")
    if settings.runtime_on(captured.device) != "onnxruntime":
        return _optimised(captured, inputs, model, settings, symbolic=symbolic)
    if not _SPARSE_IN_KERNELS.isdisjoint(_element_types(model)):
        _check_kernels(model)
    try:
        return _optimised(captured, inputs, model, settings, symbolic=symbolic)
    except EqsatError:
        _check_kernels(model)
        raise


def _optimised(
    captured: Captured, inputs: Sequence[Any], model: onnx.ModelProto, settings: Settings, *, symbolic: bool
) -> Callable[..., tuple[Any, ...]]:
    tensors: list[Tensor] = [inputs[i] for i in captured.tensors]
    names = [v.name for v in model.graph.input]
    if (len(names), len(model.graph.output)) != (len(tensors), captured.results()):
        raise UnsupportedError("its export has other inputs or outputs")
    feeds = {name: to_array(pairs(tensor)) for name, tensor in zip(names, tensors, strict=True)}
    options: dict[str, Any] = {**settings.options_on(captured.device), "assume": _extents(model, feeds)}
    result = optimize(model, **options, feeds=None if symbolic else [feeds])
    if symbolic and result.report.verification.get("verdict") == "not run":
        result = optimize(model, **options, feeds=[feeds])
    run = _function(captured, result, settings, [*map(pairs, tensors)])
    if result.report.verification:
        with torch.no_grad():
            moved = cache(partial(_moved_by_rounding, result.original, feeds))
            given = captured.apart(inputs), captured.apart(inputs)
            expected, found = captured.module(*given[0]), run(*given[1])
            exact = [*map(of_integers(result.original).__contains__, result.original.outputs)]
            _compare(captured, captured.values(expected, given[0]), captured.values(found, given[1]), moved, exact)
    return run if captured.returned is None else lambda *given: run(*given)[: captured.returned]


def _extents(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Those that symbols of a model's inputs have in this call, the best guess at those of the next."""
    axes = (
        pair for v in model.graph.input for pair in zip(v.type.tensor_type.shape.dim, feeds[v.name].shape, strict=False)
    )
    return {d.dim_param: n for d, n in axes if d.dim_param.isidentifier() and n}


_SPARSE_IN_KERNELS = {onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE}
"""Element types that ONNX Runtime has many operators without a kernel for. Of integers it has few."""


def _element_types(model: onnx.ModelProto) -> set[int]:
    graph = model.graph
    return {v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}


def _check_kernels(model: onnx.ModelProto) -> None:
    """Raises `KernelError` for what cannot run."""
    if missing := without_kernels(load(model)):
        raise KernelError(f"ONNX Runtime has no kernels on the CPU for {'; '.join(missing[:3])}")


def _exported(captured: Captured, inputs: tuple[Any, Any, Any], settings: Settings, *, symbolic: bool) -> Any:
    """The graph as an ONNX model. Torch cannot export every attention as an operator, not that of heads that share one key; of
    these, and in ONNX Runtime, a query that sees nothing has to be told from others. Raises `NodeError` where one of its nodes is
    in the way."""
    export = partial(export_captured, captured, *inputs, symbolic=symbolic)
    with tracing(None):  # this is no part of what Dynamo traces
        in_pytorch = settings.runtime_on(captured.device) != "onnxruntime"
        program, model = export(unseen_is_zero=not in_pytorch), None
        if in_pytorch:
            with suppress(ModelError):
                model = as_onnx(program, opset=OPSET_OF_ATTENTION)
            program = program if model else export(unseen_is_zero=True)
        try:
            model = model or as_onnx(program)
        except OperatorError as error:
            raise NodeError(str(error), origin(error.node)) from error
        if symbolic:
            require(captured.symbols, program)
        return model


def _function(
    captured: Captured, result: Result, settings: Settings, tensors: Sequence[Tensor]
) -> Callable[..., tuple[Any, ...]]:
    graph = result.program.graph
    for node, name in zip(captured.computed, graph.outputs, strict=False):
        _check_type(node, str(graph.type_of(name)))
    runtime, written = settings.runtime_on(captured.device), captured.kept_places()
    if runtime == "onnxruntime":
        compute = in_onnxruntime(graph, written, settings.level, settings.threads)
    else:
        compute = in_torch(graph, written, captured.device, tensors if runtime == "inductor" else None, settings.mode)
    numbers = {node: i for i, node in enumerate(captured.module.graph.find_nodes(op="placeholder"))}
    rest = captured.rest()
    orders = {n: axes_in_memory(n) for n in captured.computed}
    moved = [(n, np.argsort(axes).tolist()) for n, axes in orders.items() if axes != sorted(axes)]
    complex_nodes = [n for n in captured.computed if n.meta["example_value"].is_complex()]

    def run(*inputs: Any) -> tuple[Any, ...]:
        found = compute([pairs(inputs[i]) for i in captured.tensors])
        known: dict[Any, Any] = dict(zip(captured.computed, found, strict=False))
        known.update((node, torch.view_as_complex(known[node].contiguous())) for node in complex_nodes)
        known.update((n, known[n].permute(axes)) for n, axes in moved)
        for i, value in zip(captured.written, found[len(captured.computed) :], strict=True):
            if value is not inputs[i]:
                inputs[i].copy_(value)
        if rest is not None:
            owners = (known[node].contiguous() for node in rest.owners)
            known.update(zip(rest.nodes, rest.module(*owners, *inputs), strict=True))
        return tuple(
            value if not isinstance(value, fx.Node) else inputs[numbers[value]] if value in numbers else known[value]
            for value in captured.outputs
        )

    return run


def _check_type(node: fx.Node, found: str) -> None:
    """Raises `UnsupportedError` where an output would have another element type than in PyTorch."""
    expected = str(pairs(node.meta["example_value"]).dtype).removeprefix("torch.")
    if found.partition("[")[0] != expected:
        raise UnsupportedError(f"its output {node.name} would be {found} instead of {expected}")


_FAR = {1: 0.25, 2: 0.05, 4: 1e-3, 8: 1e-3}
"""Bytes of a float -> difference from PyTorch, as a part of the largest element, that no rounding explains where nothing is
quantised."""

_FARTHEST = 0.1
"""The same of anything."""


def _far(value: Tensor) -> float:
    """The entry of `_FAR`; for floats that may be computed in TF32, which has the bits of float16, its."""
    rounded = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    short = value.is_cuda and rounded and value.dtype is torch.float32
    return _FAR[2 if short else value.element_size()]


def _moved_by_rounding(graph: Graph, feeds: Mapping[str, np.ndarray]) -> list[float]:
    """How far roundings move each output of an export."""
    found = tolerance(graph, feeds, Exactness.ROUNDING)
    return [found[name] for name in graph.outputs]


def _compare(
    captured: Captured,
    expected: Sequence[Any],
    found: Sequence[Any],
    moved: Callable[[], Sequence[float]],
    exact: Sequence[bool],
) -> None:
    """Raises `UnsupportedError` where floats differ by more than `_FAR` and than roundings move them, as where a quantised value
    lies between two integers: an error of the export, or of the runtime's rewrites. ``moved`` says how far that is. ``exact``:
    which outputs no rounding moves."""
    computed: Any = zip(captured.names(), map(pairs, expected), map(pairs, found), strict=True)
    for number, (name, a, b) in enumerate(computed):
        if a.shape != b.shape:
            raise UnsupportedError(f"its output {name} is of shape {tuple(b.shape)} instead of {tuple(a.shape)}")
        if a.dtype is not b.dtype:
            raise UnsupportedError(f"its output {name} is {b.dtype} instead of {a.dtype}")
        if exact[number] and not torch.equal(a, b):
            raise UnsupportedError(
                f"its output {name} differs from PyTorch's in {int((a != b).sum())} of {a.numel()} elements"
            )
        finite = torch.isfinite(a)
        if not a.is_floating_point() or not finite.any():
            continue
        scale = max(float(a[finite].abs().max()), 1e-6, torch.finfo(a.dtype).tiny)
        worst = float((a.double() - b.double())[finite].abs().nan_to_num(torch.inf).max())
        near = worst <= _far(a) * scale or (worst <= _FARTHEST * scale and worst <= moved()[number])
        if not near:
            raise UnsupportedError(f"its output {name} differs from PyTorch's by {worst:.3g}, of {scale:.3g}")
