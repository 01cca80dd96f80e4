"""A node as its writer sees it, and the table of writers: what each operator is in torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import fx

from eqsat.ir import extents
from eqsat.ir.extent_arrays import dims_of
from eqsat.ir.graph import Graph, Node
from eqsat.ir.operator import default_attribute
from eqsat.ir.types import Dim, DType, TensorType

Value = fx.Proxy | int | float | bool
"""A tensor or an extent while the module is written, or a number that is known."""

SUPPORTED = frozenset(
    d
    for d in DType
    if d.name in ("BOOL", "UINT8", "DOUBLE", "BFLOAT16", "FLOAT", "FLOAT16") or (d.name[:3] == "INT" and d.bits >= 8)
)
"""Element types on which torch has its operators; of wider unsigned integers and floats of 8 bits it has hardly any."""


def torch_type(dtype: DType) -> torch.dtype:
    """The same element type in torch."""
    return getattr(torch, dtype.numpy.name)


@dataclass
class Scope:
    """The module that is being written: its graph, the tensors of values so far, and lists of extents that are known.

    ``root`` holds the constants as buffers. ``lists``: elements of values that are lists of extents (`eqsat.ir.shape_values`).
    """

    graph: Graph
    root: torch.nn.Module
    tracer: fx.proxy.GraphAppendingTracer
    values: dict[str, fx.Proxy] = field(default_factory=dict[str, fx.Proxy])
    lists: dict[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    producers: Mapping[str, Node] = field(default_factory=dict[str, Node])
    readers: Mapping[str, int] = field(default_factory=dict[str, int])
    _symbols: dict[str, Value] = field(default_factory=dict[str, Value])

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> fx.Proxy:
        """A call of ``function`` in the module, for functions that take no tensor, too."""
        return self.tracer.create_proxy("call_function", function, arguments, named)

    def buffer(self, array: np.ndarray, stem: str) -> fx.Proxy:
        """A constant of the module."""
        from eqsat.backends.torch_tensors import to_tensor

        name, count = stem, 0
        while hasattr(self.root, name):
            count += 1
            name = f"{stem}_{count}"
        self.root.register_buffer(name, to_tensor(np.array(array, order="C")))
        return self.tracer.create_proxy("get_attr", name, (), {})

    def device(self) -> Any:
        """Where the module's first input lives, or its first constant."""
        for name in self.graph.inputs:
            return self.call(getattr, self.values[name], "device")
        return next((self.call(getattr, v, "device") for v in self.values.values()), "cpu")

    def extent(self, dim: Dim) -> Value | None:
        """An extent, computed from those of the inputs; ``None`` where they do not tell."""
        if isinstance(dim, int):
            return dim
        if dim not in self._symbols:
            found = self._computed(dim)
            if found is None:
                return None
            self._symbols[dim] = found
        return self._symbols[dim]

    def _computed(self, dim: str) -> Value | None:
        for name in self.graph.inputs:
            shape = self.shape(name)
            if dim in shape:
                return self.values[name].size(shape.index(dim))
        total: Value | None = None
        for number, factors in extents.terms(dim):
            parts: list[Any] = [self._factor(factor) for factor in factors]
            if any(p is None for p in parts):
                return None
            term: Any = reduce(lambda a, b: a * b, parts) if parts else number
            term = number * term if parts and number != 1 else term
            total = term if total is None else total + term
        return total

    def _factor(self, factor: str) -> Value | None:
        called = extents.function_of(factor)
        if called is None:
            return self.extent(factor) if any(factor in self.shape(n) for n in self.graph.inputs) else None
        functions: dict[str, Any] = {"max": torch.sym_max, "min": torch.sym_min}
        function = functions.get(called[0])
        operands: list[Any] = [self.extent(d) for d in called[1]]
        if any(o is None for o in operands):
            return None
        if called[0] == "floordiv":
            first, second = operands
            return first // second
        return None if function is None else self.call(function, *operands)

    def shape(self, name: str) -> Sequence[Dim]:
        """Extents of a value, none where they are not known."""
        return getattr(self.graph.type_of(name), "shape", None) or ()


@dataclass
class Site:
    """One node. ``operands`` are its inputs as tensors, ``None`` where absent."""

    scope: Scope
    node: Node
    operands: list[Any]

    @property
    def result(self) -> TensorType:
        """Type of the first output that is used."""
        return self.output(next(i for i, name in enumerate(self.node.outputs) if name))

    def output(self, index: int) -> TensorType:
        found = self.scope.graph.type_of(self.node.outputs[index])
        assert isinstance(found, TensorType)
        return found

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the result."""
        return torch_type(self.result.dtype)

    def has(self, index: int) -> bool:
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Any:
        """An input as a tensor, ``None`` where it is absent."""
        return self.operands[index] if index < len(self.operands) else None

    def type(self, index: int) -> TensorType:
        """Type of an input. The writers are asked for tensors only."""
        found = self.scope.graph.type_of(self.node.inputs[index])
        assert isinstance(found, TensorType)
        return found

    def rank(self, index: int = 0) -> int:
        found = self.type(index).rank
        assert found is not None
        return found

    def value(self, index: int) -> np.ndarray | None:
        """Elements of an input that is a constant."""
        found = self.scope.graph.constants.get(self.node.inputs[index]) if self.has(index) else None
        return None if found is None else found.numpy()

    def number(self, index: int, default: Any = None) -> Any:
        """The one element of a constant, ``default`` if the input is absent. Raises `Unwritten` where it is computed."""
        if not self.has(index):
            return default
        found = self.value(index)
        if found is None or found.size != 1:
            raise Unwritten(f"input {index} is no constant number")
        return found.reshape(()).item()

    def attr(self, name: str) -> Any:
        """An attribute, or what it is where the node has none."""
        found = self.node.attributes.get(name)
        return default_attribute(self.node.key, name)(self.result) if found is None else found

    def axis(self, index: int = 0, name: str = "axis") -> int:
        """An axis of an input, counted from the front."""
        return self.attr(name) % max(self.rank(index), 1)

    def known_dims(self, index: int) -> list[Any] | None:
        """Elements of a list of extents, axes or positions, as numbers and extents of the module's inputs; ``None`` where they
        are none."""
        known = self.value(index)
        if known is None:
            known = self.scope.lists.get(self.node.inputs[index])
        found = [None] if known is None else [self.scope.extent(d) for d in dims_of(known.reshape(-1)) or ()]
        return None if any(d is None for d in found) else found

    def dims(self, index: int) -> list[Any]:
        """The same, read off the tensor when the module runs where nothing else tells."""
        found, shape = self.known_dims(index), self.type(index).shape
        if found is not None:
            return found
        if shape is None or not all(isinstance(d, int) for d in shape):
            raise Unwritten(f"input {index} is a list of unknown length")
        listed = self.operands[index].reshape((-1,)).tolist()
        return [listed[k] for k in range(shape[0] if shape else 1)]  # type: ignore[arg-type]

    def axes(self, index: int) -> list[int] | None:
        """Axes of input 0 that a constant lists, counted from the front; ``None`` if it is absent."""
        if not self.has(index):
            return None
        found = self.value(index)
        if found is None:
            raise Unwritten(f"input {index}, a list of axes, is no constant")
        return [int(a) % max(self.rank(0), 1) for a in found.reshape(-1)]

    def shape(self, output: int = 0) -> list[Any] | None:
        """Extents of an output, ``None`` where one cannot be told from the inputs of the module."""
        shape = self.output(output).shape
        if shape is None:
            return None
        found = [self.scope.extent(d) for d in shape]
        return None if any(d is None for d in found) else found

    def scalars(self, *indices: int) -> list[Any]:
        """The operands, constants of one element as numbers where the others alone give the result its shape and type."""
        chosen = indices or range(len(self.operands))
        found = list(self.operands)
        ranks = [self.rank(i) if self.has(i) else -1 for i in range(len(found))]
        free = [i for i in chosen if (v := self.value(i)) is not None and v.size == 1]
        rest = [ranks[i] for i in chosen if i not in free]
        for i in free:
            if rest and ranks[i] <= max(rest):
                found[i] = self.number(i)
        return found

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> fx.Proxy:
        return self.scope.call(function, *arguments, **named)

    def constant(self, array: np.ndarray) -> fx.Proxy:
        """A further constant of the module."""
        return self.scope.buffer(array, "constant")

    def like(self, **named: Any) -> dict[str, Any]:
        """Keywords for functions that make a tensor of the result's type."""
        return {"dtype": self.dtype, "device": self.scope.device(), **named}


class Unwritten(Exception):
    """This application of an operator cannot be written, though others can; the message says why."""


Writer = Callable[[Site], Any]
"""Writes a node: the tensor that it computes, or a sequence of them. Raises `Unwritten`."""

WRITERS: dict[str, Writer] = {}
"""Operator -> how a node of it is written. What is not here is spelled out if it is made of others, or an error."""


def writes(*names: str) -> Callable[[Writer], Writer]:
    """Registers a writer for these operators."""

    def register(writer: Writer) -> Writer:
        WRITERS.update((name, writer) for name in names)
        return writer

    return register
