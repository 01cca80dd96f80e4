"""Files written for a consumer, loaded and run by it: whether they load, agree with the original, and how long they take.

    python -m benchmarks.consumers [--for NAME[=VERSION]] --reader RUNTIME:PYTHON ... [--runs N] [--time-limit S] MODEL.onnx ...

``--reader openvino:/venvs/ov/bin/python``: a runtime (``onnxruntime``, ``openvino``) and an interpreter that has it, or
``onnxruntime-web=FOLDER:PYTHON``, with a folder in which ``npm install onnxruntime-web`` was called, for Node.js, or
``onnxruntime@PROVIDER[,OPTION=VALUE...]:PYTHON``, with an execution provider or the package of one that plugs in. For those the
columns ``nodes`` say how many nodes a run has, how many of them are on the CPU, and how many copies there are. Each model is
read in a process of its own, so that what crashes one reading ends nothing else. For each reader the original and the result
run on the same random inputs; errors are largest differences from the original in ONNX Runtime without optimisation, as a part
of the largest output. The result agrees if its error is at most `TWICE` that of the original in the same reader, or `SMALL`.
``time``: least CPU time of ``--runs`` (7), of the original over that of the result. ``failed``: what the reader said, or the
signal that ended it; of the original it is in brackets. Without ``--for`` the file is the one made by default, and ``runtime`` is
the release of ONNX Runtime that its report says it needs."""

from __future__ import annotations

import argparse
import gc
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import eqsat
from eqsat.errors import EqsatError
from eqsat.frontends import load
from eqsat.options import Options
from eqsat.speed.bench import case_of
from eqsat.verification.compare import distance
from eqsat.verification.original import Original

TWICE = 2.0
SMALL = 1e-4
_SCRIPT = Path(__file__).with_name("read_file.py")
_LONGEST_S = 300


@dataclass(frozen=True)
class Reading:
    """What one reader made of one file: CPU time and error, what an execution provider ran ``where``, or what went wrong."""

    seconds: float = 0.0
    error: float = float("inf")
    failure: str = ""
    where: str = ""


def read(reader: str, model: Path, feeds: Path, expected: Mapping[str, Any], folder: Path, runs: int) -> Reading:
    """Runs a file in a reader, in a process of its own."""
    runtime, _, python = reader.partition(":")
    outputs = folder / "outputs.npz"
    command = [python, str(_SCRIPT), runtime, str(model), str(feeds), str(outputs), str(runs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return Reading(failure=f"more than {_LONGEST_S} s")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [""]
        return Reading(failure=f"signal {-done.returncode}" if done.returncode < 0 else lines[-1].strip()[:150])
    told = json.loads(done.stdout.splitlines()[-1])
    with np.load(outputs) as archive:
        found = dict(zip(told["names"], archive.values(), strict=True))
    if set(found) != set(expected):
        return Reading(told["seconds"], failure="other outputs")
    distances = [distance(expected[name], found[name]) for name in expected]
    misfit = next((d.misfit for d in distances if d.misfit), "")
    where = f"{told['nodes']} ({sum(told['on_cpu'].values())}, {told['copies']})" if "nodes" in told else ""
    return Reading(told["seconds"], max((d.max_rel for d in distances), default=0.0), misfit, where)


def row(path: Path, readers: list[str], options: Options, runs: int) -> tuple[list[str], bool]:
    """The cells of a model, and whether all readers of the result agree with the original."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written, feeds = folder / path.name, folder / "feeds.npz"
        try:
            result = eqsat.optimize(path, **vars(options))
            result.save(written)
            inputs, _ = case_of(load(path), path, options)
            expected = Original(load(path), path).run(inputs)
        except EqsatError as error:
            return [path.stem, f"not written: {error}"[:200]], False
        np.savez(feeds, allow_pickle=False, **inputs)
        before, after = (sum(n.values()) for n in (result.report.operators_before, result.report.operators_after))
        cells = [path.stem, f"{before} -> {after}", str(result.report.needs.get("opset", "")),
                 result.report.needs.get("onnxruntime", "")]  # fmt: skip
        del result
        gc.collect()
        fine = True
        for reader in readers:
            original, ours = (read(reader, model, feeds, expected, folder, runs) for model in (path, written))
            agree = not ours.failure and (ours.error <= SMALL or ours.error <= TWICE * original.error)
            fine = fine and agree
            first = f"({original.failure})" if original.failure else f"{original.error:.1g}"
            second = ours.failure or f"{ours.error:.1g}"
            ratio = f"{original.seconds / ours.seconds:.2f}" if ours.seconds and original.seconds else ""
            cells += [f"{first}, {second}", "yes" if agree else "NO", ratio]
            if "@" in reader:
                cells.append(f"{original.where} -> {ours.where}")
    return cells, fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--for", dest="consumer")
    parser.add_argument("--reader", action="append", required=True)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--time-limit", type=float, default=30.0)
    given = parser.parse_args()
    options = Options.of({"consumer": given.consumer, "verify": False, "time_limit_s": given.time_limit})
    told = ("errors: original, ours", "agree", "time", "nodes (on the CPU, copies)")
    columns = [f"{re.split('[=:,]', reader)[0]} {i + 1}: {what}" for i, reader in enumerate(given.reader)
               for what in told[: 3 + ("@" in reader)]]  # fmt: skip
    print(f"| model | operators | opset | runtime | {' | '.join(columns)} |")
    print("|" + "---|" * (4 + len(columns)))
    agreeing = 0
    for path in given.models:
        cells, fine = row(path, given.reader, options, given.runs)
        agreeing += fine
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{agreeing} of {len(given.models)} load in every reader and agree")


if __name__ == "__main__":
    main()
