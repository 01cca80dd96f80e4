"""Options of `eqsat.options.Options` that several commands have, each stated once."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import typer

from eqsat.commands.common import errors
from eqsat.commands.named_values import parse_dims, parse_sizes

Command = TypeVar("Command", bound=Callable[..., None])


class Shared(NamedTuple):
    """``kind``: the type of what is given; ``option``: its default and the rest that typer is told. ``name``: of the option that
    it becomes, by default its own, and ``read``: how."""

    kind: Any
    option: Any
    name: str = ""
    read: Callable[[Any], Any] = lambda given: given


def _text(help: str, *flags: str, **told: Any) -> Shared:
    return Shared(str | None, typer.Option(None, *flags, help=help, show_default=False, **told))


SHARED = {
    "consumer": _text(
        "What will read the file: onnxruntime, openvino, tensorrt, tvm, torch. Decides about form, opset and operators.",
        "--for",
        metavar="NAME[=VERSION]",
    ),
    "opset": _text(
        "The newest opset that the file may have. By default that of MODEL, or the newest that every supported release of ONNX "
        "Runtime loads.",
        metavar="N",
    )._replace(kind=int | None),
    "target": _text(
        "What the program will run on: a name that `eqsat targets` lists, or a TOML file. By default that of --for, or "
        "onnxruntime-cpu."
    ),
    "cost": _text(
        "What to minimise: kernels, bytes, flops, roofline, roofline-launch, measured (seconds, by timings of single kernels; "
        "measured=PATH for those in a file). By default measured for onnxruntime-cpu in its own form, else kernels."
    ),
    "numerics": Shared(
        str,
        typer.Option(
            "lsb", help="Weakest class of rewrite allowed: exact, rounding, lsb or lossy; each includes the former."
        ),
    ),
    "dim": Shared(
        list[str] | None,
        typer.Option(
            None, metavar="NAME=N", help="Fix a symbolic dimension, or give it another name; may be repeated."
        ),
        "dims",
        parse_dims,
    ),
    "assume": Shared(
        list[str] | None,
        typer.Option(
            None,
            metavar="NAME=N,...",
            help="Price programs at this extent of a symbolic dimension, which stays symbolic; NAME=LOW..HIGH: at several "
            "between.",
        ),
        read=parse_sizes,
    ),
    "time_limit": Shared(
        float,
        typer.Option(600.0, metavar="S", help="Ceiling in seconds, for saturation and again for extraction."),
        "time_limit_s",
    ),
    "prove": Shared(bool, typer.Option(False, "--prove", help="Spend more work on proving how good the program is.")),
    "node_limit": Shared(int, typer.Option(200_000, metavar="N", help="E-nodes at which saturation stops.")),
    "form": _text(
        "Form of the written model: flat (ONNX operators), functions (the same, one per kernel), onnxruntime (its fused "
        "operators, too), openvino, tensorrt. By default that of --for, or onnxruntime for onnxruntime-cpu, else flat."
    ),
    "seed": Shared(int, typer.Option(0, min=0, help="Seed of random inputs.")),
    "inputs": Shared(
        list[Path] | None,
        typer.Option(
            None,
            metavar="FEEDS.npz",
            help="Verify on these inputs instead of random ones: one array per input, by name.",
        ),
        "feeds",
        lambda given: given or None,  # pyright: ignore[reportUnknownLambdaType]
    ),
}
"""In the order of the help."""


def taking(*names: str) -> Callable[[Command], Command]:
    """Gives a command options of `SHARED`, before its ``--json``: it gets them as keyword arguments, under the names that
    `Options` has for them. What is wrong with them, or raised by the command, is one line."""

    def shared(command: Command) -> Command:
        chosen = {name: found for name, found in SHARED.items() if name in names}

        @wraps(command)
        def run(**given: Any) -> None:
            with errors(given["json_path"]):
                asked = {found.name or name: found.read(given.pop(name)) for name, found in chosen.items()}
                command(**given, **asked)

        own = signature(command)
        named = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "options"]
        at = [p.name for p in named].index("json_path")
        more = [Parameter(n, Parameter.KEYWORD_ONLY, default=s.option, annotation=s.kind) for n, s in chosen.items()]
        run.__signature__ = own.replace(parameters=[*named[:at], *more, *named[at:]])  # pyright: ignore[reportAttributeAccessIssue]
        return run  # type: ignore[return-value]

    return shared
