"""The relaxed bound: never above the optimum found by trying everything, and met where kernels are simple."""

from __future__ import annotations

from dataclasses import replace

import pytest
from brute_force import ALL, KINDS, LIGHT, optimum, random_problem, seeds, target

from eqsat.bounds.bound import Attempt, relaxed_bound
from eqsat.bounds.kernels import covering_of
from eqsat.cost.custom import as_cost_model
from eqsat.cost.model import Rates, find_cost_model
from eqsat.cost.target import Stage, Target, Template
from eqsat.errors import OptionError
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import NoKernelError, Pool, cover
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.fusion.merging import merge_kernels
from eqsat.ir.types import DType, TensorType

TERMS = (
    Rates(launch=3.0, operator=0.5, byte=0.02),
    Rates(launch=1.0, operator=0.4, byte=0.01, counts_operations=True, view=0.3),
    Rates(operator=1.0),
)
"""Cost models of one's own, by their terms."""


@pytest.mark.parametrize("cost", ["kernels", "bytes", "roofline", "roofline-launch", *TERMS], ids=str)
@pytest.mark.parametrize("recompute", [LIGHT, ALL])
@seeds(70)
def test_bound_is_never_above_the_optimum(cost: str | Rates, recompute: frozenset[str], seeds: range) -> None:
    machine = target(recompute, 16)
    model = as_cost_model(cost)
    total = total_best = 0.0
    for seed in seeds:
        graph = random_problem(seed)
        best = optimum(graph, machine, model)
        if best == float("inf"):
            continue
        relaxed = relaxed_bound(graph, machine, model, effort=Effort(10_000_000))
        assert relaxed is not None
        bound = relaxed.bound
        for detail in (0, 1):
            coarser = relaxed_bound(
                graph, machine, model, effort=Effort(10_000_000), attempts=(Attempt(detail, 10_000, 1.0),)
            )
            assert coarser is not None
            assert coarser.bound <= best * (1 + 1e-9), (seed, detail)
        assert bound <= best * (1 + 1e-9), seed
        total, total_best = total + bound, total_best + best
    assert total >= 0.88 * total_best


@pytest.mark.parametrize(("seed", "classes"), [(21, 5), (609, 5), (873, 5), (1982, 5), (245, 6), (1632, 6), (2900, 6)])
@pytest.mark.parametrize("detail", [0, 1, 2])
def test_bound_holds_for_single_operators_with_views_inside(seed: int, classes: int, detail: int) -> None:
    """Where the cheapest kernel around an operator reads a view of what is in memory, or computes a value from a view of it."""
    machine, model = target(LIGHT, 16), find_cost_model("bytes")
    graph = random_problem(seed, classes=classes)
    relaxed = relaxed_bound(graph, machine, model, effort=Effort(10_000_000), attempts=(Attempt(detail, 10_000, 1.0),))
    assert relaxed is not None
    assert relaxed.bound <= optimum(graph, machine, model) * (1 + 1e-9)


@pytest.mark.parametrize("cost", ["roofline-launch", "kernels"])
@seeds(150)
def test_bound_holds_for_kernels_with_several_outputs(cost: str, seeds: range) -> None:
    """No kernel that merging finds is cheaper than the bound; merged kernels compute and write what the others did."""
    machine = target(LIGHT, 16)
    machine = replace(machine, templates=tuple(replace(t, several=t.name != "pointwise") for t in machine.templates))
    model = find_cost_model(cost)
    merged_somewhere = 0
    computed_from_leaves = (505, 1165, 1197, 1845, 2433)
    for seed, classes in [*((s, 7) for s in seeds), *((s, 8) for s in computed_from_leaves)]:
        graph = random_problem(seed, classes=classes)
        prices = ConePrices(graph, model, machine)
        pool = Pool()
        pool.add(ConePool(graph, machine, prices, limit=100_000, effort=Effort(10_000_000)).kernels())
        try:
            found = cover(graph, pool, machine, effort=Effort(10_000_000))
        except NoKernelError:
            continue
        chosen = graph.restricted(found.choice(graph))
        kernels = merge_kernels(chosen, found.kernels, machine, prices)
        price = sum(c.price for c in kernels.values())
        merged_somewhere += price < found.cost
        assert price <= found.cost * (1 + 1e-9)
        outputs = [c for cone in kernels.values() for c in cone.outputs]
        assert len(outputs) == len(set(outputs))
        ready: set[int] = set()
        waiting = list(kernels.values())
        while waiting:
            runnable = [c for c in waiting if c.cut <= ready]
            assert runnable, "kernels need each other in a circle"
            ready.update(c for cone in runnable for c in cone.outputs)
            waiting = [c for c in waiting if c not in runnable]
        assert {c for c in graph.roots if graph.members[c]} <= ready
        for detail in (0, 1, 2):
            for good in ((), kernels.values()):
                relaxed = relaxed_bound(
                    graph,
                    machine,
                    model,
                    effort=Effort(10_000_000),
                    kernels=good,
                    attempts=(Attempt(detail, 10_000, 1.0),),
                )
                assert relaxed is not None
                assert relaxed.bound <= price * (1 + 1e-9), (seed, detail)
    assert merged_somewhere > len(seeds) // 30


@pytest.mark.parametrize("recompute", [LIGHT, ALL])
def test_cutoff_only_cuts_off(recompute: frozenset[str]) -> None:
    """With the optimum as the cutoff, the bound is what it would be without, or that cutoff where kernels are as they seem."""
    machine, model = target(recompute, 16), find_cost_model("roofline-launch")
    for seed in range(40):
        graph = random_problem(seed)
        best = optimum(graph, machine, model)
        if best == float("inf"):
            continue
        free = relaxed_bound(graph, machine, model, effort=Effort(10_000_000))
        for cutoff in (best, 0.9 * best):
            cut = relaxed_bound(graph, machine, model, effort=Effort(10_000_000), cutoff=cutoff)
            assert free is not None
            assert cut is not None
            assert cut.bound <= best * (1 + 1e-7)
            assert cut.bound >= min(free.bound, cutoff) * (1 - 3e-7)


def test_kernels_of_the_relaxed_choice_are_a_covering_or_nothing() -> None:
    """Kernels read off are some program's: they cost its optimum or more, and often just the bound."""
    machine, model = target(LIGHT, 16), find_cost_model("roofline-launch")
    met = 0
    for seed in range(60):
        graph = random_problem(seed)
        best = optimum(graph, machine, model)
        relaxed = relaxed_bound(graph, machine, model, effort=Effort(10_000_000))
        if best == float("inf") or relaxed is None:
            continue
        choice = {cls: i for cls, members in enumerate(graph.members) for i in members if i in relaxed.operations}
        needed = {c for i in choice.values() for c in graph.inputs_of(i)}.union(
            c for c in graph.roots if graph.members[c]
        )
        if not needed <= choice.keys() or any(len(relaxed.operations.intersection(m)) > 1 for m in graph.members):
            continue
        found = covering_of(graph, choice, relaxed.groups, machine, ConePrices(graph, model, machine))
        if found is not None:
            assert found.cost >= best * (1 - 1e-9), seed
            met += found.cost <= best * (1 + 1e-9)
    assert met > 15


def _residual(several: bool) -> tuple[FusionGraph, Target]:
    """``d = a + c``, where ``a`` is a product and ``c`` is computed from it by a norm and a product; all are large but that."""
    graph = FusionGraph()
    for extent in (8, 8, 8, 8, 8):
        graph.add_class([TensorType(DType.FLOAT, (extent,))])
    for cls, name, inputs in ((1, "product", (0,)), (2, "norm", (1,)), (3, "product", (2,)), (4, "add", (1, 3))):
        kind, label = KINDS[name]
        row = 8 if label == "row" else 0
        graph.add(cls, Operation(name, frozenset((name, label)), kind, inputs, 8.0, "default", -1, row, 8.0 * row))
    graph.roots = (4,)
    machine = target(LIGHT, 16)
    return graph, replace(machine, templates=tuple(replace(t, several=several) for t in machine.templates))


@pytest.mark.parametrize("cost", ["bytes", "roofline", "roofline-launch"])
def test_no_kernel_needs_its_own_values(cost: str) -> None:
    """The first product cannot write ``d`` too: the second one is computed from it. So ``c`` and ``d`` are one kernel."""
    model = find_cost_model(cost)
    graph, machine = _residual(several=True)
    single, machine_of_one = _residual(several=False)
    relaxed = relaxed_bound(graph, machine, model, effort=Effort(10_000_000))
    assert relaxed is not None
    assert relaxed.bound == pytest.approx(optimum(single, machine_of_one, model))


def test_operators_read_early_stages_as_early_inputs() -> None:
    """A stage that only the third input may come from takes nothing else."""
    bounds = []
    for place in (1, 2):
        graph = FusionGraph()
        for _ in range(5):
            graph.add_class([TensorType(DType.FLOAT, (8,))])
        for cls, name, inputs in ((3, "add", (0,)), (4, "product", (1, 2, 3) if place == 2 else (1, 3, 2))):
            kind, label = KINDS[name]
            graph.add(cls, Operation(name, frozenset((name, label)), kind, inputs, 8.0, "default", -1))
        graph.roots = (4,)
        stages = (
            Stage(frozenset(("elementwise",)), from_input=2),
            Stage(frozenset(("anchor",)), once=True, required=True),
        )
        machine = replace(target(LIGHT, 16), templates=(Template("masked", "test", stages),))
        relaxed = relaxed_bound(graph, machine, find_cost_model("bytes"), effort=Effort(10_000_000))
        assert relaxed is not None
        bounds.append(relaxed.bound)
    assert bounds == pytest.approx([6 * 32.0, 4 * 32.0])


def test_other_machines_have_no_relaxation() -> None:
    graph = random_problem(0)
    machine = replace(target(LIGHT, 16), fusion="post-dominator")
    assert relaxed_bound(graph, machine, find_cost_model("kernels"), effort=Effort(1_000_000)) is None
    assert relaxed_bound(graph, target(LIGHT, 16), find_cost_model("flops"), effort=Effort(1_000_000)) is None


def test_no_time_means_no_bound() -> None:
    machine, model = target(LIGHT, 16), find_cost_model("roofline")
    assert relaxed_bound(random_problem(0), machine, model, effort=Effort(0)) is None


@pytest.mark.parametrize(
    ("rates", "said"),
    [(Rates(byte=-1.0), "byte is -1.0"), (Rates(operator=1.0, view=2.0), "a view costs more than an operator")],
)
def test_terms_that_are_no_price_are_refused(rates: Rates, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        as_cost_model(rates)
