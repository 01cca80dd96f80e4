"""Small extraction problems and a brute-force optimum, shared by the tests of this folder."""

import itertools
import random

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


def random_problem(rng: random.Random, classes: int | None = None, integer: bool = False) -> ExtractionProblem:
    """Draw a cyclic problem of 2-8 classes with shared sub-DAGs, free nodes, infinite costs and several roots."""
    count = classes or rng.randint(2, 8)
    node_class: list[int] = []
    children: list[tuple[int, ...]] = []
    cost: list[float] = []
    upward = rng.choice([0.0, 0.1, 0.4, 0.7])
    width = rng.choice([1, 2, 3])
    for owner in range(count):
        for _ in range(rng.choice([1, 1, 2, 2, 3])):
            own = []
            for _ in range(rng.randint(0, width)):
                if owner and rng.random() > upward:
                    own.append(rng.randrange(owner))
                elif rng.random() < upward:
                    own.append(rng.randrange(count))
            node_class.append(owner)
            children.append(tuple(own))
            draw = rng.random()
            if draw < 0.2:
                cost.append(0.0)
            elif draw < 0.23:
                cost.append(float("inf"))
            else:
                cost.append(float(rng.randint(1, 5)) if integer or draw < 0.6 else rng.uniform(0.001, 3.0))
    order = list(range(len(node_class)))
    rng.shuffle(order)
    names = list(range(count))
    rng.shuffle(names)
    roots = tuple(rng.sample(names, rng.choice([1, 1, 1, 2]))) if rng.random() < 0.5 else (names[count - 1],)
    return ExtractionProblem(
        count,
        [names[node_class[n]] for n in order],
        [tuple(names[k] for k in children[n]) for n in order],
        [cost[n] for n in order],
        roots,
    )
