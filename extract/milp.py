"""Exact extraction of a core: the relaxation with cuts, then the MILP, until proved or time is up."""

from dataclasses import dataclass

from eqsat.extract.area import AreaSearch
from eqsat.extract.core import Core
from eqsat.extract.cycles import frontier_cuts, integral_cuts, landmark_cuts, unfounded_cuts
from eqsat.extract.effort import Effort
from eqsat.extract.knuth import knuth
from eqsat.extract.landmarks import Landmarks
from eqsat.extract.model import Model

_LP_ROUNDS = 25
_CUT_ROUNDS_BEFORE_LEVELS = 15
PROOF_TOLERANCE = 1e-7
"""A bound within this fraction of the cost counts as a proof: the solver's own tolerances are about 1e-9."""


@dataclass
class Bracket:
    """What is known about a core: an acyclic choice of all classes, its cost, a proven bound (without ``base``).

    Choices that cost ``cutoff`` or more are of no interest, nor are those that cost at most ``slack`` less than the limit.
    """

    choice: list[int]
    cost: float
    cutoff: float = float("inf")
    slack: float = 0.0
    bound: float = 0.0
    stage: str = "area"

    @property
    def limit(self) -> float:
        """Only choices that cost less are looked for."""
        return min(self.cost, self.cutoff)

    def closed(self) -> bool:
        """Tell whether no choice costs less than the limit, or hardly less."""
        return self.limit - self.bound <= max(PROOF_TOLERANCE * self.limit, self.slack)

    def raise_bound(self, bound: float) -> None:
        """Take a proven bound on the choices that cost less than the limit."""
        self.bound = max(self.bound, min(bound, self.limit))

    def offer(self, core: Core, choice: list[int], stage: str) -> None:
        """Take an acyclic choice of all classes if it is cheaper."""
        cost = core.choice_cost(choice)
        if cost < self.cost * (1 - 1e-12):
            self.choice, self.cost, self.stage = choice, cost, stage

    def useless(self, reduced: list[float], bound: float) -> list[bool]:
        """Tell for each node whether any choice with it costs more than the limit, from its reduced cost."""
        most = self.limit - bound + PROOF_TOLERANCE * self.limit  # the solver's reduced costs are rounded
        return [r > most for r in reduced]


class MilpSearch:
    """The stages of one core: :meth:`tighten` the relaxation, then :meth:`finish` with the MILP."""

    def __init__(
        self, core: Core, required: list[int], bracket: Bracket, landmarks: Landmarks | None, effort: Effort
    ) -> None:
        self.core = core
        self.effort = effort
        self.bracket = bracket
        self.model = Model(core, required, bracket.limit, effort)
        self.useless = [False] * len(core.owner)
        for cut in landmarks.cuts if landmarks else ():
            self.model.add_exit_cut(cut.needed, cut.nodes)

    def tighten(self) -> None:
        """Solve the relaxation, round it, cut it off, and mark useless nodes, until that stops paying."""
        bracket, model, effort = self.bracket, self.model, self.effort
        stalled = 0
        for _ in range(_LP_ROUNDS):
            relaxed = model.relax()
            if relaxed is None:
                return
            self._round(relaxed.values)
            before = bracket.limit - bracket.bound
            bracket.raise_bound(relaxed.bound)
            self._mark(relaxed.reduced, relaxed.bound)
            if bracket.closed() or effort.over():
                return
            bound, reduced, count = landmark_cuts(model, relaxed, bracket.limit, effort)
            bracket.raise_bound(bound)
            self._mark(reduced, bound)
            count += unfounded_cuts(model, relaxed.values, effort)
            stalled = 0 if bracket.limit - bracket.bound < 0.98 * before else stalled + 1
            if stalled or not count:
                count += frontier_cuts(model, relaxed.values, effort)
            if bracket.closed() or not count or stalled >= 4:
                return

    def finish(self) -> None:
        """Solve the MILP; add cuts (in the end level variables) while its optimum has cycles."""
        core, model, bracket, effort = self.core, self.model, self.bracket, self.effort
        rounds = 0
        leveled: set[int] = set()
        while not bracket.closed() and not effort.over():
            outcome = model.solve()
            if outcome is None:
                return
            bracket.raise_bound(outcome.bound)
            if outcome.values is None:
                return
            choice = integral_choice(model, outcome.values)
            self._round(outcome.values)
            if core.is_acyclic(choice) or not outcome.proved:
                return
            concerned = integral_cuts(model, choice)
            rounds += 1
            if rounds >= _CUT_ROUNDS_BEFORE_LEVELS:
                for group in sorted(concerned - leveled):
                    model.add_levels(group)
                    leveled.add(group)

    def _mark(self, reduced: list[float], bound: float) -> None:
        core, model = self.core, self.model
        for node, useless in enumerate(self.bracket.useless(reduced, bound)):
            if useless and not self.useless[node]:
                self.useless[node] = True
                if model.variable[node] != core.owner[node] or core.owner[node] not in core.roots:
                    model.upper[model.variable[node]] = 0.0

    def _round(self, values: list[float]) -> None:
        """Offer the acyclic choice near ``values``: Knuth with the chosen nodes nearly free, then local search."""
        core = self.core
        amount = [min(1.0, max(0.0, a)) for a in self.model.amounts(values)]
        self.effort.spend(6 * len(core.owner))
        choice = near_choice(core, amount, 1e-6 * self.bracket.cost)
        self.bracket.offer(core, choice, "milp")
        self.bracket.offer(core, AreaSearch(core, choice).run(self.effort), "milp")


def near_choice(core: Core, amount: list[float], least: float) -> list[int]:
    """Return an acyclic choice of all classes that prefers nodes of ``amount`` near 1; ``least`` is added to all costs.

    Nodes of amount 1 are kept exactly wherever they derive their class from one another; only then come tree costs,
    which deep sharing distorts.
    """
    infinite = float("inf")
    sure = [0.0 if a > 0.999 else infinite for a in amount]
    kept = knuth(len(core.nodes), core.owner, core.children, sure).choice
    cost = [
        (own + least) * (1.0 - 0.999999 * amount[node]) if kept[core.owner[node]] in (-1, node) else infinite
        for node, own in enumerate(core.cost)
    ]
    return knuth(len(core.nodes), core.owner, core.children, cost).choice


def integral_choice(model: Model, values: list[float]) -> dict[int, int]:
    """Return the choice of the classes that the roots need in an integral solution (possibly cyclic)."""
    core, amount = model.core, model.amounts(values)
    likely = [max(members, key=lambda n: (amount[n], -n)) for members in core.nodes]
    return {current: likely[current] for current in core.needed(likely)}
