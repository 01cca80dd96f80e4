"""What an extraction returns."""

from dataclasses import dataclass

from eqsat.extract.effort import WorkDone


@dataclass(frozen=True)
class ExtractionResult:
    """A choice of e-nodes with its cost and what is proved about it.

    ``choice`` maps exactly the e-classes reachable from the roots to their e-node, children before parents. ``cost`` is
    the DAG cost in the problem's unit (each chosen e-node paid once), ``lower_bound`` a proven bound on the optimum,
    ``gap`` is ``(cost - lower_bound) / cost`` (0 when proved), ``method`` the stage that found the choice,
    ``work`` what it took.
    """

    choice: dict[int, int]
    cost: float
    lower_bound: float
    gap: float
    optimal: bool
    method: str
    work: WorkDone
    seconds: float
