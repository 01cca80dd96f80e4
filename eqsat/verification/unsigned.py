"""Products of bytes in unsigned integers, on processors whose kernels saturate.

ONNX Runtime adds products of unsigned by signed bytes in pairs, with an instruction that cuts off each sum at 16 bits where the
processor has no VNNI (`eqsat.backends.onnxruntime.sums_saturate`). Products of two unsigned operands it computes exactly. There a
graph is compared as one whose signed operands are unsigned ones that are 128 greater, and so are their zero points: by definition
the same.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from eqsat.backends.onnxruntime import sums_saturate
from eqsat.ir.constants import Constant
from eqsat.ir.graph import NO_ATTRIBUTES, Graph, Node
from eqsat.ir.interpret import evaluate_operator
from eqsat.ir.operator import operator, split_key
from eqsat.ir.operators.recenter import RECENTER, multiplies_bytes
from eqsat.ir.types import DType, TensorType

_MIDDLE = "unsigned:zero"


def saturates(graph: Graph) -> bool:
    """Whether products of ``graph`` may saturate on this processor."""
    return any(_signed(graph, node) for node in graph.nodes) and sums_saturate()


def in_unsigned(graph: Graph) -> Graph:
    """``graph`` with unsigned operands in products of bytes, if this processor's kernels saturate."""
    if not saturates(graph):
        return graph
    writer = _Writer(graph)
    for node in graph.nodes:
        operands = list(node.inputs)
        for operand, zero in _signed(graph, node):
            operands += [""] * (zero + 1 - len(operands))
            operands[operand], operands[zero] = writer.unsigned(operands[operand]), writer.point(operands[zero])
        writer.nodes.append(replace(node, inputs=tuple(operands)))
    return replace(graph.with_nodes(writer.nodes, writer.types, writer.constants), devices={})


def _signed(graph: Graph, node: Node) -> list[tuple[int, int]]:
    """The signed operands of a product of bytes, each with its zero point: as numbers of inputs."""
    definition = operator(node.key)
    if definition is None or not multiplies_bytes(definition):
        return []
    pairs = definition.traits.differences
    return [
        (i, zero) for i, zero in pairs if i < len(node.inputs) and graph.type_of(node.inputs[i]).dtype is DType.INT8
    ]


@dataclass
class _Writer:
    """Appends nodes. A signed value that products read exists unsigned as well (``:unsigned``)."""

    graph: Graph
    nodes: list[Node] = field(default_factory=list[Node])
    types: dict[str, TensorType] = field(default_factory=dict[str, TensorType])
    constants: dict[str, Constant] = field(default_factory=dict[str, Constant])

    def unsigned(self, value: str) -> str:
        name = f"{value}:unsigned"
        if name in self.types or name in self.constants:
            return name
        if value in self.graph.constants:
            array = self.graph.constants[value].numpy()
            self.constants[name] = Constant.of(evaluate_operator(RECENTER, NO_ATTRIBUTES, [array], 1)[0])
            return name
        found = self.graph.type_of(value)
        assert isinstance(found, TensorType)
        self.types[name] = replace(found, dtype=DType.UINT8)
        domain, op = split_key(RECENTER)
        self.nodes.append(Node(op, (value,), (name,), domain=domain))
        return name

    def point(self, zero: str) -> str:
        """A zero point, 0 if there is none, for unsigned integers."""
        if zero:
            return self.unsigned(zero)
        self.constants[_MIDDLE] = Constant.of(np.uint8(128))
        return _MIDDLE
