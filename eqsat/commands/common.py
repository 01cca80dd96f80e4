"""What commands share: options, errors as one line, progress, JSON."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from eqsat.errors import EqsatError, OutputError, VerificationError
from eqsat.output import check_place, is_device, write_files

Json = Annotated[
    str | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON; - is standard output.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print each stage as it starts.")]
Model = Annotated[Path, typer.Argument(help="An ONNX model.", show_default=False)]
Engines = Annotated[
    str | None,
    typer.Option(
        "--engines",
        metavar="NAME,...",
        help="Time it in these engines, with the program made for each: onnxruntime, openvino, inductor, or all.",
        show_default=False,
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        help="f32, or bf16: once more with floats multiplied in bfloat16, which is lossy, in engines that can."
    ),
]
RuleFiles = Annotated[
    list[Path] | None,
    typer.Option("--rules", metavar="FILE.py", help="Use the rules of this file, too, once checked; may be repeated."),
]
CustomOps = Annotated[
    list[Path] | None,
    typer.Option(
        "--custom-ops",
        metavar="LIBRARY",
        help="A shared library with operators of the models, for ONNX Runtime; may be repeated.",
    ),
]
Verify = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Compare original and result: quick, full (at every level of ONNX Runtime that the form is for, too) or none.",
    ),
]

Devices = Annotated[
    list[str] | None,
    typer.Option("--device", metavar="NAME=DEV", help="Run a node (or *: all others) on this device; may be repeated."),
]
DeviceFile = Annotated[
    Path | None, typer.Option("--devices", metavar="FILE.json", help="The same as a JSON object of name to device.")
]
MachineFile = Annotated[
    Path | None,
    typer.Option(
        "--machine", metavar="FILE.toml", help="Devices and links; nodes without a device are placed by cost."
    ),
]


@contextmanager
def errors(json_path: str | None = None) -> Generator[None]:
    """One line and the right exit status for everything a user can cause; one line for a warning, too.

    That the JSON report cannot be written shows before the work that it is about.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = say
            check_json(json_path)
            yield
    except VerificationError as error:
        fail(f"verification failed, nothing written: {error}", 1)
    except EqsatError as error:
        fail(str(error), 2)
    except MemoryError as error:
        fail(f"out of memory; nothing was written: {error}", 2)
    except KeyboardInterrupt:
        fail("interrupted; files that were begun are gone", 130)
    except OSError as error:  # a disk that is full, a folder that may not be entered
        fail(f"{error.filename or 'temporary files'}: {error.strerror or error}", 2)


def fail(message: str, status: int) -> NoReturn:
    say(message)
    raise typer.Exit(status)


def say(message: object, *_: object) -> None:
    """One line on standard error."""
    _tell(f"eqsat: {' '.join(str(message).split())}")


def _tell(text: str) -> None:
    """The same as it is. Nobody may be there to read it; the work goes on."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _close(sys.stderr)


def _put(text: str) -> None:
    """Text on standard output. Where its reader has left, the work is done all the same, and the exit status tells of it."""
    try:
        print(text, flush=True)
    except OSError as error:
        _close(sys.stdout)
        if not isinstance(error, BrokenPipeError):
            raise OutputError(f"standard output: cannot be written: {error.strerror}") from None


def _close(stream: TextIO) -> None:
    """What is left in a stream that failed goes nowhere: Python would try again at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


NOT_VERIFIED = 3
"""Exit status where results were to be compared and could not be."""


def fail_unless_run(verdict: object, notes: Sequence[str], what: str) -> None:
    """Ends with `NOT_VERIFIED` where a verification that was asked for did not run."""
    if verdict == "not run":
        fail(f"{what}: {'; '.join(notes)}", NOT_VERIFIED)


@contextmanager
def progress(quiet: bool, verbose: bool, stages: bool = False) -> Generator[Callable[[str, str], None]]:
    """On a terminal a spinner that names the stage and how far it is; with ``-v`` a line per step; else, if ``stages``, a
    line per stage."""
    if verbose:
        yield lambda stage, detail: _tell(_step(stage, detail))
        return
    silent = not sys.stderr.isatty() and not stages
    if quiet or silent:
        yield lambda stage, detail: None
        return
    if not sys.stderr.isatty():
        begun: set[str] = set()

        def begin(stage: str, detail: str) -> None:
            if stage not in begun:
                begun.add(stage)
                say(stage)

        yield begin
        return
    from rich.console import Console

    with Console(stderr=True).status("load") as status:
        yield lambda stage, detail: status.update(_step(stage, detail))


def _step(stage: str, detail: str) -> str:
    return f"{stage} ({detail})" if detail else stage


def show(data: Any, text: object, json_path: str | None, quiet: bool) -> None:
    """Writes ``data`` where it is asked for, and prints the same as ``text``."""
    write_json(data, json_path)
    if not quiet and json_path != "-":
        _put(str(text))


def check_json(json_path: str | None) -> None:
    """Raises `OutputError` unless the JSON report can be written, over no model."""
    if json_path in (None, "-"):
        return
    path = Path(json_path)
    check_writable(path, device=True)
    if is_device(path) or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            begins = file.read(1)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
    if begins not in (b"", b"{", b"["):
        raise OutputError(f"{path}: is there, and no JSON; name another file for the report")


def write_json(data: Any, json_path: str | None) -> None:
    check_json(json_path)  # what was written since may be the model
    if json_path is None:
        return
    text = json.dumps(data, indent=2, sort_keys=False, default=str)
    if json_path == "-":
        _put(text)
        return
    path, text = Path(json_path), text + "\n"
    try:
        if is_device(path):
            path.write_text(text, "utf-8")
        else:
            write_files({path: lambda file: file.write(text.encode())})
    except OSError as error:
        raise OutputError(f"{json_path}: cannot write the JSON report: {error.strerror}") from None


def load_rule_files(paths: list[Path] | None) -> None:
    """Registers the rules of each file, checked."""
    if paths:
        from eqsat.rule_check.files import load_rules

        for path in paths:
            load_rules(path)


def load_libraries(paths: list[Path] | None) -> None:
    """Makes the operators of each library known."""
    if paths:
        import eqsat

        for path in paths:
            eqsat.load_custom_ops(path)


def check_writable(output: Path, model: Path | None = None, *, overwrite: bool = False, device: bool = False) -> None:
    """Raises `OutputError` unless ``output`` can be written; over ``model``, the file that is read, only if asked for.

    ``device``: it may be one, or a pipe.
    """
    if str(output) == "-":
        raise OutputError("-: only JSON reports are written to standard output; name a file")
    check_place(output, device=device)
    if model is not None and not overwrite and output.exists() and model.exists() and output.samefile(model):
        raise OutputError(f"{output}: is the model itself; name another file, or give --overwrite to replace it")
    if not os.access(output.parent, os.W_OK) and not (device and is_device(output)):
        raise OutputError(f"{output}: the folder {output.parent} is not writable")
