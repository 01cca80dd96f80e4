"""Split as slices: on targets whose kernels read a part of a tensor in place, each output of a Split is a Slice of its own."""

from dataclasses import replace

import numpy as np

from eqsat.ir.constants import Constant
from eqsat.ir.graph import Attributes, Graph, Node, fresh_name
from eqsat.lower.program import Program


def with_slices(program: Program) -> Program:
    """The program with every Split of known extents replaced by one Slice for each output; each is a kernel of its own."""
    graph = program.graph
    splits = {index: extents for index, node in enumerate(graph.nodes) if (extents := _extents(graph, node))}
    if not splits:
        return program
    constants = dict(graph.constants)
    made = {index: _slices(graph, graph.nodes[index], extents, constants) for index, extents in splits.items()}
    return replace(program, graph=replace(graph, constants=constants)).with_nodes_for(made)


def _extents(graph: Graph, node: Node) -> list[int]:
    """Extents of the outputs of a Split along its axis; empty for other nodes and unknown extents."""
    if node.key != "Split" or node.opaque:
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
    taken = {*graph.types, *constants, *graph.inputs}
    start = 0
    for number, (value, extent) in enumerate(zip(node.outputs, extents, strict=True)):
        names: list[str] = []
        for part, at in (("starts", start), ("ends", start + extent), ("axes", axis)):
            names.append(fresh_name(f"{value}_{part}", taken))
            constants[names[-1]] = Constant.of(np.array([at], np.int64))
        made.append(Node("Slice", (node.inputs[0], *names), (value,), Attributes({}), "", f"{node.name}_{number}"))
        start += extent
    return made
