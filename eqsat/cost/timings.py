"""Timings of single kernels on one machine: what `eqsat calibrate` writes and the measured cost model reads.

A file is JSON with one timing a line. Files shipped with eqsat lie in ``tables/``; those of this machine in the cache folder
of the platform, under a name that changes with the machine and the version of the runtime.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eqsat.errors import ModelError, OutputError
from eqsat.ir.graph import NO_ATTRIBUTES, Attributes
from eqsat.ir.types import DType, TensorType, is_sequence
from eqsat.output import write_files

FORMAT = 1
_TABLES = Path(__file__).parent / "tables"
_VECTOR_FLAGS = ("avx", "amx", "sse", "fma", "f16c", "neon", "asimd", "sve", "i8mm", "bf16")


@dataclass(frozen=True, slots=True)
class Timing:
    """One kernel: operator, attributes, types of operands (``None``: absent) and outputs, and the seconds a call takes.

    ``spread``: half the distance of the quartiles of the repeats over their median.
    """

    key: str
    attributes: Attributes
    types: tuple[TensorType | None, ...]
    results: tuple[TensorType, ...]
    seconds: float
    spread: float = 0.0

    @property
    def case(self) -> str:
        """What was timed, as text: unique within a table."""
        return case_name(self.key, self.attributes, self.types)


def case_name(key: str, attributes: Mapping[str, Any], types: tuple[TensorType | None, ...]) -> str:
    """``MatMul float32[128, 768] float32[768, 768]``, attributes in brackets after the operator."""
    operands = " ".join(str(t) if t is not None else "-" for t in types)
    stated = f" ({', '.join(f'{k}={v}' for k, v in attributes.items())})" if attributes else ""
    return f"{key}{stated} {operands}"


@dataclass
class Table:
    """Timings of one machine. ``failures``: cases that the runtime has no kernel for, and what it said."""

    target: str
    machine: dict[str, Any]
    timings: list[Timing] = field(default_factory=list[Timing])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    complete: bool = False

    def save(self, path: Path) -> None:
        """Writes the table, atomically. Raises `OutputError` if that cannot be done."""
        head = {
            "format": FORMAT,
            "target": self.target,
            "complete": self.complete,
            "machine": self.machine,
            "failures": self.failures,
        }
        lines = [json.dumps(_row(t)) for t in sorted(self.timings, key=lambda t: t.case)]
        text = json.dumps(head, indent=1)[:-2] + ',\n "timings": [\n' + ",\n".join(lines) + "\n]}\n"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: lambda file: file.write(text.encode())})
        except OSError as error:
            raise OutputError(f"{path}: cannot write the timings: {error.strerror}") from None


def load_table(path: Path) -> Table:
    """The timings in a file. Raises `ModelError` if it cannot be read or is no table of timings."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}, this version reads {FORMAT}")
        timings = [_timing(row) for row in data["timings"]]
        return Table(data["target"], data["machine"], timings, data["failures"], data["complete"])
    except OSError as error:
        raise ModelError(f"{path}: cannot read the timings: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ModelError(
            f"{path}: not a table of timings ({type(error).__name__}: {error}); delete it, or make it anew with "
            "`eqsat calibrate --restart`"
        ) from None


def _row(timing: Timing) -> list[Any]:
    attributes = {k: list(v) if is_sequence(v) else v for k, v in timing.attributes.items()}
    types = [None if t is None else _type_row(t) for t in timing.types]
    seconds = float(f"{timing.seconds:.4g}")
    return [timing.key, attributes, types, [_type_row(t) for t in timing.results], seconds, round(timing.spread, 3)]


def _type_row(type: TensorType) -> list[Any]:
    return [type.dtype.numpy.name, *(type.shape or ())]


def _timing(row: list[Any]) -> Timing:
    key, attributes, types, results, seconds, spread = row
    if not seconds > 0:
        raise ValueError(f"{key}: {seconds} seconds")
    operands = tuple(None if t is None else _type(*t) for t in types)
    given = Attributes(attributes) if attributes else NO_ATTRIBUTES
    return Timing(key, given, operands, tuple(_type(*t) for t in results), float(seconds), float(spread))


@cache  # a table has thousands of types, and few different ones
def _type(dtype: str, *shape: int) -> TensorType:
    return TensorType(DType.of(dtype), tuple(map(int, shape)))


def this_machine(threads: int, target: str = "onnxruntime-cpu") -> dict[str, Any]:
    """What timings depend on: processor, cores, vector instructions, version of the runtime of the target, threads."""
    model, flags = _processor()
    runtime = "openvino" if target == "openvino-cpu" else "onnxruntime"
    return {
        "cpu": model,
        "cores": os.cpu_count() or 1,
        "flags": sorted(f for f in flags if f.startswith(_VECTOR_FLAGS)),
        runtime: _runtime_version(runtime),
        "threads": threads,
    }


def _processor() -> tuple[str, set[str]]:
    """Model name and feature flags of the processor, as far as the platform tells."""
    model, flags = platform.processor() or platform.machine(), set[str]()
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return model, flags
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            model = value.strip()
        elif name.strip() in ("flags", "Features"):
            flags.update(value.split())
    return model, flags


def _runtime_version(runtime: str) -> str:
    builds = ("", "-gpu", "-openvino") if runtime == "onnxruntime" else ("",)
    for package in (runtime + build for build in builds):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed"


def cache_folder() -> Path | None:
    """Where eqsat keeps files of this user on this machine; ``None`` for one without a home, as in some containers."""
    home = Path(os.path.expanduser("~"))
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "eqsat" if base.is_absolute() else None


def own_table_path(target: str, machine: Mapping[str, Any]) -> Path | None:
    """Where the timings that this machine made for a target lie, if it keeps any."""
    folder = cache_folder()
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:12]
    return None if folder is None else folder / f"timings-{target}-{digest}.json"


def shipped_table_path(target: str) -> Path:
    """Where the timings shipped for a target lie; there may be none."""
    return _TABLES / f"{target}.json"


@cache
def default_table(target: str) -> Table | None:
    """The timings of this machine if it was calibrated to the end, else the shipped ones, else ``None``."""
    own = own_table_path(target, this_machine(DEFAULT_THREADS, target))
    if own is not None and os.path.isfile(own):  # not where the folder is another user's
        table = load_table(own)
        if table.complete:
            return table
    shipped = shipped_table_path(target)
    return load_table(shipped) if shipped.is_file() else None


DEFAULT_THREADS = 2
"""Threads that kernels are timed with unless the user says otherwise."""
