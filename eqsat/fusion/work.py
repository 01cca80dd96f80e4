"""The work of a group of operators, so that every cost model prices kernels of any size with one method."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from eqsat.cost.families import has_blocks
from eqsat.cost.model import CostModel, Work, at_load, work_of_node
from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.program_graph import ProgramGraph, graph_of_program
from eqsat.ir.at_load import computed_at_load
from eqsat.ir.graph import Graph
from eqsat.ir.operator import Kind
from eqsat.lower.program import Kernel, Program
from eqsat.lower.rounded_products import works_of_pairs
from eqsat.lower.selection import NO_KERNEL

_RANK = {Kind.VIEW: 0, Kind.ELEMENTWISE: 1, Kind.INJECTIVE: 2, Kind.REDUCTION: 3, Kind.ANCHOR: 4, Kind.OPAQUE: 5}


def group_work(
    graph: FusionGraph, operations: Iterable[int], inputs: Iterable[int], root: int, also: Iterable[int] = ()
) -> Work:
    """The work of one kernel that computes class ``root``, and ``also`` further classes.

    ``operations`` are the indices of its operators, ``inputs`` the distinct classes it reads, leaves included. Operations are
    summed; bytes are those of the inputs, each once, and of the classes written. The element type is that of the anchor, or
    of the operator with the most operations. A kernel of one operator is that operator's own work, types and all.
    """
    names: list[str] = []
    parts: list[Work] = []
    most = -1.0
    kind, dtype = Kind.VIEW, "default"
    total = 0.0
    for index in sorted(operations):
        operation = graph.operations[index]
        names.append(operation.name)
        if operation.work is not None:
            parts.append(operation.work)
        flops = operation.flops
        total += flops
        rank = _RANK[operation.kind]
        if rank > _RANK[kind] or most < 0 or (rank == _RANK[kind] and flops > most):
            dtype, most = operation.dtype, flops
            kind = operation.kind if rank > _RANK[kind] else kind
    read = sum(graph.bytes[c] for c in inputs)
    wrote = graph.bytes[root] + sum(graph.bytes[c] for c in also)
    if len(names) == len(parts) == 1:
        return replace(parts[0], bytes_read=read, bytes_written=wrote)
    return Work(tuple(names), kind, total, read, wrote, dtype, parts=tuple(parts))


def kernel_work(source: ProgramGraph, kernel: Kernel) -> Work:
    """The work of a kernel of the program that ``source`` was made from."""
    graph = source.graph
    operations = [source.operations[i] for i in kernel.nodes]
    root, *also = dict.fromkeys(graph.owner[i] for i in operations if _writes(source, i, kernel))
    read = {c for i in operations for c in graph.operations[i].inputs}  # not the shape that a view is given
    return group_work(graph, operations, read.intersection(source.classes[v] for v in kernel.inputs), root, also)


def _writes(source: ProgramGraph, index: int, kernel: Kernel) -> bool:
    """Whether a kernel writes the class of an operation; operators with several outputs have one class for all of them."""
    graph = source.graph
    if "multiple" in graph.operations[index].labels:
        return True
    return graph.owner[index] in {source.classes[v] for v in kernel.outputs if v in source.classes}


# --- kernels of a finished program -----------------------------------------------------------------------------------


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
    """The work of each node of a graph as a kernel of its own, estimated once for nodes of equal attributes and types."""
    loaded = computed_at_load(graph, target.kept_at_load)
    known: dict[tuple[object, ...], Work] = {}
    works: list[Work] = []
    fused = works_of_pairs(graph, target)
    dequantised = {n.outputs[0] for n in graph.nodes if n.key == "DequantizeLinear"}
    for index, node in enumerate(graph.nodes):
        if index in fused:
            works.append(fused[index])
            continue
        types = graph.operand_types(node), *map(graph.type_of, node.outputs)
        paired = has_blocks(node.key) and node.inputs[0] in dequantised
        key = (index in loaded, node.key, bool(node.opaque), paired, node.attributes, *types)
        if key not in known:
            work = replace(work_of_node(graph, node), dequantised=paired)
            known[key] = at_load(work) if index in loaded else work
        works.append(known[key])
    return tuple(works)


def price_works(works: Sequence[Work], target: Target, model: CostModel) -> float:
    """Price of kernels under a cost model; infinite if one of them is not to be had."""
    prices: dict[int, float] = {}  # by identity: `operator_works` gives equal operators one work
    for work in works:
        if id(work) not in prices:
            prices[id(work)] = _price(work, target, model)
    return math.fsum(prices[id(work)] for work in works)


def _price(work: Work, target: Target, model: CostModel) -> float:
    if target.unsupported.isdisjoint(work.operators):
        return model.kernel_cost(work, target)
    return math.inf if target.templates else NO_KERNEL
