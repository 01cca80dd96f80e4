"""Cuts a program where it can be compared with its original: regions whose boundary values both programs compute.

A kernel that hands on a value without a counterpart in the original is taken together with the kernels that read it. Each
region is then a small program of its own: fed with values of the original, it has to return values of the original.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.ir.constants import same_constant
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
    return _Partition(original, program).regions()


class _Partition:
    def __init__(self, original: Graph, program: Program) -> None:
        self._original, self._originals = original, original.producers()
        self._graph, self._kernels = program.graph, program.kernels
        self._origin = origin_of(original, program)
        self._kernel_of = _kernel_of_node(program)
        self._results = set(self._graph.outputs)
        self._readers: dict[str, set[int]] = {}
        for i, node in enumerate(self._graph.nodes):
            for value in node.inputs:
                self._readers.setdefault(value, set()).add(self._kernel_of[i])

    def regions(self) -> tuple[Region, ...]:
        region_of = [[kernel] for kernel in range(len(self._kernels))]
        for i, node in enumerate(self._graph.nodes):
            handed = (v for v in node.outputs if v and v not in self._origin)
            for reader in (reader for v in handed for reader in self._readers.get(v, ())):
                less, more = sorted((region_of[self._kernel_of[i]], region_of[reader]), key=len)
                if less is not more:
                    more += less
                    for kernel in less:
                        region_of[kernel] = more
        regions = (self._region(sorted(kernels)) for kernels in {id(r): r for r in region_of}.values())
        return tuple(sorted(regions, key=lambda r: r.nodes[0]))

    def _region(self, numbers: Sequence[int]) -> Region:
        graph, origin, kernel_of = self._graph, self._origin, self._kernel_of
        kernels = tuple(self._kernels[k] for k in numbers)
        nodes = sorted(i for kernel in kernels for i in kernel.nodes)
        made = {v: kernel_of[i] for i in nodes for v in graph.nodes[i].outputs}
        inputs: dict[str, None] = {}
        outputs: dict[str, None] = {}
        for i in nodes:
            for value in graph.nodes[i].inputs:
                # A value with an origin is taken from the original even where another kernel of this region computes it.
                outside = value not in made or (made[value] != kernel_of[i] and value in origin)
                if value and outside and value not in graph.constants:
                    inputs[value] = None
            for value in graph.nodes[i].outputs:
                crosses = value in self._results or self._readers.get(value, set[int]()) - {kernel_of[i]}
                if value and crosses and value in origin:
                    outputs[value] = None
        return Region(
            kernels,
            tuple(nodes),
            tuple(inputs),
            tuple(outputs),
            max(least_class(graph.nodes[i] for i in nodes), *(k.exactness for k in kernels)),
            tuple(dict.fromkeys(rule for k in kernels for rule in k.rules)),
            all(self._is_unchanged(graph.nodes[i]) for i in nodes),
        )

    def _is_unchanged(self, node: Node) -> bool:
        """Whether the original applies the same operator to the same values to compute the same outputs."""
        first = next(filter(None, node.outputs), "")
        other = self._originals.get(self._origin.get(first, ""))
        if other is None or (node.key, node.opaque, node.attributes) != (other.key, other.opaque, other.attributes):
            return False
        if (len(node.inputs), len(node.outputs)) != (len(other.inputs), len(other.outputs)):
            return False
        outputs = zip(node.outputs, other.outputs, strict=True)
        return all(self._origin.get(mine) == theirs for mine, theirs in outputs if mine) and all(
            map(self._is_same_operand, node.inputs, other.inputs)
        )

    def _is_same_operand(self, mine: str, theirs: str) -> bool:
        a, b = self._graph.constants.get(mine), self._original.constants.get(theirs)
        if a is None or b is None:
            return a is b and (self._origin.get(mine) if mine else "") == theirs
        return same_constant(a, b)


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


def piece_of(regions: Sequence[Region], original: Graph, program: Program, origin: Mapping[str, str]) -> Graph:
    """The regions as one graph that reads a value of the original, under a name with `FED`, wherever a region begins at a value.

    ``origin``: of each value of the program the one of the original.
    """
    graph = program.graph
    nodes: list[Node] = []
    inputs: dict[str, Type] = {}
    for region in regions:
        kernel_of = {i: k for k, kernel in enumerate(region.kernels) for i in kernel.nodes}
        made = {v: kernel_of[i] for i in region.nodes for v in graph.nodes[i].outputs}
        boundary = set(region.inputs)
        for i in region.nodes:
            fed = {v: FED + origin[v] for v in graph.nodes[i].inputs if v in boundary and made.get(v) != kernel_of[i]}
            inputs.update((name, original.type_of(origin[v])) for v, name in fed.items())
            nodes.append(replace(graph.nodes[i], inputs=tuple(fed.get(v, v) for v in graph.nodes[i].inputs)))
    outputs = [v for region in regions for v in region.outputs]
    return subgraph(graph, nodes, inputs, outputs, inputs)
