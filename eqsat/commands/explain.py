"""``eqsat explain``: which rules fired where, and why one did not."""

from typing import Annotated

import typer

from eqsat.commands.common import (
    ConsumerName,
    CostName,
    Dims,
    Form,
    Json,
    Model,
    Numerics,
    Opset,
    Quiet,
    RuleFiles,
    TargetName,
    Verbose,
    errors,
    load_rule_files,
    progress,
    show,
)
from eqsat.commands.named_values import parse_dims


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(explain)


def explain(
    model: Model,
    rule: Annotated[str, typer.Option(metavar="NAME", help="Explain this rule only.")] = "",
    near: Annotated[
        str, typer.Option(metavar="NODE", help="A node or value of MODEL: what fired there, and what nearly did.")
    ] = "",
    rules: RuleFiles = None,
    consumer: ConsumerName = None,
    opset: Opset = None,
    target: TargetName = None,
    cost: CostName = None,
    numerics: Numerics = "lsb",
    form: Form = None,
    dim: Dims = None,
    json_path: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Say which rules fired where in MODEL and what the result owes them; with --near, what nearly fired there and why not.

    Example:

    eqsat explain bert.onnx --rule recognise_softmax --near Softmax_12
    """
    with errors(json_path):
        from eqsat.why import explain as run

        load_rule_files(rules)
        with progress(quiet, verbose) as notify:
            found = run(
                model,
                rule=rule,
                near=near,
                progress=notify,
                consumer=consumer,
                opset=opset,
                target=target,
                cost=cost,
                numerics=numerics,
                form=form,
                dims=parse_dims(dim),
            )
        show(found.to_dict(), found, json_path, quiet)
