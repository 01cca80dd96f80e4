"""How far a model's outputs move when its roundings do: the source of every end-to-end tolerance.

The original itself is run with noise at each of its roundings (`eqsat.verification.noise`). A float model moves a little; a
quantised one amplifies a single flipped rounding through all its layers, and its own noise runs say how much that comes to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eqsat.backends.onnxruntime import Session
from eqsat.errors import ModelError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.verification.compare import Yardstick
from eqsat.verification.noise import NOISE_RUNS, NoisyGraph, add_noise
from eqsat.verification.pieces import session_of
from eqsat.verification.values import whole_numbers


class Sensitivity:
    """``original``, ready to be run with the noise that rewrites of class ``exactness`` may cause.

    ``notes`` says so where the noise could not be run; outputs then have to agree to a few ulp.
    """

    def __init__(self, original: Graph, exactness: Exactness, noise_runs: int = NOISE_RUNS) -> None:
        self.original = original
        self.exactness = exactness
        self.noise_runs = noise_runs
        self.notes: list[str] = []
        self._whole = whole_numbers(original)
        self._noisy: NoisyGraph | None = None
        self._session: Session | None = None
        if exactness > Exactness.EXACT:
            self._noisy = add_noise(original, exactness, self._whole)
            if self._noisy.sites:
                try:
                    self._session = session_of(self._noisy.graph, prepack=False)
                except ModelError as error:
                    self._give_up(error)

    def yardsticks(
        self, feeds: Mapping[str, np.ndarray], reference: Mapping[str, Any], seed: int = 0
    ) -> dict[str, Yardstick]:
        """By output: ``reference``, what the original computes from ``feeds``, and how far it may be from that."""
        found = {
            name: Yardstick(value, whole=name in self._whole, quanta=self._quanta(value))
            for name, value in reference.items()
        }
        if self._session is None or self._noisy is None:
            return found
        for run in range(self.noise_runs):
            try:
                noisy = self._session.run({**feeds, **self._noisy.pools(seed * self.noise_runs + run)})
            except ModelError as error:
                self._give_up(error)
                break
            for name, yardstick in found.items():
                yardstick.observe(noisy[name])
        return found

    def _quanta(self, value: Any) -> int:
        small = isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.dtype.itemsize <= 2
        return int(small and self.exactness > Exactness.EXACT)

    def _give_up(self, error: ModelError) -> None:
        self._session = None
        self.notes.append(f"the original cannot be run with noise, so outputs have to agree to a few ulp: {error}")


def tolerance(
    original: Graph, feeds: Mapping[str, np.ndarray], exactness: Exactness, seed: int = 0
) -> dict[str, float]:
    """By output: the largest absolute error that a program equal to ``original`` up to ``exactness`` may show."""
    reference = session_of(original).run(feeds)
    yardsticks = Sensitivity(original, exactness).yardsticks(feeds, reference, seed)
    return {name: 0.0 if exactness is Exactness.EXACT else y.tolerance for name, y in yardsticks.items()}
