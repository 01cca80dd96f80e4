"""Blocks of graphs whose products take longer for their operations than for their bytes: bounds are never above the optimum."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from brute_force import ALL, KINDS, LIGHT, chain, optimum, random_problem, seeds, target

from eqsat.bounds.blocks import bound as blockwise
from eqsat.bounds.blocks.block import block_of
from eqsat.bounds.blocks.bound import blockwise_bound
from eqsat.bounds.blocks.prerequisites import BlockPrerequisites, NoPrerequisites
from eqsat.bounds.blocks.separators import separated
from eqsat.bounds.blocks.slow_kernels import before, held_across
from eqsat.bounds.focus import Focus
from eqsat.bounds.prerequisites import Prerequisites
from eqsat.bounds.reaching import Reaching
from eqsat.bounds.readers import Readers
from eqsat.bounds.relaxed_templates import mode_of, unfinished
from eqsat.bounds.states import ANY
from eqsat.bounds.views import merge_views
from eqsat.cost.model import find_cost_model
from eqsat.cost.target import Stage, Target, Template
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import NoKernelError, Pool, cover
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.fusion.templates import Cone
from eqsat.ir.types import DType, TensorType

pytestmark = pytest.mark.usefixtures("small_blocks", "slow_kernels_cut")

_ELEMENTWISE = frozenset(("elementwise", "broadcast"))

ATTENTION = Template(
    "attention",
    "test",
    (
        Stage(frozenset(("anchor",)), once=True, required=True),
        Stage(_ELEMENTWISE),
        Stage(frozenset(("row",)), once=True, required=True),
        Stage(_ELEMENTWISE),
        Stage(frozenset(("anchor",)), once=True, required=True),
    ),
)
PROLOGUE = Template(
    "prologue",
    "test",
    (Stage(_ELEMENTWISE), Stage(frozenset(("anchor",)), once=True, required=True), Stage(_ELEMENTWISE)),
)


@pytest.fixture
def slow_kernels_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations count, and graphs are cut behind products, too, whose kernels write one value only."""
    monkeypatch.setattr(blockwise, "_LEAST_BYTES", 2.0)
    monkeypatch.setattr(blockwise, "_MOST_IN_ONE", 1.0)
    monkeypatch.setattr(blockwise, "behind_in_single", lambda *_: set[int]())


def operation(name: str, inputs: tuple[int, ...], flops: float = 8.0) -> Operation:
    kind, label = KINDS[name]
    row = 8 if label == "row" else 0
    return Operation(name, frozenset((name, label)), kind, inputs, flops, "default", -1, row, 8.0 * row)


def with_work(graph: FusionGraph, rng: random.Random) -> FusionGraph:
    """The graph with products that take up to six times as long as their bytes, of two types."""
    for index, op in enumerate(graph.operations):
        dtype = rng.choice(("default", "fast"))
        if op.name == "product":
            graph.operations[index] = replace(op, flops=rng.choice((32.0, 96.0, 200.0, 600.0)), dtype=dtype)
        elif rng.random() < 0.3:
            graph.operations[index] = replace(op, flops=op.flops * rng.choice((1, 4)), dtype=dtype)
    return graph


def kernels_of(graph: FusionGraph, machine: Target, model: Any) -> list[Cone]:
    pool = Pool()
    prices = ConePrices(graph, model, machine)
    pool.add(ConePool(graph, machine, prices, limit=100_000, effort=Effort()).kernels())
    return list(cover(graph, pool, machine, effort=Effort(10_000_000)).kernels.values())


@pytest.mark.parametrize("cost", ["roofline", "roofline-launch"])
@pytest.mark.parametrize("recompute", [LIGHT, ALL])
@seeds(130)
def test_bound_is_never_above_the_optimum(cost: str, recompute: frozenset[str], seeds: range) -> None:
    model = find_cost_model(cost)
    count = tight = 0
    for seed in seeds:
        rng = random.Random(seed)
        parts = [random_problem(7 * seed + part, classes=4) for part in range(2)]
        graph = with_work(chain(*parts, shared=seed % 3), rng)
        machine = target(recompute, 16)
        machine = replace(machine, peak_ops={"default": 64.0, "fast": rng.choice((64.0, 128.0))})
        if seed % 2:
            machine = replace(machine, templates=(*machine.templates[:3], ATTENTION, PROLOGUE))
        try:
            kernels = kernels_of(graph, machine, model)
        except NoKernelError:
            continue
        found = blockwise_bound(graph, machine, model, effort=Effort(10_000_000), kernels=kernels, coarse=False)
        if found is not None:
            best = optimum(graph, machine, model)
            assert found.bound <= best * (1 + 1e-9), seed
            count += 1
            tight += found.bound >= best * (1 - 1e-9)
    assert count > len(seeds) // 7
    assert tight > (len(seeds) // 30 if recompute is LIGHT else 0)


def layers(count: int) -> FusionGraph:
    """``x + product(norm(x))`` again and again, the sum a large value, the product slow."""
    graph = FusionGraph()
    for _ in range(1 + 3 * count):
        graph.add_class([TensorType(DType.FLOAT, (8,))])
    for last in range(0, 3 * count, 3):
        graph.add(last + 1, operation("norm", (last,)))
        graph.add(last + 2, operation("product", (last + 1,), 600.0))
        graph.add(last + 3, operation("add", (last + 2, last)))
    graph.roots = (3 * count,)
    return graph


@pytest.mark.parametrize("cost", ["roofline", "roofline-launch"])
def test_sums_behind_slow_products_are_no_loss(cost: str) -> None:
    """The kernel around a product computes the sum behind it, which separates two layers, for no more than its operations."""
    graph, machine, model = layers(3), target(LIGHT, 16), find_cost_model(cost)
    found = blockwise_bound(
        graph, machine, model, effort=Effort(10_000_000), kernels=kernels_of(graph, machine, model), coarse=False
    )
    assert found is not None
    assert found.bound == pytest.approx(optimum(graph, machine, model))


def test_separators_that_a_slow_kernel_may_be_the_first_to_hold() -> None:
    """They are those computed for its anchor inside, and those beside it that the anchor does not need."""
    graph = FusionGraph()
    for _ in range(6):
        graph.add_class([TensorType(DType.FLOAT, (8,))])
    graph.add(1, operation("add", (0,)))
    graph.add(2, operation("norm", (1,)))
    graph.add(3, operation("product", (2,), 600.0))
    graph.add(4, operation("add", (1, 3)))
    graph.add(5, operation("add", (4,)))
    graph.roots = (5,)
    machine = target(LIGHT, 16)
    users = graph.users()
    assert before(graph, 2, machine) == {2}
    assert held_across(graph, users, 2, machine, {1, 2}) == set()
    assert held_across(graph, users, 2, machine, set()) == {1}
    assert held_across(graph, users, 2, machine, None) == {1, 3, 4, 5}
    graph.operations[1] = operation("add", (1,))
    fused = replace(machine, templates=(PROLOGUE,))
    assert held_across(graph, users, 2, fused, {1, 2}) == {1, 2}


def test_kernels_that_nothing_finishes() -> None:
    """A product followed by a sum cannot be the first of two in a kernel if no norm can be inside before the second."""
    graph = layers(1)
    graph.add_class([TensorType(DType.FLOAT, (8,))])
    graph.add(4, operation("product", (3,)))
    graph.roots = (4,)
    mode = mode_of(0, ATTENTION, False, 2)
    assert unfinished(graph, graph.users(), mode, 3) == {(0, 1), (1, 1)}
    graph.add_class([TensorType(DType.FLOAT, (8,))])
    graph.add(5, operation("norm", (3,)))
    assert unfinished(graph, graph.users(), mode, 3) == set()
    assert unfinished(graph, graph.users(), mode_of(0, target(LIGHT, 16).templates[1], False, 2), 3) == set()


def test_blocks_know_what_kernels_cannot_read() -> None:
    """As in the whole graph, but for what is computed from values that blocks take to be there."""
    graph, machine = layers(2), target(LIGHT, 16)
    usable = [True] * len(graph.operations)
    merged = merge_views(graph, usable)
    whole = Prerequisites(graph, usable, merged, machine)
    parts = separated(merged.graph, machine)
    assert parts is not None
    block = block_of(parts, len(parts.separators), machine, {}, whole)
    prerequisites = block.prerequisites
    assert isinstance(prerequisites, BlockPrerequisites)
    assert prerequisites.once(block.borders.source)
    classes = {old: new for old, new in block.classes.items() if merged.graph.members[old]}
    for cls, new in classes.items():
        expected = {other for other in classes if whole.needed(cls) & whole.bit(other)}
        assert {
            other for other, number in classes.items() if prerequisites.needed(new) & prerequisites.bit(number)
        } == expected
    parts = replace(parts, shared=frozenset((parts.separators[-1],)))
    apart = block_of(parts, len(parts.separators), machine, {}, whole).prerequisites
    assert apart.bit(block.classes[parts.separators[-1]]) == 0


def test_one_kernel_reads_a_value_shared_by_blocks_once() -> None:
    """Two of its operators do; the value has no bytes here, but a price for each kernel that reads it."""
    graph, machine = FusionGraph(), target(LIGHT, 16)
    for _ in range(3):
        graph.add_class([TensorType(DType.FLOAT, (8,))])
    graph.add(1, operation("add", (0,)))
    graph.add(2, operation("add", (0, 1)))
    graph.bytes[0] = 0.0
    users = graph.users()
    mode = mode_of(0, machine.templates[0], False, 2)
    reach = Reaching(graph, users, machine, mode, lambda *_: True, NoPrerequisites(3)).run(Effort())
    readers = Readers(graph, users, [reach], Focus(shared=frozenset((0,))))
    assert readers.kernel(0, 0, mode, ANY) == readers.kernel(0, 1, mode, ANY)
