"""Figures of models kept in a file, so that a long run goes on where it was."""

from __future__ import annotations

import argparse
import gc
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eqsat.cost.timings import this_machine

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser, results: str) -> None:
    """The options that `measure_all` reads."""
    parser.add_argument("--models", type=Path, required=True, help="folder of inflated models (benchmarks.inflate)")
    parser.add_argument("--names", default="", help="of models, with commas between; by default all")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--results", type=Path, default=Path(results), help="where figures are kept; goes on from there"
    )
    parser.add_argument("--restart", action="store_true", help="forget what is there")


def measure_all(
    options: argparse.Namespace,
    setting: Mapping[str, Any],
    measure: Callable[[Path], Row],
    markdown: Callable[[Mapping[str, Row]], str],
    page: Path | None = None,
) -> Mapping[str, Row]:
    """Figures of every model by name, those in the file if they were made with the same ``setting`` on this machine.

    Written after every model, beside a table of all so far, and that into ``page`` if there is one.
    """
    results: dict[str, Any] = {"setting": dict(setting), "machine": this_machine(options.threads), "models": {}}
    if options.results.exists() and not options.restart:
        known = json.loads(options.results.read_text())
        if (known["setting"], known["machine"]) != (results["setting"], results["machine"]):
            raise SystemExit(f"{options.results} was made with other options or on another machine; use --restart")
        results = known
    options.results.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Row] = results["models"]
    for name in names_of(options):
        if name not in rows:
            rows[name] = measure(options.models / f"{name}.onnx")
            part = options.results.with_suffix(".part")
            part.write_text(json.dumps(results, indent=1))
            os.replace(part, options.results)
            gc.collect()
            print(next(line for line in markdown({name: rows[name]}).splitlines() if name in line), flush=True)
        for path in (options.results.with_suffix(".md"), page):
            if path is not None:
                path.write_text(markdown(rows) + "\n")
    return rows


def names_of(options: argparse.Namespace) -> Sequence[str]:
    return [n for n in options.names.split(",") if n] or [p.stem for p in sorted(options.models.glob("*.onnx"))]
