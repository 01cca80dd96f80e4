"""Contestants on the same input, in several processes.

Contestants of one engine share a process, those of another have one of their own: thread pools of two engines disturb one
another. The processes alternate. Every process loads its contestants in an order of its own. They take turns in an order that is
drawn for every round, so that a disturbance, or what one leaves in the caches, hits all of them; a turn is one run to warm up and
one that is timed. Nothing spins between runs.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eqsat.backends.custom_ops import custom_ops
from eqsat.backends.onnxruntime import LEVELS
from eqsat.errors import ModelError, OptionError, choices

_NEVER: dict[str, Any] = {"seconds": [], "error": None}


@dataclass(frozen=True, slots=True)
class Contestant:
    """A model file in an engine. ``level``: how far ONNX Runtime rewrites it (`eqsat.backends.onnxruntime.LEVELS`);
    ``precision``: what the engine multiplies floats in (`eqsat.speed.engines`)."""

    name: str
    path: str
    engine: str = "onnxruntime"
    level: str = "disable"
    precision: str = "f32"


@dataclass(frozen=True, slots=True)
class Protocol:
    """``processes`` one after the other, each with ``runs`` timed runs of every contestant, ``threads`` for an operator. One
    that takes longer than ``limit_s``, in which it loads and compiles as well, is ended."""

    runs: int = 7
    processes: int = 3
    threads: int = 2
    limit_s: int = 3600

    def check(self) -> None:
        """Raises `OptionError` for a value out of range."""
        for name, found in asdict(self).items():
            if not isinstance(found, int) or found < 1:  # pyright: ignore[reportUnnecessaryIsInstance]  # a user's
                raise OptionError(f"{name} is {found!r}; it must be a whole number from 1 on")


@dataclass(frozen=True)
class Measured:
    """Seconds of each timed run by process, and the distance of the outputs from the reference's.

    ``error``: largest absolute difference of an output over its largest absolute value. ``misfit``: why outputs cannot be
    compared, or why the contestant did not run; then there are no samples.
    """

    contestant: Contestant
    samples: tuple[tuple[float, ...], ...] = ()
    error: float | None = None
    misfit: str = ""

    @property
    def median_s(self) -> float:
        return float(np.median([s for process in self.samples for s in process]))

    @property
    def spread(self) -> float:
        """Distance of the quartiles over the median."""
        low, high = quartiles([s for process in self.samples for s in process])
        return (high - low) / self.median_s

    def ratio_to(self, other: Measured) -> Interval:
        """How many times as long this takes as ``other``: ratio of the medians, with a 95 % interval."""
        return ratio_of_medians(self.samples, other.samples)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        timed = {"median_s": self.median_s, "spread": self.spread} if self.samples else {}
        return {**asdict(self.contestant), **timed, "error": self.error, "misfit": self.misfit, "samples": self.samples}


def levels_of(name: str, path: Path, levels: Sequence[str] = tuple(LEVELS)) -> list[Contestant]:
    """A model under each level of ONNX Runtime."""
    return [Contestant(f"{name} {level}", str(path), level=level) for level in levels]


def check_levels(names: Sequence[str]) -> None:
    """Raises `OptionError` for a level of ONNX Runtime that does not exist, or where there is none."""
    for name in names or ("",):
        if name not in LEVELS:
            raise OptionError(f"--levels {name!r} does not exist; {choices(name, LEVELS)}")


def contest(
    contestants: Sequence[Contestant],
    feeds: Mapping[str, np.ndarray],
    reference: Mapping[str, Any],
    protocol: Protocol,
) -> list[Measured]:
    """Times all contestants on ``feeds``; errors are distances from the outputs ``reference``.

    One that does not run, or ends its process, says why. Raises `ModelError` if none runs.
    """
    protocol.check()
    teams = [
        [k for k, c in enumerate(contestants) if c.engine == engine] for engine in {c.engine: 0 for c in contestants}
    ]
    found: list[list[dict[str, Any]]] = [[] for _ in contestants]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data.pickle"
        data.write_bytes(pickle.dumps((dict(feeds), dict(reference))))
        for process in range(protocol.processes):
            for team in _able(teams, found):
                task = {**asdict(protocol), "data": str(data), "process": process, "custom_ops": custom_ops()}
                for k, answer in zip(team, _answers([contestants[k] for k in team], task), strict=True):
                    found[k].append(answer)
    measured = [_measured(c, answers) for c, answers in zip(contestants, found, strict=True)]
    if not any(m.samples for m in measured):
        raise ModelError(f"{contestants[0].path}: nothing runs: {measured[0].misfit}")
    return measured


def _measured(contestant: Contestant, answers: Sequence[Mapping[str, Any]]) -> Measured:
    """The answers of all processes; one that did not run in each of them has no times."""
    failed = next((a for a in answers if not a["seconds"]), None)
    samples = () if failed else tuple(tuple(a["seconds"]) for a in answers)
    return Measured(contestant, samples, answers[0]["error"], (failed or answers[0])["misfit"])


def _able(teams: Sequence[Sequence[int]], found: Sequence[Sequence[dict[str, Any]]]) -> list[list[int]]:
    """Those of each team that ran, or have not been tried."""
    left = [[k for k in team if all(answer["seconds"] for answer in found[k])] for team in teams]
    return [team for team in left if team]


def _answers(contestants: Sequence[Contestant], task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The answers of one process; where it dies, of one for each contestant."""
    answers, said = _process({**task, "contestants": [asdict(c) for c in contestants]})
    if answers is not None:
        return answers
    if len(contestants) > 1:
        return [answer for c in contestants for answer in _answers([c], task)]
    return [{**_NEVER, "misfit": said}]


def _process(task: Mapping[str, Any]) -> tuple[list[dict[str, Any]] | None, str]:
    """The answer of `eqsat.speed.worker`, or what it died of. It imports what this process does, and not what lies in the folder
    that it happens to run in."""
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(task["threads"])}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "eqsat.speed.worker"], env=environment, input=json.dumps(task),
            capture_output=True, text=True, check=False, timeout=task["limit_s"],
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"takes more than {task['limit_s']} s to load, compile and run"
    if not done.returncode:
        return json.loads(done.stdout.splitlines()[-1]), ""
    if done.returncode < 0:
        return None, f"ended its process by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
    return None, f"its process failed: {lines[-1]}"


# --- medians ---------------------------------------------------------------------------------------------------------


_RESAMPLES = 2000


class Interval(NamedTuple):
    """An estimate and the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(samples, (0.25, 0.75))
    return float(low), float(high)


def ratio_of_medians(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """Median of ``a`` over median of ``b``; both are samples by process, the same number of processes.

    The interval is a bootstrap over processes, and over runs within each: runs of one process share its luck with memory.
    """
    value = float(np.median(np.concatenate(a)) / np.median(np.concatenate(b)))
    random = np.random.default_rng(seed)
    first, second = [np.asarray(x) for x in a], [np.asarray(x) for x in b]
    ratios = np.empty(_RESAMPLES)
    for k in range(_RESAMPLES):
        chosen = random.integers(len(first), size=len(first))
        ratios[k] = _resampled(first, chosen, random) / _resampled(second, chosen, random)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Interval(value, float(low), float(high))


def _resampled(samples: Sequence[np.ndarray], processes: np.ndarray, random: np.random.Generator) -> float:
    chosen: list[int] = processes.tolist()
    return float(np.median(np.concatenate([random.choice(samples[p], samples[p].size) for p in chosen])))
