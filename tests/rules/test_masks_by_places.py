"""Causality that is told by places, whose extents are symbols: however it is spelled, attention needs no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import eqsat
from eqsat.ir.build import GraphBuilder
from eqsat.ir.graph import Graph
from eqsat.ir.interpret import run

Mask = Callable[[GraphBuilder, Any], Any]
"""Truth values that allow a key, of scores."""

LOWEST = float(np.finfo(np.float32).min)


def number(b: GraphBuilder, value: float) -> Any:
    return b.constant(np.float32(value))


def extent(b: GraphBuilder, scores: Any, axis: int) -> Any:
    return b.op("Shape", scores, start=axis, end=axis + 1)


def places(b: GraphBuilder, scores: Any, axis: int, start: int = 0) -> Any:
    zero, one = (b.constant(np.int64(n)) for n in (0, 1))
    counted = b.op("Range", zero, b.op("Squeeze", extent(b, scores, axis)), one)
    return b.op("Add", counted, b.constant(np.int64(start))) if start else counted


def compared(op: str, *, swapped: bool = False, start: int = 0) -> Mask:
    def mask(b: GraphBuilder, s: Any) -> Any:
        rows = b.op("Unsqueeze", places(b, s, 1), b.constant(np.array([1])))
        operands = (rows, places(b, s, 2, start))
        return b.op(op, *(operands[::-1] if swapped else operands))

    return mask


def triangle(diagonal: int = 0, *, upper: int = 0) -> Mask:
    def mask(b: GraphBuilder, s: Any) -> Any:
        ones = b.op("Expand", number(b, 1.0), b.op("Shape", s, start=1))
        cut = b.op("Trilu", ones, b.constant(np.int64(diagonal)), upper=upper)
        return b.op("Greater" if not upper else "Less", cut, number(b, 0.5))

    return mask


def part_of_table(diagonal: int = 0, start: int = 0) -> Mask:
    def mask(b: GraphBuilder, s: Any) -> Any:
        starts, axes = b.constant(np.array([start])), (b.constant(np.array([n])) for n in (0, 1))
        cut = b.constant(np.tri(32, k=diagonal, dtype=np.bool_))
        for axis, of in zip(axes, (1, 2), strict=True):
            cut = b.op("Slice", cut, starts, b.op("Add", extent(b, s, of), starts), axis)
        return cut

    return mask


def graph_of(mask: Mask, low: float, how: str, keys: str = "n") -> Graph:
    b = GraphBuilder("attention")
    q, k, v = (b.input(x, "float32", ("b", n, 8)) for x, n in (("q", "n"), ("k", keys), ("v", keys)))
    scores = b.op("MatMul", q, b.op("Transpose", k, perm=(0, 2, 1)))
    allowed = mask(b, scores)
    if how == "replaced":
        scores = b.op("Where", allowed, scores, number(b, low))
    elif how == "added":
        scores = b.op("Add", scores, b.op("Where", allowed, number(b, 0.0), number(b, low)))
    else:  # multiplied, as in one minus the mask times a number
        forbidden = b.op("Sub", number(b, 1.0), b.op("Cast", allowed, to=1))
        scores = b.op("Add", scores, b.op("Mul", forbidden, number(b, low)))
    return b.finish({"y": b.op("MatMul", b.op("Softmax", scores, axis=-1), v)})


def is_causal(graph: Graph) -> bool:
    """Whether what becomes of a graph is attention without a mask; its values are compared at several extents."""
    found = eqsat.optimize(graph, verify=False, form="flat").program.graph
    rng = np.random.default_rng(0)
    for n in (1, 2, 5, 32):
        keys = n if graph.type_of("k") == graph.type_of("q") else n + 2
        feeds = {x: rng.normal(size=(2, m, 8)).astype(np.float32) for x, m in (("q", n), ("k", keys), ("v", keys))}
        np.testing.assert_allclose(run(found, feeds)["y"], run(graph, feeds)["y"], rtol=2e-5, atol=2e-5)
    return any(n.op == "Attention" and n.attributes.get("is_causal", 0) and len(n.inputs) == 3 for n in found.nodes)


CAUSAL: dict[str, Mask] = {
    "no later key": compared("GreaterOrEqual"),
    "no later key, the other way round": compared("LessOrEqual", swapped=True),
    "keys before the next": compared("Greater", start=-1),
    "lower triangle": triangle(),
    "no upper triangle": triangle(1, upper=1),
    "a part of a table": part_of_table(),
}


@pytest.mark.parametrize(
    ("how", "low"), [("replaced", -np.inf), ("added", -np.inf), ("added", LOWEST), ("times", -1e9)]
)
@pytest.mark.parametrize("name", CAUSAL)
def test_causality_by_places_needs_no_mask(name: str, how: str, low: float) -> None:
    assert is_causal(graph_of(CAUSAL[name], low, how))


OTHERS: dict[str, Graph] = {
    "earlier keys only": graph_of(compared("Greater"), -1e9, "added"),
    "one more key": graph_of(compared("GreaterOrEqual", start=-1), -1e9, "added"),
    "no earlier key": graph_of(compared("LessOrEqual"), -1e9, "added"),
    "another diagonal": graph_of(triangle(-1), -1e9, "added"),
    "a table further on": graph_of(part_of_table(1), -1e9, "added"),
    "small numbers": graph_of(compared("GreaterOrEqual"), -1e4, "added"),
    "other keys": graph_of(compared("GreaterOrEqual"), -1e9, "added", keys="m"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_near_causality_stays_a_mask(name: str) -> None:
    assert not is_causal(OTHERS[name])


def test_places_are_as_many_as_there_are_frames_behind_a_convolution() -> None:
    """A Range to a number that might be negative, were it not an extent of the scores."""
    b = GraphBuilder("sound")
    sound, kernel = b.input("sound", "float32", ("batch", 8, "samples")), b.constant(np.ones((16, 8, 3), np.float32))
    frames = b.op("Transpose", b.op("Conv", sound, kernel, strides=(2,)), perm=(0, 2, 1))
    scores = b.op("MatMul", frames, b.op("Transpose", frames, perm=(0, 2, 1)))
    allowed = compared("LessOrEqual")(b, scores)
    scores = b.op("Where", allowed, scores, number(b, -np.inf))
    graph = b.finish({"y": b.op("MatMul", b.op("Softmax", scores, axis=-1), frames)})
    result = eqsat.optimize(graph)
    assert result.report.recognized == {"attention": 1}
    assert result.report.verification["verdict"] in ("equal", "within tolerance")


def test_places_tell_that_nothing_is_packed() -> None:
    """As transformers finds sequences packed into one: where the difference of positions is not 1, another begins."""

    def mask(b: GraphBuilder, s: Any) -> Any:
        zero, one, last = (b.constant(np.array([n])) for n in (0, 1, 2**62))
        rows = b.op("Expand", b.op("Unsqueeze", places(b, s, 1), zero), b.op("Shape", s, start=0, end=2))
        before = b.op("Sub", b.op("Slice", rows, zero, one, one), b.constant(np.int64(1)))
        both = b.op("Concat", before, rows, axis=1)
        jumps = b.op("Sub", b.op("Slice", both, one, last, one), b.op("Slice", both, zero, extent(b, s, 1), one))
        begins = b.op("Not", b.op("Equal", jumps, b.constant(np.int64(1))))
        number_of = b.op("CumSum", b.op("Cast", begins, to=7), b.constant(np.int64(1)))
        of_query, of_key = (b.op("Unsqueeze", number_of, b.constant(np.array([n]))) for n in (2, 1))
        return b.op("And", compared("GreaterOrEqual")(b, s), b.op("Equal", of_query, of_key))

    graph = graph_of(mask, -np.inf, "replaced")
    assert is_causal(graph)
    left = eqsat.optimize(graph, verify=False, form="flat").report.operators_after
    plain = graph_of(triangle(), -np.inf, "added")
    assert left == eqsat.optimize(plain, verify=False, form="flat").report.operators_after
