"""How far from optimal each model's program and kernels can be at most.

    python -m benchmarks.gaps --models FOLDER [--names a,b] [--targets a,b] [--costs a,b] [--time-limit 30] [--no-baselines]

One line for each model, target and cost model: the cost, the bound and its scope, the gap, the e-graph's size and why
saturation stopped, the stage that found the program, seconds of the choice, and how much dearer the two baselines are:
e-nodes by the prices of single operators, then the best kernels for them, or then the groups of TVM's algorithm.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fusion_table import program_cost
from eqsat.cost.model import find_cost_model
from eqsat.cost.target import load_target
from eqsat.egraph.encode import encode
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.saturate import Limits, saturate
from eqsat.egraph.snapshot import take_snapshot
from eqsat.exactness import Exactness
from eqsat.fusion import fuse_program, select_joint
from eqsat.lower.lowering import lower
from eqsat.lower.selection import select
from eqsat.pipeline import load
from eqsat.rewrite import select_rules

HEAD = "| model | target | cost model | cost | gap | scope | e-nodes | stop | stage | s | two-phase, optimal | two-phase, TVM |"


def rows_of(path: Path, targets: list[str], costs: list[str], limit_s: float, baselines: bool) -> None:
    """Prints the lines of one model."""
    rules = select_rules(Exactness.LSB, only=None, disabled=())
    encoding = encode(load(path))
    run = saturate(encoding.egraph, rules, Limits(30.0, 200_000))
    snapshot = take_snapshot(encoding.egraph)
    exactness = {r.name: r.exactness for r in rules}
    exactness |= {FOLD_EXACT: Exactness.EXACT, FOLD_INEXACT: Exactness.ROUNDING}
    for target_name in targets:
        target = load_target(target_name)
        for cost in costs:
            model = find_cost_model(cost)
            additive = select(encoding, snapshot, model, target, time_limit_s=limit_s / 4)
            joint = select_joint(encoding, snapshot, model, target, time_limit_s=limit_s, additive=additive)
            cells = ["", ""]
            if baselines:
                program = lower(encoding, snapshot, additive, exactness)
                for n, method in enumerate(("optimal", "tvm")):
                    fused = fuse_program(program, target, model, method=method, time_limit_s=limit_s)
                    cells[n] = f"{100 * (program_cost(fused, model, target) / joint.cost - 1):+.2f} %"
            print(
                f"| {path.stem} | {target.name} | {cost} | {joint.cost:.6g} | {100 * joint.gap:.3f} % | "
                f"{joint.bound_scope} | {sum(map(len, snapshot.classes.values()))} | {run.stop_reason.value} | {joint.method} | "
                f"{joint.seconds:.1f} | {cells[0]} | {cells[1]} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--targets", default="onnxruntime-cpu,h200")
    parser.add_argument("--costs", default="roofline,roofline-launch")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--no-baselines", action="store_true")
    options = parser.parse_args()
    paths = sorted(options.models.glob("*.onnx"))
    if options.names:
        paths = [options.models / f"{name}.onnx" for name in options.names.split(",")]
    print(HEAD)
    print("|---" * 12 + "|")
    for path in paths:
        rows_of(
            path, options.targets.split(","), options.costs.split(","), options.time_limit, not options.no_baselines
        )


if __name__ == "__main__":
    main()
