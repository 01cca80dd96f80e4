"""What an extraction returns."""

from dataclasses import dataclass

from eqsat.extract.effort import WorkDone


@dataclass(frozen=True)
class ExtractionResult:
    """A choice of e-nodes with its cost and what is proved about it.

    ``choice`` maps exactly the e-classes reachable from the roots to their e-node, children before parents. ``cost`` is
    the DAG cost in the problem's unit (each chosen e-node paid once), ``lower_bound`` a proven bound on the optimum,
    ``method`` the stage that found the choice, ``work`` what it took.
    """

    choice: dict[int, int]
    cost: float
    lower_bound: float
    method: str
    work: WorkDone
    seconds: float

    @property
    def gap(self) -> float:
        """How far the cost may be above the optimum."""
        return gap_of(self.cost, self.lower_bound)

    @property
    def optimal(self) -> bool:
        """Whether it is proved not to be."""
        return self.cost <= self.lower_bound


def gap_of(cost: float, bound: float) -> float:
    """How far a cost may be above the least, whose bound is given, as a part of itself; 0 where it is proved least."""
    return (cost - bound) / cost if cost > bound else 0.0
