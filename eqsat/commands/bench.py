"""``eqsat bench``: how fast a model is before and after, in the engines that are installed."""

from pathlib import Path
from typing import Annotated, Any

import typer

from eqsat.commands.common import (
    CustomOps,
    Engines,
    Json,
    Model,
    Precision,
    Quiet,
    Verbose,
    load_libraries,
    progress,
    show,
)
from eqsat.commands.named_values import parse_names
from eqsat.commands.shared import taking


@taking("consumer", "opset", "target", "cost", "numerics", "dim", "form", "seed", "inputs")
def bench(
    model: Model,
    others: Annotated[
        list[Path] | None, typer.Argument(help="Models with the same inputs to time beside it, as they are.")
    ] = None,
    engines: Engines = None,
    precision: Precision = "f32",
    levels: Annotated[
        str, typer.Option(metavar="NAME,...", help="How far ONNX Runtime rewrites the models itself.")
    ] = "disable,basic,extended,all",
    runs: Annotated[int, typer.Option(metavar="N", help="Timed runs of each contestant in each process.")] = 7,
    processes: Annotated[int, typer.Option(metavar="N", help="Processes, one after the other.")] = 3,
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of each runtime.")] = 2,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show what each kernel took beside what the cost model predicted.")
    ] = False,
    custom_ops: CustomOps = None,
    json_path: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **options: Any,
) -> None:
    """Time MODEL beside the same model optimised, or beside OTHERS as they are.

    Contestants take turns in several processes, those of one engine in processes of their own; ratios are of medians. The outputs
    of each are compared with those of MODEL in ONNX Runtime without optimisation. Nothing else should run on the machine.
    """
    from eqsat.api import bench as run

    load_libraries(custom_ops)
    with progress(quiet, verbose) as notify:
        found = run(
            model, *(others or ()), engines=engines, precision=precision, levels=parse_names("--levels", levels), runs=runs,
            processes=processes, threads=threads, profile=profile, progress=notify, **options,
        )  # fmt: skip
    show(found.to_dict(), found, json_path, quiet)
