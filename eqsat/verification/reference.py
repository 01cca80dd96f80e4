"""What the original computes on every trial, and how far from that another program may be."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.verification.compare import Judgement, Yardstick
from eqsat.verification.pieces import Run, session_of
from eqsat.verification.sensitivity import Sensitivity

Yardsticks = Mapping[str, Yardstick]

PASSED_OVER = "output {!r} was not compared: roundings of the original change its shape; the kernels were, one by one"


class Reference:
    """``original`` on ``trials``. ``run`` computes its outputs; ``round_halves``: see `eqsat.verification.pieces.session_of`.
    ``full``: what noise does on one trial is never taken for what it does on another one like it. ``as_read``: what
    ``original`` computes on trials, as far as that is known, where ``run`` runs the file that it was read from. ``by_kernels``:
    programs are compared kernel by kernel, too, so outputs are passed over of which noise changes the shape.

    The runs with noise take place when they are first asked for, one session for each class of programs.
    """

    def __init__(
        self,
        original: Graph,
        run: Run,
        trials: Sequence[Mapping[str, np.ndarray]],
        seed: int = 0,
        *,
        round_halves: bool = True,
        full: bool = False,
        as_read: Mapping[int, Mapping[str, Any]] | None = None,
        by_kernels: bool = False,
    ) -> None:
        self._full = full
        self._by_kernels = by_kernels
        self._runs_file = as_read is not None
        self._as_read: dict[int, Mapping[str, Any] | None] = dict(as_read or {})
        self.trials = trials
        self.outputs: list[dict[str, Any]] = [run(feeds) for feeds in trials]
        self._original = original
        self._seed = seed
        self._round_halves = round_halves
        self._measures: dict[Exactness, Sensitivity] = {}
        self._yardsticks: dict[tuple[Exactness, int], dict[str, Yardstick]] = {}
        self._observed: dict[tuple[Exactness, int], int] = {}

    def judge(self, trial: int, found: Mapping[str, Any], exactness: Exactness) -> dict[str, Judgement]:
        """What is to be said of a program of class ``exactness`` that computes ``found`` on a trial, by output.

        Runs with noise take longer than all else: they are for what differs by more than a few ulp, and no more of them
        take place than it needs.
        """
        judged = _judge(self._of(Exactness.EXACT, trial), found, exactness)
        allowed = min(exactness, Exactness.LSB)
        if allowed > Exactness.EXACT and _refuses(judged) and not self._full:
            judged = self._judge_by_another(trial, found, exactness, allowed) or judged
        while allowed > Exactness.EXACT and _refuses(judged):
            judged = _judge(self._of(allowed, trial), found, exactness)
            if not _refuses(judged) or not self._observe(allowed, trial):
                break
        if self._by_kernels and allowed > Exactness.EXACT and _refuses(judged):
            judged = _passing_over(self._of(allowed, trial), judged)
        return judged

    def _judge_by_another(
        self, trial: int, found: Mapping[str, Any], exactness: Exactness, allowed: Exactness
    ) -> dict[str, Judgement] | None:
        """The judgement by what noise did on another trial, if that is one like this, and nothing is refused."""
        if (allowed, trial) in self._observed:
            return None
        for other in (k for k in range(len(self.trials)) if (allowed, k) in self._observed):
            known = self._of(allowed, other)
            yardsticks = {name: known[name].borrowed(value) for name, value in self.outputs[trial].items()}
            if all(yardsticks.values()):
                judged = _judge({name: y for name, y in yardsticks.items() if y is not None}, found, exactness)
                if not _refuses(judged):
                    return judged
        return None

    def yardsticks(self, exactness: Exactness) -> Sequence[Yardsticks]:
        """For each trial and by output: the yardstick for programs of class ``exactness``, after all runs with noise."""
        allowed = min(exactness, Exactness.LSB)
        for trial in range(len(self.trials)):
            while self._observe(allowed, trial):
                pass
        return [self._of(allowed, trial) for trial in range(len(self.trials))]

    def _of(self, exactness: Exactness, trial: int) -> dict[str, Yardstick]:
        key = (exactness, trial)
        if key not in self._yardsticks:
            self._yardsticks[key] = self._measure(exactness).without_noise(self.outputs[trial])
        return self._yardsticks[key]

    def _measure(self, exactness: Exactness) -> Sensitivity:
        if exactness not in self._measures:
            self._measures[exactness] = Sensitivity(self._original, exactness, round_halves=self._round_halves)
        return self._measures[exactness]

    def _observe(self, exactness: Exactness, trial: int) -> bool:
        """One more run with noise; whether there was one left."""
        measure, run = self._measure(exactness), self._observed.get((exactness, trial), 0)
        if run >= measure.noise_runs or exactness is Exactness.EXACT:
            return False
        self._observed[exactness, trial] = run + 1
        feeds = self.trials[trial]
        if self._runs_file and trial not in self._as_read:
            self._as_read[trial] = measure.clean(feeds)
        measure.observe(self._of(exactness, trial), feeds, self._seed + trial, run, self._as_read.get(trial))
        return True

    @property
    def notes(self) -> list[str]:
        """Why runs with noise could not take place, where that is so."""
        return [note for measure in self._measures.values() for note in measure.notes]


def tolerance(original: Graph, feeds: Mapping[str, np.ndarray], exactness: Exactness) -> dict[str, float]:
    """By output: the largest absolute error that a program equal to ``original`` up to ``exactness`` may show."""
    (yardsticks,) = Reference(original, session_of(original).run, [feeds]).yardsticks(exactness)
    return {name: 0.0 if exactness is Exactness.EXACT else y.tolerance for name, y in yardsticks.items()}


def _judge(yardsticks: Yardsticks, found: Mapping[str, Any], exactness: Exactness) -> dict[str, Judgement]:
    return {name: y.judge(found[name], exact=exactness is Exactness.EXACT) for name, y in yardsticks.items()}


def _passing_over(yardsticks: Yardsticks, judged: Mapping[str, Judgement]) -> dict[str, Judgement]:
    """``judged``, with nothing asked of outputs that noise has made another shape of."""
    return {
        name: replace(j, message="", passed_over=j.message) if yardsticks[name].reshaped else j
        for name, j in judged.items()
    }


def _refuses(judged: Mapping[str, Judgement]) -> bool:
    return any(judgement.message for judgement in judged.values())
