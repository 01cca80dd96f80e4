"""Bounds on graphs with values in several spellings: never above the optimum found by trying everything."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from brute_force import ALL, LIGHT, chain, optimum, random_problem, seeds, target

from eqsat.bounds.blocks.bound import blockwise_bound
from eqsat.bounds.bound import relaxed_bound
from eqsat.bounds.kernels import covering_of, spanned, with_written_signs
from eqsat.bounds.views import merge_views
from eqsat.cost.model import find_cost_model
from eqsat.extract import Effort
from eqsat.fusion.cones import ConePrices
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.ir.operator import Kind
from eqsat.ir.operators.recenter import RECENTER
from eqsat.ir.types import DType, TensorType

VECTOR = [TensorType(DType.FLOAT, (8,))]
SHORT = [TensorType(DType.FLOAT, (4,))]


def light(graph: FusionGraph, cls: int, *inputs: int) -> None:
    labels = frozenset(("add", "elementwise"))
    read = tuple(dict.fromkeys(inputs))
    graph.add(cls, Operation("add", labels, Kind.ELEMENTWISE, read, 8.0, "default", -1))


def spiced(seed: int) -> FusionGraph:
    """A random problem of two blocks with recentered values and further ways of elementwise operators."""
    rng = random.Random(seed)
    graph = chain(*[random_problem(3 * seed + k, classes=rng.choice((3, 4))) for k in range(2)])
    for index in [i for members in graph.members for i in members]:
        operation = graph.operations[index]
        if "elementwise" in operation.labels and rng.random() < 0.5:
            operation = replace(operation, inputs=operation.inputs[:1])
            if rng.random() < 0.5 and graph.bytes[operation.inputs[0]] == graph.bytes[graph.owner[index]]:
                operation = replace(operation, name=RECENTER, labels=frozenset((RECENTER, "elementwise")))
            graph.operations[index] = operation
    for _ in range(rng.choice((0, 1, 1, 2))):
        ways = [i for members in graph.members for i in members if graph.operations[i].name == "add"]
        single = [i for i in ways if len(graph.operations[i].inputs) == 1]
        if single:
            index = rng.choice(single)
            start, new = graph.operations[index].inputs[0], graph.add_class(VECTOR if rng.random() < 0.7 else SHORT)
            light(graph, new, start)
            light(graph, graph.owner[index], new)
            if rng.random() < 0.4:
                light(graph, new, rng.randrange(new))
    return graph


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("cost", ["bytes", "roofline-launch"])
@seeds(60)
def test_bounds_on_graphs_with_detours_are_never_above_the_optimum(cost: str, seeds: range) -> None:
    model = find_cost_model(cost)
    compared = programs = 0
    for seed in (*seeds, 5431):
        for recompute in (LIGHT, ALL):
            graph, machine = spiced(seed), target(recompute, 16 if seed % 2 else 3)
            found = blockwise_bound(graph, machine, model, effort=Effort(20_000_000))
            best = optimum(graph, machine, model) if found else float("inf")
            if found is None or best == float("inf"):
                continue
            assert found.bound <= best * (1 + 1e-9), seed
            compared += 1
            exact = blockwise_bound(graph, machine, model, effort=Effort(20_000_000), coarse=False)
            choice = spanned(graph, exact.operations, exact.groups) if exact else None
            if exact is not None and choice is not None:
                choice = with_written_signs(graph, choice, exact.groups)
                plan = covering_of(graph, choice, exact.groups, machine, ConePrices(graph, model, machine))
                assert plan is None or plan.cost >= best * (1 - 1e-9), seed
                programs += plan is not None and plan.cost <= best * (1 + 1e-9)
    assert compared > len(seeds) // 3
    assert programs > len(seeds) // 12, "the kernels of the blocks are rarely a program"


def quantised() -> FusionGraph:
    """Leaf 0, quantised, dequantised and scaled in classes 1 to 3, and from there to root 4."""
    graph = FusionGraph()
    for types in (VECTOR, [TensorType(DType.INT8, (8,))], VECTOR, VECTOR, VECTOR):
        graph.add_class(types)
    for cls, read in ((1, 0), (2, 1), (1, 2), (3, 2), (2, 3), (4, 3)):
        light(graph, cls, read)
    graph.roots = (4,)
    return graph


def test_spellings_of_a_value_are_one_value_of_the_fewest_bytes() -> None:
    graph = quantised()
    merged = merge_views(graph, [True] * 6, coarse=target(LIGHT, 16))
    assert len({merged.classes[c] for c in (1, 2, 3)}) == 1
    assert merged.graph.bytes[merged.classes[3]] == 8.0
    assert set(merged.operations) == {0, 5}, "operators between spellings are left out"
    finer = merge_views(graph, [True] * 6)
    assert len(set(finer.classes.values())) == 5


def test_targets_without_templates_know_constants_too() -> None:
    graph = FusionGraph()
    for scalar in (False, True, False):
        graph.add_class(VECTOR, scalar=scalar)
    graph.add(2, Operation("product", frozenset(("product", "anchor")), Kind.ANCHOR, (1, 0), 8.0, "default", -1))
    graph.roots = (2,)
    merged = merge_views(graph, [True], coarse=replace(target(LIGHT, 16), templates=()))
    assert merged.graph.operations[0].inputs == (0,)


def test_a_root_is_written_as_it_is() -> None:
    graph = quantised()
    graph.roots = (3, 4)
    merged = merge_views(graph, [True] * 6, coarse=target(LIGHT, 16))
    assert merged.classes[3] != merged.classes[1] == merged.classes[2]
    assert merged.graph.bytes[merged.classes[3]] == 32.0


def respelled(seed: int) -> FusionGraph:
    """A random problem of two blocks with values that are read in several spellings."""
    rng = random.Random(seed)
    graph = spiced(seed)
    for _ in range(rng.choice((1, 2, 3))):
        cls = rng.choice([c for c, members in enumerate(graph.members) if members])
        new = graph.add_class([TensorType(rng.choice((DType.INT8, DType.FLOAT)), (int(graph.elements[cls]),))])
        readers = graph.users()[cls]
        light(graph, new, cls)
        light(graph, cls, new)
        for index in readers:
            operation = graph.operations[index]
            if rng.random() < 0.4:
                read = tuple(new if c == cls else c for c in operation.inputs)
                graph.operations[index] = replace(operation, inputs=read)
    return graph


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("cost", ["bytes", "roofline-launch"])
@seeds(80)
def test_bounds_on_spellings_are_never_above_the_optimum(cost: str, seeds: range) -> None:
    model = find_cost_model(cost)
    compared = 0
    for seed in seeds:
        graph, machine = respelled(seed), target(LIGHT if seed % 3 else ALL, 16 if seed % 2 else 3)
        found = blockwise_bound(graph, machine, model, effort=Effort(20_000_000))
        best = optimum(graph, machine, model) if found else float("inf")
        if found is not None and best < float("inf"):
            assert found.bound <= best * (1 + 1e-9), seed
            whole = relaxed_bound(graph, machine, model, effort=Effort(20_000_000), coarse=True)
            assert whole is None or whole.bound <= best * (1 + 1e-9), seed
            compared += 1
    assert compared > len(seeds) // 8
