"""The relaxed bound: never above the optimum found by trying everything, and met where kernels are simple."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from brute_force import optimum, random_problem, target

from eqsat.cost.model import find_cost_model
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import NoKernelError, Pool, cover
from eqsat.fusion.merging import merge_kernels
from eqsat.fusion.relaxation import relaxed_bound

LIGHT = frozenset(("view", "elementwise", "injective"))
ALL = frozenset(("view", "elementwise", "injective", "reduction", "anchor", "opaque"))


@pytest.mark.parametrize("cost", ["kernels", "bytes", "roofline", "roofline-launch"])
@pytest.mark.parametrize("recompute", [LIGHT, ALL])
def test_bound_is_never_above_the_optimum(cost: str, recompute: frozenset[str]) -> None:
    machine = target(recompute, 16)
    model = find_cost_model(cost)
    total = total_best = 0.0
    for seed in range(70):
        graph = random_problem(seed)
        best = optimum(graph, machine, model)
        if best == float("inf"):
            continue
        relaxed = relaxed_bound(graph, machine, model, time_limit_s=10.0)
        assert relaxed is not None
        bound = relaxed.bound
        for detail in (0, 1):
            coarser = relaxed_bound(graph, machine, model, time_limit_s=10.0, attempts=((detail, 10_000, 1.0),))
            assert coarser is not None
            assert coarser.bound <= best * (1 + 1e-9), (seed, detail)
        assert bound <= best * (1 + 1e-9), seed
        total, total_best = total + bound, total_best + best
    assert total >= 0.88 * total_best


@pytest.mark.parametrize("cost", ["roofline-launch", "kernels"])
def test_bound_holds_for_kernels_with_several_outputs(cost: str) -> None:
    """No kernel that merging finds is cheaper than the bound; merged kernels compute and write what the others did."""
    machine = target(LIGHT, 16)
    machine = replace(machine, templates=tuple(replace(t, several=t.name != "pointwise") for t in machine.templates))
    model = find_cost_model(cost)
    merged_somewhere = 0
    for seed in range(150):
        graph = random_problem(seed, classes=7)
        prices = ConePrices(graph, model, machine)
        pool = Pool()
        pool.add(ConePool(graph, machine, prices, limit=100_000, deadline=time.perf_counter() + 10.0).kernels())
        try:
            found = cover(graph, pool, machine, time_limit_s=10.0)
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
            for hints in ((), kernels.values()):
                relaxed = relaxed_bound(
                    graph, machine, model, time_limit_s=10.0, kernels=hints, attempts=((detail, 10_000, 1.0),)
                )
                assert relaxed is not None
                assert relaxed.bound <= price * (1 + 1e-9), (seed, detail)
    assert merged_somewhere > 5


def test_other_machines_have_no_relaxation() -> None:
    graph = random_problem(0)
    machine = replace(target(LIGHT, 16), fusion="post-dominator")
    assert relaxed_bound(graph, machine, find_cost_model("kernels"), time_limit_s=1.0) is None
    assert relaxed_bound(graph, target(LIGHT, 16), find_cost_model("flops"), time_limit_s=1.0) is None


def test_no_time_means_no_bound() -> None:
    machine, model = target(LIGHT, 16), find_cost_model("roofline")
    assert relaxed_bound(random_problem(0), machine, model, time_limit_s=0.0) is None
