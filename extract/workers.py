"""Extraction in other processes, as a process extracts one problem at a time whatever the number of its threads."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from threading import Condition, Thread
from typing import Any, Protocol

from eqsat.extract.problem import ExtractionProblem
from eqsat.extract.result import ExtractionResult
from eqsat.extract.solve import extract

_MOST = 8
_LEAST_NODES = 4_000
"""Smaller problems take no longer than the way to another process."""


class Extract(Protocol):
    """`eqsat.extract.extract`, wherever it runs."""

    def __call__(
        self, problem: ExtractionProblem, *, time_limit_s: float, cutoff: float = ..., slack: float = ...
    ) -> ExtractionResult: ...


Job = Callable[[Extract], None]


class Workers:
    """Runs jobs, several at once: as many as there are cores. A context manager, at whose end all processes have ended.

    A job is a function of an `extract` that works in a process of its own. Of the jobs that wait, that of the lowest
    priority comes next, of equal ones the oldest. With one core, or where no process can be started, all of it happens here.
    """

    def __init__(self, count: int | None = None) -> None:
        self.count = max(1, min(_MOST, _cores() if count is None else count))
        self._waiting: list[tuple[int, int, Job]] = []
        self._changed = Condition()
        self._submitted = self._open = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._processes = [_Process() for _ in range(self.count)] if self.count > 1 else []
        self._threads = [Thread(target=self._serve, args=(p,), daemon=True) for p in self._processes]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for process in self._processes:
            process.end()
        for thread in self._threads:
            thread.join()

    def submit(self, priority: int, job: Job) -> None:
        """Adds a job."""
        with self._changed:
            heappush(self._waiting, (priority, self._submitted, job))
            self._submitted += 1
            self._open += 1
            self._changed.notify()

    def drop(self) -> None:
        """Forgets the jobs that wait."""
        with self._changed:
            self._open -= len(self._waiting)
            self._waiting.clear()

    def finish(self) -> None:
        """Waits until all jobs, and those that they add, are done. Raises what one of them has raised."""
        if not self._threads:
            while self._waiting:
                self._run(heappop(self._waiting)[2], extract)
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _serve(self, process: _Process) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = heappop(self._waiting)[2]
            self._run(job, process.extract)

    def _run(self, job: Job, by: Extract) -> None:
        try:
            job(by)
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            with self._changed:
                self._open -= 1
                self._changed.notify_all()


class _Process:
    """Another process that extracts; it starts at once, and is waited for when it is needed first."""

    def __init__(self) -> None:
        root = str(Path(__file__).absolute().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):  # no more processes, or no interpreter of its own
            self._process = subprocess.Popen(
                [sys.executable, "-m", "eqsat.extract.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )

    def extract(self, problem: ExtractionProblem, **options: Any) -> ExtractionResult:
        """`eqsat.extract.extract` over there; here, if the problem is small or the other process has gone."""
        process = self._process
        if process is None or problem.node_count < _LEAST_NODES:
            return extract(problem, **options)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((problem, options), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            if self._process is None:  # nobody waits for the answer any more
                raise
            self.end()
            return extract(problem, **options)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        """Ends the process, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # of what it had not read yet
                    pipe.close()  # pyright: ignore[reportOptionalMemberAccess]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _main() -> None:
    """Answers problems from standard input until that ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints is no answer
    while True:
        try:
            problem, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: object = extract(problem, **options)
        except Exception as error:  # the caller's to handle
            answer = error
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()


if __name__ == "__main__":
    _main()
