"""Quantisation as OpenVINO takes it.

It makes one operator of QuantizeLinear and a DequantizeLinear directly behind it, and that part of the product that it reads.
Apart from one another they are arithmetic, and what reads the second one is computed on floats: so quantisers stand before what
only moves elements, in pairs.

The operator ranges from the lowest to the highest value that a pair has. Where one of these is infinite in float32, all results
are NaN (2026.4.1): a scale of 2.7e36, of scores to which a mask of the lowest number was added, times -128. Such quantisers are
spelled out.
"""

from collections import Counter
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.ir.operator import Kind, kind_of, traits_of
from eqsat.ir.types import DType, TensorType, Type


def in_pairs(graph: Graph) -> Graph:
    """``graph`` with quantisers of one scale before what only moves elements, and what dequantises their integers directly
    behind them.

    Floats that others read as well stay where they are, unless moving them is a view: else they would be moved twice.
    """
    pairs = _Pairs(graph)
    for node in graph.nodes:
        pairs.add(node)
    return (
        replace(graph, nodes=tuple(pairs.nodes), types=MappingProxyType(pairs.types)).pruned() if pairs.made else graph
    )


class _Pairs:
    """A graph that is written again node by node; ``made``: each new one, by what it computes."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.types: dict[str, Type] = dict(graph.types)
        self.made: dict[tuple[object, ...], str] = {}
        self._graph, self._producers = graph, graph.producers()
        self._taken = {*graph.types, *graph.constants, *graph.inputs}
        self._reads = Counter([*(v for node in graph.nodes for v in node.inputs), *graph.outputs])

    def add(self, node: Node) -> None:
        """The node as it is, or what it computes as a pair and the movement around its quantiser behind that."""
        integers, behind = self._origin(node.inputs[0]) if self._scales(node, "DequantizeLinear") else ("", [])
        quantiser = self._producers.get(integers)
        if quantiser is None or not self._scales(quantiser, "QuantizeLinear"):
            self.nodes.append(node)
            return
        floats, before = self._origin(quantiser.inputs[0], views=True)
        clip = self._producers.get(floats)
        if not before and clip is not None and clip.key == "Clip" and self._reads[floats] == 1:
            floats, before = self._origin(clip.inputs[0], views=True)  # a narrower range belongs to the quantiser
        else:
            clip = None
        if not behind and not before:
            self.nodes.append(node)
            return
        shape = self._graph.type_of(floats)
        value = floats if clip is None else self._applied(clip, floats, shape, floats)
        value = self._applied(quantiser, value, shape, integers)
        value = self._applied(node, value, shape, node.outputs[0])
        *moves, last = reversed([*behind, *before])
        for move in moves:
            value = self._applied(move, value, self._graph.type_of(move.outputs[0]), node.outputs[0])
        self.nodes.append(replace(last, inputs=(value, *last.inputs[1:]), outputs=node.outputs))

    def _origin(self, value: str, views: bool = False) -> tuple[str, list[Node]]:
        """What a value is moved from, and the nodes that move it, last first. ``views``: those that others read, too, if they
        are views only."""
        found: list[Node] = []
        while (node := self._producers.get(value)) is not None and not node.opaque:
            alone = not views or self._reads[value] == 1 or kind_of(node) is Kind.VIEW
            if not alone or not traits_of(node.key, node.attributes).permutes:
                break
            found.append(node)
            value = node.inputs[0]
        return value, found

    def _scales(self, node: Node, op: str) -> bool:
        """Whether a node is one of an operator with a single scale."""
        types = [self._graph.type_of(v) for v in node.inputs[1:]]
        single = all(isinstance(t, TensorType) and t.shape in ((), (1,)) for t in types)
        return node.key == op and single and not node.attributes.get("block_size", 0)

    def _applied(self, node: Node, value: str, shaped: Type, dtype_of: str) -> str:
        """A node like ``node`` of another value, with the shape and the element type of its result; once for all that ask."""
        quantises = node.key in ("QuantizeLinear", "DequantizeLinear")
        attributes = node.attributes.updated(axis=None) if quantises else node.attributes
        key = (node.key, value, node.inputs[1:], attributes)
        if key not in self.made:
            self.made[key] = name = fresh_name(f"{node.outputs[0]}_in_pair", self._taken)
            if isinstance(shaped, TensorType):
                self.types[name] = replace(shaped, dtype=_dtype(self._graph, dtype_of))
            self.nodes.append(replace(node, inputs=(value, *node.inputs[1:]), outputs=(name,), attributes=attributes))
        return self.made[key]


def without_infinite_levels(graph: Graph) -> Graph:
    """``graph`` with the arithmetic of quantisers in their place whose lowest or highest level is infinite.

    Where only their integers are read that is floats throughout: a Cast, or a Clip, would end a kernel of attention.
    """
    levels = {node.outputs[0]: found for node in graph.nodes if (found := _levels(graph, node)) is not None}
    if not levels:
        return graph
    arithmetic = _Arithmetic(graph)
    zeros = {node.outputs[0]: node.inputs[2:] for node in graph.nodes if node.outputs[0] in levels}
    in_pair = [n for n in graph.nodes if n.key == "DequantizeLinear" and zeros.get(n.inputs[0]) == n.inputs[2:]]
    reads = Counter([*(v for n in graph.nodes for v in n.inputs), *graph.outputs])
    reads.subtract(n.inputs[0] for n in in_pair)
    whole: dict[str, str] = {}
    for node in graph.nodes:
        if (found := levels.get(node.outputs[0])) is not None:
            zero, lowest, highest = found
            steps = [("Div", node.inputs[1]), ("Round",), ("Max", lowest - zero), ("Min", highest - zero)]
            whole[node.outputs[0]] = arithmetic.chain(node.inputs[0], *steps)
            if reads[node.outputs[0]]:
                sums = arithmetic.chain(whole[node.outputs[0]], ("Add", zero))
                to = Attributes({"to": int(_dtype(graph, node.outputs[0]))})
                arithmetic.nodes.append(Node("Cast", (sums,), node.outputs, to))
        elif node in in_pair:
            arithmetic.nodes.append(Node("Mul", (whole[node.inputs[0]], node.inputs[1]), node.outputs))
        else:
            arithmetic.nodes.append(node)
    return arithmetic.graph()


class _Arithmetic:
    """Nodes on floats, added to those of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._graph, self._types, self._constants = graph, dict(graph.types), dict(graph.constants)
        self._taken = {*graph.types, *graph.constants, *graph.inputs}

    def chain(self, value: str, *steps: tuple[str, str | float] | tuple[str]) -> str:
        """Operators of a value, one after the other, with a value or a number beside it each."""
        type = self._types.get(value)
        for op, *operands in steps:
            names = [value]
            for operand in operands:
                name = operand if isinstance(operand, str) else fresh_name(f"{value}_{op}_number", self._taken)
                if not isinstance(operand, str):
                    self._constants[name] = Constant.of(np.float32(operand))
                names.append(name)
            value = fresh_name(f"{value}_{op}", self._taken)
            if type is not None:
                self._types[value] = type
            self.nodes.append(Node(op, tuple(names), (value,)))
        return value

    def graph(self) -> Graph:
        types, constants = MappingProxyType(self._types), MappingProxyType(self._constants)
        return replace(self._graph, nodes=tuple(self.nodes), types=types, constants=constants)


def _levels(graph: Graph, node: Node) -> tuple[float, float, float] | None:
    """Zero point, lowest and highest byte of a quantiser with one scale for all, if a level is infinite; else ``None``."""
    if node.key != "QuantizeLinear" or _dtype(graph, node.inputs[0]) is not DType.FLOAT:
        return None
    operands = [graph.constants.get(v) for v in node.inputs[1:]]
    if any(c is None or c.size != 1 for c in operands) or _dtype(graph, node.outputs[0]) not in (
        DType.INT8,
        DType.UINT8,
    ):
        return None
    scale, zero = (float(c.numpy().reshape(())) for c in (*operands, Constant.of(np.float32(0)))[:2] if c is not None)
    limits = np.iinfo(_dtype(graph, node.outputs[0]).numpy)
    lowest, highest = float(limits.min), float(limits.max)
    with np.errstate(over="ignore"):
        levels = np.float32(scale) * np.array((lowest - zero, highest - zero), np.float32)
    return None if np.isfinite(levels).all() else (zero, lowest, highest)


def _dtype(graph: Graph, value: str) -> DType:
    found = graph.type_of(value)
    return found.dtype if isinstance(found, TensorType) else DType.UNDEFINED
