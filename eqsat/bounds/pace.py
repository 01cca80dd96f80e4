"""How fast operations are at most inside kernels, and how long those of an operator take at least."""

from collections.abc import Sequence

from eqsat.bounds.relaxed_templates import Mode, opened_by_anchors
from eqsat.cost.target import Target
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.ir.operator import Kind


class Pace:
    """Rates on a target in kernels of ``modes``, in operations a second. ``fastest``: the rate of any kernel around operators, if
    some of them are not in the graph."""

    def __init__(self, graph: FusionGraph, target: Target, modes: Sequence[Mode], fastest: float | None = None) -> None:
        self._target, self._modes = target, modes
        peak = max((target.peak(o.dtype) for o in graph.operations), default=1.0)
        anchors = [target.peak(o.dtype) for o in graph.operations if o.kind is Kind.ANCHOR]
        self._peak = peak if fastest is None else fastest
        self._anchor_peak = max(anchors, default=peak) if fastest is None else fastest
        self._around = {m.number: m.anchored and opened_by_anchors(graph, m) for m in modes}

    def rate(self, mode: Mode, operation: Operation) -> float:
        """Most operations a second of an operator inside a kernel: at the rate of the element type of the kernel's anchor."""
        if not self._around[mode.number]:
            return self._peak
        if operation.kind is Kind.ANCHOR and sum(s.once for s in mode.template.stages) == 1:
            return self._target.peak(operation.dtype)
        return self._anchor_peak

    def least_seconds(self, operation: Operation) -> float:
        """Least time of an operator's operations in any kernel that is bound by them."""
        if not operation.flops:
            return 0.0
        taken = [m for m in self._modes if m.heavy and m.takes(operation)]
        return operation.flops / max([self._target.peak(operation.dtype), *(self.rate(m, operation) for m in taken)])
