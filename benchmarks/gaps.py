"""How far from optimal each model's program and kernels can be at most.

    python -m benchmarks.gaps --models FOLDER [--names a,b] [--targets a,b] [--costs a,b] [--steps 30] [--no-baselines]

One line for each model, target and cost model: the cost, the bound and its scope, the gap, the e-graph's size and why
saturation stopped, the stage that found the program, CPU seconds
and millions of steps of the choice, and how much dearer the baselines are: e-nodes
by the prices of single operators, then the best kernels for them, or then the groups of TVM's algorithm as far as the target
has kernels for them (the others as single operators). "any group" takes all of TVM's groups as kernels, whatever the target
has: on a target without kernels of several operators it is no program that could run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from benchmarks.fusion_table import program_cost
from eqsat.cost.model import CostModel, find_cost_model
from eqsat.cost.target import Target, load_target
from eqsat.egraph.encode import encode
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.saturate import Limits, saturate
from eqsat.egraph.snapshot import take_snapshot
from eqsat.exactness import Exactness
from eqsat.extract import Effort
from eqsat.frontends import load
from eqsat.fusion import fuse_program
from eqsat.fusion.cones import ConePrices, cone_of
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.postdominator import post_dominator_groups
from eqsat.fusion.program_graph import graph_of_program
from eqsat.fusion.slices import with_slices
from eqsat.fusion.templates import Matcher
from eqsat.growth import rule_scope
from eqsat.joint import select_joint
from eqsat.lower.lowering import lower
from eqsat.lower.program import Program
from eqsat.lower.selection import select
from eqsat.options import ANSWER_STEPS
from eqsat.rewrite import select_rules

HEAD = (
    "| model | target | cost model | cost | gap | scope | e-nodes | stop | stage | CPU s | steps | two-phase, optimal "
    "| two-phase, TVM | any group |"
)

COLUMNS = 14


def grouped_cost(program: Program, target: Target, model: CostModel) -> float:
    """Price of a program in TVM's groups where they are kernels of the target, and in single operators elsewhere."""
    graph = graph_of_program((with_slices(program) if target.slices else program).graph, target).graph
    prices, matcher = ConePrices(graph, model, target), Matcher(graph, target)
    choice = {cls: members[0] for cls, members in enumerate(graph.members) if members}
    total = 0.0
    for root, operations in post_dominator_groups(graph, choice).items():
        whole = cone_of(matcher, prices, operations, root)
        parts = [(frozenset((i,)), graph.owner[i]) for i in operations]
        total += whole.price if whole else sum(prices(cls, one, graph_inputs(graph, one)) for one, cls in parts)
    return total


def graph_inputs(graph: FusionGraph, operations: frozenset[int]) -> frozenset[int]:
    """Classes that a single operator reads."""
    return frozenset(c for i in operations for c in graph.operations[i].inputs)


def rows_of(path: Path, targets: list[str], costs: list[str], steps: float, baselines: bool) -> None:
    """Prints the lines of one model."""
    for target_name in targets:
        target = load_target(target_name)
        scope = rule_scope([target], "flat")
        rules = select_rules(Exactness.LSB, domains=scope.domains, unsupported=scope.unsupported)
        encoding = encode(load(path))
        run = saturate(encoding.egraph, rules, Limits(600.0, 200_000))
        snapshot = take_snapshot(encoding.egraph)
        exactness = {r.name: r.exactness for r in rules}
        exactness |= {FOLD_EXACT: Exactness.EXACT, FOLD_INEXACT: Exactness.ROUNDING}
        for cost in costs:
            model = find_cost_model(cost)
            started = time.process_time()
            joint = select_joint(encoding, snapshot, model, target, effort=Effort(steps))
            seconds = time.process_time() - started
            cells = ["", "", ""]
            if baselines:
                additive = select(encoding, snapshot, model, target, effort=Effort(steps))
                program = lower(encoding, snapshot, additive, exactness)
                optimal, free = (
                    program_cost(fuse_program(program, target, model, method=m, effort=Effort(steps)), model, target)
                    for m in ("optimal", "tvm")
                )
                costs_of_baselines = (optimal, grouped_cost(program, target, model), free)
                cells = [f"{100 * (cost / joint.cost - 1):+.2f} %" for cost in costs_of_baselines]
            print(
                f"| {path.stem} | {target.name} | {cost} | {joint.cost:.6g} | {100 * joint.gap:.3f} % | "
                f"{joint.bound_scope} | {sum(map(len, snapshot.classes.values()))} | {run.stop_reason.value} | {joint.method} | "
                f"{seconds:.1f} | {joint.work.steps / 1e6:.1f} | {' | '.join(cells)} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--targets", default="onnxruntime-cpu,h200")
    parser.add_argument("--costs", default="roofline,roofline-launch")
    parser.add_argument("--steps", type=float, default=ANSWER_STEPS / 1e6, help="millions of steps")
    parser.add_argument("--no-baselines", action="store_true")
    options = parser.parse_args()
    paths = sorted(options.models.glob("*.onnx"))
    if options.names:
        paths = [options.models / f"{name}.onnx" for name in options.names.split(",")]
    print(HEAD)
    print("|---" * COLUMNS + "|")
    for path in paths:
        rows_of(
            path, options.targets.split(","), options.costs.split(","), 1e6 * options.steps, not options.no_baselines
        )


if __name__ == "__main__":
    main()
