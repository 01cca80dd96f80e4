"""One program of a captured graph: exported, optimised, loaded, and called with tensors."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import fx
from torch._guards import tracing

from eqsat.backends.calling import load_graph
from eqsat.backends.torch_tensors import to_array, to_tensor
from eqsat.dynamo.captured import Captured, UnsupportedError
from eqsat.dynamo.export import export_captured
from eqsat.errors import OptionError
from eqsat.frontends.torch_export import as_onnx
from eqsat.options import Options
from eqsat.pipeline import Result, optimize

_PRIVATE = ("feeds", "keep", "dims", "example_inputs", "dynamic_shapes")
"""Options that name values or sizes of a model: nobody knows those of a captured graph."""


@dataclass(frozen=True)
class Settings:
    """How to optimise and how to run. ``threads``: by default as many as PyTorch uses."""

    options: Mapping[str, Any]
    level: str = "all"
    threads: int | None = None

    @staticmethod
    def of(given: Mapping[str, Any]) -> Settings:
        """The settings in the ``options`` of ``torch.compile``. Raises `OptionError` for one that does not exist."""
        given = {"form": "onnxruntime", **given}
        session = {k: given.pop(k) for k in ("level", "threads") if k in given}
        for name in _PRIVATE:
            if name in given:
                raise OptionError(f"option {name!r} is none of the backend's: graphs and their inputs are PyTorch's")
        Options.of(given)
        return Settings(given, **session)


def compile_captured(
    captured: Captured, inputs: Sequence[Any], settings: Settings, *, symbolic: bool
) -> Callable[..., tuple[Any, ...]]:
    """A function like the captured graph, for the weights in ``inputs`` and their sizes or, ``symbolic``, for all sizes.

    It is verified against its export, on the tensors in ``inputs`` or, for all sizes, on random ones of several; and what it
    computes for ``inputs`` is compared with what PyTorch does. Raises `EqsatError` where that cannot be done.
    """
    weights = [inputs[i] for i in captured.weights]
    tensors = [inputs[i] for i in captured.tensors]
    integers = {i: int(inputs[i]) for i in captured.loose}
    with tracing(None):  # this is no part of what Dynamo traces
        model = as_onnx(export_captured(captured, weights, tensors, integers, symbolic=symbolic))
    if not isinstance(model, onnx.ModelProto):
        raise UnsupportedError("its weights do not fit into a message of 2 GiB")
    names = [v.name for v in model.graph.input]
    if (len(names), len(model.graph.output)) != (len(tensors), len(captured.computed)):
        raise UnsupportedError("its export has other inputs or outputs")
    feeds = {name: to_array(tensor) for name, tensor in zip(names, tensors, strict=True)}
    result = optimize(model, **settings.options, feeds=None if symbolic else [feeds])
    if symbolic and result.report.verification.get("verdict") == "not run":
        result = optimize(model, **settings.options, feeds=[feeds])
    run = _function(captured, result, settings)
    if result.report.verification:
        with torch.no_grad():
            _compare(captured, captured.module(*inputs), run(*inputs))
    return run


def _function(captured: Captured, result: Result, settings: Settings) -> Callable[..., tuple[Any, ...]]:
    graph = result.program.graph
    session = load_graph(graph, settings.level, threads=settings.threads or torch.get_num_threads())
    numbers = {node: i for i, node in enumerate(n for n in captured.module.graph.nodes if n.op == "placeholder")}
    names = list(zip(captured.tensors, graph.inputs, strict=True))
    places = dict(zip(captured.computed, graph.outputs, strict=True))
    for node, name in places.items():
        _check_type(node, str(graph.type_of(name)))
    rest = captured.without_tensors()

    def run(*inputs: Any) -> tuple[Any, ...]:
        found = session.run({name: to_array(inputs[i]) for i, name in names}, graph.outputs)
        known: dict[Any, Any] = {node: to_tensor(found[name]) for node, name in places.items()}
        if rest is not None:
            known.update(zip(rest.nodes, rest.module(*inputs), strict=True))
        return tuple(
            value if not isinstance(value, fx.Node) else inputs[numbers[value]] if value in numbers else known[value]
            for value in captured.outputs
        )

    return run


def _check_type(node: fx.Node, found: str) -> None:
    """Raises `UnsupportedError` where an output would have another element type than in PyTorch."""
    expected = str(node.meta["example_value"].dtype).removeprefix("torch.")
    if found.partition("[")[0] != expected:
        raise UnsupportedError(f"its output {node.name} would be {found} instead of {expected}")


_FAR = {1: 0.25, 2: 0.05, 4: 1e-3, 8: 1e-3}
"""Bytes of a float -> difference from PyTorch, as a part of the largest element, that no rounding explains."""


def _compare(captured: Captured, expected: Sequence[Any], found: Sequence[Any]) -> None:
    """Raises `UnsupportedError` where floats differ by more than `_FAR`: an error of the export, or of the runtime's rewrites."""
    for node in captured.computed:
        place = captured.outputs.index(node)
        a, b = expected[place], found[place]
        if a.shape != b.shape:
            raise UnsupportedError(f"its output {node.name} is of shape {tuple(b.shape)} instead of {tuple(a.shape)}")
        finite = torch.isfinite(a)
        if not a.is_floating_point() or not finite.any():
            continue
        scale = float(a[finite].abs().max())
        worst = float((a.double() - b.double())[finite].abs().nan_to_num(torch.inf).max())
        if worst > _FAR[a.element_size()] * max(scale, 1e-6):
            raise UnsupportedError(f"its output {node.name} differs from PyTorch's by {worst:.3g}, of {scale:.3g}")
