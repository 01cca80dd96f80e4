"""The cost of a placement against all placements of random small graphs."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass, field, replace

import pytest

from eqsat.cost.model import Work
from eqsat.cost.target import Target, load_target
from eqsat.egraph.encode import encode
from eqsat.egraph.snapshot import take_snapshot
from eqsat.errors import OptionError
from eqsat.extract import DEFAULT_STEPS, Effort
from eqsat.ir.build import GraphBuilder
from eqsat.placement.annotate import annotate
from eqsat.placement.machine import Link, Machine
from eqsat.placement.problem import Placing

OPERATORS = {"Neg": 1, "Exp": 1, "Abs": 1, "Add": 2, "Sub": 2, "Mul": 2, "Div": 2}


@dataclass
class TablePrices:
    """A random price for every operator on every target; copies cost their latency."""

    table: dict[tuple[str, str], float]
    name: str = "table"
    unit: str = "units"

    def kernel_cost(self, work: Work, target: Target) -> float:
        return target.launch_s if target.name == "link" else self.table[work.operators[0], target.name]


@dataclass
class Instance:
    """E-classes in order, each a list of (operator, what it reads); inputs are -1, -2, ..."""

    classes: list[list[tuple[str, tuple[int, ...]]]]
    inputs: int
    machine: Machine
    model: TablePrices
    pins: dict[int, str] = field(default_factory=dict)
    homes: dict[int, str] = field(default_factory=dict)
    roots: list[int] = field(default_factory=list)


def draw(seed: int, *, devices: int, size: int, spellings: int) -> Instance:
    rng = random.Random(seed)
    base = load_target("onnxruntime-cpu")
    names = [f"d{i}" for i in range(devices)]
    links = {}
    for pair in itertools.combinations(names, 2):
        if rng.random() < 0.85:
            links[pair] = Link(1.0, rng.choice([0.5, 1.0, 3.0, 6.0]), "test")
    machine = Machine({d: replace(base, name=f"t{d}") for d in names}, links)
    table = {(op, f"t{d}"): rng.choice([1.0, 2.0, 4.0, 9.0, math.inf]) for op in OPERATORS for d in names}
    inputs = rng.randint(1, 2)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    classes: list[list[tuple[str, tuple[int, ...]]]] = []
    while len(classes) < size:
        readable = [*range(len(classes)), *range(-inputs, 0)]
        members: list[tuple[str, tuple[int, ...]]] = []
        for _ in range(rng.randint(1, spellings)):
            op = rng.choice(sorted(OPERATORS))
            node = (op, tuple(rng.choice(readable) for _ in range(OPERATORS[op])))
            key = (op, tuple(sorted(node[1])) if op in ("Add", "Mul") else node[1])
            if key not in seen:
                seen.add(key)
                members.append(node)
        if members:
            classes.append(members)
    found = Instance(classes, inputs, machine, TablePrices(table))
    if spellings == 1:  # a pin separates annotations, and unions across them are not what is tested here
        found.pins = {i: rng.choice(names) for i in range(size) if rng.random() < 0.3}
    found.homes = {-i - 1: rng.choice(names) for i in range(inputs)}
    found.roots = sorted({size - 1, *(i for i in range(size) if rng.random() < 0.3)})
    return found


def brute_force(instance: Instance) -> float:
    """Least cost over every set of (class, device, spelling), copies as cheap as possible; infinite if nothing works."""
    names = list(instance.machine.names)
    machine = instance.machine
    options = []
    for cls, members in enumerate(instance.classes):
        for device in names:
            allowed = members if instance.pins.get(cls, device) == device else []
            kept = [m for m in allowed if instance.model.table[m[0], f"t{device}"] < math.inf]
            options.append([None, *kept])
    best = math.inf
    for chosen in itertools.product(*options):
        made = {(i // len(names), names[i % len(names)]): m for i, m in enumerate(chosen) if m is not None}
        cost = sum(instance.model.table[m[0], f"t{d}"] for (_, d), m in made.items())
        if cost >= best:
            continue
        needed = {(c, d) for (_, d), m in made.items() for c in m[1]}
        needed |= {(c, instance.pins.get(c, machine.host)) for c in instance.roots}
        for cls, device in needed:
            if (cls, device) in made or (cls < 0 and instance.homes[cls] == device):
                continue
            makers = [instance.homes[cls]] if cls < 0 else [d for c, d in made if c == cls]
            links = [link for m in makers if (link := machine.link(m, device)) is not None]
            cost += min((link.latency_s for link in links), default=math.inf)
        best = min(best, cost)
    return best


def solved(instance: Instance) -> float:
    b = GraphBuilder()
    values = {-i - 1: b.input(f"x{i}", "float32", (4,)) for i in range(instance.inputs)}
    spelled: list[list[str]] = []
    for cls, members in enumerate(instance.classes):
        spelled.append([b.op(op, *(values[c] for c in read)) for op, read in members])
        values[cls] = spelled[-1][0]
    outputs = [values[c] for c in instance.roots]
    graph = b.finish(outputs)
    devices = {values[c]: d for c, d in {**instance.pins, **instance.homes}.items()}
    annotated = annotate(graph, devices, instance.machine)
    encoding = encode(annotated.graph)
    for names in spelled:
        for other in names[1:]:
            encoding.egraph.union(encoding.handles[names[0]], encoding.handles[other], "same")
    snapshot = take_snapshot(encoding.egraph)
    placing = Placing(encoding, snapshot, annotated, instance.machine, instance.model, lambda op, types: True)
    found = placing.best(Effort(DEFAULT_STEPS))
    assert found.cost == pytest.approx(found.lower_bound)
    assert found.cost <= found.cost_before + 1e-9
    return found.cost


@pytest.mark.parametrize(
    ("count", "devices", "size", "spellings"), [(120, 2, 4, 1), (80, 3, 3, 1), (60, 2, 5, 1), (80, 2, 3, 2)]
)
def test_cost_equals_that_of_the_best_of_all_placements(count: int, devices: int, size: int, spellings: int) -> None:
    feasible = 0
    for seed in range(count):
        instance = draw(seed, devices=devices, size=size, spellings=spellings)
        expected = brute_force(instance)
        if expected == math.inf:
            with pytest.raises(OptionError, match="placement: "):
                solved(instance)
            continue
        feasible += 1
        assert solved(instance) == pytest.approx(expected), f"seed {seed}"
    assert feasible > count / 2
