"""Joint choices against the optimum found by trying everything."""

from __future__ import annotations

import pytest
from brute_force import ALL, LIGHT, MODEL, optimum, random_problem, target

from eqsat.cost.target import Target
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import Covering, NoKernelError, Pool, cover
from eqsat.fusion.graph import FusionGraph


def solve(graph: FusionGraph, machine: Target, limit: int = 100_000) -> tuple[Covering | None, bool]:
    """The covering, ``None`` where there is none, and whether cones were left out."""
    prices = ConePrices(graph, MODEL, machine)
    cones = ConePool(graph, machine, prices, limit=limit, effort=Effort(60_000_000))
    pool = Pool()
    pool.add(cones.kernels())
    try:
        return cover(graph, pool, machine, effort=Effort(10_000_000)), cones.truncated
    except NoKernelError:
        return None, cones.truncated


@pytest.mark.parametrize("block", range(10))
def test_cost_is_the_optimum(block: int) -> None:
    """Where everything may be recomputed the covering is exact; a limit on arguments is a constraint like any other."""
    machine = target(ALL, 3 if block % 2 else 16)
    for seed in range(40 * block, 40 * block + 40):
        graph = random_problem(seed)
        best = optimum(graph, machine)
        found, truncated = solve(graph, machine)
        assert not truncated, seed
        assert (found is None) == (best == float("inf")), seed
        if found is not None:
            assert found.cost == pytest.approx(best, rel=1e-9), seed
            assert found.lower_bound <= best * (1 + 1e-9), seed


def test_heavy_operators_are_computed_once() -> None:
    """Branching finds the optimum under the condition that heavy operators run once."""
    machine = target(LIGHT, 16)
    equal = count = 0
    for seed in range(1000, 1150):
        graph = random_problem(seed)
        best = optimum(graph, machine)
        found, _ = solve(graph, machine)
        if found is None:
            assert best == float("inf")
            continue
        count += 1
        equal += found.cost <= best * (1 + 1e-9)
        assert found.cost >= best * (1 - 1e-9), seed
        assert found.lower_bound <= best * (1 + 1e-9), seed
    assert equal == count


def test_small_pools_say_so_and_stay_close() -> None:
    machine = target(ALL, 16)
    total = total_best = 0.0
    for seed in range(60):
        graph = random_problem(seed)
        best = optimum(graph, machine)
        found, truncated = solve(graph, machine, limit=4)
        if found is None:
            continue
        total += found.cost
        total_best += best
        assert found.cost >= best * (1 - 1e-9)
        assert truncated or found.cost == pytest.approx(best)
    assert total <= 1.05 * total_best
