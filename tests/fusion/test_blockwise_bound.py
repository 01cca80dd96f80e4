"""The bound block by block: never above the optimum found by trying everything, on problems that fall into blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from brute_force import ALL, LIGHT, chain, optimum, random_problem, seeds, target

from eqsat.bounds.blocks import bound as blockwise
from eqsat.bounds.blocks import separators
from eqsat.bounds.blocks.block import block_of, equal_blocks
from eqsat.bounds.blocks.bound import blockwise_bound
from eqsat.cost.custom import as_cost_model
from eqsat.cost.model import CostModel, Rates, find_cost_model
from eqsat.cost.target import Target
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePool, ConePrices
from eqsat.fusion.covering import NoKernelError, Pool, cover
from eqsat.fusion.graph import FusionGraph
from eqsat.fusion.merging import merge_kernels

pytestmark = pytest.mark.usefixtures("small_blocks")


def problem(seed: int, shared: int = 0) -> FusionGraph:
    return chain(random_problem(2 * seed, classes=4), random_problem(2 * seed + 1, classes=4), shared=shared)


def bounds_and_optima(model: CostModel, machine: Target, seeds: range) -> tuple[list[float], list[float]]:
    """Bounds block by block, and the optima beside them."""
    bounds: list[float] = []
    optima: list[float] = []
    for seed in (*seeds, 1022, 1717):
        graph = problem(seed)
        found = blockwise_bound(graph, machine, model, effort=Effort(10_000_000))
        if found is None:
            continue
        best = optimum(graph, machine, model)
        if best < float("inf"):
            assert found.bound <= best * (1 + 1e-9), seed
            bounds.append(found.bound)
            optima.append(best)
    assert len(bounds) > len(seeds) // 12
    return bounds, optima


@pytest.mark.parametrize("cost", ["bytes", "roofline", "roofline-launch"])
@pytest.mark.parametrize("recompute", [LIGHT, ALL])
@seeds(120)
def test_bound_is_never_above_the_optimum(cost: str, recompute: frozenset[str], seeds: range) -> None:
    bounds, optima = bounds_and_optima(find_cost_model(cost), target(recompute, 16), seeds)
    assert sum(bounds) >= (0.6 if len(seeds) >= 120 else 0.5) * sum(optima)  # few vary more


@pytest.mark.parametrize(
    "rates",
    [Rates(launch=3.0, operator=0.5, byte=0.02), Rates(launch=1.0, operator=0.4, byte=0.01, counts_operations=True)],
    ids=str,
)
@seeds(120)
def test_bound_is_never_above_the_optimum_of_a_model_of_ones_own(rates: Rates, seeds: range) -> None:
    """Launches are dearer here than bytes: cuts hide more of them."""
    bounds, optima = bounds_and_optima(as_cost_model(rates), target(LIGHT, 16), seeds)
    assert sum(bounds) >= 0.5 * sum(optima)


@pytest.mark.parametrize("cost", ["bytes", "roofline-launch"])
@seeds(150)
def test_bound_holds_for_kernels_with_several_outputs(cost: str, seeds: range) -> None:
    """No kernel that merging finds is cheaper than the bound."""
    machine = target(LIGHT, 16)
    machine = replace(machine, templates=tuple(replace(t, several=t.name != "pointwise") for t in machine.templates))
    model = find_cost_model(cost)
    bounded = 0
    for seed in seeds:
        graph = problem(seed)
        prices = ConePrices(graph, model, machine)
        pool = Pool()
        pool.add(ConePool(graph, machine, prices, limit=100_000, effort=Effort(10_000_000)).kernels())
        try:
            found = cover(graph, pool, machine, effort=Effort(10_000_000))
        except NoKernelError:
            continue
        kernels = merge_kernels(graph.restricted(found.choice(graph)), found.kernels, machine, prices)
        price = sum(c.price for c in kernels.values())
        for good in ((), kernels.values()):
            relaxed = blockwise_bound(graph, machine, model, effort=Effort(10_000_000), kernels=good)
            if relaxed is not None:
                bounded += 1
                assert relaxed.bound <= price * (1 + 1e-9), seed
    assert bounded > len(seeds) // 8


@pytest.mark.parametrize("shared", [1, 2])
def test_bound_counts_what_kernels_read_of_values_shared_by_blocks(
    shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never above the optimum, and of leaves closer to it here and there than if they were free."""
    machine, model = target(LIGHT, 16), find_cost_model("bytes")
    closer = 0
    for seed in range(90):
        graph = problem(seed, shared)
        prices, pool = ConePrices(graph, model, machine), Pool()
        pool.add(ConePool(graph, machine, prices, limit=100_000, effort=Effort(10_000_000)).kernels())
        try:
            kernels = cover(graph, pool, machine, effort=Effort(10_000_000)).kernels.values()
        except NoKernelError:
            continue
        options: Any = {"kernels": kernels, "coarse": False}
        found = blockwise_bound(graph, machine, model, effort=Effort(10_000_000), **options)
        if found is None:
            continue
        assert found.bound <= optimum(graph, machine, model) * (1 + 1e-9), seed
        with monkeypatch.context() as patched:
            patched.setattr(blockwise, "prices_of_shared", lambda *_: {})
            free = blockwise_bound(graph, machine, model, effort=Effort(10_000_000), **options)
        assert free is not None
        assert found.bound >= free.bound * (1 - 1e-9)
        closer += found.bound > free.bound * (1 + 1e-9)
    assert shared == 2 or closer > 0


def test_equal_parts_are_equal_blocks() -> None:
    """Three equal problems in a chain: the second and the third are the same block, at one end or not."""
    machine = target(LIGHT, 16)
    count = 0
    for seed in range(100):
        parts = separators.separated(chain(*[random_problem(seed, classes=4)] * 3), machine)
        if parts is None or len(parts.separators) != 2:
            continue
        first, second, third = (block_of(parts, position, machine, {}) for position in range(3))
        assert (first.borders.source, third.borders.target) == (-1, -1)
        assert -1 not in (second.borders.source, third.borders.source, first.borders.target, second.borders.target)
        keys = [key for key, _ in equal_blocks([first, second, third], frozenset())]
        sizes = [(len(b.graph.operations), len(b.graph.members)) for b in (second, third)]
        count += keys[1] == keys[2]
        assert keys[1] != keys[2] or sizes[0] == sizes[1]
        assert keys[0] != keys[1]
    assert count > 3
