"""What Dynamo hands to a backend, sorted: weights, tensors and sizes that come in; tensors and the rest that go out."""

from __future__ import annotations

import warnings
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
    ``computed``: those that are tensors it computes, each once, but for views of inputs or of one another; ``owners``: of what
    each of these is a view. ``device``: where all its tensors are.
    """

    module: fx.GraphModule
    weights: tuple[int, ...]
    tensors: tuple[int, ...]
    sizes: dict[int, tuple[int, int]]
    loose: tuple[int, ...]
    symbols: tuple[dict[int, SymInt], ...]
    outputs: tuple[Any, ...]
    computed: tuple[fx.Node, ...]
    owners: tuple[fx.Node, ...] = ()
    device: str = "cpu"

    def rest(self) -> Rest | None:
        """The graph as far as it computes outputs that the program does not; ``None`` if it computes all."""
        wanted = [
            n for n in self.outputs if isinstance(n, fx.Node) and n.op != "placeholder" and n not in self.computed
        ]
        if not wanted:
            return None
        owners = tuple(dict.fromkeys(n for n in self.owners if n.op != "placeholder"))
        graph = fx.Graph()
        copies = {n: graph.placeholder(f"owner_{n.name}") for n in owners}
        graph.graph_copy(self.module.graph, copies)
        graph.output(tuple(copies[n] for n in wanted))
        graph.eliminate_dead_code()
        return Rest(tuple(wanted), owners, fx.GraphModule(self.module, graph))


@dataclass(frozen=True)
class Rest:
    """What a graph computes beside its program: sizes, and views of what goes in or out. ``module`` takes the values of
    ``owners``, which the program computes, and the graph's inputs, and returns the values of ``nodes``."""

    nodes: tuple[fx.Node, ...]
    owners: tuple[fx.Node, ...]
    module: fx.GraphModule


def with_tensors_as_inputs(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """The graph with the tensors that it holds as its last inputs, and these tensors.

    Weights are such tensors where Inductor's global configuration says ``freezing``.
    """
    held = dict.fromkeys(n.target for n in module.graph.nodes if n.op == "get_attr")
    tensors = {target: value for target in held if isinstance(value := getattr(module, target, None), Tensor)}
    if not tensors:
        return module, ()
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.find_nodes(op="placeholder"):
        copies[node] = graph.node_copy(node)
    inputs: dict[Any, fx.Node] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        if node.target in tensors:
            if node.target not in inputs:
                inputs[node.target] = graph.placeholder(node.name)
                inputs[node.target].meta = dict(node.meta)
            copies[node] = inputs[node.target]
    graph.output(graph.graph_copy(module.graph, copies))
    return fx.GraphModule(module, graph), tuple(tensors[target] for target in inputs)


def read_captured(module: fx.GraphModule, examples: Sequence[Any], held: int = 0) -> Captured:
    """Sorts the inputs and outputs of a captured graph, the last ``held`` of whose inputs are tensors that it held itself.

    Raises `OptionError` for a graph to be trained, `UnsupportedError` for one whose inputs an optimised program cannot take
    or whose outputs share memory with other values and are no plain views of them.
    """
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    _refuse_training(placeholders, examples)
    devices = sorted({str(e.device) for e in examples if isinstance(e, Tensor)}) or ["cpu"]
    if len(devices) > 1:
        raise UnsupportedError(f"its inputs are on {' and '.join(devices)}")
    if torch.is_autocast_enabled(torch.device(devices[0]).type):
        raise UnsupportedError("autocast is on, which converts types as it runs; convert the model instead")
    _warn_of_hidden_changes(examples)
    weights, tensors, integers = list[int](), list[int](), list[int]()
    for i, example in enumerate(examples):
        if isinstance(example, Tensor):
            _check_tensor(placeholders[i].name, example)
            (weights if _is_weight(example, held=i >= len(examples) - held) else tensors).append(i)
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
    views = _views([*placeholders, *(n for n in module.graph.nodes if n in outputs and _is_computed(n))])
    computed = tuple(dict.fromkeys(n for n in outputs if isinstance(n, fx.Node) and _is_computed(n) and n not in views))
    if not computed:
        raise UnsupportedError("it computes no tensor" + (" but views of its inputs" if views else ""))
    loose = tuple(i for i in integers if i not in sizes)
    return Captured(
        module,
        tuple(weights),
        tuple(tensors),
        sizes,
        loose,
        symbols,
        outputs,
        computed,
        tuple(views.values()),
        devices[0],
    )


def _refuse_training(placeholders: Sequence[fx.Node], examples: Sequence[Any]) -> None:
    trained = [n.name for n, e in zip(placeholders, examples, strict=True) if isinstance(e, Tensor) and e.requires_grad]
    if trained and torch.is_grad_enabled():
        raise OptionError(
            f"backend 'eqsat' is for inference, and {len(trained)} inputs require gradients ({trained[0]}, ...): call the "
            "model under torch.inference_mode() or torch.no_grad()"
        )


def _warn_of_hidden_changes(examples: Sequence[Any]) -> None:
    made = sum(isinstance(e, torch.nn.Parameter) and e.is_inference() for e in examples)
    if made:
        warnings.warn(
            f"eqsat: weights made under torch.inference_mode(), which do not tell when they change ({made}), are inputs of the "
            "program, which is optimised without knowing them: make or move the model outside of that mode",
            stacklevel=4,
        )


def _check_tensor(name: str, value: Tensor) -> None:
    if value.layout is not torch.strided or value.is_quantized:
        raise UnsupportedError(f"its input {name} is no dense tensor, but {value.layout}")
    if value.dtype.is_complex:
        raise UnsupportedError(f"its input {name} is of type {value.dtype}, which ONNX has no operators for")


def _is_weight(value: Tensor, *, held: bool) -> bool:
    """A parameter or a buffer of a module: Dynamo says so on the tensor, ``guarded`` being those that users marked."""
    if value.is_inference():  # has no version counter that would tell when it changes
        return False
    return (
        held
        or isinstance(value, torch.nn.Parameter)
        or getattr(value, "_dynamo_static_input_type", None) == "unguarded"
    )


def _symbols(value: Tensor) -> dict[int, SymInt]:
    return {k: extent for k, extent in enumerate(value.shape) if isinstance(extent, SymInt)}


def _is_computed(node: fx.Node) -> bool:
    return node.op != "placeholder" and isinstance(node.meta.get("example_value"), Tensor)


VIEWS = (
    {"chunk", "contiguous", "detach", "diagonal", "expand", "expand_as", "flatten", "getattr", "getitem", "movedim"}
    | {"narrow", "permute", "reshape", "select", "split", "squeeze", "swapaxes", "t", "to", "transpose", "unbind"}
    | {"unflatten", "unfold", "unsqueeze", "view", "view_as"}
)
"""Functions of torch that write nothing: what they return is a view of their first argument, or a tensor of its own."""


def _views(values: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """The values that share memory with one before them -> that one.

    As results of a program they would be copies, and whoever wrote to one would not change the other; so they are to be taken
    of the other. Raises `UnsupportedError` where they are not computed from it by `VIEWS` alone, or it does not lie in rows, as
    the results of programs do.
    """
    owners: dict[int, fx.Node] = {}
    views: dict[fx.Node, fx.Node] = {}
    for node in values:
        value = node.meta.get("example_value")
        if not isinstance(value, Tensor):
            continue
        owner = owners.setdefault(value.untyped_storage()._cdata, node)
        if owner is node or node.op == "placeholder":
            continue
        rows = owner.op == "placeholder" or owner.meta["example_value"].is_contiguous()
        if not rows or not _is_view(node, owner):
            raise UnsupportedError(f"its output {node.name} shares memory with {owner.name}")
        views[node] = owner
    return views


def _is_view(node: fx.Node, owner: fx.Node) -> bool:
    while node is not owner:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if not node.op.startswith("call") or name not in VIEWS or not isinstance(node.args[0], fx.Node):
            return False
        node = node.args[0]
    return True
