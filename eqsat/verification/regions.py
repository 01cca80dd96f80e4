"""Cuts a program where it can be compared with its original: regions whose boundary values both programs compute.

A kernel that hands on a value without a counterpart in the original is taken together with the kernels that read it. Each
region is then a small program of its own: fed with values of the original, it has to return values of the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.ir.constants import same_bits
from eqsat.ir.graph import Graph, Node
from eqsat.ir.parts import subgraph
from eqsat.ir.types import Type
from eqsat.lower.program import Kernel, Program
from eqsat.verification.values import least_class

FED = "original:"
"""Before the names of values that are read of the original."""


@dataclass(frozen=True, slots=True)
class Region:
    """Kernels that are checked as one.

    ``nodes``: indices into the nodes of the program's graph, in order. ``inputs`` and ``outputs``: values of the program at
    the boundary; all of them have an origin. ``unchanged``: every node is a node of the original, literally.
    """

    kernels: tuple[Kernel, ...]
    nodes: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    exactness: Exactness
    rules: tuple[str, ...]
    unchanged: bool

    @property
    def label(self) -> str:
        """The region in a message: its kernels' names, at most four of them."""
        names = [k.name for k in self.kernels]
        more = f" and {len(names) - 4} more" if len(names) > 4 else ""
        return ("kernel " if len(names) == 1 else "kernels ") + ", ".join(names[:4]) + more


def origin_of(original: Graph, program: Program) -> dict[str, str]:
    """Value of the program -> value of the original that it stands for: the program's own record, and the names of the
    inputs and outputs, which both share. Counterparts that the original does not have are left out."""
    known = set(original.inputs) | set(original.constants)
    known.update(value for node in original.nodes for value in node.outputs if value)
    found = {value: source for value, source in program.origin.items() if source in known}
    found.update({value: value for value in (*program.graph.inputs, *program.graph.outputs) if value in known})
    return found


def partition(original: Graph, program: Program) -> tuple[Region, ...]:
    """The regions of ``program``, smallest possible, in the order of their first nodes.

    Raises `ModelError` if the kernels do not cover every node of the graph exactly once.
    """
    graph = program.graph
    origin = origin_of(original, program)
    kernel_of = _kernel_of_node(program)
    producer = {value: i for i, node in enumerate(graph.nodes) for value in node.outputs if value}
    parent = list(range(len(program.kernels)))

    def find(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            source = producer.get(value)
            if source is not None and value not in origin:
                parent[find(kernel_of[i])] = find(kernel_of[source])
    members: dict[int, list[int]] = {}
    for i in range(len(graph.nodes)):
        members.setdefault(find(kernel_of[i]), []).append(i)
    kernels: dict[int, list[Kernel]] = {}
    for k, kernel in enumerate(program.kernels):
        kernels.setdefault(find(k), []).append(kernel)
    readers: dict[str, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        for value in node.inputs:
            readers.setdefault(value, set()).add(kernel_of[i])
    results = set(graph.outputs)
    originals = original.producers()
    regions: list[Region] = []
    for root, nodes in members.items():
        regions.append(
            _region(
                program,
                tuple(nodes),
                tuple(kernels[root]),
                origin,
                kernel_of,
                producer,
                readers,
                results,
                original,
                originals,
            )
        )
    return tuple(sorted(regions, key=lambda r: r.nodes[0]))


def _kernel_of_node(program: Program) -> dict[int, int]:
    kernel_of: dict[int, int] = {}
    for k, kernel in enumerate(program.kernels):
        for i in kernel.nodes:
            if i in kernel_of:
                raise ModelError(f"kernel {kernel.name!r}: node {i} belongs to another kernel as well")
            kernel_of[i] = k
    missing = [i for i in range(len(program.graph.nodes)) if i not in kernel_of]
    if missing:
        raise ModelError(f"node {missing[0]} of the program, and {len(missing) - 1} more, belong to no kernel")
    return kernel_of


def _region(
    program: Program,
    nodes: tuple[int, ...],
    kernels: tuple[Kernel, ...],
    origin: Mapping[str, str],
    kernel_of: Mapping[int, int],
    producer: Mapping[str, int],
    readers: Mapping[str, set[int]],
    results: set[str],
    original: Graph,
    originals: Mapping[str, Node],
) -> Region:
    graph = program.graph
    inside = set(nodes)
    inputs: dict[str, None] = {}
    outputs: dict[str, None] = {}
    for i in nodes:
        for value in graph.nodes[i].inputs:
            if not value or value in graph.constants:
                continue
            source = producer.get(value)
            # A value with an origin is taken from the original even where another kernel of this region computes it.
            if source is None or source not in inside or (kernel_of[source] != kernel_of[i] and value in origin):
                inputs[value] = None
        for value in graph.nodes[i].outputs:
            crosses = value in results or any(k != kernel_of[i] for k in readers.get(value, ()))
            if value and crosses and value in origin:
                outputs[value] = None
    return Region(
        kernels,
        nodes,
        tuple(inputs),
        tuple(outputs),
        max(least_class(graph.nodes[i] for i in nodes), *(k.exactness for k in kernels)),
        tuple(dict.fromkeys(rule for k in kernels for rule in k.rules)),
        all(_is_unchanged(graph.nodes[i], graph, original, originals, origin) for i in nodes),
    )


def _is_unchanged(
    node: Node, graph: Graph, original: Graph, originals: Mapping[str, Node], origin: Mapping[str, str]
) -> bool:
    """Whether the original applies the same operator to the same values to compute the same outputs."""
    named = [v for v in node.outputs if v]
    if not named or named[0] not in origin:
        return False
    other = originals.get(origin[named[0]])
    if other is None or (node.op, node.domain, node.opaque) != (other.op, other.domain, other.opaque):
        return False
    if node.attributes != other.attributes or len(node.inputs) != len(other.inputs):
        return False
    if len(node.outputs) != len(other.outputs):
        return False
    for mine, theirs in zip(node.outputs, other.outputs, strict=True):
        if mine and origin.get(mine) != theirs:
            return False
    return all(
        _is_same_operand(mine, theirs, graph, original, origin)
        for mine, theirs in zip(node.inputs, other.inputs, strict=True)
    )


def _is_same_operand(mine: str, theirs: str, graph: Graph, original: Graph, origin: Mapping[str, str]) -> bool:
    a, b = graph.constants.get(mine), original.constants.get(theirs)
    if a is None and b is None:
        return origin.get(mine, mine if not mine else None) == theirs
    if a is None or b is None:
        return False
    return a is b or (a.type == b.type and same_bits(a.numpy(), b.numpy()))


def piece_of(regions: Sequence[Region], original: Graph, program: Program, origin: Mapping[str, str]) -> Graph:
    """The regions as one graph that reads a value of the original, under a name with `FED`, wherever a region begins at a value.

    ``origin``: of each value of the program the one of the original.
    """
    graph = program.graph
    kernel_of = {i: k for k, kernel in enumerate(program.kernels) for i in kernel.nodes}
    producer = {value: i for i, node in enumerate(graph.nodes) for value in node.outputs if value}
    nodes: list[Node] = []
    inputs: dict[str, Type] = {}
    for region in regions:
        boundary = set(region.inputs)
        for i in region.nodes:
            read: list[str] = []
            for value in graph.nodes[i].inputs:
                inside = value in producer and kernel_of[producer[value]] == kernel_of[i]
                if value in boundary and not inside:
                    source = origin[value]
                    value = FED + source
                    inputs[value] = original.type_of(source)
                read.append(value)
            nodes.append(replace(graph.nodes[i], inputs=tuple(read)))
    outputs = [v for region in regions for v in region.outputs]
    return subgraph(graph, nodes, inputs, outputs, inputs)
