"""``eqsat calibrate``: time the kernels of a target on this machine."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from eqsat.commands.common import Json, Quiet, check_writable, errors, say, show
from eqsat.commands.named_values import parse_names


def calibrate(
    target: Annotated[
        str, typer.Option(help="Whose kernels to time: onnxruntime-cpu or openvino-cpu.")
    ] = "onnxruntime-cpu",
    database: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where to keep the timings; by default the user's cache folder.")
    ] = None,
    operators: Annotated[
        str | None, typer.Option(metavar="KEY,...", help="Time these operators only, such as MatMul,Conv.")
    ] = None,
    repeats: Annotated[int, typer.Option(metavar="N", help="Runs of each kernel; the median counts.")] = 11,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of the runtime.")] = 2,
    retries: Annotated[
        int, typer.Option(metavar="N", help="Times to time those kernels again whose repeats differ by more than 10 %.")
    ] = 2,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget the timings there are (of --operators, if given).")
    ] = False,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """Time single kernels over a grid of shapes and element types, for `--cost measured`.

    Takes ten minutes or more for all kernels of onnxruntime-cpu, in which the machine should do nothing else, and says so before
    it starts; interrupted, it goes on where it was.
    """
    with errors(json_path):
        from eqsat.calibrate.calibration import calibrate as run
        from eqsat.calibrate.calibration import grid_of
        from eqsat.calibrate.timer import Repeats
        from eqsat.errors import OptionError

        if repeats < 1 or threads < 1:
            raise OptionError(f"--repeats {repeats}, --threads {threads}: both must be at least 1")
        if retries < 0:
            raise OptionError(f"--retries {retries}: must not be negative")
        if database is not None:
            check_writable(database)
        cases = grid_of(target)
        if operators is not None:
            wanted = set(parse_names("--operators", operators))
            unknown = wanted - {case.key for case in cases}
            if unknown:
                raise OptionError(f"--operators: {', '.join(sorted(unknown))} not among the kernels of {target}")
            cases = tuple(case for case in cases if case.key in wanted)
        with _bar(quiet) as notify:
            found = run(
                target, cases, database, how=Repeats(repeats, threads), restart=restart, progress=notify,
                whole=operators is None, retries=retries, announce=(lambda text: None) if quiet else say,
            )  # fmt: skip
        show(found.to_dict(), found, json_path, quiet)


@contextmanager
def _bar(quiet: bool) -> Generator[Callable[[int, int, str], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, name: bar.update(task, completed=done, total=total, description=name)
