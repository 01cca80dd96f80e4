"""What Dynamo hands to a backend, sorted: weights, tensors and sizes that come in; tensors and the rest that go out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import SymInt, Tensor, fx
from torch._guards import tracing
from torch._subclasses import FakeTensorMode

from eqsat.errors import EqsatError, OptionError


class UnsupportedError(EqsatError):
    """A graph that has to run in PyTorch as it is; the message says why."""


@dataclass(frozen=True)
class Captured:
    """A graph of Dynamo's.

    Numbers of inputs: ``weights`` of modules, ``tensors`` that differ from call to call, ``integers``; ``written``: those of the
    tensors that the graph writes to, as to a cache of keys and values. ``sizes``: for each integer that is an extent of a tensor
    the position of that tensor in ``tensors`` and the axis; the others are ``loose``, and those of them that a tensor depends on
    ``fixed``.
    ``symbols``: for each tensor in ``tensors`` its symbolic extents by axis. ``outputs``: as the graph returns them;
    ``computed``: those that are tensors it computes, each once, but for views of inputs or of one another; ``owners``: of what
    each of these is a view. ``device``: where all its tensors are.
    """

    module: fx.GraphModule
    weights: tuple[int, ...]
    tensors: tuple[int, ...]
    sizes: dict[int, tuple[int, int]]
    loose: tuple[int, ...]
    fixed: tuple[int, ...]
    symbols: tuple[dict[int, SymInt], ...]
    outputs: tuple[Any, ...]
    computed: tuple[fx.Node, ...]
    owners: tuple[fx.Node, ...] = ()
    device: str = "cpu"
    written: tuple[int, ...] = ()

    def with_inputs(self, numbers: Sequence[int]) -> Captured:
        """With some of its weights among the tensors that differ from call to call."""
        weights = tuple(i for i in self.weights if i not in numbers)
        return replace(
            self, weights=weights, tensors=(*self.tensors, *numbers), symbols=(*self.symbols, *({} for _ in numbers))
        )

    def results(self) -> int:
        """How many tensors a program returns: those that the graph computes, then what becomes of those it writes to."""
        return len(self.computed) + len(self.written)

    def kept_places(self) -> dict[int, int]:
        """Number of a tensor that a program returns -> in ``tensors``, of the one that the graph writes it to."""
        return {len(self.computed) + k: self.tensors.index(i) for k, i in enumerate(self.written)}

    def names(self) -> list[str]:
        """Those of the tensors that a program returns."""
        placeholders = [n for n in self.module.graph.nodes if n.op == "placeholder"]
        return [n.name for n in (*self.computed, *(placeholders[i] for i in self.written))]

    def values(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Tensor]:
        """What a program returns, of a graph that returned ``outputs`` and has written to ``inputs``."""
        return [*(outputs[self.outputs.index(n)] for n in self.computed), *(inputs[i] for i in self.written)]

    def apart(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, with copies of those that the graph writes to."""
        return [x.clone() if i in self.written else x for i, x in enumerate(inputs)]

    def overlaps(self, inputs: Sequence[Any]) -> bool:
        """Whether a tensor that the graph writes to lies in the memory of another, weights left out."""
        if not self.written:
            return False
        places = Counter(inputs[i].untyped_storage().data_ptr() for i in self.tensors if inputs[i].numel())
        return any(places[inputs[i].untyped_storage().data_ptr()] > 1 for i in self.written)

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
    written = _written(module, examples)
    weights, tensors, integers = list[int](), list[int](), list[int]()
    for i, example in enumerate(examples):
        if isinstance(example, Tensor):
            _check_tensor(placeholders[i].name, example)
            fixed = i not in written and _is_weight(example, held=i >= len(examples) - held)
            (weights if fixed else tensors).append(i)
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
    changed = [placeholders[i] for i in written]
    returned = next(n for n in module.graph.nodes if n.op == "output").args[0]
    outputs = tuple(next((x for x in changed if _is_same(n, x)), n) for n in returned)
    views = _views([*placeholders, *(n for n in module.graph.nodes if n in outputs and _is_computed(n))])
    computed = tuple(dict.fromkeys(n for n in outputs if isinstance(n, fx.Node) and _is_computed(n) and n not in views))
    if not computed and not written:
        raise UnsupportedError("it computes no tensor" + (" but views of its inputs" if views else ""))
    loose = tuple(i for i in integers if i not in sizes)
    return Captured(
        module,
        tuple(weights),
        tuple(tensors),
        sizes,
        loose,
        tuple(i for i in loose if _tensors_depend_on(placeholders[i])),
        symbols,
        outputs,
        computed,
        tuple(views.values()),
        devices[0],
        written,
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


def _written(module: fx.GraphModule, examples: Sequence[Any]) -> tuple[int, ...]:
    """Numbers of the inputs that the graph writes to: those whose versions change when it runs on tensors without data.

    A graph that cannot run so is taken for one that writes to none, and refused when it is exported, if it does.
    """
    with suppress(Exception), tracing(None), torch.inference_mode(False), torch.no_grad(), FakeTensorMode():
        inputs = [
            torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device) if isinstance(e, Tensor) else e
            for e in (e.node.hint if isinstance(e, SymInt) else e for e in examples)
        ]
        module(*inputs)
        return tuple(i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._version)
    return ()


def _tensors_depend_on(number: fx.Node) -> bool:
    """Whether an integer is more than counted on: as the length of a cache that is no tensor."""
    for user in number.users:
        if user.op != "output":
            counted = isinstance(user.meta.get("example_value"), int | SymInt)
            if not counted or _tensors_depend_on(user):
                return True
    return False


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


def _is_same(node: Any, owner: fx.Node) -> bool:
    """Whether an output is an input under another name, as what a function returns that writes to it."""
    a, b = (n.meta.get("example_value") if isinstance(n, fx.Node) else None for n in (node, owner))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dtype is not b.dtype:
        return False
    places = [(x.untyped_storage()._cdata, x.storage_offset(), x.shape, x.stride()) for x in (a, b)]
    return places[0] == places[1]


def _is_view(node: fx.Node, owner: fx.Node) -> bool:
    while node is not owner:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if not node.op.startswith("call") or name not in VIEWS or not isinstance(node.args[0], fx.Node):
            return False
        node = node.args[0]
    return True
