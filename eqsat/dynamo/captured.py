"""What Dynamo hands to a backend, sorted: weights, tensors and sizes that come in; tensors and the rest that go out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Container, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import SymInt, Tensor, fx

from eqsat.dynamo.extents import tensors_depend_on
from eqsat.dynamo.views import (
    UnsupportedError,
    empty,
    is_computed,
    is_same,
    places_of,
    viewed,
    views_among,
    without_data,
)
from eqsat.errors import OptionError
from eqsat.ir.order import reached


class KernelError(UnsupportedError):
    """A graph that ONNX Runtime has no kernels for."""


class NodeError(UnsupportedError):
    """A graph that has to run in PyTorch because of one of its nodes, named ``node``."""

    def __init__(self, message: str, node: str) -> None:
        super().__init__(message)
        self.node = node


class Number(float):
    """A float as graphs of Dynamo's read one, off a tensor."""

    def item(self) -> float:
        return float(self)


def origin(node: fx.Node) -> str:
    """Name of the node that one of an exported program was made of, in the graph that was exported."""
    name, sources = "", node.meta.get("from_node")
    while sources:
        name, sources = sources[-1].name, sources[-1].from_node
    return name


def pairs(value: Tensor) -> Tensor:
    """Complex numbers as pairs of real ones along one more axis, which is how ONNX has them; any other tensor as it is."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


@dataclass(frozen=True)
class Captured:
    """A graph of Dynamo's.

    Numbers of inputs: ``weights`` of modules, ``tensors`` that differ from call to call, ``integers``; ``written``: those of the
    tensors that the graph writes to, as to a cache of keys and values. ``sizes``: for each integer that is an extent of a tensor
    the position of that tensor in ``tensors`` and the axis; the others are ``loose``, and those of them that a tensor depends on
    ``fixed``. ``floats``: those of the tensors that are numbers of Python, which come in as tensors of the CPU, where the others
    are there, too; ``attributes``: those of them that a module holds.
    ``symbols``: for each tensor in ``tensors`` its symbolic extents by axis. ``outputs``: as the graph returns them;
    ``computed``: those that are tensors it computes, each once, but for views of inputs or of one another; ``owners``: of what
    each of these is a view; ``returned``: how many of the outputs are returned, the others being what some of those are views of.
    ``device``: where all its tensors are.
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
    floats: tuple[int, ...] = ()
    attributes: tuple[int, ...] = ()
    returned: int | None = None

    def in_pytorch(self, *inputs: Any) -> Any:
        """What Dynamo's graph returns, computed by PyTorch."""
        return self.module(*inputs)[: self.returned]

    def with_floats_fixed(self, floats: Sequence[int]) -> Captured:
        """With each value of a number that comes in as a tensor for a program of its own, as functions need it that take none."""
        kept = [k for k, i in enumerate(self.tensors) if i not in floats]
        return replace(
            self,
            tensors=tuple(self.tensors[k] for k in kept),
            symbols=tuple(self.symbols[k] for k in kept),
            sizes={i: (kept.index(k), axis) for i, (k, axis) in self.sizes.items()},
            loose=(*self.loose, *floats),
            fixed=(*self.fixed, *floats),
            floats=tuple(i for i in self.floats if i not in floats),
            attributes=(),
        )

    def with_inputs(self, numbers: Sequence[int]) -> Captured:
        """With some of its weights among the tensors that differ from call to call."""
        weights = tuple(i for i in self.weights if i not in numbers)
        return replace(
            self, weights=weights, tensors=(*self.tensors, *numbers), symbols=(*self.symbols, *({} for _ in numbers))
        )

    def number(self, inputs: Sequence[Any], i: int) -> float:
        """An input that is a number, or stands for one."""
        return inputs[i].item() if isinstance(inputs[i], Tensor) else int(inputs[i])

    def results(self) -> int:
        """How many tensors a program returns: those that the graph computes, then what becomes of those it writes to."""
        return len(self.computed) + len(self.written)

    def kept_places(self) -> dict[int, int]:
        """Number of a tensor that a program returns -> in ``tensors``, of the one that the graph writes it to."""
        return {len(self.computed) + k: self.tensors.index(i) for k, i in enumerate(self.written)}

    def names(self) -> list[str]:
        """Those of the tensors that a program returns."""
        placeholders = self.module.graph.find_nodes(op="placeholder")
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
        # What the graph writes, it has written: a view is one of what has become of its owner.
        same = {n: o for n in self.module.graph.nodes for o in self.owners if is_same(n, o)}
        needed = _behind(wanted, same)
        graph = fx.Graph()
        copies = {n: graph.placeholder(f"owner_{n.name}") for n in owners}
        for node in self.module.graph.nodes:
            if node in same and node.op != "placeholder":
                copies[node] = copies[same[node]]
            elif node in needed or node.op == "placeholder":
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[n] for n in wanted))
        return Rest(tuple(wanted), owners, fx.GraphModule(self.module, graph))


def _behind(wanted: Sequence[fx.Node], given: Container[fx.Node]) -> set[fx.Node]:
    """What has to be computed for ``wanted``, these included, where ``given`` are known."""

    def unknown(nodes: Sequence[fx.Node]) -> list[fx.Node]:
        return [n for n in nodes if n not in given]

    return reached(unknown(wanted), lambda node: unknown(node.all_input_nodes))


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


def read_captured(module: fx.GraphModule, examples: Sequence[Any], held: int) -> Captured:
    """Sorts the inputs and outputs of a captured graph, the last ``held`` of whose inputs are tensors that it held itself.

    Raises `UnsupportedError` for one whose inputs an optimised program cannot take or whose outputs share memory with other
    values and are no plain views of them.
    """
    output = module.graph.output_node()
    count = len(output.args[0])
    wanted = viewed([n for n in output.args[0] if isinstance(n, fx.Node)])
    if not wanted:
        return _sorted(module, examples, held)
    graph = fx.Graph()
    copies = dict[fx.Node, fx.Node]()
    returned = graph.graph_copy(module.graph, copies)
    graph.output((*returned, *(copies[n] for n in wanted)))  # type: ignore[misc]
    return replace(_sorted(fx.GraphModule(module, graph), examples, held), returned=count)


def _sorted(module: fx.GraphModule, examples: Sequence[Any], held: int) -> Captured:
    placeholders = module.graph.find_nodes(op="placeholder")
    given = zip(placeholders, examples, strict=True)
    devices = sorted({str(e.device) for n, e in given if isinstance(e, Tensor) and not _is_number(n, e)}) or ["cpu"]
    if len(devices) > 1:
        raise UnsupportedError(f"its inputs are on {' and '.join(devices)}")
    _warn_of_hidden_changes(examples)
    written = _written(module, examples)
    weights, tensors, integers, floats = list[int](), list[int](), list[int](), list[int]()
    for i, example in enumerate(examples):
        if _is_number(placeholders[i], example):
            if all(_is_known(n.meta.get("example_value")) for n in placeholders[i].users):
                integers.append(i)
            else:
                floats.append(i)
                tensors.append(i)
        elif isinstance(example, Tensor):
            _check_tensor(placeholders[i].name, example, written=i in written)
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
    returned = module.graph.output_node().args[0]
    first = [*(placeholders[i] for i in written), *(n for n in module.graph.nodes if n in returned and is_computed(n))]
    outputs = tuple(next((x for x in first if is_same(n, x)), n) for n in returned)
    shared = views_among([*placeholders, *(n for n in module.graph.nodes if n in outputs and is_computed(n))])
    left = {*shared, *_arithmetic(outputs, {placeholders[i] for i in (*integers, *floats)})}
    computed = tuple(dict.fromkeys(n for n in outputs if isinstance(n, fx.Node) and is_computed(n) and n not in left))
    if not computed and not written:
        raise UnsupportedError("it computes no tensor" + (" but views of its inputs" if shared else ""))
    loose = tuple(i for i in integers if i not in sizes)
    found = Captured(
        module,
        tuple(weights),
        tuple(tensors),
        sizes,
        loose,
        tuple(i for i in loose if tensors_depend_on(placeholders[i])),
        symbols,
        outputs,
        computed,
        tuple(shared.values()),
        devices[0],
        written,
        tuple(floats),
        tuple(i for i in floats if _is_attribute(placeholders[i])),
    )
    return found if found.device == "cpu" else found.with_floats_fixed(found.floats)  # they come in on the CPU


def _is_known(value: Any) -> bool:
    """Whether a number is the same in all calls that Dynamo's guards let through."""
    return isinstance(value, float) or (isinstance(value, torch.SymFloat) and bool(value.node.expr.is_number))


def _arithmetic(outputs: Sequence[Any], numbers: Container[fx.Node]) -> list[fx.Node]:
    """Floats that go out, as tensors, computed of ``numbers`` that come in alone: Python has all their digits."""
    floats = [n for n in outputs if isinstance(n, fx.Node) and n.target is torch.scalar_tensor]
    sources = ((n, reached([n], lambda n: n.all_input_nodes)) for n in floats)
    return [n for n, found in sources if all(x in numbers for x in found if x.op == "placeholder")]


def _is_attribute(placeholder: fx.Node) -> bool:
    """Whether an input is an attribute of something, as of a module, and no argument of a call."""
    source = getattr(placeholder.meta.get("grapharg"), "source", None)
    return getattr(source, "member", None) is not None


def _is_number(placeholder: fx.Node, value: Any) -> bool:
    """Whether a tensor is a float of Python, as Dynamo hands them to graphs for any value, or, if it guards it, for one."""
    read = {n.target for n in placeholder.users} == {"item"}
    return read and isinstance(value, Tensor) and value.dtype is torch.float64 and not value.ndim


def refuse_training(module: fx.GraphModule, examples: Sequence[Any]) -> None:
    """Raises `OptionError` for a graph that makes tensors to be differentiated: programs know of no gradients. Where it enables
    gradients by itself, it raises `UnsupportedError`: PyTorch runs it as it is."""
    placeholders = module.graph.find_nodes(op="placeholder")
    outputs = module.graph.output_node().args[0]
    given = {n for n, e in zip(placeholders, examples, strict=True) if isinstance(e, Tensor) and e.requires_grad}
    others = [n for n in (*placeholders, *outputs) if isinstance(n, fx.Node) and n not in given]
    memory = set[int]().union(*map(places_of, given))
    made = [n for n in others if _is_differentiated(n, memory)]
    if made and torch.is_grad_enabled():
        raise OptionError(
            f"backend 'eqsat' is for inference, and {made[0].name} requires gradients, as do {len(given)} inputs: call the model "
            "under torch.inference_mode() or torch.no_grad()"
        )
    if made:
        raise UnsupportedError(f"{made[0].name} is to be differentiated: gradients are enabled inside it")


def _is_differentiated(node: fx.Node, memory: Set[int]) -> bool:
    """Whether a value requires gradients by itself: views of what does do where none are recorded, too."""
    value = node.meta.get("example_value")
    if not isinstance(value, Tensor) or not value.requires_grad:
        return False
    return value.grad_fn is not None or memory.isdisjoint(places_of(node))


def _warn_of_hidden_changes(examples: Sequence[Any]) -> None:
    made = sum(isinstance(e, torch.nn.Parameter) and e.is_inference() for e in examples)
    if made:
        warnings.warn(
            f"eqsat: weights made under torch.inference_mode(), which do not tell when they change ({made}), are inputs of the "
            "program, which is optimised without knowing them: make or move the model outside of that mode",
            stacklevel=4,
        )


def _check_tensor(name: str, value: Tensor, *, written: bool) -> None:
    if value.layout is not torch.strided or value.is_quantized:
        raise UnsupportedError(f"its input {name} is no dense tensor, but {value.layout}")
    if value.is_complex() and written:
        raise UnsupportedError(f"it writes to its input {name} of type {value.dtype}, which ONNX has no operators for")


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
    with suppress(Exception), without_data():
        placeholders = module.graph.find_nodes(op="placeholder")
        inputs = [_without_data(n, e) for n, e in zip(placeholders, examples, strict=True)]
        module(*inputs)
        return tuple(i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x._version)
    return ()


def _without_data(placeholder: fx.Node, example: Any) -> Any:
    """An input whose elements nobody knows; numbers that a graph reads off tensors stay numbers."""
    if _is_number(placeholder, example):
        return Number(0.5)
    return empty(example)


def _symbols(value: Tensor) -> dict[int, SymInt]:
    """Those of its extents that are not known after all: Dynamo may have found one to be a number."""
    return {k: e for k, e in enumerate(value.shape) if isinstance(e, SymInt) and not e.node.expr.is_number}
