"""``eqsat compare``: cost models and targets on one model, or the trade-off between kernels, time and memory."""

from pathlib import Path
from typing import Annotated, Any

import typer

from eqsat.commands.common import Json, Model, Quiet, Verbose, check_writable, progress, say, show
from eqsat.commands.named_values import parse_names
from eqsat.commands.shared import taking
from eqsat.errors import OptionError


@taking("numerics", "dim", "assume", "time_limit", "prove", "node_limit")
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
    form: Annotated[str, typer.Option(help="Form of the model that would be written, as for optimize.")] = "flat",
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw a picture; needs matplotlib, eqsat[plot].")
    ] = None,
    json_path: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **options: Any,
) -> None:
    """Compare what each cost model chooses for MODEL on each target, and price each result under every model.

    eqsat compare bert.onnx --cost kernels,roofline --target tensorrt-like,onnxruntime-cpu --plot bert.png
    """
    from eqsat.comparison import compare as run_comparison
    from eqsat.comparison import pareto as run_pareto
    from eqsat.comparison.picture import NoPictureError

    if plot is not None:
        check_writable(plot)
    costs, targets = parse_names("--cost", cost), parse_names("--target", target)
    if pareto and len(targets) > 1:
        raise OptionError(f"--pareto takes one target, not {len(targets)}: {', '.join(targets)}")
    with progress(quiet, verbose) as notify:
        options |= {"progress": notify, "form": form}
        if pareto:
            found = run_pareto(model, target=targets[0], **options)
        else:
            found = run_comparison(model, cost=costs, target=targets, **options)
    show(found.to_dict(), found, json_path, quiet)
    if plot is not None:
        try:
            found.plot(plot)
        except NoPictureError as error:
            say(error)
