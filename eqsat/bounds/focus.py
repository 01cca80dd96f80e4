"""What a good program tells the relaxed bound: where to look closely, at the cost of a larger problem."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from eqsat.bounds.views import Merged
from eqsat.cost.model import Rates
from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.templates import Cone
from eqsat.fusion.work import group_work
from eqsat.ir.operator import Kind

_MOST_OPERATIONS = 1500
"""Graphs of so many operations are small enough to tell apart the readers of all leaves."""


@dataclass(frozen=True, slots=True)
class Focus:
    """Any focus gives a bound, that of a good program a good one.

    ``detail``: what is told apart: 0 nothing, 1 kernels of different anchors where they meet, 2 also what they read and what
    they write (`eqsat.bounds.states`, `eqsat.bounds.readers`).

    ``heavy``: anchors -> whether operations count in the kernels that they open, not bytes. ``shared``: leaves that several
    kernels read, each for itself, or all leaves. ``shared_only``: readers are told apart for ``shared`` classes only,
    computed ones among them; else for all computed classes.
    """

    heavy: dict[int, bool] = field(default_factory=dict[int, bool])
    shared: frozenset[int] = frozenset()
    detail: int = 2
    shared_only: bool = False


def focus_of(graph: FusionGraph, target: Target, rates: Rates, merged: Merged, kernels: Iterable[Cone]) -> Focus:
    """The focus of a program that consists of ``kernels`` of ``graph``, in the numbers of ``merged``."""
    heavy: dict[int, bool] = {}
    reads: Counter[int] = Counter()
    for kernel in kernels:
        if kernel.only_views:
            continue
        work = group_work(graph, kernel.operations, kernel.inputs, kernel.root, kernel.also)
        bound = rates.counts_operations and work.flops / target.peak(work.dtype) > work.bytes * rates.byte
        for i in kernel.operations:
            if i in merged.operations and graph.operations[i].kind is Kind.ANCHOR:
                heavy[merged.operations[i]] = bound
        if not bound:
            reads.update({merged.classes[c] for c in kernel.inputs if not graph.members[c]})
    small = len(merged.graph.operations) <= _MOST_OPERATIONS
    leaves = (c for c, members in enumerate(merged.graph.members) if not members)
    return Focus(heavy, frozenset(c for c in leaves if small or reads[c] > 1))


def bound_by_operations(graph: FusionGraph, index: int, target: Target, rates: Rates, *, ends: bool = True) -> bool:
    """Whether an operator takes longer than the bytes that it reads, and writes if the kernel ``ends`` with it."""
    operation = graph.operations[index]
    moved = sum(graph.bytes[c] for c in operation.inputs) + (graph.bytes[graph.owner[index]] if ends else 0.0)
    peak = target.peak(operation.dtype)
    return rates.counts_operations and operation.flops / peak > moved * rates.byte
