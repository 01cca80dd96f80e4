"""Models that the verification tests break on purpose, and the means to break them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.types import DType, Type
from eqsat.lower.program import Kernel, Program

WIDTH = 24
LAYERS = 8


PRECISIONS = ("float32", "float16", "bfloat16")


def quantised_chain(
    seed: int = 0, layers: int = LAYERS, rows: int | str = 12, precision: str = "float32", coarser: float = 1.0
) -> Graph:
    """``layers`` times: quantise to -127..127 by arithmetic, dequantise, multiply, add a bias, normalise a little.

    ``coarser``: how many times larger a quantum is than one that makes use of that range.
    """
    random = np.random.default_rng(seed)
    b = GraphBuilder("chain")
    x = b.input("x", precision, (rows, WIDTH))
    low, high = b.constant(-127.0, precision), b.constant(127.0, precision)
    for _ in range(layers):
        scale = coarser * float(random.uniform(0.015, 0.018))  # 127 quanta are about two standard deviations
        codes = b.op("Round", b.op("Mul", x, b.constant(1 / scale, precision)))
        integers = b.op("Cast", b.op("Clip", codes, low, high), to=3)
        values = b.op("Mul", b.op("Cast", integers, to=_code(precision)), b.constant(scale, precision))
        weight = b.constant(random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH), precision)
        bias = b.constant(random.standard_normal(WIDTH) * 0.3, precision)
        x = b.op("Add", b.op("MatMul", values, weight), bias)
    return b.finish({"y": x})


def masked_attention(seed: int = 0, precision: str = "float32") -> Graph:
    """Token ids and a 0/1 mask through an embedding and one attention head."""
    random = np.random.default_rng(seed)
    b = GraphBuilder("attention")
    ids = b.input("input_ids", "int64", (2, 9))
    mask = b.input("attention_mask", "int64", (2, 9))
    table = b.constant(random.standard_normal((50, WIDTH)), precision)
    x = b.op("Gather", table, ids, axis=0)

    def project(value: str) -> str:
        weight = b.constant(random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH), precision)
        return b.op("MatMul", value, weight)

    scores = b.op("MatMul", project(x), b.op("Transpose", project(x), perm=(0, 2, 1)))
    scaled = b.op("Mul", scores, b.constant(0.3, precision))
    hidden = b.op("Sub", b.constant(1.0, precision), b.op("Cast", mask, to=_code(precision)))
    penalty = b.op("Mul", hidden, b.constant(-10000.0, precision))
    row = b.op("Unsqueeze", penalty, b.constant([1], "int64"))
    probabilities = b.op("Softmax", b.op("Add", scaled, row), axis=-1)
    return b.finish({"y": project(b.op("MatMul", probabilities, project(x)))})


def integer_chain(seed: int = 0, layers: int = LAYERS, precision: str = "float32") -> Graph:
    """``layers`` times: QuantizeLinear, DequantizeLinear, a matrix product."""
    random = np.random.default_rng(seed)
    b = GraphBuilder("integers")
    x = b.input("x", precision, (16, WIDTH))
    zero = b.constant(0, "int8")
    for _ in range(layers):
        scale = b.constant(float(random.uniform(0.02, 0.03)), precision)
        x = b.op("DequantizeLinear", b.op("QuantizeLinear", x, scale, zero), scale, zero)
        weight = b.constant(random.standard_normal((WIDTH, WIDTH)) / np.sqrt(WIDTH), precision)
        x = b.op("MatMul", x, weight)
    return b.finish({"y": x})


def _code(precision: str) -> int:
    return int(DType[{"float32": "FLOAT"}.get(precision, precision.upper())])


def nodes_of(graph: Graph, op: str) -> list[int]:
    """Indices of the nodes of one operator."""
    return [i for i, node in enumerate(graph.nodes) if node.op == op]


def float_type(graph: Graph) -> np.dtype:
    """The dtype of the floats of a model that has one."""
    return next(c.dtype.numpy for c in graph.constants.values() if c.dtype.is_float)


def constant_input(graph: Graph, index: int) -> int:
    """Which input of a node is its constant."""
    return next(k for k, v in enumerate(graph.nodes[index].inputs) if v in graph.constants)


class Edit:
    """Collects changes to a graph and makes a program of it, one kernel for each node.

    Values keep their names, and so their origin; values added by an edit have none.
    """

    def __init__(self, graph: Graph, exactness: Exactness = Exactness.ROUNDING, rule: str = "edited") -> None:
        self.graph = graph
        self.exactness = exactness
        self.rule = rule
        self._replaced: dict[int, tuple[Node, ...]] = {}
        self._constants: dict[str, Constant] = {}
        self._types: dict[str, Type] = {}

    def constant(self, value: Any, dtype: str | np.dtype | None = None) -> str:
        """A new constant, of the float type of the model unless ``dtype`` says otherwise."""
        name = f"edit_{len(self._constants)}"
        self._constants[name] = Constant.of(np.asarray(value).astype(dtype or float_type(self.graph)))
        return name

    def value(self, name: str, like: str) -> str:
        """Declares a new value of the type of another one."""
        self._types[name] = self.graph.type_of(like)
        return name

    def replace(self, index: int, *nodes: Node) -> Edit:
        self._replaced[index] = nodes
        return self

    def change_constant(self, index: int, change: Callable[[np.ndarray], Any], position: int | None = None) -> Edit:
        """Applies ``change`` to the constant that node ``index`` reads."""
        node = self.graph.nodes[index]
        k = constant_input(self.graph, index) if position is None else position
        array = self.graph.constants[node.inputs[k]].numpy()
        inputs = list(node.inputs)
        inputs[k] = self.constant(change(array), array.dtype)
        return self.replace(index, replace(node, inputs=tuple(inputs)))

    def program(self) -> Program:
        nodes: list[Node] = []
        kernels: list[Kernel] = []
        for i, node in enumerate(self.graph.nodes):
            changed = i in self._replaced
            for new in self._replaced.get(i, (node,)):
                rules = (self.rule,) if changed else ()
                exactness = self.exactness if changed else Exactness.EXACT
                kernels.append(
                    Kernel(f"k{len(nodes)}_{new.op}", new.op, (len(nodes),), new.inputs, new.outputs, rules, exactness)
                )
                nodes.append(new)
        graph = replace(
            self.graph,
            nodes=tuple(nodes),
            types=MappingProxyType({**self.graph.types, **self._types}),
            constants=MappingProxyType({**self.graph.constants, **self._constants}),
        )
        known = {v for node in self.graph.nodes for v in node.outputs}
        return Program(graph, tuple(kernels), {v: v for node in nodes for v in node.outputs if v in known})


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> Node:
    """A node with one output."""
    return Node(op, tuple(inputs), (output,), Attributes(attributes))


__all__ = [
    "LAYERS",
    "PRECISIONS",
    "WIDTH",
    "Edit",
    "constant_input",
    "float_type",
    "integer_chain",
    "masked_attention",
    "node",
    "nodes_of",
    "quantised_chain",
]
