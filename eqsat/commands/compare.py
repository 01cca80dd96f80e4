"""``eqsat compare``: cost models and targets on one model, or the trade-off between kernels, time and memory."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from eqsat.commands.common import (
    Assume,
    Dims,
    Json,
    Model,
    NodeLimit,
    Numerics,
    Prove,
    Quiet,
    TimeLimit,
    Verbose,
    check_writable,
    errors,
    progress,
    show,
)
from eqsat.commands.named_values import parse_dims, parse_names, parse_sizes
from eqsat.errors import OptionError


def register(app: typer.Typer) -> None:
    app.command()(compare)


def compare(
    model: Model,
    cost: Annotated[
        str, typer.Option(metavar="NAME,...", help="Cost models to compare; `eqsat targets` lists them.")
    ] = "kernels,bytes,roofline,roofline-launch",
    target: Annotated[
        str, typer.Option(metavar="NAME,...", help="Targets to compare; one with --pareto.")
    ] = "onnxruntime-cpu",
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Programs that no other beats on all of kernels, time and peak memory.")
    ] = False,
    numerics: Numerics = "lsb",
    dim: Dims = None,
    assume: Assume = None,
    time_limit: TimeLimit = 600.0,
    prove: Prove = False,
    node_limit: NodeLimit = 200_000,
    form: Annotated[str, typer.Option(help="Form of the model that would be written, as for optimize.")] = "flat",
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw a picture; needs matplotlib, eqsat[plot].")
    ] = None,
    json_path: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare what each cost model chooses for MODEL on each target, and price each result under every model.

    eqsat compare bert.onnx --cost kernels,roofline --target tensorrt-like,onnxruntime-cpu --plot bert.png
    """
    with errors(json_path):
        from eqsat.comparison import compare as run_comparison
        from eqsat.comparison import pareto as run_pareto
        from eqsat.comparison.picture import NoPictureError

        if plot is not None:
            check_writable(plot)
        costs, targets = parse_names("--cost", cost), parse_names("--target", target)
        if pareto and len(targets) > 1:
            raise OptionError(f"--pareto takes one target, not {len(targets)}: {', '.join(targets)}")
        with progress(quiet, verbose) as notify:
            options: dict[str, Any] = {
                "progress": notify,
                "numerics": numerics,
                "dims": parse_dims(dim),
                "assume": parse_sizes(assume),
                "time_limit_s": time_limit,
                "prove": prove,
                "node_limit": node_limit,
                "form": form,
            }
            if pareto:
                found = run_pareto(model, target=targets[0], **options)
            else:
                found = run_comparison(model, cost=costs, target=targets, **options)
        show(found.to_dict(), found, json_path, quiet)
        if plot is not None:
            try:
                found.plot(plot)
            except NoPictureError as error:
                print(f"eqsat: {error}", file=sys.stderr)
