"""`bench`: optimise a model, then time original and result side by side."""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eqsat.backends.onnxruntime import LEVELS
from eqsat.cost.model import find_cost_model
from eqsat.errors import ModelError
from eqsat.frontends import load
from eqsat.frontends.onnx.source import read_source
from eqsat.ir.graph import Graph
from eqsat.options import Options
from eqsat.pipeline import optimize
from eqsat.speed.contest import Measured, Protocol, contest, levels_of
from eqsat.speed.profile import Profile, profile_program
from eqsat.verification.feeds import random_feeds
from eqsat.verification.original import Original
from eqsat.verification.sizes import Sizes

Progress = Callable[[str, str], None]

OURS = "eqsat"
RAW = "original"


@dataclass(frozen=True)
class Bench:
    """Timings of one model. ``skipped``: what was left out, and why."""

    model: str
    measured: tuple[Measured, ...]
    skipped: Mapping[str, str]
    threads: int
    profile: Profile | None = None

    def of(self, name: str) -> Measured | None:
        """The contestant called ``name``, if it ran."""
        return next((m for m in self.measured if m.contestant.name == name and m.samples), None)

    @property
    def comparable(self) -> list[Measured]:
        """Those that ran, in float32: like with like."""
        return [m for m in self.measured if m.samples and m.contestant.precision == "f32"]

    def best(self, prefix: str) -> Measured | None:
        """The fastest of `comparable` whose name starts with ``prefix``."""
        found = [m for m in self.comparable if m.contestant.name.startswith(prefix)]
        return min(found, key=lambda m: m.median_s, default=None)

    def ratios(self) -> dict[str, tuple[float, float, float]]:
        """Contestant -> its time over that of our result under its best level, with a 95 % interval."""
        ours = self.best(OURS)
        if ours is None:
            return {}
        return {m.contestant.name: m.ratio_to(ours) for m in self.measured if m.samples}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        best = self.best(OURS)
        return {
            "model": self.model,
            "threads": self.threads,
            "best": best.contestant.name if best is not None else None,
            "ratios": {name: list(ratio) for name, ratio in self.ratios().items()},
            "skipped": dict(self.skipped),
            "contestants": [m.to_dict() for m in self.measured],
            "profile": self.profile.to_dict() if self.profile is not None else None,
        }

    def __str__(self) -> str:
        best, ratios = self.best(OURS), self.ratios()
        lines = [
            f"{self.model}: {self.threads} threads; ratio to {best.contestant.name if best else 'nothing'}, 95 % interval",
            f"  {'contestant':<24} {'median ms':>10} {'spread':>7} {'ratio':>7} {'interval':>15} {'error':>9}",
        ]
        for m in self.measured:
            name = m.contestant.name
            if not m.samples:
                lines.append(f"  {name:<24} does not run: {m.misfit}")
                continue
            value, low, high = ratios.get(name, (float("nan"),) * 3)
            error = m.misfit or f"{m.error:.2g}"
            lines.append(
                f"  {name:<24} {1e3 * m.median_s:>10.3f} {100 * m.spread:>6.0f}% {value:>7.3f} "
                f"{f'{low:.3f}-{high:.3f}':>15} {error:>9}"
            )
        lines += [f"  {name:<24} left out: {why}" for name, why in self.skipped.items()]
        if any(m.contestant.precision != "f32" for m in self.measured):
            lines.append("  bf16: floats multiplied in bfloat16, of class lossy; not compared with the others")
        other = self.best(RAW)
        if best is not None and other is not None:
            value, low, high = other.ratio_to(best)
            lines.append(
                f"  best of ours, {best.contestant.name}, is {value:.2f} ({low:.2f}-{high:.2f}) times as fast as the best on the "
                f"original, {other.contestant.name}"
            )
        if self.profile is not None:
            lines.append(str(self.profile))
        return "\n".join(lines)


def bench_model(
    path: Path,
    options: Options | None = None,
    *,
    protocol: Protocol | None = None,
    levels: Sequence[str] = tuple(LEVELS),
    profile: bool = False,
    progress: Progress = lambda stage, detail: None,
) -> Bench:
    """Optimises ``path`` and times it against the original at ``levels`` of ONNX Runtime.

    The outputs of the original without optimisation are the reference for every error. Raises `ModelError`, `OptionError`.
    """
    options = options or Options(verify=False)
    protocol = protocol or Protocol()
    check_source(path)
    progress("optimize", str(path))
    result = optimize(path, **options.__dict__)
    feeds, reference = case_of(result.original, path, options)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        written = Path(folder) / path.name
        result.save(written)
        contestants = levels_of(RAW, path, ("disable", *(n for n in levels if n != "disable")))
        contestants += levels_of(OURS, written, levels)
        progress("time", str(path))
        measured = contest(contestants, feeds, reference, protocol)
        found = None
        if profile:
            progress("profile", str(path))
            model = options.cost_model
            target = options.program_target
            model = model if model.unit == "seconds" else find_cost_model("measured")
            found = profile_program(result.program.graph, written, feeds, model, target, threads=protocol.threads)
    return Bench(str(path), tuple(measured), {}, protocol.threads, found)


def bench_files(
    paths: Sequence[Path],
    options: Options | None = None,
    *,
    protocol: Protocol | None = None,
    levels: Sequence[str] = tuple(LEVELS),
    progress: Progress = lambda stage, detail: None,
) -> Bench:
    """Times model files with the same inputs side by side as they are; the first one is the original.

    Raises `ModelError` for one that cannot be read.
    """
    options = options or Options(verify=False)
    protocol = protocol or Protocol()
    for path in paths:
        check_source(path)
        read_source(path)  # what cannot be read is an error, not a contestant that does not run
    feeds, reference = case_of(load(paths[0], options.dims), paths[0], options)
    contestants = levels_of(RAW, paths[0], ("disable", *(n for n in levels if n != "disable")))
    for path in paths[1:]:
        contestants += levels_of(path.stem if len(paths) > 2 else OURS, path, levels)
    progress("time", ", ".join(map(str, paths)))
    return Bench(str(paths[0]), tuple(contest(contestants, feeds, reference, protocol)), {}, protocol.threads)


def check_source(path: Path) -> None:
    """Raises `ModelError` for a pipe: what is timed is read by several processes."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ModelError(f"{path}: is a pipe or a device, which is read once; give a file")


def case_of(graph: Graph, path: Path, options: Options) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The user's inputs, or random ones that the model runs on, and the outputs of the model without optimisation.

    Raises `ModelError` if it runs on none.
    """
    from eqsat.verification import load_feeds

    original = Original(graph, path)
    for given in options.feeds or ():
        feeds = load_feeds(given, graph) if isinstance(given, str | Path) else dict(given)
        return feeds, original.run(feeds)
    problem: ModelError | None = None
    for sizes in Sizes(graph).candidates():
        feeds = random_feeds(graph, options.seed, sizes)
        try:
            return feeds, original.run(feeds)
        except ModelError as error:
            problem = error
    raise ModelError(f"{path}: does not run on random inputs; give your own with --inputs: {problem}")
