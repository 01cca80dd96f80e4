"""The kernels of single programs, and better programs near them: quickly, window by window (`eqsat.joint.windows`)."""

from dataclasses import replace

from eqsat.cost.model import CostModel
from eqsat.cost.target import Target
from eqsat.extract import Effort
from eqsat.fusion.covering import Covering
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.inlining import inlined_kernels
from eqsat.fusion.merging import merge_kernels
from eqsat.fusion.partition import grouped, method_of
from eqsat.fusion.templates import Matcher
from eqsat.joint.candidates import Candidates
from eqsat.joint.windows import Window, Windows

_LENGTH = 8
"""Kernels in a window, about as many as a layer of a transformer has."""
_STARTS = (_LENGTH, _LENGTH // 2)
"""Where the first border lies as windows are moved."""
_MOST_OPERATIONS = 400
"""Of windows in which other programs are looked for: in larger ones that takes longer than it is worth."""
_FUSING_SHARE, _IMPROVING_SHARE, _WINDOW_SHARE = 0.15, 0.4, 0.2
"""Of the effort left: for the kernels of one program, for better programs, and for one window of what these have."""


class Improving(Candidates):
    """Candidates that are fused window by window. ``inputs``: leaves that are no constants; ``bounded``: whether there are bounds
    over all kernels, which lead to programs, too."""

    def __init__(
        self,
        graph: FusionGraph,
        target: Target,
        model: CostModel,
        *,
        effort: Effort,
        inputs: frozenset[int],
        bounded: bool,
    ) -> None:
        super().__init__(graph, target, model, effort=effort)
        self._inputs = inputs
        self._bounded = bounded
        self._matcher = Matcher(graph, target)

    def offer(self, choice: dict[int, int], stage: str) -> Covering | None:
        graph = self.graph.restricted(choice)
        kernels = None if method_of(self.target) == "tvm" else grouped(graph, choice, self.target, self.prices)
        if kernels is None:
            return super().offer(choice, stage)
        kernels = merge_kernels(graph, kernels, self.target, self.prices)
        plan = Covering(kernels, 0.0, "windows")
        _, plan = self._moved(choice, plan, self.effort.part(_FUSING_SHARE), fixed=True)
        self.remember(choice, plan, stage)
        return plan

    def look_around(self) -> None:
        """Looks for programs that are better than the best so far, in all windows of it."""
        if self.best is not None and self.best.plan.method != "post-dominator":
            effort = self.effort.part(_IMPROVING_SHARE)
            self.remember(*self._moved(self.best.choice, self.best.plan, effort, fixed=False), "windows")

    def _moved(
        self, choice: dict[int, int], plan: Covering, effort: Effort, *, fixed: bool
    ) -> tuple[dict[int, int], Covering]:
        windows = Windows(
            self.graph,
            self.prices,
            self._matcher,
            self._inputs,
            lambda window: self._solved(window, effort, fixed=fixed),
            effort,
            fixed=fixed,
        )
        for start in _STARTS:
            choice, plan = windows.improved(choice, plan, start, _LENGTH)
            kernels = inlined_kernels(self.graph, plan.kernels, self._matcher, self.prices)
            plan = replace(plan, kernels=kernels)
        return choice, plan

    def _solved(self, window: Window, effort: Effort, *, fixed: bool) -> Covering | None:
        if effort.over() or (not fixed and len(window.operations) > _MOST_OPERATIONS):
            return None
        own = Candidates(window.graph, self.target, self.model, effort=effort.part(_WINDOW_SHARE))
        own.offer(dict(window.choice), "window")
        if own.best is not None and not fixed:
            self._search(own)
        return own.best.plan if own.best is not None else None

    def _search(self, own: Candidates) -> None:
        if self._bounded:
            from eqsat.joint.bounding import FIRST, Bounding

            Bounding(own, blockwise=False, coarse=False).bound(FIRST)
        else:
            own.enumerate()
            own.improve()
