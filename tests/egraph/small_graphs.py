"""Small graphs and rules for the tests of the e-graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from eqsat.exactness import Exactness
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.rewrite import Apply, Condition, Match, Rule, Term


def graph(build: Callable[..., Any], **inputs: tuple[Any, ...]) -> Graph:
    """The graph that ``build(builder, *inputs)`` makes; inputs are float32 of the given shapes."""
    b = GraphBuilder("small")
    made = build(b, *(b.input(name, "float32", shape) for name, shape in inputs.items()))
    outputs = made if isinstance(made, tuple) else (made,)
    return b.finish({f"y{i}": value for i, value in enumerate(outputs)})


def make_rule(
    pattern: Apply, build: Callable[[Match], Term | None], name: str = "rule", where: tuple[Condition, ...] = ()
) -> Rule:
    """A rule that is not registered."""
    return Rule(name, pattern, build, conditions=where, exactness=Exactness.EXACT, family="test")


def feeds(of: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    """Random arrays for the inputs of a graph with static float32 inputs."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=of.type_of(name).shape).astype(np.float32) for name in of.inputs}  # type: ignore[union-attr]
