"""Programs fused and improved window by window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import eqsat
import eqsat.rules  # registers the shipped rules
from eqsat.cost.model import CostModel, find_cost_model
from eqsat.cost.target import load_target
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import Limits, saturate
from eqsat.egraph.snapshot import Snapshot, take_snapshot
from eqsat.exactness import Exactness
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePrices
from eqsat.fusion.covering import Covering, NoKernelError, Pool, repeated
from eqsat.fusion.inlining import inlined_kernels
from eqsat.fusion.merging import kernels_before
from eqsat.fusion.partition import grouped
from eqsat.fusion.templates import Cone, Matcher
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.order import dependency_order
from eqsat.joint import program_of, select_joint
from eqsat.joint.candidates import Candidates
from eqsat.joint.improving import Improving
from eqsat.joint.result import original_choice
from eqsat.joint.snapshot_graph import SnapshotGraph, graph_of_snapshot
from eqsat.joint.windows import Window
from eqsat.rewrite import select_rules

KERNELS, H200 = find_cost_model("kernels"), load_target("h200")


def stack(layers: int) -> Graph:
    """Perceptrons with residuals and norms; all add the same mask, which is computed from an input."""
    rng = np.random.default_rng(1)
    b = GraphBuilder("stack")
    x, given = b.input("x", "float32", (4, 8)), b.input("mask", "float32", (4, 16))
    mask = b.op("Mul", b.op("Sub", given, b.constant(np.float32(1))), b.constant(np.float32(9)))
    for _ in range(layers):
        up, down = (b.constant(rng.normal(size=shape).astype(np.float32)) for shape in ((8, 16), (16, 8)))
        hidden = b.op("Relu", b.op("Add", b.op("MatMul", x, up), mask))
        x = b.op("LayerNormalization", b.op("Add", b.op("MatMul", hidden, down), x), b.constant(np.ones(8, np.float32)))
    return b.finish({"y": x})


def source_of(graph: Graph, *, rules: bool = False) -> tuple[SnapshotGraph, Snapshot]:
    encoding = encode(graph)
    if rules:
        saturate(encoding.egraph, select_rules(Exactness.LSB, only=None, disabled=()), Limits(10.0, 5_000))
    snapshot = take_snapshot(encoding.egraph)
    return graph_of_snapshot(encoding, snapshot, H200), snapshot


def improving(source: SnapshotGraph, snapshot: Snapshot, model: CostModel = KERNELS) -> Improving:
    inputs = source.inputs(snapshot)
    return Improving(source.graph, H200, model, effort=Effort(3_000_000), inputs=inputs, bounded=True)


def is_program(source: SnapshotGraph, plan: Covering) -> bool:
    complete = len(dependency_order(kernels_before(plan.kernels))) == len(plan.kernels)
    return complete and not repeated(source.graph, plan.kernels.values(), H200)


def solved_windows(layers: int, monkeypatch: pytest.MonkeyPatch) -> int:
    solved: list[Window] = []
    solve = Improving._solved

    def counted(self: Improving, window: Window, *args: object, **options: object) -> Covering | None:
        solved.append(window)
        return solve(self, window, *args, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(Improving, "_solved", counted)
    source, snapshot = source_of(stack(layers))
    assert improving(source, snapshot).offer(original_choice(source, snapshot), "original")
    return len(solved)


def test_equal_layers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert solved_windows(48, monkeypatch) == solved_windows(24, monkeypatch) > 0


@pytest.mark.parametrize("cost", ["kernels", "bytes", "roofline-launch"])
def test_windows_cost_what_the_whole_does(cost: str) -> None:
    model = find_cost_model(cost)
    source, snapshot = source_of(stack(6))
    choice = original_choice(source, snapshot)
    found = improving(source, snapshot, model)
    plan = found.offer(choice, "original")
    whole = Candidates(source.graph, H200, model, effort=Effort(5_000_000)).offer(choice, "original")
    assert plan is not None
    assert whole is not None
    assert is_program(source, plan)
    assert plan.cost == pytest.approx(sum(cone.price for cone in plan.kernels.values()))
    assert plan.cost <= whole.cost * (1 + 1e-9)


def test_a_pool_without_a_covering_takes_nothing_away() -> None:
    source, snapshot = source_of(stack(2))
    found = Candidates(source.graph, H200, KERNELS, effort=Effort(5_000_000))
    with pytest.raises(NoKernelError):
        found.improve()
    found.offer(original_choice(source, snapshot), "original")
    best, found.pool = found.best, Pool()
    found._coverings.clear()
    assert found.improve() == 0.0
    assert found.best is best is not None


def test_a_look_around_finds_better_programs() -> None:
    source, snapshot = source_of(stack(6), rules=True)
    found = improving(source, snapshot)
    original = found.offer(original_choice(source, snapshot), "original")
    found.look_around()
    assert found.best is not None
    assert original is not None
    assert found.best.cost < original.cost
    assert is_program(source, found.best.plan)


def light_kernels(source: SnapshotGraph, kernels: Mapping[int, Cone]) -> list[int]:
    kinds = {root: {source.graph.operations[i].kind.value for i in cone.operations} for root, cone in kernels.items()}
    return [root for root, found in kinds.items() if found <= H200.recompute]


def test_what_all_layers_read_is_computed_by_each_of_them() -> None:
    source, snapshot = source_of(stack(4))
    choice = original_choice(source, snapshot)
    prices = ConePrices(source.graph, KERNELS, H200)
    before = grouped(source.graph.restricted(choice), choice, H200, prices)
    assert before is not None
    assert light_kernels(source, before)
    after = inlined_kernels(source.graph, before, Matcher(source.graph, H200), prices)
    assert not light_kernels(source, after)
    assert sum(c.price for c in after.values()) < sum(c.price for c in before.values())
    assert is_program(source, Covering(after, 0.0, ""))


def test_programs_from_windows_compute_the_same() -> None:
    graph = stack(5)
    encoding = encode(graph)
    rules = select_rules(Exactness.LSB, only=None, disabled=())
    saturate(encoding.egraph, rules, Limits(10.0, 5_000))
    joint = select_joint(encoding, take_snapshot(encoding.egraph), KERNELS, H200, effort=Effort(400_000))
    program = program_of(encoding, take_snapshot(encoding.egraph), joint, {r.name: r.exactness for r in rules})
    feeds = {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32), "mask": np.ones((4, 16), np.float32)}
    for name, value in run(graph, feeds).items():
        np.testing.assert_allclose(program.run(feeds)[name], value, rtol=1e-3, atol=1e-4)


def test_without_effort_for_a_bound_none_is_claimed() -> None:
    encoding = encode(stack(12))
    saturate(encoding.egraph, select_rules(Exactness.LSB, only=None, disabled=()), Limits(10.0, 5_000))
    joint = select_joint(encoding, take_snapshot(encoding.egraph), KERNELS, H200, effort=Effort(100_000))
    assert (joint.bound_scope, joint.lower_bound) == ("none", 0.0)


def test_what_a_merged_kernel_reads_of_a_view_stays_computed(real_model: Callable[[str], Path]) -> None:
    """The causal mask: a kernel merged with a view of it still reads the view before that one, which nothing else does."""
    report = eqsat.optimize(real_model("dynamic/gpt2.legacy"), target="h200", cost="roofline", verify=False).report
    assert report.recognized["attention"] == 2
    assert report.kernels_after < 25
