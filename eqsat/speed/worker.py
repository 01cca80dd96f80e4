"""One process of a contest: reads the task as JSON from standard input, prints the answer as JSON.

python -m eqsat.speed.worker < task.json
"""

import json
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eqsat.backends.custom_ops import load_custom_ops
from eqsat.backends.onnxruntime import Session
from eqsat.backends.openvino import OpenVino
from eqsat.speed.contest import Contestant
from eqsat.verification.compare import distance

Feeds = Mapping[str, np.ndarray]


class Loaded(Protocol):
    """A contestant, ready to run on its inputs."""

    def run(self) -> None: ...
    def outputs(self) -> dict[str, Any]: ...


def _onnxruntime(c: Contestant, feeds: Feeds, threads: int) -> Loaded:
    return Session(c.path, c.level, threads=threads, prepack=True, precision=c.precision).bound(feeds)


def _openvino(c: Contestant, feeds: Feeds, threads: int) -> Loaded:
    return OpenVino(c.path, threads, c.precision).feed(feeds)


def _inductor(c: Contestant, feeds: Feeds, threads: int) -> Loaded:
    """Its threads are those of OpenMP, which the environment says."""
    from eqsat.frontends import load
    from eqsat.fx import Executable

    return Executable(load(c.path), inductor=True, tuned=True, precision=c.precision).feed(feeds)


_ENGINES: dict[str, Callable[[Contestant, Feeds, int], Loaded]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "inductor": _inductor,
}


def run_task(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Seconds, error and misfit of each contestant.

    Where a contestant's memory lies, and which one runs before it, change its time by some percent. Both are drawn anew, the one
    for each process and the other for each turn.
    """
    for library in task["custom_ops"]:
        load_custom_ops(library)
    contestants = [Contestant(**c) for c in task["contestants"]]
    draw = np.random.default_rng(task["process"])
    feeds, reference = pickle.loads(Path(task["data"]).read_bytes())
    loaded: dict[int, Loaded] = {}
    answers: list[dict[str, Any]] = [{"seconds": [], "error": None, "misfit": ""} for _ in contestants]
    order: list[int] = draw.permutation(len(contestants)).tolist()
    for k in order:
        try:
            found = _ENGINES[contestants[k].engine](contestants[k], feeds, task["threads"])
            found.run()
            answers[k]["error"], answers[k]["misfit"] = _error(reference, found.outputs())
        except Exception as error:  # engines raise what they like; the contest goes on without this one
            answers[k]["misfit"] = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            continue
        loaded[k] = found
    for _ in range(task["runs"]):
        order: list[int] = draw.permutation(sorted(loaded)).tolist()
        for k in order:
            loaded[k].run()
            start = time.perf_counter()
            loaded[k].run()
            answers[k]["seconds"].append(time.perf_counter() - start)
    return answers


def _error(reference: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[float | None, str]:
    """Largest difference over the largest value of that output, over all outputs."""
    if set(reference) != set(outputs):
        return None, f"outputs {sorted(outputs)} where the reference has {sorted(reference)}"
    distances = [distance(reference[name], outputs[name]) for name in reference]
    misfit = next((d.misfit for d in distances if d.misfit), "")
    return (None if misfit else max((d.max_rel for d in distances), default=0.0)), misfit


if __name__ == "__main__":
    print(json.dumps(run_task(json.load(sys.stdin))))
