"""What each kernel of a finished program does, so that a program can be priced under any cost model."""

import math
from collections.abc import Sequence

from eqsat.cost.model import CostModel, Work, at_load, work_of
from eqsat.cost.target import Target
from eqsat.fusion.program_graph import application_of, graph_of_program
from eqsat.fusion.work import kernel_work
from eqsat.ir.at_load import computed_at_load
from eqsat.ir.graph import Graph
from eqsat.lower.program import Program
from eqsat.lower.selection import NO_KERNEL


def kernel_works(program: Program, target: Target) -> tuple[Work, ...]:
    """The work of each kernel of the program, as extraction for ``target`` counts it: in the order of ``program.kernels``.

    What depends on constants only is a view: it is computed when the program is loaded. Where the target has kernels of several
    operators, an input that is read twice counts once.
    """
    graph = program.graph
    if not target.templates:
        works = operator_works(graph, target)
        return tuple(works[index] for kernel in program.kernels for index in kernel.nodes)
    source = graph_of_program(graph, target)
    return tuple(kernel_work(source, kernel) for kernel in program.kernels)


def operator_works(graph: Graph, target: Target) -> tuple[Work, ...]:
    """The work of each node of a graph as a kernel of its own."""
    loaded = computed_at_load(graph, target.kept_at_load)
    works: list[Work] = []
    for index, node in enumerate(graph.nodes):
        domain = "opaque" if node.opaque else node.domain
        outputs = [graph.type_of(v) for v in node.outputs]
        work = work_of(node.op, domain, application_of(graph, node), outputs)
        works.append(at_load(work) if index in loaded else work)
    return tuple(works)


def price_works(works: Sequence[Work], target: Target, model: CostModel) -> float:
    """Price of kernels under a cost model; infinite if one of them is not to be had."""
    return math.fsum(_price(work, target, model) for work in works)


def _price(work: Work, target: Target, model: CostModel) -> float:
    if target.unsupported.isdisjoint(work.operators):
        return model.kernel_cost(work, target)
    return math.inf if target.templates else NO_KERNEL
