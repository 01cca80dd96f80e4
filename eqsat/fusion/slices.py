"""Split as slices: on targets whose kernels read a part of a tensor in place, each output of a Split is a Slice of its own."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.lower.program import Kernel, Program


def with_slices(program: Program) -> Program:
    """The program with every Split of known extents replaced by one Slice for each output; each is a kernel of its own."""
    graph = program.graph
    if not any(_extents(graph, node) for node in graph.nodes):
        return program
    constants = dict(graph.constants)
    nodes: list[Node] = []
    placed: dict[int, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        extents = _extents(graph, node)
        made = _slices(graph, node, extents, constants) if extents else [node]
        placed[index] = list(range(len(nodes), len(nodes) + len(made)))
        nodes.extend(made)
    kernels: list[Kernel] = []
    for kernel in program.kernels:
        indices = [j for i in kernel.nodes for j in placed[i]]
        if len(indices) == len(kernel.nodes) and all(nodes[j].op != "Slice" for j in indices):
            kernels.append(replace(kernel, nodes=tuple(indices)))
            continue
        for j in indices:
            node = nodes[j]
            inputs = tuple(dict.fromkeys(v for v in node.inputs if v))
            kernels.append(
                replace(kernel, name=node.name, template=node.op, nodes=(j,), inputs=inputs, outputs=node.outputs)
            )
    changed = replace(graph, nodes=tuple(nodes), constants=MappingProxyType(constants))
    return replace(program, graph=changed, kernels=tuple(kernels))


def _extents(graph: Graph, node: Node) -> list[int]:
    """Extents of the outputs of a Split along its axis; empty for other nodes and unknown extents."""
    if node.op != "Split" or node.domain or node.opaque:
        return []
    found: list[int] = []
    for value in node.outputs:
        shape = graph.type_of(value).shape
        if not shape:
            return []
        axis: int = node.attributes.get("axis", 0)
        extent = shape[axis]
        if not isinstance(extent, int):
            return []
        found.append(extent)
    return found


def _slices(graph: Graph, node: Node, extents: list[int], constants: dict[str, Constant]) -> list[Node]:
    axis = node.attributes.get("axis", 0)
    made: list[Node] = []
    start = 0
    for number, (value, extent) in enumerate(zip(node.outputs, extents, strict=True)):
        names: list[str] = []
        for part, at in (("starts", start), ("ends", start + extent), ("axes", axis)):
            name = f"{value}_{part}"
            while name in graph.types or name in constants:
                name += "_"
            constants[name] = Constant.of(np.array([at], np.int64))
            names.append(name)
        made.append(Node("Slice", (node.inputs[0], *names), (value,), Attributes({}), "", f"{node.name}_{number}"))
        start += extent
    return made
