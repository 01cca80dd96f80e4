"""What the original computes on every trial, and how far from that another program may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.verify.compare import Yardstick
from eqsat.verify.pieces import Run
from eqsat.verify.sensitivity import Sensitivity

Yardsticks = Mapping[str, Yardstick]


class Reference:
    """``original`` on ``trials``. ``run`` computes its outputs; ``round_halves``: see `eqsat.verify.pieces.session_of`.

    The runs with noise take place when they are first asked for, for all trials at once, so that no more than one session
    is held. ``notes`` says so where they could not.
    """

    def __init__(
        self,
        original: Graph,
        run: Run,
        trials: Sequence[Mapping[str, np.ndarray]],
        seed: int = 0,
        *,
        round_halves: bool = True,
    ) -> None:
        self.trials = trials
        self.outputs: list[dict[str, Any]] = [run(feeds) for feeds in trials]
        self.notes: list[str] = []
        self._original = original
        self._seed = seed
        self._round_halves = round_halves
        self._yardsticks: dict[Exactness, list[dict[str, Yardstick]]] = {}

    def yardsticks(self, exactness: Exactness) -> Sequence[Yardsticks]:
        """For each trial and by output: the yardstick for programs of class ``exactness``."""
        exactness = min(exactness, Exactness.LSB)
        if exactness not in self._yardsticks:
            measure = Sensitivity(self._original, exactness, round_halves=self._round_halves)
            self._yardsticks[exactness] = [
                measure.yardsticks(feeds, outputs, self._seed + k)
                for k, (feeds, outputs) in enumerate(zip(self.trials, self.outputs, strict=True))
            ]
            self.notes += measure.notes
        return self._yardsticks[exactness]
