"""Peak memory of a program, by liveness of the values that its kernels exchange."""

from collections.abc import Sequence
from dataclasses import dataclass

from eqsat.ir.graph import Graph
from eqsat.ir.nominal import nominal_bytes
from eqsat.ir.operator import Kind, kind_of
from eqsat.lower.program import Kernel


@dataclass(frozen=True)
class Buffers:
    """What each step of a program allocates and reads, as numbers of buffers.

    A step is a kernel. ``bytes[b]`` is the size of buffer ``b``. ``given``: buffers that exist from the start (inputs of the
    program); ``kept``: those that live to its end (outputs). ``made[s]`` and ``read[s]``: buffers that step ``s`` writes and
    reads; a view writes none. ``after[s]``: steps that must run before step ``s``.
    """

    bytes: tuple[int, ...]
    given: frozenset[int]
    kept: frozenset[int]
    made: tuple[tuple[int, ...], ...]
    read: tuple[frozenset[int], ...]
    after: tuple[frozenset[int], ...]

    def peak(self, order: Sequence[int]) -> int:
        """Most bytes alive at once when the steps run in ``order``."""
        last = {b: i for i, step in enumerate(order) for b in (*self.made[step], *self.read[step])}
        freed: dict[int, list[int]] = {}
        for b, i in last.items():
            if b not in self.kept:
                freed.setdefault(i, []).append(b)
        alive = peak = sum(self.bytes[b] for b in self.given)
        for i, step in enumerate(order):
            alive += sum(self.bytes[b] for b in self.made[step])
            peak = max(peak, alive)
            alive -= sum(self.bytes[b] for b in freed.get(i, ()))
        return peak


def peak_memory_bytes(graph: Graph, kernels: Sequence[Kernel] | None = None) -> int:
    """Most bytes of inputs, intermediates and outputs alive at once when kernels run in order; constants are not counted.

    Without ``kernels`` every node is one. Values that only their own kernel reads never are in memory. A view shares the
    buffer of its input. A symbolic extent counts as in `eqsat.cost.model.nominal`; a value of unknown rank as nothing.
    """
    buffers = buffers_of(graph, kernels)
    return buffers.peak(range(len(buffers.made)))


def buffers_of(graph: Graph, kernels: Sequence[Kernel] | None = None) -> Buffers:
    """The buffers of a program, a step for each of ``kernels``, or for each node."""
    steps = [k.nodes for k in kernels] if kernels is not None else [(i,) for i in range(len(graph.nodes))]
    number: dict[str, int] = {}
    sizes: list[int] = []

    def new(value: str) -> int:
        number[value] = len(sizes)
        sizes.append(nominal_bytes(graph.type_of(value)))
        return number[value]

    given = frozenset(new(name) for name in graph.inputs)
    maker: dict[str, int] = {}
    defined_in: dict[int, int] = {}
    read: list[set[int]] = []
    after: list[set[int]] = []
    read_elsewhere: set[int] = set()
    for step, nodes in enumerate(steps):
        inputs: set[int] = set()
        earlier: set[int] = set()
        for index in nodes:
            node = graph.nodes[index]
            for value in node.inputs:
                if value in maker and maker[value] != step:
                    earlier.add(maker[value])
                if value in number:
                    inputs.add(number[value])
            for value in node.outputs:
                if not value:
                    continue
                maker[value] = step
                source = number.get(node.inputs[0]) if kind_of(node) is Kind.VIEW and node.inputs else None
                if source is None:
                    defined_in[new(value)] = step
                else:
                    number[value] = source
        read.append(inputs)
        after.append(earlier)
        read_elsewhere |= {b for b in inputs if defined_in.get(b) != step}
    kept = frozenset(number[v] for v in graph.outputs if v in number)
    written = kept | read_elsewhere
    if kernels is None:
        written |= set(number.values())
    else:
        written |= {number[v] for kernel in kernels for v in kernel.outputs if v in number}
    made: list[list[int]] = [[] for _ in steps]
    for b, step in defined_in.items():
        if b in written:
            made[step].append(b)
    memory = written | given
    return Buffers(
        tuple(sizes),
        given,
        kept,
        tuple(tuple(m) for m in made),
        tuple(frozenset(r & memory) for r in read),
        tuple(frozenset(a) for a in after),
    )
