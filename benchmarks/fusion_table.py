"""Kernels of models under each target and each way of choosing them.

    python -m benchmarks.fusion_table --models FOLDER [--names a,b] [--targets a,b] [--cost kernels] [--time-limit 20]

"original + tvm": no rules but constant folding, then post-dominator fusion. "extract, tvm" and "extract, optimal": the
cheapest program by prices of single operators, then fusion. "joint": e-nodes and kernels at once, with its gap, the scope of
its bound and seconds. A cell is launches (cost in the unit of the cost model). The last column of ``tvm-like`` is what TVM
Relax 0.27 itself launches after FuseOps and FuseTIR, where it imports the model.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

import eqsat.rules  # noqa: F401  # registers the shipped rules
from eqsat.cost.model import CostModel, find_cost_model
from eqsat.cost.target import Target, load_target
from eqsat.egraph.encode import Encoding, encode
from eqsat.egraph.known import FOLD_EXACT, FOLD_INEXACT
from eqsat.egraph.saturate import Limits, saturate
from eqsat.egraph.snapshot import Snapshot, take_snapshot
from eqsat.exactness import Exactness
from eqsat.extract import STEPS_PER_SECOND, Effort
from eqsat.frontends import load
from eqsat.fusion import fuse_program
from eqsat.fusion.program_graph import graph_of_program
from eqsat.fusion.work import kernel_work
from eqsat.growth import rule_scope
from eqsat.ir.graph import Graph
from eqsat.joint import program_of, select_joint
from eqsat.lower.lowering import lower
from eqsat.lower.program import Program
from eqsat.lower.selection import select
from eqsat.rewrite import select_rules

TARGETS = ("launch-count", "tvm-like", "tensorrt-like", "tensorrt-like-rownorm", "h200")


RELAX_LAUNCHES = {
    "bert_base_b1s128": 191,
    "bert_base_qdq": 228,
    "bert_base_trivial_qdq": 228,
    "sd_unet": 801,
    "resnet50": 56,
    "resnet50_qdq": 58,
    "inception_v3": 121,
    "squeezenet": 39,
    "resnext50": 57,
    "mobilenetv2": 55,
    "mobilenetv3": 74,
    "vit_b16": 173,
    "gpt2": 212,
    "llama": 116,
    "nasrnn": 72,
    "tensat_bert": 81,
}
"""Kernel launches of TVM Relax 0.27, reshapes as views; measured on these models."""


def program_cost(program: Program, model: CostModel, target: Target) -> float:
    """Price of a program, each kernel priced anew from the nodes of the written graph."""
    source = graph_of_program(program.graph, target)
    return sum(model.kernel_cost(kernel_work(source, kernel), target) for kernel in program.kernels)


def prepare(
    graph: Graph, names: tuple[str, ...] | None, target: Target
) -> tuple[Encoding, Snapshot, dict[str, Exactness]]:
    """A saturated e-graph, by all rules for the target of the default numerics or by those named."""
    scope = rule_scope([target], "flat")
    rules = select_rules(Exactness.LSB, only=names, domains=scope.domains, unsupported=scope.unsupported)
    encoding = encode(graph)
    saturate(encoding.egraph, rules, Limits(30.0, 200_000))
    classes = {r.name: r.exactness for r in rules}
    return (
        encoding,
        take_snapshot(encoding.egraph),
        {**classes, FOLD_EXACT: Exactness.EXACT, FOLD_INEXACT: Exactness.ROUNDING},
    )


def rows_of(path: Path, model: CostModel, targets: list[Target], limit_s: float, verbose: bool) -> list[str]:
    graph = load(path)
    rows = []
    for target in targets:
        plain = prepare(graph, (), target)
        full = prepare(graph, None, target)
        original = lower(plain[0], plain[1], select(plain[0], plain[1], model, target), plain[2])
        chosen = select(full[0], full[1], model, target, effort=Effort(limit_s * STEPS_PER_SECOND))
        program = lower(full[0], full[1], chosen, full[2])
        cells = []
        for base, method in ((original, "tvm"), (program, "tvm"), (program, "optimal")):
            fused = fuse_program(base, target, model, method=method, effort=Effort(limit_s * STEPS_PER_SECOND))
            cells.append(f"{fused.kernel_count} ({program_cost(fused, model, target):.4g})")
        joint = select_joint(full[0], full[1], model, target, effort=Effort(limit_s * STEPS_PER_SECOND))
        start = time.perf_counter()
        result = program_of(full[0], full[1], joint, full[2])
        lowering_s = time.perf_counter() - start
        cells.append(f"{result.kernel_count} ({program_cost(result, model, target):.4g})")
        relax = RELAX_LAUNCHES.get(path.stem, "") if target.name == "tvm-like" else ""
        rows.append(
            f"| {path.stem} | {target.name} | {' | '.join(cells)} | {100 * joint.gap:.2f} % | {joint.bound_scope} | "
            f"{joint.method} | {joint.cones} | {joint.seconds:.1f} + {lowering_s:.1f} | {relax} |"
        )
        print(rows[-1], flush=True)
        if verbose:
            print(dict(Counter(k.template for k in result.kernels).most_common()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--names", default="")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--cost", default="kernels")
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    paths = sorted(options.models.glob("*.onnx"))
    if options.names:
        paths = [options.models / f"{name}.onnx" for name in options.names.split(",")]
    model = find_cost_model(options.cost)
    targets = [load_target(name) for name in options.targets.split(",")]
    print(
        "| model | target | original + tvm | extract, tvm | extract, optimal | joint | gap | scope | stage | cones | s | Relax |"
    )
    print("|---" * 12 + "|")
    for path in paths:
        rows_of(path, model, targets, options.time_limit, options.verbose)


if __name__ == "__main__":
    main()
