"""Rewrites a graph into random equivalent spellings: the machinery. The spellings themselves are in `benchmarks.spellings`.

A spelling is a function of one node. It may look at what produced the node's inputs, and writes other nodes that compute the
same, or declines. `respell` copies a graph node by node, several times over, so that spellings apply to each other's results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.types import DType, TensorType

Values = str | tuple[str, ...] | None
Spelling = Callable[["Writer", Node], Values]

SPELLINGS: dict[str, list[Spelling]] = {}
"""Operator key -> its spellings; ``*`` holds for the single output of any node."""

STRUCTURES = frozenset(("LayerNormalization", "Gelu", "BatchNormalization"))
"""Operators that no variant keeps: recognising what is there already would prove nothing."""


def spelling(*keys: str) -> Callable[[Spelling], Spelling]:
    """Registers a spelling of these operators."""

    def register(function: Spelling) -> Spelling:
        for key in keys:
            SPELLINGS.setdefault(key, []).append(function)
        return function

    return register


class Writer:
    """A graph being written, with the random choices of its spellings."""

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self.rng = rng
        self.builder = GraphBuilder(graph.name)
        self._arrays: dict[str, np.ndarray] = {}
        self._producers: dict[str, Node] = {}
        self._renamed: dict[str, str] = {}
        for name in graph.inputs:
            found = graph.type_of(name)
            assert isinstance(found, TensorType)
            self._renamed[name] = self.builder.input(name, found.dtype, found.shape)
        for name, constant in graph.constants.items():
            self._renamed[name] = self.constant(constant.numpy())

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def constant(self, array: Any) -> str:
        name = self.builder.constant(np.asarray(array))
        self._arrays[name] = np.asarray(array)
        return name

    def like(self, value: str, number: float) -> str:
        """A number in the element type of ``value``: a scalar or one element."""
        array = np.asarray(number, self.dtype(value))
        return self.constant(array.reshape(1) if self.chance(0.3) and self.shape(value) else array)

    def integers(self, *numbers: int) -> str:
        return self.constant(np.asarray(numbers, np.int64))

    def op(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = self.builder.op(op, *inputs, outputs=outputs, **attributes)
        self._note(op, inputs, names if isinstance(names, tuple) else (names,), attributes)
        return names

    def _note(self, op: str, inputs: Sequence[str], names: tuple[str, ...], attributes: dict[str, Any]) -> None:
        node = Node(op, tuple(inputs), names, Attributes(attributes))
        self._producers.update(dict.fromkeys(names, node))

    def array(self, value: str) -> np.ndarray | None:
        """The elements of a constant."""
        return self._arrays.get(value)

    def number(self, value: str) -> float | None:
        """The one element of a constant that is a number."""
        array = self._arrays.get(value)
        return float(array.reshape(())) if array is not None and array.size == 1 else None

    def shape(self, value: str) -> tuple[Any, ...]:
        """Extents, those by symbols as text."""
        found = self.builder.type_of(value)
        assert isinstance(found, TensorType)
        assert found.shape is not None
        return found.shape

    def reshaped(self, x: str, *target: Any, like: str) -> str:
        """``x`` under a shape whose extents by symbols are those of the same axes of ``like``, as exporters write that."""
        if not any(isinstance(d, str) for d in target):
            return str(self.op("Reshape", x, self.integers(*target)))
        if self.shape(x)[: len(target) - 1] == target[:-1] and self.chance(0.3):
            last = -1 if isinstance(target[-1], str) else target[-1]
            return str(self.op("Reshape", x, self.integers(*(0 for _ in target[:-1]), last)))
        listed = [self._extent(like, i) if isinstance(d, str) else self.integers(d) for i, d in enumerate(target)]
        return str(self.op("Reshape", x, self.op("Concat", *listed, axis=0)))

    def _extent(self, x: str, axis: int) -> str:
        """One extent of ``x`` as a vector."""
        if self.chance():
            return str(self.op("Shape", x, start=axis, end=axis + 1))
        if self.chance():
            return str(self.op("Gather", self.op("Shape", x), self.integers(axis), axis=0))
        number = self.op("Gather", self.op("Shape", x), self.constant(np.int64(axis)), axis=0)
        return str(self.op("Unsqueeze", number, self.integers(0)))

    def dtype(self, value: str) -> np.dtype[Any]:
        found = self.builder.type_of(value)
        assert isinstance(found, TensorType)
        return np.dtype(found.dtype.numpy)

    def is_float(self, value: str) -> bool:
        return DType.of(self.dtype(value)).is_float

    def producer(self, value: str, op: str) -> Node | None:
        """The node that computes ``value``, if it applies ``op``."""
        node = self._producers.get(value)
        return node if node is not None and node.op == op else None

    def commuted(self, op: str, a: str, b: str) -> str:
        """A commutative operator with its inputs in either order."""
        return str(self.op(op, a, b) if self.chance() else self.op(op, b, a))

    def copy(self, node: Node, spellings: Sequence[Spelling]) -> None:
        """Writes ``node`` in the first of ``spellings`` that applies, or as it is."""
        node = replace(node, inputs=tuple(self._renamed[i] if i else "" for i in node.inputs))
        for write in spellings:
            found = write(self, node)
            if found is not None:
                break
        else:
            found = self.op(node.op, *node.inputs, outputs=len(node.outputs), **dict(node.attributes))
        values = found if isinstance(found, tuple) else (found,)
        self._renamed.update(zip(node.outputs, values, strict=True))

    def finish(self, outputs: Sequence[str]) -> Graph:
        return self.builder.finish({name: self._renamed[name] for name in outputs}).pruned()


def respell(graph: Graph, seed: int, *, rounds: int = 3, probability: float = 0.45) -> Graph:
    """An equal graph in another spelling: in each round each node is spelled anew with ``probability``.

    Ranks are known and all operators of the default domain. Equal seeds give equal graphs.
    """
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        writer = Writer(graph, rng)
        for node in graph.nodes:
            must = node.op in STRUCTURES
            chosen: list[Spelling] = []
            if must or writer.chance(probability):
                options = list(SPELLINGS.get(node.op, ()))
                chosen = [options[i] for i in rng.permutation(len(options))]
                if not must and len(node.outputs) == 1 and writer.chance(0.12):
                    chosen.insert(0, writer.choose(SPELLINGS["*"]))
            writer.copy(node, chosen)
        graph = replace(writer.finish(graph.outputs), envelope=graph.envelope)
    return graph
