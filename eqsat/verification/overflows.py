"""Where float16 leaves its range on the way: there a rewrite of class ``rounding`` is not bound to give the same value.

``x / Sqrt(Mean(x * x))`` is 0 where the squares overflow, beyond 256, and a normalisation is not. Inputs should be such that
this does not happen in the original, or nothing can be said of what comes of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from eqsat.errors import EqsatError
from eqsat.ir.graph import Attributes, Graph, Node
from eqsat.ir.types import DType, TensorType
from eqsat.verification.pieces import Run, session_of

SIZES = (1.0, 2.0**-4, 2.0**-8)
"""Sizes of inputs, of which the first at which nothing overflows is taken, or else that at which the least does."""

_CHECK = ":overflow"


def with_checks(graph: Graph) -> Graph:
    """``graph`` with an output more for each value that a node computes in float16: 0, or NaN if an element is not finite."""
    nodes = list(graph.nodes)
    checks: dict[str, TensorType] = {}
    types: dict[str, TensorType] = {}
    for node in graph.nodes:
        for value in (v for v in node.outputs if v and graph.type_of(v).dtype is DType.FLOAT16):
            difference = f"{value}:difference"
            nodes.append(Node("Sub", (value, value), (difference,)))
            nodes.append(Node("ReduceSum", (difference,), (value + _CHECK,), Attributes({"keepdims": 0})))
            types[difference] = TensorType(DType.FLOAT16, graph.type_of(value).shape)
            checks[value + _CHECK] = TensorType(DType.FLOAT16, ())
    return replace(graph.with_nodes(nodes, types | checks), outputs=(*graph.outputs, *checks))


def not_finite(found: Mapping[str, Any]) -> frozenset[str]:
    """The values that are not finite somewhere, by what a graph `with_checks` computed."""
    return frozenset(v.removesuffix(_CHECK) for v, check in found.items() if v.endswith(_CHECK) and np.isnan(check))


class Overflows:
    """How many values of ``graph`` are not finite on some inputs."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def _run(self) -> Run | None:
        checked = with_checks(self._graph)
        only_checks = replace(checked, outputs=checked.outputs[len(self._graph.outputs) :])
        try:
            return session_of(only_checks).run if only_checks.outputs else None
        except EqsatError:
            return None

    def least(self, draw: Callable[[float], Mapping[str, np.ndarray]]) -> Mapping[str, np.ndarray]:
        """What ``draw`` makes of the first of `SIZES` at which the fewest values are not finite."""
        drawn: list[tuple[int, Mapping[str, np.ndarray]]] = []
        for size in SIZES:
            feeds = draw(size)
            drawn.append((self._count(feeds), feeds))
            if drawn[-1][0] == 0:
                break
        return min(drawn, key=lambda found: found[0])[1]

    def _count(self, feeds: Mapping[str, np.ndarray]) -> int:
        try:
            return 0 if self._run is None else len(not_finite(self._run(feeds)))
        except EqsatError:
            return 0  # whoever runs the original says so
