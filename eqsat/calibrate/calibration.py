"""Calibration: which kernels are timed for a target, one table, from which everything else follows; those that are not timed yet,
batch by batch, and every batch is kept."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eqsat.backends.consumer import find_consumer
from eqsat.calibrate import openvino
from eqsat.calibrate.case import Case, Cases
from eqsat.calibrate.timer import Repeats, time_kernels
from eqsat.cost.timings import Table, load_table, own_table_path, this_machine
from eqsat.errors import OptionError
from eqsat.ir.operator import split_key

TARGETS = ("onnxruntime-cpu", "openvino-cpu")
"""Targets that can be calibrated: those whose kernels run on this machine, in ONNX Runtime or OpenVINO."""


def grid_of(target: str) -> tuple[Case, ...]:
    """Every kernel to time for a target, each once. Raises `OptionError` for a target that does not run here."""
    if target not in TARGETS:
        raise OptionError(f"target {target!r} cannot be calibrated on this machine; choose one of {', '.join(TARGETS)}")
    from eqsat.calibrate.grid_attention import ATTENTION
    from eqsat.calibrate.grid_convolutions import CONVOLUTIONS
    from eqsat.calibrate.grid_movement import MOVEMENT
    from eqsat.calibrate.grid_others import OTHERS
    from eqsat.calibrate.grid_products import PRODUCTS

    cases = cases_of((*PRODUCTS, *CONVOLUTIONS, *ATTENTION, *OTHERS, *MOVEMENT))
    if target == "openvino-cpu":
        reader = find_consumer("openvino")
        return tuple(c for c in cases if not split_key(c.key)[0] and reader.takes(c.key, c.types))
    return cases


def cases_of(kernels: tuple[Cases, ...]) -> tuple[Case, ...]:
    """The cases of a table of kernels; of two that are the same the first."""
    found: dict[str, Case] = {}
    for entry in kernels:
        for case in entry.cases():
            found.setdefault(case.name, case)
    return tuple(found.values())


BATCH = 12
"""Kernels that take turns, and that are lost when the work is interrupted."""

KERNEL_S = 0.25
"""About how long a kernel takes by default, its sessions included."""

UNSTEADY = 0.1
"""Spread above which a kernel is timed again."""

Progress = Callable[[int, int, str], None]
"""Called with kernels done, kernels in all, and the one that comes next."""

Announce = Callable[[str], None]
"""Called once, with what is going to be done."""


@dataclass(frozen=True)
class Calibration:
    """What a calibration did. ``timed`` kernels now, ``known`` before, ``failed``: without a kernel in this runtime."""

    path: Path
    table: Table
    timed: int
    known: int

    @property
    def failed(self) -> int:
        return len(self.table.failures)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "database": str(self.path),
            "target": self.table.target,
            "machine": self.table.machine,
            "kernels": len(self.table.timings),
            "timed": self.timed,
            "known": self.known,
            "failures": self.table.failures,
            "complete": self.table.complete,
        }

    def __str__(self) -> str:
        machine = self.table.machine
        return (
            f"{self.path}: {len(self.table.timings)} kernels of {self.table.target}, {self.timed} timed now, "
            f"{self.known} known before, {self.failed} not in this runtime\n"
            f"  {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, "
            + ", ".join(f"{name} {machine[name]}" for name in ("onnxruntime", "openvino") if name in machine)
        )


def calibrate(
    target: str,
    cases: Sequence[Case],
    path: Path | None = None,
    *,
    how: Repeats | None = None,
    restart: bool = False,
    whole: bool = True,
    retries: int = 2,
    progress: Progress = lambda done, total, name: None,
    announce: Announce = lambda text: None,
) -> Calibration:
    """Times ``cases`` and keeps the timings in ``path`` (by default this machine's own file), which is written after every
    batch: interrupted, it goes on where it was. ``restart`` forgets what was timed of the operators in ``cases``. ``whole``:
    these are all kernels of the target, so that the file may then be used without being asked for. Kernels whose repeats
    differ by more than `UNSTEADY` are timed again, ``retries`` times.

    Raises `ModelError` if ``path`` holds something else and `OptionError` if its timings are another machine's.
    """
    how = how or Repeats()
    machine = this_machine(how.threads, target)
    path = path or own_table_path(target, machine)
    if path is None:
        raise OptionError("there is no home folder to keep the timings in; name a file with --database")
    table = Table(target, machine)
    if path.exists() and not (restart and whole):
        table = load_table(path)
        _check_same(path, table, target, machine)
    if restart:
        _forget(table, {case.key for case in cases})
    done = {t.case for t in table.timings} | set(table.failures)
    known = len(table.timings)
    left = [case for case in cases if case.name not in done]
    announce(_plan(left, target, path, how))
    _time_all(left, table, path, how, lambda n, name: progress(len(cases) - len(left) + n, len(cases), name))
    table.complete = table.complete or whole
    table.save(path)
    for _ in range(retries):
        unsteady = {t.case for t in table.timings if t.spread > UNSTEADY}
        left = [case for case in cases if case.name in unsteady]
        total = len(left)
        _time_all(left, table, path, how, lambda n, name, total=total: progress(n, total, f"{name}, again"))
    progress(len(cases), len(cases), "")
    return Calibration(path, table, len(table.timings) - known, known)


def _plan(cases: Sequence[Case], target: str, path: Path, how: Repeats) -> str:
    minutes = math.ceil(len(cases) * KERNEL_S * how.repeats / Repeats().repeats / 60)
    return (
        f"timing {len(cases)} kernels of {target}, at least {minutes} min; timings are kept in {path} as they are made, so "
        "that it may be interrupted, and goes on there"
    )


def _time_all(
    cases: Sequence[Case], table: Table, path: Path, how: Repeats, progress: Callable[[int, str], None]
) -> None:
    """Times ``cases`` in random order, for a disturbance must not hit all kernels of one family. Of two timings of a kernel the
    shorter stays: whatever else the machine does only adds time."""
    timer = openvino.time_kernels if table.target == "openvino-cpu" else time_kernels
    left = list(cases)
    random.Random(len(left)).shuffle(left)
    for start in range(0, len(left), BATCH):
        batch = left[start : start + BATCH]
        progress(start, batch[0].key)
        timings, failures = timer(batch, how)
        best = {t.case: t for t in table.timings}
        for timing in timings:
            known = best.get(timing.case)
            if known is None or timing.seconds < known.seconds:
                best[timing.case] = timing
        table.timings = list(best.values())
        table.failures.update(failures)
        table.save(path)


def _forget(table: Table, keys: set[str]) -> None:
    """Takes the timings and failures of operators out of a table."""
    table.timings = [t for t in table.timings if t.key not in keys]
    table.failures = {case: said for case, said in table.failures.items() if case.split(" ", 1)[0] not in keys}


_ANEW = "name another file, or use --restart for all operators"


def _check_same(path: Path, table: Table, target: str, machine: dict[str, Any]) -> None:
    if table.target != target:
        raise OptionError(f"{path}: holds timings of target {table.target!r}; {_ANEW}")
    for name, found in machine.items():
        if table.machine.get(name) != found:
            raise OptionError(
                f"{path}: its timings have {name} {table.machine.get(name)!r}, here it is {found!r}; {_ANEW}"
            )
