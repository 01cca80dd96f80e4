"""Optimising a graph and holding the result against the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import eqsat
import eqsat.rules
from eqsat.egraph.encode import encode
from eqsat.egraph.saturate import saturate
from eqsat.exactness import Exactness
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run
from eqsat.ir.types import TensorType
from eqsat.result import Result
from eqsat.rewrite import select_rules

SCALES = (1.0, -1.0, 300.0, 0.0)
"""Factors by which the random inputs of successive runs are multiplied; the second run has no positive element."""


def feeds_of(graph: Graph, seed: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Random inputs: around 0, negative only, large, all zero; integers over their whole range."""
    rng = np.random.default_rng(seed)
    for factor in SCALES:
        feeds: dict[str, np.ndarray] = {}
        for name in graph.inputs:
            found = graph.type_of(name)
            assert isinstance(found, TensorType)
            assert found.shape is not None
            shape = tuple(d if isinstance(d, int) else 3 for d in found.shape)
            if found.dtype.is_float:
                array = rng.normal(size=shape) * factor
                feeds[name] = (-np.abs(array) if factor < 0 else array).astype(found.dtype.numpy)
            else:
                info = np.iinfo(found.dtype.numpy)
                feeds[name] = rng.integers(info.min, info.max, shape, endpoint=True).astype(found.dtype.numpy)
        yield feeds


def optimized(graph: Graph, *, tolerance: float = 2e-5, **options: Any) -> Result:
    """The optimised graph, after its outputs were compared with the original's on `feeds_of`."""
    result = eqsat.optimize(graph, verify=False, **dict[str, Any](form="flat") | options)
    for feeds in feeds_of(graph):
        assert_close(run(graph, feeds), run(result.program.graph, feeds), tolerance)
    return result


def assert_close(expected: Mapping[str, Any], found: Mapping[str, Any], tolerance: float) -> None:
    """Integers are equal; floats differ by ``tolerance`` of the largest element."""
    assert list(expected) == list(found)
    for name, value in expected.items():
        assert value.shape == found[name].shape, name
        assert value.dtype == found[name].dtype, name
        if value.dtype.kind == "f":
            size = float(np.max(np.abs(value[np.isfinite(value)]), initial=1.0))
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance * size, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], value, err_msg=name)


def counts(result: Result) -> dict[str, int]:
    """Operators of the optimised graph other than views of a buffer."""
    views = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")
    return {op: n for op, n in result.report.operators_after.items() if op not in views}


def proved_equal(graph: Graph, *rules: str) -> bool:
    """Whether the named rules prove the first two outputs of ``graph`` equal."""
    encoding = encode(graph)
    saturate(encoding.egraph, select_rules(Exactness.LSB, only=rules))
    first, second = (encoding.egraph.find(encoding.handles[name]) for name in graph.outputs[:2])
    return first == second


def same_graph(one: Graph, other: Graph) -> bool:
    """Whether both graphs have the same nodes, inputs, outputs and constant contents (names of nodes aside)."""
    if (one.inputs, one.outputs) != (other.inputs, other.outputs) or len(one.nodes) != len(other.nodes):
        return False
    for a, b in zip(one.nodes, other.nodes, strict=True):
        if replace(a, name="") != replace(b, name=""):
            return False
    return one.constants.keys() == other.constants.keys() and all(
        c.type == other.constants[k].type and np.array_equal(c.numpy(), other.constants[k].numpy())
        for k, c in one.constants.items()
    )
