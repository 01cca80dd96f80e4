"""The command line: ``eqsat optimize | verify | inspect | extract``, and the commands of `eqsat.commands`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from eqsat._version import __version__
from eqsat.commands.bench import bench
from eqsat.commands.calibrate import calibrate
from eqsat.commands.common import (
    CustomOps,
    DeviceFile,
    Devices,
    Json,
    MachineFile,
    Model,
    Quiet,
    RuleFiles,
    Verify,
    check_writable,
    errors,
    fail_unless_run,
    load_libraries,
    load_rule_files,
    progress,
    show,
)
from eqsat.commands.compare import compare
from eqsat.commands.explain import explain
from eqsat.commands.listings import rules, targets
from eqsat.commands.named_values import parse_devices
from eqsat.commands.shared import SHARED, taking
from eqsat.errors import OptionError

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Optimise neural network graphs by equality saturation: every equivalent spelling at once, then the program with "
    "the fewest, cheapest kernels, checked against the original.\n\n"
    "Exit status: 0 fine, 1 results differ or verification failed, 2 bad input, 3 results could not be compared.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"eqsat {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Nothing to do before a command."""


@app.command()
@taking(*SHARED)
def optimize(
    model: Model,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to write the optimised model.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write over MODEL itself, if --output names it.")
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="What will run it: onnxruntime, openvino, inductor; of several, or auto for all that are installed, the "
            "fastest, which is measured.",
            show_default=False,
        ),
    ] = None,
    memory_limit: Annotated[int | None, typer.Option(metavar="B", help="Bytes by which saturation may grow.")] = None,
    memory_budget: Annotated[
        int | None, typer.Option(metavar="B", help="Most bytes of values alive at once in the result, constants aside.")
    ] = None,
    disable_rule: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Do without a rule; may be repeated.")
    ] = None,
    only_rules: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Use these rules only; empty for none.")
    ] = None,
    all_rules: Annotated[
        bool, typer.Option("--all-rules", help="Use those, too, that gain nothing in a part of a deep model.")
    ] = False,
    no_overrides: Annotated[
        bool,
        typer.Option(
            "--no-overrides", help="Inputs that have values in MODEL are constants, and no inputs of the result."
        ),
    ] = False,
    rules: RuleFiles = None,
    custom_ops: CustomOps = None,
    keep: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Keep this value as an output.")] = None,
    device: Devices = None,
    devices: DeviceFile = None,
    machine: MachineFile = None,
    verify: Verify = "quick",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="The same as --verify none.")] = False,
    json_path: Json = None,
    quiet: Quiet = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print each step as it is taken, and all of the report.")
    ] = False,
    **options: Any,
) -> None:
    """Optimise MODEL, verify the result against it, and report what was done.

    What is wrong is not written: rules that it rests on are left out. If verification cannot run (no random inputs fit, say),
    the result is written and the exit status is 3. Example:

    eqsat optimize bert.onnx -o fused.onnx --dim batch=1 --cost kernels
    """
    from eqsat.api import optimize_for
    from eqsat.options import check_form

    if options["form"] is not None:
        check_form(options["form"])
    if no_verify and (verify == "full" or options["feeds"]):
        raise OptionError(
            f"--no-verify and {'--inputs' if options['feeds'] else '--verify full'} exclude each other; give one"
        )
    if output is not None:
        check_writable(output, model, overwrite=overwrite)
    load_rule_files(rules)
    load_libraries(custom_ops)
    only = None if only_rules is None else [n for n in only_rules.split(",") if n]
    with progress(quiet, verbose, stages=True) as notify:
        result = optimize_for(
            model,
            engine,
            progress=notify,
            memory_limit_bytes=memory_limit,
            memory_budget_bytes=memory_budget,
            only_rules=only,
            all_rules=all_rules,
            no_overrides=no_overrides,
            disabled_rules=disable_rule or (),
            keep=keep or (),
            devices=parse_devices(device, devices),
            machine=machine,
            verify="none" if no_verify else verify,
            **options,
        )
        if output is not None:
            notify("save", str(output))
            result.save(output)
    report = result.report
    show(report.to_dict(), report.details() if verbose else report, json_path, quiet)
    found = report.verification
    written = f"not verified, though {output} is written" if output else "not verified"
    fail_unless_run(found.get("verdict"), found.get("notes", ()), written)


@app.command()
@taking("seed", "inputs")
def verify(
    original: Annotated[Path, typer.Argument(help="The model to trust.", show_default=False)],
    candidate: Annotated[Path, typer.Argument(help="The model to check.", show_default=False)],
    runs: Annotated[int, typer.Option(min=1, help="Random inputs to try.")] = 3,
    custom_ops: CustomOps = None,
    json_path: Json = None,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Check that two models compute the same, on random inputs of the right kind (token ids in range, masks of 0 and 1).

    The tolerance is the first model's own sensitivity to single roundings, measured.
    """
    from eqsat.api import verify as run

    load_libraries(custom_ops)
    verification = run(original, candidate, runs=runs, **options)
    show(verification.to_dict(), verification, json_path, quiet)
    if verification.verdict == "failed":
        raise typer.Exit(1)
    fail_unless_run(verification.verdict, verification.notes, "not compared")


@app.command()
@taking("dim")
def inspect(
    model: Model,
    nodes: Annotated[bool, typer.Option("--nodes", help="List the nodes by name, with what they compute.")] = False,
    rules: RuleFiles = None,
    json_path: Json = None,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Show operators, kernels, work and bytes of MODEL, and what the optimiser will not touch, and why."""
    from eqsat.api import inspect as run

    load_rule_files(rules)
    found = run(model, **options, nodes=nodes)
    show(found.to_dict(), found, json_path, quiet)


@app.command()
def extract(
    egraph: Annotated[
        Path, typer.Argument(help="An e-graph in the JSON format of extraction-gym.", show_default=False)
    ],
    method: Annotated[str, typer.Option(help="auto, tree, greedy-dag, area or milp.")] = "auto",
    work_limit: Annotated[
        float, typer.Option(metavar="N", help="Steps of work, of which about a million take a second.")
    ] = 20e6,
    time_limit: Annotated[float, typer.Option(metavar="S", help="Ceiling in seconds.")] = 600.0,
    json_path: Json = None,
    quiet: Quiet = False,
) -> None:
    """Find the cheapest DAG in an e-graph, with a proven lower bound."""
    with errors(json_path):
        from eqsat.extract import Effort
        from eqsat.extract import extract as run
        from eqsat.extract.gym import read_gym
        from eqsat.extract.problem import ExtractionError

        graph = read_gym(egraph)
        try:
            result = run(graph.problem, method=method, effort=Effort(work_limit, time_limit))
        except ExtractionError as error:
            said = str(error)
            if error.eclass is not None:  # by its name in the file
                said = f"root e-class {graph.class_names[error.eclass]!r}{said[said.index(':') :]}"
            raise ExtractionError(f"{egraph}: {said}") from None
        data = {
            "cost": result.cost,
            "lower_bound": result.lower_bound,
            "gap": result.gap,
            "seconds": result.seconds,
            "work": vars(result.work),
            "method": result.method,
            "nodes": [graph.node_names[node] for node in result.choice.values()],
        }
        proved = "proved optimal" if result.optimal else f"gap {100 * result.gap:.2f} %"
        text = (
            f"{egraph}: cost {result.cost:.10g}, lower bound {result.lower_bound:.10g}, {proved}\n"
            f"  {len(result.choice)} e-nodes, method {result.method}, {result.seconds:.3f} s"
        )
        show(data, text, json_path, quiet)


for _command in (rules, targets, bench, calibrate, compare, explain):
    app.command()(_command)
