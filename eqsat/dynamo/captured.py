"""What Dynamo hands to a backend, sorted: weights, tensors and sizes that come in; tensors and the rest that go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from eqsat.errors import EqsatError, OptionError


class UnsupportedError(EqsatError):
    """A graph that has to run in PyTorch as it is; the message says why."""


@dataclass(frozen=True)
class Captured:
    """A graph of Dynamo's.

    Numbers of inputs: ``weights`` of modules, ``tensors`` that differ from call to call, ``integers``. ``sizes``: for each
    integer that is an extent of a tensor the position of that tensor in ``tensors`` and the axis; the others are ``loose``.
    ``symbols``: for each tensor in ``tensors`` its symbolic extents by axis. ``outputs``: as the graph returns them;
    ``computed``: those that are tensors it computes, each once. ``device``: where all its tensors are.
    """

    module: fx.GraphModule
    weights: tuple[int, ...]
    tensors: tuple[int, ...]
    sizes: dict[int, tuple[int, int]]
    loose: tuple[int, ...]
    symbols: tuple[dict[int, SymInt], ...]
    outputs: tuple[Any, ...]
    computed: tuple[fx.Node, ...]
    device: str = "cpu"

    def without_tensors(self) -> Rest | None:
        """The graph as far as it computes outputs that are no tensors; ``None`` if none is."""
        wanted = [
            n for n in self.outputs if isinstance(n, fx.Node) and n.op != "placeholder" and n not in self.computed
        ]
        if not wanted:
            return None
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self.module.graph, copies)
        graph.output(tuple(copies[n] for n in wanted))
        graph.eliminate_dead_code()
        return Rest(tuple(wanted), fx.GraphModule(self.module, graph))


@dataclass(frozen=True)
class Rest:
    """What a graph computes beside tensors: sizes. ``module`` takes the graph's inputs and returns the values of ``nodes``."""

    nodes: tuple[fx.Node, ...]
    module: fx.GraphModule


def read_captured(module: fx.GraphModule, examples: Sequence[Any]) -> Captured:
    """Sorts the inputs and outputs of a captured graph.

    Raises `OptionError` for a graph to be trained, `UnsupportedError` for one whose inputs an optimised program cannot take
    or whose outputs share memory with other values.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    _refuse_training(placeholders, examples)
    devices = sorted({str(e.device) for e in examples if isinstance(e, Tensor)}) or ["cpu"]
    if len(devices) > 1:
        raise UnsupportedError(f"its inputs are on {' and '.join(devices)}")
    if torch.is_autocast_enabled(torch.device(devices[0]).type):
        raise UnsupportedError("autocast is on, which converts types as it runs; convert the model instead")
    weights, tensors, integers = list[int](), list[int](), list[int]()
    for i, example in enumerate(examples):
        if isinstance(example, Tensor):
            _check_tensor(placeholders[i].name, example)
            (weights if _is_weight(example) else tensors).append(i)
        elif isinstance(example, int | SymInt):
            integers.append(i)
        else:
            raise UnsupportedError(f"its input {placeholders[i].name} is a {type(example).__name__}")
    symbols = tuple(_symbols(placeholders[i].meta["example_value"]) for i in tensors)
    sizes: dict[int, tuple[int, int]] = {}
    for i in integers:
        value = placeholders[i].meta.get("example_value")
        if not isinstance(value, SymInt):
            continue
        for k, extents in enumerate(symbols):
            for axis, extent in extents.items():
                if extent.node.expr == value.node.expr:
                    sizes.setdefault(i, (k, axis))
    outputs = tuple(next(n for n in module.graph.nodes if n.op == "output").args[0])
    computed = tuple(dict.fromkeys(n for n in outputs if isinstance(n, fx.Node) and _is_computed(n)))
    if not computed:
        raise UnsupportedError("it computes no tensor")
    _refuse_shared_memory(placeholders, computed)
    loose = tuple(i for i in integers if i not in sizes)
    return Captured(module, tuple(weights), tuple(tensors), sizes, loose, symbols, outputs, computed, devices[0])


def _refuse_training(placeholders: Sequence[fx.Node], examples: Sequence[Any]) -> None:
    trained = [n.name for n, e in zip(placeholders, examples, strict=True) if isinstance(e, Tensor) and e.requires_grad]
    if trained and torch.is_grad_enabled():
        raise OptionError(
            f"backend 'eqsat' is for inference, and {len(trained)} inputs require gradients ({trained[0]}, ...): call the "
            "model under torch.inference_mode() or torch.no_grad()"
        )


def _check_tensor(name: str, value: Tensor) -> None:
    if value.layout is not torch.strided or value.is_quantized:
        raise UnsupportedError(f"its input {name} is no dense tensor, but {value.layout}")
    if value.dtype.is_complex:
        raise UnsupportedError(f"its input {name} is of type {value.dtype}, which ONNX has no operators for")


def _is_weight(value: Tensor) -> bool:
    """A parameter or a buffer of a module: Dynamo says so on the tensor, ``guarded`` being those that users marked."""
    if value.is_inference():  # has no version counter that would tell when it changes
        return False
    return isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) == "unguarded"


def _symbols(value: Tensor) -> dict[int, SymInt]:
    return {k: extent for k, extent in enumerate(value.shape) if isinstance(extent, SymInt)}


def _is_computed(node: fx.Node) -> bool:
    return node.op != "placeholder" and isinstance(node.meta.get("example_value"), Tensor)


def _refuse_shared_memory(placeholders: Sequence[fx.Node], computed: Sequence[fx.Node]) -> None:
    """Views of inputs, and views of one another, would be copies: whoever writes to one would not change the other."""
    owners: dict[int, str] = {}
    for node in (*placeholders, *computed):
        value = node.meta.get("example_value")
        if not isinstance(value, Tensor):
            continue
        storage = value.untyped_storage()._cdata
        if storage in owners and _is_computed(node):
            raise UnsupportedError(f"its output {node.name} shares memory with {owners[storage]}")
        owners.setdefault(storage, node.name)
