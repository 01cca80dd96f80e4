"""Targets: what a machine can do and how fast, read from ``targets/*.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from eqsat.errors import OptionError

_FOLDER = Path(__file__).parent / "targets"


@dataclass(frozen=True)
class Target:
    """Rates of a machine and its software stack.

    ``peak_ops`` gives operations per second (a multiply-add is two) by element type name, ``"default"`` for the rest.
    ``free_kinds`` names the kinds of operator that launch nothing.
    """

    name: str
    description: str
    source: str
    launch_s: float
    bandwidth_bytes_per_s: float
    peak_ops: Mapping[str, float]
    free_kinds: frozenset[str]

    def peak(self, dtype: str) -> float:
        """Peak rate for an element type, operations per second."""
        return self.peak_ops.get(dtype, self.peak_ops["default"])


@cache
def load_target(name: str) -> Target:
    """The shipped target called ``name``. Raises `OptionError` with the names there are."""
    path = _FOLDER / f"{name}.toml"
    if name not in target_names():
        raise OptionError(f"target {name!r} does not exist; choose one of {', '.join(target_names())}")
    data = tomllib.loads(path.read_text())
    return Target(
        name,
        data["description"],
        data["source"],
        float(data["launch_s"]),
        float(data["bandwidth_bytes_per_s"]),
        MappingProxyType({k: float(v) for k, v in data["peak_ops"].items()}),
        frozenset(data["free_kinds"]),
    )


def target_names() -> tuple[str, ...]:
    """Names of the shipped targets, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
