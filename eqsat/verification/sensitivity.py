"""How far a model's outputs move when its roundings do: the source of every end-to-end tolerance.

The original itself is run with noise at each of its roundings (`eqsat.verification.noise`). A float model moves a little; a
quantised one amplifies a single flipped rounding through all its layers, and its own noise runs say how much that comes to.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.errors import EqsatError, ModelError, OutputError
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.ir.types import is_array
from eqsat.verification.compare import Yardstick
from eqsat.verification.noise import NoisyGraph, add_noise, noise_runs_of, rounded_again
from eqsat.verification.pieces import Run, in_interpreter_of, session_of
from eqsat.verification.values import copied, rounded_floats, whole_numbers


class Sensitivity:
    """``original``, ready to be run with the noise that rewrites of class ``exactness`` may cause.

    ``noise_runs``: how many runs there are, at most. ``notes`` says so where the noise could not be run; outputs then have to
    agree to a few ulp. ``round_halves``: see `session_of`.
    """

    def __init__(self, original: Graph, exactness: Exactness, *, round_halves: bool = True) -> None:
        self.original = original
        self.exactness = exactness
        self.noise_runs = noise_runs_of(original)
        self.notes: list[str] = []
        self._whole = whole_numbers(original)
        self._round_halves = round_halves

    @cached_property
    def _noisy(self) -> NoisyGraph | None:
        return None if self.exactness is Exactness.EXACT else add_noise(self.original, self.exactness, self._whole)

    @cached_property
    def _run(self) -> Run | None:
        if self._noisy is None or not self._noisy.sites:
            return None
        try:
            return session_of(self._noisy.graph, round_halves=self._round_halves).run
        except (ModelError, OutputError):
            return in_interpreter_of(self._noisy.graph)

    @cached_property
    def _run_clean(self) -> Run:
        try:
            return session_of(self.original, round_halves=self._round_halves).run
        except ModelError:
            return in_interpreter_of(self.original)

    @cached_property
    def _rounded(self) -> frozenset[str]:
        """Outputs that are rounded, or copies of what is."""
        if self.exactness is Exactness.EXACT:
            return frozenset()
        found = set(rounded_floats(self.original, self._whole))
        for node in self.original.nodes:
            sources = copied(node)
            if sources and all(v in found for i, v in enumerate(node.inputs) if i in sources):
                found.update(node.outputs)
        return frozenset(found.intersection(self.original.outputs))

    def without_noise(self, reference: Mapping[str, Any]) -> dict[str, Yardstick]:
        """By output: ``reference``, what the original computes, and how far it may be from that before any run with noise: by the
        outputs' own roundings alone."""
        found = {
            name: Yardstick(value, whole=name in self._whole, quanta=self._quanta(value))
            for name, value in reference.items()
        }
        for name in self._rounded & found.keys():
            found[name].observe(rounded_again(reference[name]))
        return found

    def clean(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
        """What ``original`` computes without noise; ``None`` if nothing moves it, or it does not run."""
        if self._run is None:
            return None
        try:
            return self._run_clean(feeds)
        except EqsatError as error:
            self._give_up(error)
            return None

    def observe(
        self,
        yardsticks: Mapping[str, Yardstick],
        feeds: Mapping[str, np.ndarray],
        seed: int,
        run: int,
        clean: Mapping[str, Any] | None = None,
    ) -> None:
        """Shows ``yardsticks`` what run ``run`` of `noise_runs` with noise computes.

        ``clean``: what `original` computes without, where that is not what the yardsticks are around: those of a file, which
        may have been misread. Only what noise moves is noise.
        """
        if self._run is None or self._noisy is None:
            return
        try:
            noisy = self._run({**feeds, **self._noisy.pools(seed * self.noise_runs + run)})
        except EqsatError as error:
            self._give_up(error)
            return
        for name, yardstick in yardsticks.items():
            yardstick.observe(noisy[name], None if clean is None else clean[name])

    def _quanta(self, value: Any) -> int:
        small = is_array(value) and value.dtype.kind in "iu" and value.dtype.itemsize <= 2
        return int(small and self.exactness > Exactness.EXACT)

    def _give_up(self, error: EqsatError) -> None:
        self._run = None
        self.notes.append(f"the original cannot be run with noise, so outputs have to agree to a few ulp: {error}")
