"""Engines beside one another: the original and ours in each, in the form made for it; and which pair is the fastest."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eqsat.backends.consumer import newest_opset
from eqsat.engines import check_precision
from eqsat.errors import EqsatError, OptionError, choices
from eqsat.frontends import load, resolve
from eqsat.ir.graph import Graph
from eqsat.options import Options
from eqsat.pipeline import optimize
from eqsat.result import Result
from eqsat.speed.bench import OURS, RAW, Bench, Progress, case_of, check_source
from eqsat.speed.contest import Contestant, Measured, Protocol, contest

INSTALLED_BY = {
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "'eqsat[openvino]'"),
    "inductor": ("torch", "'eqsat[torch]'"),
}
"""Engine -> the package that it needs, and what installs that."""

LEVEL = "all"
"""How far ONNX Runtime rewrites what it runs, as users run it."""

_DECIDED = ("target", "consumer", "opset", "form", "machine", "devices")
"""Options that an engine decides about."""


def engine_names(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The engines asked for: ``all``, names with commas between them, or a list. Raises `OptionError` for an unknown one."""
    names = tuple(asked.split(",")) if isinstance(asked, str) else tuple(asked)
    names = tuple(INSTALLED_BY) if names == ("all",) else tuple(dict.fromkeys(n.strip() for n in names if n.strip()))
    for name in names or ("",):
        if name not in INSTALLED_BY:
            raise OptionError(f"engine {name!r} does not exist; {choices(name, ('all', *INSTALLED_BY))}")
    return names


def missing(names: Sequence[str]) -> dict[str, str]:
    """Engine -> why it is left out, for those that are not installed."""
    return {
        name: f"is not installed: pip install {INSTALLED_BY[name][1]}"
        for name in names
        if find_spec(INSTALLED_BY[name][0]) is None
    }


def options_for(engine: str, options: Options) -> Options:
    """``options`` for programs that an engine will run. Raises `OptionError` where they say what the engine decides."""
    stated = [name for name in _DECIDED if getattr(options, name) not in (None, {})]
    if stated:
        raise OptionError(f"{', '.join(stated)}: the engine decides about that; leave one of the two out")
    if engine == "inductor":
        return replace(options, target="inductor-cpu", form="flat", opset=newest_opset())
    return replace(options, consumer=engine)


@dataclass
class Race:
    """What engines took for the original and for ours, and ours by engine."""

    bench: Bench
    results: dict[str, Result]

    def fastest(self) -> Measured:
        """The fastest pair of a program and an engine; the original only where ours is slower there beyond noise."""
        return min(self.bench.comparable, key=lambda m: (self._beaten(m), m.median_s))

    def _beaten(self, found: Measured) -> bool:
        """Whether this is the original in an engine that runs ours as fast, as far as one can tell."""
        name = found.contestant.name
        ours = self.bench.of(name.replace(RAW, OURS, 1)) if name.startswith(RAW) else None
        return ours is not None and ours.ratio_to(found)[1] <= 1.0


def race(
    path: Path,
    engines: str | Sequence[str],
    options: Options,
    *,
    precision: str = "f32",
    protocol: Protocol,
    progress: Progress = lambda stage, detail: None,
) -> Race:
    """Optimises ``path`` for each engine and times both in each, in processes of their own.

    All multiply floats in float32. With ``precision`` ``bf16`` they run once more in that; those who cannot say so.
    The outputs of the original in ONNX Runtime without optimisation are the reference for every error. Raises `ModelError`,
    `OptionError`.
    """
    check_precision(precision)
    check_source(path)
    names = engine_names(engines)
    skipped = missing(names)
    able = [name for name in names if name not in skipped]
    if not able:
        raise OptionError("; ".join(f"engine {name} {why}" for name, why in skipped.items()))
    feeds, reference = case_of(load(path, options.dims), path, options)
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        contestants: list[Contestant] = []
        for name in able:
            files = [(RAW, path)]
            progress("optimize", f"for {name}")
            try:
                results[name] = optimize(path, **vars(options_for(name, options)))
                files.append((OURS, Path(folder) / f"{name}.onnx"))
                results[name].save(files[-1][1])
            except OptionError:
                raise
            except EqsatError as error:
                skipped[f"{OURS} {name}"] = str(error)
            contestants += [
                Contestant(f"{who} {name}" + (f" {p}" if p != "f32" else ""), str(file), name, LEVEL, p)
                for p in dict.fromkeys(("f32", precision))
                for who, file in files
            ]
        progress("time", ", ".join(able))
        measured = contest(contestants, feeds, reference, protocol)
    return Race(Bench(str(path), tuple(measured), skipped, protocol.threads), results)


def fastest(
    source: Any,
    options: Options,
    engines: str | Sequence[str],
    *,
    protocol: Protocol,
    progress: Progress,
) -> Result:
    """The program that is fastest in one of the engines; its report says which, and what the others took.

    Where the original is faster than ours there, beyond noise, it is the original. Raises as `optimize` does.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        source = resolve(source, **options.reading)
        path = Path(source) if isinstance(source, str | Path) else _written(source, Path(folder))
        found = race(path, engines, options, protocol=protocol, progress=progress)
        best = found.fastest().contestant
        if best.name.startswith(OURS):
            result = found.results[best.engine]
        else:
            kept = replace(options_for(best.engine, options), only_rules=())
            result = optimize(path, progress=progress, **vars(kept))
    result.report.engine = {
        "name": best.engine,
        "program": best.name,
        "median_s": {m.contestant.name: m.median_s for m in found.bench.comparable},
        "not_run": {
            **found.bench.skipped,
            **{m.contestant.name: m.misfit for m in found.bench.measured if not m.samples},
        },
    }
    return result


def _written(source: Any, folder: Path) -> Path:
    """A model that is no file yet, as one."""
    import onnx

    from eqsat.backends.onnx_file import save_onnx

    path = folder / "model.onnx"
    if isinstance(source, onnx.ModelProto):
        onnx.save(source, str(path))  # pyright: ignore[reportUnknownMemberType]
    else:
        save_onnx(source if isinstance(source, Graph) else load(source), path, form="onnxruntime")
    return path
