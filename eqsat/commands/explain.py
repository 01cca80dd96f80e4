"""``eqsat explain``: which rules fired where, and why one did not."""

from typing import Annotated, Any

import typer

from eqsat.commands.common import Json, Model, Quiet, RuleFiles, Verbose, load_rule_files, progress, show
from eqsat.commands.shared import taking


@taking("consumer", "opset", "target", "cost", "numerics", "dim", "form")
def explain(
    model: Model,
    rule: Annotated[str, typer.Option(metavar="NAME", help="Explain this rule only.")] = "",
    near: Annotated[
        str, typer.Option(metavar="NODE", help="A node or value of MODEL: what fired there, and what nearly did.")
    ] = "",
    rules: RuleFiles = None,
    json_path: Json = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    **options: Any,
) -> None:
    """Say which rules fired where in MODEL and what the result owes them; with --near, what nearly fired there and why not.

    Example:

    eqsat explain bert.onnx --rule recognise_softmax --near Softmax_12
    """
    from eqsat.why import explain as run

    load_rule_files(rules)
    with progress(quiet, verbose) as notify:
        found = run(model, rule=rule, near=near, progress=notify, **options)
    show(found.to_dict(), found, json_path, quiet)
