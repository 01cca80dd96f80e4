"""Small joint problems at random, and their optimum by trying everything.

The search shares no code with the cones: it takes every choice of operations, every kernel of every class by cutting or not
cutting each input, and every assignment of operators to stages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import pytest

from eqsat.cost.model import CostModel, FormulaModel, Work
from eqsat.cost.target import Stage, Target, Template
from eqsat.fusion.graph import FusionGraph, Operation
from eqsat.fusion.work import group_work
from eqsat.ir.operator import Kind
from eqsat.ir.types import DType, TensorType

KINDS = {
    "add": (Kind.ELEMENTWISE, "elementwise"),
    "spread": (Kind.ELEMENTWISE, "broadcast"),
    "move": (Kind.INJECTIVE, "injective"),
    "product": (Kind.ANCHOR, "anchor"),
    "norm": (Kind.REDUCTION, "row"),
    "view": (Kind.VIEW, "view"),
}

_POINTWISE = frozenset(("elementwise", "broadcast"))

LIGHT = frozenset(("view", "elementwise", "injective"))
ALL = frozenset(("view", "elementwise", "injective", "reduction", "anchor", "opaque"))

TEMPLATES = (
    Template("pointwise", "test", (Stage(_POINTWISE | {"injective"}),)),
    Template(
        "product",
        "test",
        (Stage(frozenset(("anchor",)), once=True, required=True, entry=True), Stage(_POINTWISE, same_size=True)),
    ),
    Template("row", "test", (Stage(_POINTWISE), Stage(_POINTWISE | {"row"}, required=True, row_fits=True))),
    Template(
        "two products",
        "test",
        (
            Stage(frozenset(("injective",))),
            Stage(frozenset(("anchor",)), once=True, required=True),
            Stage(frozenset(("elementwise",))),
            Stage(frozenset(("anchor",)), once=True, required=True),
        ),
    ),
)


def seeds(count: int) -> pytest.MarkDecorator:
    """The random problems of a test: the first third of them mostly, all with the slow tests, since the optimum takes long."""
    every = pytest.param(range(count), marks=pytest.mark.slow)
    return pytest.mark.parametrize("seeds", [range(count // 3), every], ids=["some", "all"])


def target(recompute: frozenset[str], argument_limit: int) -> Target:
    """A target with the templates above and rates that make launches, bytes and operations matter alike."""
    return Target(
        "test", "", "", 1.0, 64.0, {"default": 64.0}, frozenset(("view",)), TEMPLATES, "cones", recompute,
        on_chip_bytes=40.0, argument_limit=argument_limit,
    )  # fmt: skip


def _price(work: Work, machine: Target) -> float:
    if work.kind is Kind.VIEW:
        return 0.01 * len(work.operators)
    return machine.launch_s + work.bytes / machine.bandwidth_bytes_per_s + work.flops / machine.peak(work.dtype)


MODEL: CostModel = FormulaModel("test", "units", _price, "")


def random_problem(seed: int, classes: int = 6) -> FusionGraph:
    """A random e-graph with one to two operations in a class, shared values, and now and then a cycle."""
    rng = random.Random(seed)
    graph = FusionGraph()
    for _ in range(2):
        graph.add_class([TensorType(DType.FLOAT, (8,))], scalar=rng.random() < 0.2)
    for cls in range(2, 2 + classes):
        graph.add_class([TensorType(DType.FLOAT, (8 if rng.random() < 0.8 else 4,))])
        assert cls == len(graph.members) - 1
    for cls in range(2, 2 + classes):
        for number in range(1 + (rng.random() < 0.5)):
            name = rng.choices(list(KINDS), (5, 1, 1, 2, 1, 1))[0]
            kind, label = KINDS[name]
            arity = 1 if name in ("move", "view", "norm") else rng.choice((1, 2, 2))
            inputs: list[int] = []
            for _ in range(arity):
                backward = bool(number) and rng.random() < 0.15
                inputs.append(rng.randrange(2, 2 + classes) if backward else rng.randrange(max(0, cls - 4), cls))
            flops = {"product": 32.0, "norm": 16.0, "view": 0.0}.get(name, 8.0)
            row = rng.choice((8, 4)) if label == "row" else 0
            graph.add(
                cls,
                Operation(
                    name, frozenset((name, label)), kind, tuple(dict.fromkeys(inputs)), flops, "default", -1,
                    row, 8.0 * row,
                ),
            )  # fmt: skip
    others = [c for c in range(2, 1 + classes) if rng.random() < 0.15]
    graph.roots = (1 + classes, *others)
    return graph


def chain(*parts: FusionGraph, shared: int = 0) -> FusionGraph:
    """A problem whose parts read the first root of the part before instead of their first leaf.

    ``shared``: 1 if all parts have one second leaf, 2 if that is computed from a leaf of a quarter of its size.
    """
    whole = FusionGraph()
    previous = common = -1
    if shared:
        common = whole.add_class([TensorType(DType.FLOAT, (8,))])
    if shared > 1:
        small = whole.add_class([TensorType(DType.FLOAT, (2,))])
        kind, label = KINDS["add"]
        whole.add(common, Operation("add", frozenset(("add", label)), kind, (small,), 8.0, "default", -1))
    for part in parts:
        number: dict[int, int] = {}
        for cls in range(len(part.members)):
            if cls == 0 and previous >= 0:
                number[cls] = previous
                continue
            if cls == 1 and common >= 0:
                number[cls] = common
                continue
            number[cls] = len(whole.members)
            whole.members.append([])
            whole.elements.append(part.elements[cls])
            whole.bytes.append(part.bytes[cls])
            whole.scalar.append(part.scalar[cls])
        for cls, members in enumerate(part.members):
            for index in members:
                operation = part.operations[index]
                inputs = tuple(dict.fromkeys(number[c] for c in operation.inputs))
                whole.add(number[cls], replace(operation, inputs=inputs))
        previous = number[part.roots[0]]
    whole.roots = (previous,)
    return whole


def optimum(graph: FusionGraph, machine: Target, model: CostModel = MODEL) -> float:
    """Cost of the cheapest program and kernels."""
    inner = [c for c in range(len(graph.members)) if graph.members[c]]
    best = float("inf")
    for picked in product(*(graph.members[c] for c in inner)):
        choice = dict(zip(inner, picked, strict=True))
        order = _order(graph, choice)
        if order is not None:
            best = min(best, _cheapest(graph, choice, order, machine, model, best))
    return best


def _order(graph: FusionGraph, choice: Mapping[int, int]) -> list[int] | None:
    """Needed classes, users first; ``None`` if the choice is cyclic."""
    done: list[int] = []
    state: dict[int, int] = {}

    def visit(cls: int) -> bool:
        if not graph.members[cls] or state.get(cls) == 2:
            return True
        if state.get(cls) == 1:
            return False
        state[cls] = 1
        if not all(visit(c) for c in graph.operations[choice[cls]].inputs):
            return False
        state[cls] = 2
        done.append(cls)
        return True

    return done[::-1] if all(visit(c) for c in graph.roots) else None


def _cheapest(
    graph: FusionGraph, choice: Mapping[int, int], order: list[int], machine: Target, model: CostModel, best: float
) -> float:
    kernels = {c: list(_kernels(graph, choice, c, machine, model)) for c in order}

    def search(position: int, needed: frozenset[int], computed: frozenset[int], cost: float) -> None:
        nonlocal best
        if cost >= best:
            return
        while position < len(order) and order[position] not in needed:
            position += 1
        if position == len(order):
            best = cost
            return
        for inside, cut, price in kernels[order[position]]:
            again = inside & computed
            if all(graph.operations[choice[c]].kind.value in machine.recompute for c in again):
                search(position + 1, needed | cut, computed | inside, cost + price)

    search(0, frozenset(c for c in graph.roots if graph.members[c]), frozenset(), 0.0)
    return best


def _kernels(
    graph: FusionGraph, choice: Mapping[int, int], root: int, machine: Target, model: CostModel
) -> Iterator[tuple[frozenset[int], frozenset[int], float]]:
    """Kernels that compute ``root``: classes inside, classes read that must be computed, price."""
    below = _order_below(graph, choice, root)
    for mask in range(1 << len(below)):
        allowed = {root} | {c for i, c in enumerate(below) if mask >> i & 1}
        inside = _reach(graph, choice, root, allowed)
        if inside != allowed:
            continue
        operations = [choice[c] for c in inside]
        read = {c for i in operations for c in graph.operations[i].inputs} - inside
        if len(inside) > 1 and not _legal(graph, choice, root, inside, read, machine):
            continue
        price = model.kernel_cost(group_work(graph, operations, read, root), machine)
        yield frozenset(inside), frozenset(c for c in read if graph.members[c]), price


def _order_below(graph: FusionGraph, choice: Mapping[int, int], root: int) -> list[int]:
    found: dict[int, None] = {}
    stack = graph.inputs_of(choice[root])
    while stack:
        cls = stack.pop()
        if cls not in found:
            found[cls] = None
            stack.extend(graph.inputs_of(choice[cls]))
    return list(found)


def _reach(graph: FusionGraph, choice: Mapping[int, int], root: int, allowed: set[int]) -> set[int]:
    found: set[int] = set()
    stack = [root]
    while stack:
        cls = stack.pop()
        if cls in allowed and cls not in found:
            found.add(cls)
            stack.extend(graph.inputs_of(choice[cls]))
    return found


def _legal(
    graph: FusionGraph, choice: Mapping[int, int], root: int, inside: set[int], read: set[int], machine: Target
) -> bool:
    operations = {c: graph.operations[choice[c]] for c in inside}
    if all(o.is_view for o in operations.values()):
        return True
    if 1 + sum(not graph.scalar[c] for c in read) > machine.argument_limit:
        return False
    if "two kinds of rows" in _row_faults(graph, operations, machine):
        return False
    return any(_fits(graph, operations, template, machine) for template in machine.templates)


def _row_faults(graph: FusionGraph, operations: Mapping[int, Operation], machine: Target) -> set[str]:
    rows = {o.row_elements for o in operations.values() if "row" in o.labels}
    return {"two kinds of rows"} if len(rows) > 1 else set()


def _fits(graph: FusionGraph, operations: Mapping[int, Operation], template: Template, machine: Target) -> bool:
    real = [c for c, o in operations.items() if not o.is_view]
    options = []
    for c in real:
        options.append([i for i, s in enumerate(template.stages) if s.accepts & operations[c].labels])
    for stages in product(*options):
        if _assignment_holds(graph, operations, template, dict(zip(real, stages, strict=True)), machine):
            return True
    return False


def _assignment_holds(
    graph: FusionGraph,
    operations: Mapping[int, Operation],
    template: Template,
    at: Mapping[int, int],
    machine: Target,
) -> bool:
    below = {c: _ancestors(operations, c) for c in operations}
    single = [c for c, i in at.items() if template.stages[i].once]
    for c, i in at.items():
        stage = template.stages[i]
        inner = [d for d in below[c] if d in at]
        if any(at[d] > i for d in inner):
            return False
        if stage.entry and inner:
            return False
        if stage.row_fits and "row" in operations[c].labels and operations[c].row_bytes > machine.on_chip_bytes:
            return False
        if stage.same_size:
            for d in operations[c].inputs:
                held = d in operations and any(s == d or s in below[d] for s in single)
                if held and graph.elements[d] != graph.elements[c]:
                    return False
    if any(at[a] == at[b] or not (a in below[b] or b in below[a]) for a in single for b in single if a != b):
        return False
    return all(any(i == at[c] for c in at) for i, s in enumerate(template.stages) if s.required)


def _ancestors(operations: Mapping[int, Operation], cls: int) -> set[int]:
    found: set[int] = set()
    stack = [c for c in operations[cls].inputs if c in operations]
    while stack:
        c = stack.pop()
        if c not in found:
            found.add(c)
            stack.extend(d for d in operations[c].inputs if d in operations)
    return found
