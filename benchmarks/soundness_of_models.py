"""Soundness on files: random models of ONNX (`benchmarks.random_models`), optimised and run in ONNX Runtime at all its levels.

    python -m benchmarks.soundness_of_models [--models 1000] [--seed 0] [--first 0] [--kinds symbols,bodies]

A model counts if ONNX Runtime runs it as it is. Then it has to be read, optimised and written, without a rule left out and
without any other warning, for ONNX Runtime or in plain ONNX in turn; and the result has to agree with the original at every level
and for several extents of its symbols: by the project's own verification, and by a comparison here that knows nothing of it.
Prints models by kind and whatever is wrong; the exit status is 1 if anything is.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import eqsat
from benchmarks.model_parts import Refused, load_examples, ran
from benchmarks.random_files import Drawn, draw_model, kinds, unlike
from eqsat.backends.onnxruntime import LEVELS, Session
from eqsat.errors import EqsatError, ModelError

_SLOW_S, _STUCK_S = 20.0, 40.0
_DRAWN_S = 15.0  # some kernels of ONNX Runtime never end on what is drawn for them

_UNDEFINED = (
    "does not fit into extent",
    "PRelu: the slope",
    "GatherND: batch extents differ",
    "must be greater than 0",
)
"""What models are refused for though ONNX Runtime makes something of it: windows beyond the end of padded data, slopes larger
than what they are for, places for batches that the data does not have; and attention of no rows, which its kernel refuses."""


def outcomes(numbers: Sequence[int], seed: int = 0, wanted: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Of each model that counts what it is, and what is wrong with it. They are drawn and optimised in another process, no copy
    of this one, whose threads of ONNX Runtime it would wait for. ONNX Runtime may end it: where it does so while a model is
    drawn, there is none, and the next one gets a new process."""
    left = list(numbers)
    while left:
        receiver, sender = Pipe(duplex=False)
        process = get_context("spawn").Process(target=_work, args=(sender, left, seed, wanted))
        process.start()
        sender.close()
        number, label, wrong = left[0], "", None
        with suppress(EOFError):
            while True:
                number, label, wrong = receiver.recv()
                if wrong is not None:
                    yield label, wrong
        process.join()
        if label and wrong is None:
            yield label, f"ends the process with {process.exitcode}"
        left = left[left.index(number) + 1 :] if process.exitcode else []


def _work(sender: Connection, numbers: Sequence[int], seed: int, wanted: Sequence[str]) -> None:
    load_examples()  # before the clock of the first one starts
    chosen = tuple(wanted) or kinds()
    for number in numbers:
        kind, form = chosen[number % len(chosen)], ("onnxruntime", "flat")[number // len(chosen) % 2]
        label = f"{kind}, number {number}, seed {seed}, {form}"
        sender.send((number, "", None))
        faulthandler.dump_traceback_later(_DRAWN_S, exit=True)
        with suppress(Refused):
            drawn = draw_model(kind, 1_000_000 * seed + number)
            sender.send((number, label, None))
            faulthandler.dump_traceback_later(_STUCK_S, exit=True)
            sender.send((number, label, judged(drawn, form)))


def judged(drawn: Drawn, form: str) -> str:
    """What is wrong with the result for a model; empty for nothing."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = eqsat.optimize(drawn.model, form=form, verify="full", feeds=drawn.feeds)
        except (EqsatError, Warning) as error:
            if any(known in str(error) for known in _UNDEFINED):
                return ""
            return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"
        except Exception:  # whatever it is, it should be an error of our own
            return traceback.format_exc(limit=-6)
    taken = time.perf_counter() - start
    verification = result.report.verification
    if verification["verdict"] == "not run":
        return f"not verified: {verification['notes']}"
    if taken > _SLOW_S:
        return f"took {taken:.0f} s"
    with tempfile.TemporaryDirectory() as folder:
        result.save(path := Path(folder) / "ours.onnx")
        return next(filter(None, (_difference(drawn.model, path, feeds) for feeds in drawn.feeds)), "")


def _difference(original: onnx.ModelProto, ours: Path, feeds: Mapping[str, np.ndarray]) -> str:
    expected = ran(original, feeds)
    for level in LEVELS:
        try:
            found = Session(ours, level, threads=1).run(feeds)
        except ModelError as error:
            if _outcome(original, level, feeds) is not None:
                return f"{level}: {error}"
            continue
        for name, value in expected.items():
            said = unlike(value, found[name])
            theirs = _outcome(original, level, feeds) if said else None
            if said and theirs is not None and not unlike(value, theirs[name]):
                return f"{level}: output {name!r} {said} ({ {k: v.shape for k, v in feeds.items()} })"
    return ""


def _outcome(model: onnx.ModelProto, level: str, feeds: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    try:
        return Session(model, level, threads=1).run(feeds)
    except ModelError:
        return None


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", metavar="NAME,...", help=f"of {', '.join(kinds())}; by default all")
    options = parser.parse_args(None if arguments is None else list(arguments))
    numbers = range(options.first, options.first + options.models)
    counts, wrong = Counter[str](), 0
    for label, said in outcomes(numbers, options.seed, tuple(filter(None, options.kinds.split(",")))):
        counts[label.split(",")[0]] += 1
        wrong += bool(said)
        print(f"{label}: {said}\n" if said else "", end="", flush=True)
    print(f"{sum(counts.values())} models, {wrong} wrong: {', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
