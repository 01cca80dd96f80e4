"""Cost models as rates: what a launch, an operator, a byte and a view add to the price of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from eqsat.cost.model import VIEW_PRICE, CostModel
from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph


@dataclass(frozen=True, slots=True)
class Rates:
    """A cost model as ``launch + operator * operators + max(byte * bytes, operations / peak)``; ``view``: for each view."""

    launch: float
    operator: float
    byte: float
    counts_operations: bool
    view: float


def rates_of(model: CostModel, target: Target) -> Rates | None:
    """The terms of a cost model, ``None`` if it has no such form, or if the target chooses its kernels itself or has other than
    views for free."""
    if target.fusion != "cones" or target.free_kinds != {"view"}:
        return None
    second = 1 / target.bandwidth_bytes_per_s
    return {
        "kernels": Rates(1.0 - VIEW_PRICE, VIEW_PRICE, 0.0, False, VIEW_PRICE),
        "bytes": Rates(0.0, 0.0, 1.0, False, 0.0),
        "roofline": Rates(0.0, 0.0, second, True, 0.0),
        "roofline-launch": Rates(target.launch_s, 0.0, second, True, 0.0),
    }.get(model.name)


def bound_by_operations(graph: FusionGraph, index: int, target: Target, rates: Rates, *, ends: bool = True) -> bool:
    """Whether an operator takes longer than the bytes that it reads, and writes if the kernel ``ends`` with it."""
    operation = graph.operations[index]
    moved = sum(graph.bytes[c] for c in operation.inputs) + (graph.bytes[graph.owner[index]] if ends else 0.0)
    peak = target.peak(operation.dtype)
    return rates.counts_operations and operation.flops / peak > moved * rates.byte
