"""Contestants run in turn, in several processes, on the same input.

Every process loads all contestants, in an order of its own. They take turns in an order that is drawn for every round, so that
a disturbance, or what one leaves in the caches, hits all of them; a turn is one run to warm up and one that is timed. Nothing
spins between runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.backends.onnxruntime import LEVELS
from eqsat.errors import ModelError, OptionError, choices
from eqsat.speed.statistics import Interval, quartiles, ratio_of_medians

PEERS = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Runtimes to compare with, and the module each needs."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A model file in a runtime. ``level``: how far ONNX Runtime rewrites it (`eqsat.backends.onnxruntime.LEVELS`)."""

    name: str
    path: str
    engine: str = "onnxruntime"
    level: str = "disable"


@dataclass(frozen=True, slots=True)
class Protocol:
    """``processes`` one after the other, each with ``runs`` timed runs of every contestant, ``threads`` for an operator."""

    runs: int = 7
    processes: int = 3
    threads: int = 2

    def check(self) -> None:
        """Raises `OptionError` for a value out of range."""
        for name, found in asdict(self).items():
            if found < 1:
                raise OptionError(f"{name} is {found}; it must be at least 1")


@dataclass(frozen=True)
class Measured:
    """Seconds of each timed run by process, and the distance of the outputs from the reference's.

    ``error``: largest absolute difference of an output over its largest absolute value. ``misfit``: why outputs cannot be
    compared, or why the contestant did not run; then there may be no samples.
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


def check_peers(names: Sequence[str]) -> dict[str, str]:
    """Runtime -> why it is left out, for those that are not installed. Raises `OptionError` for one that we do not know."""
    for name in names:
        if name not in PEERS:
            raise OptionError(f"--against {name!r} does not exist; {choices(name, PEERS)}")
    return {name: "not installed" for name in names if find_spec(PEERS[name]) is None}


def check_levels(names: Sequence[str]) -> None:
    """Raises `OptionError` for a level of ONNX Runtime that does not exist."""
    for name in names:
        if name not in LEVELS:
            raise OptionError(f"--levels {name!r} does not exist; {choices(name, LEVELS)}")


def contest(
    contestants: Sequence[Contestant], feeds: Mapping[str, np.ndarray], protocol: Protocol | None = None
) -> list[Measured]:
    """Times all contestants on ``feeds``; the first one's outputs are the reference for all errors.

    Raises `ModelError` if the first contestant does not run, or a process dies.
    """
    protocol = protocol or Protocol()
    protocol.check()
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "feeds.npz"
        np.savez(inputs, *feeds.values())
        found = []
        for process in range(protocol.processes):
            task = {
                "contestants": [asdict(c) for c in contestants],
                "feeds": str(inputs),
                "inputs": list(feeds),
                "runs": protocol.runs,
                "threads": protocol.threads,
                "process": process,
            }
            found.append(_process(task))
    return [
        Measured(
            contestant,
            tuple(tuple(process[k]["seconds"]) for process in found if process[k]["seconds"]),
            found[0][k]["error"],
            found[0][k]["misfit"],
        )
        for k, contestant in enumerate(contestants)
    ]


def _process(task: dict[str, Any]) -> list[dict[str, Any]]:
    """The answer of `eqsat.speed.worker`."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(task["threads"])}
    done = subprocess.run(
        [sys.executable, "-m", "eqsat.speed.worker"],
        input=json.dumps(task), capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise ModelError(f"{task['contestants'][0]['path']}: the timing process failed: {lines[-1]}")
    return json.loads(done.stdout.splitlines()[-1])
