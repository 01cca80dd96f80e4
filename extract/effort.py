"""Work, counted where it is done: a limit on it ends a search at the same place on every machine, quiet or busy."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from eqsat.errors import OptionError

STEPS_PER_SECOND = 1_000_000
"""Steps are so weighted that about this many take a second on one core. That is to give limits a familiar size: it decides
nothing."""


@dataclass
class WorkDone:
    """What was done. ``steps``: all of it, weighted; ``lp_iterations`` of the simplex method, ``milp_nodes`` of branch and bound
    in HiGHS. ``late``: the ceiling in seconds ended something before its limit of work did, so that another run may find another
    answer."""

    steps: int = 0
    lp_iterations: int = 0
    milp_nodes: int = 0
    late: bool = False

    def add(self, other: WorkDone) -> None:
        """Adds what was done elsewhere."""
        for name in (f.name for f in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.late = bool(self.late)


class Effort:
    """A limit on ``work``: the steps at which it is used up. ``ceiling_s``: seconds from now after which it is in any case.
    ``enough``: a gap, as a part of the cost, that is not worth more of it.

    Parts of an effort count the same work.
    """

    __slots__ = ("_end", "_limit", "enough", "work")

    def __init__(
        self,
        limit: float = float("inf"),
        ceiling_s: float = float("inf"),
        work: WorkDone | None = None,
        enough: float = 0.0,
    ) -> None:
        if not (limit >= 0 and ceiling_s >= 0):
            raise OptionError(
                f"a limit of work of {limit} steps, {ceiling_s} seconds: give numbers that are not negative"
            )
        self.work = work or WorkDone()
        self.enough = enough
        self._limit = self.work.steps + limit
        self._end = time.perf_counter() + ceiling_s

    @property
    def left(self) -> float:
        """Steps left."""
        return max(0.0, self._limit - self.work.steps)

    @property
    def seconds_left(self) -> float:
        """Seconds to the ceiling."""
        return self._end - time.perf_counter()

    def spend(self, steps: float) -> None:
        """Counts work that was done."""
        self.work.steps += int(steps)

    def over(self) -> bool:
        """Whether nothing is left."""
        if self.work.steps >= self._limit:
            return True
        if time.perf_counter() < self._end:
            return False
        self.work.late = True
        return True

    def part(self, share: float, *, work: WorkDone | None = None) -> Effort:
        """A share of what is left, counted in ``work`` if that is given."""
        return Effort(share * self.left, max(0.0, self.seconds_left), work or self.work, self.enough)
