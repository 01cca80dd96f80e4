"""Extraction problems and a brute-force optimum, shared by the tests of this folder."""

import itertools
import random

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from eqsat.extract import ExtractionError, ExtractionProblem
from eqsat.extract.problem import evaluate_choice


def brute_force(problem: ExtractionProblem) -> float:
    """Return the least DAG cost over all choices, inf if there is none."""
    members: list[list[int]] = [[] for _ in range(problem.class_count)]
    for node, owner in enumerate(problem.node_class):
        members[owner].append(node)
    filled = [c for c in range(problem.class_count) if members[c]]
    best = float("inf")
    for nodes in itertools.product(*(members[c] for c in filled)):
        try:
            _, cost = evaluate_choice(problem, dict(zip(filled, nodes, strict=True)))
        except ExtractionError:
            continue
        best = min(best, cost)
    return best


def reference_optimum(problem: ExtractionProblem) -> float:
    """Return the optimum of a plain MILP: a variable per class and node, and levels against cycles; inf if infeasible.

    Shares no code with the package. For finite costs and a few dozen classes.
    """
    classes, count = problem.class_count, problem.node_count
    rows: list[dict[int, float]] = []
    limits: list[float] = []
    members: dict[int, list[int]] = {}
    for node, owner in enumerate(problem.node_class):
        members.setdefault(owner, []).append(node)
    for current in range(classes):  # needed <= sum of its nodes
        rows.append({count + current: 1.0, **dict.fromkeys(members.get(current, []), -1.0)})
        limits.append(0.0)
    for node, owner in enumerate(problem.node_class):
        for child in set(problem.node_children[node]):
            rows.append({node: 1.0, count + child: -1.0})
            limits.append(0.0)
            if child == owner:
                rows.append({node: 1.0})
                limits.append(0.0)
            else:  # level of the child + 1 <= level of the owner, if the node is chosen
                rows.append({count + classes + child: 1.0, count + classes + owner: -1.0, node: float(classes)})
                limits.append(classes - 1.0)
    matrix = lil_array((len(rows), count + 2 * classes))
    for number, row in enumerate(rows):
        for column, value in row.items():
            matrix[number, column] = value
    lower = np.zeros(count + 2 * classes)
    lower[[count + r for r in problem.roots]] = 1
    upper = np.concatenate([np.ones(count + classes), np.full(classes, classes)])
    result = milp(
        np.concatenate([problem.node_cost, np.zeros(2 * classes)]),
        integrality=np.concatenate([np.ones(count), np.zeros(2 * classes)]),
        bounds=Bounds(lower, upper),  # pyright: ignore[reportArgumentType]
        constraints=LinearConstraint(matrix.tocsr(), -np.inf, np.array(limits)),  # pyright: ignore[reportArgumentType]
        options={"mip_rel_gap": 0.0},
    )
    return float("inf") if result.x is None else float(result.fun)


def random_problem(seed: int) -> ExtractionProblem:
    """Draw a problem of 2-8 classes with cycles, shared sub-DAGs, free nodes, infinite costs and several roots."""
    rng = random.Random(seed)
    count = rng.randint(2, 8)
    upward = rng.choice([0.0, 0.1, 0.3, 0.5])
    width = rng.choice([1, 2, 3])
    most = rng.choice([2, 3, 4]) if count < 8 else 3
    nodes: list[tuple[int, tuple[int, ...], float]] = []
    for owner in range(count):
        for _ in range(rng.randint(1, most)):
            children: list[int] = []
            for _ in range(rng.randint(1, width)):
                if rng.random() < upward:
                    children.append(rng.randrange(count))
                elif owner:
                    children.append(rng.randrange(max(0, owner - 4), owner))
            nodes.append((owner, tuple(children), rng.choice([0.0, 0.001, 1.0, 1.0, 2.0, 3.0, rng.uniform(0, 4)])))
        if rng.random() < 0.15:  # a leaf that derives the class dearly, so that cycles are optional
            nodes.append((owner, (), rng.choice([5.0, 9.0, 20.0, float("inf")])))
    rng.shuffle(nodes)
    names = list(range(count))
    rng.shuffle(names)
    roots = tuple(names[c] for c in ([count - 1] if rng.random() < 0.7 else sorted({count - 1, count // 2, 0})))
    return ExtractionProblem(
        count,
        [names[owner] for owner, _, _ in nodes],
        [tuple(names[k] for k in children) for _, children, _ in nodes],
        [cost for _, _, cost in nodes],
        roots,
    )


def large_problem(classes: int, seed: int, upward: float = 0.1) -> ExtractionProblem:
    """Draw a problem of ``classes`` classes with much sharing, some cycles, and a leaf at the bottom."""
    rng = random.Random(seed)
    nodes: list[tuple[int, tuple[int, ...], float]] = [(0, (), 1.0)]
    for owner in range(1, classes):
        for position in range(rng.randint(1, 4)):
            reach = owner if position == 0 or rng.random() > upward else min(classes, owner + 20)
            children = tuple(rng.randrange(max(0, owner - 20), reach) for _ in range(rng.randint(1, 2)))
            nodes.append((owner, children, float(rng.randint(0, 9))))
    return ExtractionProblem(
        classes, [n[0] for n in nodes], [n[1] for n in nodes], [n[2] for n in nodes], (classes - 1,)
    )


class Builder:
    """Builds a problem one e-node at a time."""

    def __init__(self) -> None:
        self.class_count = 0
        self.nodes: list[tuple[int, tuple[int, ...], float]] = []

    def new(self, cost: float, *children: int) -> int:
        """Add an e-node in a new e-class and return the e-class."""
        self.class_count += 1
        return self.also(self.class_count - 1, cost, *children)

    def also(self, eclass: int, cost: float, *children: int) -> int:
        """Add an e-node to ``eclass`` and return the e-class."""
        self.nodes.append((eclass, children, cost))
        return eclass

    def problem(self, *roots: int) -> ExtractionProblem:
        """Return the problem built."""
        owner, children, cost = zip(*self.nodes, strict=True)
        return ExtractionProblem(self.class_count, owner, children, cost, roots)


def merged_matmuls(layers: int) -> ExtractionProblem:
    """Attention-like layers: three matmuls (cost 1) of one input, or three projections of a split of a merged matmul.

    The merged matmul (cost 2) pays only if all three use it, which no greedy step sees; each layer also has a cycle (the
    concatenation of the three is the merged matmul), two-way merges, free constants and nearly free views.
    """
    build = Builder()
    x = build.new(0.0)
    for _ in range(layers):
        weights = [build.new(0.0) for _ in range(3)]
        products = [build.new(1.0, x, w) for w in weights]
        merged = build.new(2.0, x, build.new(0.0, *weights))
        split = build.new(0.01, merged)
        build.also(merged, 0.3, *products)
        for product in products:
            build.also(product, 0.0, split)
        for first, second in ((0, 1), (1, 2)):
            pair = build.new(1.7, x, build.new(0.0, weights[first], weights[second]))
            part = build.new(0.01, pair)
            build.also(products[first], 0.0, part)
            build.also(products[second], 0.0, part)
            build.also(pair, 0.2, products[first], products[second])
        views = []
        for product in products:
            biased = build.new(0.5, product, build.new(0.0))
            view = build.new(0.001, build.new(0.001, biased))
            build.also(view, 0.001, build.new(0.001, biased))
            build.also(biased, 0.001, view)
            views.append(view)
        scores = build.new(1.0, build.new(2.0, views[0], views[1]))
        x = build.new(0.5, build.new(2.0, scores, views[2]), x)
    return build.problem(x)
